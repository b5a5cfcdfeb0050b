"""
Endpoints behind subscriptions: which topic endpoint an attach to a topic means, and how a durable one is given up.

====================================  ==========================================================================
source                                endpoint
====================================  ==========================================================================
expiry ``never``                      durable, named by the link; one consumer at a time
the same, capability ``shared``       durable, named by the link up to a ``|``; consumers compete (JMS 2.0 8.3.4)
anything else                         temporary, gone with its link
the same, capability ``shared``       temporary, gone with the last of its consumers
no address at all                     the durable one named by the link, to be deleted when the link is closed
====================================  ==========================================================================

A shared name belongs to the client's container unless the capability ``global`` says that it is everybody's. Link names
are those of Qpid JMS: ``name``, ``name|2``, ``name|global``, ``name|volatile1``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from proton import Link, Terminus

from amqp_ext.addresses import Address, AddressKind
from amqp_ext.topics import TopicPattern, TopicSyntaxError
from gateway import log_keys
from gateway.amqp.links.outgoing import detach
from gateway.amqp.nodes.temporary import OwnedEndpoint, SharedEndpoint, make_topic_endpoint
from gateway.core.effects import Effect
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity
from gateway.core.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection


def durable_name(connection: Connection, link: Link, capabilities: Collection[str]) -> str | None:
    """The name under which a source's subscription is kept; None when it is not to be kept."""
    if link.remote_source.address and link.remote_source.expiry_policy != Terminus.EXPIRE_NEVER:
        return None
    name: str = link.name
    return _shared_name(connection, name, capabilities) if "shared" in capabilities else name


def _shared_name(connection: Connection, link_name: str, capabilities: Collection[str]) -> str:
    name = link_name.split("|", 1)[0]
    return name if "global" in capabilities else f"{name}|{connection.peer_container}"


def endpoint_for(
    connection: Connection, link: Link, pattern: str, capabilities: Collection[str], *, no_local: bool = False
) -> tuple[Endpoint, list[Effect], OwnedEndpoint | None]:
    """
    The topic endpoint of a subscription, made where there is none, and what has to be committed for it.

    Args:
        no_local: What the subscriber's own container publishes is not put on it (JMS 2.0 section 8.3.3); of no effect
            on a shared one, which has many subscribers.

    Raises:
        Refused: INVALID_FIELD, the pattern is none; PRECONDITION_FAILED, the name is a queue's or the subscription is
            shared and is not asked for so, or the other way round; RESOURCE_LOCKED, it has a consumer of another
            pattern.
    """
    try:
        TopicPattern.parse(pattern)
    except TopicSyntaxError as error:
        raise Refused(ErrorCode.INVALID_FIELD, str(error)) from error
    is_shared = "shared" in capabilities
    name = durable_name(connection, link, capabilities)
    if name is not None:
        endpoint, effects = _durable(connection, name, pattern, is_shared=is_shared)
        own = connection.origin if no_local else ""
        if not is_shared and not endpoint.flows and endpoint.settings.no_local != own:
            # What lies there stays: only messages from now on are chosen by it.
            endpoint.settings.no_local = own
            connection.vpn.broker.forget_routes()
            effects.append(endpoint.definition())
        return endpoint, effects, None
    if is_shared:
        name = f"#P2P/SHARED/{_shared_name(connection, link.name, capabilities)}"
        found = connection.vpn.broker.find(name)
        if found is not None and list(found.subscriptions) == [pattern]:
            return found, [], SharedEndpoint(connection, found, name)
        if found is not None:
            raise Refused(ErrorCode.RESOURCE_LOCKED, f"{link.name!r} is shared by consumers of another topic")
        settings = EndpointSettings(temporary=True)
        made, effects = connection.vpn.broker.create(name, EndpointKind.TOPIC_ENDPOINT, settings, [pattern])
        return made, effects, SharedEndpoint(connection, made, name)
    owned, effects = make_topic_endpoint(connection, [pattern], no_local=no_local)
    return owned.endpoint, effects, owned


def _durable(
    connection: Connection, name: str, pattern: str, *, is_shared: bool
) -> tuple[Endpoint, list[Effect]]:
    broker = connection.vpn.broker
    exclusive = Exclusivity.NONE if is_shared else Exclusivity.REFUSE
    found = broker.find(name)
    if found is not None and found.kind is not EndpointKind.TOPIC_ENDPOINT:
        raise Refused(
            ErrorCode.PRECONDITION_FAILED, f"{name!r} is a {found.kind.value}, not a topic endpoint"
        )
    if found is not None and (found.settings.exclusive is Exclusivity.NONE) is not is_shared:
        kind = "not shared" if is_shared else "shared"
        raise Refused(
            ErrorCode.PRECONDITION_FAILED, f"the subscription {name!r} is {kind}; attach to it as that"
        )
    effects: list[Effect] = []
    if found is not None and list(found.subscriptions) != [pattern]:
        if found.flows:
            raise Refused(
                ErrorCode.RESOURCE_LOCKED, f"topic endpoint {name!r} has a consumer of another subscription"
            )
        # A changed subscription is a new one under the same name (JMS 2.0 section 8.3.3).
        effects += broker.delete(found)
        found = None
    if found is None:
        settings = EndpointSettings(exclusive=exclusive)
        found, made = broker.create(name, EndpointKind.TOPIC_ENDPOINT, settings, [pattern])
        effects += made
    return found, effects


class Unsubscribing:
    """A link without a source: closing it deletes the durable topic endpoint it is named after."""

    def __init__(self, connection: Connection, link: Link, endpoint: Endpoint) -> None:
        self._connection = connection
        self._link = link
        self._endpoint = endpoint

    @property
    def key(self) -> Any:
        """It has no transfers, and so no place among those links."""
        return None

    def detached(self, *, closed: bool) -> None:
        vpn = self._connection.vpn
        if closed and vpn.broker.find(self._endpoint.name) is self._endpoint:
            vpn.delete(self._endpoint)
            self._connection.log_event("unsubscribed", **{log_keys.ENDPOINT: self._endpoint.name})

    def lost(self) -> None:
        """Nothing was asked for: only a close is."""

    def refuse(self, refused: Refused) -> None:
        detach(self._connection, self._link, refused)


def _kept(connection: Connection, link: Link, capabilities: Collection[str]) -> Endpoint | None:
    """
    The endpoint that a link without a source means. Without capabilities, as Qpid JMS attaches, its name may be that
    of any sort of subscription: looked for are one that is not shared, the client's shared one, everybody's.
    """
    names = [
        link.name,
        _shared_name(connection, link.name, ()),
        _shared_name(connection, link.name, ["global"]),
    ]
    if "shared" in capabilities:
        names = [_shared_name(connection, link.name, capabilities)]
    found = map(connection.vpn.broker.find, names)
    return next((endpoint for endpoint in found if endpoint is not None), None)


def unsubscribe(connection: Connection, link: Link, capabilities: Collection[str]) -> Unsubscribing:
    """
    Answer an attach without a source: the durable subscription that the link's name means, as it is kept.

    Raises:
        Refused: NOT_FOUND, there is none; RESOURCE_LOCKED, it has consumers; UNAUTHORIZED.
    """
    found = _kept(connection, link, capabilities)
    if found is None or found.kind is not EndpointKind.TOPIC_ENDPOINT or found.settings.temporary:
        raise Refused(
            ErrorCode.NOT_FOUND,
            f"a source needs an address, or dynamic; and there is no subscription {link.name!r}",
        )
    for pattern in found.subscriptions:
        connection.access.require_source(
            Address(AddressKind.TOPIC, pattern.removeprefix("!")),
            None,
            browses=False,
            durable_name=found.name,
        )
    if found.flows:
        raise Refused(
            ErrorCode.RESOURCE_LOCKED, f"the subscription {link.name!r} has a consumer; close that first"
        )
    source = link.source
    source.address = next(iter(found.subscriptions), "")
    source.durability = Terminus.DELIVERIES
    source.expiry_policy = Terminus.EXPIRE_NEVER
    link.target.copy(link.remote_target)
    return Unsubscribing(connection, link, found)
