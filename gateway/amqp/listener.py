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

from amqp_ext.sasl.server import Identity, SaslServer
from gateway.amqp.attach.attach import attach
from gateway.amqp.attach.client import CarryingConnection, Client
from gateway.amqp.connection import Connection
from gateway.amqp.dialects.hooks import BatchedTransfers, FrameHooks
from gateway.amqp.dialects.spoken import Spoken
from gateway.amqp.websocket import WebSocketTransport
from gateway.config import Listener, Settings, authority
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

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for one more connection."""

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
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.vpn_name = client.vpn.name
        self.wait_for_room = client.vpn.committer.wait_for_room

    async def attach(self, link: Link) -> None:
        await attach(self.client, link)

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
        spoken: Spoken,
        mechanisms: tuple[str, ...],
        *,
        accepts_tokens: bool,
    ) -> None:
        self.limits = container.settings.limits
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

    def admit(self, connection: Connection) -> bool:
        return self._container.admit(connection)

    def left(self, connection: Connection) -> None:
        self._container.left(connection)

    def count_failure(self) -> None:
        self._container.count_failure()

    def sasl(self, certificate_name: str | None) -> SaslServer:
        return self._container.sasl(self._mechanisms, certificate_name)

    def frame_filter(self, identity: Identity) -> FrameHooks | None:
        self._shows_tokens = self._accepts_tokens and identity.is_anonymous
        self._frames = self._spoken.frames(self.limits.max_frame_bytes)
        return self._frames

    def open_client(self, connection: CarryingConnection, hostname: str | None) -> ServedClient:
        client = self._container.open_client(
            connection,
            self._spoken.vpn_name_of(hostname),
            self._spoken,
            self._frames.batches if self._frames is not None else None,
            shows_tokens=self._shows_tokens,
        )
        return ServedClient(client)


class AmqpListener:
    """One address that clients connect to."""

    def __init__(self, container: ListeningContainer, settings: Listener) -> None:
        self._container = container
        self._server: asyncio.Server | None = None
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
        context = self._tls = server_context(settings.tls) if settings.tls is not None else None
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._connection,
                settings.host,
                settings.port,
                family=socket.AF_INET6 if ":" in settings.host else socket.AF_UNSPEC,
                # The default of 100 makes a burst of connects wait for kernel retries.
                backlog=limits.listen_backlog,
                reuse_address=True,
                ssl=context,
                # A handshake of TLS that never ends must not hold a socket for asyncio's minute.
                ssl_handshake_timeout=limits.handshake_timeout_ms / 1000 if context else None,
            )
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            where = authority(settings.host, settings.port)
            raise OSError(error.errno, f"cannot listen on {where}: {reason}") from error
        port = self._server.sockets[0].getsockname()[1]
        return settings.url(port)

    def _connection(self) -> asyncio.Protocol:
        acceptor = ListenerAcceptor(
            self._container, self._spoken, self._mechanisms, accepts_tokens=self._accepts_tokens
        )
        connection = Connection(acceptor, self._container.next_number())
        websocket = self._settings.websocket
        return connection if websocket is None else WebSocketTransport(connection, websocket)

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
        if self._server is not None:
            self._server.close()
