// The time line of a log: bars for how many messages came when, flags for points, shades for what only the archive has or
// nothing has. Dragging picks from and until, a click picks a start; the edges can be moved, with the keyboard too.

import { html, useMemo, useRef, useState } from "../html.js";
import vendored from "../vendor/uplot.js";
import * as words from "../words.js";
import { colour } from "./colours.js";
import { Icon } from "./icons.js";
import { Plot, axes } from "./plot.js";

/** @type {any} */
const uPlot = vendored;

const LEFT = 52;
const RIGHT = 22;
const CLICK_PX = 4;

/** Of the highest bar, how high the lowest is. */
const LEAST_PART = 0.025;

/**
 * @typedef {object} Histogram As the gateway answers it.
 * @property {number} fromTimeMs
 * @property {number} untilTimeMs
 * @property {{timeMs: number, firstMsgId: number, msgCount: number}[]} buckets
 * @property {{oldestTimeMs: number, newestTimeMs: number, oldestMsgId: number, newestMsgId: number} | null} log
 * @property {{oldestTimeMs: number, oldestMsgId: number} | null} archive
 *
 * @typedef {object} Point
 * @property {string} replayPointName
 * @property {number | null} timeMs
 * @property {number} msgId
 * @property {boolean} trimmed
 */

/**
 * @param {{histogram: Histogram, points?: Point[], from: number | null, until: number | null, onSelect: (from: number | null, until: number | null) => void, onPoint?: (point: Point) => void, height?: number}} props
 *   Times in ms; `from` alone is a start, both are a part of the log.
 */
export function Timeline({ histogram, points = [], from, until, onSelect, onPoint, height = 132 }) {
  const { fromTimeMs: first, untilTimeMs: end, buckets } = histogram;
  const area = useRef(/** @type {any} */ (null));
  const drag = useRef({ at: 0, x: 0 });
  const [draft, setDraft] = useState(/** @type {[number, number] | null} */ (null));
  const [hover, setHover] = useState(/** @type {number | null} */ (null));
  const span = Math.max(1, end - first);
  const percent = (/** @type {number} */ ms) => Math.min(100, Math.max(0, ((ms - first) / span) * 100));

  const msAt = (/** @type {PointerEvent} */ event) => {
    const box = area.current.getBoundingClientRect();
    const part = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    return Math.round(first + part * span);
  };
  const down = (/** @type {PointerEvent} */ event) => {
    if (event.button !== 0 || /** @type {HTMLElement} */ (event.target).closest("button, [role=slider]")) return;
    area.current.setPointerCapture(event.pointerId);
    drag.current = { at: msAt(event), x: event.clientX };
    setDraft([drag.current.at, drag.current.at]);
  };
  const move = (/** @type {PointerEvent} */ event) => {
    const ms = msAt(event);
    setHover(ms);
    if (draft) setDraft([Math.min(drag.current.at, ms), Math.max(drag.current.at, ms)]);
  };
  const up = (/** @type {PointerEvent} */ event) => {
    if (!draft) return;
    setDraft(null);
    if (Math.abs(event.clientX - drag.current.x) < CLICK_PX) onSelect(drag.current.at, null);
    else onSelect(draft[0], draft[1]);
  };

  const data = useMemo(() => {
    // Beside very many, few are seen still.
    const least = Math.max(0, ...buckets.map((bucket) => bucket.msgCount)) * LEAST_PART;
    return [
      [...buckets.map((bucket) => bucket.timeMs / 1_000), end / 1_000],
      [...buckets.map(({ msgCount }) => (msgCount === 0 ? 0 : Math.max(msgCount, least))), null],
    ];
  }, [buckets, end]);
  const range = [first / 1_000, end / 1_000];
  const options = () => ({
    padding: [6, RIGHT, 0, 0],
    cursor: { show: false },
    legend: { show: false },
    scales: {
      x: { time: true, range: () => latest.current },
      y: { range: (/** @type {any} */ _plot, /** @type {number} */ _low, /** @type {number} */ high) => [0, Math.max(1, high * 1.06)] },
    },
    axes: axes(colour, compact),
    series: [{}, { fill: colour("accent"), width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.86, 40, 1], align: 1 }) }],
  });
  const latest = useRef(range);
  latest.current = range;

  const shown = draft && draft[1] > draft[0] ? draft : [from, until];
  const [left, right] = shown;
  const log = histogram.log;
  const archive = histogram.archive;
  const logFrom = log ? log.oldestTimeMs : end;
  const archiveFrom = archive ? Math.min(archive.oldestTimeMs, logFrom) : logFrom;
  return html`<div class="timeline" style=${{ "--left": `${LEFT}px`, "--right": `${RIGHT}px` }}>
    <div class="timeline-at soft" aria-hidden="true">${hover === null ? "" : told(buckets, hover, end)}</div>
    <${Plot} label="Messages over time, from ${words.moment(first)} until ${words.moment(end)}" options=${options} data=${data} height=${height} />
    <div
      class="timeline-area"
      ref=${area}
      onPointerDown=${down}
      onPointerMove=${move}
      onPointerUp=${up}
      onPointerCancel=${() => setDraft(null)}
      onPointerLeave=${() => setHover(null)}
    >
      ${archiveFrom > first && html`<div class="shade trimmed" title="No longer there: trimmed, or never logged" style=${{ left: "0", width: `${percent(archiveFrom)}%` }}></div>`}
      ${logFrom > archiveFrom &&
      logFrom > first &&
      html`<div class="shade archived" title="Only in the archive" style=${{ left: `${percent(archiveFrom)}%`, width: `${percent(logFrom) - percent(archiveFrom)}%` }}>
        <span>archive</span>
      </div>`}
      ${left !== null &&
      left !== undefined &&
      html`<div
        class="selection ${right === null || right === undefined ? "open" : ""}"
        style=${{ left: `${percent(left)}%`, width: `${percent(right ?? end) - percent(left)}%` }}
      ></div>`}
      ${!draft && from !== null && html`<${Edge} name="From" at=${from} first=${first} end=${end} area=${area} onMove=${(/** @type {number} */ ms) => onSelect(until === null ? ms : Math.min(ms, until), until)} />`}
      ${!draft && until !== null && html`<${Edge} name="Until" at=${until} first=${first} end=${end} area=${area} onMove=${(/** @type {number} */ ms) => onSelect(from === null ? first : from, Math.max(ms, from ?? first))} />`}
      ${points
        .filter((point) => point.timeMs !== null && point.timeMs >= first && point.timeMs <= end)
        .map(
          (point) =>
            html`<button
              key=${point.replayPointName}
              type="button"
              class="flag ${point.trimmed ? "trimmed" : ""}"
              style=${{ left: `${percent(point.timeMs ?? first)}%` }}
              title="${point.replayPointName}: ${words.exactly(point.timeMs ?? 0)}${point.trimmed ? " (trimmed)" : ""}"
              aria-label="Point ${point.replayPointName}"
              onClick=${() => (onPoint ? onPoint(point) : onSelect(point.timeMs, null))}
            >
              <${Icon} name="flag" />
            </button>`,
        )}
    </div>
  </div>`;
}

/**
 * An edge of what is picked, to be moved with pointer or keys.
 * @param {{name: string, at: number, first: number, end: number, area: {current: any}, onMove: (ms: number) => void}} props
 */
function Edge({ name, at, first, end, area, onMove }) {
  const [isHeld, setHeld] = useState(false);
  const span = Math.max(1, end - first);
  const place = ((at - first) / span) * 100;
  if (place < 0 || place > 100) return null;
  const bounded = (/** @type {number} */ ms) => Math.round(Math.min(end, Math.max(first, ms)));
  const move = (/** @type {PointerEvent} */ event) => {
    if (!isHeld) return;
    const box = area.current.getBoundingClientRect();
    onMove(bounded(first + ((event.clientX - box.left) / box.width) * span));
  };
  const press = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10 }[event.key];
    if (!step) return;
    event.preventDefault();
    onMove(bounded(at + (step * span) / 200));
  };
  return html`<div
    class="edge"
    role="slider"
    tabindex="0"
    aria-label=${name}
    aria-valuemin=${first}
    aria-valuemax=${end}
    aria-valuenow=${at}
    aria-valuetext=${words.moment(at)}
    title="${name} ${words.exactly(at)}"
    style=${{ left: `${place}%` }}
    onPointerDown=${(/** @type {any} */ event) => {
      event.target.setPointerCapture(event.pointerId);
      setHeld(true);
    }}
    onPointerMove=${move}
    onPointerUp=${() => setHeld(false)}
    onKeyDown=${press}
  ></div>`;
}

/**
 * What the bar under the pointer says.
 * @param {Histogram["buckets"]} buckets
 * @param {number} ms
 * @param {number} end
 */
function told(buckets, ms, end) {
  let low = 0;
  let high = buckets.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((buckets[middle]?.timeMs ?? end) <= ms) low = middle + 1;
    else high = middle;
  }
  const bucket = buckets[low - 1];
  if (!bucket) return words.said(ms, { seconds: true });
  return `${words.said(bucket.timeMs, { seconds: true })} – ${words.clock(buckets[low]?.timeMs ?? end)}: ${words.counted(bucket.msgCount, "message")}`;
}

/** Counts at the lines: `1.2k`, `3M`. */
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const compact = (/** @type {number} */ value) => short.format(value);
