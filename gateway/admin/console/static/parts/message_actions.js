// What is done with one message: it is copied to a queue, or its content is erased.

import { at, put } from "../api.js";
import { html, useState } from "../html.js";
import * as words from "../words.js";
import { Note, Refusal } from "./basics.js";
import { Confirm } from "./dialog.js";
import { endpointsOf, pathOf } from "./endpoints.js";
import { Check, Choice, Field } from "./fields.js";
import { usePolled } from "./polled.js";
import { toast } from "./toasts.js";

/** @param {{vpn: string, message: any, onClose: () => void}} props */
export function CopyMessage({ vpn, message, onClose }) {
  const endpoints = usePolled(() => endpointsOf(vpn), [vpn], 0);
  const [to, setTo] = useState("");
  const found = endpoints.data ?? [];
  const chosen = found[Number(to)];
  return html`<${Confirm}
    title="Copy message #${message.msgId} to a queue"
    action="Copy"
    disabled=${!chosen}
    onClose=${onClose}
    onDo=${async () => {
      if (!chosen) return;
      await put(`${pathOf("action", vpn, chosen)}/copyMsgFromReplayLog`, { replicationGroupMsgId: message.replicationGroupMsgId });
      toast(`Message #${message.msgId} was copied to ${chosen.name}.`);
    }}
  >
    <p>The message is put at the end, as it is in the log. Consumers get it like any other.</p>
    <${Refusal} error=${endpoints.error} />
    ${endpoints.data && found.length === 0 && html`<${Note}>There is no queue and no topic endpoint.<//>`}
    <${Choice}
      label="Queue or topic endpoint"
      value=${to}
      options=${[["", "Choose one"], ...found.map((one, place) => [String(place), one.collection === "queues" ? one.name : `${one.name} (topic endpoint)`])]}
      onInput=${setTo}
    />
  <//>`;
}

/** @param {{vpn: string, message: any, onClose: () => void, onDone: () => void}} props */
export function EraseMessage({ vpn, message, onClose, onDone }) {
  const path = at`action/msgVpns/${vpn}/replayLogs/default/redactMsg`;
  const [reason, setReason] = useState("");
  const [isSure, setSure] = useState(false);
  const preview = usePolled(() => put(path, { msgId: [message.msgId], preview: true }), [vpn, message.msgId], 0);
  const copies = preview.data?.deadMsgIds?.length ?? 0;
  return html`<${Confirm}
    title="Erase the content of message #${message.msgId}?"
    action="Erase"
    danger=${true}
    typed=${String(message.msgId)}
    disabled=${!preview.data || !isSure}
    onClose=${onClose}
    onDo=${async () => {
      const done = await put(path, { msgId: [message.msgId], reason: reason.trim(), expectedMsgCount: preview.data?.msgCount });
      toast(`${words.counted(done.msgCount, "message")} erased.`);
      onDone();
    }}
  >
    <p>
      Body, properties and annotations are overwritten, wherever this gateway has them. Offset, time and topic stay. This
      cannot be undone. Copies that consumers, archives and backups have are not erased.
    </p>
    <${Refusal} error=${preview.error} />
    ${preview.data &&
    html`<${Note}>
      <b>${words.counted(preview.data.msgCount, "message")}</b> would be erased${copies ? `, ${words.counted(copies, "copy", "copies")} among the dead letters included` : ""}.
    <//>`}
    <${Field} label="Reason" value=${reason} onInput=${setReason} hint="Stored in place of the content; everybody can read it." />
    <${Check} label="I know that this cannot be undone" checked=${isSure} onInput=${setSure} />
  <//>`;
}
