"""
The AMQP container: all that is AMQP in this process, its listeners, its connections, and what these have in common.

A listener is one address that clients connect to. It accepts sockets, finishes TLS and WebSocket handshakes, and gives
each connection its acceptor: what the listener's settings were when the client connected.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol
from weakref import WeakKeyDictionary

import structlog
from proton import Link

from amqp_ext.frames.sole_connection import EnforcementPolicy
from amqp_ext.frames.termini import AttachedTermini
from amqp_ext.sasl.server import Identity, SaslServer
from gateway.amqp.admission import Admission, Admitted, NoRoom
from gateway.amqp.attach.attach import attach
from gateway.amqp.attach.client import CarryingConnection, Client, VpnState
from gateway.amqp.connection import ConnectedClient, Connection
from gateway.amqp.dialects.hooks import BatchedTransfers, FrameHooks, Spoken
from gateway.amqp.dialects.registry import Dialects
from gateway.amqp.websocket import WebSocketTransport
from gateway.config import LinkStealing, Listener, Settings, authority
from gateway.core.errors import ErrorCode, Refused
from gateway.ledger import Account, Ledger
from gateway.logging import log_keys
from gateway.logging.lines import PeerLines
from gateway.sockets import accepted_from, tell_refused
from gateway.tls import TlsError, renew, server_context
from gateway.users import PasswordChecks, Users
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.role import WaitingVpn

log = structlog.get_logger()

RELIEF_SECONDS: Final = 2.0
"""How often it is looked at whether publishers wait in vain (``Ledger.relieve``)."""


class Guest:
    """A client without AMQP, as one of all connections."""

    def __init__(self, number: int, admitted: Admitted) -> None:
        self.number = number
        self.leave = admitted.leave


class ServedVpns(Protocol):
    """The Message VPNs of the gateway (``gateway.vpn.hosted.MessageVpns``)."""

    def get(self, name: str, /) -> MessageVpn | None:
        """One that is active here."""

    @property
    def waiting(self) -> Mapping[str, WaitingVpn]:
        """By name, those whose stores other gateways have."""

    @property
    def reading(self) -> Mapping[str, MessageVpn]:
        """By name, those of them whose logs are read here."""


class Container:
    """
    All that is AMQP in this process.

    Args:
        vpns: ``default`` is among them.
    """

    def __init__(self, settings: Settings, users: Users, vpns: ServedVpns) -> None:
        self.settings = settings
        self.container_id = f"rewind-{secrets.token_hex(4)}"
        self.connections: dict[Connection, None] = {}
        self.failures = 0
        """Mistakes of ours that cost a connection or link since the start."""
        self.ledger = Ledger(settings.limits.memory_bytes, settings.limits.user_bytes)
        """What all peers make us hold."""
        self.admission = Admission(lambda: self.settings.limits, self.ledger)
        """Who may connect."""
        self.lines = PeerLines(time.monotonic)
        """How many log lines an address may cause."""
        self.password_checks = PasswordChecks()
        """Where clients' passwords are hashed."""
        self._relief: asyncio.TimerHandle | None = None
        self._users = users
        self._vpns = vpns
        self._dialects = Dialects(users)
        self._is_stopping = False
        self._number = 0
        self._shared: WeakKeyDictionary[MessageVpn, VpnState] = WeakKeyDictionary()
        """One that was deposed and is active again shares nothing with what it was."""
        self._listeners = [AmqpListener(self, listener) for listener in settings.listeners]

    def reload(self, settings: Settings, changed_users: Collection[str]) -> None:
        """
        Make these the settings for new connections; the directory of users is as they say already. Connections of
        users of whom other things are said now are closed: what they had been permitted is spread over their links.

        Args:
            changed_users: Names of users of whom other things are said now.

        Raises:
            gateway.tls.TlsError: A certificate cannot be used; all else is done.
        """
        self.settings = settings
        for shared in list(self._shared.values()):
            shared.forget_relay_topics()
        self._disconnect(changed_users)
        failed: TlsError | None = None
        self.ledger.set_bounds(settings.limits.memory_bytes, settings.limits.user_bytes)
        for listener, its_settings in zip(self._listeners, settings.listeners, strict=True):
            try:
                listener.reload(its_settings)
            except TlsError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _disconnect(self, changed_users: Collection[str]) -> None:
        """
        Close the connections of users that changed, and those that are just signing in, if any did: a password may have
        been shown that is right no longer.
        """
        refused = Refused(
            ErrorCode.CONNECTION_FORCED, "what is configured of this user has changed; connect again"
        )
        for connection in list(self.connections):
            user = connection.user
            is_changed = user in changed_users or not self._users.knows(user)
            if is_changed or (changed_users and connection.is_signing_in):
                connection.stop(refused)

    async def start(self) -> list[str]:
        """Begin to accept clients; the URLs they use."""
        self._relieve()
        return [await listener.start() for listener in self._listeners]

    def _relieve(self) -> None:
        self.ledger.relieve()
        self._tell_held_back()
        self._relief = asyncio.get_running_loop().call_later(RELIEF_SECONDS, self._relieve)

    def _tell_held_back(self, *, all_of_them: bool = False) -> None:
        for address, count in self.lines.untold(all_of_them=all_of_them):
            log.info("lines_held_back", **{log_keys.PEER: address, log_keys.HELD_BACK: count})

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Accept no more, close the connections there are, and wait a little for peers to answer."""
        self._is_stopping = True
        if self._relief is not None:
            self._relief.cancel()
        for listener in self._listeners:
            await listener.stop()
        refused = Refused(ErrorCode.CONNECTION_FORCED, "the gateway is being stopped")
        for connection in list(self.connections):
            connection.stop(refused)
        deadline = asyncio.get_running_loop().time() + grace_seconds
        while self.connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        self._tell_held_back(all_of_them=True)
        self.password_checks.close()

    def shared_by(self, vpn: MessageVpn) -> VpnState:
        """What the clients of a Message VPN have in common."""
        found = self._shared.get(vpn)
        if found is None:
            found = self._shared[vpn] = VpnState()
        return found

    def admit(self, address: str, user: str) -> Guest:
        """
        A client without AMQP is there, whose user has signed in from this IP address.

        Raises:
            Refused: RESOURCE_LIMIT, it is one connection too many.
        """
        admitted = self.admission.admit_user(address, user)
        return Guest(self.next_number(), admitted)

    # --- what listeners use (``gateway.amqp.container.ListeningContainer``) ----------------------------------------

    def next_number(self) -> int:
        """For a new connection."""
        self._number += 1
        return self._number

    def spoken_by(self, listener: Listener) -> Spoken:
        """What a listener speaks beyond AMQP 1.0."""
        return self._dialects.spoken_by(listener)

    def joined(self, connection: Connection) -> None:
        """A connection has a socket."""
        self.connections[connection] = None

    def left(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.pop(connection, None)

    def count_failure(self) -> None:
        """A mistake of ours has cost a connection."""
        self.failures += 1

    def sasl(self, mechanisms: tuple[str, ...], certificate_name: str | None) -> SaslServer:
        """A fresh negotiation; ``certificate_name`` is the common name of the client's verified certificate."""
        users = self._users
        return SaslServer(
            mechanisms=mechanisms,
            credentials=users.stored_password,
            verified=users.verified,
            external_user=users.name_of_certificate(certificate_name),
            sasl_required="ANONYMOUS" not in mechanisms,
            nonce=lambda: secrets.token_urlsafe(18),
            decoy_key=users.decoy_key,
            decoy_iterations=users.decoy_iterations,
        )

    def open_client(
        self,
        connection: CarryingConnection,
        hostname: str | None,
        spoken: Spoken,
        batches: BatchedTransfers | None,
        *,
        shows_tokens: bool,
        link_stealing: LinkStealing,
    ) -> Client:
        """
        The client of a connection, in the Message VPN that its open frame asks for.

        Args:
            shows_tokens: Who it is, it says later, by tokens.
            link_stealing: Within what a name that is attached again takes the older link's place.

        Raises:
            Refused: NOT_FOUND, there is no such Message VPN; UNAUTHORIZED, its user may not enter that; NOT_ALLOWED, it
                is not enabled; REDIRECT, another gateway is active.
        """
        vpn = self._vpn_for(hostname, connection.identity, is_known=not shows_tokens)
        return Client(
            connection,
            vpn,
            self._users,
            self.shared_by(vpn),
            lambda: self._is_stopping,
            spoken,
            batches,
            shows_tokens=shows_tokens,
            link_stealing=link_stealing,
        )

    def _vpn_for(self, hostname: str | None, client: ConnectedClient, *, is_known: bool) -> MessageVpn:
        """
        The VPN an open frame asks for: its hostname when that names one, as ``name`` or ``vhost:name``.

        Args:
            is_known: The client's user is; else that is said later (``gateway.users.Users.check_entry``).
        """
        asked = hostname or ""
        vpn = self._vpn_of(asked.removeprefix("vhost:"))
        if vpn is None and asked.startswith("vhost:"):
            raise Refused(ErrorCode.NOT_FOUND, f"there is no Message VPN {asked.removeprefix('vhost:')!r}")
        is_named = vpn is not None
        vpn = vpn or self._vpn_of("default")
        assert vpn is not None
        if is_known:
            self._users.check_entry(client.user, vpn.name)
        if not vpn.settings.enabled:
            raise Refused(ErrorCode.NOT_ALLOWED, f"the Message VPN {vpn.name!r} is not enabled")
        if isinstance(vpn, WaitingVpn):
            reading = self._vpns.reading.get(vpn.name)
            if reading is None or self.shared_by(reading).sent_away.has(client.peer, client.peer_container):
                raise vpn.refusal(hostname if is_named else None)
            return reading
        return vpn

    def _vpn_of(self, name: str) -> MessageVpn | WaitingVpn | None:
        return self._vpns.waiting.get(name) or self._vpns.get(name)


class ListeningContainer(Protocol):
    """What listeners have in common (``gateway.amqp.container.Container``)."""

    @property
    def settings(self) -> Settings:
        """Those in effect now."""

    @property
    def container_id(self) -> str:
        """Ours."""

    def next_number(self) -> int:
        """For a new connection."""

    def spoken_by(self, listener: Listener) -> Spoken:
        """What a listener speaks beyond AMQP 1.0."""

    @property
    def ledger(self) -> Ledger:
        """What all peers make us hold."""

    @property
    def admission(self) -> Admission:
        """Who may connect."""

    @property
    def lines(self) -> PeerLines:
        """How many log lines an address may cause."""

    @property
    def password_checks(self) -> PasswordChecks:
        """Where clients' passwords are hashed."""

    def joined(self, connection: Connection) -> None:
        """A connection has a socket."""

    def left(self, connection: Connection) -> None:
        """A connection is gone."""

    def count_failure(self) -> None:
        """A mistake of ours has cost a connection."""

    def sasl(self, mechanisms: tuple[str, ...], certificate_name: str | None) -> SaslServer:
        """A fresh negotiation; ``certificate_name`` is the common name of the client's verified certificate."""

    def open_client(
        self,
        connection: CarryingConnection,
        hostname: str | None,
        spoken: Spoken,
        batches: BatchedTransfers | None,
        *,
        shows_tokens: bool,
        link_stealing: LinkStealing,
    ) -> Client:
        """
        The client of a connection, in the Message VPN that its open frame asks for.

        Raises:
            Refused: There is no such Message VPN, or its user may not enter that.
        """


class ServedClient:
    """
    The client of an open connection (``gateway.amqp.acceptor.OpenClient``): its attaches are answered by ``attach``.

    Args:
        client: In its Message VPN.
        is_alone: Its container wants to have no other connection, and that is kept.
    """

    def __init__(self, client: Client, *, is_alone: bool) -> None:
        self.client = client
        self.is_alone = is_alone
        self.vpn_name = client.vpn.name
        self.wait_for_room = client.vpn.committer.wait_for_room

    async def attach(self, link: Link, termini: AttachedTermini) -> None:
        await attach(self.client, link, termini)

    def retired(self, txn_id: bytes, count: int, found: int) -> None:
        self.client.transactions.retired(txn_id, count, found)

    def abandon_transactions(self) -> None:
        self.client.transactions.abandon()

    def links_lost(self, guarded: Callable[[Callable[[], None]], None]) -> None:
        self.client.release_nodes(guarded)

    def left(self) -> None:
        self.client.left()


class ListenerAcceptor:
    """
    What a listener has one connection be (``gateway.amqp.acceptor.Acceptor``): as its settings were when the client
    connected, whatever they come to be.
    """

    def __init__(
        self,
        container: ListeningContainer,
        admitted: Admitted,
        spoken: Spoken,
        mechanisms: tuple[str, ...],
        *,
        accepts_tokens: bool,
        link_stealing: LinkStealing,
    ) -> None:
        self._link_stealing = link_stealing
        self.limits = container.settings.limits
        self._admitted = admitted
        self._container = container
        self._spoken = spoken
        self._mechanisms = mechanisms
        self._accepts_tokens = accepts_tokens
        self._frames: FrameHooks | None = None
        self._shows_tokens = False
        """Only tokens say who the client is."""

    @property
    def container_id(self) -> str:
        return self._container.container_id

    @property
    def offered_capabilities(self) -> tuple[str, ...]:
        return self._spoken.offered_capabilities

    @property
    def open_properties(self) -> Mapping[str, str]:
        return self._spoken.open_properties

    def account(self, close: Callable[[str], None]) -> Account:
        return self._container.ledger.open(self.limits.connection_bytes, close)

    def joined(self, connection: Connection) -> None:
        self._container.joined(connection)

    def opened(self, identity: Identity) -> None:
        self._admitted.opened()
        if not identity.is_anonymous:
            self._admitted.sign_in(identity.user)

    def left(self, connection: Connection) -> None:
        self._admitted.leave()
        self._container.left(connection)

    def admits_line(self, kind: str, held_back: int) -> int | None:
        return self._container.lines.admit(self._admitted.address, kind, held_back)

    def count_failure(self) -> None:
        self._container.count_failure()

    def sasl(self, certificate_name: str | None) -> SaslServer:
        return self._container.sasl(self._mechanisms, certificate_name)

    async def check_password(self, work: Callable[[], bool]) -> bool:
        return await self._container.password_checks.check(self._admitted.address, work)

    def frame_filter(self, identity: Identity) -> FrameHooks | None:
        self._shows_tokens = self._accepts_tokens and identity.is_anonymous
        self._frames = self._spoken.frames(self.limits.max_frame_bytes)
        return self._frames

    def open_client(
        self, connection: CarryingConnection, hostname: str | None, policy: EnforcementPolicy | None
    ) -> ServedClient:
        client = self._container.open_client(
            connection,
            self._spoken.vpn_name_of(hostname),
            self._spoken,
            self._frames.batches if self._frames is not None else None,
            shows_tokens=self._shows_tokens,
            link_stealing=self._link_stealing,
        )
        try:
            return ServedClient(client, is_alone=client.stand_alone(policy))
        except Refused:
            client.left()
            raise


class AmqpListener:
    """One address that clients connect to."""

    def __init__(self, container: ListeningContainer, settings: Listener) -> None:
        self._container = container
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._connecting: set[asyncio.Task[None]] = set()
        """Connections that have no socket of their own yet: their TLS handshake is under way."""
        self._tls: ssl.SSLContext | None = None
        self._apply(settings)

    def _apply(self, settings: Listener) -> None:
        container = self._container
        self._settings = settings
        self._spoken = container.spoken_by(settings)
        self._accepts_tokens = container.settings.accepts_tokens(settings)
        self._mechanisms = self._spoken.mechanisms(
            container.settings.mechanisms(settings), accepts_tokens=self._accepts_tokens
        )
        """SASL mechanisms to offer, best first."""

    async def start(self) -> str:
        """
        Bind and accept.

        Returns:
            The URL clients use.

        Raises:
            OSError: The address is taken or not ours.
            gateway.tls.TlsError: A certificate cannot be used.
        """
        settings, limits = self._settings, self._container.settings.limits
        self._tls = server_context(settings.tls) if settings.tls is not None else None
        try:
            self._sockets = await _bound(settings.host, settings.port, limits.listen_backlog)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            where = authority(settings.host, settings.port)
            raise OSError(error.errno, f"cannot listen on {where}: {reason}") from error
        loop = asyncio.get_running_loop()
        self._accepting = [loop.create_task(self._accept(listening)) for listening in self._sockets]
        return settings.url(self._sockets[0].getsockname()[1])

    async def _accept(self, listening: socket.socket) -> None:
        async for accepted, address, port in accepted_from(listening):
            try:
                admitted = self._container.admission.admit(address)
            except NoRoom as refused:
                accepted.close()
                tell_refused(self._container.lines, address, port, refused.limit)
                continue
            task = asyncio.create_task(self._connect(accepted, admitted))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket, admitted: Admitted) -> None:
        """Begin a connection, behind TLS where the listener has it."""
        acceptor = ListenerAcceptor(
            self._container,
            admitted,
            self._spoken,
            self._mechanisms,
            accepts_tokens=self._accepts_tokens,
            link_stealing=self._settings.link_stealing,
        )
        connection = Connection(acceptor, self._container.next_number())
        websocket = self._settings.websocket
        protocol = connection if websocket is None else WebSocketTransport(connection, websocket)
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._tls,
                # A handshake of TLS that never ends must not hold a socket for asyncio's minute.
                ssl_handshake_timeout=acceptor.limits.handshake_timeout_ms / 1000 if self._tls else None,
            )
        except (OSError, asyncio.CancelledError) as error:
            # Nobody else tells it: it never had a socket.
            connection.connection_lost(error if isinstance(error, OSError) else None)
            accepted.close()
            if isinstance(error, asyncio.CancelledError):
                raise

    def reload(self, settings: Listener) -> None:
        """
        Make these the settings for new connections: SASL mechanisms, and what the certificate's files hold now.

        Raises:
            gateway.tls.TlsError: A certificate cannot be used.
        """
        self._apply(settings)
        if self._tls is not None and settings.tls is not None:
            renew(self._tls, settings.tls)

    async def stop(self) -> None:
        """Accept no more."""
        tasks = [*self._accepting, *self._connecting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listening in self._sockets:
            listening.close()
        self._accepting, self._sockets = [], []


async def _bound(host: str, port: int, backlog: int) -> list[socket.socket]:
    """
    Sockets that listen on each address of a host; on port 0, on the one that the first is given.

    Raises:
        OSError: An address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_UNSPEC
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listening: list[socket.socket] = []
    try:
        for its_family, kind, protocol, _, address in dict.fromkeys(found):
            opened = socket.socket(its_family, kind, protocol)
            listening.append(opened)
            opened.setblocking(False)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if its_family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            taken = listening[0].getsockname()[1] if port == 0 and len(listening) > 1 else address[1]
            opened.bind((address[0], taken, *address[2:]))
            # The default of 100 makes a burst of connects wait for kernel retries.
            opened.listen(backlog)
    except OSError:
        for opened in listening:
            opened.close()
        raise
    return listening
