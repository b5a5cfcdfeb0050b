"""
The gateway as its administration sees it, and the clients of HTTP that it counts beside those of AMQP.

A request that reads or publishes messages is a client for as long as it lasts: it has a place among all connections, an
account in the ledger and a line in the list of clients, and is ended as a client of AMQP is.

This module is loaded when the gateway starts; FastAPI is not yet.
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
    """What there is to administer."""

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

    def admit(self, address: str, user: str) -> Guest:
        """
        A client without AMQP is there, whose user has signed in from this IP address.

        Raises:
            gateway.core.errors.Refused: RESOURCE_LIMIT, it is one connection too many.
        """

    @property
    def wire_loops(self) -> str:
        """What runs once a message on the wire: ``native``, or ``python`` and why."""

    @property
    def refused_connections(self) -> Mapping[str, int]:
        """Connections that were refused since the start, by the name of the limit."""

    @property
    def span_counts(self) -> Mapping[str, int]:
        """Spans since the start, by what became of them; empty where none are sent."""


MOST_CLIENTS: Final = 128
"""At once: half of the connections that HTTP has, so that administrators are never kept out."""

MOST_CLIENTS_PER_USER: Final = 64
"""Of one user at once: half of all, so that one user does not keep the others out."""


class Guest(Protocol):
    """A client's place among all connections."""

    @property
    def number(self) -> int:
        """Unique while the gateway runs."""

    def leave(self) -> None:
        """It is gone."""


@dataclass(eq=False)
class HttpClient:
    """A client, for one request (``gateway.vpn.clients.ClientIdentity``)."""

    number: int
    user: str
    who: Who
    """The user, or who a token says that he is."""
    peer: str
    """HOST:PORT it comes from."""
    vpn_name: str | None
    address: str
    """What it reads or publishes to."""
    is_sender: bool
    """It publishes; else it reads."""
    account: Account = field(init=False)
    refused: Refused | None = None
    """Why it was ended."""
    sent: int = 0
    """Messages that it was sent, or has sent."""
    _end: Callable[[], None] | None = None

    @property
    def peer_container(self) -> str:
        """What an administrator calls it by."""
        return f"http-{self.number}"

    @property
    def identity(self) -> ClientIdentity:
        """As it is for one request, it is its own connection."""
        return self

    def link_states(self) -> list[LinkState]:
        """Its request, in the place of a link; nobody gives credit over HTTP."""
        return [LinkState(self.peer_container, self.is_sender, self.address, "http", 0, 0, self.sent)]

    def log_values(self, topic: str) -> dict[str, Any]:
        """What a line tells of it at its end."""
        return {
            log_keys.USER: self.user,
            log_keys.PEER: self.peer,
            log_keys.VPN: self.vpn_name,
            log_keys.TOPIC: topic[:300],
            log_keys.MESSAGES: self.sent,
        }

    def when_stopped(self, end: Callable[[], None]) -> None:
        """Call this once the client is to end; at once, if that has been said."""
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
        That it was not ended.

        Raises:
            Refused: It was.
        """
        if self.refused is not None:
            raise self.refused


class HttpClients:
    """Those that are there now."""

    def __init__(self, gateway: AdministeredGateway) -> None:
        self._gateway = gateway
        self._clients: dict[HttpClient, Guest] = {}
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
        One more, which ``leave`` takes away.

        Args:
            address: What it reads or publishes to.
            is_sender: It publishes.

        Raises:
            Refused: RESOURCE_LIMIT, it is one too many; what ``stop`` was told, all were stopped.
        """
        if self._over is not None:
            raise self._over
        if len(self._clients) >= MOST_CLIENTS:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT, f"{MOST_CLIENTS} clients read and publish over HTTP; try later"
            )
        if self._by_user[user] >= MOST_CLIENTS_PER_USER:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"user {user!r} has {MOST_CLIENTS_PER_USER} requests under way, and may not have more",
            )
        guest = self._gateway.admit(host, user)
        client = HttpClient(guest.number, user, user, f"{host}:{port}", vpn, address, is_sender)
        client.account = self._gateway.ledger.open(
            self._gateway.vpns.settings.limits.connection_bytes,
            lambda bound: client.stop(
                Refused(ErrorCode.RESOURCE_LIMIT, f"the client makes the gateway hold the most ({bound})")
            ),
        )
        client.account.sign_in(user)
        self._clients[client] = guest
        self._by_user[user] += 1
        return client

    def leave(self, client: HttpClient) -> None:
        """Its request is over."""
        guest = self._clients.pop(client)
        self._by_user -= Counter([client.user])  # and forgets who has none
        client.account.close()
        guest.leave()

    def stop(self, refused: Refused, users: Collection[str] | None = None) -> None:
        """End the requests of these users; all, and those that come later, if none are named."""
        if users is None:
            self._over = refused
        for client in self:
            if users is None or self._gateway.users.has_changed(client.who, users):
                client.stop(refused)
