"""A TCP proxy between a client and a server that can cut, swallow, delay and refuse, as a network does."""

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
    """The direction of a chunk."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


class Fate(enum.Enum):
    """What the proxy does with a chunk."""

    PASS = "it is passed on"
    CUT = "it is lost, and the connection is cut"
    PASS_AND_CUT = "it is passed on, and the connection is cut then"
    HALVE_AND_CUT = "half of it is passed on, and the connection is cut then"
    SWALLOW = "it is lost, with all that comes behind it that way, and the connection stands"


class Proxy:
    """
    Listens on a port of this machine. It calls ``fate`` for each chunk of bytes, with the direction and the chunk's
    number from 0 within its connection and direction; ``fate`` may block.
    """

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.fate: Callable[[Way, int, bytes], Fate] = lambda way, number, chunk: Fate.PASS
        self.refuses = False
        """Whether connections are cut as soon as they are made."""
        self.connections = 0
        """The number of connections made so far."""
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """Cut all current connections."""
        with self._lock:
            found, self._open = self._open, []
        for end in found:
            _reset(end)

    def close(self) -> None:
        """Cut all connections, and stop listening."""
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
                # TCP delivers nothing after what is lost.
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
    """Close the socket with a reset: unsent data is lost."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        end.close()
