"""
A few messages as one statement, which is a transaction of its own: without a begin, a commit, and all that is collected
in between. Whoever publishes one message at a time waits for it each time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from gateway.core.effects import Effect, Publication
from gateway.core.model import CONTENT, ID, TIME_MS, Row
from store.sqlite.log_tail import MOST_UNSAVED, LogTail
from store.sqlite.transaction import insert_messages, message_values


class FewMessages(NamedTuple):
    """What is to be executed, and what holds once that is done."""

    statement: str
    values: Sequence[int | str | bytes | None]
    tail: LogTail
    """What is not in the log's row then."""
    has_held: bool
    """Some of them are not held by the log."""


def few_messages(effects: Sequence[Effect], tail: LogTail, routes: Collection[int]) -> FewMessages | None:
    """
    Effects as one statement.

    Args:
        effects: A handful.
        tail: What is not in the log's row so far.
        routes: Numbers of those that are known to be in the file.

    Returns:
        None where something else is to be written with them: whatever is no message, a route, or the log's row.
    """
    messages, _, _, logged_bytes, largest_bytes = tail
    rows: Sequence[Row] = ()
    has_held = False
    for effect in effects:
        if not isinstance(effect, Publication):
            return None
        for route in effect.routes:
            if route.number not in routes:
                return None
        if effect.logged:
            logged_bytes += effect.logged_bytes
        else:
            has_held = True
        rows = [*rows, *effect.rows] if rows else effect.rows
    count = len(rows)
    messages += count
    if not count or messages >= MOST_UNSAVED:
        return None
    for row in rows:
        largest_bytes = max(largest_bytes, len(row[CONTENT]))
    last = rows[-1]
    return FewMessages(
        insert_messages(count),
        message_values(rows, largest_bytes),
        LogTail(messages, last[ID], last[TIME_MS], logged_bytes, largest_bytes),
        has_held,
    )
