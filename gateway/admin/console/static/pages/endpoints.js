// Queues, streams and topic endpoints: which there are, and what lies on them. One of them is shown by pages/endpoint.js.

import { at, page, post } from "../api.js";
import { html, useState } from "../html.js";
import { Badge, Button, Empty, Loading, Note, PageHead, Panel, Refusal } from "../parts/basics.js";
import { Confirm } from "../parts/dialog.js";
import { Choice, Field, Segments } from "../parts/fields.js";
import { Pager } from "../parts/pager.js";
import { usePolled } from "../parts/polled.js";
import { Table } from "../parts/table.js";
import { toast } from "../parts/toasts.js";
import { changeQuery, go, mayAdministerLog, route, vpnName } from "../state.js";
import * as words from "../words.js";
import { Endpoint } from "./endpoint.js";

/** @typedef {"queues" | "topicEndpoints"} Collection */

const PAGE_ROWS = 100;

/** @type {[Collection, string][]} */
const COLLECTIONS = [
  ["queues", "Queues and streams"],
  ["topicEndpoints", "Topic endpoints"],
];

export default function Endpoints() {
  const [collection, name] = route.value.rest;
  if (name && (collection === "queues" || collection === "topicEndpoints")) {
    return html`<${Endpoint} key=${`${collection}/${name}`} vpn=${vpnName.value} collection=${collection} name=${name} />`;
  }
  return mayAdministerLog.value ? html`<${List} vpn=${vpnName.value} />` : html`<${ByName} />`;
}

/** @param {any} row */
const nameOf = (row) => row.queueName ?? row.topicEndpointName;

/** @param {{vpn: string}} props */
function List({ vpn }) {
  const query = route.value.query;
  const collection = /** @type {Collection} */ (query.get("of") === "topicEndpoints" ? "topicEndpoints" : "queues");
  const text = query.get("name") ?? "";
  const [cursors, setCursors] = useState(/** @type {string[]} */ ([]));
  const [isNew, setNew] = useState(false);
  const cursor = cursors.at(-1) ?? null;
  const attribute = collection === "queues" ? "queueName" : "topicEndpointName";
  const where = text.trim() ? `${attribute}==*${text.trim().replaceAll(",", "*")}*` : null;
  const list = at`monitor/msgVpns/${vpn}`;
  const found = usePolled((signal) => page(`${list}/${collection}`, { count: PAGE_ROWS, cursor, where }, signal), [vpn, collection, where, cursor]);
  const show = (/** @type {Record<string, string | null>} */ changes) => (setCursors([]), changeQuery(changes));
  const rows = found.data?.rows ?? [];

  return html`<div class="endpoints-page">
    <${PageHead} title="Endpoints" about=${found.data && !where ? words.counted(found.data.total ?? 0, collection === "queues" ? "queue or stream" : "topic endpoint", collection === "queues" ? "queues and streams" : "topic endpoints") : ""}>
      <${Button} onClick=${() => setNew(true)}>New…<//>
    <//>
    <div class="toolbar">
      <${Segments} label="Which endpoints" value=${collection} options=${COLLECTIONS} onInput=${(/** @type {Collection} */ next) => show({ of: next === "queues" ? null : next })} />
      <${Field} label="Name" hidden=${true} placeholder="Name, or a part of it" value=${text} onInput=${(/** @type {string} */ next) => show({ name: next })} />
    </div>
    <${Refusal} error=${found.error} />
    ${found.data
      ? html`<${Panel} class="below" flush=${true}><${Table}
          label=${collection === "queues" ? "Queues and streams" : "Topic endpoints"}
          columns=${COLUMNS}
          rows=${rows}
          rowKey=${nameOf}
          onOpen=${(/** @type {any} */ row) => go("endpoints", [collection, nameOf(row)])}
          empty=${nothing(collection, text)}
        /><//>`
      : !found.error && html`<${Loading} />`}
    <${Pager} cursors=${cursors} next=${found.data?.cursor} onMove=${setCursors} />
    ${isNew && html`<${NewEndpoint} vpn=${vpn} onClose=${() => setNew(false)} />`}
  </div>`;
}

/** @param {Collection} collection @param {string} text */
function nothing(collection, text) {
  if (text.trim()) return html`<${Empty} icon="search" title="No name contains this">The search is case-sensitive.<//>`;
  return collection === "queues"
    ? html`<${Empty} icon="endpoints" title="There is no queue">A queue is created when a client first uses its name, with “New…”, or in the configuration file.<//>`
    : html`<${Empty} icon="endpoints" title="There is no topic endpoint">A topic endpoint is created when a client makes a durable subscription, or with “New…”.<//>`;
}

/** @type {import("../parts/table.js").Column[]} */
const COLUMNS = [
  {
    key: "name",
    title: "Name",
    cell: (row) => html`<span title=${nameOf(row)}>${words.oneLine(nameOf(row))}</span>${(row.kind === "stream" || row.kind === "last-value") && html` <${Badge}>${row.kind}<//>`}${!row.durable && html` <${Badge} title="Deleted with the client that created it">temporary<//>`}`,
  },
  { key: "count", title: "Messages", align: "end", width: "110px", cell: (row) => words.number(row.spooledMsgCount) },
  { key: "size", title: "Size", align: "end", width: "100px", wide: true, cell: (row) => html`<span title="${words.number(row.msgSpoolUsage)} bytes">${words.size(row.msgSpoolUsage)}</span>` },
  { key: "consumers", title: "Consumers", align: "end", width: "100px", cell: (row) => words.number(row.bindCount) },
  { key: "unacknowledged", title: "Unacknowledged", align: "end", width: "142px", wide: true, cell: (row) => html`<span title=${row.oldestUnackedTimeMs === null ? "" : `held longest by ${row.oldestUnackedClientName || row.oldestUnackedClientId}, since ${words.moment(row.oldestUnackedTimeMs)}`}>${words.number(row.txUnackedMsgCount)}</span>` },
  { key: "lag", title: "Behind", align: "end", width: "110px", wide: true, cell: (row) => (row.lagMs === null ? "–" : words.duration(row.lagMs)) },
  { key: "replay", title: "Replay", width: "150px", wide: true, cell: (row) => html`<${ReplayState} state=${row.replayState} />` },
];

/** What a replay of an endpoint does. @param {{state: string}} props */
export function ReplayState({ state }) {
  if (state === "n/a" || state === "complete") return html`<span class="soft">${state === "n/a" ? "–" : state}</span>`;
  return html`<${Badge} kind=${state === "failed" ? "danger" : "accent"}>${state}<//>`;
}

/** Who may not see the list may see what is his. */
function ByName() {
  const [collection, setCollection] = useState("queues");
  const [name, setName] = useState("");
  return html`<${PageHead} title="Endpoints" />
    <form
      class="stack by-name"
      onSubmit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        if (name) go("endpoints", [collection, name]);
      }}
    >
      <${Note}>To see the list, your user needs a rule for <code>log://></code>. Endpoints that your rules cover can be opened by name.<//>
      <${Choice} label="Kind" value=${collection} options=${COLLECTIONS} onInput=${setCollection} />
      <${Field} label="Name" value=${name} onInput=${setName} required=${true} />
      <div><${Button} kind="main" type="submit">Open<//></div>
    </form>`;
}

/** @param {{vpn: string, onClose: () => void}} props */
function NewEndpoint({ vpn, onClose }) {
  const [kind, setKind] = useState("queue");
  const [name, setName] = useState("");
  const [access, setAccess] = useState("non-exclusive");
  const [topic, setTopic] = useState("");
  const [valueKey, setValueKey] = useState("");
  const isTopicEndpoint = kind === "topic-endpoint";
  const make = async () => {
    const base = at`config/msgVpns/${vpn}`;
    if (isTopicEndpoint) {
      await post(`${base}/topicEndpoints`, { topicEndpointName: name, topic });
    } else {
      await post(`${base}/queues`, { queueName: name, kind, ...(kind === "queue" ? { accessType: access } : {}), ...(kind === "last-value" ? { valueKey: valueKey.trim() } : {}) });
      if (topic.trim()) await post(`${base}${at`/queues/${name}/subscriptions`}`, { subscriptionTopic: topic.trim() });
    }
    toast(`${name} was created.`);
    go("endpoints", [isTopicEndpoint ? "topicEndpoints" : "queues", name]);
  };
  return html`<${Confirm} title="New endpoint" action="Create" disabled=${!name || (isTopicEndpoint && !topic)} onDo=${make} onClose=${onClose}>
    <${Choice}
      label="Kind"
      value=${kind}
      options=${[
        ["queue", "Queue"],
        ["stream", "Stream: a view of the log, for any number of readers"],
        ["last-value", "Last-value queue: readers begin with the newest message of each key"],
        ["topic-endpoint", "Topic endpoint: a durable subscription"],
      ]}
      onInput=${setKind}
    />
    <${Field} label="Endpoint name" value=${name} onInput=${setName} required=${true} />
    ${kind === "queue" &&
    html`<${Choice}
      label="Consumers"
      value=${access}
      options=${[
        ["non-exclusive", "Share the messages"],
        ["exclusive", "One at a time; the others wait"],
      ]}
      onInput=${setAccess}
    />`}
    ${kind === "last-value" && html`<${Field} label="Key" value=${valueKey} onInput=${setValueKey} mono=${true} placeholder="topic" hint="The property whose value is the key of a message. Without one, its topic is." />`}
    <${Field} label=${isTopicEndpoint ? "Topic" : "Subscription"} value=${topic} onInput=${setTopic} required=${isTopicEndpoint} mono=${true} placeholder="a/>" hint=${isTopicEndpoint ? "Messages published to this topic are put on it." : "Messages published to this topic are put on it as well. Optional; more can be added later."} />
  <//>`;
}
