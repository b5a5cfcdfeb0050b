// Clients: who is connected, what each makes the gateway hold, its links; to disconnect one.

import { all, at, page, put } from "../api.js";
import { html, useState } from "../html.js";
import { Button, Empty, Facts, Loading, PageHead, Panel, Refusal } from "../parts/basics.js";
import { Confirm } from "../parts/dialog.js";
import { Field } from "../parts/fields.js";
import { Pager } from "../parts/pager.js";
import { Found, usePolled } from "../parts/polled.js";
import { Table } from "../parts/table.js";
import { toast } from "../parts/toasts.js";
import { changeQuery, go, href, route, vpnName } from "../state.js";
import * as words from "../words.js";

const PAGE_ROWS = 100;

export default function Clients() {
  const [id] = route.value.rest;
  return id ? html`<${Client} key=${id} vpn=${vpnName.value} id=${id} />` : html`<${List} vpn=${vpnName.value} />`;
}

/** @type {import("../parts/table.js").Column[]} */
const COLUMNS = [
  { key: "name", title: "Client", cell: (row) => html`<span title=${row.clientName}>${words.oneLine(row.clientName || row.clientId)}</span>` },
  { key: "user", title: "User", width: "140px", cell: (row) => words.oneLine(row.clientUsername || "–") },
  { key: "address", title: "Address", width: "180px", wide: true, mono: true, cell: (row) => row.clientAddress },
  { key: "links", title: "Links", align: "end", width: "70px", cell: (row) => words.number(row.linkCount) },
  { key: "held", title: "Memory", align: "end", width: "100px", wide: true, cell: (row) => html`<span title="${words.number(row.heldBytes)} bytes that the gateway holds for it">${words.size(row.heldBytes)}</span>` },
];

/** @param {{vpn: string}} props */
function List({ vpn }) {
  const text = route.value.query.get("name") ?? "";
  const [cursors, setCursors] = useState(/** @type {string[]} */ ([]));
  const cursor = cursors.at(-1) ?? null;
  const where = text.trim() ? `clientName==*${text.trim().replaceAll(",", "*")}*` : null;
  const found = usePolled((signal) => page(at`monitor/msgVpns/${vpn}/clients`, { count: PAGE_ROWS, cursor, where }, signal), [vpn, where, cursor]);
  return html`<${PageHead} title="Clients" about=${found.data && !where ? words.counted(found.data.total ?? 0, "connection") : ""} />
    <div class="toolbar">
      <${Field} label="Client" hidden=${true} placeholder="Client, or a part of its name" value=${text} onInput=${(/** @type {string} */ next) => (setCursors([]), changeQuery({ name: next }))} />
    </div>
    <${Refusal} error=${found.error} />
    ${found.data
      ? html`<${Panel} class="below" flush=${true}><${Table}
          label="Clients"
          columns=${COLUMNS}
          rows=${found.data.rows}
          rowKey=${(/** @type {any} */ row) => row.clientId}
          onOpen=${(/** @type {any} */ row) => go("clients", [row.clientId])}
          empty=${text.trim()
            ? html`<${Empty} icon="search" title="No client name contains this" />`
            : html`<${Empty} icon="clients" title="Nobody is connected">A client connects over AMQP 1.0, for example: <code>rewind tail</code><//>`}
        /><//>`
      : !found.error && html`<${Loading} />`}
    <${Pager} cursors=${cursors} next=${found.data?.cursor} onMove=${setCursors} />`;
}

/** @type {import("../parts/table.js").Column[]} */
const LINKS = [
  { key: "address", title: "Address", cell: (row) => html`<span class="mono" title=${row.address}>${words.oneLine(row.address || "–")}</span>` },
  { key: "kind", title: "Kind", width: "120px", cell: (row) => (row.kind === "http" ? `HTTP, ${row.role}` : words.oneLine(row.kind)) },
  { key: "name", title: "Link", width: "150px", wide: true, cell: (row) => html`<span title=${row.linkName}>${words.oneLine(row.linkName)}</span>` },
  { key: "credit", title: "Credit", align: "end", width: "80px", wide: true, cell: (row) => words.number(row.credit) },
  { key: "unacknowledged", title: "Unsettled", align: "end", width: "94px", wide: true, cell: (row) => words.number(row.unackedMsgCount) },
  { key: "messages", title: "Messages", align: "end", width: "100px", cell: (row) => words.number(row.sentMsgCount) },
];

/** @param {{vpn: string, id: string}} props */
function Client({ vpn, id }) {
  const found = usePolled(async (signal) => (await page(at`monitor/msgVpns/${vpn}/clients`, { where: `clientId==${id}`, count: 1 }, signal)).rows[0] ?? null, [vpn, id]);
  const links = usePolled(() => all(at`monitor/msgVpns/${vpn}/clients/${id}/links`), [vpn, id, "links"]);
  const [isAsked, setAsked] = useState(false);
  const [last, setLast] = useState(/** @type {any} */ (null));
  const client = found.data;
  if (client && client !== last) setLast(client);
  const name = (client ?? last)?.clientName || id;
  const isGone = last !== null && client === null && found.error === null;
  return html`<p class="crumb"><a href=${href("clients")}>Clients</a></p>
    <${PageHead} title=${words.oneLine(name)} about=${client && html`User ${words.oneLine(client.clientUsername || "unknown")}, from <code>${client.clientAddress}</code>`}>
      ${client && html`<${Button} onClick=${() => setAsked(true)}>Disconnect…<//>`}
    <//>
    <${Refusal} error=${found.error} />
    ${!client &&
    !found.error &&
    html`<${Empty} icon="clients" title=${isGone ? "It has disconnected" : "There is no such client"}>
      Each connection has its own number, here ${words.oneLine(id)}; a client that reconnects gets a new one. <a href=${href("clients")}>All clients</a>
    <//>`}
    ${client &&
    html`<div class="grid">
      <${Panel} class="c4" title="Memory held for it">
        <${Facts}
          rows=${[
            ["Total", words.size(client.heldBytes), `${words.number(client.heldBytes)} bytes`],
            ["Unfinished messages", words.size(client.heldUnfinishedBytes)],
            ["Transactions", words.size(client.heldTransactionBytes)],
            ["Unsettled deliveries", words.size(client.heldUnsettledBytes)],
            ["Links", words.size(client.heldLinkBytes)],
            ["WebSocket", words.size(client.heldWebSocketBytes)],
            ["Pages of history", words.size(client.heldPageBytes)],
          ]}
        />
      <//>
      <${Panel} class="c8" title="Links" aside=${words.counted(client.linkCount, "link")} flush=${true}>
        <${Found} of=${links}>
          ${(/** @type {any[]} */ rows) =>
            html`<${Table} label="Links" columns=${LINKS} rows=${rows} rowKey=${(/** @type {any} */ row) => `${row.role} ${row.linkName}`} empty=${html`<${Empty} icon="link" title="It has no link">It neither sends nor receives just now.<//>`} />`}
        <//>
      <//>
    </div>`}
    ${isAsked && html`<${Disconnect} vpn=${vpn} client=${client ?? last} onClose=${() => setAsked(false)} />`}`;
}

/** @param {{vpn: string, client: any, onClose: () => void}} props */
function Disconnect({ vpn, client, onClose }) {
  const act = async () => {
    const done = await put(at`action/msgVpns/${vpn}/clients/${client.clientId}/disconnect`);
    toast(`${words.counted(done.disconnectedCount, "connection")} closed.`);
  };
  return html`<${Confirm} title="Disconnect ${words.oneLine(client.clientName || client.clientId)}?" action="Disconnect" danger=${true} onDo=${act} onClose=${onClose}>
    <p>This closes its connection from <code>${client.clientAddress}</code>, with ${words.counted(client.linkCount, "link")}. Its unacknowledged messages go to other consumers. It may connect again.</p>
  <//>`;
}
