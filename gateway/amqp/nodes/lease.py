"""
A link's lease on a node that lives no longer than it is used (AMQP 1.0 sections 3.5.10 to 3.5.13).
"""

from __future__ import annotations

from typing import Protocol

from amqp_ext.lifetime import Lifetime


class NodeLease(Protocol):
    """What a link has on a temporary node while it is attached."""

    @property
    def lifetime(self) -> Lifetime:
        """The node's."""

    def release(self) -> None:
        """The link is gone. Once is enough, and twice does no harm."""
