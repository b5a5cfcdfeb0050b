"""
Subscriptions: which topic endpoint an attach to a topic means, and how a durable subscription is deleted.

====================================  ==========================================================================
source                                endpoint
====================================  ==========================================================================
expiry ``never``                      durable, named by the link; one consumer at a time
the same, capability ``shared``       durable, named by the link up to a ``|``; consumers compete (JMS 2.0 8.3.4)
anything else                         temporary, deleted with its link
the same, capability ``shared``       temporary, deleted with the last of its consumers
no address at all                     the durable one named by the link, to be deleted when the link is closed
====================================  ==========================================================================

A durable subscription belongs to its user: no other user receives from it, deletes it, or replaces it. If an
administrator made it, every user who may receive its topics may receive from it; to delete it needs ``administer``.

A shared name belongs to the client's container, unless the capability ``global`` shares it among all containers. Link
names are those of Qpid JMS: ``name``, ``name|2``, ``name|global``, ``name|volatile1``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from amqp_ext.topics import TopicPattern, TopicSyntaxError
from gateway.amqp.client import Client
from gateway.amqp.nodes import Lease, SharedEndpoint, make_topic_endpoint
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity
from gateway.core.errors import ErrorCode, Refused, refusing
from gateway.vpn.endpoints import Endpoints

MOST_CHARACTERS: Final = 200
"""The longest selector that is stored as text: a peer may make thousands of subscriptions, with long selectors."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription that an attach asks for."""

    link_name: str
    capabilities: Collection[str]
    """The capabilities of the source."""
    container_id: str
    """The client's."""
    is_durable: bool
    """Whether it outlives its link; also true where the source has no address, which means a durable subscription."""
    selector: str
    """Its selector, in the form that ``told_apart`` gives; empty for all messages."""
    no_local: str
    """The origin whose messages are not put on it (JMS 2.0 section 8.3.3); empty for no such origin. Has no effect on a
    shared subscription, which has many subscribers."""

    @property
    def is_shared(self) -> bool:
        """Whether several consumers may share it."""
        return "shared" in self.capabilities

    @property
    def is_everybodys(self) -> bool:
        """Whether every user who may receive its topics may share it."""
        return self.is_shared and "global" in self.capabilities

    @property
    def durable_name(self) -> str | None:
        """The name under which it is kept; None when it is not to be kept."""
        if not self.is_durable:
            return None
        return self.shared_name if self.is_shared else self.link_name

    @property
    def shared_name(self) -> str:
        """Its name where it is shared."""
        return self.name_shared_by(self.capabilities)

    def name_shared_by(self, capabilities: Collection[str]) -> str:
        """Its name where it is shared as these capabilities say: in the client's container, or by all containers."""
        name = self.link_name.split("|", 1)[0]
        return name if "global" in capabilities else f"{name}|{self.container_id}"


def told_apart(selection: str) -> str:
    """A selector in the form that is stored and compared: a short one as it is, a digest of a long one."""
    if len(selection) <= MOST_CHARACTERS:
        return selection
    return f"sha256:{hashlib.sha256(selection.encode('utf-8', 'surrogatepass')).hexdigest()}"


def endpoint_for(client: Client, subscription: Subscription, pattern: str) -> tuple[Endpoint, Lease | None]:
    """
    The topic endpoint of a subscription, made where there is none, and the lease on it where it is temporary; the
    caller awaits the commit.

    Args:
        client: The subscriber. Its permission for an existing endpoint has been checked, except for a temporary one.

    Raises:
        Refused: INVALID_FIELD, the pattern is not valid; PRECONDITION_FAILED, the name is a queue's, or the
            subscription is shared and the request is not, or the other way round; RESOURCE_LOCKED, it has a consumer
            with another pattern or selector.
    """
    with refusing(TopicSyntaxError):
        TopicPattern.parse(pattern)
    name = subscription.durable_name
    if name is not None:
        endpoint = _durable(client, name, subscription, pattern)
        if not subscription.is_shared and not endpoint.flows:
            client.vpn.endpoints.set_no_local(endpoint, subscription.no_local)
        return endpoint, None
    if subscription.is_shared:
        return _temporary_shared(client, subscription, pattern)
    owned = make_topic_endpoint(
        client.owner, [pattern], no_local=subscription.no_local, selector=subscription.selector
    )
    return owned.endpoint, owned


def _temporary_shared(
    client: Client, subscription: Subscription, pattern: str
) -> tuple[Endpoint, Lease | None]:
    name, endpoints = f"#P2P/SHARED/{subscription.shared_name}", client.vpn.endpoints
    found = endpoints.by_name.get(name)
    if found is not None and not subscription.is_everybodys:
        client.authorization.require_owner(found)
    if found is not None and _is_another(found, subscription, pattern):
        raise Refused(
            ErrorCode.RESOURCE_LOCKED,
            f"{subscription.link_name!r} is shared by consumers with another topic or selector",
        )
    if found is None:
        settings = EndpointSettings(
            temporary=True, owner=client.authorization.owner_name, selector=subscription.selector
        )
        found = endpoints.create(name, EndpointKind.TOPIC_ENDPOINT, settings, [pattern])
    return found, SharedEndpoint(client.owner, found, name)


def _durable(client: Client, name: str, subscription: Subscription, pattern: str) -> Endpoint:
    endpoints, is_shared = client.vpn.endpoints, subscription.is_shared
    found = endpoints.by_name.get(name)
    if found is not None and found.kind is not EndpointKind.TOPIC_ENDPOINT:
        raise Refused(
            ErrorCode.PRECONDITION_FAILED, f"{name!r} is a {found.kind.value}, not a topic endpoint"
        )
    if found is not None and (found.settings.exclusive is Exclusivity.NONE) is not is_shared:
        kind = "not shared" if is_shared else "shared"
        raise Refused(
            ErrorCode.PRECONDITION_FAILED, f"the subscription {name!r} is {kind}; attach to it accordingly"
        )
    if found is not None and _is_another(found, subscription, pattern):
        if found.flows:
            raise Refused(
                ErrorCode.RESOURCE_LOCKED, f"topic endpoint {name!r} has a consumer of another subscription"
            )
        # A new subscription under the same name: the backlog of the old one is dropped, with its replays.
        endpoints.delete(found)
        found = None
    if found is None:
        exclusive = Exclusivity.NONE if is_shared else Exclusivity.REFUSE
        settings = EndpointSettings(
            exclusive=exclusive, owner=client.authorization.owner_name, selector=subscription.selector
        )
        found = endpoints.create(name, EndpointKind.TOPIC_ENDPOINT, settings, [pattern])
    return found


def _is_another(found: Endpoint, subscription: Subscription, pattern: str) -> bool:
    """
    Whether a subscription was made with another topic, selector or no-local (Jakarta Messaging 3.1 section 8.3.3).
    Where an administrator made it, only its topic is known.
    """
    if list(found.subscriptions) != [pattern]:
        return True
    kept = found.settings
    if kept.selector is None:
        return False
    is_local = subscription.is_shared or bool(kept.no_local) is bool(subscription.no_local)
    return kept.selector != subscription.selector or not is_local


def kept_endpoint(endpoints: Endpoints, subscription: Subscription) -> Endpoint:
    """
    The topic endpoint of the durable subscription that a link without a source is to delete. Without capabilities, as
    Qpid JMS attaches, the name may be that of any kind of subscription. The kinds are tried in this order: not shared,
    shared in the client's container, shared by all.

    Raises:
        Refused: NOT_FOUND, there is none.
    """
    names = [
        subscription.link_name,
        subscription.name_shared_by(()),
        subscription.name_shared_by(["global"]),
    ]
    if subscription.is_shared:
        names = [subscription.shared_name]
    found = next((endpoint for endpoint in map(endpoints.by_name.get, names) if endpoint is not None), None)
    if found is None or found.kind is not EndpointKind.TOPIC_ENDPOINT or found.settings.temporary:
        raise Refused(
            ErrorCode.NOT_FOUND,
            f"a source needs an address, or dynamic; and there is no subscription {subscription.link_name!r}",
        )
    return found
