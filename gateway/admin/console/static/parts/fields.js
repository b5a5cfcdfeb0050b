// What a person fills in: labelled inputs.

import { html } from "../html.js";

let made = 0;

/** @param {string} label */
const idOf = (label) => `f-${label.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;

/**
 * A text.
 * @param {{label: string, value: string, onInput: (value: string) => void, hint?: any, problem?: string, type?: string, placeholder?: string, list?: string[], autocomplete?: string, required?: boolean, mono?: boolean, step?: string, id?: string, hidden?: boolean}} props
 *   `hidden`: the label is for screen readers; `list`: what is proposed.
 */
export function Field({ label, value, onInput, hint, problem, type = "text", placeholder, list, autocomplete = "off", required = false, mono = false, step, id = idOf(label), hidden = false }) {
  const about = hint || problem ? `${id}-about` : undefined;
  return html`<div class="field">
    <label for=${id} class=${hidden ? "unseen" : ""}>${label}</label>
    <input
      id=${id}
      type=${type}
      class=${mono ? "mono" : ""}
      value=${value}
      step=${step}
      placeholder=${placeholder}
      autocomplete=${autocomplete}
      spellcheck=${false}
      required=${required}
      list=${list ? `${id}-list` : undefined}
      aria-describedby=${about}
      aria-invalid=${problem ? "true" : undefined}
      onInput=${(/** @type {any} */ event) => onInput(event.target.value)}
    />
    ${list && html`<datalist id="${id}-list">${list.map((one) => html`<option key=${one} value=${one}></option>`)}</datalist>`}
    ${about && html`<div id=${about} class="hint ${problem ? "problem" : ""}">${problem || hint}</div>`}
  </div>`;
}

/**
 * One of a few.
 * @param {{label: string, value: string, options: [string, any][], onInput: (value: string) => void, hint?: any, id?: string, hidden?: boolean}} props
 */
export function Choice({ label, value, options, onInput, hint, id = idOf(label), hidden = false }) {
  return html`<div class="field">
    <label for=${id} class=${hidden ? "unseen" : ""}>${label}</label>
    <select id=${id} value=${value} onChange=${(/** @type {any} */ event) => onInput(event.target.value)}>
      ${options.map(([name, text]) => html`<option key=${name} value=${name} selected=${name === value}>${text}</option>`)}
    </select>
    ${hint && html`<div class="hint">${hint}</div>`}
  </div>`;
}

/**
 * Yes or no.
 * @param {{label: any, checked: boolean, onInput: (checked: boolean) => void}} props
 */
export function Check({ label, checked, onInput }) {
  return html`<label class="check">
    <input type="checkbox" checked=${checked} onChange=${(/** @type {any} */ event) => onInput(event.target.checked)} />
    <span>${label}</span>
  </label>`;
}

/**
 * One of a few that are all seen, as buttons side by side.
 * @param {{label: string, value: string, options: [string, any][], onInput: (value: string) => void}} props
 */
export function Segments({ label, value, options, onInput }) {
  return html`<div class="segments" role="group" aria-label=${label}>
    ${options.map(
      ([name, text]) =>
        html`<button key=${name} type="button" aria-pressed=${String(name === value)} onClick=${() => onInput(name)}>${text}</button>`,
    )}
  </div>`;
}

/** An id that no other element has. */
export const freshId = () => `i-${++made}`;
