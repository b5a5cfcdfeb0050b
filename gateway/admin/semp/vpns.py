"""Message VPNs: made, changed, deleted, and what goes on in each; the gateway's configuration, shown and read again."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from gateway.admin import rights
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.endpoints import MONITORED, MONITORED_ALONE, monitored, name_attribute
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
from gateway.admin.semp.log import LOG_STATE as LOG
from gateway.admin.semp.log import log_attributes
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import (
    QUEUES,
    TOPIC_ENDPOINTS,
    Name,
    check_log,
    client_id,
    endpoint_of,
    resources_of,
    vpn_of,
    while_waiting,
)
from gateway.admin.semp.tree import Tree
from gateway.config import ConfigError, effective_toml
from gateway.core.alarms import Alarm, AlarmKind
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.replay.states import ReplayState
from gateway.vpn.clients import ConsumerLink
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.role import WaitingVpn
from gateway.vpn.runtime import REFUSALS
from store.errors import ReadFailed


class VpnBody(BaseModel):
    """What can change of a Message VPN while it runs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    enabled: bool | None = Field(None, description="Off disconnects its clients, and lets none in.")
    createQueuesEnabled: bool | None = Field(None, description="Ours: whether first use makes a queue.")

    def changes(self) -> dict[str, Any]:
        """The same, by the settings' names."""
        named = {"enabled": self.enabled, "create_queues": self.createQueuesEnabled}
        return {key: value for key, value in named.items() if value is not None}


class NewVpn(VpnBody):
    """A Message VPN to be made: enabled, unless it says otherwise."""

    msgVpnName: str = Field(description="1 to 64 characters of A-Z a-z 0-9 . _ -")


class _Fixed(TypedDict):
    maxTopicBytes: int
    maxTopicLevels: int


class _Reloaded(TypedDict):
    applied: list[str]
    refused: list[str]


VPN: Final = resource("MsgVpn", NewVpn, _Fixed)
RELOADED: Final = resource("Reloaded", _Reloaded)


def _configured(vpn: MessageVpn | WaitingVpn) -> dict[str, Any]:
    return {
        "msgVpnName": vpn.name,
        "enabled": vpn.settings.enabled,
        "createQueuesEnabled": vpn.settings.create_queues,
        "maxTopicBytes": vpn.settings.max_topic_bytes,
        "maxTopicLevels": vpn.settings.max_topic_levels,
    }


def vpn_routes() -> list[LazyRoute]:
    """``/config/msgVpns`` and ``/config/msgVpns/{vpn}``."""
    tree = Tree("config", "/msgVpns")

    @tree.get("", rights.GATEWAY_SEEN, summary="All Message VPNs", responses=listed(VPN))
    async def vpns(request: Request, paging: Pages) -> Answer:
        vpns, waiting = resources_of(request).vpns, resources_of(request).waiting
        names = [*vpns, *waiting]

        def show(name: str) -> dict[str, Any] | None:
            found = vpns.get(name) or waiting.get(name)
            return None if found is None else _configured(found)

        page, cursor = await paging.page(names, show)
        return list_answer(request, page, cursor, len(names))

    @tree.post(
        "", rights.GATEWAY_CHANGED, summary="Make a Message VPN, with a file of its own", responses=one(VPN)
    )
    async def create(request: Request, body: NewVpn) -> Answer:
        vpn = await resources_of(request).vpns.create(body.msgVpnName, body.changes())
        return answer(request, _configured(vpn))

    @tree.get("/{vpn}", rights.WHOLE_VPN, summary="One Message VPN", responses=one(VPN))
    async def one_vpn(request: Request, vpn: Name, paging: Pages) -> Answer:
        return answer(request, paging.shown(_configured(vpn_of(request, vpn).vpn)))

    @tree.patch(
        "/{vpn}", rights.WHOLE_VPN, summary="Enable, disable or change a Message VPN", responses=one(VPN)
    )
    async def change(request: Request, vpn: Name, body: VpnBody) -> Answer:
        running = vpn_of(request, vpn).vpn
        await resources_of(request).vpns.change(vpn, body.changes())
        return answer(request, _configured(running))

    @tree.delete(
        "/{vpn}",
        rights.GATEWAY_CHANGED,
        summary="Delete a Message VPN that is disabled and empty, with its file",
        responses=done,
    )
    async def delete(request: Request, vpn: Name) -> Answer:
        vpn_of(request, vpn)
        await resources_of(request).vpns.delete(vpn)
        return answer(request)

    return tree.routes


def reload_routes() -> list[LazyRoute]:
    """``/action/reload``."""
    tree = Tree("action", "")

    @tree.put(
        "/reload",
        rights.GATEWAY_CHANGED,
        summary="Ours: read the configuration file again, and take what can change",
        responses=one(RELOADED),
    )
    async def reload(request: Request) -> Answer:
        try:
            reloaded = await resources_of(request).reload()
        except ConfigError as error:
            raise SempError(
                "NOT_ALLOWED", "Nothing was changed: " + "; ".join(error.problems) + "."
            ) from None
        return answer(
            request,
            {
                "applied": [str(difference) for difference in reloaded.applied],
                "refused": [str(difference) for difference in reloaded.refused],
            },
        )

    return tree.routes


class _Configuration(TypedDict):
    toml: str


CONFIGURATION: Final = resource("Configuration", _Configuration)


def configuration_routes() -> list[LazyRoute]:
    """``/monitor/configuration``."""
    tree = Tree("monitor", "/configuration")

    @tree.get(
        "",
        rights.GATEWAY_SEEN,
        summary="All settings in force, with what administrators changed; secrets are left out",
        responses=one(CONFIGURATION),
    )
    async def configuration(request: Request, paging: Pages) -> Answer:
        settings = resources_of(request).vpns.settings
        # There may be thousands of queues in it.
        toml = await asyncio.get_running_loop().run_in_executor(None, partial(effective_toml, settings))
        return answer(request, paging.shown({"toml": toml}))

    return tree.routes


class _VpnState(InVpn):
    enabled: bool
    state: Literal["up", "down", "standby"]
    activeGateway: str | None
    storeEngine: str
    storeProblem: str | None
    storeDurability: Literal["disk", "two-machines", "one-machine"] | None
    storeConfirmedAge: float | None
    wireLoops: str
    clientCount: int
    endpointCount: int
    msgReplayInitializingCount: int
    msgReplayActiveCount: int
    msgReplayPendingCompleteCount: int
    msgReplayFailedCount: int
    lastMsgId: int
    publishedMsgCount: int
    publishedBytes: int
    settledMsgCount: int
    pendingBytes: int
    directDroppedMsgCount: int


class _Flow(InVpn):
    flowId: int
    clientName: str
    clientId: str
    activityState: Literal["active-consumer", "inactive"]
    unackedMsgCount: int
    credit: int
    epoch: int | None
    hasSelector: bool


class _OfQueue(TypedDict):
    queueName: str


class _OfTopicEndpoint(TypedDict):
    topicEndpointName: str


VPN_STATE: Final = resource("MsgVpnState", _VpnState)
FLOWS: Final = {
    EndpointKind.QUEUE: resource("QueueTxFlow", _OfQueue, _Flow),
    EndpointKind.TOPIC_ENDPOINT: resource("TopicEndpointTxFlow", _OfTopicEndpoint, _Flow),
}


STORE_S: Final = 1.0
"""Seconds that whoever looks at an endpoint waits for the store."""


def monitor_routes() -> list[LazyRoute]:
    """``/monitor/msgVpns/…``."""
    tree = Tree("monitor", "/msgVpns")

    @tree.get("", rights.GATEWAY_SEEN, summary="All Message VPNs", responses=listed(VPN_STATE))
    async def vpns(request: Request, paging: Pages) -> Answer:
        resources = resources_of(request)

        def show(name: str) -> _VpnState:
            if name in resources.waiting:
                return _waiting(resources.waiting[name], resources.wire_loops)
            return _vpn(
                resources.administration(name).vpn, len(resources.clients(name)), resources.wire_loops
            )

        names = [*resources.names, *resources.waiting]
        page, cursor = await paging.page(names, show)
        return list_answer(request, page, cursor, len(names))

    @tree.get("/{vpn}", rights.WHOLE_VPN, summary="One Message VPN", responses=one(VPN_STATE))
    async def one_vpn(request: Request, vpn: Name, paging: Pages) -> Answer:
        resources = resources_of(request)
        if vpn in resources.waiting:
            return answer(request, paging.shown(_waiting(resources.waiting[vpn], resources.wire_loops)))
        running = vpn_of(request, vpn).vpn
        return answer(request, paging.shown(_vpn(running, len(resources.clients(vpn)), resources.wire_loops)))

    for collection, kinds, right in (
        ("queues", QUEUES, rights.QUEUE),
        ("topicEndpoints", TOPIC_ENDPOINTS, rights.TOPIC_ENDPOINT),
    ):
        _add_endpoints(tree, collection, kinds, right)

    @tree.get(
        "/{vpn}/replayLogs", rights.WHOLE_VPN, summary="The replay log, as a list", responses=listed(LOG)
    )
    async def logs(request: Request, vpn: Name, paging: Pages) -> Answer:
        shown = await log_attributes(vpn_of(request, vpn))
        return list_answer(request, [paging.shown(shown)] if paging.matches(shown) else [], None, 1)

    @tree.get(
        "/{vpn}/replayLogs/{log}",
        rights.WHOLE_VPN,
        summary="The replay log: use, oldest, newest",
        responses=one(LOG),
    )
    async def log(request: Request, vpn: Name, log: Name, paging: Pages) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(log)
        return answer(request, paging.shown(await log_attributes(administration)))

    return tree.routes


def _add_endpoints(tree: Tree, collection: str, kinds: tuple[EndpointKind, ...], right: rights.Right) -> None:
    shown, alone, flow = MONITORED[kinds[0]], MONITORED_ALONE[kinds[0]], FLOWS[kinds[0]]

    @tree.get(
        f"/{{vpn}}/{collection}",
        rights.WHOLE_VPN,
        summary=f"All {collection}, with their replays",
        responses=listed(shown),
    )
    async def all_of(request: Request, vpn: Name, paging: Pages) -> Answer:
        running = vpn_of(request, vpn).vpn
        broker = running.broker

        def show(name: str) -> dict[str, Any] | None:
            endpoint = broker.endpoints.get(name)
            if endpoint is None:
                return None
            return monitored(endpoint, vpn, broker.log.next_id, running.clock.now_ms())

        async with resources_of(request).listing.page():
            names = [name for name, endpoint in broker.endpoints.items() if endpoint.kind in kinds]
            page, cursor = await paging.page(names, show)
        return list_answer(request, page, cursor, len(names))

    @tree.get(f"/{{vpn}}/{collection}/{{name}}", right, summary="One of them", responses=one(alone))
    async def one_of(request: Request, vpn: Name, name: Name, paging: Pages) -> Answer:
        administration = vpn_of(request, vpn)
        running = administration.vpn
        endpoint = endpoint_of(administration, name, kinds)
        oldest_ms: int | None = None
        # The rest is known all the same, also while the store is out of reach.
        with suppress(ReadFailed, TimeoutError):
            async with asyncio.timeout(STORE_S):
                oldest_ms = await while_waiting(request, running.listing.oldest_ms(endpoint))
        found = monitored(endpoint, vpn, running.broker.log.next_id, running.clock.now_ms())
        return answer(request, paging.shown({**found, "oldestMsgTimeMs": oldest_ms}))

    @tree.get(
        f"/{{vpn}}/{collection}/{{name}}/txFlows",
        right,
        summary="Consumers bound to it",
        responses=listed(flow),
    )
    async def flows(request: Request, vpn: Name, name: Name, paging: Pages) -> Answer:
        endpoint = endpoint_of(vpn_of(request, vpn), name, kinds)
        found = _flows(endpoint, vpn)
        page, cursor = await paging.page(found, found.get)
        return list_answer(request, page, cursor, len(found))


def _vpn(vpn: MessageVpn, clients: int, wire_loops: str) -> _VpnState:
    broker = vpn.broker
    states = [e.replay.state for e in broker.endpoints.values() if e.replay is not None]
    return {
        "msgVpnName": vpn.name,
        "enabled": vpn.settings.enabled,
        "state": "up" if vpn.settings.enabled else "down",
        "activeGateway": None,
        "storeEngine": vpn.engine,
        "storeProblem": vpn.problem() or vpn.durability.problem(),
        "storeDurability": None if vpn.durability.found is None else vpn.durability.found.value,
        "storeConfirmedAge": None if vpn.lease is None else round(vpn.lease.age_seconds, 1),
        "wireLoops": wire_loops,
        "clientCount": clients,
        "endpointCount": len(broker.endpoints),
        "msgReplayInitializingCount": states.count(ReplayState.INITIALIZING),
        "msgReplayActiveCount": states.count(ReplayState.ACTIVE),
        "msgReplayPendingCompleteCount": states.count(ReplayState.PENDING_COMPLETE),
        "msgReplayFailedCount": states.count(ReplayState.FAILED),
        "lastMsgId": broker.log.next_id - 1,
        "publishedMsgCount": vpn.counters.published_messages,
        "publishedBytes": vpn.counters.published_bytes,
        "settledMsgCount": vpn.counters.settled_messages,
        "pendingBytes": vpn.committer.pending_bytes,
        "directDroppedMsgCount": vpn.counters.direct_dropped_messages,
    }


def _waiting(vpn: WaitingVpn, wire_loops: str) -> _VpnState:
    """Nothing is known here of what is in it."""
    return {
        "msgVpnName": vpn.name,
        "enabled": vpn.settings.enabled,
        "state": "standby",
        "activeGateway": vpn.active,
        "storeEngine": "",
        "storeProblem": vpn.sentence,
        "storeDurability": None,
        "storeConfirmedAge": None,
        "wireLoops": wire_loops,
        "clientCount": 0,
        "endpointCount": 0,
        "msgReplayInitializingCount": 0,
        "msgReplayActiveCount": 0,
        "msgReplayPendingCompleteCount": 0,
        "msgReplayFailedCount": 0,
        "lastMsgId": 0,
        "publishedMsgCount": 0,
        "publishedBytes": 0,
        "settledMsgCount": 0,
        "pendingBytes": 0,
        "directDroppedMsgCount": 0,
    }


def _flows(endpoint: Endpoint, vpn: str) -> dict[str, dict[str, Any]]:
    active = endpoint.active_flows
    found: dict[str, dict[str, Any]] = {}
    for number, flow in enumerate(endpoint.flows):
        link: ConsumerLink = flow.link
        shown: _Flow = {
            "msgVpnName": vpn,
            "flowId": number,
            "clientName": link.client.peer_container,
            "clientId": client_id(link.client),
            "activityState": "active-consumer" if flow in active else "inactive",
            "unackedMsgCount": len(flow.unsettled),
            "credit": max(flow.demand, 0),
            "epoch": flow.epoch,
            "hasSelector": flow.selector is not None,
        }
        found[f"{number:012}"] = {name_attribute(endpoint): endpoint.name, **shown}
    return found


class _Alarm(InVpn):
    alarm: str
    endpointName: str
    thresholdPercent: int
    raisedTime: int
    description: str


ALARM: Final = resource("Alarm", _Alarm)


def alarm_routes() -> list[LazyRoute]:
    """``/monitor/msgVpns/{vpn}/alarms``."""
    tree = Tree("monitor", "/msgVpns")

    @tree.get(
        "/{vpn}/alarms", rights.WHOLE_VPN, summary="Ours: alarms that hold now", responses=listed(ALARM)
    )
    async def alarms(request: Request, vpn: Name, paging: Pages) -> Answer:
        waiting = resources_of(request).waiting.get(vpn)
        active = waiting.alarms.active() if waiting is not None else vpn_of(request, vpn).vpn.alarms.active()
        found = {_key(alarm): alarm for alarm in active}
        page, cursor = await paging.page(found, lambda key: _alarm(found[key], vpn))
        return list_answer(request, page, cursor, len(found))

    return tree.routes


def _key(alarm: Alarm) -> str:
    return f"{alarm.kind.value} {alarm.threshold_percent:03} {alarm.subject}"


def _alarm(alarm: Alarm, vpn: str) -> _Alarm:
    return {
        "msgVpnName": vpn,
        "alarm": alarm.kind.value,
        "endpointName": "" if alarm.kind is AlarmKind.RETENTION_USE else alarm.subject,
        "thresholdPercent": alarm.threshold_percent,
        "raisedTime": alarm.raised_ms // 1_000,
        "description": alarm.text,
    }


class _Sampled(InVpn):
    intervalMs: int
    untilTimeMs: int


class _Rates(_Sampled):
    publishedMsgs: list[int]
    publishedBytes: list[int]
    settledMsgs: list[int]
    refusals: list[int]


class _Depths(_Sampled):
    msgCounts: list[int]


class _Refusal(TypedDict):
    reason: str
    count: int


RATES: Final = resource("MsgVpnRates", _Rates)
DEPTHS: Final = resource("EndpointDepths", _Depths)
REFUSAL: Final = resource("Refusal", _Refusal)


def trend_routes() -> list[LazyRoute]:
    """``/monitor/msgVpns/{vpn}/rates``, ``…/refusals``, and ``…/depths`` of endpoints."""
    tree = Tree("monitor", "/msgVpns")

    @tree.get(
        "/{vpn}/rates",
        rights.WHOLE_VPN,
        summary="What was published, settled and refused in each interval of the last hour, the oldest first; "
        "refusals are of the whole gateway",
        responses=one(RATES),
    )
    async def rates(request: Request, vpn: Name, paging: Pages) -> Answer:
        found = vpn_of(request, vpn).vpn.rates
        shown: _Rates = {
            "msgVpnName": vpn,
            "intervalMs": found.interval_ms,
            "untilTimeMs": found.until_ms,
            "publishedMsgs": found.counts("publishedMsgs"),
            "publishedBytes": found.counts("publishedBytes"),
            "settledMsgs": found.counts("settledMsgs"),
            "refusals": found.counts("refusals"),
        }
        return answer(request, paging.shown(shown))

    @tree.get(
        "/{vpn}/refusals",
        rights.WHOLE_VPN,
        summary="What clients were refused since the start, by AMQP condition; of the whole gateway",
        responses=listed(REFUSAL),
    )
    async def refusals(request: Request, vpn: Name, paging: Pages) -> Answer:
        vpn_of(request, vpn)
        counts = dict(REFUSALS)

        def show(reason: str) -> _Refusal:
            return {"reason": reason, "count": counts[reason]}

        page, cursor = await paging.page(counts, show)
        return list_answer(request, page, cursor, len(counts))

    for collection, kinds, right in (
        ("queues", QUEUES, rights.QUEUE),
        ("topicEndpoints", TOPIC_ENDPOINTS, rights.TOPIC_ENDPOINT),
    ):
        _add_depths(tree, collection, kinds, right)

    return tree.routes


def _add_depths(tree: Tree, collection: str, kinds: tuple[EndpointKind, ...], right: rights.Right) -> None:
    @tree.get(
        f"/{{vpn}}/{collection}/{{name}}/depths",
        right,
        summary="How many messages lay on it, minute by minute of the last hour, the oldest first",
        responses=one(DEPTHS),
    )
    async def depths(request: Request, vpn: Name, name: Name, paging: Pages) -> Answer:
        administration = vpn_of(request, vpn)
        endpoint = endpoint_of(administration, name, kinds)
        found = administration.vpn.depths
        shown: _Depths = {
            "msgVpnName": vpn,
            "intervalMs": found.interval_ms,
            "untilTimeMs": found.until_ms,
            "msgCounts": found.counts(endpoint.name),
        }
        return answer(request, paging.shown(shown))
