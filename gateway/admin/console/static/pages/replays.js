// Replays: those under way, with how far they are; those of the past; and one by itself.

import { all, at } from "../api.js";
import { html } from "../html.js";
import { Empty, PageHead, Panel } from "../parts/basics.js";
import { Found, usePolled } from "../parts/polled.js";
import { KINDS, Progress, ReplayActions, ReplayFacts, ReplayState, againHref, isUnderWay, loadReplay, startWords } from "../parts/replay.js";
import { Table } from "../parts/table.js";
import { go, href, route, vpnName } from "../state.js";
import * as words from "../words.js";

/** @typedef {import("../parts/replay.js").Replay} Replay */

/** Of the list; those under way are asked for more often. */
const LIST_MS = 4_000;

export default function Replays() {
  const [name] = route.value.rest;
  return name ? html`<${One} key=${name} name=${name} />` : html`<${List} />`;
}

/** @type {import("../parts/table.js").Column[]} */
const COLUMNS = [
  { key: "target", title: "To", cell: (/** @type {Replay} */ one) => html`<b title=${one.replayName}>${words.oneLine(one.target || one.sourceQueueName)}</b>` },
  { key: "state", title: "State", width: "112px", cell: (/** @type {Replay} */ one) => html`<${ReplayState} replay=${one} />` },
  { key: "kind", title: "Kind", width: "160px", wide: true, cell: (/** @type {Replay} */ one) => html`<span class="soft">${KINDS[one.kind] ?? one.kind}</span>` },
  { key: "start", title: "From", width: "140px", wide: true, cell: (/** @type {Replay} */ one) => startWords(one.start) },
  { key: "sent", title: "Messages", width: "96px", align: "end", cell: (/** @type {Replay} */ one) => words.number(one.sentMsgCount) },
  { key: "who", title: "Requested by", width: "140px", wide: true, cell: (/** @type {Replay} */ one) => words.oneLine(one.requester) },
  { key: "when", title: "Started", width: "130px", wide: true, cell: (/** @type {Replay} */ one) => html`<span title=${words.exactly(one.startedTimeMs)}>${words.said(one.startedTimeMs, { seconds: true })}</span>` },
];

function List() {
  const vpn = vpnName.value;
  const replays = usePolled(() => all(at`monitor/msgVpns/${vpn}/replays`), [vpn], LIST_MS);
  return html`<${PageHead} title="Replays"><a class="button main" href=${href("rewind")}>Rewind…</a><//>
    <${Found} of=${replays}>
      ${(/** @type {Replay[]} */ found) => {
        const underWay = found.filter(isUnderWay).toReversed();
        const past = found.filter((one) => !isUnderWay(one)).toReversed();
        if (found.length === 0) {
          return html`<${Panel}><${Empty} icon="replays" title="No replays yet">Replays to queues and topic endpoints, copies to addresses, and dead letters that are sent back are recorded here. <a href=${href("rewind")}>Start one</a><//><//>`;
        }
        return html`<div class="stack">
          ${underWay.length > 0 && html`<section class="cards" aria-label="Under way">${underWay.map((one) => html`<${Card} key=${one.replayNumber} vpn=${vpn} name=${one.replayName} onDone=${replays.reload} />`)}</section>`}
          <${Panel} flush=${true} title="Past" aside=${words.counted(past.length, "replay")}>
            <${Table}
              label="Past replays"
              columns=${COLUMNS}
              rows=${past}
              rowKey=${(/** @type {Replay} */ one) => one.replayNumber}
              onOpen=${(/** @type {Replay} */ one) => go("replays", [one.replayName])}
              empty=${html`<${Empty} title="None has ended yet" />`}
            />
          <//>
        </div>`;
      }}
    <//>`;
}

/** One under way. @param {{vpn: string, name: string, onDone: () => void}} props */
function Card({ vpn, name, onDone }) {
  const found = usePolled((signal) => loadReplay(vpn, name, signal), [vpn, name], 1_000);
  const replay = found.data?.replay;
  return html`<${Panel} title=${html`<a href=${href("replays", [name])}>${words.oneLine(replay?.target || replay?.sourceQueueName || name)}</a>`} aside=${replay && html`<${ReplayState} replay=${replay} />`}>
    <${Found} of=${found}>
      ${(/** @type {any} */ one) => html`<div class="stack tight">
        <${Progress} ...${one} />
        <div class="row"><${ReplayActions} vpn=${vpn} ...${one} onDone=${onDone} /></div>
      </div>`}
    <//>
  <//>`;
}

/** @param {{name: string}} props */
function One({ name }) {
  const vpn = vpnName.value;
  const found = usePolled((signal) => loadReplay(vpn, name, signal), [vpn, name], 1_000);
  const replay = found.data?.replay;
  return html`<${PageHead} title=${replay ? `Replay to ${words.oneLine(replay.target || replay.sourceQueueName)}` : "Replay"} about=${replay && html`<${ReplayState} replay=${replay} />`}>
      ${replay && !isUnderWay(replay) && html`<a class="button" href=${againHref(replay)}>Repeat…</a>`}
      <a class="button" href=${href("replays")}>All replays</a>
    <//>
    <${Found} of=${found}>
      ${(/** @type {any} */ one) => html`<div class="grid">
        ${isUnderWay(one.replay) &&
        html`<${Panel} class="c7" title="Progress">
          <div class="stack tight" aria-live="off">
            <${Progress} ...${one} />
            <div class="row"><${ReplayActions} vpn=${vpn} ...${one} onDone=${found.reload} /></div>
          </div>
        <//>`}
        <${Panel} class=${isUnderWay(one.replay) ? "c5" : "c12"} title="Record"><${ReplayFacts} replay=${one.replay} /><//>
      </div>`}
    <//>`;
}
