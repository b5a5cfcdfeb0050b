// Replay points: places in the log that have names.

import { at, post, remove } from "../api.js";
import { html, useState } from "../html.js";
import { changeQuery, href } from "../state.js";
import * as words from "../words.js";
import { Badge, Button, Empty } from "./basics.js";
import { Confirm, Dialog } from "./dialog.js";
import { Field } from "./fields.js";
import { Found } from "./polled.js";
import { toast } from "./toasts.js";

/**
 * All of them.
 * @param {{vpn: string, points: import("./polled.js").Polled<any[]>, onClose: () => void, onNew: () => void}} props
 */
export function Points({ vpn, points, onClose, onNew }) {
  const [leaving, setLeaving] = useState(/** @type {any} */ (null));
  return html`<${Dialog} title="Replay points" onClose=${onClose} wide=${true} footer=${html`<${Button} kind="main" icon="flag" onClick=${onNew}>Create point<//>`}>
      <${Found} of=${points}>
        ${(/** @type {any[]} */ found) =>
          found.length === 0
            ? html`<${Empty} icon="flag" title="No replay points yet">A point is a place in the log with a name, such as <code>before-release</code>: a replay can start there.<//>`
            : html`<ul class="point-list">
                ${found
                  .toSorted((one, other) => other.msgId - one.msgId)
                  .map(
                    (point) =>
                      html`<li key=${point.replayPointName}>
                        <span class="cut"><b>${point.replayPointName}</b>${point.trimmed && html` <${Badge} kind="warning" title="The log no longer has it">trimmed<//>`}</span>
                        <span class="soft" title="#${point.msgId}, ${point.replicationGroupMsgId}">${point.timeMs === null ? `#${point.msgId}` : words.said(point.timeMs, { seconds: true })}</span>
                        <span class="row">
                          <${Button} kind="quiet" disabled=${point.trimmed} onClick=${() => (changeQuery({ from: point.timeMs, until: null, at: `point:${point.replayPointName}`, live: null }), onClose())}>Show<//>
                          <a class="button quiet" href=${href("rewind", [], { start: `point:${point.replayPointName}` })}>Rewind…</a>
                          <${Button} kind="quiet" icon="trash" label="Delete ${point.replayPointName}" onClick=${() => setLeaving(point)} />
                        </span>
                      </li>`,
                  )}
              </ul>`}
      <//>
    <//>
    ${leaving &&
    html`<${Confirm}
      title="Delete the point ${leaving.replayPointName}?"
      action="Delete"
      danger=${true}
      onClose=${() => setLeaving(null)}
      onDo=${async () => {
        await remove(at`config/msgVpns/${vpn}/replayPoints/${leaving.replayPointName}`);
        await points.reload();
        toast(`The point ${leaving.replayPointName} was deleted.`);
      }}
    >
      <p>The messages stay. Replays can no longer start at <code>point:${leaving.replayPointName}</code>.</p>
    <//>`}`;
}

/**
 * Make one.
 * @param {{vpn: string, start: string, onClose: () => void, onDone?: () => void}} props `start`: where, `live` for now.
 */
export function NewPoint({ vpn, start, onClose, onDone }) {
  const [name, setName] = useState("");
  const [where, setWhere] = useState(start);
  return html`<${Confirm}
    title="Create a replay point"
    action="Create"
    disabled=${!name.trim()}
    onClose=${onClose}
    onDo=${async () => {
      const made = await post(at`config/msgVpns/${vpn}/replayPoints`, { replayPointName: name.trim(), start: where.trim() || "live" });
      onDone?.();
      toast(`The point ${made.replayPointName} was created: a replay can start at point:${made.replayPointName}.`);
    }}
  >
    <${Field} label="Name" value=${name} onInput=${setName} placeholder="before-release" required=${true} />
    <${Field} label="Where" value=${where} onInput=${setWhere} mono=${true} hint="live (now), a date, 10m (ago), #123 or rmid1:…" />
  <//>`;
}
