"""
A listener: one address that clients connect to, and what their connections are there.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Protocol

from proton import Link

from amqp_ext.frames.sole_connection import EnforcementPolicy
from amqp_ext.frames.termini import AttachedTermini
from amqp_ext.sasl.server import Identity, SaslServer
from gateway.accepting import accepted_from, tell_refused
from gateway.amqp.admission import Admission, Admitted, NoRoom
from gateway.amqp.attach.attach import attach
from gateway.amqp.attach.client import CarryingConnection, Client
from gateway.amqp.connection import Connection
from gateway.amqp.dialects.hooks import BatchedTransfers, FrameHooks
from gateway.amqp.dialects.spoken import Spoken
from gateway.amqp.websocket import WebSocketTransport
from gateway.config import LinkStealing, Listener, Settings, authority
from gateway.core.errors import Refused
from gateway.ledger import Account, Ledger
from gateway.password_checks import PasswordChecks
from gateway.peer_lines import PeerLines
from gateway.tls import renew, server_context


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
