"""
Replays: those on record, those that an administrator begins on an endpoint, and jobs, which publish a part of the log
to an address or send dead letters back. As at Solace, actions are PUT.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from amqp_ext.replay_id import ReplayId, ReplayIdError, parse_replay_id
from amqp_ext.replay_start import MAX_DATE_MS, OPTION, Missing, ReplayStart, StartKind, parse_text
from amqp_ext.replay_start.filter_value import with_modifiers
from gateway.admin import rights
from gateway.admin.administrators import Administrator, administrator_of
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.envelope import (
    Answer,
    InVpn,
    SempError,
    answer,
    done,
    list_answer,
    listed,
    one,
    resource,
)
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import (
    LOG_NAME,
    QUEUES,
    TOPIC_ENDPOINTS,
    Name,
    check_log,
    clients_named,
    endpoint_of,
    resources_of,
    vpn_of,
    while_waiting,
)
from gateway.admin.semp.tree import Tree
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ReplayRecord
from gateway.vpn.jobs.dead_return import count_dead
from gateway.vpn.jobs.job import Job, Progress
from gateway.vpn.jobs.jobs import CopyRequest, ReturnRequest
from gateway.vpn.replay_preview import Preview


class _Replay(InVpn):
    replayName: str
    replayNumber: int
    kind: Literal["endpoint", "copy", "dead-return"]
    requester: str
    start: str
    until: str
    subscriptions: list[str]
    selector: str
    target: str
    replayTarget: str
    rate: float | None
    speed: float | None
    state: Literal[
        "initializing",
        "active",
        "pending-complete",
        "running",
        "paused",
        "complete",
        "cancelled",
        "failed",
    ]
    positionMsgId: int
    readMsgCount: int
    sentMsgCount: int
    sentByteCount: int
    startedTimeMs: int
    endedTimeMs: int | None
    outcome: str
    sourceQueueName: str
    limit: int
    endMsgId: int
    msgRate: float
    secondsLeft: float | None


REPLAY: Final = resource("Replay", _Replay)


def replay_attributes(record: ReplayRecord, vpn: str, progress: Progress) -> dict[str, Any]:
    """One, as it is shown; how quickly a job gets on, by what it did in the last seconds."""
    left = progress.seconds_left
    return {
        "sourceQueueName": record.source,
        "limit": record.limit,
        "endMsgId": record.end,
        "msgRate": round(progress.per_second, 1),
        "secondsLeft": None if left is None else round(left, 1),
        "msgVpnName": vpn,
        "replayName": record.name,
        "replayNumber": record.number,
        "kind": record.kind,
        "requester": record.requester or "anonymous",
        "start": record.start,
        "until": record.until,
        "subscriptions": list(record.subscriptions),
        "selector": record.selector,
        "target": record.target,
        "replayTarget": record.remote,
        "rate": record.rate,
        "speed": record.speed,
        "state": record.state,
        "positionMsgId": record.position,
        "readMsgCount": record.read,
        "sentMsgCount": record.sent,
        "sentByteCount": record.size_bytes,
        "startedTimeMs": record.started_ms,
        "endedTimeMs": record.ended_ms or None,
        "outcome": record.outcome,
    }


def replay_routes() -> list[LazyRoute]:
    """``/monitor/msgVpns/{vpn}/replays``."""
    tree = Tree("monitor", "/msgVpns")
    path = "/{vpn}/replays"

    @tree.get(
        path,
        rights.WHOLE_VPN,
        summary="Ours: replays under way and of the past, the oldest first",
        responses=listed(REPLAY),
    )
    async def replays(request: Request, vpn: Name, paging: Pages) -> Answer:
        administration = vpn_of(request, vpn)
        records, jobs = administration.replay_records(), administration.vpn.jobs
        async with resources_of(request).listing.page():
            found = {f"{record.number:019}": record for record in records}
            page, cursor = await paging.page(
                found, lambda key: replay_attributes(found[key], vpn, jobs.progress(found[key].name))
            )
        return list_answer(request, page, cursor, len(found))

    @tree.get(path + "/{name}", rights.SEEN_REPLAY, summary="Ours: one replay", responses=one(REPLAY))
    async def replay(request: Request, vpn: Name, name: Name, paging: Pages) -> Answer:
        administration = vpn_of(request, vpn)
        record = administration.replay_records().get(name)
        progress = administration.vpn.jobs.progress(name)
        return answer(request, paging.shown(replay_attributes(record, vpn, progress)))

    return tree.routes


Seconds = Annotated[int, Field(ge=0, le=MAX_DATE_MS // 1_000)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StartReplay(_Body):
    """Where a replay starts; without any of them, at the beginning of the log."""

    replayLogName: str = Field(LOG_NAME, description="There is one log.")
    fromTime: Seconds | None = Field(None, description="Seconds since the epoch, inclusive.")
    afterMsg: str | None = Field(None, description="After this `replicationGroupMsgId` (`rmid1:…`).")
    start: str | None = Field(
        None,
        description="Ours: any start: `beginning`, `last`, `last:100`, a date, `10m`, `rmid1:…`, `#123`, "
        "`point:<name>`, `message-id:<id>`, `match:<selector>`.",
    )
    missing: Literal["fail", "clamp"] = Field(
        "fail",
        description="Ours: `clamp` takes the nearest place where the start is not in the log (any more).",
    )

    keepUnlogged: bool = Field(
        False,
        description="Ours: what lies there and the log does not have stays, in its place among what is replayed.",
    )

    def place(self) -> ReplayStart:
        """The start.

        Raises:
            SempError: INVALID_PARAMETER, there are several, or one is no replay id.
            amqp_ext.replay_start.ReplayStartError: The text is no start.
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
            return ReplayStart(StartKind.AFTER, _replay_id("afterMsg", self.afterMsg))
        return parse_text(self.start) if self.start is not None else ReplayStart(StartKind.BEGINNING)


class GuardedReplay(StartReplay):
    """A replay that is to begin, and what it must be."""

    replayName: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="Ours: what it is called on record, and on its messages (`x-opt-replay-name`)."
    )
    expectedMsgCount: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        None,
        description="Ours: how many messages it has to bring (`msgCount` of the preview), else it is refused.",
    )
    ifLossAtMost: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        None,
        description="Ours: how many messages may be dropped that neither log nor archive has (`lossMsgCount` of the "
        "preview), else it is refused.",
    )


class CancelReplay(_Body):
    """How a replay is ended."""

    forceComplete: bool = Field(False, description="Keep on the endpoint what was replayed so far.")


class CopyMessage(_Body):
    """The message to be copied."""

    sourceReplayLogName: str = Field(LOG_NAME, description="There is one log.")
    replicationGroupMsgId: str = Field(description="`rmid1:…`")


class Trim(_Body):
    """Before what the log is trimmed."""

    olderThanTime: Seconds | None = Field(None, description="Seconds since the epoch.")
    before: str | None = Field(
        None, description="Ours: before the place of a start, such as `#123` or `point:release`."
    )

    def place(self) -> ReplayStart:
        """The start before which the log is trimmed.

        Raises:
            SempError: INVALID_PARAMETER, there is none, or there are two.
            amqp_ext.replay_start.ReplayStartError: The text is no start.
        """
        if (self.olderThanTime is None) is (self.before is None):
            raise SempError("INVALID_PARAMETER", "Give one of olderThanTime and before.")
        if self.olderThanTime is not None:
            return ReplayStart(StartKind.DATE, self.olderThanTime * 1_000)
        assert self.before is not None
        return parse_text(self.before)


class Archived(_Body):
    """How much of the log an archive holds."""

    msgId: Annotated[int, Field(ge=0, lt=2**63)] = Field(description="The last id in it.")
    generation: Annotated[int, Field(ge=0, lt=2**63)] = Field(description="Of the log that was archived.")


class Nothing(_Body):
    """An action without a choice."""


class _Trimmed(TypedDict):
    firstMsgId: int


class _UpTo(TypedDict):
    archivedMsgId: int


class _Disconnected(TypedDict):
    disconnectedCount: int


class _Place(TypedDict):
    firstMsgId: int
    firstMsgTimeMs: int | None


class _Started(_Place):
    replayName: str


class _TopicCount(TypedDict):
    topic: str
    msgCount: int
    msgSpoolUsage: int


class _Preview(_Place):
    lastMsgTimeMs: int | None
    msgCount: int
    msgSpoolUsage: int
    topics: list[_TopicCount]
    droppedMsgCount: int
    lossMsgCount: int
    lossMsgSpoolUsage: int
    keptMsgCount: int
    keptMsgSpoolUsage: int
    detachedClientCount: int
    detachedClients: list[str]


class _Purged(TypedDict):
    deletedMsgCount: int


TRIMMED: Final = resource("Trimmed", _Trimmed)
ARCHIVED: Final = resource("ArchivedUpTo", _UpTo)
DISCONNECTED: Final = resource("Disconnected", _Disconnected)
STARTED: Final = resource("ReplayStarted", _Started)
PREVIEW: Final = resource("ReplayPreview", _Preview)
PURGED: Final = resource("MsgsDeleted", _Purged)


def _replay_id(attribute: str, text: str) -> ReplayId:
    try:
        return parse_replay_id(text)
    except ReplayIdError as error:
        raise SempError("INVALID_PARAMETER", f"The attribute {attribute!r} is wrong: {error}") from None


def action_routes() -> list[LazyRoute]:
    """``/action/msgVpns/{vpn}/…``."""
    tree = Tree("action", "/msgVpns/{vpn}")
    for collection, kinds, right in (
        ("queues", QUEUES, rights.QUEUE),
        ("topicEndpoints", TOPIC_ENDPOINTS, rights.TOPIC_ENDPOINT),
    ):
        _add_common(tree, collection, kinds, right)

    @tree.put(
        "/replayLogs/{log}/trimLoggedMsgs",
        rights.WHOLE_VPN,
        summary="Trim the log, or a part of it",
        responses=one(TRIMMED),
    )
    async def trim(request: Request, vpn: Name, log: Name, body: Trim) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(log)
        first_id = await administration.trim_before(body.place())
        return answer(request, {"firstMsgId": first_id})

    @tree.put(
        "/replayLogs/{log}/archivedUpTo",
        rights.WHOLE_VPN,
        summary="Ours: an archive holds the log up to a message",
        responses=one(ARCHIVED),
    )
    async def archived(request: Request, vpn: Name, log: Name, body: Archived) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(log)
        return answer(request, {"archivedMsgId": await administration.archived(body.msgId, body.generation)})

    @tree.put(
        "/clients/{client}/disconnect",
        rights.WHOLE_VPN,
        summary="Close a client's connections",
        responses=one(DISCONNECTED),
    )
    async def disconnect(request: Request, vpn: Name, client: Name, body: Nothing | None = None) -> Answer:
        found = clients_named(request, vpn, client)
        for connection in found:
            connection.stop(Refused(ErrorCode.CONNECTION_FORCED, "disconnected by an administrator"))
        return answer(request, {"disconnectedCount": len(found)})

    return tree.routes


def _previewed(preview: Preview) -> _Preview:
    brought, loss = preview.brought, preview.loss
    return {
        "firstMsgId": preview.resolved.first,
        "firstMsgTimeMs": preview.resolved.time_ms,
        "lastMsgTimeMs": brought.last_ms,
        "msgCount": brought.messages,
        "msgSpoolUsage": brought.size_bytes,
        "topics": [
            {"topic": topic, "msgCount": count, "msgSpoolUsage": size}
            for topic, (count, size) in brought.topics.items()
        ],
        "droppedMsgCount": preview.dropped,
        "lossMsgCount": loss.messages,
        "lossMsgSpoolUsage": loss.size_bytes,
        "keptMsgCount": preview.kept.messages,
        "keptMsgSpoolUsage": preview.kept.size_bytes,
        "detachedClientCount": preview.client_count,
        "detachedClients": list(preview.clients),
    }


def _add_common(tree: Tree, collection: str, kinds: tuple[EndpointKind, ...], right: rights.Right) -> None:
    path = f"/{collection}/{{name}}"

    @tree.put(f"{path}/startReplay", right, summary="Replay the log to it", responses=one(STARTED))
    async def start_replay(
        request: Request,
        vpn: Name,
        name: Name,
        body: GuardedReplay,
        administrator: Annotated[Administrator, Depends(administrator_of)],
    ) -> Answer:
        administration = vpn_of(request, vpn)
        endpoint = endpoint_of(administration, name, kinds)
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
        return answer(
            request,
            {
                "firstMsgId": resolved.first,
                "firstMsgTimeMs": resolved.time_ms,
                "replayName": replay.name if replay is not None else "",
            },
        )

    @tree.put(
        f"{path}/previewReplay",
        right,
        summary="Ours: what a replay would bring, without doing it",
        responses=one(PREVIEW),
    )
    async def preview_replay(request: Request, vpn: Name, name: Name, body: StartReplay) -> Answer:
        administration = vpn_of(request, vpn)
        endpoint = endpoint_of(administration, name, kinds)
        preview = await while_waiting(
            request, administration.preview(endpoint, body.place(), keep_unlogged=body.keepUnlogged)
        )
        return answer(request, _previewed(preview))

    @tree.put(f"{path}/cancelReplay", right, summary="End the replay under way", responses=done)
    async def cancel_replay(
        request: Request, vpn: Name, name: Name, body: CancelReplay | None = None
    ) -> Answer:
        administration = vpn_of(request, vpn)
        force = body is not None and body.forceComplete
        await administration.cancel_replay(endpoint_of(administration, name, kinds), force_complete=force)
        return answer(request)

    @tree.put(
        f"{path}/deleteMsgs", right, summary="Drop what lies on it; the log keeps it", responses=one(PURGED)
    )
    async def delete_messages(request: Request, vpn: Name, name: Name, body: Nothing | None = None) -> Answer:
        administration = vpn_of(request, vpn)
        count = await administration.purge(endpoint_of(administration, name, kinds))
        return answer(request, {"deletedMsgCount": count})

    @tree.put(
        f"{path}/copyMsgFromReplayLog", right, summary="Put one message of the log on it", responses=done
    )
    async def copy_message(
        request: Request,
        vpn: Name,
        name: Name,
        body: CopyMessage,
        administrator: Annotated[Administrator, Depends(administrator_of)],
    ) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(body.sourceReplayLogName)
        endpoint = endpoint_of(administration, name, kinds)
        wanted = _replay_id("replicationGroupMsgId", body.replicationGroupMsgId)
        if wanted.generation != administration.vpn.log.generation:
            raise Refused(ErrorCode.LOG_MODIFIED, f"{wanted} is of another generation of the log")
        matches = endpoint.topics.matches

        def check(topic: str) -> None:
            if not matches(topic):  # a replay would not bring it
                rights.require_reading(administrator, topic)

        await administration.copy_message(endpoint, min(wanted.number, 2**63 - 1), check)
        return answer(request)


Rate = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=10_000)]
ReplayName = Annotated[str, Field(max_length=200)]


class _JobBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StartCopy(_JobBody):
    """What of the log is published again, and where."""

    start: Text = Field(
        "beginning", description="Any start, as `startReplay` has it; `live` is none for a copy."
    )
    until: Text | None = Field(
        None,
        description="The last message: `now`, a date, `#123` or `rmid1:…`. Without, and at most, what the log has now.",
    )
    missing: Literal["fail", "clamp"] = Field(
        "fail", description="`clamp` takes the nearest place where the start is not in the log (any more)."
    )
    subscriptions: list[Text] = Field(
        [], description="Topic patterns; none for all. `!` in front leaves out what the others match."
    )
    selector: Text = Field("", description="A selector that the messages match.")
    target: Text = Field(description="An address: `queue://NAME` or `topic://TOPIC`.")
    replayTarget: ReplayName = Field(
        "",
        description="Whose address that is: the label of a `replay_target` of the configuration. Without, this Message "
        "VPN's.",
    )
    rate: Rate | None = Field(None, description="Messages a second, at most.")
    speed: Rate | None = Field(None, description="A factor of the pace at which they were published.")
    name: ReplayName = Field("", description="What it is called; without, by who asks and when.")


class ReturnDead(_JobBody):
    """Which dead letters are sent back, and where."""

    selector: Text = Field("", description="A selector that the messages match.")
    target: Text = Field("", description="An address; without, where each of them died.")
    rate: Rate | None = Field(None, description="Messages a second, at most.")
    limit: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="So many at most; 0 for all.")
    name: ReplayName = Field("", description="What it is called; without, by who asks and when.")


class OfReplay(_JobBody):
    """A job."""

    replayName: ReplayName = Field(description="Its name.")


class _Begun(TypedDict):
    replayName: str
    firstMsgId: int
    lastMsgId: int


class _DeadGroup(InVpn):
    queueName: str
    deadReason: str
    deadEndpointName: str
    msgCount: int
    msgSpoolUsage: int


BEGUN: Final = resource("ReplayJobBegun", _Begun)
DEAD_GROUP: Final = resource("DeadMsgGroup", _DeadGroup)

_Command: TypeAlias = Callable[[Job, str], Awaitable[None]]
"""What is done with a job, by the administrator of this name."""

_Asking = Annotated[Administrator, Depends(administrator_of)]


def job_routes() -> list[LazyRoute]:
    """``/action/msgVpns/{vpn}/replayLogs/{log}/…`` of jobs, and ``…/queues/{name}/returnDead``."""
    tree = Tree("action", "/msgVpns/{vpn}")

    @tree.put(
        "/replayLogs/{log}/startCopy",
        rights.COPIED,
        summary="Ours: publish a part of the log to an address, as a job",
        responses=one(BEGUN),
    )
    async def start_copy(
        request: Request, vpn: Name, log: Name, body: StartCopy, administrator: _Asking
    ) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(log)
        place = replace(parse_text(body.start), missing=Missing(body.missing))
        if body.until is not None:
            place = with_modifiers(place, {"until": body.until}, OPTION)
        wanted = CopyRequest(
            place,
            body.target,
            administrator.name,
            body.start,
            body.until or "",
            tuple(body.subscriptions),
            body.selector,
            body.rate,
            body.speed,
            body.name,
            body.replayTarget,
        )
        # A start that is searched for may be far away.
        record = await while_waiting(request, administration.vpn.jobs.copy(wanted))
        return answer(
            request,
            {"replayName": record.name, "firstMsgId": record.position, "lastMsgId": record.end - 1},
        )

    def declare_command(name: str, summary: str, command: _Command) -> None:
        @tree.put(f"/replayLogs/{{log}}/{name}", rights.OWN_REPLAY, summary=summary, responses=done)
        async def tell(
            request: Request, vpn: Name, log: Name, body: OfReplay, administrator: _Asking
        ) -> Answer:
            administration = vpn_of(request, vpn)
            check_log(log)
            await command(administration.vpn.jobs.find(body.replayName), administrator.name)
            return answer(request)

    declare_command("pauseReplay", "Ours: pause a job", lambda job, by: job.pause())
    declare_command("resumeReplay", "Ours: have a paused job go on", lambda job, by: job.resume())
    declare_command(
        "cancelReplay", "Ours: end a job; what it has published stays", lambda job, by: job.cancel(by)
    )

    @tree.put(
        "/queues/{name}/returnDead",
        rights.RETURNED,
        summary="Ours: send dead letters back to where they died, or elsewhere, as a job",
        responses=one(BEGUN),
    )
    async def return_dead(
        request: Request, vpn: Name, name: Name, body: ReturnDead, administrator: _Asking
    ) -> Answer:
        administration = vpn_of(request, vpn)
        record = await administration.vpn.jobs.return_dead(
            ReturnRequest(
                name, body.target, administrator.name, body.selector, body.rate, body.limit, body.name
            )
        )
        return answer(request, {"replayName": record.name, "firstMsgId": 0, "lastMsgId": record.end - 1})

    return tree.routes


def dead_letter_routes() -> list[LazyRoute]:
    """``/monitor/msgVpns/{vpn}/queues/{name}/deadMsgs``."""
    tree = Tree("monitor", "/msgVpns")

    @tree.get(
        "/{vpn}/queues/{name}/deadMsgs",
        rights.QUEUE,
        summary="Ours: what lies on a queue, counted by why and where it died",
        responses=listed(DEAD_GROUP),
    )
    async def dead(
        request: Request,
        vpn: Name,
        name: Name,
        paging: Pages,
        by: Annotated[
            Literal["reason", "endpoint", "both"], Query(description="Ours: what tells groups apart.")
        ] = "both",
    ) -> Answer:
        administration = vpn_of(request, vpn)
        running = administration.vpn
        endpoint = endpoint_of(administration, name, QUEUES)
        groups = await while_waiting(request, count_dead(running.readers, endpoint, by, running.runtime.loop))
        found = {
            f"{reason}\n{origin}": {
                "msgVpnName": vpn,
                "queueName": name,
                "deadReason": reason,
                "deadEndpointName": origin,
                "msgCount": group.messages,
                "msgSpoolUsage": group.size_bytes,
            }
            for (reason, origin), group in groups.items()
        }
        page, cursor = await paging.page(found, found.get)
        return list_answer(request, page, cursor, len(found))

    return tree.routes
