"""
The index of property values: which messages have which text as a property's value, for spans of the log.

A property is indexed from the first start of a gateway that has it in its configuration until the next start without
it. These messages are an indexed span, which has a number of its own. Outside the spans of a property, a search scans
the messages themselves. Invariant: within a span, the transaction that stores a logged message with the property also
writes its index entry. So what the index does not have does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from amqp_ext.message.sections import MessageView
from gateway.core.model import Row
from gateway.core.replay.search import Key, indexed_text

SEGMENT_BITS: Final = 13
"""Ids of one segment, as a power of two. The rows of a segment stay in memory while it is written, and trimming
deletes them in some ten milliseconds. Ten million ids are 1,200 segments, of a few microseconds a look-up."""

IndexEntry = tuple[int, int, str, int]
"""(segment, span, text, message id)."""


class IndexedSpan(NamedTuple):
    """Ids from ``first_id`` to below ``end_id`` (None: the span still grows), indexed by one property."""

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
    How to search from ``position`` on: the span to look in, the texts to look up, and the id to stop at (exclusive).

    If no span covers the position, the span is None, and the stop is the beginning of the next span.
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
