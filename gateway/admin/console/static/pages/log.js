// The log: when its messages came, which they are, and what comes now.

import { all, at, get, tried } from "../api.js";
import { html, useEffect, useMemo, useRef, useState } from "../html.js";
import { follow } from "../events.js";
import { MessageWindow } from "../message_window.js";
import { Badge, Button, Empty, Loading, PageHead, Panel, Refusal } from "../parts/basics.js";
import { Field, Segments } from "../parts/fields.js";
import { MessageDrawer } from "../parts/message.js";
import { NewPoint, Points } from "../parts/points.js";
import { usePolled } from "../parts/polled.js";
import { ROW_HEIGHT, Table } from "../parts/table.js";
import { Timeline } from "../parts/timeline.js";
import { changeQuery, connection, href, isNarrow, isVisible, route, vpnName } from "../state.js";
import * as words from "../words.js";

/** @typedef {import("../message_window.js").Row} Row */

/** @type {import("../parts/table.js").Column[]} */
const COLUMNS = [
  { key: "time", title: "Time", width: "var(--time-column)", cell: (/** @type {Row} */ row) => html`<span title=${words.exactly(row.spooledTimeMs)}>${isNarrow.value ? words.said(row.spooledTimeMs, { seconds: true }) : stamp(row.spooledTimeMs)}</span>` },
  { key: "id", title: "Offset", width: "92px", align: "end", mono: true, wide: true, cell: (/** @type {Row} */ row) => html`<span title=${row.replicationGroupMsgId}>${row.msgId}</span>` },
  {
    key: "topic",
    title: "Topic",
    cell: (/** @type {Row} */ row) => html`<span title=${row.topic}>${words.oneLine(row.topic)}</span>${row.isErased && html` <${Badge} kind="warning">erased<//>`}`,
  },
  { key: "type", title: "Content type", width: "150px", wide: true, cell: (/** @type {Row} */ row) => html`<span class="soft" title=${row.contentType}>${words.oneLine(row.contentType ?? "")}</span>` },
  { key: "size", title: "Size", width: "92px", wide: true, align: "end", cell: (/** @type {Row} */ row) => html`<span title="${words.number(row.contentSize)} bytes">${words.size(row.contentSize)}</span>` },
];

/** What the time line shows while messages are shown as they come. */
const LIVE_MS = 10 * 60_000;

/** @param {number} ms */
const stamp = (ms) => `${words.said(ms, { seconds: true })}.${String(ms % 1_000).padStart(3, "0")}`;

export default function Log() {
  const name = vpnName.value;
  const query = route.value.query;
  const from = numberOf(query.get("from"));
  const until = numberOf(query.get("until"));
  const zoom = (query.get("zoom") ?? "").split("-").map(Number);
  const isLive = query.has("live");
  const message = query.get("msg");
  const [isPoints, setPoints] = useState(false);
  const [isNewPoint, setNewPoint] = useState(false);
  const [isFilters, setFilters] = useState(query.has("topic") || query.has("selector"));

  const buckets = isNarrow.value ? 90 : 200;
  const histogram = usePolled(
    (signal) => {
      const recent = Date.now() - LIVE_MS;
      const bounds = zoom.length === 2 ? { from: zoom[0], until: zoom[1] } : isLive ? { from: recent, until: recent + LIVE_MS } : {};
      return get(at`monitor/msgVpns/${name}/replayLogs/default/histogram`, { ...bounds, buckets }, signal);
    },
    [name, zoom, buckets, isLive],
    isLive ? 1_000 : 5_000,
  );
  const points = usePolled(() => all(at`config/msgVpns/${name}/replayPoints`), [name, "points"], 10_000);
  const log = histogram.data?.log ?? null;

  const select = (/** @type {number | null} */ first, /** @type {number | null} */ last) => changeQuery({ from: first, until: last, at: null, live: null });
  const zoomTo = (/** @type {number} */ first, /** @type {number} */ last) => changeQuery({ zoom: `${Math.round(first)}-${Math.round(last)}` });

  return html`<div class="log-page ${message ? "with-drawer" : ""}">
    <div class="log-main">
      <${PageHead} title="Log" about=${log ? aboutLog(histogram.data) : ""}>
        <${Button} icon="flag" onClick=${() => setPoints(true)}>Points<//>
        <a class="button main" href=${href("rewind", [], { from, until })}>Rewind${from === null ? "…" : " from here…"}</a>
      <//>
      <${Panel} class="log-time">
        <${Refusal} error=${histogram.error} />
        ${histogram.data
          ? html`<${Timeline}
              histogram=${histogram.data}
              points=${points.data ?? []}
              from=${from}
              until=${until}
              onSelect=${select}
              onPoint=${(/** @type {any} */ point) => changeQuery({ from: point.timeMs, until: null, at: `point:${point.replayPointName}`, live: null })}
              height=${isNarrow.value ? 96 : 118}
            />`
          : !histogram.error && html`<${Loading} />`}
        <${Range} histogram=${histogram.data} from=${from} until=${until} isZoomed=${zoom.length === 2} onSelect=${select} onZoom=${zoomTo} onPoint=${() => setNewPoint(true)} />
      <//>
      <${Filters} isOpen=${isFilters || !isNarrow.value} onOpen=${() => setFilters(!isFilters)} isLive=${isLive} />
      <${Messages} key=${`${name}`} name=${name} log=${log} from=${from} until=${until} isLive=${isLive} openId=${message} />
    </div>
    ${message && html`<${MessageDrawer} key=${message} vpn=${name} id=${message} onClose=${() => changeQuery({ msg: null })} />`}
    ${isPoints && html`<${Points} vpn=${name} points=${points} onClose=${() => setPoints(false)} onNew=${() => (setPoints(false), setNewPoint(true))} />`}
    ${isNewPoint && html`<${NewPoint} vpn=${name} start=${from === null ? "live" : words.dateStart(from)} onClose=${() => setNewPoint(false)} onDone=${points.reload} />`}
  </div>`;
}

/** @param {any} histogram */
function aboutLog({ log, archive }) {
  const count = log.newestMsgId - log.oldestMsgId + 1;
  return html`<span title="Ids #${log.oldestMsgId} to #${log.newestMsgId}">${words.counted(count, "message")}</span> since
    ${" "}<span title=${words.exactly(log.oldestTimeMs)}>${words.said(log.oldestTimeMs)}</span>${archive && archive.oldestMsgId < log.oldestMsgId ? `; in the archive since ${words.said(archive.oldestTimeMs)}` : ""}`;
}

/** @param {string | null} text */
function numberOf(text) {
  return text !== null && /^\d+$/.test(text) ? Number(text) : null;
}

/**
 * What is picked on the time line, as dates.
 * @param {{histogram: any, from: number | null, until: number | null, isZoomed: boolean, onSelect: (from: number | null, until: number | null) => void, onZoom: (from: number, until: number) => void, onPoint: () => void}} props
 */
function Range({ histogram, from, until, isZoomed, onSelect, onZoom, onPoint }) {
  const ms = (/** @type {string} */ text) => (text ? new Date(text).getTime() : null);
  const count = histogram && from !== null && until !== null ? countOf(histogram, from, until) : null;
  return html`<div class="range ${from === null && until === null ? "none" : ""}">
    <${Field} label="From" type="datetime-local" step="1" value=${from === null ? "" : words.dateInput(from)} onInput=${(/** @type {string} */ text) => onSelect(ms(text), until)} />
    <${Field} label="Until" type="datetime-local" step="1" value=${until === null ? "" : words.dateInput(until)} onInput=${(/** @type {string} */ text) => onSelect(from, ms(text))} />
    <div class="range-does">
      ${from === null && until === null
        ? html`<span class="soft hint">Drag over the bars to select a part of the log; click to select a start.</span>`
        : html`<${Button} kind="quiet" icon="close" onClick=${() => onSelect(null, null)}>Clear<//>`}
      ${from !== null && until !== null && html`<${Button} kind="quiet" onClick=${() => onZoom(from, until)}>Zoom in<//>`}
      ${isZoomed && html`<${Button} kind="quiet" onClick=${() => changeQuery({ zoom: null })}>Whole log<//>`}
      <${Button} kind="quiet" icon="flag" onClick=${onPoint}>Create point<//>
      ${count !== null && html`<span class="soft" title="Counted by ids up to the next bar, without the topic and selector filters">about ${words.counted(count, "message")}</span>`}
    </div>
  </div>`;
}

/** @param {any} histogram @param {number} from @param {number} until */
function countOf({ buckets, untilTimeMs }, from, until) {
  return buckets.reduce((/** @type {number} */ total, /** @type {any} */ bucket, /** @type {number} */ place) => {
    const end = buckets[place + 1]?.timeMs ?? untilTimeMs;
    return bucket.timeMs <= until && end > from ? total + bucket.msgCount : total;
  }, 0);
}

/**
 * Which messages are listed, in which order, from where.
 * @param {{isOpen: boolean, onOpen: () => void, isLive: boolean}} props
 */
function Filters({ isOpen, onOpen, isLive }) {
  const query = route.value.query;
  const [topic, setTopic] = useState(query.get("topic") ?? "");
  const [selector, setSelector] = useState(query.get("selector") ?? "");
  const [jump, setJump] = useState("");
  const order = query.get("order") ?? "newest";
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    changeQuery({ topic: topic.trim(), selector: selector.trim() });
  };
  const go = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (jump.trim()) changeQuery({ at: placeOf(jump.trim()), from: null, until: null, live: null });
  };
  return html`<div class="filters">
    <div class="filter-row">
      <${Segments}
        label="Order"
        value=${order}
        options=${[
          ["newest", "Newest first"],
          ["oldest", "Oldest first"],
        ]}
        onInput=${(/** @type {string} */ value) => changeQuery({ order: value === "newest" ? null : value })}
      />
      <${Button} icon="live" pressed=${isLive} onClick=${() => changeQuery({ live: isLive ? null : "1", from: null, until: null, at: null })}>Live<//>
      ${isNarrow.value && html`<${Button} icon="search" label="Filter" pressed=${isOpen} onClick=${onOpen} />`}
    </div>
    ${isOpen &&
    html`<form class="filter-form" onSubmit=${submit}>
        <${Field} label="Topics" hidden=${true} placeholder="Topics, such as orders/>" value=${topic} onInput=${setTopic} mono=${true} />
        <${Field} label="Selector" hidden=${true} placeholder="Selector, such as region = 'eu'" value=${selector} onInput=${setSelector} mono=${true} />
        <${Button} type="submit" icon="search">Filter<//>
      </form>
      <form class="filter-form jump" onSubmit=${go}>
        <${Field} label="Go to" hidden=${true} placeholder="Go to 10m, a date, #123, rmid1:…, point:…" value=${jump} onInput=${setJump} mono=${true} />
        <${Button} type="submit">Go<//>
      </form>`}
  </div>`;
}

/**
 * The replay start that a person means: an offset by its number alone, a date without a zone, a message by its replay id.
 * @param {string} text
 */
export function placeOf(text) {
  const id = /^rmid1:.*-([0-9a-f]{8})-([0-9a-f]{8})$/i.exec(text);
  if (id) return `#${BigInt(`0x${id[1]}${id[2]}`)}`;
  if (/^[\d,]+$/.test(text)) return `#${text.replaceAll(",", "")}`;
  if (/^\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?)?$/.test(text)) return words.dateStart(new Date(text.includes(":") ? text.replace(" ", "T") : `${text}T00:00`).getTime());
  return text;
}

/**
 * The rows.
 * @param {{name: string, log: any, from: number | null, until: number | null, isLive: boolean, openId: string | null}} props
 */
function Messages({ name, log, from, until, isLive, openId }) {
  const query = route.value.query;
  const order = query.get("order") === "oldest" ? "oldest" : "newest";
  const place = isLive ? "" : (query.get("at") ?? "");
  const topics = (query.get("topic") ?? "").split(/\s+/).filter(Boolean);
  const selector = query.get("selector") ?? "";
  const key = JSON.stringify([name, order, from, until, place, topics, selector, isLive]);
  const [again, setAgain] = useState(0);

  const rows = useMemo(
    () => new MessageWindow({ vpn: name, subscribe: topics, selector, order, from, until, place, isTail: isLive && order === "oldest" }),
    [key, again],
  );
  const { isPaused, setPaused, newest, error } = useLive(rows, { name, topics, selector, isLive, key: key + again });
  useEffect(() => {
    if (!isLive) void rows.open();
    return () => rows.close();
  }, [rows]);

  const { isUp } = connection.value;
  useEffect(() => void (isUp && rows.retry()), [rows, isUp]);

  const state = rows.state.value;
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const toEdge = () => {
    const element = box.current;
    if (element) element.scrollTop = order === "newest" ? 0 : element.scrollHeight;
  };
  const scrolled = () => {
    const element = box.current;
    if (!element || !isLive) return;
    const away = order === "newest" ? element.scrollTop : element.scrollHeight - element.clientHeight - element.scrollTop;
    setPaused(away > ROW_HEIGHT);
  };
  useEffect(() => {
    if (isLive && !isPaused && order === "oldest") toEdge();
  }, [state.rows, isLive, isPaused]);

  const problem = state.error ?? error;
  const behind = isPaused && log ? log.newestMsgId - newest() : 0;
  const fresh = !isLive && log && until === null && rows.bounds.last > 0 ? log.newestMsgId - rows.bounds.last : 0;
  return html`<${Panel} flush=${true} class="log-table">
    <${Table}
      label="Messages of the log"
      columns=${openId === null ? COLUMNS : COLUMNS.filter(({ key }) => key !== "type" && key !== "id")}
      rows=${state.rows}
      rowKey=${(/** @type {Row} */ row) => row.msgId}
      shift=${state.shift}
      stays=${isLive && !isPaused && order === "newest"}
      fill=${true}
      openKey=${openId === null ? null : Number(openId)}
      onOpen=${(/** @type {Row} */ row) => changeQuery({ msg: String(row.msgId) === openId ? null : row.msgId })}
      onNearEnd=${() => !state.error && void rows.more("last")}
      onNearStart=${() => !state.error && !isLive && void rows.more("first")}
      onScroll=${scrolled}
      scroller=${(/** @type {HTMLElement | null} */ element) => (box.current = element)}
      empty=${problem ? null : state.isLoading ? html`<${Loading} />` : html`<${Nothing} isLive=${isLive} isFiltered=${topics.length > 0 || selector !== "" || from !== null || until !== null} />`}
    />
    ${state.lookedAt !== null &&
    !state.isLast &&
    html`<div class="live-bar" role="status">
      <span>${state.isStopped ? "Searched" : "Searching:"} as far as #${words.number(state.lookedAt)}</span>
      <${Button} kind="quiet" onClick=${() => rows.stop(!state.isStopped)}>${state.isStopped ? "Continue" : "Stop"}<//>
    </div>`}
    ${fresh > 0 && html`<div class="newer"><${Button} onClick=${() => (toEdge(), setAgain(again + 1))}>${words.counted(fresh, "newer message")}<//></div>`}
    ${problem && html`<div class="table-problem"><${Refusal} error=${problem} /></div>`}
    ${isLive &&
    html`<div class="live-bar ${isPaused ? "paused" : ""}" role="status">
      ${isPaused
        ? html`<span>Paused${behind > 0 ? `: up to ${words.counted(behind, "newer message")}` : ""}</span>
            <${Button} icon="play" onClick=${() => (toEdge(), setPaused(false))}>Resume<//>`
        : html`<span class="live-dot" aria-hidden="true"></span><span>Live: messages appear as they are published</span>
            <${Button} kind="quiet" icon="pause" onClick=${() => setPaused(true)}>Pause<//>`}
    </div>`}
  <//>`;
}

/** @param {{isLive: boolean, isFiltered: boolean}} props */
function Nothing({ isLive, isFiltered }) {
  if (isLive) return html`<${Empty} icon="live" title="No messages yet">Messages published from now on appear here.<//>`;
  if (isFiltered) return html`<${Empty} icon="search" title="No matching message">Select another part of the log, other topics or another selector.<//>`;
  return html`<${Empty} icon="log" title="The log is empty">Messages published to a topic or a queue are logged, unless the log's topic filter excludes them. Try <code>rewind send</code>.<//>`;
}

/**
 * Rows as they come, while nobody scrolls away.
 * @param {MessageWindow} rows
 * @param {{name: string, topics: string[], selector: string, isLive: boolean, key: string}} wanted
 */
function useLive(rows, { name, topics, selector, isLive, key }) {
  const [isPaused, setPaused] = useState(false);
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const last = useRef("");
  // Nobody follows what nobody sees.
  const isSeen = isVisible.value;
  useEffect(() => {
    last.current = "";
    setPaused(false);
    setError(null);
  }, [key]);
  useEffect(() => {
    if (!isLive || isPaused || !isSeen) return;
    const abort = new AbortController();
    const trying = { signal: abort.signal, onProblem: setError };
    const begin = async () => {
      const log = await get(at`monitor/msgVpns/${name}/replayLogs/default`, {}, abort.signal);
      await rows.open();
      const problem = rows.state.peek().error;
      if (problem) throw problem;
      last.current = String(log.lastMsgId);
    };
    const run = async () => {
      if (!last.current) await tried(begin, trying);
      const path = at`monitor/msgVpns/${name}/replayLogs/default/live`;
      await follow(path, { subscribe: topics.length ? topics : null, selector: selector || null }, {
        ...trying,
        lastId: last.current,
        onEvent: (event) => {
          if (event.type === "msgs") rows.came(JSON.parse(event.data));
          last.current = event.id || last.current;
        },
      });
    };
    run().catch((problem) => abort.signal.aborted || setError(problem));
    return () => abort.abort();
  }, [rows, isLive, isPaused, isSeen]);
  return { isPaused, setPaused, error, newest: () => Number(last.current) || 0 };
}
