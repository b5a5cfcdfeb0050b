"""
What a Message VPN asks of its publishers and consumers: links on the wire side implement these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from gateway.core.errors import Refused
from gateway.core.model import Row
from gateway.ledger import Account


class ClientIdentity(Protocol):
    """Whose connection a link is on, as an administrator is told."""

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
    """Whose the links are that the gateway has itself: no connection's."""

    user: str
    peer_container: str = ""
    number: int = 0
    peer: str = ""


class LinkState(NamedTuple):
    """An attached link, as an administrator sees it."""

    name: str
    is_sender: bool
    """Its client sends on it; else it receives."""
    address: str
    """Of its target, or its source, as the gateway answered the attach."""
    kind: str
    """What it is there for, in a word."""
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
        """What its attached links are like now."""

    @property
    def account(self) -> Account:
        """What it makes the gateway hold."""

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
            at_once: Without waiting for what else is to be written in this turn of the loop.
        """

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None:
        """These deliveries were not taken: rejected with a reason, or released where there is none."""


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
        """There is nothing to send now: credit that is to be drained can be used up."""

    def finish(self) -> None:
        """A bounded replay is over: detach without error."""

    def refuse(self, refused: Refused) -> None:
        """Detach with an error."""


class LockingLink(ConsumerLink, Protocol):
    """A link whose deliveries may be locked for a time."""

    def take_back(self, ids: Sequence[int]) -> bool:
        """
        Deliveries are the consumer's no more: it is told so.

        Returns:
            Whether it has yet to say that it knows.
        """


class LogLink(ConsumerLink, Protocol):
    """A link that a reader of the log has, or a browser: nothing is taken away by it."""

    @property
    def account(self) -> Account:
        """What its connection makes the gateway hold."""
