"""
The client of an open connection: its Message VPN, its permissions, its transactions, its temporary nodes; and the state
that all clients of one Message VPN share.

A client may ask that its container has no second connection (AMQP Enforcing Connection Uniqueness 1.0), in one Message
VPN, over all listeners. A container-id is whatever a client says, so only the connections of one user are compared: no
client closes, or keeps out, another user's connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import WeakValueDictionary

from amqp_ext.addresses.address import Address
from amqp_ext.codec import Symbol
from amqp_ext.frames.performatives import ENFORCEMENT, EnforcementPolicy
from amqp_ext.message.fields import Destination
from gateway.amqp.authorization import Authorization, TokenCheck
from gateway.amqp.closing import SentAway
from gateway.amqp.connection import BatchedTransfers, Connection
from gateway.amqp.dialects.hooks import Spoken
from gateway.amqp.engine.link_table import AttachedLink
from gateway.amqp.nodes import NodeOwner, NodeRegistry
from gateway.amqp.transactions import LocalTransactions
from gateway.config import LinkStealing
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.errors import ErrorCode, Refused
from gateway.identity_providers import TokenUser
from gateway.logging import log_keys
from gateway.users import Users, Who, name_of
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.runtime import SystemClock


class Client:
    """
    The client of one open connection.

    Args:
        connection: Carries the client's links.
        vpn: The Message VPN it opened.
        shared: The state that all clients of that Message VPN share.
        spoken: What its listener speaks beyond AMQP 1.0.
        batches: Tells which deliveries carry several messages; None where no dialect has batches.
        shows_tokens: Whether only tokens that the client puts at a node say who it is.
        link_stealing: The scope within which a link displaces an older link of the same name.
    """

    def __init__(
        self,
        connection: Connection,
        vpn: MessageVpn,
        shared: VpnState,
        spoken: Spoken,
        batches: BatchedTransfers | None,
        *,
        shows_tokens: bool,
        link_stealing: LinkStealing,
    ) -> None:
        self._link_stealing = link_stealing
        self.vpn = vpn
        self.is_stopping = shared.is_stopping
        self.identity = connection.identity
        self.limits = connection.limits
        self.links = connection.links
        self.output = connection.output
        self.log = connection.log
        self.spawn = connection.tasks.spawn
        if vpn.lease is not None:
            connection.output.watch(vpn.lease)
        self._connection: Connection | None = connection
        self._shared = shared
        self._is_named = self.is_by_token = self.identity.token_user is not None
        """A token has named the connection's user; a later token may not name another."""
        self._expiry: asyncio.TimerHandle | None = None
        """Closes the connection once its token has expired."""
        self.is_alone = False
        """Its container asked to have no other connection, and the gateway enforces that."""
        self.transactions = LocalTransactions(
            vpn.publishing,
            self.identity.origin,
            self.limits,
            connection.links.account,
            self.log,
            connection.output.schedule_flush,
        )
        self.owner = NodeOwner(self.identity, shared.nodes, vpn.endpoints)
        """The temporary and exclusive nodes of this connection."""
        self.spoken = spoken
        self.batches = batches
        self.token_check: TokenCheck | None = spoken.token_check() if shows_tokens else None
        """What its tokens permit; None where its user is known by other means."""
        self._authorize()
        if self.identity.token_user is not None:
            self._hold_with(self.identity.token_user)

    def _authorize(self) -> None:
        who, user = self.identity.who, self.identity.user
        self.authorization = Authorization(
            user, self._shared.users.permissions(who), self.owner, self.token_check
        )
        is_as_configured = isinstance(who, str) or who.said is None
        self.relay_topics = self._shared.relay_topics.setdefault(user, {}) if is_as_configured else {}

    @property
    def user(self) -> str:
        """The name of the user whose permissions it has."""
        return self.identity.user

    @property
    def is_connected(self) -> bool:
        """Whether its connection is still open."""
        return self._connection is not None and self._connection.is_open

    def become(self, who: Who) -> None:
        """
        Take the user that a token names as the client's user.

        Raises:
            Refused: UNAUTHORIZED, the user may not enter the Message VPN, the connection is another user's, or the
                token gives the same user other rights.
        """
        user, token_user = name_of(who), who if isinstance(who, TokenUser) else None
        if not self._is_named:
            self._shared.users.check_entry(who, self.vpn.name)
            self._is_named = True
            self.identity.user, self.identity.token_user = user, token_user
            self._authorize()
            self.log.bind(**{log_keys.USER: user})
            return
        if self.user != user:
            raise Refused(
                ErrorCode.UNAUTHORIZED,
                f"this connection belongs to user {self.user!r}: open another one for {user!r}",
            )
        before = self.identity.token_user
        if (before and before.said) != (token_user and token_user.said):
            # Its old permissions are spread over its links, as after a reload.
            raise Refused(
                ErrorCode.UNAUTHORIZED,
                "the token gives other rights than the one before it: open another connection, because links "
                "keep their rights",
            )

    def renew(self, user: TokenUser) -> None:
        """
        Take a newer token in place of the one that the client signed in with.

        Raises:
            Refused: PRECONDITION_FAILED, the client did not sign in with a token; else as ``become``.
        """
        before = self.identity.token_user
        if before is None or not self.is_by_token:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                "this connection was not signed in by a token, so it has none that expires",
            )
        self.become(user)
        if user.expires_s > before.expires_s:  # else the older token is valid for longer
            self.identity.token_user = user
            self._hold_with(user)

    def _hold_with(self, user: TokenUser) -> None:
        text = "the token has expired, and no new one came; sign in again"
        self.expire_at(user.held_until_s, text)

    def expire_at(self, expires_s: float, text: str) -> None:
        """Close the connection at a time, in s since the epoch, and say why. A later call replaces the time."""
        if self._expiry is not None:
            self._expiry.cancel()
        # Looked at again after a day at most: somebody may set the machine's clock.
        wait_s = min(max(expires_s - SystemClock.now_ms() / 1_000, 0.0), 86_400)
        self._expiry = asyncio.get_running_loop().call_later(wait_s, self._expire, expires_s, text)

    def _expire(self, expires_s: float, text: str) -> None:
        if SystemClock.now_ms() / 1_000 < expires_s:
            self.expire_at(expires_s, text)
        else:
            self.refuse(Refused(ErrorCode.UNAUTHORIZED, text))

    def stand_alone(self, policy: EnforcementPolicy | None) -> None:
        """
        Enforce the policies of the container's connections, before this connection is opened. A client without a
        container-id is exempt, and so is a client that only tokens identify: its tokens come later.

        Raises:
            Refused: INVALID_FIELD, the container has another connection, which is kept.
        """
        container = self.identity.peer_container
        if container and self.token_check is None:
            self._shared.sole_connections.join(self, self.user, container, policy)
            self.is_alone = policy is not None

    def displace(self, refused: Refused) -> None:
        """Another connection of the container displaces this one: close it, and delete its exclusive queues."""
        self.refuse(refused)
        for queue in list(self.owner.exclusive.values()):
            queue.release()

    def _key_of(self, name: str, *, publishes: bool) -> LinkKey | None:
        """The key of a link in the scope of link stealing; None where that is the session, which needs no key."""
        match self._link_stealing:
            case "session":
                return None
            case "connection":
                return (self.identity.number, "", publishes, name)
            case "container":
                # Of the same user: a container-id is whatever a client says.
                return (self.user, self.identity.origin, publishes, name)

    def steal(self, name: str, *, publishes: bool) -> None:
        """A link attaches: end an older link of the same name in the listener's scope of link stealing (2.6.1)."""
        key = self._key_of(name, publishes=publishes)
        older = None if key is None else self._shared.links.pop(key, None)
        if older is not None:
            older.steal()

    def attached(self, link: AttachedLink, name: str, *, publishes: bool) -> None:
        """
        Remember an attached link, so that a later one of the same name can displace it. It displaces a link that was
        being attached at the same time, and was answered first.
        """
        self.steal(name, publishes=publishes)
        key = self._key_of(name, publishes=publishes)
        if key is not None:
            self._shared.links[key] = link

    def refuse(self, refused: Refused) -> None:
        """Close its connection with an error."""
        if self._connection is not None:
            self._connection.closing.refuse(refused)

    def require_active(self) -> None:
        """
        Check that this gateway may carry out what only the active gateway does.

        Raises:
            Refused: REDIRECT, another gateway is active.
        """
        if self.vpn.elsewhere is not None:
            raise self.vpn.elsewhere()

    def redirect(self, refused: Refused) -> None:
        """Close the connection, so that the client goes to the gateway that does what it asks, with all its links."""
        if self._connection is not None:
            self._shared.sent_away.note(self.identity.peer, self.identity.peer_container)
            self._connection.closing.redirect(refused)

    def kind_of_queue(self, address: Address) -> EndpointKind | None:
        """
        The kind of endpoint that an attach asks for; None where it does not say. In some dialects a queue that an
        attach makes is a stream unless the attach says otherwise.
        """
        kind = address.options.get("kind")
        if kind is not None:
            return EndpointKind(kind)
        is_made = self.spoken.queues_are_streams and self.vpn.endpoints.by_name.get(address.name) is None
        return EndpointKind.STREAM if is_made else None

    def queue_at(self, address: Address) -> Endpoint:
        """
        The queue or stream at an address, made where that is allowed; the caller awaits the commit.

        Raises:
            Refused: NOT_FOUND, it is not there and may not be made; PRECONDITION_FAILED, the address says otherwise.
        """
        return self.vpn.endpoints.queue_at(address, self.kind_of_queue(address))

    def release_nodes(self, guarded: Callable[[Callable[[], None]], None]) -> None:
        """
        The connection is gone: delete the nodes that end with it.

        Args:
            guarded: Calls a function and catches what it raises, so that a failure at one node does not stop the rest.
        """
        for queue in list(self.owner.exclusive.values()):
            guarded(queue.release)

    def left(self) -> None:
        """The connection is gone: drop the reference to it, and forget which messages came from it."""
        self._connection = None
        if self._expiry is not None:
            self._expiry.cancel()
        self._shared.sole_connections.leave(self, self.user, self.identity.peer_container)
        self.vpn.publishing.origins.forget(self)


LinkKey: TypeAlias = "tuple[int | str, str, bool, str]"
"""A connection, or a user and a container-id; whether the peer sends on the link; the link's name."""


class VpnState:
    """
    The state that all clients of one Message VPN share, in memory only.

    Args:
        users: The directory of users.
        is_stopping: Whether the gateway is being stopped.
    """

    def __init__(self, users: Users, is_stopping: Callable[[], bool]) -> None:
        self.users = users
        self.is_stopping = is_stopping
        self.nodes = NodeRegistry()
        """Temporary and exclusive nodes, and their owners."""
        self.links: WeakValueDictionary[LinkKey, AttachedLink] = WeakValueDictionary()
        """Attached links that a link of another session can displace."""
        self.sole_connections = SoleConnections()
        """Open connections, for containers that ask to have only one."""
        self.sent_away = SentAway()
        """Clients that were sent to the gateway that is active."""
        self.relay_topics: dict[str, dict[Destination, str]] = {}
        """By user: the topic of each ``to`` that messages had, where this user may publish to that topic."""


@dataclass(slots=True)
class _Container:
    """The connections of one container-id: thousands may use the same, and few ask to be the only one."""

    asking: dict[Client, EnforcementPolicy] = field(default_factory=dict)
    silent: dict[Client, None] = field(default_factory=dict)

    def in_force(self, policy: EnforcementPolicy | None) -> Iterable[tuple[Client, EnforcementPolicy]]:
        """The open connections that conflict, each with the policy that decides: its own, else the new connection's."""
        for other, its_own in self.asking.items():
            if other.is_connected:
                yield other, its_own
        if policy is not None:
            for other in self.silent:
                if other.is_connected:
                    yield other, policy


class SoleConnections:
    """The open connections of a Message VPN's clients, by user and container-id."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], _Container] = {}

    def join(self, client: Client, user: str, container: str, policy: EnforcementPolicy | None) -> None:
        """
        Enter a connection that is about to be opened. If an older connection has a policy, that one applies.

        Args:
            policy: What is to happen if the container has two connections; None where the client does not ask.

        Raises:
            Refused: INVALID_FIELD, the container has another connection, and the policy keeps that one.
        """
        there = self._of.get((user, container)) or _Container()
        if any(in_force is EnforcementPolicy.REFUSE_CONNECTION for _, in_force in there.in_force(policy)):
            raise Refused(
                ErrorCode.INVALID_FIELD,
                f"the container {container!r:.80} has a connection, and may have no second one "
                "(refuse-connection)",
                **{"invalid-field": Symbol("container-id")},
            )
        for other, _ in list(there.in_force(policy)):  # all have to go
            other.displace(
                Refused(
                    ErrorCode.RESOURCE_LOCKED,
                    f"the container {container!r:.80} has opened another connection (close-existing)",
                    **{ENFORCEMENT: True},
                )
            )
        there = self._of.setdefault((user, container), there)
        if policy is None:
            there.silent[client] = None
        else:
            there.asking[client] = policy

    def leave(self, client: Client, user: str, container: str) -> None:
        """Remove a connection; does nothing where it had not joined."""
        there = self._of.get((user, container))
        if there is None:
            return
        there.asking.pop(client, None)
        there.silent.pop(client, None)
        if not there.asking and not there.silent:
            del self._of[user, container]
