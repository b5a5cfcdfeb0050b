// Dialogs: what is asked before something is done, with the name typed where it cannot be taken back; and the drawer, which
// shows one thing beside a list.

import { html, useEffect, useRef, useState } from "../html.js";
import { Button, Refusal } from "./basics.js";
import { Field, freshId } from "./fields.js";

/**
 * A window over the page. Escape closes it, and the keyboard stays in it.
 * @param {{title: any, onClose: () => void, children?: any, footer?: any, wide?: boolean}} props
 */
export function Dialog({ title, onClose, children, footer, wide = false }) {
  const element = useRef(/** @type {any} */ (null));
  const [id] = useState(freshId);
  useEffect(() => {
    const dialog = element.current;
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    dialog.showModal();
    return () => {
      dialog.close();
      before?.focus?.();
    };
  }, []);
  return html`<dialog
    ref=${element}
    class="dialog ${wide ? "wide" : ""}"
    aria-labelledby=${id}
    onCancel=${(/** @type {Event} */ event) => {
      event.preventDefault();
      onClose();
    }}
  >
    <header>
      <h2 id=${id}>${title}</h2>
      <${Button} kind="quiet" icon="close" label="Close" onClick=${onClose} />
    </header>
    <div class="dialog-body">${children}</div>
    ${footer && html`<footer>${footer}</footer>`}
  </dialog>`;
}

/**
 * Asks before something is done, does it, and says why it was refused.
 * @param {{title: any, action: string, onDo: () => Promise<unknown>, onClose: () => void, typed?: string, danger?: boolean, disabled?: boolean, children?: any}} props
 *   `typed`: what has to be typed first. `onClose` is called after `onDo`, too.
 */
export function Confirm({ title, action, onDo, onClose, typed, danger = false, disabled = false, children }) {
  const [text, setText] = useState("");
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const [isBusy, setBusy] = useState(false);
  const isReady = !disabled && !isBusy && (typed === undefined || text === typed);
  const act = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!isReady) return;
    setBusy(true);
    setError(null);
    try {
      await onDo();
      onClose();
    } catch (problem) {
      setError(/** @type {Error} */ (problem));
      setBusy(false);
    }
  };
  const [form] = useState(freshId);
  return html`<${Dialog}
    title=${title}
    onClose=${onClose}
    footer=${html`<${Button} onClick=${onClose}>Leave it<//>
      <button type="submit" form=${form} class="button ${danger ? "danger" : "main"}" disabled=${!isReady}>
        <span>${isBusy ? "One moment…" : action}</span>
      </button>`}
  >
    <form id=${form} onSubmit=${act}>
      ${children}
      ${typed !== undefined &&
      html`<${Field} label=${`Type “${typed}” to confirm`} id="${form}-typed" value=${text} onInput=${setText} mono=${true} />`}
      <${Refusal} error=${error} />
    </form>
  <//>`;
}

/**
 * One thing beside a list: at the right, or over the page where that is narrow. Escape closes it.
 * @param {{title: any, label: string, onClose: () => void, children?: any, actions?: any}} props
 */
export function Drawer({ title, label, onClose, children, actions }) {
  const element = useRef(/** @type {any} */ (null));
  useEffect(() => {
    const close = (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) onClose();
    };
    window.addEventListener("keydown", close);
    return () => window.removeEventListener("keydown", close);
  }, [onClose]);
  return html`<aside ref=${element} class="drawer" aria-label=${label}>
    <header>
      <div class="drawer-title">${title}</div>
      <${Button} kind="quiet" icon="close" label="Close" onClick=${onClose} />
    </header>
    ${actions && html`<div class="drawer-actions">${actions}</div>`}
    <div class="drawer-body">${children}</div>
  </aside>`;
}
