// What waits on an endpoint for its time, the next one first; one may be delivered now, or kept from being delivered.

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

/** @param {{vpn: string, collection: string, name: string, onChanged: () => void}} props */
export function DelayedMessages({ vpn, collection, name, onChanged }) {
  const path = at`monitor/msgVpns/${vpn}/${collection}/${name}/delayedMsgs`;
  const [cursors, setCursors] = useState(/** @type {string[]} */ ([]));
  const [asking, setAsking] = useState(/** @type {any} */ (null));
  const cursor = cursors.at(-1) ?? null;
  const found = usePolled((signal) => page(path, { count: PAGE_ROWS, cursor }, signal), [path, cursor], cursor === null ? 2_000 : 0);
  const end = async (/** @type {any} */ row, /** @type {string} */ action, /** @type {string} */ said) => {
    const body = { replicationGroupMsgId: row.replicationGroupMsgId };
    await put(at`action/msgVpns/${vpn}/${collection}/${name}/${action}`, body);
    toast(`Message #${row.msgId} ${said}.`);
    found.reload();
    onChanged();
  };
  const cancel = () => end(asking, "cancelDelayedMsg", "will not be delivered");
  const release = (/** @type {any} */ row) => end(row, "releaseDelayedMsg", "is no longer delayed");
  /** @type {import("./table.js").Column[]} */
  const columns = [
    { key: "due", title: "Due", cell: (row) => html`<span title=${words.exactly(row.deliveryTimeMs)}>${words.momentAndAge(row.deliveryTimeMs, now.value)}</span>` },
    { key: "id", title: "Offset", align: "end", width: "110px", mono: true, cell: (row) => row.msgId },
    { key: "priority", title: "Priority", align: "end", width: "92px", wide: true, cell: (row) => row.priority },
    { key: "size", title: "Size", align: "end", width: "92px", wide: true, cell: (row) => html`<span title="${words.number(row.contentSize)} bytes">${words.size(row.contentSize)}</span>` },
    { key: "tries", title: "Tries", align: "end", width: "92px", cell: (row) => (row.isRetry ? words.number(row.deliveryCount) : "") },
    { key: "release", title: html`<span class="unseen">Deliver now</span>`, align: "end", width: "132px", cell: (row) => html`<${Button} label="Deliver now: message #${row.msgId}" onClick=${() => release(row)}>Deliver now<//>` },
    { key: "cancel", title: html`<span class="unseen">Cancel</span>`, align: "end", width: "110px", cell: (row) => html`<${Button} label="Cancel message #${row.msgId}" onClick=${() => setAsking(row)}>Cancel…<//>` },
  ];
  return html`<${Found} of=${found}>
      ${(/** @type {any} */ { rows }) =>
        html`<${Table}
            label="Delayed messages, the next due first"
            columns=${columns}
            rows=${rows}
            rowKey=${(/** @type {any} */ row) => row.msgId}
            empty=${html`<${Empty} title="No delayed messages">A publisher delays a message by x-opt-delivery-time or x-opt-delivery-delay; what a consumer gives back waits by the queue's limits.<//>`}
          />
          <${Pager} cursors=${cursors} next=${found.data?.cursor} onMove=${setCursors} back="Sooner" on="Later" />`}
    <//>
    ${asking &&
    html`<${Confirm} title="Cancel message #${asking.msgId}?" action="Cancel it" danger=${true} onDo=${cancel} onClose=${() => setAsking(null)}>
      <p>It will not be delivered here. The log keeps it, and other queues that it is for get it in time.</p>
    <//>`}`;
}
