"""
What the user of a connection may do over AMQP: attaches and relayed messages are checked against the user's rules.

Invariant: nothing is made or looked up for a peer before it is permitted, so that a refusal reveals nothing. Temporary
nodes need no rule: the connection that made one may consume from it (once the link that made it is gone, any connection
of that user), and every client that was given its name, which cannot be guessed, may send to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from amqp_ext.addresses.address import Address, AddressKind, queue_topic
from amqp_ext.replay_start import ReplayStart, StartKind
from gateway.amqp.engine.conditions import Denied
from gateway.amqp.nodes import NodeOwner, locked_text
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.core.permissions import Action, Permissions


class TokenCheck(Protocol):
    """What the tokens that a client has shown permit, where tokens say who it is."""

    def require(self, address: Address, *, publishes: bool) -> None:
        """
        Check that a token permits receiving from an address, or sending to it.

        Args:
            address: The parsed address: how a peer spells it must not matter.

        Raises:
            Refused: UNAUTHORIZED, there is no token for it.
        """

    def require_all(self) -> None:
        """
        Check that a token covers all entities, as dynamic nodes, the anonymous relay and transactions need.

        Raises:
            Refused: UNAUTHORIZED, there is no token for everything.
        """


class Authorization:
    """
    What one connection may do.

    Args:
        permissions: The permissions of its user.
        owner: The connection, as the owner of temporary and exclusive nodes of the Message VPN it opened.
        tokens: What its tokens permit; None where its user is known by other means. Both tokens and rules have to
            permit.
    """

    def __init__(
        self, user: str, permissions: Permissions, owner: NodeOwner, tokens: TokenCheck | None
    ) -> None:
        self._user = user
        self._tokens = tokens
        self._permissions = permissions
        self._endpoints = owner.endpoints
        self._owner = owner

    def require_target(self, address: Address) -> None:
        """
        Check that the client may publish to an address.

        Raises:
            Denied: No rule permits it.
            Refused: UNAUTHORIZED, there is no token for it.
        """
        name = address.name
        if self._tokens is not None:
            self._tokens.require(address, publishes=True)
        if address.kind in (AddressKind.QUEUE, AddressKind.TOPIC) and not self._is_temporary(name):
            self._require(Action.PUBLISH, address.kind, name)

    def require_source(
        self,
        address: Address,
        start: ReplayStart | None,
        *,
        browses: bool,
        durable_name: str | None,
        is_everybodys: bool = False,
    ) -> None:
        """
        Check that the client may consume from an address, browse it, or replay it first.

        Args:
            start: The start that the peer asked for; ``live`` is no replay.
            browses: Whether the peer asks for copies.
            durable_name: The name that a subscription to a topic is to be kept under; None if it is not to be kept.
            is_everybodys: Whether the peer asks for a subscription that all users share.

        Raises:
            Denied: No rule permits it.
            Refused: RESOURCE_LOCKED, the queue is exclusive to another connection.
        """
        kind, name = address.kind, address.name
        if kind is AddressKind.LOG:
            self._require(Action.CONSUME, AddressKind.LOG, name)
        elif kind is AddressKind.PARTITION:
            self._require(Action.CONSUME, AddressKind.LOG, queue_topic(name))
        elif kind in (AddressKind.QUEUE, AddressKind.TOPIC) and not self._owner.owns(name):
            is_private = name in self._owner.registry.private
            if self._is_temporary(name) and (is_private or not self._permissions.is_open):
                # A client that was told its name may reply to it; no rule lets it take the replies (JMS 2.0, 6.2.2).
                raise Denied(f"{kind.value}://{name} belongs to another client", "its owner")
            is_browser = browses and kind is AddressKind.QUEUE
            self._require(Action.BROWSE if is_browser else Action.CONSUME, kind, name)
            if start is not None and start.kind is not StartKind.LIVE and not is_browser:
                self._require_replay(address)
        if kind is AddressKind.QUEUE:
            self.require_unlocked(name)
        if kind is AddressKind.TOPIC and durable_name is not None:
            self._require_takeover(durable_name, name, is_everybodys=is_everybodys)

    def require_log_of(self, queue: str, *, makes: bool) -> None:
        """
        Check that the client may read a queue's messages from the log, by an address of the queue.

        Args:
            makes: Whether the attach makes the queue.

        Raises:
            Denied: No rule permits it.
            Refused: RESOURCE_LOCKED, the queue is exclusive to another connection.
        """
        if makes:
            self._require(Action.CONSUME, AddressKind.QUEUE, queue)
        self._require(Action.CONSUME, AddressKind.LOG, queue_topic(queue))
        self.require_unlocked(queue)

    def require_any(self, actions: Sequence[Action], kind: AddressKind, name: str) -> None:
        """
        Check that any of these actions on a queue or topic is permitted, for a request to a request node.

        Raises:
            Denied: No rule permits any of them.
        """
        if not any(self._permissions.decide(action, kind, name).is_allowed for action in actions):
            self._require(actions[-1], kind, name)

    def require_unlocked(self, queue: str) -> None:
        """
        Check that a queue is not exclusive to another connection.

        Raises:
            Refused: RESOURCE_LOCKED, it is.
        """
        exclusive = self._owner.registry.exclusive.get(queue)
        if exclusive is not None and exclusive.owner is not self._owner and exclusive.is_there:
            raise Refused(ErrorCode.RESOURCE_LOCKED, locked_text(queue))

    def _require_replay(self, address: Address) -> None:
        """Check that the client may rewind an endpoint. A view of the log is read from any start, and not rewound."""
        found = self._endpoints.by_name.get(address.name) if address.kind is AddressKind.QUEUE else None
        if found is not None and found.kind.is_view:
            return
        if found is None and address.options.get("kind") == EndpointKind.STREAM.value:
            return
        self._require(Action.REPLAY, address.kind, address.name)

    def _is_temporary(self, name: str) -> bool:
        return name in self._owner.registry.owners

    @property
    def owner_name(self) -> str:
        """The owner of the subscriptions that the client makes; empty where no users are configured."""
        return "" if self._permissions.is_open else self._user

    def _require_takeover(self, name: str, pattern: str, *, is_everybodys: bool) -> None:
        """Check an attach to a durable topic endpoint: it gets the backlog, or drops it by another subscription."""
        found = self._endpoints.by_name.get(name)
        if found is None or found.kind is not EndpointKind.TOPIC_ENDPOINT:
            return
        self._require_topics(found)
        if list(found.subscriptions) != [pattern]:
            self.require_deletion(found)
        elif not (is_everybodys and found.settings.exclusive is Exclusivity.NONE):
            self.require_owner(found)

    def _require_topics(self, subscription: Endpoint) -> None:
        for pattern in subscription.subscriptions:
            if not pattern.startswith("!"):
                self._require(Action.CONSUME, AddressKind.TOPIC, pattern)

    def require_owner(self, subscription: Endpoint) -> None:
        """
        Check that the client may consume the backlog of a subscription.

        Raises:
            Denied: The subscription is another user's.
        """
        owner = subscription.settings.owner
        if owner and owner != self._user and not self._permissions.is_open:
            raise Denied(f"the subscription {subscription.name!r} belongs to another user", "its owner")

    def require_deletion(self, subscription: Endpoint) -> None:
        """
        Check that the client may delete or change a subscription: its owner may; if it has no owner, a user who may
        administer its topics.

        Raises:
            Denied: The user may not.
        """
        self._require_topics(subscription)
        self.require_owner(subscription)
        if not subscription.settings.owner:
            for pattern in subscription.subscriptions:
                self._require(Action.ADMINISTER, AddressKind.TOPIC, pattern.removeprefix("!"))

    def _require(self, action: Action, kind: AddressKind, name: str) -> None:
        decision = self._permissions.decide(action, kind, name)
        if decision.is_allowed:
            return
        what = "publish to" if action is Action.PUBLISH else action.value
        text = f"user {self._user!r} may not {what} {kind.value}://{name}"
        if action is not Action.PUBLISH and kind is not AddressKind.QUEUE:
            text += ": everything that it matches has to be permitted"
        raise Denied(text, decision.rule)
