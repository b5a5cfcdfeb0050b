"""
What the clients of one Message VPN have in common on the wire.
"""

from __future__ import annotations

from gateway.amqp.nodes.ownership import NodeRegistry


class VpnState:
    """Kept while the gateway runs, and no longer."""

    def __init__(self) -> None:
        self.nodes = NodeRegistry()
        """Temporary and exclusive nodes, and whose they are."""
        self._relay_topics: dict[str, dict[str, str]] = {}

    def relay_topics_of(self, user: str) -> dict[str, str]:
        """Topics that messages' ``to`` were found to mean, and that this user may publish to; for ``RelayTopics``."""
        return self._relay_topics.setdefault(user, {})

    def forget_relay_topics(self) -> None:
        """Users may be permitted other things now. Who is connected, and stays so, keeps what it knows."""
        self._relay_topics.clear()
