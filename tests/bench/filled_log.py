"""A data folder whose log holds many messages as publishers with properties send them.

Each has a durable header, a message-id and a content type, three application properties (text, text, a number) and
one data section: no two are alike, so that a reader has to look at every one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from amqp_ext.codec import Described, Symbol, encode
from amqp_ext.message.sections import APPLICATION_PROPERTIES, DATA, HEADER, PROPERTIES

from .filled_store import Published, publish_into

BODY_BYTES = 256
TOPICS = [f"flights/{origin}" for origin in ("EWR", "JFK", "LGA")]
CARRIERS = ("AA", "B6", "DL", "EV", "UA", "WN")
RUN = 50
"""Messages of one topic that arrive together."""

_HEADER = encode(Described(HEADER, [True]))


def fill_log(data: Path, last: int) -> None:
    """Make ``data`` hold ``last`` messages in the log, as described above."""
    publish_into(data, _messages(last))


def _messages(count: int) -> Iterator[Published]:
    chance = random.Random(7)
    for start in range(1, count + 1, RUN):
        topic = TOPICS[start // RUN % len(TOPICS)]
        numbers = range(start, min(start + RUN, count + 1))
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
