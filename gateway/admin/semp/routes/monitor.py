"""What goes on: endpoints and their replays, flows, clients, the log and what is in it."""

import asyncio
from contextlib import suppress
from typing import Any, Final, Literal

from fastapi import Request
from typing_extensions import TypedDict

from gateway.admin import rights
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import InVpn, listed, one, resource
from gateway.admin.semp.endpoint_attributes import MONITORED, MONITORED_ALONE, monitored, name_attribute
from gateway.admin.semp.envelope import Answer, answer, list_answer
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
)
from gateway.admin.semp.routes.replay_log import LOG_STATE as LOG
from gateway.admin.semp.routes.replay_log import log_attributes
from gateway.admin.semp.tree import Tree
from gateway.admin.waiting import while_waiting
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.replay.states import ReplayState
from gateway.vpn.clients import ConsumerLink
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.role import WaitingVpn
from store.errors import ReadFailed


class _Vpn(InVpn):
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


VPN: Final = resource("MsgVpnState", _Vpn)
FLOWS: Final = {
    EndpointKind.QUEUE: resource("QueueTxFlow", _OfQueue, _Flow),
    EndpointKind.TOPIC_ENDPOINT: resource("TopicEndpointTxFlow", _OfTopicEndpoint, _Flow),
}


STORE_S: Final = 1.0
"""Seconds that whoever looks at an endpoint waits for the store."""


def monitor_routes() -> list[LazyRoute]:
    """``/monitor/msgVpns/…``."""
    tree = Tree("monitor", "/msgVpns")

    @tree.get("", rights.GATEWAY_SEEN, summary="All Message VPNs", responses=listed(VPN))
    async def vpns(request: Request, paging: Pages) -> Answer:
        resources = resources_of(request)

        def show(name: str) -> _Vpn:
            if name in resources.waiting:
                return _waiting(resources.waiting[name], resources.wire_loops)
            return _vpn(
                resources.administration(name).vpn, len(resources.clients(name)), resources.wire_loops
            )

        names = [*resources.names, *resources.waiting]
        page, cursor = await paging.page(names, show)
        return list_answer(request, page, cursor, len(names))

    @tree.get("/{vpn}", rights.WHOLE_VPN, summary="One Message VPN", responses=one(VPN))
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
            endpoint = broker.find(name)
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


def _vpn(vpn: MessageVpn, clients: int, wire_loops: str) -> _Vpn:
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


def _waiting(vpn: WaitingVpn, wire_loops: str) -> _Vpn:
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
