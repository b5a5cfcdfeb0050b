// What a rewind is to be, as its page has it in the address, and what it would bring.

import { page, request } from "./api.js";
import { pathOf } from "./parts/endpoints.js";

/**
 * @typedef {object} Rewind
 * @property {"endpoint" | "copy"} to
 * @property {string} target The name of an endpoint, or an address.
 * @property {string} start Any replay start.
 * @property {string} until Where a copy ends; empty for the newest message.
 * @property {boolean} isClamped Begin at the nearest message where the start is not in the log.
 * @property {boolean} isKeeping What lies on the endpoint and is not in the log stays, in its place.
 * @property {string} topics Of a copy, with spaces between them.
 * @property {string} selector Of a copy.
 * @property {string} rate Messages a second, of a copy.
 * @property {string} speed A factor, of a copy.
 * @property {string} remote The label of another gateway, of a copy.
 * @property {string} name What it is called.
 *
 * @typedef {object} Preview
 * @property {number} msgCount
 * @property {number | null} bytes
 * @property {number | null} firstMs
 * @property {number | null} lastMs
 * @property {{topic: string, msgCount: number}[]} topics
 * @property {boolean} isMore There is more than was looked at.
 * @property {number} dropped
 * @property {number} lost
 * @property {number} lostBytes
 * @property {number} kept Messages that lie there, that the log does not have, and that stay.
 * @property {number} detached
 * @property {string[]} clients
 */

const COPY_PAGES = 5;
const COPY_PAGE = 1_000;

/** @param {Rewind} rewind */
const startOf = (rewind) => ({ start: rewind.start || "beginning", missing: rewind.isClamped ? "clamp" : "fail" });

/** @param {Rewind} rewind */
const replayOf = (rewind) => ({ ...startOf(rewind), keepUnlogged: rewind.isKeeping });

/** @param {string} text */
const patternsOf = (text) => text.split(/\s+/).filter(Boolean);

/**
 * What a replay onto an endpoint would bring, as the gateway counts it.
 * @param {string} vpn
 * @param {import("./parts/endpoints.js").Endpoint} endpoint
 * @param {Rewind} rewind
 * @param {AbortSignal} signal
 * @returns {Promise<Preview>}
 */
export async function previewReplay(vpn, endpoint, rewind, signal) {
  const { data } = await request("PUT", `${pathOf("action", vpn, endpoint)}/previewReplay`, { body: replayOf(rewind), signal });
  return {
    msgCount: data.msgCount,
    bytes: data.msgSpoolUsage,
    firstMs: data.firstMsgTimeMs,
    lastMs: data.lastMsgTimeMs,
    topics: data.topics,
    isMore: false,
    dropped: data.droppedMsgCount,
    lost: data.lossMsgCount,
    lostBytes: data.lossMsgSpoolUsage,
    kept: data.keptMsgCount,
    detached: data.detachedClientCount,
    clients: data.detachedClients,
  };
}

/**
 * What a copy would bring: the first thousands of its messages are looked at.
 * @param {string} vpn
 * @param {Rewind} rewind
 * @param {AbortSignal} signal
 * @returns {Promise<Preview>}
 */
export async function previewCopy(vpn, rewind, signal) {
  const path = `monitor/msgVpns/${encodeURIComponent(vpn)}/replayLogs/default/msgs`;
  const topics = patternsOf(rewind.topics);
  const query = { start: rewind.start || "beginning", until: rewind.until || null, subscribe: topics.length ? topics : null, selector: rewind.selector || null, count: COPY_PAGE };
  /** @type {any[]} */
  const rows = [];
  /** @type {string | null} */
  let cursor = null;
  for (let pages = 0; pages < COPY_PAGES && (pages === 0 || cursor); pages++) {
    const found = await page(path, { ...query, cursor }, signal);
    rows.push(...found.rows);
    cursor = found.cursor;
  }
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const row of rows) counts.set(row.topic, (counts.get(row.topic) ?? 0) + 1);
  return {
    msgCount: rows.length,
    bytes: rows.reduce((total, row) => total + row.contentSize, 0),
    firstMs: rows[0]?.spooledTimeMs ?? null,
    lastMs: rows.at(-1)?.spooledTimeMs ?? null,
    topics: [...counts].map(([topic, msgCount]) => ({ topic, msgCount })).toSorted((one, other) => other.msgCount - one.msgCount),
    isMore: cursor !== null,
    dropped: 0,
    lost: 0,
    lostBytes: 0,
    kept: 0,
    detached: 0,
    clients: [],
  };
}

/**
 * Begin a replay onto an endpoint: no more may be lost than the preview said.
 * @param {string} vpn
 * @param {import("./parts/endpoints.js").Endpoint} endpoint
 * @param {Rewind} rewind
 * @param {Preview} preview
 * @returns {Promise<string>} Its name.
 */
export async function startReplay(vpn, endpoint, rewind, preview) {
  const body = { ...replayOf(rewind), ifLossAtMost: preview.lost, ...(rewind.name ? { replayName: rewind.name } : {}) };
  return (await request("PUT", `${pathOf("action", vpn, endpoint)}/startReplay`, { body })).data.replayName;
}

/**
 * Begin a copy.
 * @param {string} vpn
 * @param {Rewind} rewind
 * @returns {Promise<string>} Its name.
 */
export async function startCopy(vpn, rewind) {
  const body = {
    ...startOf(rewind),
    target: rewind.target,
    subscriptions: patternsOf(rewind.topics),
    selector: rewind.selector,
    replayTarget: rewind.remote,
    name: rewind.name,
    ...(rewind.until ? { until: rewind.until } : {}),
    ...(rewind.rate ? { rate: Number(rewind.rate) } : {}),
    ...(rewind.speed ? { speed: Number(rewind.speed) } : {}),
  };
  return (await request("PUT", `action/msgVpns/${encodeURIComponent(vpn)}/replayLogs/default/startCopy`, { body })).data.replayName;
}
