// uPlot as a component: made once for each theme, as wide as its place.

import { html, useEffect, useRef } from "../html.js";
import { isDark } from "../state.js";
import vendored from "../vendor/uplot.js";

/** @type {any} */
const uPlot = vendored;

/**
 * @param {{options: (element: HTMLElement) => any, data: any[], height: number, label: string, about?: unknown[], class?: string}} props
 *   `options`: uPlot's, without width and height; made anew where the theme or one of `about` changes.
 */
export function Plot({ options, data, height, label, about = [], class: name = "" }) {
  const place = useRef(/** @type {any} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const dark = isDark.value;
  useEffect(() => {
    const element = place.current;
    plot.current = new uPlot({ ...options(element), width: element.clientWidth, height }, data, element);
    const sizes = new ResizeObserver(() => {
      if (element.clientWidth > 0) plot.current.setSize({ width: element.clientWidth, height });
    });
    sizes.observe(element);
    return () => {
      sizes.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [dark, height, ...about]);
  useEffect(() => plot.current?.setData(data), [data]);
  return html`<div class="plot ${name}" role="img" aria-label=${label} ref=${place}></div>`;
}

/**
 * The axes of all charts.
 * @param {(name: string) => string} colour
 * @param {(value: number) => string} text What stands at the lines.
 */
export function axes(colour, text) {
  const font = "11px system-ui, sans-serif";
  const common = { stroke: colour("soft"), font, ticks: { show: false } };
  return [
    { ...common, size: 22, gap: 4, grid: { show: false }, values: timeTexts, space: 70 },
    {
      ...common,
      size: 52,
      gap: 6,
      space: 26,
      grid: { stroke: colour("line"), width: 1 },
      values: (/** @type {any} */ _plot, /** @type {number[]} */ splits) => splits.map((value) => (value === 0 ? "0" : text(value))),
    },
  ];
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/**
 * Times at the lines, the day where it begins. uPlot counts in seconds.
 * @param {any} _plot
 * @param {number[]} splits
 * @param {number} _axis
 * @param {number} _space
 * @param {number} step Seconds between two.
 */
function timeTexts(_plot, splits, _axis, _space, step) {
  return splits.map((seconds, place) => {
    const date = new Date(seconds * 1_000);
    const before = new Date((splits[place - 1] ?? 0) * 1_000);
    const isNewDay = place === 0 || before.toDateString() !== date.toDateString();
    const day = `${date.getDate()} ${MONTHS[date.getMonth()]}`;
    if (step >= 86_400) return day;
    const time = `${pad(date.getHours())}:${pad(date.getMinutes())}${step < 60 ? `:${pad(date.getSeconds())}` : ""}`;
    const part = step < 1 ? `.${String(date.getMilliseconds()).padStart(3, "0")}` : "";
    return isNewDay && step >= 3_600 ? day : time + part;
  });
}

/** @param {number} value */
const pad = (value) => String(value).padStart(2, "0");
