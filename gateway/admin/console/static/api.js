// The gateway's HTTP API: requests, their refusals, the CSRF token, and what is done while the gateway does not answer.

import { connection, session } from "./state.js";

const ROOT = "/SEMP/v2/";
const PATIENCE_MS = 60_000;
const RETRIES_MS = [1_000, 2_000, 3_000, 5_000];

/** A request that was refused. Its message is the gateway's sentence. */
export class ApiError extends Error {
  /**
   * @param {number} status Of HTTP.
   * @param {string} text
   * @param {string} code Such as NOT_FOUND.
   * @param {string} replayError As links are told it; empty for none.
   */
  constructor(status, text, code = "", replayError = "") {
    super(text);
    this.status = status;
    this.code = code;
    this.replayError = replayError;
  }
}

/** The gateway did not answer. */
export class Unreachable extends Error {}

/** Whether what was refused may go well a little later. @param {unknown} error */
const isPassing = (error) => error instanceof Unreachable || (error instanceof ApiError && (error.status >= 500 || error.status === 429));

/**
 * The path of a resource, names encoded: at`monitor/msgVpns/${vpn}/queues/${name}`.
 * @param {TemplateStringsArray} strings
 * @param {...(string | number)} names
 */
export function at(strings, ...names) {
  return strings.reduce((path, text, place) => path + encodeURIComponent(String(names[place - 1])) + text);
}

/** @typedef {Record<string, string | number | boolean | string[] | null | undefined>} Query */

/**
 * The address of a path under the API, or of one that begins with a slash.
 * @param {string} path
 * @param {Query} [query] A list is said several times; null and undefined are left out.
 */
export function address(path, query = {}) {
  const said = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined) continue;
    for (const one of Array.isArray(value) ? value : [value]) said.append(name, String(one));
  }
  const text = said.toString();
  return (path.startsWith("/") ? path : ROOT + path) + (text ? `?${text}` : "");
}

/**
 * @param {string} method
 * @param {string} path
 * @param {{query?: Query, body?: unknown, signal?: AbortSignal, headers?: Record<string, string>}} [options]
 * @returns {Promise<Response>} Of a request that was carried out.
 * @throws {ApiError | Unreachable}
 */
export async function fetched(method, path, { query, body, signal, headers = {} } = {}) {
  /** @type {Record<string, string>} */
  const sent = { Accept: "application/json", ...headers };
  if (body !== undefined) sent["Content-Type"] = "application/json";
  if (method !== "GET" && session.value?.csrfToken) sent["X-CSRF-Token"] = session.value.csrfToken;
  /** @type {Response} */
  let response;
  try {
    response = await fetch(address(path, query), {
      method,
      headers: sent,
      body: body === undefined ? null : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      signal: signal ?? AbortSignal.timeout(PATIENCE_MS),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    lost();
    throw new Unreachable("The gateway does not answer.");
  }
  if (response.ok) return response;
  throw await refusal(response);
}

/** @param {Response} response */
async function refusal(response) {
  const said = await response.json().catch(() => null);
  const error = said?.meta?.error;
  if (response.status === 401 && session.value?.isSignedIn) {
    session.value = { ...session.value, isSignedIn: false, csrfToken: "" };
  }
  // Another window of this browser has signed in meanwhile: whose session it is now, the page shows.
  if (response.status === 403 && error?.description?.includes("X-CSRF-Token")) void loadSession().catch(() => null);
  const text = error?.description ?? `The gateway answered ${response.status} ${response.statusText}.`;
  return new ApiError(response.status, text, error?.status, error?.replayError);
}

/**
 * @param {string} method
 * @param {string} path
 * @param {{query?: Query, body?: unknown, signal?: AbortSignal}} [options]
 * @returns {Promise<any>} The answer: `data` and `meta`.
 */
export async function request(method, path, options) {
  return (await fetched(method, path, options)).json();
}

/**
 * One object, or one page of a list.
 * @param {string} path
 * @param {Query} [query]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>} Its `data`.
 */
export async function get(path, query, signal) {
  return (await request("GET", path, { query, signal })).data;
}

/**
 * A page of a list, and the cursor of the next.
 * @param {string} path
 * @param {Query} [query]
 * @param {AbortSignal} [signal]
 * @returns {Promise<{rows: any[], cursor: string | null, total: number | null}>}
 */
export async function page(path, query, signal) {
  const { data, meta } = await request("GET", path, { query, signal });
  return { rows: data ?? [], cursor: meta.paging?.cursorQuery ?? null, total: meta.count ?? null };
}

/**
 * A list whose objects are few, whole.
 * @param {string} path
 * @param {Query} [query]
 * @param {number} [most] Objects at most.
 * @returns {Promise<any[]>}
 */
export async function all(path, query, most = 1_000) {
  /** @type {any[]} */
  const found = [];
  /** @type {string | null} */
  let cursor = null;
  do {
    const next = await page(path, { count: Math.min(most, 500), ...query, cursor });
    found.push(...next.rows);
    cursor = next.cursor;
  } while (cursor && found.length < most);
  return found;
}

/** @param {string} path @param {unknown} [body] */
export const put = async (path, body) => (await request("PUT", path, { body: body ?? {} })).data;

/** @param {string} path @param {unknown} body */
export const post = async (path, body) => (await request("POST", path, { body })).data;

/** @param {string} path @param {unknown} body */
export const patch = async (path, body) => (await request("PATCH", path, { body })).data;

/** @param {string} path */
export const remove = async (path) => (await request("DELETE", path)).data;

/** Ask who is signed in, and what may be done. */
export async function loadSession() {
  session.value = await get("/session");
}

/**
 * @param {{userName: string, password: string} | {token: string}} credentials
 * @throws {ApiError}
 */
export async function signIn(credentials) {
  session.value = await post("/session", credentials);
}

export async function signOut() {
  await request("DELETE", "/session").catch(() => null);
  await loadSession();
}

/**
 * Do something until it goes well: again while the gateway is unavailable, is starting or stopping, or has too much to do.
 * @template T
 * @param {() => Promise<T>} work
 * @param {{signal: AbortSignal, onProblem: (problem: ApiError | null) => void}} options What is told why it waits, if that
 *   is not that the gateway does not answer; and null once it went well.
 * @returns {Promise<T>}
 * @throws {ApiError | DOMException} It is refused for good; or `signal` was aborted.
 */
export async function tried(work, { signal, onProblem }) {
  for (let count = 0; ; count++) {
    try {
      const found = await work();
      onProblem(null);
      return found;
    } catch (error) {
      if (signal.aborted || !isPassing(error)) throw error;
      onProblem(error instanceof ApiError ? error : null);
    }
    do {
      await new Promise((resolve) => setTimeout(resolve, pauseAfter(count)));
      signal.throwIfAborted();
    } while (!connection.value.isUp);
  }
}

/** Milliseconds until what failed is tried again. @param {number} count How often it had failed before. */
const pauseAfter = (count) => RETRIES_MS[Math.min(count, RETRIES_MS.length - 1)] ?? 5_000;

let tries = 0;

/** The gateway did not answer: it is asked again and again, and then all goes on. */
export function lost() {
  if (!connection.value.isUp) return;
  tries = 0;
  waitAndTry();
}

/** Ask at once. */
export function tryNow() {
  connection.value = { isUp: false, retryAtMs: Date.now() };
}

function waitAndTry() {
  connection.value = { isUp: false, retryAtMs: Date.now() + pauseAfter(tries++) };
  const timer = setInterval(async () => {
    if (Date.now() < connection.value.retryAtMs) return;
    clearInterval(timer);
    try {
      const response = await fetch("/session", { cache: "no-store", signal: AbortSignal.timeout(5_000) });
      if (response.ok) session.value = (await response.json()).data;
      connection.value = { isUp: true, retryAtMs: 0 };
    } catch {
      waitAndTry();
    }
  }, 100);
}
