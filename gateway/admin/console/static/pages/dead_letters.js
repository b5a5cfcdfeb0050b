// Dead letters: how many lie where, why and where they died; a look at them, and back with them.

import { ApiError, all, at, page, put } from "../api.js";
import { html, useState } from "../html.js";
import { Badge, Button, Empty, Note, PageHead, Panel } from "../parts/basics.js";
import { Confirm } from "../parts/dialog.js";
import { Field, Segments } from "../parts/fields.js";
import { MessageDrawer } from "../parts/message.js";
import { Found, usePolled } from "../parts/polled.js";
import { Table } from "../parts/table.js";
import { changeQuery, go, href, mayAdministerLog, route, vpnName } from "../state.js";
import * as words from "../words.js";

const SLOW_MS = 5_000;
const MOST_SHOWN = 500;

/**
 * @typedef {object} Group As the gateway counts them.
 * @property {string} deadReason
 * @property {string} deadEndpointName
 * @property {number} msgCount
 * @property {number} msgSpoolUsage
 */

/**
 * The queues to which dead messages go, with what lies there.
 * @param {string} vpn
 */
async function deadQueuesOf(vpn) {
  const [queues, topicEndpoints] = await Promise.all([
    all(at`monitor/msgVpns/${vpn}/queues`, { select: "queueName,deadMsgQueue,spooledMsgCount,msgSpoolUsage" }),
    all(at`monitor/msgVpns/${vpn}/topicEndpoints`, { select: "deadMsgQueue" }),
  ]);
  /** @type {Map<string, number>} */
  const senders = new Map();
  for (const { deadMsgQueue: name } of [...queues, ...topicEndpoints]) if (name) senders.set(name, (senders.get(name) ?? 0) + 1);
  const named = queues.filter((queue) => senders.has(queue.queueName)).map((queue) => ({ ...queue, senders: senders.get(queue.queueName) ?? 0 }));
  return named.toSorted((one, other) => other.spooledMsgCount - one.spooledMsgCount);
}

export default function DeadLetters() {
  const vpn = vpnName.value;
  const [name] = route.value.rest;
  const queues = usePolled(() => deadQueuesOf(vpn), [vpn, "dead"], SLOW_MS);
  const found = queues.data;
  const shown = name ?? (found?.length === 1 ? found[0].queueName : undefined);
  return html`<${PageHead} title="Dead letters" about=${shown ? html`on <b>${words.oneLine(shown)}</b>` : "Messages that expired, were rejected, or were delivered too often."}>
      ${name && (found?.length ?? 0) > 1 && html`<a class="button" href=${href("dead-letters")}>All dead message queues</a>`}
    <//>
    ${shown
      ? html`<${Queue} key=${shown} vpn=${vpn} name=${shown} />`
      : html`<${Found} of=${queues}>
          ${(/** @type {any[]} */ list) =>
            html`<${Panel} flush=${true}>
              <${Table}
                label="Dead message queues"
                columns=${QUEUES}
                rows=${list}
                rowKey=${(/** @type {any} */ one) => one.queueName}
                onOpen=${(/** @type {any} */ one) => go("dead-letters", [one.queueName])}
                empty=${html`<${Empty} icon="dead" title="No queue has a dead message queue">
                  Messages that expire or are rejected are discarded; the log still has them. To keep them, set <code>deadMsgQueue</code> of a queue:
                  <code> rewind queue set NAME deadMsgQueue=dead</code>
                <//>`}
              />
            <//>`}
        <//>`}`;
}

/** @type {import("../parts/table.js").Column[]} */
const QUEUES = [
  { key: "name", title: "Queue", cell: (/** @type {any} */ one) => html`<b>${words.oneLine(one.queueName)}</b>` },
  { key: "count", title: "Messages", width: "110px", align: "end", cell: (/** @type {any} */ one) => words.number(one.spooledMsgCount) },
  { key: "size", title: "Size", width: "110px", align: "end", wide: true, cell: (/** @type {any} */ one) => words.size(one.msgSpoolUsage) },
  { key: "from", title: "Used by", width: "160px", wide: true, cell: (/** @type {any} */ one) => words.counted(one.senders, "endpoint") },
];

/** @type {Record<string, string>} */
const REASONS = { expired: "expired", rejected: "rejected by a consumer", "max-redelivery": "delivered too often" };

/** @param {string} reason */
const reasonOf = (reason) => REASONS[reason] ?? (reason ? words.oneLine(reason) : "unknown");

/** @param {{vpn: string, name: string}} props */
function Queue({ vpn, name }) {
  const groups = usePolled(() => all(at`monitor/msgVpns/${vpn}/queues/${name}/deadMsgs`), [vpn, name], SLOW_MS);
  const [returning, setReturning] = useState(/** @type {{group: Group | null, total: number} | null} */ (null));
  const open = route.value.query.get("msg");
  const found = /** @type {Group[]} */ (groups.data ?? []);
  const total = found.reduce((count, group) => count + group.msgCount, 0);
  /** @type {import("../parts/table.js").Column[]} */
  const columns = [
    { key: "reason", title: "Why", cell: (/** @type {Group} */ one) => html`<span title=${one.deadReason}>${reasonOf(one.deadReason)}</span>` },
    { key: "origin", title: "Where", cell: (/** @type {Group} */ one) => html`<b>${words.oneLine(one.deadEndpointName) || "unknown"}</b>` },
    { key: "count", title: "Messages", width: "90px", align: "end", cell: (/** @type {Group} */ one) => words.number(one.msgCount) },
    { key: "size", title: "Size", width: "90px", align: "end", wide: true, cell: (/** @type {Group} */ one) => words.size(one.msgSpoolUsage) },
    {
      key: "back",
      title: html`<span class="unseen">Send back</span>`,
      width: "116px",
      align: "end",
      cell: (/** @type {Group} */ one) => html`<${Button} kind="quiet" onClick=${() => setReturning({ group: one, total: one.msgCount })}>Send back…<//>`,
    },
  ];
  return html`<div class="dead-page ${open ? "with-drawer" : ""}">
    <div class="stack">
      <${Panel}
        flush=${true}
        title="By reason and origin"
        aside=${total > 0 && mayAdministerLog.value && html`<${Button} kind="main" onClick=${() => setReturning({ group: null, total })}>Send all back…<//>`}
      >
        <${Found} of=${groups}>
          ${() =>
            html`<${Table}
              label="Dead letters by reason and origin"
              columns=${columns}
              rows=${found}
              rowKey=${(/** @type {Group} */ one) => `${one.deadReason} ${one.deadEndpointName}`}
              empty=${html`<${Empty} icon="dead" title="No dead letters">The queue ${name} is empty.<//>`}
            />`}
        <//>
      <//>
      ${total > 0 && html`<${Letters} vpn=${vpn} name=${name} open=${open} />`}
    </div>
    ${open && html`<${MessageDrawer} key=${open} vpn=${vpn} id=${open} endpoint=${at`monitor/msgVpns/${vpn}/queues/${name}`} onClose=${() => changeQuery({ msg: null })} onChanged=${groups.reload} />`}
    ${returning && html`<${Return} vpn=${vpn} name=${name} group=${returning.group} total=${returning.total} onClose=${() => setReturning(null)} />`}
  </div>`;
}

/** @type {import("../parts/table.js").Column[]} */
const LETTERS = [
  { key: "time", title: "There since", width: "140px", cell: (/** @type {any} */ one) => html`<span title=${words.exactly(one.spooledTimeMs)}>${words.said(one.spooledTimeMs, { seconds: true })}</span>` },
  { key: "correlation", title: "Correlation-id", cell: (/** @type {any} */ one) => html`${words.oneLine(one.correlationId ?? "")}${one.isUnacked && html` <${Badge} title="A consumer has it">in delivery<//>`}` },
  { key: "type", title: "Content type", wide: true, width: "160px", cell: (/** @type {any} */ one) => html`<span class="soft">${words.oneLine(one.contentType ?? "")}</span>` },
  { key: "id", title: "Offset", align: "end", mono: true, width: "92px", wide: true, cell: (/** @type {any} */ one) => String(one.msgId) },
  { key: "size", title: "Size", wide: true, width: "92px", align: "end", cell: (/** @type {any} */ one) => words.size(one.contentSize) },
];

/** The messages themselves, the oldest first. @param {{vpn: string, name: string, open: string | null}} props */
function Letters({ vpn, name, open }) {
  const letters = usePolled((signal) => page(at`monitor/msgVpns/${vpn}/queues/${name}/msgs`, { count: MOST_SHOWN }, signal), [vpn, name, "msgs"], SLOW_MS);
  return html`<${Panel} flush=${true} title="Messages" aside=${letters.data?.cursor ? `The oldest ${MOST_SHOWN}` : "The oldest first"}>
    <${Found} of=${letters}>
      ${(/** @type {{rows: any[]}} */ found) =>
        html`<${Table}
          label="Dead letters"
          columns=${LETTERS}
          rows=${found.rows}
          rowKey=${(/** @type {any} */ one) => one.msgId}
          openKey=${open === null ? null : Number(open)}
          onOpen=${(/** @type {any} */ one) => changeQuery({ msg: String(one.msgId) === open ? null : one.msgId })}
        />`}
    <//>
  <//>`;
}

/** A text in a selector. @param {string} text */
const quoted = (text) => `'${text.replaceAll("'", "''")}'`;

/** @param {Group} group */
const selectorOf = ({ deadReason, deadEndpointName }) =>
  [
    deadReason ? `amqp.annotation.x-opt-dead-reason = ${quoted(deadReason)}` : "amqp.annotation.x-opt-dead-reason IS NULL",
    deadEndpointName ? `amqp.annotation.x-opt-dead-endpoint = ${quoted(deadEndpointName)}` : "amqp.annotation.x-opt-dead-endpoint IS NULL",
  ].join(" AND ");

/**
 * How many are sent back, where, and how fast.
 * @param {{vpn: string, name: string, group: Group | null, total: number, onClose: () => void}} props
 */
function Return({ vpn, name, group, total, onClose }) {
  const hasOrigin = mayAdministerLog.value && (group === null || group.deadEndpointName !== "");
  const [many, setMany] = useState("one");
  const [limit, setLimit] = useState("10");
  const [to, setTo] = useState(hasOrigin ? "origin" : "address");
  const [target, setTarget] = useState("");
  const [rate, setRate] = useState("");
  const count = many === "one" ? 1 : many === "some" ? Math.max(0, Math.min(total, Number(limit) || 0)) : total;
  return html`<${Confirm}
    title=${group ? `Send back messages that died on ${group.deadEndpointName || "an unknown endpoint"}` : `Send back all dead letters on ${name}`}
    action=${`Send ${many === "all" ? "all" : words.number(count)} back`}
    typed=${many === "all" ? name : undefined}
    disabled=${count === 0 || (to === "address" && target.trim() === "")}
    onClose=${onClose}
    onDo=${async () => {
      const begun = await put(at`action/msgVpns/${vpn}/queues/${name}/returnDead`, {
        selector: group ? selectorOf(group) : "",
        target: to === "address" ? target.trim() : "",
        limit: many === "all" ? 0 : count,
        ...(rate ? { rate: Number(rate) } : {}),
      });
      if (!begun) throw new ApiError(0, "The gateway did not name the job that it started.");
      go("replays", [begun.replayName]);
    }}
  >
    <${Segments}
      label="How many"
      value=${many}
      options=${[
        ["one", "One, to try"],
        ["some", "Some"],
        ["all", `All ${words.number(total)}`],
      ]}
      onInput=${setMany}
    />
    ${many === "some" && html`<${Field} label="At most" type="number" value=${limit} onInput=${setLimit} />`}
    <${Segments}
      label="Where to"
      value=${to}
      options=${[...(hasOrigin ? [["origin", "Where each died"]] : []), ["address", "An address"]]}
      onInput=${setTo}
    />
    ${to === "address" && html`<${Field} label="Address" value=${target} onInput=${setTarget} mono=${true} placeholder="queue://NAME or topic://TOPIC" />`}
    <${Field} label="Messages per second, at most" type="number" value=${rate} onInput=${setRate} placeholder="no limit" />
    <${Note}>Each message is removed from ${name} in the commit that publishes it, so none is lost or doubled. A message that dies again returns here as a new dead letter.<//>
  <//>`;
}
