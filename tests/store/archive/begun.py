"""What tests share that run a gateway whose log has an archive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gateway.config import Limits, Queue
from tests.gateway.admin.conftest import Api
from tests.store.archive.log_archive import LogArchive
from tests.support.client import Client, Received, Receiver
from tests.support.running import RunningGateway

BEGINNING = {"rewind:replay-start": "beginning"}
SMALL = Limits(read_page_rows=5, tail_bytes=2_000)
"""Limits by which few messages already fill many pages, and messages leave the memory soon."""

Begin = Callable[..., tuple[RunningGateway, LogArchive]]
"""Starts a gateway whose log has an empty archive."""


Past = Callable[..., tuple[RunningGateway, LogArchive, Client]]
"""
Starts a gateway with an archive and a client, and publishes so many messages on the topic a. With an id, all messages
are archived, and those below the id are trimmed.
"""


def of_a(**settings: Any) -> dict[str, Queue]:
    """A queue q that attracts the topic a."""
    return {"q": Queue(subscriptions=("a",), **settings)}


def numbers(first: int, count: int) -> list[str]:
    """The texts of ``count`` messages that are numbered from ``first`` on."""
    return [str(i) for i in range(first, first + count)]


def accept(receiver: Receiver, count: int) -> list[Received]:
    """Take and accept messages one by one: an endpoint may allow only a few unsettled messages."""
    return [message for _ in range(count) for message in receiver.take_and_accept(1)]


@contextmanager
def administered(gateway: RunningGateway) -> Iterator[Api]:
    """A client of the gateway's administration."""
    api = Api(gateway)
    try:
        yield api
    finally:
        api.http.close()
