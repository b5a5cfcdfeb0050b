// A message's body, which anybody may have sent: as JSON, as text, in hex. It is text in the page and nothing else.

import { html, useMemo, useState } from "../html.js";
import * as words from "../words.js";
import { Button, Note } from "./basics.js";
import { Segments } from "./fields.js";

const MOST_COLOURED = 60_000;
const HEX_STEP = 4_096;

/**
 * @typedef {object} Body As the gateway answers it.
 * @property {"data" | "sequence" | "value" | "none"} kind
 * @property {string | null} contentType
 * @property {string | null} text
 * @property {string | null} base64
 * @property {boolean} isCut
 * @property {number} size Bytes.
 */

/** @param {{body: Body}} props */
export function BodyView({ body }) {
  const bytes = useMemo(() => bytesOf(body), [body]);
  const pretty = useMemo(() => (body.text === null || body.isCut ? null : prettyOf(body.text)), [body]);
  const forms = /** @type {[string, string][]} */ ([
    ...(pretty === null ? [] : [["json", "JSON"]]),
    ...(body.text === null ? [] : [["text", "Text"]]),
    ["hex", "Hex"],
  ]);
  const [form, setForm] = useState(forms[0]?.[0] ?? "hex");
  if (body.kind === "none" || body.size === 0) return html`<p class="soft">There is no body.</p>`;
  return html`<div class="body-view">
    <div class="row">
      <${Segments} label="Form of the body" value=${form} options=${forms} onInput=${setForm} />
      <span class="soft">${words.size(body.size)}, ${KINDS[body.kind]}${body.contentType ? `, ${words.oneLine(body.contentType)}` : ""}</span>
    </div>
    ${body.isCut && html`<${Note}>The first ${words.size(bytes.length)} are shown. Download it for all.<//>`}
    ${form === "json" && pretty !== null && html`<pre class="code" tabindex="0" aria-label="Body as JSON">${coloured(pretty)}</pre>`}
    ${form === "text" && html`<pre class="code" tabindex="0" aria-label="Body as text">${body.text}</pre>`}
    ${form === "hex" && html`<${Hex} bytes=${bytes} />`}
  </div>`;
}

/** @type {Record<string, string>} */
const KINDS = { data: "data", sequence: "AMQP sequence", value: "AMQP value" };

/** @param {Body} body @returns {Uint8Array} */
function bytesOf({ text, base64 }) {
  if (base64 !== null) return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return new TextEncoder().encode(text ?? "");
}

/** @param {string} text @returns {string | null} */
function prettyOf(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

/**
 * JSON with its names, texts and numbers told apart.
 * @param {string} text
 */
function coloured(text) {
  if (text.length > MOST_COLOURED) return text;
  /** @type {any[]} */
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(/("(?:[^"\\]|\\.)*")(\s*:)?|-?\d[\d.eE+-]*|\b(?:true|false|null)\b/g)) {
    parts.push(text.slice(end, found.index));
    const kind = found[2] ? "j-name" : found[1] ? "j-text" : "j-value";
    parts.push(html`<span class=${kind}>${found[1] ?? found[0]}</span>`, found[2] ?? "");
    end = found.index + found[0].length;
  }
  parts.push(text.slice(end));
  return parts;
}

/** @param {{bytes: Uint8Array}} props */
function Hex({ bytes }) {
  const [shown, setShown] = useState(HEX_STEP);
  const text = useMemo(() => hexOf(bytes.subarray(0, shown)), [bytes, shown]);
  return html`<pre class="code hex" tabindex="0" aria-label="Body in hex">${text}</pre>
    ${bytes.length > shown && html`<${Button} onClick=${() => setShown(shown * 4)}>Show more<//>`}`;
}

/** Sixteen bytes a line: where, in hex, as ASCII. @param {Uint8Array} bytes */
function hexOf(bytes) {
  const lines = [];
  for (let start = 0; start < bytes.length; start += 16) {
    const line = [...bytes.subarray(start, start + 16)];
    const digits = line.map((byte) => byte.toString(16).padStart(2, "0"));
    const left = digits.slice(0, 8).join(" ").padEnd(23);
    const right = digits.slice(8).join(" ").padEnd(23);
    const ascii = line.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${start.toString(16).padStart(6, "0")}  ${left}  ${right}  ${ascii}`);
  }
  return lines.join("\n");
}
