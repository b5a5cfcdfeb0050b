// Users: whom the configuration names, and whether one may do something, with the rule that decides it.

import { all, at, get } from "../api.js";
import { html, useState } from "../html.js";
import { Badge, Button, Empty, Note, PageHead, Panel, Refusal } from "../parts/basics.js";
import { Choice, Field } from "../parts/fields.js";
import { Found, usePolled } from "../parts/polled.js";
import { Table } from "../parts/table.js";
import { changeQuery, route, session, vpnName } from "../state.js";
import * as words from "../words.js";

/** @type {[string, string][]} */
const ACTIONS = [
  ["consume", "consume from"],
  ["browse", "browse"],
  ["publish", "publish to"],
  ["replay", "replay"],
  ["administer", "administer"],
];

/** @type {import("../parts/table.js").Column[]} */
const COLUMNS = [
  { key: "name", title: "User", cell: (row) => words.oneLine(row.userName) },
  { key: "access", title: "Global access", width: "200px", cell: (row) => (row.globalAccess === "none" ? html`<span class="soft">–</span>` : html`<${Badge} kind="accent">${row.globalAccess}<//>`) },
];

export default function Users() {
  const users = usePolled(() => all("monitor/users"), ["users"], 10_000);
  const chosen = route.value.query.get("user") ?? "";
  return html`<${PageHead} title="Users" about=${users.data?.length ? words.counted(users.data.length, "user") : ""} />
    <${Found} of=${users}>
      ${(/** @type {any[]} */ rows) =>
        rows.length === 0
          ? html`<${Empty} icon="users" title="No user is configured">
              Everybody on this machine may do everything. Users are named in the configuration file, each as <code>[user.NAME]</code>.
            <//>`
          : html`<div class="grid">
              <${Panel} class="c5" title="Configured users" flush=${true}>
                <${Table}
                  label="Users"
                  columns=${COLUMNS}
                  rows=${rows}
                  rowKey=${(/** @type {any} */ row) => row.userName}
                  openKey=${chosen}
                  onOpen=${(/** @type {any} */ row) => changeQuery({ user: row.userName })}
                />
              <//>
              <${Panel} class="c7" title="May this user …?"><${Question} users=${rows.map((row) => row.userName)} chosen=${chosen || rows[0].userName} /><//>
            </div>`}
    <//>`;
}

/** @param {{users: string[], chosen: string}} props */
function Question({ users, chosen }) {
  const [vpn, setVpn] = useState(vpnName.value);
  const [action, setAction] = useState("consume");
  const [address, setAddress] = useState("");
  const [asked, setAsked] = useState(/** @type {any} */ (null));
  const found = usePolled(
    (signal) => (asked ? get(at`monitor/users/${asked.user}/decision`, { msgVpnName: asked.vpn, action: asked.action, address: asked.address }, signal) : Promise.resolve(null)),
    [asked],
    0,
  );
  const decision = /** @type {any} */ (found.data);
  const vpns = session.value?.msgVpns.map((one) => one.msgVpnName) ?? [];
  const ask = (/** @type {Event} */ event) => {
    event.preventDefault();
    setAsked({ user: chosen, vpn, action, address: address.trim(), asked: Date.now() });
  };
  return html`<form class="stack" onSubmit=${ask}>
      <${Choice} label="User" value=${chosen} options=${users.map((name) => [name, name])} onInput=${(/** @type {string} */ name) => changeQuery({ user: name })} />
      ${vpns.length > 1 && html`<${Choice} label="In the Message VPN" value=${vpn} options=${vpns.map((name) => [name, name])} onInput=${setVpn} />`}
      <${Choice} label="Action" value=${action} options=${ACTIONS} onInput=${setAction} />
      <${Field} label="Address" value=${address} onInput=${setAddress} mono=${true} required=${true} placeholder="topic://a/>" hint="As a client names it: queue://NAME, topic://PATTERN, log://PATTERN." />
      <div><${Button} kind="main" type="submit" disabled=${!address.trim()}>Check<//></div>
    </form>
    <div class="answer" aria-live="polite">
      <${Refusal} error=${found.error} />
      ${decision &&
      html`<${Note} kind=${decision.isAllowed ? "good" : "warning"}>
        <b>${decision.isAllowed ? "Yes." : "No."}</b> ${decision.rule
          ? html`${words.oneLine(decision.userName)} may${decision.isAllowed ? "" : " not"} ${decision.action} <code>${words.oneLine(decision.address)}</code>. The rule that decides it: <code>${words.oneLine(decision.rule)}</code>`
          : words.oneLine(decision.sentence)}
      <//>`}
    </div>`;
}
