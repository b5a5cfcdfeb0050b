// A table of which only the rows that are seen are in the page: ten rows or five thousand feel alike.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { isNarrow } from "../state.js";

/** Pixels, as in the style sheet. */
export const ROW_HEIGHT = 30;

const BEYOND = 12;
const NEAR = 40;

/**
 * @typedef {object} Column
 * @property {string} key
 * @property {any} title
 * @property {(row: any) => any} cell
 * @property {"start" | "end"} [align]
 * @property {string} [width] Of CSS; without, it takes what is left.
 * @property {boolean} [wide] Left out where the page is narrow.
 * @property {boolean} [mono]
 *
 * @typedef {object} TableProps
 * @property {string} label What it lists, for screen readers.
 * @property {Column[]} columns
 * @property {any[]} rows
 * @property {(row: any) => string | number} rowKey
 * @property {(row: any) => void} [onOpen] The first cell becomes a button, and the row may be clicked.
 * @property {string | number | null} [openKey] Which row is open.
 * @property {any} [empty] What stands there without rows.
 * @property {boolean} [fill] It scrolls in the height that it has; without, it is as high as its rows.
 * @property {() => void} [onNearEnd] The last rows come into view.
 * @property {() => void} [onNearStart]
 * @property {(top: number) => void} [onScroll] Pixels from the top.
 * @property {(element: HTMLElement | null) => void} [scroller] Told the element that scrolls.
 * @property {number} [shift] Rows that were put in front, less those taken away there: what is seen stays where it is.
 * @property {boolean} [stays] The top stays in view while rows are put in front.
 * @property {any} [foot]
 */

/** @param {TableProps} props */
export function Table({ label, columns: given, rows, rowKey, onOpen, openKey = null, empty, fill = false, onNearEnd, onNearStart, onScroll, scroller, shift = 0, stays = false, foot }) {
  const columns = isNarrow.value ? given.filter((column) => !column.wide) : given;
  const box = useRef(/** @type {any} */ (null));
  const [view, setView] = useState({ first: 0, last: 60 });

  const look = () => {
    const element = box.current;
    if (!element || !fill) return;
    const first = Math.max(0, Math.floor(element.scrollTop / ROW_HEIGHT) - BEYOND);
    const last = Math.ceil((element.scrollTop + element.clientHeight) / ROW_HEIGHT) + BEYOND;
    setView((seen) => (seen.first === first && seen.last === last ? seen : { first, last }));
    if (last + NEAR >= rows.length) onNearEnd?.();
    if (first - NEAR <= 0) onNearStart?.();
  };
  const before = useRef(shift);
  useLayoutEffect(() => {
    if (fill && shift !== before.current && !stays) box.current.scrollTop += (shift - before.current) * ROW_HEIGHT;
    before.current = shift;
    look();
  }, [rows, fill, shift]);
  useEffect(() => {
    scroller?.(box.current);
    if (!fill) return;
    const sizes = new ResizeObserver(() => latest.current());
    sizes.observe(box.current);
    return () => sizes.disconnect();
  }, []);
  const latest = useRef(look);
  latest.current = look;

  const first = fill ? Math.min(view.first, rows.length) : 0;
  const last = fill ? Math.min(view.last, rows.length) : rows.length;
  const shown = rows.slice(first, last);
  return html`<div
    class="table-box ${fill ? "fill" : ""}"
    ref=${box}
    tabindex=${fill ? 0 : undefined}
    role=${fill ? "region" : undefined}
    aria-label=${fill ? label : undefined}
    onScroll=${() => {
      look();
      onScroll?.(box.current.scrollTop);
    }}
    onKeyDown=${moveFocus}
  >
    <table class="table ${onOpen ? "opens" : ""}" aria-label=${label} aria-rowcount=${rows.length + 1}>
      <thead>
        <tr>
          ${columns.map(
            (column) =>
              html`<th
                key=${column.key}
                scope="col"
                class=${column.align ?? ""}
                style=${{ width: column.width }}
              >
                ${column.title}
              </th>`,
          )}
        </tr>
      </thead>
      <tbody>
        ${first > 0 && html`<tr class="spacer" aria-hidden="true" style=${{ height: `${first * ROW_HEIGHT}px` }}><td colspan=${columns.length}></td></tr>`}
        ${shown.map((row, place) => {
          const key = rowKey(row);
          return html`<${Row} key=${key} columns=${columns} row=${row} index=${first + place} isOpen=${key === openKey} onOpen=${onOpen} />`;
        })}
        ${last < rows.length &&
        html`<tr class="spacer" aria-hidden="true" style=${{ height: `${(rows.length - last) * ROW_HEIGHT}px` }}><td colspan=${columns.length}></td></tr>`}
      </tbody>
    </table>
    ${rows.length === 0 && empty}${foot}
  </div>`;
}

/** @param {{columns: Column[], row: any, index: number, isOpen: boolean, onOpen?: (row: any) => void}} props */
function Row({ columns, row, index, isOpen, onOpen }) {
  return html`<tr class=${isOpen ? "open" : ""} aria-rowindex=${index + 2} onClick=${onOpen && (() => onOpen(row))}>
    ${columns.map((column, place) => {
      const cell = column.cell(row);
      return html`<td key=${column.key} class="${column.align ?? ""} ${column.mono ? "mono" : ""}">
        ${onOpen && place === 0
          ? html`<button type="button" class="row-button" aria-expanded=${String(isOpen)} onClick=${(/** @type {Event} */ event) => (event.stopPropagation(), onOpen(row))}>
              ${cell}
            </button>`
          : cell}
      </td>`;
    })}
  </tr>`;
}

/** Up and down go from row to row. @param {KeyboardEvent} event */
function moveFocus(event) {
  const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  const row = /** @type {HTMLElement} */ (event.target).closest?.("tr");
  if (!step || !row || !(/** @type {HTMLElement} */ (event.target).classList.contains("row-button"))) return;
  const next = /** @type {any} */ (row)[step]?.querySelector(".row-button");
  if (!next) return;
  event.preventDefault();
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}
