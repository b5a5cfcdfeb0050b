"""
Listeners, and what all connections share: the VPNs, SASL's users, limits, the container's name.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import ssl
from collections import defaultdict
from collections.abc import Mapping

from amqp_ext.sasl.server import SaslServer
from gateway.amqp.attach.authorization import Access, VpnAccess
from gateway.amqp.connection import Connection
from gateway.amqp.dialects.registry import Dialects
from gateway.amqp.websocket import WebSocket
from gateway.config import Limits, Listener, Settings, authority
from gateway.core.errors import ErrorCode, Refused
from gateway.tls import renew, server_context
from gateway.users import Users
from gateway.vpn.message_vpn import MessageVpn


class Listening:
    """One address that clients connect to."""

    def __init__(self, container: Container, settings: Listener) -> None:
        self.container = container
        self._know(settings)
        self._server: asyncio.Server | None = None
        self._tls: ssl.SSLContext | None = None

    def _know(self, settings: Listener) -> None:
        self.settings = settings
        self.spoken = self.container.dialects.spoken_by(settings)
        self.takes_tokens = self.container.settings.takes_tokens(settings)
        self.mechanisms = self.spoken.mechanisms(
            self.container.settings.mechanisms(settings), takes_tokens=self.takes_tokens
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
        settings = self.settings
        context = self._tls = server_context(settings.tls) if settings.tls is not None else None
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._connection,
                settings.host,
                settings.port,
                family=socket.AF_INET6 if ":" in settings.host else socket.AF_UNSPEC,
                # The default of 100 makes a burst of connects wait for kernel retries.
                backlog=self.container.limits.listen_backlog,
                reuse_address=True,
                ssl=context,
                # A handshake of TLS that never ends must not hold a socket for asyncio's minute.
                ssl_handshake_timeout=self.container.limits.handshake_timeout_ms / 1000 if context else None,
            )
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            where = authority(settings.host, settings.port)
            raise OSError(error.errno, f"cannot listen on {where}: {reason}") from error
        port = self._server.sockets[0].getsockname()[1]
        return settings.url(port)

    def _connection(self) -> asyncio.Protocol:
        connection = Connection(self, self.container.next_number())
        websocket = self.settings.websocket
        return connection if websocket is None else WebSocket(connection, websocket)

    def take(self, settings: Listener) -> None:
        """
        Make these the settings for new connections: SASL mechanisms, and what the certificate's files hold now.

        Raises:
            gateway.tls.TlsError: A certificate cannot be used.
        """
        self._know(settings)
        if self._tls is not None and settings.tls is not None:
            renew(self._tls, settings.tls)

    async def stop(self) -> None:
        """Accept no more."""
        if self._server is not None:
            self._server.close()


class Container:
    """All that is AMQP in this process. ``vpns`` by name; ``default`` is among them."""

    def __init__(self, settings: Settings, users: Users, vpns: Mapping[str, MessageVpn]) -> None:
        self.settings = settings
        self.limits: Limits = settings.limits
        self.users = users
        self.name = f"rewind-{secrets.token_hex(4)}"
        self.vpns = vpns
        self.dialects = Dialects(users)
        self.connections: dict[Connection, None] = {}
        self.failures = 0
        """Mistakes of ours that cost a connection or link since the start."""
        self.transactions_bytes = 0
        """What messages of open transactions take, over all connections."""
        self.is_stopping = False
        """Consumers go because the gateway does."""
        self._number = 0
        self._shared_access: defaultdict[str, VpnAccess] = defaultdict(VpnAccess)
        self._listening = [Listening(self, listener) for listener in settings.listeners]

    def take(self, settings: Settings) -> None:
        """
        Make these the settings for new connections; the directory of users is as they say already. Connections of
        users of whom other things are said now are closed: what they had been permitted is spread over their links.

        Raises:
            gateway.tls.TlsError: A certificate cannot be used.
        """
        before, users = self.settings.users, settings.users
        self.settings, self.limits = settings, settings.limits
        for listening, listener in zip(self._listening, settings.listeners, strict=True):
            listening.take(listener)
        refused = Refused(
            ErrorCode.CONNECTION_FORCED, "what is configured of this user has changed; connect again"
        )
        for connection in list(self.connections):
            user = connection.user
            if before.get(user) != users.get(user) or (users and user not in users):
                connection.stop(refused)

    async def start(self) -> list[str]:
        """Begin to accept clients; the URLs they use."""
        return [await listening.start() for listening in self._listening]

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Accept no more, detach and close what there is, and wait a little for peers to answer."""
        self.is_stopping = True
        for listening in self._listening:
            await listening.stop()
        refused = Refused(ErrorCode.CONNECTION_FORCED, "the gateway is being stopped")
        for connection in list(self.connections):
            connection.stop(refused)
        deadline = asyncio.get_running_loop().time() + grace_seconds
        while self.connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)

    # --- what connections use ---------------------------------------------------------------------------------

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for one more."""
        if len(self.connections) >= self.limits.max_connections:
            return False
        self.connections[connection] = None
        return True

    def left(self, connection: Connection) -> None:
        self.connections.pop(connection, None)

    def count_failure(self) -> None:
        self.failures += 1

    def sasl_for(self, listening: Listening, certificate_name: str | None) -> SaslServer:
        """A fresh negotiation; ``certificate_name`` is the common name of the client's verified certificate."""
        mechanisms = listening.mechanisms
        return SaslServer(
            mechanisms=mechanisms,
            credentials=self.users.stored_password,
            external_user=self.users.name_of_certificate(certificate_name),
            sasl_required="ANONYMOUS" not in mechanisms,
            nonce=lambda: secrets.token_urlsafe(18),
            decoy_key=self.users.decoy_key,
            decoy_iterations=self.users.decoy_iterations,
        )

    def vpn_for(self, hostname: str | None, user: str | None) -> MessageVpn:
        """
        The VPN an open frame asks for: its hostname when that names one, as ``name`` or ``vhost:name``.

        Args:
            user: None where that is known later (`gateway.users.Users.check_entry`).

        Raises:
            Refused: NOT_FOUND for ``vhost:`` and an unknown name; UNAUTHORIZED where the user may not.
        """
        name = hostname or ""
        if name.startswith("vhost:"):
            name = name.removeprefix("vhost:")
            if name not in self.vpns:
                raise Refused(ErrorCode.NOT_FOUND, f"there is no Message VPN {name!r}")
        vpn = self.vpns.get(name) or self.vpns["default"]
        if user is not None:
            self.users.check_entry(user, vpn.name)
        if not vpn.settings.enabled:
            raise Refused(ErrorCode.NOT_ALLOWED, f"the Message VPN {vpn.name!r} is not enabled")
        return vpn

    def access_for(self, user: str, vpn: MessageVpn) -> Access:
        """What a user's new connection may do in a VPN."""
        return Access(user, self.users.permissions(user), vpn, self._shared_access[vpn.name])
