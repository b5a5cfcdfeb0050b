"""Replays on record: those under way, and those of the past."""

from typing import Any, Final, Literal

from fastapi import Request

from gateway.admin import rights
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import InVpn, listed, one, resource
from gateway.admin.semp.envelope import Answer, answer, list_answer
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import Name, resources_of, vpn_of
from gateway.admin.semp.tree import Tree
from gateway.core.model import ReplayRecord
from gateway.vpn.jobs.job import Progress


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
