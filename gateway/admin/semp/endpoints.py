"""Queues and topic endpoints: their attributes, which have Solace's names, their state, and operations on them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import Depends, Query, Request
from pydantic import AfterValidator, Field, create_model

from amqp_ext.addresses.address import check_queue_name, queue_topic
from amqp_ext.topics import TopicPattern
from gateway.admin import rights
from gateway.admin.administrators import Administrator, administrator_of
from gateway.admin.operations import Tree
from gateway.admin.semp.clients import Nothing, client_id
from gateway.admin.semp.envelope import Attributes, Body, InVpn, ListAnswer, Shown, resource
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import (
    LOG_NAME,
    Name,
    OfVpn,
    check_log,
    logged_id,
    resources_of,
    while_waiting,
)
from gateway.admin.semp.vpns import Sampled, sampled
from gateway.config.setting_types import TopicFilter
from gateway.config.vpn import SETTING_TYPES
from gateway.core.endpoint.by_key import Groups
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.settings import (
    SETTINGS,
    EndpointKind,
    EndpointSettings,
    Exclusivity,
    Setting,
    SettingType,
    Unit,
)
from gateway.core.replay.states import Progress, ReplayTotals
from gateway.vpn.clients import ClientIdentity
from gateway.vpn.message_vpn import MessageVpn
from store.errors import ReadFailed

# --- attributes -------------------------------------------------------------------------------------------------

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


def _attracting(text: str) -> str:
    if text.startswith("!"):
        raise ValueError(f"{text!r} is an exception; a topic endpoint needs a topic that it attracts")
    TopicPattern.parse(text)
    return text


def _queue_or_none(text: str) -> str:
    return check_queue_name(text) if text else text


class _Spelling(NamedTuple):
    """The name of an attribute that differs from the name of its setting."""

    name: str
    unit: Unit | None = None
    """The attribute's unit, where it differs from the setting's."""
    is_ours: bool = False
    """Solace has no such attribute."""


_SPELLED_OTHERWISE: Final = {
    "exclusive": _Spelling("exclusivity", is_ours=True),
    "quota_bytes": _Spelling("maxMsgSpoolUsage", Unit.MEGABYTES),
    "quota_messages": _Spelling("maxMsgCount", is_ours=True),
    "max_message_bytes": _Spelling("maxMsgSize"),
    "max_ttl_ms": _Spelling("maxTtl", Unit.SECONDS),
    "max_flows": _Spelling("maxBindCount"),
    "max_unsettled": _Spelling("maxDeliveredUnackedMsgsPerFlow"),
    "priorities": _Spelling("respectMsgPriorityEnabled"),
    "max_redelivery": _Spelling("maxRedeliveryCount"),
    "dead_message_queue": _Spelling("deadMsgQueue"),
    "partitions": _Spelling("partitionCount"),
}
"""By the setting's name. Any other setting is ours, and its attribute has its name in camel case: ``retryDelayMs`` for
``retry_delay_ms``.

Source: Solace's SEMP v2 reference, "msgVpn/queues".
"""

_TYPES: Final[dict[SettingType, Any]] = {
    **SETTING_TYPES,
    SettingType.NUMBER: Count,
    SettingType.QUOTA: Count,
    SettingType.QUEUE: Annotated[str, Field(max_length=200), AfterValidator(_queue_or_none)],
}
"""The types of the configuration file, except those with other bounds or checks here."""


@dataclass(frozen=True, slots=True)
class SettingAttribute:
    """The attribute of requests and answers that is a setting of an endpoint."""

    setting: Setting
    name: str
    unit: Unit | None
    description: str

    def value_of(self, settings: EndpointSettings) -> Any:
        """The attribute's value for an endpoint with these settings."""
        return self.setting.told(getattr(settings, self.setting.name), self.unit)


def _attributes() -> Iterator[SettingAttribute]:
    for setting in SETTINGS.values():
        first, *others = setting.name.split("_")
        ours = _Spelling(first + "".join(other.capitalize() for other in others), is_ours=True)
        name, unit, is_ours = _SPELLED_OTHERWISE.get(setting.name, ours)
        unit = unit or setting.unit
        description = setting.described(unit)
        if setting.fixed:
            description += " Only when it is made."
        yield SettingAttribute(setting, name, unit, f"Ours: {description}" if is_ours else description)


SETTING_ATTRIBUTES: Final = tuple(_attributes())
"""One for each setting of an endpoint, in the order of the documents."""


class _Solaces(Body):
    """Solace's attributes that are not settings here."""

    accessType: Literal["exclusive", "non-exclusive"] | None = None
    """`exclusive`: one consumer is active, and the others wait; see also `exclusivity`."""
    ingressEnabled: Literal[True] | None = None
    """Always true here."""
    egressEnabled: Literal[True] | None = None
    """Always true here."""


# Each attribute with its type and its field; a body may leave out any.
_definitions: Any = {
    found.name: (_TYPES[found.setting.type] | None, Field(None, description=found.description))
    for found in SETTING_ATTRIBUTES
}
_Settings: Any = create_model("_Settings", __base__=_Solaces, **_definitions)


class EndpointBody(_Settings):  # type: ignore[misc]  # has an attribute for each setting of an endpoint
    """The attributes of a queue or topic endpoint. As a limit, 0 is no limit."""

    def settings(self, before: EndpointSettings) -> EndpointSettings:
        """``before``, changed as the body says."""
        changed: dict[str, Any] = {}
        if self.accessType is not None:
            changed["exclusive"] = Exclusivity.WAIT if self.accessType == "exclusive" else Exclusivity.NONE
        for found in SETTING_ATTRIBUTES:
            if (value := getattr(self, found.name)) is not None:
                changed[found.setting.name] = found.setting.read(value, found.unit)
        return replace(before, **changed)


class NewQueue(EndpointBody):
    """The queue, stream or last-value queue to be made."""

    queueName: Annotated[str, AfterValidator(check_queue_name)]
    kind: Literal["queue", "stream", "last-value"] = "queue"
    """Ours: a stream is a view of the log; a last-value queue is a stream that begins with the newest message of each
    key."""


Topic = Annotated[str, AfterValidator(_attracting)]


class TopicEndpointBody(EndpointBody):
    """The attributes of a topic endpoint: those of a queue, and its topic."""

    topic: Topic | None = None
    """Ours: its subscription. It can change only while the endpoint has no consumer."""


class NewTopicEndpoint(EndpointBody):
    """The durable topic endpoint to be made. A consumer attaches to it with a link of the same name."""

    topicEndpointName: Annotated[str, AfterValidator(check_queue_name)]
    topic: Topic
    """Ours: its subscription."""


def name_attribute(endpoint: Endpoint) -> str:
    """The attribute that has the name of an endpoint."""
    return "topicEndpointName" if endpoint.kind is EndpointKind.TOPIC_ENDPOINT else "queueName"


def configured(endpoint: Endpoint, vpn: str) -> dict[str, Any]:
    """An endpoint in the config tree."""
    settings = endpoint.settings
    is_shared = settings.exclusive is Exclusivity.NONE
    is_topic_endpoint = endpoint.kind is EndpointKind.TOPIC_ENDPOINT
    return {
        "msgVpnName": vpn,
        name_attribute(endpoint): endpoint.name,
        **({"topic": next(iter(endpoint.subscriptions), "")} if is_topic_endpoint else {}),
        "kind": endpoint.kind.value,
        "accessType": "non-exclusive" if is_shared else "exclusive",
        "ingressEnabled": True,
        "egressEnabled": True,
        **{found.name: found.value_of(settings) for found in SETTING_ATTRIBUTES},
    }


class _Seen:
    """An endpoint with its replay, its consumers and what the Message VPN knows of it, as administrators see it."""

    def __init__(self, endpoint: Endpoint, vpn: MessageVpn) -> None:
        self.endpoint = endpoint
        self.lag_ms = vpn.lag.lag_ms(endpoint)
        self.unsettled = sum(len(flow.unsettled) for flow in (*endpoint.flows, *endpoint.suspended))
        window = vpn.broker.dedup.windows.get(endpoint.number)
        self.dedup_ids, self.duplicates = (0, 0) if window is None else (len(window), window.duplicates)
        oldest = endpoint.oldest_delivery
        self.client: ClientIdentity | None = None if oldest is None else oldest[0].link.client
        self.held_id: int | None = None if oldest is None else oldest[1]
        self.held_since_ms: int | None = None if oldest is None else oldest[2]
        replay = endpoint.replay
        self.replay_state, self.totals, self.progress = "n/a", ReplayTotals(), Progress(0, 0, 0, None)
        if replay is not None:
            self.replay_state, self.totals = replay.state.value, replay.totals
            self.progress = replay.progress(vpn.broker.log.next_id, vpn.clock.now_ms())
        self.is_blocked = replay is not None and replay.is_blocked


_STATE: Final = Shown[_Seen](
    {
        "durable": (bool, lambda seen: not seen.endpoint.settings.temporary),
        "owner": (str, lambda seen: seen.endpoint.settings.owner),
        "declared": (bool, lambda seen: seen.endpoint.settings.declared),
        "bindCount": (int, lambda seen: len(seen.endpoint.flows)),
        "spooledMsgCount": (int, lambda seen: seen.endpoint.depth),
        "msgSpoolUsage": (int, lambda seen: seen.endpoint.size_bytes),
        "delayedMsgCount": (int, lambda seen: seen.endpoint.backlog.delayed.messages),
        "delayedMsgUsage": (int, lambda seen: seen.endpoint.backlog.delayed.size_bytes),
        "dedupIdCount": (int, lambda seen: seen.dedup_ids),
        "duplicateMsgCount": (int, lambda seen: seen.duplicates),
        "txUnackedMsgCount": (int, lambda seen: seen.unsettled),
        "oldestUnackedMsgId": (int | None, lambda seen: seen.held_id),
        "oldestUnackedTimeMs": (int | None, lambda seen: seen.held_since_ms),
        "oldestUnackedClientId": (str | None, lambda seen: seen.client and client_id(seen.client)),
        "oldestUnackedClientName": (str | None, lambda seen: seen.client and seen.client.peer_container),
        "oldestUnackedClientUsername": (str | None, lambda seen: seen.client and seen.client.user),
        "oldestUnackedClientAddress": (str | None, lambda seen: seen.client and seen.client.peer),
        "settledMsgCount": (int, lambda seen: seen.endpoint.settled),
        "lagMsgCount": (int, lambda seen: seen.endpoint.depth + seen.progress.remaining),
        "lagMs": (int | None, lambda seen: seen.lag_ms),
        "topicSubscriptionCount": (int, lambda seen: len(seen.endpoint.subscriptions)),
        "replayState": (str, lambda seen: seen.replay_state),
        "replayStartCount": (int, lambda seen: seen.totals.started),
        "replaySuccessCount": (int, lambda seen: seen.totals.succeeded),
        "replayFailureCount": (int, lambda seen: seen.totals.failed),
        "replayedTxMsgCount": (int, lambda seen: seen.totals.transmitted),
        "replayedAckedMsgCount": (int, lambda seen: seen.totals.acknowledged),
        "lastReplayStartTime": (int, lambda seen: seen.totals.last_started_ms // 1_000),
        "lastReplayCompleteTime": (int, lambda seen: seen.totals.last_completed_ms // 1_000),
        "lastReplayFailureTime": (int, lambda seen: seen.totals.last_failed_ms // 1_000),
        "lastReplayFailureReason": (str, lambda seen: seen.totals.last_failure),
        "lastReplayedMsgTxTime": (int, lambda seen: seen.totals.last_transmitted_ms // 1_000),
        "replayPosition": (int, lambda seen: seen.progress.position),
        "replayRemaining": (int, lambda seen: seen.progress.remaining),
        "replayOutstandingMsgCount": (int, lambda seen: seen.progress.outstanding),
        "replayEtaMs": (int | None, lambda seen: seen.progress.eta_ms),
        "replayBlockedBySelector": (bool, lambda seen: seen.is_blocked),
    }
)

QUEUE: Final = resource("Queue", InVpn, NewQueue)
TOPIC_ENDPOINT: Final = resource("TopicEndpoint", InVpn, NewTopicEndpoint, kind=Literal["topic-endpoint"])
MONITORED: Final = {
    EndpointKind.QUEUE: resource("QueueState", QUEUE, _STATE),
    EndpointKind.TOPIC_ENDPOINT: resource("TopicEndpointState", TOPIC_ENDPOINT, _STATE),
}
MONITORED_ALONE: Final = {
    kind: resource(f"{made.__name__.removesuffix('State')}WholeState", made, oldestMsgTimeMs=int | None)
    for kind, made in MONITORED.items()
}
"""A single endpoint is shown with one attribute more than in a list: the store has to be read for it."""


def monitored(endpoint: Endpoint, vpn: MessageVpn) -> dict[str, Any]:
    """An endpoint in the monitor tree."""
    return {**configured(endpoint, vpn.name), **_STATE.of(_Seen(endpoint, vpn))}


# --- operations -------------------------------------------------------------------------------------------------


class Collection(NamedTuple):
    """Queues, or topic endpoints, as a part of a path."""

    name: str
    kinds: tuple[EndpointKind, ...]
    right: rights.Right
    """The right to administer one of them."""

    async def find(self, administration: OfVpn, name: Name) -> Endpoint:
        """
        The endpoint that a request is about.

        Raises:
            Refused: NOT_FOUND, the Message VPN has no endpoint of this name and these kinds.
        """
        return administration.find(name, *self.kinds)


QUEUES: Final = Collection(
    "queues", (EndpointKind.QUEUE, EndpointKind.STREAM, EndpointKind.LAST_VALUE), rights.QUEUE
)
TOPIC_ENDPOINTS: Final = Collection("topicEndpoints", (EndpointKind.TOPIC_ENDPOINT,), rights.TOPIC_ENDPOINT)
COLLECTIONS: Final = (QUEUES, TOPIC_ENDPOINTS)

OfQueue = Annotated[Endpoint, Depends(QUEUES.find)]
OfTopicEndpoint = Annotated[Endpoint, Depends(TOPIC_ENDPOINTS.find)]

STORE_S: Final = 1.0
"""Seconds that a request about one endpoint waits for the store."""


class NewSubscription(Body):
    """A topic subscription; a leading `!` makes it an exception."""

    subscriptionTopic: TopicFilter
    """For example `a/*/c`, `a/>` or `!a/b`."""


class CopyMessage(Body):
    """The message to be copied."""

    sourceReplayLogName: str = LOG_NAME
    """There is one log."""
    replicationGroupMsgId: str
    """`rmid1:…`"""


class _Bound(NamedTuple):
    """A flow, with its number on the endpoint and its lanes."""

    flow: Flow
    number: int
    is_active: bool
    lanes: list[int]
    is_grouped: bool


_FLOW: Final = Shown[_Bound](
    {
        "flowId": (int, lambda bound: bound.number),
        "clientName": (str, lambda bound: bound.flow.link.client.peer_container),
        "clientId": (str, lambda bound: client_id(bound.flow.link.client)),
        "activityState": (
            Literal["active-consumer", "inactive"],
            lambda bound: "active-consumer" if bound.is_active else "inactive",
        ),
        "unackedMsgCount": (int, lambda bound: len(bound.flow.unsettled)),
        "oldestUnackedMsgId": (int | None, lambda bound: (bound.flow.unsettled.oldest or (None, None))[0]),
        "oldestUnackedTimeMs": (int | None, lambda bound: (bound.flow.unsettled.oldest or (None, None))[1]),
        "lockTimeoutMs": (int, lambda bound: bound.flow.endpoint.lock_timeout_ms(bound.flow)),
        "isStalled": (bool, lambda bound: bound.flow.is_stalled),
        "clientUsername": (str, lambda bound: bound.flow.link.client.user),
        "clientAddress": (str, lambda bound: bound.flow.link.client.peer),
        "credit": (int, lambda bound: max(bound.flow.demand, 0)),
        "epoch": (int | None, lambda bound: bound.flow.epoch),
        "hasSelector": (bool, lambda bound: bound.flow.selector is not None),
        "partitions": (list[int], lambda bound: [] if bound.is_grouped else bound.lanes),
        "groupCount": (int, lambda bound: len(bound.lanes) if bound.is_grouped else 0),
    }
)


_Kind: Any = Literal[tuple(kind.value for kind in EndpointKind)]


SUBSCRIPTION: Final = resource("Subscription", InVpn, NewSubscription, queueName=str)
FLOWS: Final = {
    EndpointKind.QUEUE: resource("QueueTxFlow", InVpn, _FLOW, queueName=str),
    EndpointKind.TOPIC_ENDPOINT: resource("TopicEndpointTxFlow", InVpn, _FLOW, topicEndpointName=str),
}
DEPTHS: Final = resource("EndpointDepths", Sampled, msgCounts=list[int])
PURGED: Final = resource("MsgsDeleted", deletedMsgCount=int)
MATCH: Final = resource("TopicMatch", endpointName=str, endpointType=_Kind, subscriptionTopic=str)

_CONFIG = Tree("config")
_MONITOR = Tree("monitor")
_ACTION = Tree("action")


@_CONFIG.post("/queues", rights.NEW_QUEUE, QUEUE)
async def create_queue(administration: OfVpn, body: NewQueue) -> Attributes:
    """Make a queue, a stream or a last-value queue."""
    settings = body.settings(EndpointSettings())
    endpoint = await administration.create(body.queueName, EndpointKind(body.kind), settings)
    return configured(endpoint, administration.vpn.name)


@_CONFIG.post("/topicEndpoints", rights.NEW_TOPIC_ENDPOINT, TOPIC_ENDPOINT)
async def create_topic_endpoint(administration: OfVpn, body: NewTopicEndpoint) -> Attributes:
    """Make a durable topic endpoint."""
    endpoint = await administration.create(
        body.topicEndpointName,
        EndpointKind.TOPIC_ENDPOINT,
        # As at Solace, it has one consumer by default. With several consumers it is a shared subscription.
        body.settings(EndpointSettings(exclusive=Exclusivity.REFUSE)),
        [body.topic],
    )
    return configured(endpoint, administration.vpn.name)


@_CONFIG.patch("/queues/{name}", rights.CHANGED_QUEUE, QUEUE)
async def change_queue(administration: OfVpn, endpoint: OfQueue, body: EndpointBody) -> Attributes:
    """Change attributes; its messages stay."""
    await administration.change(endpoint, body.settings(endpoint.settings))
    return configured(endpoint, administration.vpn.name)


@_CONFIG.patch("/topicEndpoints/{name}", rights.CHANGED_TOPIC_ENDPOINT, TOPIC_ENDPOINT)
async def change_topic_endpoint(
    administration: OfVpn, endpoint: OfTopicEndpoint, body: TopicEndpointBody
) -> Attributes:
    """Change attributes; its messages stay."""
    if body.topic is not None and [body.topic] != list(endpoint.subscriptions):
        await administration.change_topic(endpoint, body.topic)
    await administration.change(endpoint, body.settings(endpoint.settings))
    return configured(endpoint, administration.vpn.name)


@_CONFIG.list("/queues/{name}/subscriptions", rights.QUEUE, SUBSCRIPTION)
async def subscriptions(vpn: Name, endpoint: OfQueue, paging: Pages) -> ListAnswer:
    """The topic subscriptions of a queue."""
    return await paging.answer(endpoint.subscriptions, lambda topic: _subscription(vpn, endpoint.name, topic))


@_CONFIG.post("/queues/{name}/subscriptions", rights.SUBSCRIBED_QUEUE, SUBSCRIPTION)
async def subscribe(administration: OfVpn, endpoint: OfQueue, body: NewSubscription) -> Attributes:
    """Add a topic subscription or an exception."""
    await administration.subscribe(endpoint, body.subscriptionTopic)
    return _subscription(administration.vpn.name, endpoint.name, body.subscriptionTopic)


@_CONFIG.delete("/queues/{name}/subscriptions/{topic}", rights.UNSUBSCRIBED_QUEUE)
async def unsubscribe(administration: OfVpn, endpoint: OfQueue, topic: Name) -> None:
    """Remove a topic subscription."""
    await administration.unsubscribe(endpoint, topic)


def _subscription(vpn: str, queue: str, topic: str) -> dict[str, Any]:
    return {"msgVpnName": vpn, "queueName": queue, "subscriptionTopic": topic}


def _add_configured(collection: Collection, shown: type) -> None:
    """List, show and delete the endpoints of a collection, as they are configured."""
    path, right = f"/{collection.name}", collection.right
    Found = Annotated[Endpoint, Depends(collection.find)]
    declare = _CONFIG.list(path, rights.WHOLE_VPN, shown, summary=f"All {collection.name}")
    _add_list(declare, collection, lambda endpoint, vpn: configured(endpoint, vpn.name))

    @_CONFIG.get(path + "/{name}", right, shown, summary=f"One of the {collection.name}")
    async def one_of(administration: OfVpn, endpoint: Found) -> Attributes:
        return configured(endpoint, administration.vpn.name)

    @_CONFIG.delete(path + "/{name}", right)
    async def delete(administration: OfVpn, endpoint: Found) -> None:
        """Delete it and its messages."""
        await administration.delete(endpoint)


def _add_list(
    declare: Callable[[Callable[..., Any]], Any],
    collection: Collection,
    shown: Callable[[Endpoint, MessageVpn], dict[str, Any]],
) -> None:
    """List the endpoints of a collection."""

    @declare
    async def all_of(request: Request, administration: OfVpn, paging: Pages) -> ListAnswer:
        running = administration.vpn
        endpoints = running.broker.endpoints
        names = [name for name, endpoint in endpoints.items() if endpoint.kind in collection.kinds]

        def show(name: str) -> dict[str, Any] | None:
            endpoint = endpoints.get(name)
            return None if endpoint is None else shown(endpoint, running)

        async with resources_of(request).listing.page():
            return await paging.answer(names, show)


def _add_monitored(collection: Collection) -> None:
    """Show the state, the consumers and the depths of the endpoints of a collection."""
    path, kind, right = f"/{collection.name}", collection.kinds[0], collection.right
    Found = Annotated[Endpoint, Depends(collection.find)]

    summary = f"All {collection.name}, with their replays"
    _add_list(_MONITOR.list(path, rights.WHOLE_VPN, MONITORED[kind], summary=summary), collection, monitored)

    @_MONITOR.get(path + "/{name}", right, MONITORED_ALONE[kind])
    async def one_of(request: Request, administration: OfVpn, endpoint: Found) -> Attributes:
        """One of them, with its state."""
        running = administration.vpn
        oldest_ms: int | None = None
        # All else is known without the store, even while that is unavailable.
        with suppress(ReadFailed, TimeoutError):
            async with asyncio.timeout(STORE_S):
                oldest_ms = await while_waiting(request, running.listing.oldest_ms(endpoint))
        return {**monitored(endpoint, running), "oldestMsgTimeMs": oldest_ms}

    @_MONITOR.list(path + "/{name}/txFlows", right, FLOWS[kind])
    async def flows(vpn: Name, endpoint: Found, paging: Pages) -> ListAnswer:
        """The consumers bound to it."""
        found = _flows(endpoint, vpn)
        return await paging.answer(found, found.get)

    @_MONITOR.get(path + "/{name}/depths", right, DEPTHS)
    async def depths(administration: OfVpn, endpoint: Found) -> Attributes:
        """How many messages it had in each minute of the last hour, the oldest minute first."""
        running = administration.vpn
        return sampled(running.name, running.depths, msgCounts=running.depths.counts(endpoint.name))


def _flows(endpoint: Endpoint, vpn: str) -> dict[str, dict[str, Any]]:
    active, by_key = endpoint.active_flows, endpoint.by_key
    found: dict[str, dict[str, Any]] = {}
    for number, flow in enumerate(endpoint.flows):
        lanes = sorted(lane.number for lane in by_key.lanes_of(flow)) if by_key is not None else []
        shown = _FLOW.of(_Bound(flow, number, flow in active, lanes, isinstance(by_key, Groups)))
        found[f"{number:012}"] = {name_attribute(endpoint): endpoint.name, "msgVpnName": vpn, **shown}
    return found


@_MONITOR.list("/topicMatches", rights.WHOLE_VPN, MATCH)
async def matches(
    administration: OfVpn,
    paging: Pages,
    topic: Annotated[str, Query(description="The topic, as a publisher names it.", max_length=1_000)],
) -> ListAnswer:
    """The endpoints that get messages of a topic, each with the subscription that matches."""
    running = administration.vpn
    running.publishing.check_topic(topic)
    found = {endpoint.name: endpoint for endpoint in running.broker.router.subscribers(topic)}

    def show(name: str) -> dict[str, str]:
        endpoint = found[name]
        return {
            "endpointName": name,
            "endpointType": endpoint.kind.value,
            "subscriptionTopic": _matching_subscription(endpoint, topic),
        }

    return await paging.answer(found, show)


def _matching_subscription(endpoint: Endpoint, topic: str) -> str:
    """The subscription of an endpoint that a topic matches; where there is none, the topic of the queue's own name."""
    for text in endpoint.subscriptions:
        if not text.startswith("!") and TopicPattern.parse(text).matches(topic):
            return text
    return queue_topic(endpoint.name)


def _add_actions(collection: Collection) -> None:
    """Purge an endpoint, or copy a message to it."""
    path, right = f"/{collection.name}/{{name}}", collection.right
    Found = Annotated[Endpoint, Depends(collection.find)]

    @_ACTION.put(f"{path}/deleteMsgs", right, PURGED)
    async def delete_messages(
        administration: OfVpn, endpoint: Found, body: Nothing | None = None
    ) -> Attributes:
        """Delete its messages; the log keeps them."""
        return {"deletedMsgCount": await administration.purge(endpoint)}

    @_ACTION.put(f"{path}/copyMsgFromReplayLog", right)
    async def copy_message(
        administration: OfVpn,
        endpoint: Found,
        body: CopyMessage,
        administrator: Annotated[Administrator, Depends(administrator_of)],
    ) -> None:
        """Copy one message of the log to it."""
        check_log(body.sourceReplayLogName)
        message_id = logged_id(administration, body.replicationGroupMsgId)
        matches = endpoint.topics.matches

        def check(topic: str) -> None:
            if not matches(topic):  # a replay would not put it on this endpoint
                rights.require_reading(administrator, topic)

        await administration.copy_message(endpoint, message_id, check)


for _collection, _shown in zip(COLLECTIONS, (QUEUE, TOPIC_ENDPOINT), strict=True):
    _add_configured(_collection, _shown)
    _add_monitored(_collection)
    _add_actions(_collection)

ROUTES: Final = (*_CONFIG.routes, *_MONITOR.routes, *_ACTION.routes)
