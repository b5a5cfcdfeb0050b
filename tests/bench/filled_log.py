"""A data folder whose log holds many messages as publishers with properties send them, written straight into the file.

Each has a durable header, a message-id and a content type, three application properties (text, text, a number) and
one data section: no two are alike, so that a reader has to look at every one.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from amqp_ext.codec import Described, Symbol, encode
from amqp_ext.message.sections import APPLICATION_PROPERTIES, DATA, HEADER, PROPERTIES

from .filled_store import message_file
from .load import send
from .server_process import gateway

BODY_BYTES = 256
TOPICS = [f"flights/{origin}" for origin in ("EWR", "JFK", "LGA")]
CARRIERS = ("AA", "B6", "DL", "EV", "UA", "WN")
PER_MILLISECOND = 100

_INSERT = "insert into message (id, time, topic, bare, held, content) values (?, ?, ?, ?, null, ?)"
_LOG = """
update log set last_id = :last, last_time = :time, size_bytes = size_bytes + :added,
largest_bytes = max(largest_bytes, :largest)
"""


def fill_log(data: Path, last: int) -> None:
    """Make ``data`` hold messages up to id ``last`` in the log, all but the first as described above."""
    with gateway(data) as server:
        send(server.address, f"topic://{TOPICS[0]}", 1)
    connection = sqlite3.connect(message_file(data))
    connection.execute("pragma synchronous = off")
    first, time = connection.execute("select last_id + 1, last_time from log").fetchone()
    with connection:
        connection.executemany(_INSERT, _rows(first, last, time))
        added, largest = connection.execute(
            "select sum(length(content)), max(length(content)) from message where id >= ?", [first]
        ).fetchone()
        values = {"last": last, "time": time + last // PER_MILLISECOND, "added": added, "largest": largest}
        connection.execute(_LOG, values)
    connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()


def _rows(first: int, last: int, time: int) -> Iterator[tuple[int, int, str, int, bytes]]:
    chance = random.Random(7)
    header = encode(Described(HEADER, [True]))
    for number in range(first, last + 1):
        topic, carrier = TOPICS[number % len(TOPICS)], CARRIERS[number % len(CARRIERS)]
        properties = [f"m-{number}", None, None, None, None, None, Symbol("application/octet-stream")]
        application = {"carrier": carrier, "origin": topic[-3:], "flight": number % 8_000}
        content = (
            header
            + encode(Described(PROPERTIES, properties))
            + encode(Described(APPLICATION_PROPERTIES, application))
            + encode(Described(DATA, chance.randbytes(BODY_BYTES)))
        )
        yield number, time + number // PER_MILLISECOND, topic, len(header), content
