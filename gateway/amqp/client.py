"""
The client of an open connection: its Message VPN, its permissions, its transactions, its temporary nodes; and the state
that all clients of one Message VPN share.

A client may ask that its container has no second connection (AMQP Enforcing Connection Uniqueness 1.0), in one Message
VPN, over all listeners. A container-id is whatever a client says, so it counts among the connections of one user only:
nobody closes, or keeps out, another user's.
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
        connection: What carries its links.
        vpn: The Message VPN it opened.
        shared: What that Message VPN's clients have in common.
        spoken: What its listener speaks beyond AMQP 1.0.
        batches: Which deliveries bring several messages, where a dialect has such.
        shows_tokens: Only tokens say who it is.
        link_stealing: Within what a name that is attached again takes the older link's place.
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
        """A token has said whose it is, and no other token may say otherwise."""
        self._expiry: asyncio.TimerHandle | None = None
        """When the token has to be looked at again that it has signed in with."""
        self.is_alone = False
        """Its container wants to have no other connection, and that is kept."""
        self.transactions = LocalTransactions(
            vpn.publishing,
            self.identity.origin,
            self.limits,
            connection.links.account,
            self.log,
            connection.output.schedule_flush,
        )
        self.owner = NodeOwner(self.identity, shared.nodes, vpn.endpoints)
        """What it owns, and what goes with it."""
        self.spoken = spoken
        self.batches = batches
        self.token_check: TokenCheck | None = spoken.token_check() if shows_tokens else None
        """What its tokens permit, where tokens say who it is."""
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
        """Whose permissions it has."""
        return self.identity.user

    @property
    def is_connected(self) -> bool:
        """Its connection can still carry something."""
        return self._connection is not None and self._connection.is_open

    def become(self, who: Who) -> None:
        """
        A token has said who the client is.

        Raises:
            Refused: UNAUTHORIZED, the user may not enter the Message VPN, or it is another user's connection; or the
                same user's, with other rights.
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
                ErrorCode.UNAUTHORIZED, f"this connection is user {self.user!r}'s: connect anew for {user!r}"
            )
        before = self.identity.token_user
        if (before and before.said) != (token_user and token_user.said):
            # What it had been permitted is spread over its links, as after a reload.
            raise Refused(
                ErrorCode.UNAUTHORIZED,
                "the token gives other rights than the one before it: connect anew, as links keep theirs",
            )

    def renew(self, user: TokenUser) -> None:
        """
        It has shown a newer token than the one that it has signed in with.

        Raises:
            Refused: PRECONDITION_FAILED, it has signed in otherwise; else as ``become``.
        """
        before = self.identity.token_user
        if before is None or not self.is_by_token:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                "this connection was not signed in by a token, and so none of it expires",
            )
        self.become(user)
        if user.expires_s > before.expires_s:  # else the one before holds longer
            self.identity.token_user = user
            self._hold_with(user)

    def _hold_with(self, user: TokenUser) -> None:
        text = "the token has expired, and none came in its place; sign in again"
        self.expire_at(user.held_until_s, text)

    def expire_at(self, expires_s: float, text: str) -> None:
        """Close the connection at a time, in s since the epoch, and say why; unless another time is said before."""
        if self._expiry is not None:
            self._expiry.cancel()
        # No longer than a day: the machine's clock may be set.
        wait_s = min(max(expires_s - SystemClock.now_ms() / 1_000, 0.0), 86_400)
        self._expiry = asyncio.get_running_loop().call_later(wait_s, self._expire, expires_s, text)

    def _expire(self, expires_s: float, text: str) -> None:
        if SystemClock.now_ms() / 1_000 < expires_s:
            self.expire_at(expires_s, text)
        else:
            self.refuse(Refused(ErrorCode.UNAUTHORIZED, text))

    def stand_alone(self, policy: EnforcementPolicy | None) -> None:
        """
        Its connection is about to be opened; its container may want it to be the only one, or have one that is. That is
        not kept for who has no container-id, and for whom only tokens say who it is: these come later.

        Raises:
            Refused: INVALID_FIELD, there is another, which is kept.
        """
        container = self.identity.peer_container
        if container and self.token_check is None:
            self._shared.sole_connections.join(self, self.user, container, policy)
            self.is_alone = policy is not None

    def displace(self, refused: Refused) -> None:
        """Another connection of its container takes its place: close it, and let go of what is its alone."""
        self.refuse(refused)
        for queue in list(self.owner.exclusive.values()):
            queue.release()

    def _key_of(self, name: str, *, publishes: bool) -> LinkKey | None:
        """What a link is known by beyond its session; None where its name means nothing there."""
        match self._link_stealing:
            case "session":
                return None
            case "connection":
                return (self.identity.number, "", publishes, name)
            case "container":
                # Of the same user: a container-id is whatever a client says.
                return (self.user, self.identity.origin, publishes, name)

    def steal(self, name: str, *, publishes: bool) -> None:
        """A link's name is attached: an older link of that name ends, within what the listener has it mean (2.6.1)."""
        key = self._key_of(name, publishes=publishes)
        older = None if key is None else self._shared.links.pop(key, None)
        if older is not None:
            older.steal()

    def attached(self, link: AttachedLink, name: str, *, publishes: bool) -> None:
        """A link was attached by this name."""
        key = self._key_of(name, publishes=publishes)
        if key is not None:
            self._shared.links[key] = link

    def refuse(self, refused: Refused) -> None:
        """Close its connection with an error."""
        if self._connection is not None:
            self._connection.closing.refuse(refused)

    def require_active(self) -> None:
        """
        Something is asked for that the active gateway alone does.

        Raises:
            Refused: REDIRECT, this is not the one.
        """
        if self.vpn.elsewhere is not None:
            raise self.vpn.elsewhere()

    def redirect(self, refused: Refused) -> None:
        """Another gateway does what it asks for: its connection ends, so that it goes there with all of its links."""
        if self._connection is not None:
            self._shared.sent_away.note(self.identity.peer, self.identity.peer_container)
            self._connection.closing.redirect(refused)

    def kind_of_queue(self, address: Address) -> EndpointKind | None:
        """
        What an attach says that its queue is; None where it says nothing. One that it makes may be a stream without a
        word, as the listener's dialect has it.
        """
        kind = address.options.get("kind")
        if kind is not None:
            return EndpointKind(kind)
        is_made = self.spoken.queues_are_streams and self.vpn.endpoints.by_name.get(address.name) is None
        return EndpointKind.STREAM if is_made else None

    def queue_at(self, address: Address) -> Endpoint:
        """
        The queue or stream at an address, made where that is allowed; await that it is committed.

        Raises:
            Refused: NOT_FOUND, it is not there and may not be made; PRECONDITION_FAILED, it is another than the address
                says.
        """
        return self.vpn.endpoints.queue_at(address, self.kind_of_queue(address))

    def release_nodes(self, guarded: Callable[[Callable[[], None]], None]) -> None:
        """
        Its connection is gone, and nodes with it.

        Args:
            guarded: Calls what it is given, whatever that raises: no node's mistake is to cost another its end.
        """
        for queue in list(self.owner.exclusive.values()):
            guarded(queue.release)

    def left(self) -> None:
        """Its connection is gone, is not held any more, and forgotten with it whose messages are whose."""
        self._connection = None
        if self._expiry is not None:
            self._expiry.cancel()
        self._shared.sole_connections.leave(self, self.user, self.identity.peer_container)
        self.vpn.origins.forget(self)


LinkKey: TypeAlias = "tuple[int | str, str, bool, str]"
"""A connection, or a user and its container-id; whether the peer sends on the link; the link's name."""


class VpnState:
    """
    What the clients of one Message VPN have in common; kept while the gateway runs, and no longer.

    Args:
        users: All of the gateway's.
        is_stopping: Whether the gateway is being stopped.
    """

    def __init__(self, users: Users, is_stopping: Callable[[], bool]) -> None:
        self.users = users
        self.is_stopping = is_stopping
        self.nodes = NodeRegistry()
        """Temporary and exclusive nodes, and whose they are."""
        self.links: WeakValueDictionary[LinkKey, AttachedLink] = WeakValueDictionary()
        """Attached links by what they are known by beyond their sessions, where that counts."""
        self.sole_connections = SoleConnections()
        """Connections whose containers want one alone."""
        self.sent_away = SentAway()
        """Clients that came for what another gateway does."""
        self.relay_topics: dict[str, dict[Destination, str]] = {}
        """By user: the topics that messages' ``to`` were found to mean, and that this user may publish to."""


@dataclass(slots=True)
class _Container:
    """The connections of one container-id: thousands may use the same, and few ask to be the only one."""

    asking: dict[Client, EnforcementPolicy] = field(default_factory=dict)
    silent: dict[Client, None] = field(default_factory=dict)

    def in_force(self, policy: EnforcementPolicy | None) -> Iterable[tuple[Client, EnforcementPolicy]]:
        """Who is connected, and what becomes of it, or of one with this policy, by the older one's where it has one."""
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
        A connection is about to be opened. An older one's policy is the one in force, where it has one.

        Args:
            policy: What it asks of others; None where it asks for nothing.

        Raises:
            Refused: INVALID_FIELD, its container has another connection, and by the policy keeps that.
        """
        there = self._of.get((user, container)) or _Container()
        if any(in_force is EnforcementPolicy.REFUSE_CONNECTION for _, in_force in there.in_force(policy)):
            raise Refused(
                ErrorCode.INVALID_FIELD,
                f"the container {container!r:.80} has a connection, and is to have no other (refuse-connection)",
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
        """It is gone; nothing happens where it had not joined."""
        there = self._of.get((user, container))
        if there is None:
            return
        there.asking.pop(client, None)
        there.silent.pop(client, None)
        if not there.asking and not there.silent:
            del self._of[user, container]
