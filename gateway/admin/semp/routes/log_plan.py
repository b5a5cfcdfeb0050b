"""How large the replay log must be, in the monitor tree: from the rate at which it grows."""

from typing import Annotated, Final

from fastapi import Query, Request
from typing_extensions import TypedDict

from gateway.admin import rights
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import InVpn, one, resource
from gateway.admin.semp.envelope import Answer, answer
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import LOG_NAME, Name, check_log, vpn_of
from gateway.admin.semp.tree import Tree
from gateway.core.sizing import HOUR_MS, Rate
from gateway.vpn.administration import Administration
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.runtime import MEGABYTE


class _Rate(TypedDict):
    periodMs: int
    bytesPerSecond: float
    msgsPerSecond: float


class _Retention(TypedDict):
    topics: list[str]
    maxAgeHours: int
    maxSpoolUsage: int
    msgSpoolUsage: int
    wholeFromTimeMs: int
    bytesPerSecond: float
    lastsMs: int | None
    lastingSpoolUsage: int | None


class _Plan(InVpn):
    replayLogName: str
    ratePeriodMs: int | None
    bytesPerSecond: float | None
    msgsPerSecond: float | None
    rates: list[_Rate]
    msgSpoolUsage: int
    maxSpoolUsage: int
    maxAgeHours: int
    wholeFromTimeMs: int
    quotaLastsMs: int | None
    trimmedFromTimeMs: int | None
    keepMs: int
    keepNeedsSpoolUsage: int | None
    storeBytes: int | None
    diskFreeBytes: int | None
    diskFullTimeMs: int | None
    retention: list[_Retention]


PLAN: Final = resource("ReplayLogPlan", _Plan)


def plan_routes() -> list[LazyRoute]:
    """``/monitor/msgVpns/{vpn}/replayLogs/{log}/plan``."""
    tree = Tree("monitor", "/msgVpns")

    @tree.get(
        "/{vpn}/replayLogs/{log}/plan",
        rights.WHOLE_VPN,
        summary="Ours: how long the log's quota and the disk last at the rate at which it grows",
        responses=one(PLAN),
    )
    async def plan(
        request: Request,
        vpn: Name,
        log: Name,
        paging: Pages,
        keepHours: Annotated[
            int, Query(ge=0, le=1_000_000, description="How much of the past is to be kept; 0: not said.")
        ] = 0,
    ) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(log)
        return answer(request, paging.shown(await _plan(administration, keepHours * HOUR_MS)))

    return tree.routes


async def _plan(administration: Administration, keep_ms: int) -> _Plan:
    vpn = administration.vpn
    await vpn.sizing.look()
    log, policy, disk, now_ms = vpn.broker.log, vpn.broker.policy, vpn.sizing.disk, vpn.clock.now_ms()
    rate, found = vpn.sizing.plan(keep_ms)

    def at(in_ms: int | None) -> int | None:
        return None if in_ms is None else now_ms + in_ms

    return {
        "msgVpnName": vpn.name,
        "replayLogName": LOG_NAME,
        "ratePeriodMs": None if rate is None else rate.period_ms,
        "bytesPerSecond": None if rate is None else round(rate.size_bytes, 1),
        "msgsPerSecond": None if rate is None else round(rate.messages, 3),
        "rates": [_rate(one) for one in vpn.sizing.growth.rates()],
        "msgSpoolUsage": log.size_bytes,
        "maxSpoolUsage": policy.quota_bytes // MEGABYTE,
        "maxAgeHours": policy.max_age_hours,
        "wholeFromTimeMs": log.floor_ms,
        "quotaLastsMs": found.lasts_ms,
        "trimmedFromTimeMs": at(found.trimmed_in_ms),
        "keepMs": keep_ms,
        "keepNeedsSpoolUsage": None if found.keep_bytes is None else -(-found.keep_bytes // MEGABYTE),
        "storeBytes": None if disk is None else disk.size_bytes,
        "diskFreeBytes": None if disk is None else disk.free_bytes,
        "diskFullTimeMs": at(found.disk_full_in_ms),
        "retention": _retention(vpn),
    }


def _retention(vpn: MessageVpn) -> list[_Retention]:
    """What each rule holds and will hold; none while that is counted, after a start."""
    return [
        {
            "topics": list(kept.rule.topics),
            "maxAgeHours": kept.rule.max_age_hours,
            "maxSpoolUsage": kept.rule.quota_bytes // MEGABYTE,
            "msgSpoolUsage": topics.used_bytes,
            "wholeFromTimeMs": max(vpn.broker.log.floor_ms, vpn.broker.retention.whole_ms(kept)),
            "bytesPerSecond": round(topics.per_ms * 1_000, 1),
            "lastsMs": found.lasts_ms,
            "lastingSpoolUsage": found.holds_bytes,
        }
        for kept, (topics, found) in zip(vpn.broker.retention.rules, vpn.sizing.retention(), strict=False)
    ]


def _rate(rate: Rate) -> _Rate:
    return {
        "periodMs": rate.period_ms,
        "bytesPerSecond": round(rate.size_bytes, 1),
        "msgsPerSecond": round(rate.messages, 3),
    }
