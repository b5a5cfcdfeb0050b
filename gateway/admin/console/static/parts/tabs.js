// Tabs: several views of one thing, of which one is shown.

import { html, useRef } from "../html.js";

/**
 * @param {{label: string, tabs: [string, any][], shown: string, onShow: (name: string) => void, children?: any}} props
 */
export function Tabs({ label, tabs, shown, onShow, children }) {
  const list = useRef(/** @type {any} */ (null));
  const move = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const place = tabs.findIndex(([name]) => name === shown);
    const next = (place + step + tabs.length) % tabs.length;
    onShow(tabs[next]?.[0] ?? shown);
    list.current.children[next].focus();
  };
  const id = `tabs-${label.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return html`<div class="tabs">
    <div class="tab-list" role="tablist" aria-label=${label} ref=${list} onKeyDown=${move}>
      ${tabs.map(
        ([name, text]) =>
          html`<button
            key=${name}
            type="button"
            role="tab"
            id="${id}-${name}"
            aria-controls="${id}-panel"
            aria-selected=${String(name === shown)}
            tabindex=${name === shown ? 0 : -1}
            onClick=${() => onShow(name)}
          >
            ${text}
          </button>`,
      )}
    </div>
    <div id="${id}-panel" role="tabpanel" aria-labelledby="${id}-${shown}" class="tab-panel">${children}</div>
  </div>`;
}
