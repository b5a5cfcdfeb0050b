"""
Who the client of a connection is: what administrators are shown, and whom its messages come from.
"""

from __future__ import annotations


class ConnectedClient:
    """
    The client of one connection (``gateway.vpn.clients.ClientIdentity``).

    Args:
        number: The connection's, unique while the gateway runs.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.peer = ""
        """HOST:PORT it comes from; empty where that is not known."""
        self.user = "anonymous"
        """Whose permissions it has."""
        self.peer_container = ""
        """Its container-id, as its open frame says; empty before that, and for who has none."""

    def connected(self, peer: str) -> None:
        """The client has connected."""
        self.peer = peer

    def sign_in(self, user: str) -> None:
        """The client has shown who it is."""
        self.user = user

    def opened(self, container_id: str) -> None:
        """The client has opened the connection."""
        self.peer_container = container_id

    @property
    def origin(self) -> str:
        """Whom its messages come from, for consumers that do not want their own: the client's container."""
        return self.peer_container or f"#{self.number}"
