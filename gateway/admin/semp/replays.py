"""Replays: their records; endpoint replays, which an administrator previews, starts and cancels; and jobs, which
publish a part of the log to an address or send dead letters back.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

from fastapi import Depends, Query, Request
from pydantic import Field
from typing_extensions import TypedDict

from amqp_ext.replay_start import OPTION, Missing, ReplayStart, StartKind, parse_text, with_modifiers
from gateway.admin import rights
from gateway.admin.administrators import Administrator, administrator_of
from gateway.admin.operations import Tree
from gateway.admin.semp.endpoints import COLLECTIONS, Collection, OfQueue
from gateway.admin.semp.envelope import Attributes, Body, InVpn, ListAnswer, SempError, Shown, resource
from gateway.admin.semp.log import Seconds
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import (
    LOG_NAME,
    Name,
    OfLog,
    OfVpn,
    check_log,
    replay_id,
    resources_of,
    while_waiting,
)
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.model import COPY, DEAD_RETURN, ReplayRecord
from gateway.vpn.jobs.dead_return import count_dead
from gateway.vpn.jobs.job import Job, Progress
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.replay_preview import Brought, Preview

_MONITOR = Tree("monitor")
_ACTION = Tree("action")

_Asking = Annotated[Administrator, Depends(administrator_of)]

# --- on record --------------------------------------------------------------------------------------------------


_State: TypeAlias = Literal[
    "initializing", "active", "pending-complete", "running", "paused", "complete", "cancelled", "failed"
]


class _Listed(NamedTuple):
    """The record of a replay, with its progress while it runs."""

    record: ReplayRecord
    vpn: str
    progress: Progress


_REPLAY: Final = Shown[_Listed](
    {
        "sourceQueueName": (str, lambda one: one.record.source),
        "limit": (int, lambda one: one.record.limit),
        "endMsgId": (int, lambda one: one.record.end),
        "msgRate": (float, lambda one: round(one.progress.per_second, 1)),
        "secondsLeft": (
            float | None,
            lambda one: None if one.progress.seconds_left is None else round(one.progress.seconds_left, 1),
        ),
        "msgVpnName": (str, lambda one: one.vpn),
        "replayName": (str, lambda one: one.record.name),
        "replayNumber": (int, lambda one: one.record.number),
        "kind": (Literal["endpoint", "copy", "dead-return"], lambda one: one.record.kind),
        "requester": (str, lambda one: one.record.requester or "anonymous"),
        "start": (str, lambda one: one.record.start),
        "until": (str, lambda one: one.record.until),
        "subscriptions": (list[str], lambda one: list(one.record.subscriptions)),
        "selector": (str, lambda one: one.record.selector),
        "target": (str, lambda one: one.record.target),
        "replayTarget": (str, lambda one: one.record.remote),
        "rate": (float | None, lambda one: one.record.rate),
        "speed": (float | None, lambda one: one.record.speed),
        "state": (_State, lambda one: one.record.state),
        "positionMsgId": (int, lambda one: one.record.position),
        "readMsgCount": (int, lambda one: one.record.read),
        "sentMsgCount": (int, lambda one: one.record.sent),
        "sentByteCount": (int, lambda one: one.record.size_bytes),
        "startedTimeMs": (int, lambda one: one.record.started_ms),
        "endedTimeMs": (int | None, lambda one: one.record.ended_ms or None),
        "outcome": (str, lambda one: one.record.outcome),
    }
)
REPLAY: Final = resource("Replay", _REPLAY)


@_MONITOR.list("/replays", rights.WHOLE_VPN, REPLAY)
async def replays(request: Request, administration: OfVpn, paging: Pages) -> ListAnswer:
    """Ours: running and past replays, the oldest first."""
    records, vpn = administration.replay_records(), administration.vpn
    async with resources_of(request).listing.page():
        found = {f"{record.number:019}": record for record in records}
        return await paging.answer(found, lambda key: _replay(found[key], vpn))


@_MONITOR.get("/replays/{name}", rights.SEEN_REPLAY, REPLAY)
async def replay(administration: OfVpn, name: Name) -> Attributes:
    """Ours: one replay."""
    return _replay(administration.replay_records().get(name), administration.vpn)


def _replay(record: ReplayRecord, vpn: MessageVpn) -> Attributes:
    return _REPLAY.of(_Listed(record, vpn.name, vpn.jobs.progress(record.name)))


# --- to an endpoint ---------------------------------------------------------------------------------------------


class StartReplay(Body):
    """Where a replay starts; without a start, at the beginning of the log."""

    replayLogName: str = LOG_NAME
    """There is one log."""
    fromTime: Seconds | None = None
    """Seconds since the epoch, inclusive."""
    afterMsg: str | None = None
    """The replay starts after this `replicationGroupMsgId` (`rmid1:…`)."""
    start: str | None = Field(
        None,
        description="Ours: any start: `beginning`, `last`, `last:100`, a date, `10m`, `rmid1:…`, `#123`, "
        "`point:<name>`, `message-id:<id>`, `match:<selector>`.",
    )
    missing: Literal["fail", "clamp"] = "fail"
    """Ours: if the start is not, or no longer, in the log, `clamp` starts at the nearest message that is."""
    keepUnlogged: bool = False
    """Ours: messages on the endpoint that the log does not have stay, in their place among the replayed ones."""

    def place(self) -> ReplayStart:
        """The start.

        Raises:
            SempError: INVALID_PARAMETER, there are several starts, or ``afterMsg`` is not a replay id.
            amqp_ext.replay_start.ReplayStartError: The text is not a replay start.
        """
        return replace(self._start(), missing=Missing(self.missing))

    def _start(self) -> ReplayStart:
        check_log(self.replayLogName)
        given = [name for name in ("fromTime", "afterMsg", "start") if getattr(self, name) is not None]
        if len(given) > 1:
            raise SempError(
                "INVALID_PARAMETER",
                f"A replay has one start; this one has {' and '.join(given)}.",
            )
        if self.fromTime is not None:
            return ReplayStart(StartKind.DATE, self.fromTime * 1_000)
        if self.afterMsg is not None:
            return ReplayStart(StartKind.AFTER, replay_id("afterMsg", self.afterMsg))
        return parse_text(self.start) if self.start is not None else ReplayStart(StartKind.BEGINNING)


class GuardedReplay(StartReplay):
    """A replay to be started, and its conditions."""

    replayName: Annotated[str, Field(max_length=200)] | None = None
    """Ours: the name of the replay in its record, and on its messages (`x-opt-replay-name`)."""
    expectedMsgCount: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Ours: the replay is refused unless it brings this many messages (`msgCount` of the preview)."""
    ifLossAtMost: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        None,
        description="Ours: the replay is refused if it drops more messages than this that neither log nor archive has "
        "(`lossMsgCount` of the preview).",
    )


class CancelReplay(Body):
    """How a replay is ended."""

    forceComplete: bool = False
    """Keep the messages that were replayed so far on the endpoint."""


class _TopicCount(TypedDict):
    topic: str
    msgCount: int
    msgSpoolUsage: int


_PREVIEW: Final = Shown[Preview](
    {
        "firstMsgId": (int, lambda preview: preview.resolved.first),
        "firstMsgTimeMs": (int | None, lambda preview: preview.resolved.time_ms),
        "lastMsgTimeMs": (int | None, lambda preview: preview.brought.last_ms),
        "msgCount": (int, lambda preview: preview.brought.messages),
        "msgSpoolUsage": (int, lambda preview: preview.brought.size_bytes),
        "topics": (list[_TopicCount], lambda preview: _topic_counts(preview.brought)),
        "droppedMsgCount": (int, lambda preview: preview.dropped),
        "lossMsgCount": (int, lambda preview: preview.loss.messages),
        "lossMsgSpoolUsage": (int, lambda preview: preview.loss.size_bytes),
        "keptMsgCount": (int, lambda preview: preview.kept.messages),
        "keptMsgSpoolUsage": (int, lambda preview: preview.kept.size_bytes),
        "detachedClientCount": (int, lambda preview: preview.client_count),
        "detachedClients": (list[str], lambda preview: list(preview.clients)),
    }
)
STARTED: Final = resource("ReplayStarted", firstMsgId=int, firstMsgTimeMs=int | None, replayName=str)
PREVIEW: Final = resource("ReplayPreview", _PREVIEW)


def _add_replays(collection: Collection) -> None:
    path, right = f"/{collection.name}/{{name}}", collection.right
    Found = Annotated[Endpoint, Depends(collection.find)]

    @_ACTION.put(f"{path}/startReplay", right, STARTED)
    async def start_replay(
        administration: OfVpn, endpoint: Found, body: GuardedReplay, administrator: _Asking
    ) -> Attributes:
        """Replay the log to it."""
        resolved = await administration.start_replay(
            endpoint,
            body.place(),
            requester=administrator.name or "anonymous",
            name=body.replayName or "",
            expected=body.expectedMsgCount,
            loss_at_most=body.ifLossAtMost,
            keep_unlogged=body.keepUnlogged,
        )
        replay = endpoint.replay
        return {
            "firstMsgId": resolved.first,
            "firstMsgTimeMs": resolved.time_ms,
            "replayName": replay.name if replay is not None else "",
        }

    @_ACTION.put(f"{path}/previewReplay", right, PREVIEW)
    async def preview_replay(
        request: Request, administration: OfVpn, endpoint: Found, body: StartReplay
    ) -> Attributes:
        """Ours: what a replay would bring; nothing is changed."""
        preview = await while_waiting(
            request, administration.preview(endpoint, body.place(), keep_unlogged=body.keepUnlogged)
        )
        return _PREVIEW.of(preview)

    @_ACTION.put(f"{path}/cancelReplay", right)
    async def cancel_replay(administration: OfVpn, endpoint: Found, body: CancelReplay | None = None) -> None:
        """End the running replay."""
        force = body is not None and body.forceComplete
        await administration.cancel_replay(endpoint, force_complete=force)


def _topic_counts(brought: Brought) -> list[_TopicCount]:
    return [
        {"topic": topic, "msgCount": count, "msgSpoolUsage": size}
        for topic, (count, size) in brought.topics.items()
    ]


for _collection in COLLECTIONS:
    _add_replays(_collection)


# --- jobs -------------------------------------------------------------------------------------------------------

Rate = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=10_000)]
ReplayName = Annotated[str, Field(max_length=200)]


class StartCopy(Body):
    """Which part of the log is published again, and to which address."""

    start: Text = "beginning"
    """Any start that `startReplay` takes; a copy cannot start at `live`."""
    until: Text | None = None
    """The last message: `now`, a date, `#123` or `rmid1:…`. By default, and at most, the newest message now."""
    missing: Literal["fail", "clamp"] = "fail"
    """If the start is not, or no longer, in the log, `clamp` starts at the nearest message that is."""
    subscriptions: list[Text] = Field([])
    """Topic patterns; without any, all topics. A leading `!` makes a pattern an exception."""
    selector: Text = ""
    """A selector that the messages have to match."""
    target: Text
    """An address: `queue://NAME` or `topic://TOPIC`."""
    replayTarget: ReplayName = ""
    """The label of the configured `replay_target` that has the address; empty for this Message VPN."""
    rate: Rate | None = None
    """Messages a second, at most."""
    speed: Rate | None = None
    """How fast, as a factor of the pace at which the messages were published."""
    name: ReplayName = ""
    """The job's name; by default it is made of the requester and the time."""


class ReturnDead(Body):
    """Which dead letters are sent back, and to which address."""

    selector: Text = ""
    """A selector that the messages have to match."""
    target: Text = ""
    """An address; by default, the endpoint where each message died."""
    rate: Rate | None = None
    """Messages a second, at most."""
    limit: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """How many messages at most; 0 is all."""
    name: ReplayName = ""
    """The job's name; by default it is made of the requester and the time."""


class OfReplay(Body):
    """A job."""

    replayName: ReplayName
    """Its name."""


BEGUN: Final = resource("ReplayJobBegun", replayName=str, firstMsgId=int, lastMsgId=int)
DEAD_GROUP: Final = resource(
    "DeadMsgGroup",
    InVpn,
    queueName=str,
    deadReason=str,
    deadEndpointName=str,
    msgCount=int,
    msgSpoolUsage=int,
)

_Command: TypeAlias = Callable[[Job, str], Awaitable[None]]
"""A command to a job, by the administrator of this name."""


@_ACTION.put("/replayLogs/{log}/startCopy", rights.COPIED, BEGUN)
async def start_copy(
    request: Request, administration: OfLog, body: StartCopy, administrator: _Asking
) -> Attributes:
    """Ours: publish a part of the log to an address, as a job."""
    place = replace(parse_text(body.start), missing=Missing(body.missing))
    if body.until is not None:
        place = with_modifiers(place, {"until": body.until}, OPTION)
    wanted = ReplayRecord(
        0,
        body.name,
        COPY,
        administrator.name,
        body.start,
        body.until or "",
        tuple(body.subscriptions),
        body.selector,
        body.target,
        body.rate,
        body.speed,
        remote=body.replayTarget,
    )
    # The search for a start may take long.
    record = await while_waiting(request, administration.vpn.jobs.copy(wanted, place))
    return {"replayName": record.name, "firstMsgId": record.position, "lastMsgId": record.end - 1}


def _add_command(name: str, summary: str, command: _Command) -> None:
    @_ACTION.put(f"/replayLogs/{{log}}/{name}", rights.OWN_REPLAY, summary=summary)
    async def tell(administration: OfLog, body: OfReplay, administrator: _Asking) -> None:
        await command(administration.vpn.jobs.find(body.replayName), administrator.name)


_add_command("pauseReplay", "Ours: pause a job", lambda job, by: job.pause())
_add_command("resumeReplay", "Ours: resume a paused job", lambda job, by: job.resume())
_add_command("cancelReplay", "Ours: end a job; what it has published stays", lambda job, by: job.cancel(by))


@_ACTION.put("/queues/{name}/returnDead", rights.RETURNED, BEGUN)
async def return_dead(
    administration: OfVpn, name: Name, body: ReturnDead, administrator: _Asking
) -> Attributes:
    """Ours: send dead letters back to where they died, or elsewhere, as a job."""
    wanted = ReplayRecord(
        0,
        body.name,
        DEAD_RETURN,
        administrator.name,
        selector=body.selector,
        target=body.target,
        rate=body.rate,
        source=name,
        limit=body.limit,
    )
    record = await administration.vpn.jobs.return_dead(wanted)
    return {"replayName": record.name, "firstMsgId": 0, "lastMsgId": record.end - 1}


@_MONITOR.list("/queues/{name}/deadMsgs", rights.QUEUE, DEAD_GROUP)
async def dead(
    request: Request,
    administration: OfVpn,
    endpoint: OfQueue,
    paging: Pages,
    by: Annotated[
        Literal["reason", "endpoint", "both"], Query(description="Ours: what the letters are grouped by.")
    ] = "both",
) -> ListAnswer:
    """Ours: the dead letters of a queue, counted by reason and by endpoint."""
    groups = await while_waiting(request, count_dead(administration.vpn.listing, endpoint, by))
    found = {
        f"{reason}\n{origin}": {
            "msgVpnName": administration.vpn.name,
            "queueName": endpoint.name,
            "deadReason": reason,
            "deadEndpointName": origin,
            "msgCount": group.messages,
            "msgSpoolUsage": group.size_bytes,
        }
        for (reason, origin), group in groups.items()
    }
    return await paging.answer(found, found.get)


ROUTES: Final = (*_MONITOR.routes, *_ACTION.routes)
