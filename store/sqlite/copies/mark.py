"""A file's mark as a copy (``store.copies.mark``)."""

from __future__ import annotations

import apsw

from store.copies import mark
from store.copies.mark import CopyMark, MarkState


def read_mark(connection: apsw.Connection) -> CopyMark | None:
    """None for a store that has nothing to do with copies."""
    if not connection.table_exists(None, mark.TABLE):
        return None
    for state, other in connection.execute(mark.READ):
        return CopyMark(MarkState(state), other)
    return None


def write_mark(connection: apsw.Connection, found: CopyMark | None) -> None:
    """Mark a file, or take its mark away; in the caller's transaction."""
    if found is None:
        connection.execute(mark.DROP)
        return
    connection.execute(mark.MAKE)
    connection.execute(mark.CLEAR)
    connection.execute(f"insert into {mark.TABLE} values (?, ?)", found)
