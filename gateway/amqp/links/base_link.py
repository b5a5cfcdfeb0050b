"""
What attached links of all kinds have in common (``gateway.amqp.engine.attached_link.AttachedLink``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from proton import Link

from gateway.amqp.engine.attached_link import Receiving, Sending
from gateway.amqp.engine.carrier import Carrier
from gateway.core.errors import ErrorCode, Refused


class BaseLink(ABC):
    """
    An attached link.

    Args:
        link: The engine's.
        carrier: Its connection.
    """

    def __init__(self, link: Link, carrier: Carrier) -> None:
        self.link = link
        self._links, self._output, self._log = carrier

    @property
    def incoming(self) -> Receiving | None:
        """What takes its transfers."""
        return None

    @property
    def outgoing(self) -> Sending | None:
        """What takes its events one by one."""
        return None

    @abstractmethod
    def detached(self, *, closed: bool) -> None:
        """The peer or we have detached (or closed) the link, or its session is gone."""

    def suspend(self) -> bool:
        """The peer has detached the link and not closed it; whether it still stands for something."""
        return False

    def resume(self, older: Any) -> None:  # noqa: B027
        """This link takes the place of a suspended one of the same name, which ends right after."""

    def lost(self) -> None:
        """The connection is gone."""
        self.detached(closed=False)

    def steal(self) -> None:
        """Another link of its name was attached (AMQP 1.0 section 2.6.1): it ends, if it has not already."""
        if self._links.attached_as(self.link) is self:
            self.refuse(Refused(ErrorCode.STOLEN, "a link of this name was attached anew"))
        elif self.link in self._links.suspended:
            self._links.end_suspended(self.link)

    def refuse(self, refused: Refused) -> None:
        """Detach with an error."""
        self._links.detach(self.link, refused)
