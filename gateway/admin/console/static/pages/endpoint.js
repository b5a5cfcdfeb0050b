// One queue, stream or topic endpoint: what lies on it and did, who consumes, what it subscribes to, its limits.

import { all, at, get, put, remove } from "../api.js";
import { html, useState } from "../html.js";
import { Badge, Button, Empty, Facts, Note, PageHead, Panel, Refusal } from "../parts/basics.js";
import { Chart } from "../parts/chart.js";
import { DelayedMessages } from "../parts/delayed_messages.js";
import { Confirm } from "../parts/dialog.js";
import { Limits } from "../parts/endpoint_limits.js";
import { EndpointMessages } from "../parts/endpoint_messages.js";
import { Found, usePolled } from "../parts/polled.js";
import { Subscriptions } from "../parts/subscriptions.js";
import { Table } from "../parts/table.js";
import { Tabs } from "../parts/tabs.js";
import { toast } from "../parts/toasts.js";
import { Values } from "../parts/values.js";
import { changeQuery, go, href, isNarrow, now, route } from "../state.js";
import * as words from "../words.js";

const SLOW_MS = 10_000;
const HOUR_MS = 3_600_000;

/** @type {Record<string, string>} */
const KINDS = { queue: "Queue", stream: "Stream", "last-value": "Last-value queue", "topic-endpoint": "Topic endpoint" };

/** @param {{vpn: string, collection: "queues" | "topicEndpoints", name: string}} props */
export function Endpoint({ vpn, collection, name }) {
  const path = at`monitor/msgVpns/${vpn}/${collection}/${name}`;
  const state = usePolled((signal) => get(path, {}, signal), [path]);
  const [doing, setDoing] = useState("");
  const endpoint = /** @type {any} */ (state.data);
  const isStream = endpoint?.kind === "stream";
  const isValued = endpoint?.kind === "last-value";
  /** @type {[string, any][]} */
  const tabs = [
    ["consumers", "Consumers"],
    ...(isValued ? /** @type {[string, any][]} */ ([["values", "Values"]]) : []),
    ...(isStream || isValued ? [] : /** @type {[string, any][]} */ ([["messages", "Messages"], ["delayed", "Delayed"]])),
    ["subscriptions", collection === "queues" ? "Subscriptions" : "Subscription"],
    ["limits", "Limits"],
  ];
  const asked = route.value.query.get("tab") ?? "consumers";
  const tab = tabs.some(([one]) => one === asked) ? asked : "consumers";
  const done = () => setDoing("");

  return html`<p class="crumb"><a href=${href("endpoints", [], { of: collection === "queues" ? null : collection })}>Endpoints</a></p>
    <${PageHead} title=${words.oneLine(name)} about=${endpoint && html`<${Kind} endpoint=${endpoint} />`}>
      ${endpoint && !isStream && !isValued && html`<a class="button main" href=${href("rewind", [], { target: name })}>Rewind…</a>`}
      ${endpoint && !isStream && html`<${Button} onClick=${() => setDoing("purge")}>Purge…<//>`}
      ${endpoint && html`<${Button} icon="trash" onClick=${() => setDoing("delete")}>Delete…<//>`}
    <//>
    <${Found} of=${state}>
      ${() => html`<div class="grid">
          ${!isStream && html`<${Depths} path=${path} depth=${endpoint.spooledMsgCount} />`}
          <${State} class=${isStream ? "c12" : "c4"} endpoint=${endpoint} />
        </div>
        <${Panel} class="below">
          <${Tabs} label="About ${name}" tabs=${tabs} shown=${tab} onShow=${(/** @type {string} */ next) => changeQuery({ tab: next, msg: null })}>
            ${tab === "consumers" && html`<${Consumers} path=${path} />`}
            ${tab === "messages" && html`<${EndpointMessages} vpn=${vpn} path=${path} />`}
            ${tab === "values" && html`<${Values} vpn=${vpn} name=${name} onChanged=${state.reload} />`}
            ${tab === "delayed" && html`<${DelayedMessages} vpn=${vpn} collection=${collection} name=${name} onChanged=${state.reload} />`}
            ${tab === "subscriptions" && html`<${Subscriptions} vpn=${vpn} collection=${collection} name=${name} topic=${endpoint.topic} onChanged=${state.reload} />`}
            ${tab === "limits" && html`<${Limits} vpn=${vpn} collection=${collection} endpoint=${endpoint} onChanged=${state.reload} />`}
          <//>
        <//>`}
    <//>
    ${doing === "purge" && html`<${Purge} vpn=${vpn} collection=${collection} name=${name} endpoint=${endpoint} onClose=${done} onDone=${state.reload} />`}
    ${doing === "delete" && html`<${Delete} vpn=${vpn} collection=${collection} name=${name} endpoint=${endpoint} onClose=${done} />`}`;
}

/** @param {{endpoint: any}} props */
function Kind({ endpoint }) {
  return html`${KINDS[endpoint.kind]}${endpoint.kind === "queue" && html`, ${endpoint.accessType === "exclusive" ? "one consumer at a time" : "consumers share"}`}
    ${!endpoint.durable && html` <${Badge} title="Deleted with the client that created it">temporary<//>`}`;
}

/** How many messages lay on it; the last is how many do now. @param {{path: string, depth: number}} props */
function Depths({ path, depth }) {
  const depths = usePolled((signal) => get(`${path}/depths`, {}, signal), [path, "depths"], SLOW_MS);
  return html`<${Panel} class="c8" title="Depth" aside="The last hour">
    <${Found} of=${depths}>
      ${(/** @type {any} */ found) => html`<${Chart}
        label="Depth in messages, each minute of the last hour"
        untilMs=${found.untilTimeMs + found.intervalMs}
        intervalMs=${found.intervalMs}
        slots=${HOUR_MS / found.intervalMs}
        text=${(/** @type {number} */ value) => (Number.isInteger(value) ? words.number(value) : "")}
        height=${isNarrow.value ? 120 : 150}
        series=${[{ name: "Messages", values: [...(found.msgCounts.length ? found.msgCounts : [depth]), depth], filled: true }]}
      />`}
    <//>
  <//>`;
}

/** @param {{endpoint: any, class: string}} props */
function State({ endpoint, class: name }) {
  const oldest = endpoint.oldestMsgTimeMs;
  const isReplayed = endpoint.replayState !== "n/a";
  const time = (/** @type {number} */ seconds) => words.momentAndAge(seconds * 1_000, now.value);
  return html`<${Panel} class=${name} title="Now">
    <${Facts}
      rows=${[
        ["Messages", words.number(endpoint.spooledMsgCount)],
        ["Size", words.size(endpoint.msgSpoolUsage), `${words.number(endpoint.msgSpoolUsage)} bytes`],
        endpoint.dedupWindow > 0 && ["Duplicates", words.number(endpoint.duplicateMsgCount), `${words.counted(endpoint.dedupIdCount, "id")} remembered`],
        endpoint.delayedMsgCount > 0 && ["Delayed", words.number(endpoint.delayedMsgCount), words.size(endpoint.delayedMsgUsage)],
        oldest && ["Oldest", words.momentAndAge(oldest, now.value), words.exactly(oldest)],
        ["Consumers", words.number(endpoint.bindCount)],
        ["Unacknowledged", words.number(endpoint.txUnackedMsgCount)],
        endpoint.oldestUnackedTimeMs !== null && ["Held longest", html`message ${endpoint.oldestUnackedMsgId} by <a href=${href("clients", [endpoint.oldestUnackedClientId])}>${words.oneLine(endpoint.oldestUnackedClientName || endpoint.oldestUnackedClientId)}</a>, ${words.oneLine(endpoint.oldestUnackedClientUsername)}, since ${words.momentAndAge(endpoint.oldestUnackedTimeMs, now.value)}`, endpoint.oldestUnackedClientAddress],
        endpoint.kind !== "stream" && endpoint.lagMs !== null && ["Behind", `${words.counted(endpoint.lagMsgCount, "message")}, ${words.duration(endpoint.lagMs)}`],
        ["Consumed since the start", words.number(endpoint.settledMsgCount)],
        endpoint.owner && ["Owner", words.oneLine(endpoint.owner)],
        isReplayed && ["Replay", html`<a href=${href("replays")}>${endpoint.replayState}</a>`],
        endpoint.replayRemaining > 0 && ["Still to replay", words.counted(endpoint.replayRemaining, "message")],
        endpoint.replayOutstandingMsgCount > 0 && ["Replayed, unacknowledged", words.number(endpoint.replayOutstandingMsgCount)],
        endpoint.replayEtaMs && ["Replay ends", `in ${words.duration(endpoint.replayEtaMs)}`],
        endpoint.lastReplayStartTime > 0 && ["Last replay", time(endpoint.lastReplayStartTime)],
        endpoint.lastReplayFailureReason && ["Last failure", words.oneLine(endpoint.lastReplayFailureReason), words.moment(endpoint.lastReplayFailureTime * 1_000)],
      ]}
    />
    ${endpoint.replayBlockedBySelector &&
    html`<${Note} kind="warning">The replay is waiting: no consumer's selector matches the messages that are left.<//>`}
  <//>`;
}

/** @type {import("../parts/table.js").Column[]} */
const CONSUMERS = [
  { key: "client", title: "Client", cell: (row) => html`<a href=${href("clients", [row.clientId])} title=${row.clientName}>${words.oneLine(row.clientName || row.clientId)}</a>` },
  {
    key: "state",
    title: "State",
    width: "150px",
    cell: (row) =>
      row.isStalled
        ? html`<${Badge} kind="danger" title="Its lock on messages has ended, and it has not settled them yet: it gets no others until then">stalled<//>`
        : row.activityState === "active-consumer" ? html`<${Badge} kind="good">active<//>` : html`<${Badge} title="Another consumer is active">waiting<//>`,
  },
  { key: "credit", title: "Credit", align: "end", width: "90px", cell: (row) => (row.credit === undefined ? "–" : words.number(row.credit)) },
  { key: "unacknowledged", title: "Unacknowledged", align: "end", width: "142px", wide: true, cell: (row) => words.number(row.unackedMsgCount) },
  { key: "held", title: "Held since", width: "150px", wide: true, cell: (row) => (row.oldestUnackedTimeMs ? html`<span title="message ${row.oldestUnackedMsgId}">${words.moment(row.oldestUnackedTimeMs)}</span>` : "–") },
  {
    key: "keys",
    title: "Partitions or groups",
    width: "150px",
    wide: true,
    cell: (row) => row.partitions.join(", ") || (row.groupCount ? words.counted(row.groupCount, "group") : "–"),
  },
  { key: "selector", title: "Selector", width: "90px", wide: true, cell: (row) => (row.hasSelector ? "yes" : "–") },
  { key: "epoch", title: "Epoch", align: "end", width: "80px", wide: true, cell: (row) => row.epoch ?? "–" },
];

/** @param {{path: string}} props */
function Consumers({ path }) {
  const flows = usePolled(() => all(`${path}/txFlows`), [path, "flows"]);
  return html`<${Found} of=${flows}>
    ${(/** @type {any[]} */ found) =>
      html`<${Table}
        label="Consumers"
        columns=${CONSUMERS}
        rows=${found}
        rowKey=${(/** @type {any} */ row) => row.flowId}
        empty=${html`<${Empty} icon="clients" title="No consumers">Messages stay here until a consumer attaches.<//>`}
      />`}
  <//>`;
}

/** @param {{vpn: string, collection: string, name: string, endpoint: any, onClose: () => void, onDone: () => void}} props */
function Purge({ vpn, collection, name, endpoint, onClose, onDone }) {
  const purge = async () => {
    await put(at`action/msgVpns/${vpn}/${collection}/${name}/deleteMsgs`);
    toast(`${name} was purged.`);
    onDone();
  };
  return html`<${Confirm} title="Purge ${words.oneLine(name)}?" action="Purge" danger=${true} typed=${name} onDo=${purge} onClose=${onClose}>
    <p>
      This drops the <b>${words.counted(endpoint.spooledMsgCount, "message")}</b> (${words.size(endpoint.msgSpoolUsage)}) on it now, and any that arrive before you
      confirm. Messages that are in the log can be replayed to it later.
    </p>
    ${endpoint.delayedMsgCount > 0 && html`<${Note}>It also drops ${words.counted(endpoint.delayedMsgCount, "delayed message")}.<//>`}
    ${endpoint.txUnackedMsgCount > 0 && html`<${Note}>Consumers have not acknowledged ${words.counted(endpoint.txUnackedMsgCount, "message")} of these.<//>`}
  <//>`;
}

/** @param {{vpn: string, collection: string, name: string, endpoint: any, onClose: () => void}} props */
function Delete({ vpn, collection, name, endpoint, onClose }) {
  const what = KINDS[endpoint.kind]?.toLowerCase();
  const act = async () => {
    await remove(at`config/msgVpns/${vpn}/${collection}/${name}`);
    toast(`The ${what} ${name} was deleted.`);
    go("endpoints", [], { of: collection === "queues" ? null : collection });
  };
  return html`<${Confirm} title="Delete ${words.oneLine(name)}?" action="Delete" danger=${true} typed=${name} onDo=${act} onClose=${onClose}>
    <p>This deletes the ${what}, its subscriptions and the <b>${words.counted(endpoint.spooledMsgCount, "message")}</b> on it. Messages in the log stay there.</p>
    ${endpoint.delayedMsgCount > 0 && html`<${Note}>It also deletes ${words.counted(endpoint.delayedMsgCount, "delayed message")}.<//>`}
    ${endpoint.bindCount > 0 && html`<${Note} kind="warning">${words.counted(endpoint.bindCount, "consumer")} would be detached.<//>`}
    <${Refusal} error=${null} />
  <//>`;
}
