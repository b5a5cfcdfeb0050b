"""The replay log of a Message VPN: its settings and topic filter, its state, its replay points, how large it must be,
when its messages arrived, and trimming.

Settings that are changed here are kept over restarts, unless the configuration file names them (see
``gateway.config.changes``).
"""

from typing import Annotated, Any, Final, NamedTuple

from fastapi import Query, Request
from pydantic import Field
from typing_extensions import TypedDict

from amqp_ext.replay_id import format_replay_id
from amqp_ext.replay_start import MAX_DATE_MS, ReplayStart, StartKind, parse_text
from gateway.admin import rights
from gateway.admin.operations import Tree
from gateway.admin.semp.envelope import (
    Attributes,
    Body,
    InVpn,
    ListAnswer,
    SempError,
    Shown,
    resource,
)
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import LOG_NAME, Name, OfLog, OfVpn, resources_of, while_waiting
from gateway.config import Vpn
from gateway.config.changes import Changes
from gateway.config.setting_types import TopicFilter
from gateway.core.broker import Broker
from gateway.core.log import ArchivedRun
from gateway.core.model import Point
from gateway.core.sizing import HOUR_MS, LogPlan, Rate
from gateway.vpn.administration import Administration
from gateway.vpn.log import Histogram, Moment
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.runtime import MEGABYTE

_CONFIG = Tree("config")
_MONITOR = Tree("monitor")
_ACTION = Tree("action")

# --- settings, state ----------------------------------------------------------------------------------------------


class LogBody(Body):
    """The attributes of the log that can change while the gateway runs."""

    # An alias is the name of the setting.
    ingressEnabled: bool | None = Field(None, serialization_alias="replay_log.write")
    """Whether messages are logged."""
    egressEnabled: bool | None = Field(None, serialization_alias="replay_log.read")
    """Whether the log can be replayed and read."""
    maxSpoolUsage: int | None = Field(None, ge=0, le=2**40, serialization_alias="replay_log.quota_mb")
    """Megabytes that the log may hold; 0 is no limit. Trimming begins at 90 %."""
    topicFilterEnabled: bool | None = Field(None, serialization_alias="replay_log.filtered")
    """Whether only messages of the filter's topics are logged."""
    keepUntilArchivedEnabled: bool | None = Field(None, serialization_alias="replay_log.keep_until_archived")
    """Ours: whether messages stay in the log until they are archived."""


class NewTopicFilter(Body):
    """A topic whose messages are logged, or, with a leading `!`, are not."""

    topicFilterSubscription: TopicFilter


class _Named(InVpn):
    replayLogName: str


class _Retention(TypedDict):
    topics: list[str]
    maxAgeHours: int
    maxSpoolUsage: int
    msgSpoolUsage: int | None
    msgCount: int | None
    wholeFromMsgId: int
    wholeFromTimeMs: int


class _Seen(NamedTuple):
    """The log, its archive, and when its oldest and its newest message arrived."""

    broker: Broker
    archived: ArchivedRun | None
    oldest_ms: int | None
    newest_ms: int | None


_STATE: Final = Shown[_Seen](
    {
        "msgSpoolUsage": (int, lambda seen: seen.broker.log.size_bytes),
        "usagePercent": (float, lambda seen: round(seen.broker.trimming.usage * 100, 2)),
        "generation": (int, lambda seen: seen.broker.log.generation),
        "firstMsgId": (int, lambda seen: seen.broker.log.first_id),
        "lastMsgId": (int, lambda seen: seen.broker.log.next_id - 1),
        "archivedMsgId": (int, lambda seen: seen.broker.log.archived_id),
        "archiveFirstMsgId": (int, lambda seen: seen.archived.first_id if seen.archived else 0),
        "archiveLastMsgId": (int, lambda seen: seen.archived.last_id if seen.archived else 0),
        "oldestMsgTimeMs": (int | None, lambda seen: seen.oldest_ms),
        "newestMsgTimeMs": (int | None, lambda seen: seen.newest_ms),
        "wholeFromTimeMs": (int, lambda seen: seen.broker.log.floor_ms),
        "retention": (list[_Retention], lambda seen: _retention(seen.broker)),
    }
)


LOG: Final = resource("ReplayLog", _Named, LogBody)
LOG_STATE: Final = resource("ReplayLogState", LOG, _STATE)
TOPIC_FILTER: Final = resource("TopicFilterSubscription", InVpn, NewTopicFilter)


@_CONFIG.list("/replayLogs", rights.WHOLE_VPN, LOG)
async def logs(administration: OfVpn, paging: Pages) -> ListAnswer:
    """The replay log, as a list of one."""
    shown = {LOG_NAME: _configured(administration)}
    return await paging.answer(shown, shown.get)


@_CONFIG.get("/replayLogs/{log}", rights.WHOLE_VPN, LOG)
async def log(administration: OfLog) -> Attributes:
    """The replay log."""
    return _configured(administration)


@_CONFIG.patch("/replayLogs/{log}", rights.WHOLE_VPN, LOG)
async def change(request: Request, administration: OfLog, body: LogBody) -> Attributes:
    """Change attributes of the log."""
    changes = body.model_dump(by_alias=True, exclude_none=True)
    await resources_of(request).gateway.vpns.change(administration.vpn.name, changes)
    return _configured(administration)


_TOPICS: Final = "/replayLogs/{log}/topicFilterSubscriptions"


@_CONFIG.list(_TOPICS, rights.WHOLE_VPN, TOPIC_FILTER)
async def topics(administration: OfLog, paging: Pages) -> ListAnswer:
    """The topics of the filter: while it is on, only their messages are logged."""
    vpn = administration.vpn
    shown = {
        topic: {"msgVpnName": vpn.name, "topicFilterSubscription": topic}
        for topic in vpn.settings.replay_log.topics
    }
    return await paging.answer(shown, shown.get)


@_CONFIG.post(_TOPICS, rights.WHOLE_VPN, TOPIC_FILTER)
async def add_topic(request: Request, administration: OfLog, body: NewTopicFilter) -> Attributes:
    """Add a topic to the filter."""
    topic = body.topicFilterSubscription

    def added(settings: Vpn) -> Changes:
        log = settings.replay_log
        if topic in log.topics:
            raise SempError("ALREADY_EXISTS", f"The filter has {topic!r} already.")
        # The first topic does not switch the filter on: an administrator says when the list is complete.
        is_on = log.filtered and bool(log.topics)
        return {"replay_log.topics": [*log.topics, topic], "replay_log.filtered": is_on}

    await resources_of(request).gateway.vpns.change(administration.vpn.name, added)
    return {"msgVpnName": administration.vpn.name, "topicFilterSubscription": topic}


@_CONFIG.delete(_TOPICS + "/{topic}", rights.WHOLE_VPN)
async def remove_topic(request: Request, administration: OfLog, topic: Name) -> None:
    """Remove a topic from the filter."""

    def removed(settings: Vpn) -> Changes:
        topics = settings.replay_log.topics
        if topic not in topics:
            raise SempError("NOT_FOUND", f"The filter has no {topic[:80]!r}.")
        return {"replay_log.topics": [other for other in topics if other != topic]}

    await resources_of(request).gateway.vpns.change(administration.vpn.name, removed)


@_MONITOR.list("/replayLogs", rights.WHOLE_VPN, LOG_STATE, name="logs")
async def log_states(administration: OfVpn, paging: Pages) -> ListAnswer:
    """The replay log, as a list of one."""
    shown = {LOG_NAME: await _state(administration)}
    return await paging.answer(shown, shown.get)


@_MONITOR.get("/replayLogs/{log}", rights.WHOLE_VPN, LOG_STATE, name="log")
async def log_state(administration: OfLog) -> Attributes:
    """The replay log: its use, its oldest and its newest message."""
    return await _state(administration)


async def _state(administration: Administration) -> dict[str, Any]:
    """The log, in the monitor tree."""
    broker = administration.vpn.broker
    seen = _Seen(broker, broker.history.archived, *await administration.log_age())
    return {**_configured(administration), **_STATE.of(seen)}


def _retention(broker: Broker) -> list[_Retention]:
    """Each rule of retention, with what the log holds of its topics: None after a start, until that is counted."""
    log, retention = broker.log, broker.retention
    found: list[_Retention] = []
    for kept in retention.rules:
        mark = retention.marks.get(kept.key)
        found.append(
            {
                "topics": list(kept.rule.topics),
                "maxAgeHours": kept.rule.max_age_hours,
                "maxSpoolUsage": kept.rule.quota_bytes // MEGABYTE,
                "msgSpoolUsage": kept.size_bytes if retention.is_counted else None,
                "msgCount": kept.messages if retention.is_counted else None,
                "wholeFromMsgId": max(log.first_id, mark.below if mark else 0),
                "wholeFromTimeMs": max(log.floor_ms, mark.whole_ms if mark else 0),
            }
        )
    return found


def _configured(administration: Administration) -> dict[str, Any]:
    policy = administration.vpn.broker.policy
    return {
        "msgVpnName": administration.vpn.name,
        "replayLogName": LOG_NAME,
        "ingressEnabled": policy.writes,
        "egressEnabled": policy.reads,
        "maxSpoolUsage": policy.quota_bytes // MEGABYTE,
        "topicFilterEnabled": policy.filter is not None,
        "keepUntilArchivedEnabled": policy.keep_until_archived,
    }


# --- replay points ------------------------------------------------------------------------------------------------


class NewPoint(Body):
    """The place in the log that gets a name."""

    replayPointName: str
    start: str = "live"
    """The place, as a replay start; `live` is now."""


class _Point(InVpn):
    replayPointName: str
    msgId: int
    replicationGroupMsgId: str
    timeMs: int | None
    createdTimeMs: int
    trimmed: bool


POINT: Final = resource("ReplayPoint", _Point)


def _point(administration: Administration, point: Point) -> _Point:
    broker = administration.vpn.broker
    return {
        "msgVpnName": administration.vpn.name,
        "replayPointName": point.name,
        "msgId": point.position,
        "replicationGroupMsgId": format_replay_id(broker.log.generation, point.position),
        "timeMs": point.time_ms,
        "createdTimeMs": point.made_ms,
        "trimmed": broker.points.is_trimmed(point),
    }


@_CONFIG.list("/replayPoints", rights.WHOLE_VPN, POINT)
async def points(administration: OfVpn, paging: Pages) -> ListAnswer:
    """Ours: named places in the log."""
    found = administration.vpn.broker.points
    return await paging.answer(
        list(found), lambda name: _point(administration, found[name]) if name in found else None
    )


@_CONFIG.post("/replayPoints", rights.WHOLE_VPN, POINT)
async def create(administration: OfVpn, body: NewPoint) -> Attributes:
    """Name a place in the log."""
    point = await administration.vpn.log.create_point(body.replayPointName, parse_text(body.start))
    return _point(administration, point)


@_CONFIG.delete("/replayPoints/{name}", rights.WHOLE_VPN)
async def delete(administration: OfVpn, name: Name) -> None:
    """Remove the name of a place."""
    await administration.vpn.log.delete_point(name)


# --- how large it must be -----------------------------------------------------------------------------------------


class _Rate(TypedDict):
    periodMs: int
    bytesPerSecond: float
    msgsPerSecond: float


class _PlannedRetention(TypedDict):
    topics: list[str]
    maxAgeHours: int
    maxSpoolUsage: int
    msgSpoolUsage: int
    wholeFromTimeMs: int
    bytesPerSecond: float
    lastsMs: int | None
    lastingSpoolUsage: int | None


class _Planned(NamedTuple):
    """The plan for the log of a Message VPN, made from the rate at which it grows."""

    vpn: MessageVpn
    now_ms: int
    keep_ms: int
    rate: Rate | None
    plan: LogPlan

    def at(self, in_ms: int | None) -> int | None:
        """The time ``in_ms`` from now, in milliseconds since the epoch."""
        return None if in_ms is None else self.now_ms + in_ms


_PLAN: Final = Shown[_Planned](
    {
        "msgVpnName": (str, lambda one: one.vpn.name),
        "replayLogName": (str, lambda one: LOG_NAME),
        "ratePeriodMs": (int | None, lambda one: one.rate and one.rate.period_ms),
        "bytesPerSecond": (float | None, lambda one: one.rate and round(one.rate.size_bytes, 1)),
        "msgsPerSecond": (float | None, lambda one: one.rate and round(one.rate.messages, 3)),
        "rates": (list[_Rate], lambda one: [_rate(rate) for rate in one.vpn.sizing.growth.rates()]),
        "msgSpoolUsage": (int, lambda one: one.vpn.broker.log.size_bytes),
        "maxSpoolUsage": (int, lambda one: one.vpn.broker.policy.quota_bytes // MEGABYTE),
        "maxAgeHours": (int, lambda one: one.vpn.broker.policy.max_age_hours),
        "wholeFromTimeMs": (int, lambda one: one.vpn.broker.log.floor_ms),
        "quotaLastsMs": (int | None, lambda one: one.plan.lasts_ms),
        "trimmedFromTimeMs": (int | None, lambda one: one.at(one.plan.trimmed_in_ms)),
        "keepMs": (int, lambda one: one.keep_ms),
        "keepNeedsSpoolUsage": (
            int | None,
            lambda one: None if one.plan.keep_bytes is None else -(-one.plan.keep_bytes // MEGABYTE),
        ),
        "storeBytes": (int | None, lambda one: one.vpn.sizing.disk and one.vpn.sizing.disk.size_bytes),
        "diskFreeBytes": (int | None, lambda one: one.vpn.sizing.disk and one.vpn.sizing.disk.free_bytes),
        "diskFullTimeMs": (int | None, lambda one: one.at(one.plan.disk_full_in_ms)),
        "retention": (list[_PlannedRetention], lambda one: _planned_retention(one.vpn)),
    }
)
PLAN: Final = resource("ReplayLogPlan", _PLAN)


@_MONITOR.get("/replayLogs/{log}/plan", rights.WHOLE_VPN, PLAN)
async def plan(
    administration: OfLog,
    keepHours: Annotated[
        int,
        Query(
            ge=0, le=1_000_000, description="How many hours of messages are to be kept; 0: no plan for that."
        ),
    ] = 0,
) -> Attributes:
    """Ours: how long the log's quota and the disk last at the rate at which it grows."""
    vpn, keep_ms = administration.vpn, keepHours * HOUR_MS
    await vpn.sizing.look()
    return _PLAN.of(_Planned(vpn, vpn.clock.now_ms(), keep_ms, *vpn.sizing.plan(keep_ms)))


def _planned_retention(vpn: MessageVpn) -> list[_PlannedRetention]:
    """What each rule of retention holds and will hold; empty after a start, until that is counted."""
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


# --- when its messages arrived ------------------------------------------------------------------------------------

MOST_BUCKETS: Final = 1_000
"""Buckets of a histogram: more than a screen has columns for."""

_LATEST_MS: Final = 2**53

_Time = Annotated[int, Query(ge=0, le=_LATEST_MS)]


class _Bucket(TypedDict):
    timeMs: int
    firstMsgId: int
    msgCount: int


class _ArchiveEnd(TypedDict):
    oldestMsgId: int
    oldestTimeMs: int


class _LogEnds(_ArchiveEnd):
    newestMsgId: int
    newestTimeMs: int


def _bucket(time_ms: int, first: int, count: int) -> _Bucket:
    return {"timeMs": time_ms, "firstMsgId": first, "msgCount": count}


def _oldest(end: Moment | None) -> _ArchiveEnd | None:
    return None if end is None else {"oldestMsgId": end.message_id, "oldestTimeMs": end.time_ms}


def _log_ends(found: Histogram) -> _LogEnds | None:
    oldest, newest = _oldest(found.oldest), found.newest
    if oldest is None or newest is None:
        return None
    return {**oldest, "newestMsgId": newest.message_id, "newestTimeMs": newest.time_ms}


_HISTOGRAM: Final = Shown[Histogram](
    {
        "fromTimeMs": (int, lambda found: found.from_ms),
        "untilTimeMs": (int, lambda found: found.until_ms),
        "firstMsgId": (int, lambda found: found.first_id),
        "lastMsgId": (int, lambda found: found.last_id),
        "buckets": (list[_Bucket], lambda found: [_bucket(*bucket) for bucket in found.buckets]),
        "log": (_LogEnds | None, _log_ends),
        "archive": (_ArchiveEnd | None, lambda found: _oldest(found.archived)),
    }
)
HISTOGRAM: Final = resource("ReplayLogHistogram", _Named, _HISTOGRAM)


@_MONITOR.get("/replayLogs/{log}/histogram", rights.WHOLE_VPN, HISTOGRAM)
async def histogram(
    request: Request,
    administration: OfLog,
    since: Annotated[
        _Time | None, Query(alias="from", description="Begin of the first interval, in ms since the epoch.")
    ] = None,
    until: Annotated[
        _Time | None, Query(description="End of the last interval, in ms since the epoch.")
    ] = None,
    buckets: Annotated[int, Query(ge=1, le=MOST_BUCKETS, description="How many intervals at most.")] = 200,
) -> Attributes:
    """When its messages arrived: how many ids were given out in each of equally long intervals."""
    if since is not None and until is not None and since >= until:
        raise SempError("INVALID_PARAMETER", "`from` has to be before `until`.")
    found = await while_waiting(request, administration.vpn.log.histogram.between(since, until, buckets))
    return {"msgVpnName": administration.vpn.name, "replayLogName": LOG_NAME, **_HISTOGRAM.of(found)}


# --- trimming -----------------------------------------------------------------------------------------------------

Seconds = Annotated[int, Field(ge=0, le=MAX_DATE_MS // 1_000)]
"""Seconds since the epoch."""


class Trim(Body):
    """The place before which the log is trimmed; exactly one attribute."""

    olderThanTime: Seconds | None = None
    """Seconds since the epoch."""
    before: str | None = None
    """Ours: before the place of a start, such as `#123` or `point:release`."""

    def place(self) -> ReplayStart:
        """The start before which the log is trimmed.

        Raises:
            SempError: INVALID_PARAMETER, there is no start, or there are two.
            amqp_ext.replay_start.ReplayStartError: The text is not a replay start.
        """
        if (self.olderThanTime is None) is (self.before is None):
            raise SempError("INVALID_PARAMETER", "Give either olderThanTime or before.")
        if self.olderThanTime is not None:
            return ReplayStart(StartKind.DATE, self.olderThanTime * 1_000)
        assert self.before is not None
        return parse_text(self.before)


class Archived(Body):
    """How far an archive holds the log."""

    msgId: Annotated[int, Field(ge=0, lt=2**63)]
    """The last id in the archive."""
    generation: Annotated[int, Field(ge=0, lt=2**63)]
    """The generation of the log that was archived."""


TRIMMED: Final = resource("Trimmed", firstMsgId=int)
ARCHIVED: Final = resource("ArchivedUpTo", archivedMsgId=int)


@_ACTION.put("/replayLogs/{log}/trimLoggedMsgs", rights.WHOLE_VPN, TRIMMED)
async def trim(administration: OfLog, body: Trim) -> Attributes:
    """Trim the log, up to a place."""
    return {"firstMsgId": await administration.trim_before(body.place())}


@_ACTION.put("/replayLogs/{log}/archivedUpTo", rights.WHOLE_VPN, ARCHIVED)
async def archived(administration: OfLog, body: Archived) -> Attributes:
    """Ours: report up to which message an archive holds the log."""
    return {"archivedMsgId": await administration.vpn.archiving.archived(body.msgId, body.generation)}


ROUTES: Final = (*_CONFIG.routes, *_MONITOR.routes, *_ACTION.routes)
