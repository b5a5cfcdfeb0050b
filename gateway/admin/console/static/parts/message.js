// One message of the log, beside the list: all its sections, and what can be done with it.

import { ApiError, address, at, get } from "../api.js";
import { html, useState } from "../html.js";
import { href, now, route } from "../state.js";
import * as words from "../words.js";
import { Badge, Button, Facts, Note } from "./basics.js";
import { BodyView } from "./body.js";
import { Drawer } from "./dialog.js";
import { Icon } from "./icons.js";
import { CopyMessage, EraseMessage } from "./message_actions.js";
import { NewPoint } from "./points.js";
import { Found, usePolled } from "./polled.js";

/** @typedef {Record<string, any>} Message As the gateway answers it, and whether it is in the log (`isLogged`). */

/**
 * A message of the log; of an endpoint, where the log does not have it (any more).
 * @param {string} vpn
 * @param {string} id
 * @param {string | undefined} endpoint
 * @param {AbortSignal} signal
 * @returns {Promise<Message>}
 */
async function load(vpn, id, endpoint, signal) {
  try {
    return { ...(await get(at`monitor/msgVpns/${vpn}/replayLogs/default/msgs/${id}`, {}, signal)), isLogged: true };
  } catch (error) {
    if (!endpoint || !(error instanceof ApiError)) throw error;
    return { ...(await get(`${endpoint}/msgs/${encodeURIComponent(id)}`, {}, signal)), isLogged: false };
  }
}

/**
 * @param {{vpn: string, id: string, endpoint?: string, onClose: () => void, onChanged?: () => void}} props
 *   `id`: its offset in the log; `endpoint`: the path of that on which it lies, in the monitor's tree.
 */
export function MessageDrawer({ vpn, id, endpoint, onClose, onChanged }) {
  const found = usePolled((signal) => load(vpn, id, endpoint, signal), [vpn, id, endpoint], 0);
  const [doing, setDoing] = useState("");
  const message = /** @type {Message | null} */ (found.data);
  const done = () => setDoing("");
  return html`<${Drawer}
      label="Message ${id}"
      onClose=${onClose}
      title=${html`<h2 class="message-title">${message ? words.oneLine(message.topic) : `Message ${id}`}</h2>
        <p class="soft">
          #${id}${message && html`, <span title=${words.exactly(message.spooledTimeMs)}>${words.momentAndAge(message.spooledTimeMs, now.value)}</span>`}
        </p>`}
      actions=${message?.isLogged && html`<${Actions} vpn=${vpn} message=${message} onDo=${setDoing} />`}
    >
      <${Found} of=${found}>${(/** @type {Message} */ one) => html`<${Sections} message=${one} />`}<//>
    <//>
    ${doing === "point" && html`<${NewPoint} vpn=${vpn} start="#${id}" onClose=${done} />`}
    ${doing === "copy" && message && html`<${CopyMessage} vpn=${vpn} message=${message} onClose=${done} />`}
    ${doing === "erase" && message && html`<${EraseMessage} vpn=${vpn} message=${message} onClose=${done} onDone=${() => (found.reload(), onChanged?.())} />`}`;
}

/** @param {{vpn: string, message: Message, onDo: (action: string) => void}} props */
function Actions({ vpn, message, onDo }) {
  const path = at`monitor/msgVpns/${vpn}/replayLogs/default/msgs/${message.msgId}`;
  const correlation = message.properties?.correlationId ?? message.correlationId;
  const isText = typeof correlation === "string";
  return html`<a class="button main" href=${href("rewind", [], { start: `#${message.msgId}` })}>Replay from here…</a>
    <${Button} icon="flag" onClick=${() => onDo("point")}>Create point<//>
    <${Button} icon="copy" onClick=${() => onDo("copy")} disabled=${message.isErased}>Copy to a queue…<//>
    ${isText && html`<a class="button" title="All messages of the log with this correlation-id" href=${href("log", [], { selector: `JMSCorrelationID = ${quoted(correlation)}`, msg: route.value.query.get("msg") })}>Same correlation-id</a>`}
    <a class="button" href=${address(`${path}/body`)} download title="The body's bytes"><${Icon} name="download" />Body</a>
    <a class="button" href=${address(`${path}/encoded`)} download title="The AMQP message as it is stored"><${Icon} name="download" />AMQP</a>
    <${Button} icon="trash" onClick=${() => onDo("erase")} disabled=${message.isErased}>Erase…<//>`;
}

/** A text in a selector. @param {string} text */
const quoted = (text) => `'${text.replaceAll("'", "''")}'`;

/** @param {{message: Message}} props */
function Sections({ message }) {
  const annotations = message.messageAnnotations ?? {};
  return html`${message.isErased &&
    html`<${Note} kind="warning">
      The content was erased${annotations["x-opt-erased-time"] ? ` at ${timed(annotations["x-opt-erased-time"])}` : ""}${annotations["x-opt-erased-reason"] ? `: ${annotations["x-opt-erased-reason"]}` : ""}.
    <//>`}
    ${!message.isLogged && html`<${Note}>It is only on the endpoint, not in the log.<//>`}
    ${message.malformed && html`<${Note} kind="warning">${message.malformed}<//>`}
    ${!message.isErased && html`<${BodyView} body=${message.body} />`}
    <${Section} title="Application properties" values=${message.applicationProperties} empty="None." />
    <${Section} title="Properties" values=${message.properties} empty="None." />
    <${Section} title="Header" values=${message.header} />
    <${Section} title="Message annotations" values=${annotations} />
    <${Section} title="Footer" values=${message.footer} />
    <section>
      <h3>In the log</h3>
      <${Facts}
        rows=${[
          ["Offset", `#${message.msgId}`],
          ["Replay id", html`<code>${message.replicationGroupMsgId}</code>`],
          ["Arrived", words.exactly(message.spooledTimeMs), `${message.spooledTimeMs} ms`],
          ["Topic", html`<code>${words.oneLine(message.topic)}</code>`],
          ["Priority", String(message.priority)],
          ["Size", words.size(message.contentSize), `${words.number(message.contentSize)} bytes`],
        ]}
      />
    </section>`;
}

/** @param {string | number} time */
function timed(time) {
  const ms = typeof time === "number" ? time : Date.parse(time);
  return Number.isNaN(ms) ? String(time) : words.moment(ms);
}

/** @param {{title: string, values: Record<string, any> | null | undefined, empty?: string}} props */
function Section({ title, values, empty }) {
  const entries = Object.entries(values ?? {});
  if (entries.length === 0 && !empty) return null;
  return html`<section>
    <h3>${title}</h3>
    ${entries.length === 0
      ? html`<p class="soft">${empty}</p>`
      : html`<${Facts} rows=${entries.map(([name, value]) => [html`<code>${words.oneLine(name)}</code>`, valueOf(value)])} />`}
  </section>`;
}

/** @param {any} value */
function valueOf(value) {
  if (value === null) return html`<span class="soft">null</span>`;
  if (typeof value === "string") return value === "" ? html`<${Badge}>empty<//>` : value;
  return html`<code>${JSON.stringify(value)}</code>`;
}
