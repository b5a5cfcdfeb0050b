// Lines over time: rates, depths.

import { html, useRef } from "../html.js";
import { colour } from "./colours.js";
import { Plot, axes } from "./plot.js";

/**
 * @typedef {object} Series
 * @property {string} name
 * @property {number[]} values One for each interval, the oldest first.
 * @property {string} [colour] Of the style sheet.
 * @property {boolean} [filled]
 */

/**
 * @param {{label: string, untilMs: number, intervalMs: number, slots?: number, series: Series[], text: (value: number) => string, height?: number}} props
 *   `slots`: how many intervals are shown, where there are fewer values yet.
 */
export function Chart({ label, untilMs, intervalMs, slots = 0, series, text, height = 150 }) {
  const count = series[0]?.values.length ?? 0;
  const times = Array.from({ length: count }, (_, place) => (untilMs - (count - 1 - place) * intervalMs) / 1_000);
  const range = useRef([0, 0]);
  range.current = [(untilMs - (Math.max(count, slots) - 1) * intervalMs) / 1_000, untilMs / 1_000];
  const options = () => ({
    padding: [8, 8, 0, 0],
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
    legend: { show: false },
    scales: {
      x: { time: true, range: () => range.current },
      y: { range: (/** @type {any} */ _plot, /** @type {number} */ _low, /** @type {number} */ high) => [0, Math.max(1, high * 1.1)] },
    },
    axes: axes(colour, text),
    series: [{}, ...series.map((one) => lineOf(one))],
    hooks: { setCursor: [(/** @type {any} */ plot) => tell(plot, series, text)] },
  });
  return html`<div class="chart">
    <div class="chart-keys">
      ${series.map((one) => html`<span key=${one.name} class="key ${one.colour ?? "accent"}">${one.name} <b>${text(one.values.at(-1) ?? 0)}</b></span>`)}
      <span class="chart-at soft"></span>
    </div>
    <${Plot} label=${label} options=${options} data=${[times, ...series.map((one) => one.values)]} height=${height} about=${[series.length, count < 3]} />
  </div>`;
}

/** @param {Series} series */
function lineOf({ colour: name = "accent", filled = false, values }) {
  const stroke = colour(name);
  const fill = stroke.replace(/^rgb\((.*)\)$/, "rgba($1, 0.12)");
  return { stroke, width: 1.5, fill: filled ? fill : undefined, points: { show: values.length < 3, size: 5, fill: stroke } };
}

/**
 * Say what is under the pointer.
 * @param {any} plot
 * @param {Series[]} series
 * @param {(value: number) => string} text
 */
function tell(plot, series, text) {
  const place = plot.root.closest(".chart")?.querySelector(".chart-at");
  if (!place) return;
  const index = plot.cursor.idx;
  const time = index === null || index === undefined ? null : plot.data[0][index];
  const values = series.map((one, number) => `${one.name.toLowerCase()} ${text(plot.data[number + 1][index ?? 0] ?? 0)}`);
  place.textContent = time ? `${new Date(time * 1_000).toTimeString().slice(0, 8)}: ${values.join(", ")}` : "";
}
