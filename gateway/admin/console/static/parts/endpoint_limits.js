// The limits of an endpoint, in words, who decides them, and how they are changed.

import { at, patch } from "../api.js";
import { html, useState } from "../html.js";
import { toast } from "./toasts.js";
import * as words from "../words.js";
import { Button, Note } from "./basics.js";
import { Confirm } from "./dialog.js";
import { Field } from "./fields.js";

/**
 * @typedef {object} Limit
 * @property {string} name The attribute.
 * @property {string} title
 * @property {(value: any) => string} said
 * @property {string} [unit] Of the number that is typed; without, it is no number that can be changed here.
 */

const orNone = (/** @type {(value: number) => string} */ said) => (/** @type {number} */ value) => (value ? said(value) : "no limit");

/** @type {Record<string, string>} */
const EXCLUSIVITY = {
  none: "share the messages",
  wait: "one at a time; others wait",
  refuse: "one at a time; others are refused",
  steal: "one at a time; a higher epoch takes over",
};

/** @type {Record<string, string>} */
const RETRIES = {
  disabled: "at once",
  failed: "later, when their delivery failed",
  returned: "later, when it did not fail",
  all: "later",
};

/** @type {Limit[]} */
const LIMITS = [
  { name: "exclusivity", title: "Consumers", said: (value) => EXCLUSIVITY[value] ?? value },
  { name: "maxMsgSpoolUsage", title: "Maximum size", said: orNone((value) => words.size(value * 2 ** 20)), unit: "MB" },
  { name: "maxMsgCount", title: "Maximum messages", said: orNone((value) => words.number(value)), unit: "messages" },
  { name: "maxMsgSize", title: "Largest message", said: (value) => (value ? words.size(value) : "the gateway's limit"), unit: "bytes" },
  { name: "maxTtl", title: "Time to live", said: (value) => (value ? words.duration(value * 1_000) : "as each message says"), unit: "seconds" },
  { name: "maxBindCount", title: "Consumers at once", said: orNone((value) => words.number(value)), unit: "consumers" },
  { name: "maxDeliveredUnackedMsgsPerFlow", title: "Unacknowledged messages per consumer", said: (value) => (value ? words.number(value) : "the gateway's limit"), unit: "messages" },
  { name: "maxRedeliveryCount", title: "Maximum redeliveries", said: orNone((value) => words.number(value)), unit: "times" },
  { name: "deadMsgQueue", title: "Dead letters go to", said: (value) => value || "nowhere: they are dropped, but stay in the log" },
  { name: "lockTimeoutMs", title: "Delivery lock", said: orNone((value) => words.duration(value)), unit: "milliseconds" },
  { name: "retryType", title: "Messages given back are tried again", said: (value) => RETRIES[value] ?? value },
  { name: "retryDelayMs", title: "First delay of a retry", said: (value) => words.duration(value), unit: "milliseconds" },
  { name: "retryFactor", title: "Each further delay", said: (value) => (value ? `${words.number(value)} times as long` : "the first one longer"), unit: "times" },
  { name: "retryMaxMs", title: "Longest delay of a retry", said: orNone((value) => words.duration(value)), unit: "milliseconds" },
  { name: "strictOrder", title: "Others wait for a retry", said: (value) => (value ? "yes" : "no") },
  { name: "dedupWindow", title: "Ids of messages that are stored once", said: (value) => (value ? `the last ${words.number(value)}` : "none"), unit: "messages" },
  { name: "dedupWindowMs", title: "Longest time for an id", said: orNone((value) => words.duration(value)), unit: "milliseconds" },
  { name: "respectMsgPriorityEnabled", title: "Higher priorities first", said: (value) => (value ? "yes" : "no") },
  { name: "messageGroups", title: "Message groups", said: (value) => (value ? "each goes to one consumer" : "no") },
  { name: "partitionCount", title: "Partitions", said: (value) => (value ? words.number(value) : "none"), unit: "partitions" },
  { name: "partitionKey", title: "Partition key", said: (value) => value },
  { name: "defaultStart", title: "Default replay start", said: (value) => value },
];

/** @param {{vpn: string, collection: string, endpoint: any, onChanged: () => void}} props */
export function Limits({ vpn, collection, endpoint, onChanged }) {
  const [changing, setChanging] = useState(/** @type {Limit | null} */ (null));
  return html`<div class="stack">
    ${endpoint.declared
      ? html`<${Note}>The configuration file declares it: change its limits there, then use “Reload”.<//>`
      : html`<${Note}>The configuration file does not declare it: change its limits here.<//>`}
    <table class="table limits" aria-label="Limits">
      <tbody>
        ${LIMITS.filter(({ name }) => endpoint[name] !== undefined).map(
          (limit) =>
            html`<tr key=${limit.name}>
              <th scope="row" title=${limit.name}>${limit.title}</th>
              <td title=${String(endpoint[limit.name])}>${limit.said(endpoint[limit.name])}</td>
              <td class="end">
                ${limit.unit && !endpoint.declared && html`<${Button} kind="quiet" label="Change: ${limit.title}" onClick=${() => setChanging(limit)}>Change<//>`}
              </td>
            </tr>`,
        )}
      </tbody>
    </table>
    ${changing &&
    html`<${Change}
      limit=${changing}
      value=${endpoint[changing.name]}
      onClose=${() => setChanging(null)}
      onDo=${async (/** @type {number} */ value) => {
        const name = endpoint.queueName ?? endpoint.topicEndpointName;
        await patch(at`config/msgVpns/${vpn}/${collection}/${name}`, { [changing.name]: value });
        toast(`${changing.title}: ${changing.said(value)}.`);
        onChanged();
      }}
    />`}
  </div>`;
}

/** @param {{limit: Limit, value: number, onClose: () => void, onDo: (value: number) => Promise<void>}} props */
function Change({ limit, value, onClose, onDo }) {
  const [text, setText] = useState(String(value));
  const isNumber = /^\d{1,10}$/.test(text.trim());
  return html`<${Confirm} title=${limit.title} action="Change" disabled=${!isNumber} onDo=${() => onDo(Number(text))} onClose=${onClose}>
    <${Field}
      label="In ${limit.unit}"
      value=${text}
      onInput=${setText}
      problem=${isNumber ? "" : "A whole number, 0 or more."}
      hint=${isNumber ? `0: ${limit.said(0)}. ${Number(text) ? `${text}: ${limit.said(Number(text))}.` : ""}` : ""}
    />
  <//>`;
}
