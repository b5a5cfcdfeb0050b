// Small parts that all pages have: buttons, panels, facts, notes, what stands where there is nothing.

import { html } from "../html.js";
import { Icon } from "./icons.js";

/**
 * The head of a page: its title, what it says of itself, and what can be done.
 * @param {{title: string, about?: any, children?: any}} props
 */
export function PageHead({ title, about, children }) {
  return html`<header class="page-head">
    <h1 tabindex="-1">${title}</h1>
    ${about && html`<div class="about">${about}</div>`}
    <div class="actions">${children}</div>
  </header>`;
}

/**
 * A part of a page with a heading.
 * @param {{title?: any, aside?: any, flush?: boolean, class?: string, children?: any}} props `flush`: what is in it touches its edges.
 */
export function Panel({ title, aside, flush = false, class: name = "", children }) {
  return html`<section class="panel ${flush ? "flush" : ""} ${name}">
    ${(title || aside) && html`<div class="panel-head"><h2>${title}</h2><div class="aside">${aside}</div></div>`}
    <div class="panel-body">${children}</div>
  </section>`;
}

/**
 * @param {{onClick?: (event: any) => void, kind?: "plain" | "main" | "danger" | "quiet", icon?: string, disabled?: boolean, type?: "button" | "submit", title?: string, pressed?: boolean, label?: string, children?: any}} props
 */
export function Button({ onClick, kind = "plain", icon, disabled = false, type = "button", title, pressed, label, children }) {
  return html`<button
    type=${type}
    class="button ${kind} ${icon && !children ? "bare" : ""}"
    onClick=${onClick}
    disabled=${disabled}
    title=${title}
    aria-label=${label}
    aria-pressed=${pressed === undefined ? undefined : String(pressed)}
  >
    ${icon && html`<${Icon} name=${icon} />`}${children && html`<span>${children}</span>`}
  </button>`;
}

/**
 * Names and values, in two columns.
 * @param {{rows: ([any, any] | [any, any, string] | null | false | undefined)[]}} props Name, value, the exact value.
 */
export function Facts({ rows }) {
  return html`<dl class="facts">
    ${rows.map(
      (row) =>
        row &&
        html`<div>
          <dt>${row[0]}</dt>
          <dd title=${row[2]}>${row[1]}</dd>
        </div>`,
    )}
  </dl>`;
}

/**
 * What stands where there is nothing, and what to do about it.
 * @param {{title: any, icon?: string, children?: any}} props
 */
export function Empty({ title, icon, children }) {
  return html`<div class="empty">
    ${icon && html`<${Icon} name=${icon} />`}
    <p class="empty-title">${title}</p>
    ${children && html`<div class="empty-text">${children}</div>`}
  </div>`;
}

/**
 * A sentence that stands out.
 * @param {{kind?: "note" | "warning" | "error" | "good", children?: any}} props
 */
export function Note({ kind = "note", children }) {
  const role = kind === "error" ? "alert" : undefined;
  return html`<div class="note ${kind}" role=${role}>
    ${kind !== "note" && html`<${Icon} name=${kind === "good" ? "check" : "warning"} />`}
    <div>${children}</div>
  </div>`;
}

/**
 * Why a request was refused, in words.
 * @param {{error: Error | null | undefined}} props
 */
export function Refusal({ error }) {
  return error ? html`<${Note} kind="error">${sentence(error)}<//>` : null;
}

/** @param {Error & {status?: number}} error */
export function sentence(error) {
  return error.status === 403 ? `You may not do this: ${error.message}` : error.message;
}

/** A word that says a state. @param {{kind?: "plain" | "good" | "warning" | "danger" | "accent", title?: string, children?: any}} props */
export function Badge({ kind = "plain", title, children }) {
  return html`<span class="badge ${kind}" title=${title}>${children}</span>`;
}

/**
 * How much of something is used or done.
 * @param {{value: number, most: number, label: string, text?: string}} props
 */
export function Bar({ value, most, label, text }) {
  const part = most > 0 ? Math.min(1, Math.max(0, value / most)) : 0;
  return html`<div
    class="bar"
    role="progressbar"
    aria-label=${label}
    aria-valuemin="0"
    aria-valuemax="100"
    aria-valuenow=${Math.round(part * 100)}
    aria-valuetext=${text}
  >
    <div style=${{ width: `${part * 100}%` }}></div>
  </div>`;
}

/** @param {{label?: string}} props */
export function Loading({ label = "Loading" }) {
  return html`<div class="loading" role="status"><span class="spinner" aria-hidden="true"></span>${label}…</div>`;
}
