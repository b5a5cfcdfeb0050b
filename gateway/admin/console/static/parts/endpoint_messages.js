// What lies on an endpoint, the oldest first: looked at, and not consumed.

import { page } from "../api.js";
import { html, useState } from "../html.js";
import { changeQuery, route } from "../state.js";
import * as words from "../words.js";
import { Badge, Empty } from "./basics.js";
import { MessageDrawer } from "./message.js";
import { Pager } from "./pager.js";
import { Found, usePolled } from "./polled.js";
import { Table } from "./table.js";

const PAGE_ROWS = 50;

/** @type {import("./table.js").Column[]} */
const COLUMNS = [
  { key: "time", title: "Time", width: "150px", cell: (row) => html`<span title=${words.exactly(row.spooledTimeMs)}>${words.said(row.spooledTimeMs, { seconds: true })}</span>` },
  { key: "id", title: "Offset", align: "end", width: "92px", mono: true, wide: true, cell: (row) => row.msgId },
  { key: "topic", title: "Topic", cell: (row) => html`<span title=${row.topic}>${words.oneLine(row.topic)}</span>` },
  {
    key: "state",
    title: "State",
    width: "150px",
    cell: (row) => (row.isUnacked ? html`<${Badge} kind="accent" title="A consumer has it">unacknowledged<//>` : html`<span class="soft">waiting</span>`),
  },
  { key: "deliveries", title: "Deliveries", align: "end", width: "92px", wide: true, cell: (row) => words.number(row.deliveryCount ?? 0) },
  { key: "size", title: "Size", align: "end", width: "92px", wide: true, cell: (row) => html`<span title="${words.number(row.contentSize)} bytes">${words.size(row.contentSize)}</span>` },
];

/** @param {{vpn: string, path: string}} props `path`: of the endpoint, in the monitor's tree. */
export function EndpointMessages({ vpn, path }) {
  const [cursors, setCursors] = useState(/** @type {string[]} */ ([]));
  const cursor = cursors.at(-1) ?? null;
  const found = usePolled((signal) => page(`${path}/msgs`, { count: PAGE_ROWS, cursor }, signal), [path, "msgs", cursor], cursor === null ? 2_000 : 0);
  const openId = route.value.query.get("msg");
  return html`<div class="beside">
    <div>
      <${Found} of=${found}>
        ${(/** @type {any} */ { rows }) =>
          html`<${Table}
              label="Messages on it, the oldest first"
              columns=${openId ? COLUMNS.filter((column) => !column.wide) : COLUMNS}
              rows=${rows}
              rowKey=${(/** @type {any} */ row) => row.msgId}
              openKey=${openId === null ? null : Number(openId)}
              onOpen=${(/** @type {any} */ row) => changeQuery({ msg: row.msgId })}
              empty=${html`<${Empty} title="No messages">Messages that were consumed are in the log.<//>`}
            />
            <${Pager} cursors=${cursors} next=${found.data?.cursor} onMove=${setCursors} back="Older" on="Newer" />`}
      <//>
    </div>
    ${openId && html`<${MessageDrawer} key=${openId} vpn=${vpn} id=${openId} endpoint=${path} onClose=${() => changeQuery({ msg: null })} />`}
  </div>`;
}
