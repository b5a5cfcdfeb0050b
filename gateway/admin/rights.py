"""The rights: what the user of a request must be permitted. Each operation declares its right with its route.

Most rights need a rule in the user's ``administer`` list that covers the object of the operation. A rule for its name
covers a queue, and rules for its topics cover a topic endpoint. ``log://>`` covers what belongs to the whole Message
VPN: its log, clients, points and lists. Operations on the gateway as a whole need the user's ``global_access``.

The administrator of a queue may receive from it. So an operation that brings messages to an endpoint needs a further
right: to add a subscription, or to remove an exception, the right to read its topic; to name a dead message queue, the
right to send there; to put a message of the log on the endpoint, the right to read that message.

Clients without AMQP (``gateway.admin.v1``) are not administrators: they need what AMQP clients need for the same, rules
in the user's ``consume`` and ``publish`` lists.

Invariant: nothing is permitted by default. An operation cannot be declared without its right, or None where it is open
to everybody (``operations.LazyRouter``).
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

from fastapi import Body, Depends, Query, Request

from amqp_ext.addresses.address import AddressKind, parse_target
from amqp_ext.topics import TopicSyntaxError
from gateway.admin.administrators import Administrator, administrator_of, entrant_of
from gateway.admin.semp.resources import Name, resources_of
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.permissions import Action
from gateway.vpn.jobs.jobs import Demand, to_copy, to_return

MOST_PATTERNS: Final = 16
"""Topic patterns that one request may read."""

_ALL: Final = [">"]

_Known: TypeAlias = Annotated[Administrator, Depends(administrator_of)]
"""The user who sent the request."""

_Administrator: TypeAlias = Annotated[Administrator, Depends(entrant_of)]
"""The same, who may enter the Message VPN that the request is about."""


async def _given(body: Annotated[Any, Body()] = None) -> dict[str, Any]:
    return body if isinstance(body, dict) else {}


_Given: TypeAlias = Annotated[dict[str, Any], Depends(_given)]
"""The body before validation: a user without the right is told of that first, and not what is wrong with the body."""


async def _found(request: Request, administrator: _Administrator, vpn: Name, name: Name) -> Endpoint | None:
    if administrator.is_anyone:
        return None  # the operation reports an endpoint that does not exist
    return resources_of(request).administration(vpn).vpn.endpoints.by_name.get(name)


_Found: TypeAlias = Annotated[Endpoint | None, Depends(_found)]
"""The endpoint that the request is about; None where there is none, and where no users are configured."""


@dataclass(frozen=True, slots=True)
class Right:
    """A right that an operation needs.

    Attributes:
        demands: What a rule of the user has to cover, in words, for the documents.
        check: A dependency of the route, on the parts of the request that matter; it raises where the right is missing.
    """

    demands: str
    check: Callable[..., Awaitable[None]]


async def _whole_vpn(administrator: _Administrator) -> None:
    administrator.require(AddressKind.LOG, ">")


async def _gateway_seen(administrator: _Known) -> None:
    administrator.require_gateway("read-only")


async def _gateway_changed(administrator: _Known) -> None:
    administrator.require_gateway("read-write")


async def _queue(administrator: _Administrator, name: Name) -> None:
    administrator.require(AddressKind.QUEUE, name)


async def _new_queue(administrator: _Administrator, given: _Given) -> None:
    administrator.require(AddressKind.QUEUE, str(given.get("queueName", "")))
    _require_dead_messages(administrator, given, None)


async def _changed_queue(administrator: _Administrator, name: Name, given: _Given, found: _Found) -> None:
    await _queue(administrator, name)
    _require_dead_messages(administrator, given, found)


async def _new_topic_endpoint(administrator: _Administrator, given: _Given) -> None:
    await _whole_vpn(administrator)
    _require_dead_messages(administrator, given, None)


async def _subscribed_queue(administrator: _Administrator, name: Name, given: _Given) -> None:
    await _queue(administrator, name)
    topic = given.get("subscriptionTopic")
    if isinstance(topic, str) and not topic.startswith("!"):
        _require_reading(administrator, topic)


async def _unsubscribed_queue(administrator: _Administrator, name: Name, topic: Name) -> None:
    await _queue(administrator, name)
    if topic.startswith("!"):
        _require_reading(administrator, topic.removeprefix("!"))


def _require_reading(administrator: Administrator, topic: str) -> None:
    """A subscription brings messages to an endpoint, where they can be read: require the right to read its topic."""
    try:
        require_reading(administrator, topic)
    except TopicSyntaxError:
        return  # the operation reports it


def require_reading(administrator: Administrator, topic: str) -> None:
    """Require the right to read what is published to a topic pattern.

    Raises:
        SempError: UNAUTHORIZED with status 403, no rule permits it.
        amqp_ext.topics.TopicSyntaxError: The pattern is not valid.
    """
    administrator.require_any(
        f"read topic://{topic}: that needs the right to consume it, or to administer it or the log",
        (Action.CONSUME, AddressKind.TOPIC, topic),
        (Action.CONSUME, AddressKind.LOG, topic),
        (Action.ADMINISTER, AddressKind.TOPIC, topic),
        (Action.ADMINISTER, AddressKind.LOG, topic),
    )


async def _copied(administrator: _Administrator, given: _Given) -> None:
    said = given.get("subscriptions")
    patterns = [str(pattern) for pattern in said] if isinstance(said, list) else []
    _require_all(
        administrator, to_copy(patterns, given.get("target"), is_remote=bool(given.get("replayTarget", "")))
    )


async def _returned(administrator: _Administrator, name: Name, given: _Given) -> None:
    _require_all(administrator, to_return(name, given.get("target")))


def _require_all(administrator: Administrator, demands: Sequence[Demand]) -> None:
    for demand in demands:
        administrator.require_any(demand.what, *demand.rules)
    administrator.require_lasting()


async def _own_replay(request: Request, administrator: _Administrator, vpn: Name, given: _Given) -> None:
    await _requested_replay(request, administrator, vpn, given.get("replayName"))


async def _seen_replay(request: Request, administrator: _Administrator, vpn: Name, name: Name) -> None:
    await _requested_replay(request, administrator, vpn, name)


async def _requested_replay(request: Request, administrator: Administrator, vpn: str, name: Any) -> None:
    """Permit users their own replay; for any other, require the right to the whole Message VPN."""
    if isinstance(name, str) and not administrator.is_anyone:
        found = resources_of(request).administration(vpn).vpn.broker.replay_records.by_name.get(name)
        if found is not None and found.requester == administrator.name:
            return
    await _whole_vpn(administrator)


def _require_dead_messages(
    administrator: Administrator, given: dict[str, Any], endpoint: Endpoint | None
) -> None:
    """An endpoint sends to its dead message queue: require the right to send to a newly named one."""
    queue = given.get("deadMsgQueue")
    if not isinstance(queue, str) or not queue:
        return
    if endpoint is None or endpoint.settings.dead_message_queue != queue:
        administrator.require_any(
            f"send dead messages to queue://{queue}: that needs the right to publish to it, or to administer it",
            (Action.PUBLISH, AddressKind.QUEUE, queue),
            (Action.ADMINISTER, AddressKind.QUEUE, queue),
        )


async def _topic_endpoint(administrator: _Administrator, found: _Found) -> None:
    await _require_topics(administrator, found, [])


async def _changed_topic_endpoint(administrator: _Administrator, given: _Given, found: _Found) -> None:
    topic = given.get("topic")
    await _require_topics(administrator, found, [str(topic)] if topic else [])
    _require_dead_messages(administrator, given, found)


async def _require_topics(administrator: Administrator, found: Endpoint | None, more: list[str]) -> None:
    topics: list[str] = []
    if found is not None and found.kind is EndpointKind.TOPIC_ENDPOINT:
        topics = [*(topic for topic in found.subscriptions if not topic.startswith("!")), *more]
    for topic in topics:
        administrator.require(AddressKind.TOPIC, topic)
    if not topics:
        await _whole_vpn(administrator)


VpnQuery: TypeAlias = Annotated[str, Query(description="The Message VPN.", max_length=250)]
"""The Message VPN that a client without AMQP names."""

Subscribed: TypeAlias = Annotated[
    list[str],
    Query(
        alias="subscribe",
        description="A topic pattern to read; several may be given. By default, all topics.",
        max_length=MOST_PATTERNS,
    ),
]
"""Topic patterns that a client without AMQP reads."""

PublishedTo: TypeAlias = Annotated[
    str, Query(alias="address", description="A queue or topic, as an AMQP target names it.", max_length=1_000)
]
"""The address that a client without AMQP publishes to."""


async def _log_read(administrator: _Known, vpn: VpnQuery = "default", subscribe: Subscribed = _ALL) -> None:
    administrator.require_entry(vpn)
    for pattern in subscribe:
        administrator.require_any(f"read log://{pattern}", (Action.CONSUME, AddressKind.LOG, pattern))


async def _published(
    request: Request, administrator: _Known, address: PublishedTo, vpn: VpnQuery = "default"
) -> None:
    administrator.require_entry(vpn)
    parsed = parse_target(address)
    if administrator.is_anyone or parsed.kind not in (AddressKind.QUEUE, AddressKind.TOPIC):
        return  # the operation reports an address that cannot be published to
    queue = resources_of(request).administration(vpn).vpn.endpoints.by_name.get(parsed.name)
    if parsed.kind is AddressKind.QUEUE and queue is not None and queue.settings.temporary:
        return  # whoever knows the name of a temporary queue may reply to it (JMS 2.0, 6.2.2)
    administrator.require_any(
        f"publish to {parsed.kind.value}://{parsed.name}", (Action.PUBLISH, parsed.kind, parsed.name)
    )


GATEWAY_SEEN: Final = Right("`global_access` `read-only`", _gateway_seen)
GATEWAY_CHANGED: Final = Right("`global_access` `read-write`", _gateway_changed)
WHOLE_VPN: Final = Right("`log://>`", _whole_vpn)
QUEUE: Final = Right("`queue://{name}`", _queue)
NEW_QUEUE: Final = Right("`queue://{queueName}`; to send to its dead message queue", _new_queue)
CHANGED_QUEUE: Final = Right("`queue://{name}`; to send to its dead message queue", _changed_queue)
SUBSCRIBED_QUEUE: Final = Right("`queue://{name}`; to read the topic", _subscribed_queue)
UNSUBSCRIBED_QUEUE: Final = Right(
    "`queue://{name}`; for an exception, to read its topic", _unsubscribed_queue
)
TOPIC_ENDPOINT: Final = Right("`topic://` of its topics", _topic_endpoint)
NEW_TOPIC_ENDPOINT: Final = Right("`log://>`; to send to its dead message queue", _new_topic_endpoint)
CHANGED_TOPIC_ENDPOINT: Final = Right(
    "`topic://` of its topics and of the new one; to send to its dead message queue",
    _changed_topic_endpoint,
)
COPIED: Final = Right(
    "to read `log://` for the subscriptions; to publish to the target; `log://>` for a target at another gateway",
    _copied,
)
RETURNED: Final = Right(
    "`queue://{name}`; to publish to the target, or without a target `log://>`",
    _returned,
)
OWN_REPLAY: Final = Right("`log://>`, except for one's own", _own_replay)
SEEN_REPLAY: Final = Right("`log://>`, except for one's own", _seen_replay)
LOG_READ: Final = Right("to consume `log://{subscribe}`, for each pattern", _log_read)
PUBLISHED: Final = Right("to publish to `{address}`", _published)
