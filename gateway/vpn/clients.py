"""
The interfaces of a Message VPN's publishers and consumers, which the links on the wire side implement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from gateway.core.errors import Refused
from gateway.core.model import Row
from gateway.ledger import Account


class ClientIdentity(Protocol):
    """Who has the connection of a link, as an administrator sees it."""

    @property
    def number(self) -> int:
        """Of the connection, unique while the gateway runs."""

    @property
    def user(self) -> str:
        """Whose permissions it has."""

    @property
    def peer_container(self) -> str:
        """The client's container-id."""

    @property
    def peer(self) -> str:
        """HOST:PORT it comes from."""


class OwnClient(NamedTuple):
    """The client of the gateway's own links, which have no connection."""

    user: str
    peer_container: str = ""
    number: int = 0
    peer: str = ""


class LinkState(NamedTuple):
    """An attached link, as an administrator sees it."""

    name: str
    is_sender: bool
    """Whether its client sends on it; otherwise the client receives."""
    address: str
    """The address of its target or source, as in the gateway's answer to the attach."""
    kind: str
    """Its purpose, in a word."""
    credit: int
    """Messages that its sender may send now."""
    unsettled: int
    """Deliveries that are not settled."""
    sent: int
    """Messages that went over it."""


class ClientConnection(Protocol):
    """A client's connection, as its Message VPN and an administrator see it."""

    @property
    def identity(self) -> ClientIdentity:
        """Whose it is."""

    def link_states(self) -> list[LinkState]:
        """The present state of its attached links."""

    @property
    def account(self) -> Account:
        """What the gateway holds for it."""

    @property
    def vpn_name(self) -> str | None:
        """The Message VPN that the client opened; None before it did."""

    def stop(self, refused: Refused) -> None:
        """Detach every link and close, with an error."""


class PublisherLink(Protocol):
    """A link that messages came in on."""

    def accepted(self, deliveries: Any, *, at_once: bool = False) -> None:
        """
        These deliveries are durable: tell the publisher.

        Args:
            at_once: Write this immediately, and not together with everything else of this turn of the loop.
        """

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None:
        """These deliveries were not stored: reject them with the reason, or release them if it is None."""


class ConsumerLink(Protocol):
    """A link that messages go out on."""

    @property
    def client(self) -> ClientIdentity:
        """Who consumes."""

    def room(self) -> int:
        """How many messages it can take right now: by credit, and by what its connection still has to write."""

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        """
        Send messages, at most ``room``.

        Args:
            attempts: Failed deliveries so far, by id, for the header's delivery-count.
            end_id: The message that is the last before live, if it is known.
        """

    def nothing_to_send(self) -> None:
        """There is nothing to send now: if the receiver drains, use up the credit."""

    def finish(self) -> None:
        """A bounded replay is over: detach without error."""

    def refuse(self, refused: Refused) -> None:
        """Detach with an error."""


class LockingLink(ConsumerLink, Protocol):
    """A link whose deliveries may be locked for a time."""

    def take_back(self, ids: Sequence[int]) -> bool:
        """
        The locks of these deliveries have ended: tell the consumer.

        Returns:
            Whether the consumer still has to confirm that.
        """


class LogLink(ConsumerLink, Protocol):
    """The link of a log reader or a browser, which consumes no message."""

    @property
    def account(self) -> Account:
        """What the gateway holds for its connection."""
