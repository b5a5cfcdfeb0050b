"""
Connections of administrators behind TLS: accepted one by one, and counted from then until their handshake is over.

A handshake costs a millisecond of everybody's time, and what asyncio keeps for it; who begins one, and goes no further,
is seen by nobody above TLS. Beyond the bounds a connection is closed at once, before it costs anything.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from gateway.accepting import accepted_from, tell_refused
from gateway.peer_lines import PeerLines

MOST: Final = 256
"""TLS handshakes at once: administrators, probes and scrapers are few."""

MOST_OF_ADDRESS: Final = 128
"""Of one IP address: half of all, so that one machine cannot keep every other out."""

HANDSHAKE_S: Final = 10
"""Seconds for one: as long as clients of AMQP have by default."""


class Handshakes:
    """
    Those under way, on all sockets of the administration.

    Args:
        refused: Counts those that were refused, by the name of the bound.
    """

    def __init__(self, refused: Counter[str]) -> None:
        self._refused = refused
        self._by_address: Counter[str] = Counter()
        self._lines = PeerLines(time.monotonic)

    def begin(self, address: str, port: int) -> bool:
        """Whether a peer may begin one; ``end`` is called then."""
        limit = None
        if self._by_address.total() >= MOST:
            limit = "admin_handshakes"
        elif self._by_address[address] >= MOST_OF_ADDRESS:
            limit = "admin_handshakes_per_address"
        if limit is None:
            self._by_address[address] += 1
            return True
        self._refused[limit] += 1
        tell_refused(self._lines, address, port, limit)
        return False

    def end(self, address: str) -> None:
        """It is over, or given up."""
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


class TlsAcceptor:
    """
    Accepts on one socket, from now on until ``close``.

    Args:
        listening: Bound, and not blocking.
        make: Makes a connection's protocol.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext,
        handshakes: Handshakes,
        backlog: int,
    ) -> None:
        self._listening = listening
        self._make = make
        self._tls = tls
        self._handshakes = handshakes
        self._connecting: set[asyncio.Task[None]] = set()
        listening.listen(backlog)
        self._accepting = asyncio.create_task(self._accept(), name="administration")

    def close(self) -> None:
        """Accept no more, and give up handshakes under way."""
        for task in (self._accepting, *self._connecting):
            task.cancel()
        self._listening.close()

    async def _accept(self) -> None:
        async for accepted, address, port in accepted_from(self._listening):
            if not self._handshakes.begin(address, port):
                accepted.close()
                continue
            task = asyncio.create_task(self._connect(accepted))
            self._connecting.add(task)
            task.add_done_callback(partial(self._connected, address))

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, accepted, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_S
            )
        except (OSError, asyncio.CancelledError) as error:
            accepted.close()
            if isinstance(error, asyncio.CancelledError):
                raise

    def _connected(self, address: str, task: asyncio.Task[None]) -> None:
        self._connecting.discard(task)
        self._handshakes.end(address)
