"""What an administrator does to endpoints, the log and clients. As at Solace, actions are PUT."""

from dataclasses import replace
from typing import Annotated, Final, Literal

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from amqp_ext.replay_id import ReplayId, ReplayIdError, parse_replay_id
from amqp_ext.replay_start import MAX_DATE_MS, Missing, ReplayStart, StartKind, parse_text
from gateway.admin import rights
from gateway.admin.administrators import Administrator, administrator_of
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import done, one, resource
from gateway.admin.semp.envelope import Answer, SempError, answer
from gateway.admin.semp.resources import (
    LOG_NAME,
    QUEUES,
    TOPIC_ENDPOINTS,
    Name,
    check_log,
    clients_named,
    endpoint_of,
    vpn_of,
)
from gateway.admin.semp.tree import Tree
from gateway.admin.waiting import while_waiting
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.replay_preview import Preview

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
        matches = administration.vpn.log.matcher_of(endpoint)

        def check(topic: str) -> None:
            if not matches(topic):  # a replay would not bring it
                rights.require_reading(administrator, topic)

        await administration.copy_message(endpoint, min(wanted.number, 2**63 - 1), check)
        return answer(request)
