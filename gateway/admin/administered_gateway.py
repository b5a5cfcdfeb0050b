"""
The gateway as its administration sees it, and the HTTP clients, which it counts in the same way as AMQP clients.

A request that reads or publishes messages is a client while it lasts: it counts as a connection, it has an account in
the ledger and an entry in the list of clients, and an administrator can disconnect it like an AMQP client.

This module is loaded when the gateway starts, so it must not import FastAPI.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from gateway.config import Reloaded
from gateway.core.errors import ErrorCode, Refused
from gateway.ledger import Account, Ledger
from gateway.logging import log_keys
from gateway.users import Users, Who
from gateway.vpn.clients import ClientConnection, ClientIdentity, LinkState
from gateway.vpn.hosted import MessageVpns


class AdministeredGateway(Protocol):
    """The gateway, as far as its administration needs it."""

    def problem(self, vpn: str | None = None) -> str | None:
        """
        Why the gateway cannot serve clients just now, in one sentence; None if it can.

        Args:
            vpn: Clients of this Message VPN; of any, if none is named.
        """

    @property
    def users(self) -> Users:
        """Who may administer, and what."""

    @property
    def vpns(self) -> MessageVpns:
        """Message VPNs by name."""

    async def reload(self) -> Reloaded:
        """Read the configuration again.

        Raises:
            gateway.config.ConfigError: It cannot be used, and nothing is changed.
        """

    @property
    def connections(self) -> list[ClientConnection]:
        """The open connections."""

    @property
    def ledger(self) -> Ledger:
        """What all clients make the gateway hold."""

    def admit(self, address: str, user: str) -> tuple[int, Callable[[], None]]:
        """
        Count an HTTP client as a connection: its user has signed in from this IP address.

        Returns:
            A number that is unique while the gateway runs, and the function that frees the client's place.

        Raises:
            gateway.core.errors.Refused: RESOURCE_LIMIT, there are too many connections.
        """

    @property
    def wire_loops(self) -> str:
        """How the code that runs for every message on the wire is built: ``native``, or ``python`` and why."""

    @property
    def refused_connections(self) -> Mapping[str, int]:
        """Connections that were refused since the start, by the name of the limit."""

    @property
    def span_counts(self) -> Mapping[str, int]:
        """Telemetry spans since the start, by their outcome; empty where none are sent."""


MOST_CLIENTS: Final = 128
"""HTTP clients at the same time: half of the HTTP connections, so that they never keep administrators out."""

MOST_CLIENTS_PER_USER: Final = 64
"""HTTP clients of one user at the same time: half of all, so that one user does not keep the others out."""


@dataclass(eq=False)
class HttpClient:
    """An HTTP client; it lives for one request (``gateway.vpn.clients.ClientIdentity``)."""

    number: int
    user: str
    who: Who
    """The user, or the identity that a token gives the user."""
    peer: str
    """HOST:PORT of the client."""
    vpn_name: str | None
    address: str
    """The address that it reads, or publishes to."""
    is_sender: bool
    """It publishes; otherwise it reads."""
    account: Account = field(init=False)
    refused: Refused | None = None
    """Why it was stopped."""
    sent: int = 0
    """Messages that it has received, or published."""
    _end: Callable[[], None] | None = None

    @property
    def peer_container(self) -> str:
        """The name that administrators see."""
        return f"http-{self.number}"

    @property
    def identity(self) -> ClientIdentity:
        """Itself: a client for one request is its own connection."""
        return self

    def link_states(self) -> list[LinkState]:
        """Its request, shown as a link; there is no credit over HTTP."""
        return [LinkState(self.peer_container, self.is_sender, self.address, "http", 0, 0, self.sent)]

    def log_values(self, topic: str) -> dict[str, Any]:
        """The values of the log line at its end."""
        return {
            log_keys.USER: self.user,
            log_keys.PEER: self.peer,
            log_keys.VPN: self.vpn_name,
            log_keys.TOPIC: topic[:300],
            log_keys.MESSAGES: self.sent,
        }

    def when_stopped(self, end: Callable[[], None]) -> None:
        """Call ``end`` when the client is stopped; immediately, if it was stopped already."""
        self._end = end
        if self.refused is not None:
            end()

    def stop(self, refused: Refused) -> None:
        """End its request, with an error."""
        if self.refused is None:
            self.refused = refused
            if self._end is not None:
                self._end()

    def check(self) -> None:
        """
        Check that the client was not stopped.

        Raises:
            Refused: It was stopped, for this reason.
        """
        if self.refused is not None:
            raise self.refused


class HttpClients:
    """All HTTP clients at present."""

    def __init__(self, gateway: AdministeredGateway) -> None:
        self._gateway = gateway
        self._clients: dict[HttpClient, Callable[[], None]] = {}
        """Each with the function that frees its place."""
        self._by_user: Counter[str] = Counter()
        self._over: Refused | None = None

    def __iter__(self) -> Iterator[HttpClient]:
        return iter(list(self._clients))

    def __len__(self) -> int:
        return len(self._clients)

    def admit(
        self, user: str, host: str, port: int, vpn: str, address: str, *, is_sender: bool
    ) -> HttpClient:
        """
        Add a client, which ``leave`` removes.

        Args:
            address: The address that it reads, or publishes to.
            is_sender: It publishes.

        Raises:
            Refused: RESOURCE_LIMIT, there are too many clients; or as given to ``stop``, when all were stopped.
        """
        if self._over is not None:
            raise self._over
        if len(self._clients) >= MOST_CLIENTS:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"there are {MOST_CLIENTS} HTTP clients already, the most allowed; try later",
            )
        if self._by_user[user] >= MOST_CLIENTS_PER_USER:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"user {user!r} has {MOST_CLIENTS_PER_USER} running requests, the most allowed for one user",
            )
        number, leave = self._gateway.admit(host, user)
        client = HttpClient(number, user, user, f"{host}:{port}", vpn, address, is_sender)
        client.account = self._gateway.ledger.open(
            self._gateway.vpns.settings.limits.connection_bytes,
            lambda bound: client.stop(
                Refused(ErrorCode.RESOURCE_LIMIT, f"the client makes the gateway hold the most ({bound})")
            ),
        )
        client.account.sign_in(user)
        self._clients[client] = leave
        self._by_user[user] += 1
        return client

    def leave(self, client: HttpClient) -> None:
        """Remove a client: its request is over."""
        leave = self._clients.pop(client)
        self._by_user -= Counter([client.user])  # `-=` also removes a user whose count is zero
        client.account.close()
        leave()

    def stop(self, refused: Refused, users: Collection[str] | None = None) -> None:
        """Stop the clients of these users; without ``users``, stop all clients, and refuse later ones."""
        if users is None:
            self._over = refused
        for client in self:
            if users is None or self._gateway.users.has_changed(client.who, users):
                client.stop(refused)
