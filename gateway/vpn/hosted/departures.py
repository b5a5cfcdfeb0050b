"""
Clients leave a Message VPN that this gateway has no more, and its store is closed once they are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from gateway.core.errors import Refused
from gateway.vpn.message_vpn import MessageVpn

LEAVE_SECONDS: Final = 3.0
"""How long the clients of a Message VPN that was deposed may take to be gone: longer than a connection has to close."""

LEFT_SECONDS: Final = 0.01


class Connected(Protocol):
    """A client's connection."""

    @property
    def vpn_name(self) -> str | None:
        """The Message VPN that the client opened; None before it did."""

    def stop(self, refused: Refused) -> None:
        """Close, with an error."""


class Departures:
    """
    Args:
        connections: Those that are open now.
    """

    def __init__(self, connections: Callable[[], Iterable[Connected]]) -> None:
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._dropping: set[asyncio.Task[None]] = set()
        """Message VPNs that were deposed, and are not gone yet."""
        self.is_closing = False
        """The gateway stops: nothing follows a departure."""

    async def close(self) -> None:
        """Wait for all of them."""
        if self._dropping:
            await asyncio.wait(self._dropping)

    def has_clients(self, name: str) -> bool:
        """Whether some client has the Message VPN open."""
        return any(connection.vpn_name == name for connection in self._connections())

    def disconnect(self, name: str, refused: Refused) -> None:
        """Its clients go, and are told why."""
        for connection in list(self._connections()):
            if connection.vpn_name == name:
                connection.stop(refused)

    def drop(self, vpn: MessageVpn, then: Callable[[], None]) -> None:
        """Close the store of a Message VPN that is none any more, once its clients are gone."""

        async def drop() -> None:
            until = self._loop.time() + LEAVE_SECONDS
            while self._loop.time() < until and self.has_clients(vpn.name):
                await asyncio.sleep(LEFT_SECONDS)
            await vpn.drop()
            if not self.is_closing:
                then()

        task = self._loop.create_task(drop())
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)
