"""Data folders with many messages, filled faster than a client could publish them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from time import monotonic_ns
from typing import Any

import structlog

from amqp_ext.addresses.address import queue_topic
from amqp_ext.codec import Described, Symbol, encode
from amqp_ext.message.sections import APPLICATION_PROPERTIES, DATA, HEADER, PROPERTIES
from gateway.config import Limits, Vpn
from gateway.config.vpn import Queue
from gateway.core.errors import Refused
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.role import OpenedStore
from gateway.vpn.runtime import Runtime
from store.data_folder import DataFolder
from store.ports import StoreOptions
from store.sqlite.store import SqliteStores
from tests.bench.generator.links import message_of
from tests.bench.processes import LoadFailed

BODY_BYTES = 256
TOPICS = [f"flights/{origin}" for origin in ("EWR", "JFK", "LGA")]
CARRIERS = ("AA", "B6", "DL", "EV", "UA", "WN")
LOG_RUN = 50
"""The number of successive messages of one topic."""

_HEADER = encode(Described(HEADER, [True]))


def fill_log(data: Path, last: int) -> None:
    """Fill ``data`` with a log of ``last`` messages with properties, of a few topics in turn."""
    publish_into(data, _messages(last))


def _messages(count: int) -> Iterator[Published]:
    chance = random.Random(7)
    for start in range(1, count + 1, LOG_RUN):
        topic = TOPICS[start // LOG_RUN % len(TOPICS)]
        numbers = range(start, min(start + LOG_RUN, count + 1))
        yield topic, [_message(number, topic, chance) for number in numbers], len(_HEADER)


def _message(number: int, topic: str, chance: random.Random) -> bytes:
    properties = [f"m-{number}", None, None, None, None, None, Symbol("application/octet-stream")]
    carrier = CARRIERS[number % len(CARRIERS)]
    application = {"carrier": carrier, "origin": topic[-3:], "flight": number % 8_000}
    return (
        _HEADER
        + encode(Described(PROPERTIES, properties))
        + encode(Described(APPLICATION_PROPERTIES, application))
        + encode(Described(DATA, chance.randbytes(BODY_BYTES)))
    )


QUEUE = "spooled"
LOGGED = "bench/logged"
"""The topic of messages that are on no queue."""
SQLITE_MAGIC = b"SQLite format 3\0"
RUN = 500
"""The number of messages in one publication."""
YIELD = 5_000
"""After this many messages the loop gets a turn, to hand them to the writer."""

Published = tuple[str, list[bytes], int]
"""One publication: the topic, the messages as received, and the offset of the bare message in each."""

_OPTIONS = StoreOptions(
    page_rows=1_000, page_bytes=2**22, read_threads=1, checkpoint_bytes=2**28, synchronous="OFF"
)


def fill(data: Path, spooled: int, logged: int) -> None:
    """
    Fill ``data`` with a log of ``logged`` messages, the newest ``spooled`` of which are also on the queue ``spooled``.
    """
    older = numbered(LOGGED, 0, logged - spooled)
    publish_into(data, chain(older, numbered(queue_topic(QUEUE), logged - spooled, spooled)), [QUEUE])


def numbered(topic: str, first: int, count: int, run: int = RUN) -> Iterator[Published]:
    """``count`` messages of one topic as the load generator sends them, numbered from ``first``, ``run`` at a time."""
    message, bare = message_of(BODY_BYTES)
    stop = first + count
    for start in range(first, stop, run):
        stamp = monotonic_ns()
        yield topic, [message(number, stamp) for number in range(start, min(start + run, stop))], bare


def publish_into(data: Path, publications: Iterable[Published], queues: Iterable[str] | Vpn = ()) -> None:
    """
    Fill ``data`` as a gateway does to whose Message VPN ``default`` these are published in this order.

    Args:
        queues: The names of the queues, or all settings of the Message VPN.

    Raises:
        LoadFailed: A message was refused, or nobody took it.
    """
    settings = queues if isinstance(queues, Vpn) else Vpn(queues={name: Queue() for name in queues})
    folder = DataFolder(data)
    try:
        asyncio.run(_publish(folder.path, publications, settings))
    finally:
        folder.release()


def message_file(data: Path) -> Path:
    """The SQLite file in a data folder."""
    for path in sorted(data.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                if file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC:
                    return path
    raise FileNotFoundError(f"no file with messages in {data}")


async def _publish(folder: Path, publications: Iterable[Published], settings: Vpn) -> None:
    loop = asyncio.get_running_loop()
    runtime = Runtime(loop, structlog.get_logger())
    store = SqliteStores(folder).open("default", runtime.clock.now_ms(), _OPTIONS)
    vpn = MessageVpn("default", settings, Limits(), OpenedStore(store), runtime)
    publisher = _Publisher()
    try:
        vpn.start()
        count = 0
        for topic, contents, bare in publications:
            vpn.publishing.publish(publisher, topic, contents, [bare] * len(contents), [])
            count += len(contents)
            if count >= YIELD:
                count = 0
                await _room(vpn)
    finally:
        await vpn.close()
    if publisher.problem:
        raise LoadFailed(publisher.problem)


async def _room(vpn: MessageVpn) -> None:
    """Wait until the publications are handed to the store and its backlog is small."""
    await asyncio.sleep(0)
    has_room = asyncio.Event()
    if vpn.committer.wait_for_room(has_room.set):
        await has_room.wait()


class _Publisher:
    """Remembers the first error."""

    problem = ""

    def accepted(self, deliveries: Any, *, at_once: bool = False) -> None:
        """Expected: nothing to do."""

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None:
        """An error: no message may be missing."""
        self.problem = self.problem or ("nobody wanted a message" if refused is None else refused.text)
