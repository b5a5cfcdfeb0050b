// What is asked for again and again while it is seen: not in a hidden tab, and not while the gateway does not answer.

import { Unreachable } from "../api.js";
import { html, useCallback, useEffect, useRef, useState } from "../html.js";
import { connection, isVisible } from "../state.js";
import { Loading, Refusal } from "./basics.js";

const INTERVAL_MS = 2_000;

/**
 * @template T
 * @typedef {object} Polled
 * @property {T | null} data The newest; null until there is one.
 * @property {Error | null} error Why there is none newer.
 * @property {() => Promise<void>} reload Ask now.
 */

/**
 * What `load` finds, asked again after each interval; 0 is never.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {unknown[]} about What it depends on: where one changes, what was found before is forgotten.
 * @param {number} [intervalMs]
 * @returns {Polled<T>}
 */
export function usePolled(load, about, intervalMs = INTERVAL_MS) {
  const key = JSON.stringify(about);
  const [found, setFound] = useState({ key, data: /** @type {T | null} */ (null), error: /** @type {Error | null} */ (null) });
  const latest = useRef(load);
  latest.current = load;
  const ask = useRef(async () => {});

  useEffect(() => {
    const abort = new AbortController();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    let isAsking = false;
    let isDue = false;
    const again = () => {
      clearTimeout(timer);
      if (intervalMs > 0 && !abort.signal.aborted) timer = setTimeout(tick, intervalMs);
    };
    const once = async () => {
      if (isAsking) return;
      isAsking = true;
      try {
        const data = await latest.current(abort.signal);
        if (!abort.signal.aborted) setFound({ key, data, error: null });
      } catch (error) {
        if (abort.signal.aborted) return;
        // That a gateway is unavailable is said in one place, and what was seen last stays.
        isDue = error instanceof Unreachable;
        const shown = isDue ? null : /** @type {Error} */ (error);
        setFound((before) => ({ key, data: before.key === key ? before.data : null, error: shown }));
      } finally {
        isAsking = false;
        again();
      }
    };
    const tick = () => {
      isDue = !(isVisible.peek() && connection.peek().isUp);
      if (!isDue) void once();
    };
    const unsee = isVisible.subscribe(() => isDue && tick());
    const unconnect = connection.subscribe(() => isDue && tick());
    ask.current = once;
    void once();
    return () => {
      abort.abort();
      clearTimeout(timer);
      unsee();
      unconnect();
    };
  }, [key, intervalMs]);

  const reload = useCallback(() => ask.current(), []);
  const isOurs = found.key === key;
  return { data: isOurs ? found.data : null, error: isOurs ? found.error : null, reload };
}

/**
 * What was found, once it is there; why it is not, in its place.
 * @param {{of: Polled<any>, children: (data: any) => any}} props
 */
export function Found({ of: { data, error }, children }) {
  return html`<${Refusal} error=${error} />${data === null ? !error && html`<${Loading} />` : children(data)}`;
}
