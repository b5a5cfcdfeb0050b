"""
A proxy between a client and a server over TCP, which can cut, swallow, hold back and refuse: what a network does.
"""

from __future__ import annotations

import enum
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

CHUNK_BYTES: Final = 1 << 16


class Way(enum.Enum):
    """Where a chunk goes."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


class Fate(enum.Enum):
    """What becomes of a chunk."""

    PASS = "it is passed on"
    CUT = "it is lost, and the connection is cut"
    PASS_AND_CUT = "it is passed on, and the connection is cut then"
    HALVE_AND_CUT = "half of it is passed on, and the connection is cut then"
    SWALLOW = "it is lost, with all that comes behind it that way, and the connection stands"


class Proxy:
    """
    Listens on a port of this machine's. ``fate`` is asked for each chunk of bytes, and may wait; chunks are counted by
    connection and way from 0.
    """

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.fate: Callable[[Way, int, bytes], Fate] = lambda way, number, chunk: Fate.PASS
        self.refuses = False
        """Connections are cut as soon as they are made."""
        self.connections = 0
        """Made so far."""
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """Cut all connections there are."""
        with self._lock:
            found, self._open = self._open, []
        for end in found:
            _reset(end)

    def close(self) -> None:
        """Cut all, and listen no more."""
        self.refuses = True
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            if self.refuses:
                _reset(client)
                continue
            try:
                server = socket.create_connection(self._server)
            except OSError:
                _reset(client)
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open += [client, server]
            for ends in ((Way.TO_SERVER, client, server), (Way.TO_CLIENT, server, client)):
                thread = threading.Thread(target=self._pass_on, args=ends, daemon=True)
                thread.start()
                self._threads.append(thread)

    def _pass_on(self, way: Way, source: socket.socket, target: socket.socket) -> None:
        number = 0
        with suppress(OSError):
            is_swallowed = False
            while chunk := source.recv(CHUNK_BYTES):
                # TCP delivers nothing behind what is lost.
                fate = Fate.SWALLOW if is_swallowed else self.fate(way, number, chunk)
                is_swallowed = fate is Fate.SWALLOW
                number += 1
                if fate is Fate.HALVE_AND_CUT:
                    chunk = chunk[: len(chunk) // 2]
                if fate not in (Fate.CUT, Fate.SWALLOW):
                    target.sendall(chunk)
                if fate not in (Fate.PASS, Fate.SWALLOW):
                    break
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _reset(end: socket.socket) -> None:
    """Close it at once: what was not sent yet is lost."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        end.close()
