"""
What the user of a connection may do over AMQP: attaches and relayed messages compared with the user's rules.

Invariant: nothing is made and nothing is found out for a peer before it is permitted, so that a refusal tells no more
than that it is one. Temporary nodes need no rule: who made one may consume from it (that connection, and any of its
user's once the link that made it is gone), and whoever was given its name, which cannot be guessed, may send to it.
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
        Receiving from an address, or sending to it.

        Args:
            address: As it was read: how a peer spells it must not decide what it is.

        Raises:
            Refused: UNAUTHORIZED, there is no token for it.
        """

    def require_all(self) -> None:
        """
        What is of no one entity: dynamic nodes, the anonymous relay, transactions.

        Raises:
            Refused: UNAUTHORIZED, there is no token for everything.
        """


class Authorization:
    """
    What one connection may do.

    Args:
        permissions: Those of its user.
        owner: The connection, as the owner of temporary and exclusive nodes of the Message VPN it opened.
        tokens: What its tokens permit, where tokens say who it is; both they and the user's rules have to.
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
        Publishing to an address.

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
        Consuming from an address, browsing it, or replaying it first.

        Args:
            start: What the peer asked for; to be live is no replay.
            browses: The peer wants copies.
            durable_name: The name that a subscription to a topic is to be kept under; None if it is not to be kept.
            is_everybodys: It is asked for as one that everybody shares.

        Raises:
            Denied: No rule permits it.
            Refused: RESOURCE_LOCKED, another connection has it to itself.
        """
        kind, name = address.kind, address.name
        if kind is AddressKind.LOG:
            self._require(Action.CONSUME, AddressKind.LOG, name)
        elif kind is AddressKind.PARTITION:
            self._require(Action.CONSUME, AddressKind.LOG, queue_topic(name))
        elif kind in (AddressKind.QUEUE, AddressKind.TOPIC) and not self._owner.owns(name):
            is_private = name in self._owner.registry.private
            if self._is_temporary(name) and (is_private or not self._permissions.is_open):
                # Whoever was told its name may reply, and no rule has him take what others reply (JMS 2.0, 6.2.2).
                raise Denied(f"{kind.value}://{name} is another client's", "its owner")
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
        Reading what was sent to a queue from the log, by an address of the queue.

        Args:
            makes: The queue is not there, and is made by it.

        Raises:
            Denied: No rule permits it.
            Refused: RESOURCE_LOCKED, another connection has the queue to itself.
        """
        if makes:
            self._require(Action.CONSUME, AddressKind.QUEUE, queue)
        self._require(Action.CONSUME, AddressKind.LOG, queue_topic(queue))
        self.require_unlocked(queue)

    def require_any(self, actions: Sequence[Action], kind: AddressKind, name: str) -> None:
        """
        What is asked of a request node: any one of these actions on a queue or topic has to be permitted.

        Raises:
            Denied: None is.
        """
        if not any(self._permissions.decide(action, kind, name).is_allowed for action in actions):
            self._require(actions[-1], kind, name)

    def require_unlocked(self, queue: str) -> None:
        """
        What only the connection may do that has an exclusive queue, where this queue is one.

        Raises:
            Refused: RESOURCE_LOCKED, it is another connection's.
        """
        exclusive = self._owner.registry.exclusive.get(queue)
        if exclusive is not None and exclusive.owner is not self._owner and exclusive.is_there:
            raise Refused(ErrorCode.RESOURCE_LOCKED, locked_text(queue))

    def _require_replay(self, address: Address) -> None:
        """Rewinding an endpoint; the reader of a view of the log brings its own start and rewinds nothing."""
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
        """Whose the subscriptions are that the client makes: nobody's where no users are configured."""
        return "" if self._permissions.is_open else self._user

    def _require_takeover(self, name: str, pattern: str, *, is_everybodys: bool) -> None:
        """Who attaches to a durable topic endpoint gets what lies on it, or drops it with a new subscription."""
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
        Taking what lies on the endpoint of a subscription.

        Raises:
            Denied: It is another user's.
        """
        owner = subscription.settings.owner
        if owner and owner != self._user and not self._permissions.is_open:
            raise Denied(f"the subscription {subscription.name!r} is another user's", "its owner")

    def require_deletion(self, subscription: Endpoint) -> None:
        """
        Giving a subscription up, or another one in its place: its owner may; where it has none, who may administer it.

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
            text += ": all that it matches has to be permitted"
        raise Denied(text, decision.rule)
