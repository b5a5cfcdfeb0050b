// Pages of a list whose cursors lead forward only: the way back is the cursors that led here.

import { html } from "../html.js";
import { Button } from "./basics.js";

/**
 * Nothing where there is one page.
 * @param {{cursors: string[], next: string | null | undefined, onMove: (cursors: string[]) => void, back?: string, on?: string}} props
 *   The cursors that led here, the last of which is this page's; that of the page behind it; what the buttons say.
 */
export function Pager({ cursors, next, onMove, back = "Back", on = "Next" }) {
  if (cursors.length === 0 && !next) return null;
  return html`<div class="row pager">
    <${Button} icon="back" disabled=${cursors.length === 0} onClick=${() => onMove(cursors.slice(0, -1))}>${back}<//>
    <${Button} icon="next" disabled=${!next} onClick=${() => next && onMove([...cursors, next])}>${on}<//>
  </div>`;
}
