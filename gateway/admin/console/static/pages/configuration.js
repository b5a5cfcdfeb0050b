// The configuration in force, and to have its file read again.

import { get, put } from "../api.js";
import { html, useState } from "../html.js";
import { Button, Note, PageHead, Panel } from "../parts/basics.js";
import { Confirm } from "../parts/dialog.js";
import { Field } from "../parts/fields.js";
import { Found, usePolled } from "../parts/polled.js";
import { mayChangeGateway } from "../state.js";
import * as words from "../words.js";

export default function Configuration() {
  const found = usePolled((signal) => get("monitor/configuration", {}, signal), ["configuration"], 0);
  const [isAsked, setAsked] = useState(false);
  const [report, setReport] = useState(/** @type {{applied: string[], refused: string[]} | null} */ (null));
  const [text, setText] = useState("");
  const reload = async () => {
    setReport(await put("action/reload"));
    await found.reload();
  };
  return html`<${PageHead} title="Configuration" about="Settings in force: the file, administrators' changes, and defaults. Secrets are left out.">
      ${mayChangeGateway.value && html`<${Button} onClick=${() => setAsked(true)}>Reload…<//>`}
    <//>
    <div aria-live="polite">${report && html`<${Report} report=${report} />`}</div>
    <${Found} of=${found}>
      ${(/** @type {any} */ { toml }) =>
        html`<div class="toolbar"><${Field} label="Find" hidden=${true} value=${text} onInput=${setText} placeholder="A setting, or a part of its name" /></div>
          <${Panel} class="below" flush=${true}><${Toml} toml=${toml} text=${text.trim()} /><//>`}
    <//>
    ${isAsked &&
    html`<${Confirm} title="Read the configuration file again?" action="Reload" onDo=${reload} onClose=${() => setAsked(false)}>
      <p>
        Everything that can change at run time is changed at once: users and their permissions, Message VPNs, queues, limits, and the contents of certificate files.
        Connections of users whose settings have changed are closed. A file with a mistake changes nothing.
      </p>
    <//>`}`;
}

/** What a reload did. @param {{report: {applied: string[], refused: string[]}}} props */
function Report({ report: { applied, refused } }) {
  if (applied.length === 0 && refused.length === 0) return html`<${Note} kind="good">Nothing in the file has changed.<//>`;
  return html`<div class="stack report">
    ${applied.length > 0 && html`<${Note} kind="good">${words.counted(applied.length, "setting")} changed.${list(applied)}<//>`}
    ${refused.length > 0 && html`<${Note} kind="warning">${words.counted(refused.length, "setting")} cannot change while the gateway runs:${list(refused)}<//>`}
  </div>`;
}

/** @param {string[]} lines */
const list = (lines) => html`<ul>${lines.map((line) => html`<li key=${line}><code>${words.oneLine(line)}</code></li>`)}</ul>`;

/**
 * The text, with its tables and comments told apart; where something is looked for, the lines that have it, under their tables.
 * @param {{toml: string, text: string}} props
 */
function Toml({ toml, text }) {
  const lines = found(toml.split("\n"), text.toLowerCase());
  if (lines.length === 0) return html`<p class="empty">No setting contains this.</p>`;
  return html`<pre class="toml" tabindex="0" aria-label="Configuration in force">${lines.map(
    (line) => html`<span class=${line.startsWith("[") ? "table-name" : line.startsWith("#") ? "comment" : ""}>${line}${"\n"}</span>`,
  )}</pre>`;
}

/** @param {string[]} lines @param {string} text */
function found(lines, text) {
  if (!text) return lines;
  /** @type {string[]} */
  const kept = [];
  let table = "";
  for (const line of lines) {
    if (line.startsWith("[")) table = line;
    if (!line.toLowerCase().includes(text)) continue;
    if (table && line !== table && !kept.includes(table)) kept.push(table);
    kept.push(line);
  }
  return kept;
}
