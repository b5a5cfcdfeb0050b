"""
A link's lease on a node that lives no longer than it is used (AMQP 1.0 sections 3.5.10 to 3.5.13).
"""

from __future__ import annotations

from typing import Protocol

from amqp_ext.lifetime import Lifetime


class Lease(Protocol):
    """What a link has, and gives back."""

    @property
    def lifetime(self) -> Lifetime:
        """The node's."""

    def release(self) -> None:
        """The link is gone. Once is enough, and twice does no harm."""


class NodeLease(Lease, Protocol):
    """What a link has on a temporary node while it exists."""

    @property
    def lasts_suspended(self) -> bool:
        """Whether the node is there as long as the link is, attached or suspended: it was asked for as a node."""

    def take_over(self, older: NodeLease) -> None:
        """The link takes the place of a suspended one, which is about to release this lease."""
