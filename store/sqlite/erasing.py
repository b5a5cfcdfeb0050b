"""
Messages whose content is erased: the marker takes its place, in the same row, and what the content took is zeroed.

SQLite leaves the bytes of what is deleted, or moved, where they were until the place is used again; with
``secure_delete`` it writes zeros there: always within pages that are written anyhow (``fast``, ``schema.prepare``), and
here in pages that are let go of, too. Pages as they were before are in the WAL until it begins anew:
``Checkpointer.scrub`` sees to that. Until it has, the file's ``user_version`` says that it is to be done.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import apsw

from gateway.core.effects import EraseMessages
from gateway.core.model import BARE, CONTENT, ID, ROUTE, TIME_MS, TOPIC
from store.checksum import HEAD_BITS, content_sum, head_of
from store.property_index import SEGMENT_BITS
from store.sqlite.schema import SIZE_ON_DISK
from store.sqlite.statements import chunks, marks

_CUT_OFF, _IN_THE_WAL = 0, 1
"""Values of ``user_version``: whether what was erased may be in the WAL still."""


def is_in_the_wal(connection: apsw.Connection) -> bool:
    """Whether something was erased, and the WAL has not been cut off since."""
    ((version,),) = connection.execute("pragma user_version")
    return bool(version == _IN_THE_WAL)


def note_cut_off(connection: apsw.Connection) -> None:
    """The WAL was cut off; outside of a transaction. A disk that takes nothing has it be cut off once more, later."""
    with suppress(apsw.Error):
        connection.execute(f"pragma user_version = {_CUT_OFF}").fetchall()


def erase(connection: apsw.Connection, effect: EraseMessages) -> None:
    """Carry it out, and fill in what it did; inside the caller's transaction."""
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
    """What those of these messages take of the disk that the log holds."""
    total = 0
    for piece in chunks(ids):
        ((size,),) = connection.execute(
            f"select coalesce({SIZE_ON_DISK}, 0) from message where id in ({marks(len(piece))}) and held is null",
            piece,
        )
        total += size
    return total


def _forget_values(connection: apsw.Connection, ids: Sequence[int]) -> None:
    """Their properties' values leave the index."""
    by_segment: dict[int, list[int]] = {}
    for message_id in ids:
        by_segment.setdefault(message_id >> SEGMENT_BITS, []).append(message_id)
    for segment, there in by_segment.items():
        for piece in chunks(there):
            connection.execute(
                f"delete from property_value where segment = ? and message in ({marks(len(piece))})",
                (segment, *piece),
            )
