"""
The index of property values: which messages have which text as a property's value, for spans of the log.

A property is indexed from the start of the gateway that has it in its configuration, until the start of one that has
not. That is an indexed span, with a number of its own; before, between and after spans a search scans the messages
themselves. Invariant: within a span, every logged message that has the property is in the index (by the transaction
that stores it), so that what is not found there is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from amqp_ext.message.sections import MessageView
from gateway.core.model import Row
from gateway.core.replay.search import Key, indexed_text

SEGMENT_BITS: Final = 13
"""Ids of one segment, as a power of two. Its rows stay in memory while it is written, and are dropped in some ten
milliseconds when it is trimmed; ten million ids are 1,200 segments to look into, a few microseconds each."""

IndexEntry = tuple[int, int, str, int]
"""(segment, span, text, message id)."""


class IndexedSpan(NamedTuple):
    """Messages from ``first_id`` on, below ``end_id`` (None: still going on), are indexed by a property."""

    number: int
    name: str
    first_id: int
    end_id: int | None

    def covers(self, message_id: int) -> bool:
        return self.first_id <= message_id and (self.end_id is None or message_id < self.end_id)


def index_entries(rows: Iterable[Row], indexed: Sequence[IndexedSpan]) -> Iterator[IndexEntry]:
    """The index entries of messages, for these spans."""
    for message_id, _, _, bare, _, _, content in rows:
        message = MessageView(content, bare)
        for span in indexed:
            text = indexed_text(message, span.name)
            if text is not None:
                yield message_id >> SEGMENT_BITS, span.number, text, message_id


def span_at(
    indexed: Sequence[IndexedSpan], keys: Sequence[Key], position: int, end: int
) -> tuple[IndexedSpan | None, tuple[str, ...], int]:
    """
    How to look for something from ``position`` on: the span to look it up in, under which texts, and up to where.

    No span, where none covers the position: then up to where the next one begins.
    """
    for key in keys:
        for span in indexed:
            if span.name == key.name and span.covers(position):
                return span, key.texts, end if span.end_id is None else min(end, span.end_id)
    names = {key.name for key in keys}
    return (
        None,
        (),
        min((s.first_id for s in indexed if s.name in names and position < s.first_id < end), default=end),
    )
