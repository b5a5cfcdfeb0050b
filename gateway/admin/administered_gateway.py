"""
A gateway as its administration sees it: whether it can serve, and what there is to administer.
"""

from collections.abc import Mapping
from typing import Protocol

from gateway.admin.v1.clients import Guest
from gateway.config import Limits, Reloaded
from gateway.core.errors import Refused
from gateway.ledger import Account, Ledger
from gateway.users import Users
from gateway.vpn.clients import ClientIdentity, SeenLinks
from gateway.vpn.hosted import MessageVpns


class Health(Protocol):
    """What ``/readyz`` asks about the gateway."""

    def problem(self, vpn: str | None = None) -> str | None:
        """
        Why the gateway cannot serve clients just now, in one sentence; None if it can.

        Args:
            vpn: Clients of this Message VPN; of any, if none is named.
        """


class ClientConnection(ClientIdentity, Protocol):
    """A client's connection, as an administrator sees it."""

    @property
    def links(self) -> SeenLinks:
        """Its links."""

    @property
    def account(self) -> Account:
        """What it makes the gateway hold."""

    @property
    def vpn_name(self) -> str | None:
        """The Message VPN that the client opened; None before it did."""

    def stop(self, refused: Refused) -> None:
        """Detach every link and close, with an error."""


class AdministeredGateway(Protocol):
    """What there is to administer."""

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

    @property
    def limits(self) -> Limits:
        """Those of clients."""

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
