"""When the messages of a replay log came, for a picture of it."""

from typing import Annotated, Final

from fastapi import Query, Request
from typing_extensions import TypedDict

from gateway.admin import rights
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import InVpn, one, resource
from gateway.admin.semp.envelope import Answer, SempError, answer
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import LOG_NAME, Name, check_log, vpn_of
from gateway.admin.semp.tree import Tree
from gateway.admin.waiting import while_waiting
from gateway.vpn.log import Histogram

MOST_BUCKETS: Final = 1_000
"""Of a histogram: more than a screen has columns for."""

_LATEST_MS: Final = 2**53

_Time = Annotated[int, Query(ge=0, le=_LATEST_MS)]


class _Bucket(TypedDict):
    timeMs: int
    firstMsgId: int
    msgCount: int


class _LogEnds(TypedDict):
    oldestMsgId: int
    oldestTimeMs: int
    newestMsgId: int
    newestTimeMs: int


class _ArchiveEnd(TypedDict):
    oldestMsgId: int
    oldestTimeMs: int


class _Histogram(InVpn):
    replayLogName: str
    fromTimeMs: int
    untilTimeMs: int
    firstMsgId: int
    lastMsgId: int
    buckets: list[_Bucket]
    log: _LogEnds | None
    archive: _ArchiveEnd | None


HISTOGRAM: Final = resource("ReplayLogHistogram", _Histogram)


def histogram_routes() -> list[LazyRoute]:
    """``/monitor/msgVpns/{vpn}/replayLogs/{log}/histogram``."""
    tree = Tree("monitor", "/msgVpns")

    @tree.get(
        "/{vpn}/replayLogs/{log}/histogram",
        rights.WHOLE_VPN,
        summary="When its messages came: how many ids lie between evenly spaced times",
        responses=one(HISTOGRAM),
    )
    async def histogram(
        request: Request,
        vpn: Name,
        log: Name,
        paging: Pages,
        since: Annotated[
            _Time | None, Query(alias="from", description="Where it begins, ms since the epoch.")
        ] = None,
        until: Annotated[_Time | None, Query(description="Where it ends, ms since the epoch.")] = None,
        buckets: Annotated[int, Query(ge=1, le=MOST_BUCKETS, description="At most so many.")] = 200,
    ) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(log)
        if since is not None and until is not None and since >= until:
            raise SempError("INVALID_PARAMETER", "`from` has to be before `until`.")
        found = await while_waiting(request, administration.vpn.log.histogram.between(since, until, buckets))
        return answer(request, paging.shown(_shown(found, vpn)))

    return tree.routes


def _shown(found: Histogram, vpn: str) -> _Histogram:
    oldest, newest, archived = found.oldest, found.newest, found.archived
    return {
        "msgVpnName": vpn,
        "replayLogName": LOG_NAME,
        "fromTimeMs": found.from_ms,
        "untilTimeMs": found.until_ms,
        "firstMsgId": found.first_id,
        "lastMsgId": found.last_id,
        "buckets": [
            {"timeMs": time_ms, "firstMsgId": first, "msgCount": count}
            for time_ms, first, count in found.buckets
        ],
        "log": None
        if oldest is None or newest is None
        else {
            "oldestMsgId": oldest.message_id,
            "oldestTimeMs": oldest.time_ms,
            "newestMsgId": newest.message_id,
            "newestTimeMs": newest.time_ms,
        },
        "archive": None
        if archived is None
        else {"oldestMsgId": archived.message_id, "oldestTimeMs": archived.time_ms},
    }
