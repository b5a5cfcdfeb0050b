// What an endpoint subscribes to: topics, exceptions, and whether a topic would come here.

import { all, at, get, patch, post, remove } from "../api.js";
import { html, useState } from "../html.js";
import { href } from "../state.js";
import * as words from "../words.js";
import { Badge, Button, Empty, Note, Refusal } from "./basics.js";
import { Field } from "./fields.js";
import { Found, usePolled } from "./polled.js";
import { toast } from "./toasts.js";

/**
 * @param {{vpn: string, collection: "queues" | "topicEndpoints", name: string, topic?: string, onChanged: () => void}} props
 *   `topic`: that of a topic endpoint.
 */
export function Subscriptions({ vpn, collection, name, topic, onChanged }) {
  return html`<div class="grid">
    <div class="c6">
      ${collection === "queues"
        ? html`<${OfQueue} vpn=${vpn} name=${name} onChanged=${onChanged} />`
        : html`<${OfTopicEndpoint} vpn=${vpn} name=${name} topic=${topic ?? ""} onChanged=${onChanged} />`}
    </div>
    <div class="c6"><${WouldMatch} vpn=${vpn} name=${name} /></div>
  </div>`;
}

/** @param {{vpn: string, name: string, onChanged: () => void}} props */
function OfQueue({ vpn, name, onChanged }) {
  const path = at`config/msgVpns/${vpn}/queues/${name}/subscriptions`;
  const found = usePolled(() => all(path), [path], 5_000);
  const [text, setText] = useState("");
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const change = async (/** @type {() => Promise<unknown>} */ act, /** @type {string} */ said) => {
    setError(null);
    try {
      await act();
      toast(said);
      await found.reload();
      onChanged();
      return true;
    } catch (problem) {
      setError(/** @type {Error} */ (problem));
      return false;
    }
  };
  const add = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const topic = text.trim();
    if (topic && (await change(() => post(path, { subscriptionTopic: topic }), `${name} subscribes to ${topic}.`))) setText("");
  };
  return html`<div class="stack">
    <h3>Subscribes to</h3>
    <${Found} of=${found}>
      ${(/** @type {any[]} */ rows) =>
        rows.length === 0
          ? html`<${Empty} title="No subscriptions">It gets only messages that are sent to it by name.<//>`
          : html`<ul class="plain-list">
              ${rows.map(
                ({ subscriptionTopic: topic }) =>
                  html`<li key=${topic} class="row between">
                    <span><code>${words.oneLine(topic)}</code>${topic.startsWith("!") && html` <${Badge}>exception<//>`}</span>
                    <${Button}
                      kind="quiet"
                      icon="close"
                      label="Remove ${topic}"
                      title="Remove"
                      onClick=${() => change(() => remove(at`config/msgVpns/${vpn}/queues/${name}/subscriptions/${topic}`), `${name} no longer subscribes to ${topic}.`)}
                    />
                  </li>`,
              )}
            </ul>`}
    <//>
    <form class="toolbar" onSubmit=${add}>
      <${Field} label="Topic" value=${text} onInput=${setText} mono=${true} placeholder="a/>" hint="* matches one level, > all levels below; a leading ! makes an exception." />
      <${Button} type="submit" disabled=${!text.trim()}>Add<//>
    </form>
    <${Refusal} error=${error} />
  </div>`;
}

/** @param {{vpn: string, name: string, topic: string, onChanged: () => void}} props */
function OfTopicEndpoint({ vpn, name, topic, onChanged }) {
  const [text, setText] = useState(topic);
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const change = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setError(null);
    try {
      await patch(at`config/msgVpns/${vpn}/topicEndpoints/${name}`, { topic: text.trim() });
      toast(`${name} subscribes to ${text.trim()}.`);
      onChanged();
    } catch (problem) {
      setError(/** @type {Error} */ (problem));
    }
  };
  return html`<form class="stack" onSubmit=${change}>
    <h3>Subscribes to</h3>
    <p><code>${words.oneLine(topic)}</code></p>
    <div class="toolbar">
      <${Field} label="Another topic" value=${text} onInput=${setText} mono=${true} hint="It can be changed while there is no consumer." />
      <${Button} type="submit" disabled=${!text.trim() || text.trim() === topic}>Change<//>
    </div>
    <${Refusal} error=${error} />
  </form>`;
}

/** Who would get what is published to a topic. @param {{vpn: string, name: string}} props */
function WouldMatch({ vpn, name }) {
  const [text, setText] = useState("");
  const [asked, setAsked] = useState("");
  const found = usePolled((signal) => (asked ? get(at`monitor/msgVpns/${vpn}/topicMatches`, { topic: asked, count: 500 }, signal) : Promise.resolve(null)), [vpn, asked], 0);
  const rows = /** @type {any[]} */ (found.data ?? []);
  const isHere = rows.some((one) => one.endpointName === name);
  return html`<div class="stack">
    <h3>Would this topic match?</h3>
    <form class="toolbar" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), setAsked(text.trim()))}>
      <${Field} label="Topic of a message" value=${text} onInput=${setText} mono=${true} placeholder="a/b/c" />
      <${Button} type="submit" disabled=${!text.trim()}>Check<//>
    </form>
    <div aria-live="polite" class="stack">
      <${Refusal} error=${found.error} />
      ${asked &&
      found.data &&
      html`<${Note} kind=${isHere ? "good" : "note"}>
          <code>${words.oneLine(asked)}</code> ${isHere ? "is delivered here" : "is not delivered here"}${rows.length === 0 ? ", nor to any other endpoint." : "."}
        <//>
        <ul class="plain-list">
          ${rows.map(
            (one) =>
              html`<li key=${one.endpointType + one.endpointName} class="row between">
                <a href=${href("endpoints", [one.endpointType === "topic-endpoint" ? "topicEndpoints" : "queues", one.endpointName])}>${words.oneLine(one.endpointName)}</a>
                <span class="soft">by <code>${words.oneLine(one.subscriptionTopic ?? "")}</code></span>
              </li>`,
          )}
        </ul>`}
    </div>
  </div>`;
}
