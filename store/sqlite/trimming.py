"""
Messages that leave the log of a file, and messages whose content is erased.

The effect that trims names the endpoints that still need a message. The message is held for them from then on; other
messages are deleted.

Erasing replaces the content by a marker, in the same row, and zeroes the bytes of the content. SQLite leaves deleted or
moved bytes in place until it uses the space again. ``secure_delete`` makes it write zeros there: always within pages
that are written anyway (``fast``, ``schema.prepare``), and during an erasure also in pages that are freed. The WAL has
old versions of pages until it restarts; ``Checkpointer.scrub`` takes care of that. Until then, the file's
``user_version`` records that this is still to be done.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import apsw

from gateway.core.effects import EraseMessages, TrimLog, TrimTopics
from gateway.core.model import BARE, CONTENT, ID, ROUTE, TIME_MS, TOPIC
from store.checksum import HEAD_BITS, content_sum, head_of
from store.property_index import SEGMENT_BITS
from store.sqlite.schema import SIZE_ON_DISK
from store.sqlite.statements import chunks, marks
from store.tables import KEPT, ShortTables
from store.transaction import note_trimmed


def trim(tables: ShortTables, connection: apsw.Connection, effect: TrimLog) -> bool:
    """
    Apply the effect, and fill in its results. The caller keeps the pieces small: this visits every message.

    Returns:
        Whether it left held messages.
    """
    execute = connection.execute
    span: tuple[int | str, ...] = (effect.first, effect.stop)
    which = "id >= ? and id < ?"
    if isinstance(effect, TrimTopics):
        which, span = (
            f"{which} and id in (select value from json_each(?))",
            (*span, json.dumps(list(effect.ids))),
        )
    ((effect.freed_bytes, effect.newest_ms),) = execute(
        f"select coalesce({SIZE_ON_DISK}, 0), coalesce(max(time), 0) from message where {which} and held is null",
        span,
    )
    if effect.counts_topics:
        freed: list[Any] = execute(
            f"select topic, count(*), {SIZE_ON_DISK} from message where {which} and held is null group by topic",
            span,
        ).fetchall()
        effect.freed = freed
    is_held = _refer(connection, effect)
    if effect.has_kept:
        # Negative for now, as for references.
        execute(
            "update message set held = coalesce(held, 0) - waiting.endpoints "
            f"from (select message, count(*) as endpoints from ({KEPT}) group by message) as waiting "
            f"where id = waiting.message and {which} and (held is null or held < 0)",
            (effect.first, effect.stop, effect.first, effect.stop, *span),
        )
        is_held = is_held or connection.changes() > 0
    for route, first, last, endpoints in effect.held:
        if endpoints:
            # Minus the (negative) count of references and delays: the counts add up.
            execute(
                "update message set held = ? - coalesce(held, 0) "
                f"where {which} and id between ? and ? and route = ? and (held is null or held < 0)",
                (endpoints, *span, first, last, route),
            )
            is_held = is_held or connection.changes() > 0
    if effect.references or effect.has_kept:
        execute(
            "update message indexed by message_held set held = -held where id >= ? and id < ? and held < 0",
            (effect.first, effect.stop),
        )
    execute(f"delete from message where {which} and held is null", span)
    note_trimmed(tables, effect)
    return is_held


def _refer(connection: apsw.Connection, effect: TrimLog) -> bool:
    """
    Give logged messages that references need a negative ``held``, the number of these references, for now: this tells
    messages that are held already from those that this trim makes held. Returns whether there are any.
    """
    for pairs in chunks(effect.references):
        values = ",".join(["(?,?)"] * len(pairs))
        connection.execute(
            f"insert or ignore into reference (cursor, message) values {values}",
            [number for pair in pairs for number in pair],
        )
    by_count: dict[int, list[int]] = {}
    for message_id, count in Counter(message_id for _, message_id in effect.references).items():
        by_count.setdefault(count, []).append(message_id)
    for count, ids in by_count.items():
        for piece in chunks(ids):
            connection.execute(
                f"update message set held = ? where id in ({marks(len(piece))}) and held is null",
                (-count, *piece),
            )
    return bool(effect.references)


_CUT_OFF, _IN_THE_WAL = 0, 1
"""Values of ``user_version``: whether the WAL may still have erased content."""


def is_in_the_wal(connection: apsw.Connection) -> bool:
    """Whether something was erased, and the WAL has not been truncated since."""
    ((version,),) = connection.execute("pragma user_version")
    return bool(version == _IN_THE_WAL)


def note_cut_off(connection: apsw.Connection) -> None:
    """Note that the WAL was truncated; outside a transaction. If the disk fails, the WAL is truncated again later."""
    with suppress(apsw.Error):
        connection.execute(f"pragma user_version = {_CUT_OFF}").fetchall()


def erase(connection: apsw.Connection, effect: EraseMessages) -> None:
    """Apply the effect, and fill in its results; in the caller's transaction."""
    execute = connection.execute
    ids = [row[ID] for row in effect.rows]
    execute("pragma secure_delete = on").fetchall()
    try:
        before = _logged_bytes(connection, ids)
        there = []
        for row in effect.rows:
            head = head_of(row[ID], row[TIME_MS], row[TOPIC], row[BARE], row[ROUTE])
            checksum = (content_sum(row[CONTENT]) << HEAD_BITS) + head
            execute(
                "update message set bare = ?, checksum = ?, content = ? where id = ?",
                (row[BARE], checksum, row[CONTENT], row[ID]),
            )
            if connection.changes():
                there.append(row[ID])
        _forget_values(connection, there)
        execute(f"pragma user_version = {_IN_THE_WAL}").fetchall()
        effect.freed_bytes = before - _logged_bytes(connection, ids)
        effect.ids = there
        execute(
            "update log set size_bytes = size_bytes - ?, largest_bytes = max(largest_bytes, ?)",
            (effect.freed_bytes, max((len(row[CONTENT]) for row in effect.rows), default=0)),
        )
    finally:
        execute("pragma secure_delete = fast").fetchall()


def _logged_bytes(connection: apsw.Connection, ids: Sequence[int]) -> int:
    """The disk space of the logged messages among these."""
    total = 0
    for piece in chunks(ids):
        ((size,),) = connection.execute(
            f"select coalesce({SIZE_ON_DISK}, 0) from message where id in ({marks(len(piece))}) and held is null",
            piece,
        )
        total += size
    return total


def _forget_values(connection: apsw.Connection, ids: Sequence[int]) -> None:
    """Delete the property index's entries of these messages."""
    by_segment: dict[int, list[int]] = {}
    for message_id in ids:
        by_segment.setdefault(message_id >> SEGMENT_BITS, []).append(message_id)
    for segment, there in by_segment.items():
        for piece in chunks(there):
            connection.execute(
                f"delete from property_value where segment = ? and message in ({marks(len(piece))})",
                (segment, *piece),
            )
