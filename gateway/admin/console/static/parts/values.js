// The keys of a last-value queue, each with its newest message, in the order of the log; one may be deleted.

import { at, page, put } from "../api.js";
import { html, useState } from "../html.js";
import { now } from "../state.js";
import * as words from "../words.js";
import { Button, Empty } from "./basics.js";
import { Confirm } from "./dialog.js";
import { Pager } from "./pager.js";
import { Found, usePolled } from "./polled.js";
import { Table } from "./table.js";
import { toast } from "./toasts.js";

const PAGE_ROWS = 50;

/** @param {{vpn: string, name: string, onChanged: () => void}} props */
export function Values({ vpn, name, onChanged }) {
  const path = at`monitor/msgVpns/${vpn}/queues/${name}/values`;
  const [cursors, setCursors] = useState(/** @type {string[]} */ ([]));
  const [asking, setAsking] = useState(/** @type {any} */ (null));
  const cursor = cursors.at(-1) ?? null;
  const found = usePolled((signal) => page(path, { count: PAGE_ROWS, cursor }, signal), [path, cursor], cursor === null ? 2_000 : 0);
  const remove = async () => {
    await put(at`action/msgVpns/${vpn}/queues/${name}/deleteValue`, { replicationGroupMsgId: asking.replicationGroupMsgId });
    toast(`${words.oneLine(asking.key)} has no value.`);
    found.reload();
    onChanged();
  };
  /** @type {import("./table.js").Column[]} */
  const columns = [
    { key: "key", title: "Key", mono: true, cell: (row) => html`<span title=${row.key}>${words.oneLine(row.key)}${row.isKeyCut && "…"}</span>` },
    { key: "time", title: "Since", width: "200px", wide: true, cell: (row) => html`<span title=${words.exactly(row.spooledTimeMs)}>${words.momentAndAge(row.spooledTimeMs, now.value)}</span>` },
    { key: "id", title: "Offset", align: "end", width: "110px", mono: true, cell: (row) => row.msgId },
    { key: "size", title: "Size", align: "end", width: "92px", wide: true, cell: (row) => html`<span title="${words.number(row.contentSize)} bytes">${words.size(row.contentSize)}</span>` },
    { key: "delete", title: html`<span class="unseen">Delete</span>`, align: "end", width: "110px", cell: (row) => html`<${Button} label="Delete ${row.key}" onClick=${() => setAsking(row)}>Delete…<//>` },
  ];
  return html`<${Found} of=${found}>
      ${(/** @type {any} */ { rows }) =>
        html`<${Table}
            label="Keys with their newest messages, in the order of the log"
            columns=${columns}
            rows=${rows}
            rowKey=${(/** @type {any} */ row) => row.msgId}
            empty=${html`<${Empty} title="No values">The newest message of each key is kept here.<//>`}
          />
          <${Pager} cursors=${cursors} next=${found.data?.cursor} onMove=${setCursors} back="Older" on="Newer" />`}
    <//>
    ${asking &&
    html`<${Confirm} title="Delete ${words.oneLine(asking.key)}?" action="Delete it" danger=${true} onDo=${remove} onClose=${() => setAsking(null)}>
      <p>New readers get no message of this key until one arrives. The log keeps the message, and attached readers are not notified.</p>
    <//>`}`;
}
