"""
The AMQP container of this process: its listeners, its connections, and what these share.

A listener is one address that clients connect to. It accepts sockets, does the TLS handshake, and gives each connection
an acceptor with the listener's settings as they were when the client connected.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Collection
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import structlog
from proton import Link

from amqp_ext.frames.performatives import EnforcementPolicy
from amqp_ext.frames.termini import AttachedTermini
from amqp_ext.sasl import Identity, SaslServer
from gateway.amqp.admission import Admission, Admitted, NoRoom
from gateway.amqp.attach.attach import AttachRequest, attach
from gateway.amqp.attach.sources import source_setup
from gateway.amqp.attach.targets import target_setup
from gateway.amqp.client import Client, VpnState
from gateway.amqp.connection import BatchedTransfers, ConnectedClient, Connection, FrameHooks
from gateway.amqp.dialects.hooks import Spoken
from gateway.amqp.dialects.registry import Dialects
from gateway.amqp.websocket import WebSocketTransport
from gateway.config import LinkStealing, Listener, Settings, authority
from gateway.config.settings import UnknownHostname
from gateway.core.errors import ErrorCode, Refused
from gateway.identity_providers import TokenUser
from gateway.ledger import Account, Ledger
from gateway.logging import log_keys
from gateway.logging.lines import PeerLines
from gateway.sockets import accepted_from, tell_refused
from gateway.tls import TlsError, renew, server_context
from gateway.users import PasswordChecks, Users
from gateway.vpn.hosted import MessageVpns
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.role import WaitingVpn
from gateway.vpn.runtime import keep

log = structlog.get_logger()

RELIEF_SECONDS: Final = 2.0
"""How often the ledger looks for publishers that wait in vain (``Ledger.relieve``)."""


class Container:
    """
    The AMQP container of this process.

    Args:
        vpns: All Message VPNs of the gateway; ``default`` is one of them.
    """

    def __init__(self, settings: Settings, users: Users, vpns: MessageVpns) -> None:
        self.settings = settings
        self.container_id = f"rewind-{secrets.token_hex(4)}"
        self.connections: dict[Connection, None] = {}
        self.failures = 0
        """Internal errors that closed a connection or a link, since the start."""
        self.ledger = Ledger(settings.limits.memory_bytes, settings.limits.user_bytes)
        """The bytes that the gateway holds for its peers."""
        self.admission = Admission(lambda: self.settings.limits, self.ledger)
        """Who may connect."""
        self.lines = PeerLines(time.monotonic)
        """How many log lines an address may cause."""
        self.password_checks = PasswordChecks()
        """Where clients' passwords are hashed."""
        self._relief: asyncio.TimerHandle | None = None
        self.users = users
        self._vpns = vpns
        self.dialects = Dialects(users)
        self._is_stopping = False
        self._number = 0
        self._shared: WeakKeyDictionary[MessageVpn, VpnState] = WeakKeyDictionary()
        """A Message VPN that was deposed and is active again is a new object, and has a new state."""
        self._listeners = [AmqpListener(self, listener) for listener in settings.listeners]

    def reload(self, settings: Settings, changed_users: Collection[str]) -> None:
        """
        Apply these settings to new connections; the directory of users has them already. The connections of changed
        users are closed, as their old permissions are spread over their links, and with them those that sign in.

        Args:
            changed_users: Names of the users whose settings have changed.

        Raises:
            gateway.tls.TlsError: A certificate cannot be used; everything else is applied.
        """
        self.settings = settings
        for shared in list(self._shared.values()):
            # Permissions may have changed. A client that stays connected keeps its own map.
            shared.relay_topics.clear()
        refused = Refused(
            ErrorCode.CONNECTION_FORCED, "the configuration of this user has changed; connect again"
        )
        for connection in list(self.connections):
            is_changed = self.users.has_changed(connection.identity.who, changed_users)
            # The password that a client has shown may no longer be right.
            if is_changed or (changed_users and connection.is_signing_in):
                connection.stop(refused)
        failed: TlsError | None = None
        self.ledger.set_bounds(settings.limits.memory_bytes, settings.limits.user_bytes)
        for listener, its_settings in zip(self._listeners, settings.listeners, strict=True):
            try:
                listener.reload(its_settings)
            except TlsError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    async def start(self) -> list[str]:
        """Begin to accept clients; return the URLs that they use."""
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
        """Accept no more clients, close all connections, and wait a little for the peers to answer."""
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
        """The state that all clients of a Message VPN share."""
        found = self._shared.get(vpn)
        if found is None:
            found = self._shared[vpn] = VpnState(self.users, lambda: self._is_stopping)
        return found

    def admit(self, address: str, user: str) -> tuple[int, Callable[[], None]]:
        """
        Admit an HTTP client whose user has signed in from this IP address: it counts as a connection.

        Returns:
            Its number, and the function that frees its place.

        Raises:
            Refused: RESOURCE_LIMIT, it would be one connection too many.
        """
        admitted = self.admission.admit_user(address, user)
        return self.next_number(), admitted.leave

    # --- what listeners use -----------------------------------------------------------------------------------------

    def next_number(self) -> int:
        """A number for a new connection."""
        self._number += 1
        return self._number

    def vpn_for(
        self, hostname: str | None, client: ConnectedClient, unknown: UnknownHostname, *, is_known: bool
    ) -> MessageVpn:
        """
        The Message VPN that the hostname of an open frame names, as ``name`` or ``vhost:name``; else ``default``.

        Args:
            unknown: What happens where the hostname names no Message VPN.
            is_known: Whether the client's user is known yet. If not, entry is checked when a token names the user.

        Raises:
            Refused: NOT_FOUND, there is no such Message VPN; UNAUTHORIZED, the user may not enter it; NOT_ALLOWED, it
                is not enabled; REDIRECT, another gateway is active.
        """
        asked = hostname or ""
        vpn = self._vpn_of(asked.removeprefix("vhost:"))
        if vpn is None and asked and (unknown == "refuse" or asked.startswith("vhost:")):
            raise Refused(
                ErrorCode.NOT_FOUND, f"there is no Message VPN {asked.removeprefix('vhost:')!r:.80}"
            )
        is_named = vpn is not None
        vpn = vpn or self._vpn_of("default")
        assert vpn is not None
        if is_known:
            self.users.check_entry(client.who, vpn.name)
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


class ListenerTerms(NamedTuple):
    """What a listener's settings say about its connections."""

    spoken: Spoken
    """What the listener speaks beyond AMQP 1.0."""
    mechanisms: tuple[str, ...]
    """SASL mechanisms to offer, best first."""
    accepts_tokens: bool
    link_stealing: LinkStealing
    """The scope within which a link displaces an older link of the same name."""
    unknown_hostname: UnknownHostname
    """What happens where the hostname of an open frame names no Message VPN."""


class ListenerAcceptor:
    """
    What a listener gives to one connection (``gateway.amqp.connection.Acceptor``).

    Args:
        terms: From the listener's settings at the time when the client connected.
    """

    def __init__(self, container: Container, admitted: Admitted, terms: ListenerTerms) -> None:
        self.limits = container.settings.limits
        self.container_id = container.container_id
        self.offered_capabilities = terms.spoken.offered_capabilities
        self.open_properties = terms.spoken.open_properties
        self._container = container
        self._admitted = admitted
        self._terms = terms
        self._batches: BatchedTransfers | None = None
        self._shows_tokens = False
        """Whether only tokens that the client puts at a node say who it is."""
        self._token_user: TokenUser | None = None
        """The user of the token that the client has signed in with; None where it used no token."""
        self._client: Client | None = None

    def account(self, close: Callable[[str], None]) -> Account:
        return self._container.ledger.open(self.limits.connection_bytes, close)

    def joined(self, connection: Connection) -> None:
        self._container.connections[connection] = None

    def opened(self, identity: Identity) -> None:
        self._admitted.opened()
        if not identity.is_anonymous:
            self._admitted.sign_in(identity.user)

    def left(self, connection: Connection) -> None:
        self._admitted.leave()
        self._container.connections.pop(connection, None)
        self._client = None

    def admits_line(self, kind: str, held_back: int) -> int | None:
        return self._container.lines.admit(self._admitted.address, kind, held_back)

    def count_failure(self) -> None:
        self._container.failures += 1

    def sasl(self, certificate_name: str | None) -> SaslServer:
        users, terms = self._container.users, self._terms
        return SaslServer(
            mechanisms=terms.mechanisms,
            credentials=lambda name: users.passwords.get(name),  # noqa: PLW0108 - a reload exchanges the mapping
            verified=users.verified,
            external_user=users.name_of_certificate(certificate_name),
            sasl_required="ANONYMOUS" not in terms.mechanisms,
            nonce=lambda: secrets.token_urlsafe(18),
            passwords_are_tokens=terms.spoken.passwords_are_tokens and bool(users.providers),
            decoy_key=users.decoy_key,
            decoy_iterations=users.decoy_iterations,
        )

    async def check_password(self, work: Callable[[], bool]) -> bool:
        return await self._container.password_checks.check(self._admitted.address, work)

    async def sign_in_by_token(self, token: str) -> str:
        self._token_user = await self._container.users.of_token(token)
        return self._token_user.name

    def frame_hooks(self, identity: Identity) -> FrameHooks | None:
        self._shows_tokens = self._terms.accepts_tokens and identity.is_anonymous
        frames = self._terms.spoken.frames(self.limits.max_frame_bytes)
        if frames is not None:
            self._batches = frames.batches
        return frames

    def open_client(
        self, connection: Connection, hostname: str | None, policy: EnforcementPolicy | None
    ) -> Client:
        terms = self._terms
        connection.identity.token_user = self._token_user
        vpn = self._container.vpn_for(
            terms.spoken.vpn_name_of(hostname),
            connection.identity,
            terms.unknown_hostname,
            is_known=not self._shows_tokens,
        )
        client = Client(
            connection,
            vpn,
            self._container.shared_by(vpn),
            terms.spoken,
            self._batches,
            shows_tokens=self._shows_tokens,
            link_stealing=terms.link_stealing,
        )
        try:
            client.stand_alone(policy)
        except Refused:
            client.left()
            raise
        self._client = client
        return client

    async def attach(self, link: Link, termini: AttachedTermini) -> None:
        if self._client is not None:
            request = AttachRequest(link, termini)
            await attach(self._client, request, target_setup if request.publishes else source_setup)


class AmqpListener:
    """One address that clients connect to."""

    def __init__(self, container: Container, settings: Listener) -> None:
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
        spoken = container.dialects.spoken_by(settings)
        accepts_tokens = container.settings.accepts_tokens(settings)
        mechanisms = spoken.mechanisms(container.settings.mechanisms(settings), accepts_tokens=accepts_tokens)
        self._terms = ListenerTerms(
            spoken, mechanisms, accepts_tokens, settings.link_stealing, settings.unknown_hostname
        )

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
            keep(asyncio.create_task(self._connect(accepted, admitted)), self._connecting)

    async def _connect(self, accepted: socket.socket, admitted: Admitted) -> None:
        """Begin a connection, behind TLS where the listener has it."""
        acceptor = ListenerAcceptor(self._container, admitted, self._terms)
        connection = Connection(acceptor, self._container.next_number())
        websocket = self._settings.websocket
        protocol = connection if websocket is None else WebSocketTransport(connection, websocket)
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._tls,
                # A TLS handshake that never ends must not hold a socket for asyncio's default of 60 s.
                ssl_handshake_timeout=acceptor.limits.handshake_timeout_ms / 1000 if self._tls else None,
            )
        except (OSError, asyncio.CancelledError) as error:
            # asyncio does not call this: the connection never had a socket.
            connection.connection_lost(error if isinstance(error, OSError) else None)
            accepted.close()
            if isinstance(error, asyncio.CancelledError):
                raise

    def reload(self, settings: Listener) -> None:
        """
        Apply these settings to new connections: the SASL mechanisms, and the certificate as its files hold it now.

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
    A listening socket for each address of a host. For port 0, all use the port that the first one was given.

    Raises:
        OSError: An address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_UNSPEC
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listening: list[socket.socket] = []
    try:
        for its_family, _, _, _, address in dict.fromkeys(found):
            taken = listening[0].getsockname()[1] if port == 0 and listening else address[1]
            where = (address[0], taken, *address[2:])
            # The default of 100 makes a burst of connects wait for kernel retries.
            opened = socket.create_server(where, family=its_family, backlog=backlog)
            opened.setblocking(False)
            listening.append(opened)
    except OSError:
        for opened in listening:
            opened.close()
        raise
    return listening
