// What was done, said for some seconds at the foot of the page, and to screen readers.

import { html, signal } from "../html.js";

const SHOWN_MS = 7_000;

/** @type {{value: {key: number, text: any, kind: string}[]}} */
const toasts = signal([]);
let made = 0;

/**
 * @param {any} text
 * @param {"good" | "error"} [kind]
 */
export function toast(text, kind = "good") {
  const key = ++made;
  toasts.value = [...toasts.value.slice(-2), { key, text, kind }];
  setTimeout(() => (toasts.value = toasts.value.filter((one) => one.key !== key)), SHOWN_MS);
}

export function Toasts() {
  return html`<div class="toasts" role="status" aria-live="polite">
    ${toasts.value.map((one) => html`<div key=${one.key} class="toast ${one.kind}">${one.text}</div>`)}
  </div>`;
}
