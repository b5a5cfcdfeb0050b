"""Config of the replay log and of its topic filter.

What is changed here stays, as the settings of a Message VPN do that the configuration file does not name.
"""

from typing import Annotated, Any, Final

from fastapi import Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from amqp_ext.topics import TopicPattern
from gateway.admin import rights
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import InVpn, done, listed, one, resource
from gateway.admin.semp.envelope import Answer, SempError, answer, list_answer
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import LOG_NAME, Name, check_log, resources_of, vpn_of
from gateway.admin.semp.tree import Tree
from gateway.config import Vpn
from gateway.config.administered import Changes
from gateway.core.broker import Broker
from gateway.vpn.administration import Administration
from gateway.vpn.runtime import MEGABYTE


def _topic(text: str) -> str:
    TopicPattern.parse(text)
    return text


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class LogBody(_Body):
    """What can change of the log while it runs."""

    ingressEnabled: bool | None = Field(None, description="Whether messages are logged.")
    egressEnabled: bool | None = Field(None, description="Whether it can be replayed and read.")
    maxSpoolUsage: Annotated[int, Field(ge=0, le=2**40)] | None = Field(
        None, description="Megabytes it may hold; 0 is no bound. It is trimmed from 90 % on."
    )
    topicFilterEnabled: bool | None = Field(None, description="Whether it takes some topics only.")
    keepUntilArchivedEnabled: bool | None = Field(
        None, description="Ours: whether nothing is trimmed that is not archived."
    )

    def changes(self) -> dict[str, Any]:
        """The same, by the settings' names."""
        named = {key: getattr(self, attribute) for attribute, key in _SETTINGS.items()}
        return {key: value for key, value in named.items() if value is not None}


_SETTINGS: Final = {
    "ingressEnabled": "replay_log.write",
    "egressEnabled": "replay_log.read",
    "maxSpoolUsage": "replay_log.quota_mb",
    "topicFilterEnabled": "replay_log.filtered",
    "keepUntilArchivedEnabled": "replay_log.keep_until_archived",
}


class NewTopicFilter(_Body):
    """A topic that the log takes, or, after a `!`, leaves out."""

    topicFilterSubscription: Annotated[str, AfterValidator(_topic)]


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


class _LogState(TypedDict):
    msgSpoolUsage: int
    usagePercent: float
    generation: int
    firstMsgId: int
    lastMsgId: int
    archivedMsgId: int
    archiveFirstMsgId: int
    archiveLastMsgId: int
    oldestMsgTimeMs: int | None
    newestMsgTimeMs: int | None
    wholeFromTimeMs: int
    retention: list[_Retention]


LOG: Final = resource("ReplayLog", _Named, LogBody)
LOG_STATE: Final = resource("ReplayLogState", LOG, _LogState)
TOPIC_FILTER: Final = resource("TopicFilterSubscription", InVpn, NewTopicFilter)


async def log_attributes(administration: Administration) -> dict[str, Any]:
    """The log, in the monitor tree."""
    broker = administration.vpn.broker
    oldest_ms, newest_ms = await administration.log_age()
    log, archived = broker.log, broker.history.archived
    state: _LogState = {
        "msgSpoolUsage": log.size_bytes,
        "usagePercent": round(broker.trimming.usage * 100, 2),
        "generation": log.generation,
        "firstMsgId": log.first_id,
        "lastMsgId": log.next_id - 1,
        "archivedMsgId": log.archived_id,
        "archiveFirstMsgId": archived.first_id if archived else 0,
        "archiveLastMsgId": archived.last_id if archived else 0,
        "oldestMsgTimeMs": oldest_ms,
        "newestMsgTimeMs": newest_ms,
        "wholeFromTimeMs": log.floor_ms,
        "retention": _retention(broker),
    }
    return {**_configured(administration), **state}


def _retention(broker: Broker) -> list[_Retention]:
    """Each rule, and what the log has of its topics; None while that is counted, after a start."""
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
        "topicFilterEnabled": administration.log_is_filtered,
        "keepUntilArchivedEnabled": policy.keep_until_archived,
    }


def log_routes() -> list[LazyRoute]:
    """``/config/msgVpns/{vpn}/replayLogs`` and ``…/topicFilterSubscriptions``."""
    tree = Tree("config", "/msgVpns")

    @tree.get(
        "/{vpn}/replayLogs", rights.WHOLE_VPN, summary="The replay log, as a list", responses=listed(LOG)
    )
    async def logs(request: Request, vpn: Name, paging: Pages) -> Answer:
        shown = _configured(vpn_of(request, vpn))
        return list_answer(request, [paging.shown(shown)] if paging.matches(shown) else [], None, 1)

    @tree.get("/{vpn}/replayLogs/{log}", rights.WHOLE_VPN, summary="The replay log", responses=one(LOG))
    async def log(request: Request, vpn: Name, log: Name, paging: Pages) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(log)
        return answer(request, paging.shown(_configured(administration)))

    @tree.patch("/{vpn}/replayLogs/{log}", rights.WHOLE_VPN, summary="Change the log", responses=one(LOG))
    async def change(request: Request, vpn: Name, log: Name, body: LogBody) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(log)
        await resources_of(request).vpns.change(vpn, body.changes())
        return answer(request, _configured(administration))

    path = "/{vpn}/replayLogs/{log}/topicFilterSubscriptions"

    @tree.get(
        path,
        rights.WHOLE_VPN,
        summary="Topics that the log takes while its filter is on",
        responses=listed(TOPIC_FILTER),
    )
    async def topics(request: Request, vpn: Name, log: Name, paging: Pages) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(log)
        shown = {t: {"msgVpnName": vpn, "topicFilterSubscription": t} for t in administration.log_topics}
        page, cursor = await paging.page(shown, shown.get)
        return list_answer(request, page, cursor, len(shown))

    @tree.post(path, rights.WHOLE_VPN, summary="Add a topic", responses=one(TOPIC_FILTER))
    async def add_topic(request: Request, vpn: Name, log: Name, body: NewTopicFilter) -> Answer:
        vpn_of(request, vpn)
        check_log(log)
        topic = body.topicFilterSubscription

        def added(settings: Vpn) -> Changes:
            log = settings.replay_log
            if topic in log.topics:
                raise SempError("ALREADY_EXISTS", f"The filter has {topic!r} already.")
            # The first topic does not switch the filter on: an administrator says when the list is complete.
            is_on = log.filtered and bool(log.topics)
            return {"replay_log.topics": [*log.topics, topic], "replay_log.filtered": is_on}

        await resources_of(request).vpns.change(vpn, added)
        return answer(request, {"msgVpnName": vpn, "topicFilterSubscription": topic})

    @tree.delete(path + "/{topic}", rights.WHOLE_VPN, summary="Take a topic away", responses=done)
    async def remove_topic(request: Request, vpn: Name, log: Name, topic: Name) -> Answer:
        vpn_of(request, vpn)
        check_log(log)

        def removed(settings: Vpn) -> Changes:
            topics = settings.replay_log.topics
            if topic not in topics:
                raise SempError("NOT_FOUND", f"The filter has no {topic[:80]!r}.")
            return {"replay_log.topics": [other for other in topics if other != topic]}

        await resources_of(request).vpns.change(vpn, removed)
        return answer(request)

    return tree.routes
