"""
The AMQP container: all that is AMQP in this process, its listeners, its connections, and what these have in common.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection, Mapping
from typing import Final, Protocol
from weakref import WeakKeyDictionary

import structlog

from amqp_ext.sasl.server import SaslServer
from gateway import log_keys
from gateway.amqp.admission import Admission, Admitted
from gateway.amqp.attach.client import CarryingConnection, Client
from gateway.amqp.attach.vpn_state import VpnState
from gateway.amqp.connected_client import ConnectedClient
from gateway.amqp.connection import Connection
from gateway.amqp.dialects.hooks import BatchedTransfers
from gateway.amqp.dialects.registry import Dialects
from gateway.amqp.dialects.spoken import Spoken
from gateway.amqp.listener import AmqpListener
from gateway.config import LinkStealing, Listener, Settings
from gateway.core.errors import ErrorCode, Refused
from gateway.ledger import Ledger
from gateway.password_checks import PasswordChecks
from gateway.peer_lines import PeerLines
from gateway.tls import TlsError
from gateway.users import Users
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

    # --- what listeners use (``gateway.amqp.listener.ListeningContainer``) ----------------------------------------

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
