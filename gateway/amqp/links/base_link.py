"""
What attached links of all kinds have in common (``gateway.amqp.engine.attached_link.AttachedLink``).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from proton import Link

from gateway.amqp.engine.attached_link import Receiving, Sending
from gateway.amqp.engine.carrier import Carrier
from gateway.amqp.nodes.lease import NodeLease
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.clients import LinkState


class BaseLink(ABC):
    """
    An attached link.

    Args:
        link: The engine's.
        carrier: Its connection.
    """

    kind: ClassVar[str]
    """What it is there for, as administrators are told."""

    def __init__(self, link: Link, carrier: Carrier) -> None:
        self.link = link
        self._links, self._output, self._log = carrier
        self._lease: NodeLease | None = None
        """What it has on a temporary node."""
        self._is_suspended = False
        """Its peer has detached it and not closed it."""

    @property
    def incoming(self) -> Receiving | None:
        """What takes its transfers."""
        return None

    @property
    def outgoing(self) -> Sending | None:
        """What takes its events one by one."""
        return None

    @property
    def _sent_count(self) -> int:
        """Messages that went over it."""
        return 0

    def state(self) -> LinkState:
        """What it is like now, for administrators."""
        link = self.link
        is_receiver = bool(link.is_sender)
        ours, theirs = (link.source, link.remote_source) if is_receiver else (link.target, link.remote_target)
        return LinkState(
            self._links.name_of(link),
            not is_receiver,
            str(ours.address or theirs.address or ""),
            self.kind,
            max(link.credit, 0),
            link.unsettled,
            self._sent_count,
        )

    @abstractmethod
    def detached(self, *, closed: bool) -> None:
        """The peer or we have detached (or closed) the link, or its session is gone."""

    @property
    def _stands_for_something(self) -> bool:
        """Whether it goes on to exist, suspended, when its peer detaches it and does not close it."""
        return False

    @property
    def _keeps_node(self) -> bool:
        """Whether a node is there as long as this link is, suspended or not."""
        return self._lease is not None and self._lease.lasts_suspended

    def suspend(self) -> bool:
        """The peer has detached the link and not closed it; whether it still stands for something."""
        self._is_suspended = self._stands_for_something
        return self._is_suspended

    def _end_if_idle(self) -> None:
        """Where it is suspended and stands for nothing any more, it ceases to exist."""
        if self._is_suspended and not self._stands_for_something:
            # Not at once: whoever has just told what was settled is not done with the engine's link.
            asyncio.get_running_loop().call_soon(self._links.end_suspended, self.link)

    def resume(self, older: Any) -> None:
        """This link takes the place of a suspended one of the same name, which ends right after."""
        if isinstance(older, BaseLink) and self._lease is not None and older._lease is not None:
            self._lease.take_over(older._lease)

    def lost(self) -> None:
        """The connection is gone."""
        self.detached(closed=False)

    def steal(self) -> None:
        """Another link of its name was attached (AMQP 1.0 section 2.6.1): it ends, if it has not already."""
        if self._is_suspended or self._links.attached_as(self.link) is self:
            self.refuse(Refused(ErrorCode.STOLEN, "a link of this name was attached anew"))

    def refuse(self, refused: Refused) -> None:
        """Detach with an error; one that is suspended ends, and nobody is there to be told why."""
        if self._is_suspended:
            self._links.end_suspended(self.link)
        else:
            self._links.detach(self.link, refused)
