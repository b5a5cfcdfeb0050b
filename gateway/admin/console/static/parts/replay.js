// A replay under way or of the past: how far it is, what is left, and how it is ended.

import { at, get, put } from "../api.js";
import { html, useRef, useState } from "../html.js";
import { href, now } from "../state.js";
import * as words from "../words.js";
import { Badge, Bar, Button, Facts, Note } from "./basics.js";
import { Confirm } from "./dialog.js";
import { findEndpoint, pathOf } from "./endpoints.js";
import { toast } from "./toasts.js";

/** @typedef {Record<string, any>} Replay As the gateway answers it. */

const SAMPLED_MS = 10_000;

/** @param {Replay} replay */
export const isUnderWay = (replay) => replay.endedTimeMs === null;

/** @type {Record<string, [any, string]>} */
const STATES = {
  initializing: ["beginning", "accent"],
  active: ["reading the log", "accent"],
  "pending-complete": ["waiting for acknowledgements", "accent"],
  running: ["running", "accent"],
  paused: ["paused", "warning"],
  complete: ["complete", "plain"],
  cancelled: ["cancelled", "plain"],
  failed: ["failed", "danger"],
};

/** @param {{replay: Replay}} props */
export function ReplayState({ replay }) {
  const [text, kind] = STATES[replay.state] ?? [replay.state, "plain"];
  return html`<${Badge} kind=${kind} title=${replay.outcome}>${text}<//>`;
}

/** @type {Record<string, string>} */
export const KINDS = { endpoint: "replay to an endpoint", copy: "copy to an address", "dead-return": "dead letters sent back" };

/**
 * A replay, and the endpoint that it goes to while it is under way.
 * @param {string} vpn
 * @param {string} name
 * @param {AbortSignal} signal
 */
export async function loadReplay(vpn, name, signal) {
  const replay = await get(at`monitor/msgVpns/${vpn}/replays/${name}`, {}, signal);
  const endpoint = replay.kind === "endpoint" && isUnderWay(replay) ? await findEndpoint(vpn, replay.target, signal).catch(() => null) : null;
  return { replay, endpoint };
}

/**
 * How far it is, in messages.
 * @param {Replay} replay
 * @param {import("./endpoints.js").Endpoint | null} endpoint
 * @returns {{done: number, total: number, unacked: number | null}}
 */
export function progressOf(replay, endpoint) {
  const { readMsgCount: read, sentMsgCount: sent } = replay;
  const left = endpoint ? endpoint.state.replayRemaining : Math.max(0, replay.endMsgId - replay.positionMsgId);
  // What is left in the log is counted by ids; as many of them are wanted as so far.
  const total = read > 0 ? Math.round((sent * (read + left)) / read) : left;
  const unacked = endpoint ? endpoint.state.replayOutstandingMsgCount : null;
  return { done: sent - (unacked ?? 0), total: Math.max(total, sent), unacked };
}

/**
 * How much a number rises a second, over the last seconds.
 * @param {number} value
 */
function useRate(value) {
  const samples = useRef(/** @type {[number, number][]} */ ([]));
  const ms = Date.now();
  const last = samples.current.at(-1);
  if (!last || ms - last[0] > 500) samples.current.push([ms, value]);
  while (samples.current[0] && ms - samples.current[0][0] > SAMPLED_MS) samples.current.shift();
  const first = samples.current[0];
  return first && ms - first[0] > 900 ? Math.max(0, ((value - first[1]) / (ms - first[0])) * 1_000) : null;
}

/** @param {{replay: Replay, endpoint: import("./endpoints.js").Endpoint | null}} props */
export function Progress({ replay, endpoint }) {
  const { done, total, unacked } = progressOf(replay, endpoint);
  const measured = useRate(done);
  const perSecond = replay.kind === "endpoint" ? measured : replay.msgRate;
  const secondsLeft = replay.kind === "endpoint" ? (perSecond ? (total - done) / perSecond : null) : replay.secondsLeft;
  const isRead = endpoint && endpoint.state.replayRemaining === 0;
  return html`<div class="progress">
    <p class="progress-line">
      <span><b>${words.number(done)}</b> of ${isRead || !endpoint ? "" : "about "}${words.counted(total, "message")} ${endpoint ? "acknowledged" : "published"}</span>
      <span class="soft">${total > 0 ? `${Math.floor((done / total) * 100)} %` : ""}</span>
    </p>
    <${Bar} value=${done} most=${total} label="Progress of ${replay.replayName}" text="${words.number(done)} of ${words.number(total)}" />
    <${Facts}
      rows=${[
        ["Rate", perSecond === null ? "…" : words.rate(perSecond)],
        ["Time left", secondsLeft === null || !Number.isFinite(secondsLeft) ? "not known" : words.duration(secondsLeft * 1_000)],
        unacked !== null && ["Unacknowledged", words.counted(unacked, "message")],
        endpoint && !isRead && ["Left in the log", words.counted(endpoint.state.replayRemaining, "message")],
        ["Sent", `${words.counted(replay.sentMsgCount, "message")}, ${words.size(replay.sentByteCount)}`],
      ]}
    />
    ${endpoint?.state.bindCount === 0 && html`<${Note} kind="warning">${replay.target} has no consumer: the replay continues when one attaches.<//>`}
    ${endpoint?.state.replayBlockedBySelector && html`<${Note} kind="warning">No consumer's selector matches the messages that come next.<//>`}
  </div>`;
}

/**
 * What can be done with a replay under way.
 * @param {{vpn: string, replay: Replay, endpoint: import("./endpoints.js").Endpoint | null, onDone: () => void}} props
 */
export function ReplayActions({ vpn, replay, endpoint, onDone }) {
  const [asking, setAsking] = useState("");
  const name = replay.replayName;
  const job = async (/** @type {string} */ action, /** @type {string} */ said) => {
    try {
      await put(`${at`action/msgVpns/${vpn}/replayLogs/default`}/${action}`, { replayName: name });
      toast(said);
    } catch (error) {
      toast(/** @type {Error} */ (error).message, "error");
    }
    onDone();
  };
  if (replay.kind !== "endpoint") {
    return html`${replay.state === "paused"
        ? html`<${Button} icon="play" onClick=${() => job("resumeReplay", "Resumed.")}>Resume<//>`
        : html`<${Button} icon="pause" onClick=${() => job("pauseReplay", "Paused.")}>Pause<//>`}
      <${Button} icon="close" onClick=${() => setAsking("cancel")}>Cancel…<//>
      ${asking &&
      html`<${Confirm} title="Cancel ${name}?" action="Cancel it" danger=${true} onClose=${() => setAsking("")} onDo=${() => job("cancelReplay", "Cancelled.")}>
        <p>Messages that it has published stay.</p>
      <//>`}`;
  }
  if (!endpoint) return null;
  const isKeeping = asking === "keep";
  return html`<${Button} icon="check" onClick=${() => setAsking("keep")}>End here…<//>
    <${Button} icon="close" onClick=${() => setAsking("cancel")}>Cancel…<//>
    ${asking &&
    html`<${Confirm}
      title=${isKeeping ? `End the replay to ${replay.target} here?` : `Cancel the replay to ${replay.target}?`}
      action=${isKeeping ? "End the replay" : "Cancel the replay"}
      danger=${!isKeeping}
      onClose=${() => setAsking("")}
      onDo=${async () => {
        await put(`${pathOf("action", vpn, endpoint)}/cancelReplay`, { forceComplete: isKeeping });
        toast(isKeeping ? `The replay has ended: ${replay.target} is live again, with the messages replayed so far.` : `The replay to ${replay.target} is cancelled.`);
        onDone();
      }}
    >
      <p>
        ${isKeeping
          ? "Messages replayed so far stay on it, and new messages arrive as they are published. The rest of the log is not replayed."
          : "Replayed messages that are not acknowledged are dropped. New messages arrive as they are published."}
      </p>
    <//>`}`;
}

/** @param {{replay: Replay}} props */
export function ReplayFacts({ replay }) {
  const target = replay.replayTarget ? `${replay.target} at ${replay.replayTarget}` : replay.target;
  return html`<${Facts}
    rows=${[
      ["Name", html`<code>${words.oneLine(replay.replayName)}</code>`],
      ["Kind", KINDS[replay.kind] ?? replay.kind],
      ["To", html`<code>${words.oneLine(target) || "where each message died"}</code>`],
      replay.sourceQueueName && ["From the queue", html`<code>${words.oneLine(replay.sourceQueueName)}</code>`],
      ["Requested by", words.oneLine(replay.requester)],
      replay.start && ["From", startWords(replay.start)],
      replay.until && ["Until", startWords(replay.until)],
      replay.subscriptions.length > 0 && ["Topics", html`<code>${replay.subscriptions.map(words.oneLine).join(" ")}</code>`],
      replay.selector && ["Selector", html`<code>${words.oneLine(replay.selector)}</code>`],
      replay.rate !== null && ["Rate limit", words.rate(replay.rate)],
      replay.speed !== null && ["Pace", `${words.number(replay.speed)} times the original`],
      ["Started", words.momentAndAge(replay.startedTimeMs, now.value), words.exactly(replay.startedTimeMs)],
      replay.endedTimeMs !== null && ["Ended", `${words.moment(replay.endedTimeMs)}, after ${words.duration(replay.endedTimeMs - replay.startedTimeMs)}`, words.exactly(replay.endedTimeMs)],
      replay.endedTimeMs !== null && ["Sent", `${words.counted(replay.sentMsgCount, "message")}, ${words.size(replay.sentByteCount)}`],
      replay.outcome && ["Outcome", words.oneLine(replay.outcome)],
    ]}
  />`;
}

/**
 * A start as it is said: dates as people read them.
 * @param {string} start
 */
export function startWords(start) {
  const ms = /^\d{4}-.*(?:Z|[+-]\d\d:?\d\d)$/.test(start) ? Date.parse(start) : Number.NaN;
  return Number.isNaN(ms) ? html`<code>${words.oneLine(start)}</code>` : html`<span title=${start}>${words.said(ms, { seconds: true })}</span>`;
}

/** The same once more. @param {Replay} replay */
export function againHref(replay) {
  if (replay.kind === "dead-return") return href("dead-letters", [replay.sourceQueueName]);
  const isCopy = replay.kind === "copy";
  return href("rewind", [], {
    to: isCopy ? "copy" : null,
    target: replay.target,
    start: replay.start,
    until: isCopy ? replay.until : null,
    topics: isCopy ? replay.subscriptions.join(" ") : null,
    selector: isCopy ? replay.selector : null,
    rate: replay.rate,
    speed: replay.speed,
    remote: replay.replayTarget,
  });
}
