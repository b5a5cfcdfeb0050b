"""
Another generation for the log of a store that is older than what its clients know, or that goes on elsewhere.

For what copies it cannot see: a database that was restored from a backup of its own, a disk that was put back to an
earlier state.
"""

from __future__ import annotations

import time

from store.copies.log_row import LogRow
from store.copies.mark import MarkState
from store.copies.tables import StoreTables
from store.errors import StoreError


def renew(tables: StoreTables, skip_ids: int | None) -> tuple[LogRow, LogRow]:
    """
    Make it another log, durably, and open it again if it was closed.

    Args:
        skip_ids: How many ids to leave out; None: as many as may have been given out since (``store.copies.log_row``).

    Returns:
        What the log was, and is now.

    Raises:
        StoreError: It is no store, or an unfinished copy; or it cannot be read or written.
    """
    try:
        mark, before = tables.mark(), tables.log()
        if mark is not None and mark.state is MarkState.UNFINISHED:
            raise StoreError(
                "cannot renew", tables.place, f"it is an unfinished copy of {mark.other}", "Finish that one"
            )
        if before is None:
            raise StoreError("cannot renew", tables.place, "it is no store of a gateway", "Name one")
        skipped = before.ids_since(time.time_ns() // 1_000_000) if skip_ids is None else skip_ids
        log = before.renewed(skip_ids=skipped)
        tables.write_mark(None, log)
    except tables.failures as error:
        raise StoreError("cannot renew", tables.place, error, "Run it again when it is well") from error
    return before, log
