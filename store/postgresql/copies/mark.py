"""A schema's mark as a copy (``store.copies.mark``)."""

from __future__ import annotations

from store.copies import mark
from store.copies.mark import CopyMark, MarkState
from store.postgresql.statements import Connection


def read_mark(connection: Connection) -> CopyMark | None:
    """None for a store that has nothing to do with copies."""
    ((is_there,),) = connection.execute(b"select to_regclass(%s) is not null", (mark.TABLE,)).fetchall()
    if not is_there:
        return None
    for state, other in connection.execute(mark.READ.encode()).fetchall():
        return CopyMark(MarkState(state), other)
    return None


def write_mark(connection: Connection, found: CopyMark | None) -> None:
    """Mark a schema, or take its mark away; in the caller's transaction."""
    if found is None:
        connection.execute(mark.DROP.encode())
        return
    connection.execute(mark.MAKE.encode())
    connection.execute(mark.CLEAR.encode())
    connection.execute(f"insert into {mark.TABLE} values (%s, %s)".encode(), (found.state.value, found.other))
