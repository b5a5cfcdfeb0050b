"""What is read of one log: topics, start and end, and what to do about what is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amqp_ext.topics import TopicFilter, TopicPattern
from spark_bridge.errors import OptionError
from store.archive.errors import DataLoss
from store.archive.id_range import IdRange

EVERY_TOPIC = (">",)


@dataclass(frozen=True, slots=True)
class Selection:
    """
    A part of one log.

    ``start`` is a replay start text (``beginning``, ``#17``, ``10m``, ...); ``stop`` the first offset not to read, or
    None for everything there was when the read was planned. ``since`` and ``before`` are the same as times, in ms, and
    go before them. ``partition`` is what the column of that name says.
    """

    patterns: tuple[str, ...] = EVERY_TOPIC
    start: str = "beginning"
    stop: int | None = None
    since: int | None = None
    before: int | None = None
    fail_on_data_loss: bool = True
    partition: int = 0


WHOLE_LOG = Selection()


def topic_filter(patterns: Sequence[str]) -> TopicFilter:
    """Which topics these patterns take, as a log reader understands them."""
    return TopicFilter([TopicPattern.parse(pattern) for pattern in patterns], implicit_all=True)


def check_stop(stop: int, first: int, extent: IdRange) -> None:
    """
    Hold an exclusive end against the log and the start of the read.

    Raises:
        OptionError: It fits neither.
    """
    if stop > extent.last + 1:
        raise OptionError(
            f"Option endingOffsets={stop} lies beyond the log, whose last offset is {extent.last}."
        )
    if stop < first:
        raise OptionError(f"Option endingOffsets={stop} lies before the start of the read, offset {first}.")


def check_end(ids: IdRange, last: int) -> None:
    """
    Hold the end of a planned range against the log's last id now.

    Raises:
        DataLoss: It is out of bounds.
    """
    if last < ids.last:
        raise DataLoss(
            f"Offsets {ids.first} to {ids.last} were planned, and the log ends at {last} now, as one restored from an "
            "older copy would."
        )
