// Rewinding, step by step: where to, from when, what that would bring; then the name is typed, and it begins.

import { Unreachable, all, at, get } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { Button, Empty, Loading, Note, PageHead, Panel, Refusal } from "../parts/basics.js";
import { Confirm } from "../parts/dialog.js";
import { EndpointField, findEndpoint } from "../parts/endpoints.js";
import { Check, Field, Segments } from "../parts/fields.js";
import { usePolled } from "../parts/polled.js";
import { PreviewView } from "../parts/preview.js";
import { Timeline } from "../parts/timeline.js";
import { previewCopy, previewReplay, startCopy, startReplay } from "../rewinding.js";
import { changeQuery, go, href, isNarrow, route, vpnName } from "../state.js";
import * as words from "../words.js";

const PAUSE_MS = 400;

/** @returns {import("../rewinding.js").Rewind} */
function rewindOf(/** @type {URLSearchParams} */ query) {
  const text = (/** @type {string} */ name) => query.get(name) ?? "";
  // As the page of the log says it, in ms.
  const date = (/** @type {string} */ name) => (/^\d+$/.test(text(name)) ? words.dateStart(Number(text(name))) : text(name));
  return {
    to: text("to") === "copy" ? "copy" : "endpoint",
    target: text("target"),
    start: text("start") || date("from"),
    until: date("until"),
    isClamped: query.has("clamp"),
    isKeeping: query.has("keep"),
    topics: text("topics"),
    selector: text("selector"),
    rate: text("rate"),
    speed: text("speed"),
    remote: text("remote"),
    name: text("name"),
  };
}

/** The value, once it has been the same for a moment. @template T @param {T} value @returns {T} */
function useSettled(value) {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [JSON.stringify(value)]);
  return settled;
}

export default function Rewind() {
  const vpn = vpnName.value;
  const rewind = rewindOf(route.value.query);
  const settled = useSettled(rewind);
  const isCopy = rewind.to === "copy";
  const [isAsking, setAsking] = useState(false);

  const endpoint = usePolled(
    async (signal) => (settled.target && settled.to === "endpoint" ? findEndpoint(vpn, settled.target, signal) : null),
    [vpn, settled.target, settled.to],
  );
  const found = endpoint.data;
  const isReady = settled.start !== "" && (settled.to === "copy" || found !== null);
  const preview = usePolled(
    async (signal) => {
      if (!isReady) return null;
      return settled.to === "copy" ? previewCopy(vpn, settled, signal) : found && previewReplay(vpn, found, settled, signal);
    },
    [vpn, settled, isReady, found?.collection],
    0,
  );

  const begin = async () => {
    if (isCopy) go("replays", [await startCopy(vpn, rewind)]);
    else if (found && preview.data) go("replays", [await startReplay(vpn, found, rewind, preview.data)]);
  };
  const canBegin = isCopy ? rewind.target !== "" && rewind.start !== "" : preview.data !== null && found !== null;

  return html`<${PageHead} title="Rewind" about="Replay messages of the log to a queue or another address."><a class="button" href=${href("replays")}>Replays</a><//>
    <div class="grid rewind">
      <div class="c8 stack">
        <${Target} vpn=${vpn} rewind=${rewind} endpoint=${endpoint} />
        <${Start} vpn=${vpn} rewind=${rewind} preview=${preview.data} />
        ${isCopy && html`<${CopyOptions} rewind=${rewind} />`}
      </div>
      <div class="c4">
        <${Panel} class="preview" title=${html`<span class="step">${isCopy ? 4 : 3}</span>Preview`} aside=${isReady && html`<${Button} kind="quiet" onClick=${preview.reload}>Refresh<//>`}>
          <div class="stack tight">
            ${!isReady
              ? html`<${Empty} icon="rewind" title="No preview yet">${rewind.target || isCopy ? "Pick a start on the time line." : "Choose a queue, then pick a start on the time line."} The messages that it would bring are shown here.<//>`
              : html`<${Refusal} error=${preview.error} />
                  ${preview.data ? html`<${PreviewView} preview=${preview.data} isCopy=${isCopy} />` : !preview.error && html`<${Loading} label="Counting" />`}`}
            ${preview.error && !(preview.error instanceof Unreachable) && !rewind.isClamped && html`<${Button} onClick=${() => changeQuery({ clamp: "1" })}>Start at the nearest message that is there<//>`}
            ${!isCopy && isReady && (rewind.isKeeping || (preview.data?.lost ?? 0) > 0) && html`<${Check} label="Keep messages that the log does not have, in their place" checked=${rewind.isKeeping} onInput=${(/** @type {boolean} */ is) => changeQuery({ keep: is ? "1" : null })} />`}
            <${Button} kind="main" icon="rewind" disabled=${!canBegin} onClick=${() => setAsking(true)}>${isCopy ? "Copy…" : "Rewind…"}<//>
          </div>
        <//>
      </div>
    </div>
    ${isAsking && html`<${Asking} rewind=${rewind} preview=${preview.data} onDo=${begin} onClose=${() => setAsking(false)} />`}`;
}

/** The last question. @param {{rewind: import("../rewinding.js").Rewind, preview: import("../rewinding.js").Preview | null, onDo: () => Promise<void>, onClose: () => void}} props */
function Asking({ rewind, preview, onDo, onClose }) {
  const isCopy = rewind.to === "copy";
  const from = preview?.firstMs ? words.said(preview.firstMs, { seconds: true }) : rewind.start;
  return html`<${Confirm}
    title=${isCopy ? `Copy messages to ${rewind.target}?` : `Rewind ${rewind.target} to ${from}?`}
    action=${isCopy ? "Copy" : "Rewind"}
    danger=${(preview?.lost ?? 0) > 0}
    typed=${rewind.target}
    onClose=${onClose}
    onDo=${onDo}
  >
    ${preview && html`<${PreviewView} preview=${{ ...preview, topics: [] }} isCopy=${isCopy} />`}
  <//>`;
}

/** @param {{vpn: string, rewind: import("../rewinding.js").Rewind, endpoint: import("../parts/polled.js").Polled<any>}} props */
function Target({ vpn, rewind, endpoint }) {
  const isCopy = rewind.to === "copy";
  const state = endpoint.data?.state.replayState;
  const isUnderWay = state && !["n/a", "complete", "failed"].includes(state);
  return html`<${Panel} title=${html`<span class="step">1</span>Where to`}>
    <div class="stack tight">
      <${Segments}
        label="Where to"
        value=${rewind.to}
        options=${[
          ["endpoint", "Queue or topic endpoint"],
          ["copy", "Address"],
        ]}
        onInput=${(/** @type {string} */ to) => changeQuery({ to: to === "copy" ? to : null, target: null })}
      />
      ${isCopy
        ? html`<${Field} label="Address" value=${rewind.target} onInput=${(/** @type {string} */ target) => changeQuery({ target })} mono=${true} placeholder="queue://NAME or topic://TOPIC" hint="Copies of the messages are published there. Messages that are there already stay." />`
        : html`<${EndpointField} vpn=${vpn} value=${rewind.target} onInput=${(/** @type {string} */ target) => changeQuery({ target })} found=${endpoint} />`}
      ${!isCopy && isUnderWay && html`<${Note} kind="warning">A replay to it is under way (${state}). A new one replaces it. <a href=${href("replays")}>Replays</a><//>`}
    </div>
  <//>`;
}

/** The ms of a start that is a date. @param {string} start */
function timeOf(start) {
  const ms = /^\d{4}-/.test(start) ? Date.parse(start) : Number.NaN;
  return Number.isNaN(ms) ? null : ms;
}

/** @param {{vpn: string, rewind: import("../rewinding.js").Rewind, preview: import("../rewinding.js").Preview | null}} props */
function Start({ vpn, rewind, preview }) {
  const buckets = isNarrow.value ? 90 : 160;
  const histogram = usePolled((signal) => get(at`monitor/msgVpns/${vpn}/replayLogs/default/histogram`, { buckets }, signal), [vpn, buckets], 10_000);
  const points = usePolled(() => all(at`config/msgVpns/${vpn}/replayPoints`), [vpn, "points"], 10_000);
  const isCopy = rewind.to === "copy";
  const oldest = histogram.data?.log?.oldestTimeMs ?? null;
  const from = rewind.start === "beginning" ? oldest : rewind.start ? (timeOf(rewind.start) ?? preview?.firstMs ?? null) : null;
  const until = timeOf(rewind.until);
  const pick = (/** @type {number | null} */ first, /** @type {number | null} */ last) =>
    changeQuery({ start: first === null ? null : first <= (oldest ?? 0) && !histogram.data?.archive ? "beginning" : words.dateStart(first), until: last === null ? null : words.dateStart(last), from: null, clamp: null });
  return html`<${Panel} title=${html`<span class="step">2</span>${isCopy ? "From when, and until when" : "From when"}`} aside=${from === null ? "" : html`<b>${words.said(from, { seconds: true })}</b>${until === null ? "" : ` – ${words.said(until, { seconds: true })}`}`}>
    <div class="stack tight">
      <${Refusal} error=${histogram.error} />
      ${histogram.data
        ? html`<${Timeline}
            histogram=${histogram.data}
            points=${points.data ?? []}
            from=${from}
            until=${until}
            onSelect=${pick}
            onPoint=${(/** @type {any} */ point) => changeQuery({ start: `point:${point.replayPointName}`, from: null, clamp: null })}
            height=${isNarrow.value ? 110 : 150}
          />`
        : !histogram.error && html`<${Loading} />`}
      <div class="toolbar">
        <${Field} label="Start" value=${rewind.start} onInput=${(/** @type {string} */ start) => changeQuery({ start, from: null, clamp: null })} mono=${true} list=${["beginning", "10m", "1h", "1D", ...(points.data ?? []).map((point) => `point:${point.replayPointName}`)]} placeholder="a date, 10m, #123, rmid1:…, point:…" />
        ${isCopy && html`<${Field} label="Until" value=${rewind.until} onInput=${(/** @type {string} */ end) => changeQuery({ until: end })} mono=${true} placeholder="the newest message" />`}
      </div>
      ${!isCopy && until !== null && html`<${Note}>A replay to a queue continues to the newest message, and then the queue is live: it cannot have an end. <${Button} kind="quiet" onClick=${() => changeQuery({ to: "copy", target: null })}>Copy this part to an address<//><//>`}
      <${Check} label="If the start is not in the log (any more), begin at the nearest message that is" checked=${rewind.isClamped} onInput=${(/** @type {boolean} */ is) => changeQuery({ clamp: is ? "1" : null })} />
    </div>
  <//>`;
}

/** @param {{rewind: import("../rewinding.js").Rewind}} props */
function CopyOptions({ rewind }) {
  const set = (/** @type {string} */ name) => (/** @type {string} */ value) => changeQuery({ [name]: value });
  return html`<${Panel} title=${html`<span class="step">3</span>Which, and how fast`}>
    <div class="fields">
      <${Field} label="Topics" value=${rewind.topics} onInput=${set("topics")} mono=${true} placeholder="all" hint="Patterns, separated by spaces; a leading ! excludes." />
      <${Field} label="Selector" value=${rewind.selector} onInput=${set("selector")} mono=${true} placeholder="all" />
      <${Field} label="Messages per second, at most" type="number" value=${rewind.rate} onInput=${set("rate")} placeholder="no limit" />
      <${Field} label="Speed, as a factor of the original" type="number" step="any" value=${rewind.speed} onInput=${set("speed")} placeholder="no limit" />
      <${Field} label="Other gateway" value=${rewind.remote} onInput=${set("remote")} hint="The label of a replay_target in the configuration." />
      <${Field} label="Name of the replay" value=${rewind.name} onInput=${set("name")} placeholder="user and time" />
    </div>
  <//>`;
}
