"""How many messages of history a second over HTTP, as Server-Sent Events, and how long they keep others waiting."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.bench.filled_store import numbered, publish_into
from tests.bench.load import LoadFailed
from tests.bench.server_process import gateway
from tests.support.http import PLAIN_HTTP

from .rates import charged
from .sizes import Figures, Sizes

PIECE = 256 * 1024


def history(folder: Path, sizes: Sizes) -> Figures:
    """The whole log, read as a browser reads it; and the longest that a probe of health waited meanwhile."""
    publish_into(folder / "data", numbered("bench/history", 0, sizes.bulk))
    with gateway(folder / "data") as server:
        url = server.admin
        httpx.get(f"{url}/healthz", **PLAIN_HTTP)  # which loads what serves HTTP
        figures = charged(server, "sse_history", lambda: _read(url, sizes.bulk), sizes.bulk)
        return figures | _probed(url, sizes.bulk)


def _probed(url: str, count: int) -> Figures:
    reading = threading.Thread(target=_read, args=(url, count))
    waits: list[float] = []
    with httpx.Client(base_url=url, **PLAIN_HTTP) as client:
        reading.start()
        while reading.is_alive():
            began = time.monotonic()
            client.get("/healthz")
            waits.append(time.monotonic() - began)
    waits.sort()
    return {"sse_probe_p99": waits[int(len(waits) * 0.99)] * 1_000 if waits else 0.0}


def _read(url: str, count: int) -> float:
    """Messages a second."""
    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.sendall(
            b"GET /v1/log?from=beginning&until=now HTTP/1.1\r\nHost: %b\r\nAccept: text/event-stream\r\n\r\n"
            % where.netloc.encode()
        )
        began = time.monotonic()
        buffer = bytearray(PIECE)
        seen, last = 0, b""
        while not last.endswith(b"\r\n0\r\n\r\n"):
            size = connection.recv_into(buffer)
            if not size:
                raise LoadFailed("the gateway closed the connection")
            seen += buffer.count(b'\ndata: {"offset":', 0, size)
            last = (last + bytes(buffer[max(size - 7, 0) : size]))[-7:]
        taken = time.monotonic() - began
    # One that lies across two pieces is not counted.
    if seen < count * 0.99:
        raise LoadFailed(f"{seen} of {count} messages came")
    return count / taken
