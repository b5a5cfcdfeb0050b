"""
The client of an open connection: which Message VPN it is in, what it may do there, and what its links are given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from amqp_ext.frames.sole_connection import EnforcementPolicy
from gateway import log_keys
from gateway.amqp.attach.authorization import Authorization
from gateway.amqp.attach.vpn_state import LinkKey, StealableLink, VpnState
from gateway.amqp.connected_client import ConnectedClient
from gateway.amqp.connection_log import ConnectionLog
from gateway.amqp.dialects.hooks import BatchedTransfers, TokenCheck
from gateway.amqp.dialects.spoken import Spoken
from gateway.amqp.engine.carrier import Carrier
from gateway.amqp.engine.link_table import LinkTable
from gateway.amqp.engine.output import Output
from gateway.amqp.links.local_transactions import LocalTransactions
from gateway.amqp.nodes.ownership import NodeOwner
from gateway.amqp.tasks import Tasks
from gateway.config import Limits, LinkStealing
from gateway.core.errors import ErrorCode, Refused
from gateway.users import Users
from gateway.vpn.message_vpn import MessageVpn


class CarryingConnection(Protocol):
    """What a client uses of the connection that carries its links."""

    @property
    def identity(self) -> ConnectedClient:
        """Who the client is."""

    @property
    def limits(self) -> Limits:
        """Those in effect when it connected."""

    @property
    def links(self) -> LinkTable:
        """Its links and sessions."""

    @property
    def output(self) -> Output:
        """What it writes."""

    @property
    def log(self) -> ConnectionLog:
        """Lines about it."""

    @property
    def tasks(self) -> Tasks:
        """Work that takes time and is done for it."""

    @property
    def is_open(self) -> bool:
        """It can still carry something."""

    def refuse(self, refused: Refused) -> None:
        """Close it with an error."""

    def redirect(self, refused: Refused) -> None:
        """Close it, so that its client goes to another gateway."""


class Client:
    """
    The client of one open connection.

    Args:
        connection: What carries its links.
        vpn: The Message VPN it opened.
        users: All of the gateway's.
        shared: What that Message VPN's clients have in common.
        is_stopping: Whether the gateway is being stopped.
        spoken: What its listener speaks beyond AMQP 1.0.
        batches: Which deliveries bring several messages, where a dialect has such.
        shows_tokens: Only tokens say who it is.
        link_stealing: Within what a name that is attached again takes the older link's place.
    """

    def __init__(
        self,
        connection: CarryingConnection,
        vpn: MessageVpn,
        users: Users,
        shared: VpnState,
        is_stopping: Callable[[], bool],
        spoken: Spoken,
        batches: BatchedTransfers | None,
        *,
        shows_tokens: bool,
        link_stealing: LinkStealing = "session",
    ) -> None:
        self._link_stealing = link_stealing
        self.vpn = vpn
        self.is_stopping = is_stopping
        self.identity = connection.identity
        self.limits = connection.limits
        self.carrier = Carrier(connection.links, connection.output, connection.log)
        self.log = connection.log
        self.spawn = connection.tasks.spawn
        if vpn.lease is not None:
            connection.output.watch(vpn.lease)
        self._connection: CarryingConnection | None = connection
        self._users = users
        self._shared = shared
        self._token_user: str | None = None
        """The user that its tokens are of."""
        self.transactions = LocalTransactions(
            vpn.publishing,
            self.identity.origin,
            self.limits,
            connection.links.account,
            self.log,
            connection.output.schedule_flush,
        )
        self.owner = NodeOwner(self.identity, shared.nodes)
        """What it owns, and what goes with it."""
        self.spoken = spoken
        self.batches = batches
        self.token_check: TokenCheck | None = spoken.token_check(self) if shows_tokens else None
        """What its tokens permit, where tokens say who it is."""
        self._authorize()

    def _authorize(self) -> None:
        user = self.identity.user
        self.authorization = Authorization(
            user, self._users.permissions(user), self.vpn.endpoints, self.owner, self.token_check
        )
        self.relay_topics = self._shared.relay_topics_of(user)

    @property
    def origin(self) -> str:
        """Whom its messages come from, for consumers that do not want their own."""
        return self.identity.origin

    @property
    def user(self) -> str:
        """Whose permissions it has."""
        return self.identity.user

    @property
    def is_connected(self) -> bool:
        """Its connection can still carry something."""
        return self._connection is not None and self._connection.is_open

    def become(self, user: str) -> None:
        """
        A token has said who the client is.

        Raises:
            Refused: UNAUTHORIZED, the user may not enter the Message VPN, or it is another user's connection.
        """
        if self._token_user not in (None, user):
            raise Refused(
                ErrorCode.UNAUTHORIZED,
                f"this connection is user {self._token_user!r}'s: connect anew for {user!r}",
            )
        if self._token_user is None:
            self._users.check_entry(user, self.vpn.name)
            self._token_user = user
            self.identity.sign_in(user)
            self._authorize()
            self.log.bind(**{log_keys.USER: user})

    def stand_alone(self, policy: EnforcementPolicy | None) -> bool:
        """
        Its connection is about to be opened; its container may want it to be the only one, or have one that is.

        Returns:
            Whether that is kept. It is not for who has no container-id, and for whom only tokens say who it is: these
            come later.

        Raises:
            Refused: INVALID_FIELD, there is another, which is kept.
        """
        container = self.identity.peer_container
        if not container or self.token_check is not None:
            return False
        self._shared.sole_connections.join(self, self.user, container, policy)
        return policy is not None

    def displace(self, refused: Refused) -> None:
        """Another connection of its container takes its place: close it, and let go of what is its alone."""
        self.refuse(refused)
        for queue in list(self.owner.exclusive_queues):
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
                return (self.user, self.origin, publishes, name)

    def steal(self, name: str, *, publishes: bool) -> None:
        """A link's name is attached: an older link of that name ends, within what the listener has it mean (2.6.1)."""
        key = self._key_of(name, publishes=publishes)
        older = None if key is None else self._shared.links.pop(key, None)
        if older is not None:
            older.steal()

    def attached(self, link: StealableLink, name: str, *, publishes: bool) -> None:
        """A link was attached by this name."""
        key = self._key_of(name, publishes=publishes)
        if key is not None:
            self._shared.links[key] = link

    def refuse(self, refused: Refused) -> None:
        """Close its connection with an error."""
        if self._connection is not None:
            self._connection.refuse(refused)

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
            self._connection.redirect(refused)

    def release_nodes(self, guarded: Callable[[Callable[[], None]], None]) -> None:
        """
        Its connection is gone, and nodes with it.

        Args:
            guarded: Calls what it is given, whatever that raises: no node's mistake is to cost another its end.
        """
        for queue in self.owner.exclusive_queues:
            guarded(queue.release)

    def left(self) -> None:
        """Its connection is gone, is not held any more, and forgotten with it whose messages are whose."""
        self._connection = None
        self._shared.sole_connections.leave(self, self.user, self.identity.peer_container)
        self.vpn.origins.forget(self)
