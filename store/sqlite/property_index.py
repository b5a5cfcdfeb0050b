"""
The index of property values: which messages were filed under which texts, and in which stretches of the log.

A property is indexed from the start of the gateway that has it in its configuration, until the start of one that has
not. That is a stretch, with a number of its own; before, between and after stretches a search reads the messages
themselves. Invariant: within a stretch, every logged message that has the property is filed (in the transaction that
stores it), so that what is not found there is not there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from amqp_ext.message.sections import MessageView
from gateway.core.log.indexed_property import filed_text
from gateway.core.model import Row
from gateway.core.replay.search import Key

SEGMENT_BITS: Final = 13
"""Ids of one segment, as a power of two. Its rows stay in memory while it is written, and are dropped in some ten
milliseconds when it is trimmed; ten million ids are 1,200 segments to look into, a few microseconds each."""

Filed = tuple[int, int, str, int]
"""(segment, stretch, text, message id)."""


class Stretch(NamedTuple):
    """Messages from ``first_id`` on, below ``end_id`` (None: still going on), are filed under a property."""

    number: int
    name: str
    first_id: int
    end_id: int | None

    def covers(self, message_id: int) -> bool:
        return self.first_id <= message_id and (self.end_id is None or message_id < self.end_id)


def stretches(connection: sqlite3.Connection) -> list[Stretch]:
    """All there are, by their first ids."""
    rows = connection.execute(
        "select number, property, first_id, end_id from indexed order by first_id, number"
    )
    return [Stretch(*row) for row in rows]


def arrange(connection: sqlite3.Connection, names: Sequence[str]) -> None:
    """End the stretches of properties not among ``names``, and begin those that are missing; in a transaction."""
    (next_id,) = connection.execute("select last_id + 1 from log").fetchone()
    going_on = {stretch.name: stretch.number for stretch in stretches(connection) if stretch.end_id is None}
    for name, number in going_on.items():
        if name not in names:
            connection.execute("update indexed set end_id = ? where number = ?", (next_id, number))
    for name in names:
        if name not in going_on:
            connection.execute("insert into indexed (property, first_id) values (?, ?)", (name, next_id))


def filed(rows: Iterable[Row], indexed: Sequence[Stretch]) -> Iterator[Filed]:
    """What to file messages under, for these stretches."""
    for message_id, _, _, bare, _, content in rows:
        message = MessageView(content, bare)
        for stretch in indexed:
            text = filed_text(message, stretch.name)
            if text is not None:
                yield message_id >> SEGMENT_BITS, stretch.number, text, message_id


def place_in(
    indexed: Sequence[Stretch], keys: Sequence[Key], position: int, end: int
) -> tuple[Stretch | None, tuple[str, ...], int]:
    """
    How to look for something from ``position`` on: the stretch to look it up in, under which texts, and up to where.

    No stretch, where none covers the position: then up to where the next one begins.
    """
    for key in keys:
        for stretch in indexed:
            if stretch.name == key.name and stretch.covers(position):
                return stretch, key.texts, end if stretch.end_id is None else min(end, stretch.end_id)
    names = {key.name for key in keys}
    return (
        None,
        (),
        min((s.first_id for s in indexed if s.name in names and position < s.first_id < end), default=end),
    )
