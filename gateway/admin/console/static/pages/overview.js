// What one wants to know first: how far back one can rewind, what goes on, what is wrong.

import { all, at, get } from "../api.js";
import { html } from "../html.js";
import { Badge, Bar, Facts, PageHead, Panel } from "../parts/basics.js";
import { Chart } from "../parts/chart.js";
import { Found, usePolled } from "../parts/polled.js";
import { ReplayState } from "../parts/replay.js";
import { href, isNarrow, now, vpnName } from "../state.js";
import * as words from "../words.js";

const SLOW_MS = 10_000;
const HOUR_MS = 3_600_000;
const MOST_REPLAYS = 6;

export default function Overview() {
  const name = vpnName.value;
  return html`<${PageHead} title="Overview" about=${html`Message VPN <b>${name}</b>`}>
      <a class="button main" href=${href("rewind")}>Rewind…</a>
    <//>
    <div class="grid">
      <${Reach} name=${name} />
      <${Rates} name=${name} />
      <${Use} name=${name} />
      <${Alarms} name=${name} />
      <${UnderWay} name=${name} />
      <${Refusals} name=${name} />
    </div>`;
}

/** How far back one can go. @param {{name: string}} props */
function Reach({ name }) {
  const log = usePolled((signal) => get(at`monitor/msgVpns/${name}/replayLogs/default`, {}, signal), [name]);
  const reach = usePolled((signal) => get(at`monitor/msgVpns/${name}/replayLogs/default/histogram`, { buckets: 1 }, signal), [name, "reach"], SLOW_MS);
  return html`<div class="c12 reach">
    <${Found} of=${log}>
      ${(/** @type {any} */ found) => {
        const oldest = found.oldestMsgTimeMs;
        const archive = reach.data?.archive;
        const earliest = archive?.oldestTimeMs && (!oldest || archive.oldestTimeMs < oldest) ? archive.oldestTimeMs : oldest;
        if (!earliest) {
          return html`<p class="reach-line">The log is empty: there is nothing to rewind to yet.</p>
            <p class="soft">${found.ingressEnabled ? "Messages published from now on can be replayed." : "The log takes no messages now: its ingress is off."}</p>`;
        }
        return html`<p class="reach-line" title=${words.exactly(earliest)}>
            You can rewind to <a href=${href("rewind", [], { start: "beginning" })}>${words.said(earliest)}</a>
          </p>
          <p class="soft">
            ${words.roughly(now.value - earliest)} ago.
            ${oldest && archive && earliest < oldest
              ? html` The log itself begins at <span title=${words.exactly(oldest)}>${words.said(oldest)}</span>; older messages come from the archive.`
              : ""}
            ${` At most ${words.number(found.lastMsgId - found.firstMsgId + 1)} messages, ${words.size(found.msgSpoolUsage)}.`}
            ${!found.egressEnabled ? " Its egress is off: nothing can be replayed." : ""}
          </p>`;
      }}
    <//>
  </div>`;
}

/** @param {{name: string}} props */
function Rates({ name }) {
  const rates = usePolled((signal) => get(at`monitor/msgVpns/${name}/rates`, {}, signal), [name], 5_000);
  return html`<${Panel} class="c8" title="Rates" aside="The last hour">
    <${Found} of=${rates}>
      ${(/** @type {any} */ found) => {
        const seconds = found.intervalMs / 1_000;
        const perSecond = (/** @type {number[]} */ counts) => counts.map((count) => count / seconds);
        return html`<${Chart}
            label="Messages published and settled per second, over the last hour"
            untilMs=${found.untilTimeMs}
            intervalMs=${found.intervalMs}
            slots=${HOUR_MS / found.intervalMs}
            text=${words.rate}
            height=${isNarrow.value ? 130 : 168}
            series=${[
              { name: "Published", values: perSecond(found.publishedMsgs), filled: true },
              { name: "Settled", values: perSecond(found.settledMsgs), colour: "soft" },
            ]}
          />
          <p class="soft chart-foot">
            Published now: ${words.size(Math.round((found.publishedBytes.at(-1) ?? 0) / seconds))} per second. Last hour:
            ${` ${words.counted(sum(found.publishedMsgs), "message")}, ${words.size(sum(found.publishedBytes))}`}, and
            ${` ${words.counted(sum(found.refusals), "refusal")}`}.
          </p>`;
      }}
    <//>
  <//>`;
}

/** @param {number[]} counts */
const sum = (counts) => counts.reduce((total, count) => total + count, 0);

/** How much of the log is used, and how long that lasts. @param {{name: string}} props */
function Use({ name }) {
  const plan = usePolled((signal) => get(at`monitor/msgVpns/${name}/replayLogs/default/plan`, {}, signal), [name], SLOW_MS);
  return html`<${Panel} class="c4" title="Log">
    <${Found} of=${plan}>
      ${(/** @type {any} */ found) => {
        const most = found.maxSpoolUsage * 2 ** 20;
        const used = found.msgSpoolUsage;
        return html`<div class="stack tight">
          ${most > 0 &&
          html`<div>
            <p><b>${words.size(used)}</b> of ${words.size(most)}</p>
            <${Bar} value=${used} most=${most} label="Use of the log's quota" text="${words.size(used)} of ${words.size(most)}" />
          </div>`}
          <${Facts}
            rows=${[
              !most && ["Size", `${words.size(used)}, no quota`, `${words.number(used)} bytes`],
              ["Growth", found.bytesPerSecond === null ? "not known yet" : `${words.size(Math.round(found.bytesPerSecond))} per second`],
              found.quotaLastsMs !== null && ["The quota covers", words.duration(found.quotaLastsMs)],
              ["Trimming starts", trimmed(found), found.trimmedFromTimeMs ? words.exactly(found.trimmedFromTimeMs) : undefined],
              ["Maximum age", found.maxAgeHours ? words.duration(found.maxAgeHours * 3_600_000) : "no limit"],
              found.diskFreeBytes !== null && ["Free disk space", words.size(found.diskFreeBytes), `${words.number(found.diskFreeBytes)} bytes`],
              found.diskFullTimeMs !== null && ["Disk full", `in ${words.duration(found.diskFullTimeMs - now.value)}`, words.exactly(found.diskFullTimeMs)],
            ]}
          />
        </div>`;
      }}
    <//>
  <//>`;
}

/** @param {any} plan */
function trimmed(plan) {
  if (plan.trimmedFromTimeMs === null) return "not expected";
  const left = plan.trimmedFromTimeMs - now.value;
  return left <= 0 ? "now" : `in ${words.duration(left)}`;
}

/** @param {{name: string}} props */
function Alarms({ name }) {
  const alarms = usePolled(() => all(at`monitor/msgVpns/${name}/alarms`), [name, "alarms"]);
  return html`<${Panel} class="c4" title="Alarms" aside=${alarms.data?.length ? html`<${Badge} kind="warning">${alarms.data.length}<//>` : null}>
    <${Found} of=${alarms}>
      ${(/** @type {any[]} */ found) =>
        found.length === 0
          ? html`<p class="calm">No active alarms.</p>`
          : html`<ul class="plain-list">
              ${found.map(
                (alarm) =>
                  html`<li key=${alarm.alarm + alarm.endpointName}>
                    <b>${words.oneLine(alarm.description)}</b>
                    <span class="soft" title=${words.moment(alarm.raisedTime * 1_000)}> since ${words.roughly(now.value - alarm.raisedTime * 1_000)}</span>
                  </li>`,
              )}
            </ul>`}
    <//>
  <//>`;
}

/** @param {{name: string}} props */
function UnderWay({ name }) {
  const replays = usePolled(() => all(at`monitor/msgVpns/${name}/replays`, { where: "state!=complete,state!=cancelled,state!=failed" }, MOST_REPLAYS), [name]);
  return html`<${Panel} class="c4" title="Replays under way" aside=${html`<a href=${href("replays")}>All</a>`}>
    <${Found} of=${replays}>
      ${(/** @type {any[]} */ running) => {
        if (running.length === 0) return html`<p class="calm">None. <a href=${href("rewind")}>Start one</a></p>`;
        return html`<ul class="plain-list">
          ${running.map((one) => {
            const total = Math.max(1, one.endMsgId - 1);
            return html`<li key=${one.replayNumber}>
              <a href=${href("replays", [one.replayName])}>${words.oneLine(one.target || one.sourceQueueName)}</a>
              <${ReplayState} replay=${one} />
              <span class="soft">${one.secondsLeft === null ? "" : ` ${words.duration(one.secondsLeft * 1_000)} left`}</span>
              ${one.endMsgId > 0 && html`<${Bar} value=${one.positionMsgId} most=${total} label="Replay to ${one.target}" />`}
            </li>`;
          })}
        </ul>`;
      }}
    <//>
  <//>`;
}

/** @param {{name: string}} props */
function Refusals({ name }) {
  const refusals = usePolled((signal) => get(at`monitor/msgVpns/${name}/refusals`, {}, signal), [name, "refusals"], 5_000);
  return html`<${Panel} class="c4" title="Refusals" aside="Since the gateway started">
    <${Found} of=${refusals}>
      ${(/** @type {any[]} */ found) => {
        const most = Math.max(1, ...found.map((one) => one.count));
        if (found.length === 0) return html`<p class="calm">Nothing was refused.</p>`;
        return html`<ul class="plain-list bars">
          ${found
            .toSorted((one, other) => other.count - one.count)
            .slice(0, 8)
            .map(
              (one) =>
                html`<li key=${one.reason}>
                  <span class="cut mono">${one.reason}</span><b>${words.number(one.count)}</b>
                  <${Bar} value=${one.count} most=${most} label="Refusals: ${one.reason}" text=${words.number(one.count)} />
                </li>`,
            )}
        </ul>`;
      }}
    <//>
  <//>`;
}

