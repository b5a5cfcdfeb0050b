"""
What the clients of one Message VPN have in common on the wire.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias
from weakref import WeakValueDictionary

from gateway.amqp.nodes.ownership import NodeRegistry
from gateway.amqp.redirects import SentAway
from gateway.amqp.sole_connections import SoleConnections

LinkKey: TypeAlias = "tuple[int | str, str, bool, str]"
"""A connection, or a user and its container-id; whether the peer sends on the link; the link's name."""


class StealableLink(Protocol):
    """An attached link that another may take the place of."""

    def steal(self) -> None:
        """Another link of its name was attached: it ends, if it has not already."""


class VpnState:
    """Kept while the gateway runs, and no longer."""

    def __init__(self) -> None:
        self.nodes = NodeRegistry()
        """Temporary and exclusive nodes, and whose they are."""
        self.links: WeakValueDictionary[LinkKey, StealableLink] = WeakValueDictionary()
        """Attached links by what they are known by beyond their sessions, where that counts."""
        self.sole_connections = SoleConnections()
        """Connections whose containers want one alone."""
        self.sent_away = SentAway()
        """Clients that came for what another gateway does."""
        self._relay_topics: dict[str, dict[str, str]] = {}

    def relay_topics_of(self, user: str) -> dict[str, str]:
        """Topics that messages' ``to`` were found to mean, and that this user may publish to; for ``RelayTopics``."""
        return self._relay_topics.setdefault(user, {})

    def forget_relay_topics(self) -> None:
        """Users may be permitted other things now. Who is connected, and stays so, keeps what it knows."""
        self._relay_topics.clear()
