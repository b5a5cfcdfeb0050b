"""
An attached link as its connection's engine side knows it (AMQP 1.0 section 2.6): who takes its transfers, its
dispositions and its credit, and who is told when it is gone.
"""

from __future__ import annotations

from typing import Any, Protocol

from proton import Link

from gateway.core.errors import Refused
from gateway.vpn.clients import LinkState


class Receiving(Protocol):
    """Takes the transfers of a link that messages come in on."""

    def receive(self) -> None:
        """Transfers have come: take every message that is complete."""


class Sending(Protocol):
    """Takes what a peer says on a link that messages go out on."""

    def updated(self, collector: Any) -> None:
        """
        The event on top of the collector (its handle) is about one of this link's deliveries: note what the peer
        has said, and take the event off. Events of more of them that follow may be taken in the same way.
        """

    def report(self) -> None:
        """Hand on what was noted since the last time."""

    def on_flow(self) -> None:
        """The peer has given credit, or taken it back."""


class WaitingLink(Protocol):
    """A link that has something to send when its connection has room for output again."""

    def writable(self) -> None:
        """There is room."""


class AttachedLink(Protocol):
    """A link from the attach that was answered to its detach."""

    @property
    def link(self) -> Link:
        """The engine's."""

    @property
    def incoming(self) -> Receiving | None:
        """What takes its transfers; None where messages go out on it, or none at all."""

    @property
    def outgoing(self) -> Sending | None:
        """What takes its events one by one; None where messages come in on it, or none at all."""

    def state(self) -> LinkState:
        """What it is like now, for administrators."""

    def detached(self, *, closed: bool) -> None:
        """The peer or we have detached (or closed) the link, or its session is gone."""

    def suspend(self) -> bool:
        """
        The peer has detached the link and not closed it. Where this says that it still stands for something, it is kept
        until its session ends, or the link is attached anew; then, and otherwise at once, ``detached`` is called.
        """

    def resume(self, older: Any) -> None:
        """This link takes the place of a suspended one of the same name, which ends right after."""

    def lost(self) -> None:
        """The connection is gone."""

    def refuse(self, refused: Refused) -> None:
        """Detach with an error."""
