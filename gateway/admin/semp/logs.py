"""Config of the replay log, its topic filter, its named points, and of Message VPNs.

What is changed here of a log or a Message VPN holds until the gateway stops: at the start the configuration decides, as
it does for the queues it declares. Points, which the configuration knows nothing of, stay.
"""

from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from amqp_ext.replay_id import format_replay_id
from amqp_ext.replay_start import parse_text
from amqp_ext.topics import TopicPattern
from gateway.admin.semp.envelope import Answer, SempError, answer, list_answer
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import LOG_NAME, Name, check_log, resources_of, vpn_of
from gateway.core.errors import ErrorCode, Refused
from gateway.core.point import Point
from gateway.vpn.administration import Administration

MEGABYTE: Final = 1_048_576


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


class NewTopicFilter(_Body):
    """A topic that the log takes, or, after a `!`, leaves out."""

    topicFilterSubscription: Annotated[str, AfterValidator(_topic)]


class NewPoint(_Body):
    """A place in the log that is given a name."""

    replayPointName: str
    start: str = Field("live", description="The place, as a replay start says one; `live` is now.")


class VpnBody(_Body):
    """What can change of a Message VPN while it runs."""

    enabled: bool | None = Field(None, description="Off disconnects its clients, and lets none in.")
    createQueuesEnabled: bool | None = Field(None, description="Ours: whether first use makes a queue.")


async def log_attributes(administration: Administration) -> dict[str, Any]:
    """The log, in the monitor tree."""
    broker = administration.vpn.broker
    oldest_ms, newest_ms = await administration.log_age()
    log = broker.log
    return {
        **_configured(administration),
        "msgSpoolUsage": log.size_bytes,
        "usagePercent": round(broker.log_usage * 100, 2),
        "generation": log.generation,
        "firstMsgId": log.first_id,
        "lastMsgId": log.next_id - 1,
        "archivedMsgId": log.archived_id,
        "oldestMsgTimeMs": oldest_ms,
        "newestMsgTimeMs": newest_ms,
        "wholeFromTimeMs": log.floor_ms,
    }


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


def _vpn(administration: Administration) -> dict[str, Any]:
    vpn = administration.vpn
    return {
        "msgVpnName": vpn.name,
        "enabled": vpn.settings.enabled,
        "createQueuesEnabled": vpn.broker.create_queues,
        "maxTopicBytes": vpn.settings.max_topic_bytes,
        "maxTopicLevels": vpn.settings.max_topic_levels,
    }


def _point(administration: Administration, point: Point) -> dict[str, Any]:
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


def log_routes() -> APIRouter:
    """`/config/msgVpns`, `…/replayLogs`, `…/topicFilterSubscriptions`, `…/replayPoints`."""
    router = APIRouter(prefix="/config/msgVpns", tags=["config"])
    _add_vpns(router)
    _add_log(router)
    _add_points(router)
    return router


def _add_vpns(router: APIRouter) -> None:
    @router.get("", summary="All Message VPNs")
    async def vpns(request: Request, paging: Pages) -> Answer:
        resources = resources_of(request)
        page, cursor = await paging.page(resources.names, lambda name: _vpn(resources.administration(name)))
        return list_answer(request, page, cursor, len(resources.names))

    @router.post("", summary="Refused: a Message VPN comes with the configuration")
    async def create_vpn(request: Request) -> Answer:
        raise SempError(
            "NOT_ALLOWED",
            "A Message VPN is named in the configuration and made at the start: it has a file of its own.",
        )

    @router.get("/{vpn}", summary="One Message VPN")
    async def one(request: Request, vpn: Name, paging: Pages) -> Answer:
        return answer(request, paging.shown(_vpn(vpn_of(request, vpn))))

    @router.patch("/{vpn}", summary="Enable or disable a Message VPN, until the next start")
    async def change(request: Request, vpn: Name, body: VpnBody) -> Answer:
        administration = vpn_of(request, vpn)
        running = administration.vpn
        if body.createQueuesEnabled is not None:
            running.broker.create_queues = body.createQueuesEnabled
        if body.enabled is not None:
            running.settings = replace(running.settings, enabled=body.enabled)
            if not body.enabled:
                for client in resources_of(request).clients(vpn):
                    client.stop(Refused(ErrorCode.CONNECTION_FORCED, f"the Message VPN {vpn!r} was disabled"))
        return answer(request, _vpn(administration))


def _add_log(router: APIRouter) -> None:
    @router.get("/{vpn}/replayLogs", summary="The replay log, as a list")
    async def logs(request: Request, vpn: Name, paging: Pages) -> Answer:
        shown = _configured(vpn_of(request, vpn))
        return list_answer(request, [paging.shown(shown)] if paging.takes(shown) else [], None, 1)

    @router.get("/{vpn}/replayLogs/{log}", summary="The replay log")
    async def log(request: Request, vpn: Name, log: Name, paging: Pages) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(log)
        return answer(request, paging.shown(_configured(administration)))

    @router.patch("/{vpn}/replayLogs/{log}", summary="Change the log, until the next start")
    async def change(request: Request, vpn: Name, log: Name, body: LogBody) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(log)
        broker = administration.vpn.broker
        if body.topicFilterEnabled is not None:
            administration.filter_log(administration.log_topics, is_filtered=body.topicFilterEnabled)
        if body.ingressEnabled is not None:
            broker.policy.writes = body.ingressEnabled
        if body.egressEnabled is not None:
            broker.policy.reads = body.egressEnabled
        if body.keepUntilArchivedEnabled is not None:
            broker.policy.keep_until_archived = body.keepUntilArchivedEnabled
        if body.maxSpoolUsage is not None:
            broker.policy.quota_bytes = body.maxSpoolUsage * MEGABYTE
        broker.forget_routes()
        administration.vpn.trimmer.run()
        return answer(request, _configured(administration))

    path = "/{vpn}/replayLogs/{log}/topicFilterSubscriptions"

    @router.get(path, summary="Topics that the log takes while its filter is on")
    async def topics(request: Request, vpn: Name, log: Name, paging: Pages) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(log)
        shown = {t: {"msgVpnName": vpn, "topicFilterSubscription": t} for t in administration.log_topics}
        page, cursor = await paging.page(shown, shown.get)
        return list_answer(request, page, cursor, len(shown))

    @router.post(path, summary="Add a topic, until the next start")
    async def add_topic(request: Request, vpn: Name, log: Name, body: NewTopicFilter) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(log)
        topic = body.topicFilterSubscription
        if topic in administration.log_topics:
            raise SempError("ALREADY_EXISTS", f"The filter has {topic!r} already.")
        administration.filter_log(
            [*administration.log_topics, topic], is_filtered=administration.log_is_filtered
        )
        return answer(request, {"msgVpnName": vpn, "topicFilterSubscription": topic})

    @router.delete(path + "/{topic}", summary="Take a topic away, until the next start")
    async def remove_topic(request: Request, vpn: Name, log: Name, topic: Name) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(log)
        if topic not in administration.log_topics:
            raise SempError("NOT_FOUND", f"The filter has no {topic[:80]!r}.")
        left = [other for other in administration.log_topics if other != topic]
        administration.filter_log(left, is_filtered=administration.log_is_filtered)
        return answer(request)


def _add_points(router: APIRouter) -> None:
    path = "/{vpn}/replayPoints"

    @router.get(path, summary="Ours: named places in the log")
    async def points(request: Request, vpn: Name, paging: Pages) -> Answer:
        administration = vpn_of(request, vpn)
        found = administration.vpn.broker.points
        page, cursor = await paging.page(
            list(found), lambda name: _point(administration, found[name]) if name in found else None
        )
        return list_answer(request, page, cursor, len(found))

    @router.post(path, summary="Name a place in the log")
    async def create(request: Request, vpn: Name, body: NewPoint) -> Answer:
        administration = vpn_of(request, vpn)
        point = await administration.vpn.create_point(body.replayPointName, parse_text(body.start))
        return answer(request, _point(administration, point))

    @router.delete(path + "/{name}", summary="Take a name away")
    async def delete(request: Request, vpn: Name, name: Name) -> Answer:
        await vpn_of(request, vpn).vpn.delete_point(name)
        return answer(request)
