// Server-Sent Events of the gateway, read by hand: what is not read yet holds the sender back, a refusal has its sentence,
// and where the connection broke it goes on after the last event.

import { ApiError, fetched, lost, tried } from "./api.js";

/** How often the gateway may end a stream with an error, and nothing come before that, until it is told. */
const MOST_ENDS = 5;

/** From the end of a stream to the next. */
const PAUSE_MS = 500;

/**
 * @typedef {object} Event
 * @property {string} type
 * @property {string} id Where to go on after it.
 * @property {string} data
 */

/**
 * The events in a stream of text, as they come. A part of an event that is cut is kept for the next call.
 * @returns {(text: string) => Event[]}
 */
export function eventParser() {
  let rest = "";
  return (text) => {
    rest += text.replaceAll("\r\n", "\n");
    /** @type {Event[]} */
    const found = [];
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const event = eventOf(rest.slice(0, end));
      rest = rest.slice(end + 2);
      if (event) found.push(event);
    }
    return found;
  };
}

/** @param {string} text @returns {Event | null} */
function eventOf(text) {
  const event = { type: "message", id: "", data: "" };
  for (const line of text.split("\n")) {
    const [, name, value] = /^([a-z]+): ?(.*)$/s.exec(line) ?? [];
    if (name === "event") event.type = value ?? "";
    else if (name === "id") event.id = value ?? "";
    else if (name === "data") event.data += (event.data ? "\n" : "") + value;
  }
  return event.id || event.data ? event : null;
}

/**
 * Follow a stream of events until `signal` is aborted; a connection that breaks is made again.
 * @param {string} path
 * @param {import("./api.js").Query} query
 * @param {object} handlers
 * @param {(event: Event) => void | Promise<void>} handlers.onEvent Events wait until it has returned.
 * @param {(problem: ApiError | null) => void} handlers.onProblem Why there are none for a while; null, there are again.
 * @param {string} [handlers.lastId] Go on after this event.
 * @param {AbortSignal} handlers.signal
 * @throws {ApiError | DOMException} It is refused for good; or `signal` was aborted.
 */
export async function follow(path, query, { onEvent, onProblem, lastId = "", signal }) {
  let ends = 0;
  const connect = () => {
    const headers = { Accept: "text/event-stream", ...(lastId ? { "Last-Event-ID": lastId } : {}) };
    return fetched("GET", path, { query, signal, headers });
  };
  while (!signal.aborted) {
    const response = await tried(connect, { signal, onProblem });
    try {
      for await (const event of eventsOf(response)) {
        if (event.type === "error") {
          // It may be for a while, as when the gateway stops; what is for good is said to the next request.
          if (++ends > MOST_ENDS) throw new ApiError(0, problemOf(event.data));
          break;
        }
        if (event.data) {
          ends = 0;
          await onEvent(event);
        }
        if (event.id) lastId = event.id;
      }
    } catch (error) {
      if (signal.aborted) break;
      if (error instanceof ApiError) throw error;
      lost();
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}

/** What the gateway says before it ends a stream. @param {string} data */
function problemOf(data) {
  const { error } = JSON.parse(data);
  return error?.description ?? error?.condition ?? "The gateway ended the stream.";
}

/** @param {Response} response */
async function* eventsOf(response) {
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  const parse = eventParser();
  while (reader) {
    const { value, done } = await reader.read();
    if (done) return;
    yield* parse(value);
  }
}
