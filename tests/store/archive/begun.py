"""Gateways whose logs have archives, and what tests of them share."""

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
"""Few messages are many pages, and none are in memory for long."""

Begin = Callable[..., tuple[RunningGateway, LogArchive]]
"""Starts a gateway whose log has an archive, which is empty."""


Past = Callable[..., tuple[RunningGateway, LogArchive, Client]]
"""
Starts such a gateway with so many messages on the topic a, and a client of it; with an id, all are archived, and
those below it trimmed.
"""


def of_a(**settings: Any) -> dict[str, Queue]:
    """A queue q that attracts the topic a."""
    return {"q": Queue(subscriptions=("a",), **settings)}


def numbers(first: int, count: int) -> list[str]:
    """Texts of messages."""
    return [str(i) for i in range(first, first + count)]


def accept(receiver: Receiver, count: int) -> list[Received]:
    """Take and accept messages one by one: an endpoint may let no more than a few be unsettled."""
    return [message for _ in range(count) for message in receiver.take_and_accept(1)]


@contextmanager
def administered(gateway: RunningGateway) -> Iterator[Api]:
    """The administration of a gateway."""
    api = Api(gateway)
    try:
        yield api
    finally:
        api.http.close()
