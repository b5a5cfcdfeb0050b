// What a rewind would bring, and what it would cost, before it is begun.

import { html } from "../html.js";
import * as words from "../words.js";
import { Bar, Facts, Note } from "./basics.js";

const MOST_TOPICS = 10;
const MOST_CLIENTS = 12;

/** @param {{preview: import("../rewinding.js").Preview, isCopy: boolean}} props */
export function PreviewView({ preview, isCopy }) {
  const { msgCount, bytes, firstMs, lastMs, isMore } = preview;
  if (msgCount === 0) {
    return html`<${Note} kind="warning">It would bring no messages: the log has none from there on that ${isCopy ? "match" : "match the endpoint's subscriptions"}.<//>
      <${Costs} preview=${preview} />`;
  }
  return html`<p class="preview-count">
      ${isMore ? "More than " : ""}<b>${words.counted(msgCount, "message")}</b>${bytes === null ? "" : html` <span class="soft" title="${words.number(bytes)} bytes">${words.size(bytes)}</span>`}
    </p>
    <${Facts}
      rows=${[
        firstMs !== null && ["First", words.said(firstMs, { seconds: true }), words.exactly(firstMs)],
        lastMs !== null && [isMore ? "Counted until" : "Last", words.said(lastMs, { seconds: true }), words.exactly(lastMs)],
      ]}
    />
    <${Topics} topics=${preview.topics} />
    <${Costs} preview=${preview} />`;
}

/** @param {{topics: {topic: string, msgCount: number}[]}} props */
function Topics({ topics }) {
  const most = Math.max(1, ...topics.map((one) => one.msgCount));
  const rest = topics.slice(MOST_TOPICS);
  return html`<section>
    <h3>By topic</h3>
    <ul class="plain-list bars">
      ${topics.slice(0, MOST_TOPICS).map(
        (one) =>
          html`<li key=${one.topic}>
            <span class="cut mono" title=${one.topic}>${words.oneLine(one.topic)}</span><span>${words.number(one.msgCount)}</span>
            <${Bar} value=${one.msgCount} most=${most} label=${one.topic} text=${words.counted(one.msgCount, "message")} />
          </li>`,
      )}
    </ul>
    ${rest.length > 0 && html`<p class="soft">and ${words.counted(rest.length, "more topic")}</p>`}
  </section>`;
}

/** What is dropped, lost, and who is detached. @param {{preview: import("../rewinding.js").Preview}} props */
function Costs({ preview: { dropped, lost, lostBytes, kept, detached, clients } }) {
  return html`${dropped > 0 && html`<${Note}><b>${words.counted(dropped, "message")}</b> on it now ${dropped === 1 ? "is" : "are"} dropped${lost === 0 ? "; the log has all of them" : ""}.<//>`}
    ${lost > 0 && html`<${Note} kind="error"><b>${words.counted(lost, "message")}</b> would be lost for good, ${words.size(lostBytes)}: the log does not have ${lost === 1 ? "it" : "them"}.<//>`}
    ${kept > 0 && html`<${Note}><b>${words.counted(kept, "message")}</b> that the log does not have ${kept === 1 ? "stays" : "stay"}, in ${kept === 1 ? "its place" : "their places"}.<//>`}
    ${detached > 0 &&
    html`<${Note} kind="warning">
      <b>${words.counted(detached, "consumer")}</b> ${detached === 1 ? "is" : "are"} detached, and ${detached === 1 ? "has" : "have"} to attach again:
      <span class="mono"> ${clients.slice(0, MOST_CLIENTS).map(words.oneLine).join(", ")}${detached > MOST_CLIENTS ? " …" : ""}</span>
    <//>`}`;
}
