// Queues and topic endpoints as pages name them: found by name, chosen, and what an action on one is called.

import { ApiError, all, at, get } from "../api.js";
import { html } from "../html.js";
import * as words from "../words.js";
import { Badge, Refusal } from "./basics.js";
import { Field } from "./fields.js";
import { usePolled } from "./polled.js";

/** @typedef {"queues" | "topicEndpoints"} Collection */

/**
 * @typedef {object} Endpoint
 * @property {string} name
 * @property {Collection} collection
 * @property {any} state As the gateway answers it.
 */

const MOST_PROPOSED = 500;

/**
 * The queues and topic endpoints of a Message VPN; of very many, the first.
 * @param {string} vpn
 * @returns {Promise<{name: string, collection: Collection}[]>}
 */
export async function endpointsOf(vpn) {
  const [queues, topicEndpoints] = await Promise.all([
    all(at`monitor/msgVpns/${vpn}/queues`, { select: "queueName,kind" }, MOST_PROPOSED),
    all(at`monitor/msgVpns/${vpn}/topicEndpoints`, { select: "topicEndpointName" }, MOST_PROPOSED),
  ]);
  return [
    ...queues.filter((one) => one.kind !== "stream").map((one) => ({ name: one.queueName, collection: /** @type {Collection} */ ("queues") })),
    ...topicEndpoints.map((one) => ({ name: one.topicEndpointName, collection: /** @type {Collection} */ ("topicEndpoints") })),
  ];
}

/**
 * The path of an endpoint in a tree of the API.
 * @param {"monitor" | "action" | "config"} tree
 * @param {string} vpn
 * @param {{name: string, collection: Collection}} endpoint
 */
export const pathOf = (tree, vpn, { name, collection }) => `${tree}/msgVpns/${encodeURIComponent(vpn)}/${collection}/${encodeURIComponent(name)}`;

/**
 * The queue, or else the topic endpoint, of this name.
 * @param {string} vpn
 * @param {string} name
 * @param {AbortSignal} [signal]
 * @returns {Promise<Endpoint>}
 */
export async function findEndpoint(vpn, name, signal) {
  try {
    return { name, collection: "queues", state: await get(at`monitor/msgVpns/${vpn}/queues/${name}`, {}, signal) };
  } catch (error) {
    if (!(error instanceof ApiError) || error.code !== "NOT_FOUND") throw error;
  }
  return { name, collection: "topicEndpoints", state: await get(at`monitor/msgVpns/${vpn}/topicEndpoints/${name}`, {}, signal) };
}

/**
 * A field for a queue or topic endpoint, and what is known of the one that is named.
 * @param {{vpn: string, value: string, onInput: (name: string) => void, found: import("./polled.js").Polled<Endpoint | null>}} props
 */
export function EndpointField({ vpn, value, onInput, found }) {
  const proposed = usePolled(() => endpointsOf(vpn), [vpn, "endpoints"], 0);
  const state = found.data?.state;
  return html`<${Field}
      label="Queue or topic endpoint"
      value=${value}
      onInput=${onInput}
      list=${(proposed.data ?? []).map((one) => one.name)}
      placeholder=${proposed.data?.length ? `such as ${proposed.data[0]?.name}` : ""}
      hint=${proposed.data?.length === 0 ? "There is none yet: make a queue with a subscription first." : undefined}
    />
    <${Refusal} error=${found.error} />
    ${found.data &&
    html`<p class="row soft">
      <${Badge}>${found.data.collection === "queues" ? state.kind : "topic endpoint"}<//>
      <span>${words.counted(state.spooledMsgCount, "message")} on it</span>
      <span>${words.counted(state.bindCount, "consumer")}</span>
      <span>${words.counted(state.topicSubscriptionCount, "subscription")}</span>
    </p>`}`;
}
