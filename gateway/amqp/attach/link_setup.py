"""
How a link of one kind is set up, step by step: what is behind its source or target is found or made, then the link is
bound to it, then its attach is answered.

``attach`` takes the steps in this order, and sees to all that is the same for every kind. A step that raises
``Refused`` has the attach answered with that. Then, and when the peer did not wait for the answer, ``release`` is
called instead of the steps that are left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from gateway.amqp.engine.attached_link import AttachedLink


class ReadyLink(AttachedLink, Protocol):
    """A link that begins to work once its attach is answered."""

    def steal(self) -> None:
        """Another link of its name was attached: it ends, if it has not already."""

    def ready(self) -> None:
        """Give the first credit, or send what can be sent."""


class LinkSetup(ABC):
    """One link to be attached. A kind that has nothing to do in a step leaves it as it is here."""

    async def prepare(self) -> None:  # noqa: B027
        """Find or make what is behind the source or target; returns when that is durable."""

    @abstractmethod
    async def bind(self) -> ReadyLink | None:
        """Make the link, with its place at what is behind it; None where that place is lost again already."""

    @abstractmethod
    def reply(self) -> None:
        """Fill in our side of the attach."""

    def closed_early(self) -> None:  # noqa: B027
        """The peer has closed the link before its attach was answered: what is asked for by closing it is done."""

    def opened(self) -> None:  # noqa: B027
        """The attach is answered."""

    @abstractmethod
    def log_values(self) -> Mapping[str, Any] | None:
        """What the log says of the attached link, besides its name; None where it says nothing."""

    def release(self) -> None:  # noqa: B027
        """The link will not be attached: give back what was taken for it."""
