"""
The index of last-value queues, for every engine: for each key, the message that is its newest value.

A queue needs the messages that are its values. While the log has such a message, nothing is written for that. Once the
message has left the log, it is held (``message.held``) until a newer value replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from gateway.core.effects import KeepValues
from store.tables import ShortTables

T = TypeVar("T")

COLUMNS: Final = "cursor, key, message, size_bytes, expires"

PIECE: Final = 500
"""Keys, or ids, in one statement."""

MOST_AT_ONCE: Final = 2_000
"""Most values that one commit removes because they expired, or because there are too many. The next commit goes on."""


def keep_values(tables: ShortTables, effect: KeepValues) -> list[int]:
    """
    Apply the effect, and fill in its results.

    Returns:
        Ids of the messages that are no longer values.
    """
    cursor, ask = effect.cursor, tables.ask
    effect.more = effect.more_bytes = 0
    if not ask("select 1 from cursor where number = ?", cursor):
        return []
    newer = {value.key: value for value in effect.values}
    old: list[Any] = []
    for piece in _pieces(newer):
        for row in ask(f"{_ROWS} and key in ({_marks(piece)})", cursor, *piece):
            if row[1] < newer[row[0]].id:
                old.append(row)
            else:
                del newer[row[0]]  # indexed already: the log is being read again
    _remove(tables, effect, old)
    there = [
        (cursor, value.key, value.id, value.size_bytes, value.expires_ms)
        for value in newer.values()
        if value.size_bytes is not None
    ]
    tables.add("last_value", COLUMNS, there)
    effect.more += len(there)
    effect.more_bytes += sum(size_bytes for *_, size_bytes, _ in there)
    removed = [row[1] for row in old]
    for ids in _pieces(effect.gone):
        removed += _remove(tables, effect, ask(f"{_ROWS} and message in ({_marks(ids)})", cursor, *ids))
    due = f"{_ROWS} and expires <= ? order by expires, message limit {MOST_AT_ONCE}"
    removed += _remove(tables, effect, ask(due, cursor, effect.now_ms))
    dropped = _remove(tables, effect, _too_many(tables, effect))
    effect.dropped = len(dropped)
    ((effect.next_expiry_ms,),) = ask("select min(expires) from last_value where cursor = ?", cursor)
    ask("update cursor set floor = ? where number = ?", effect.position - 1, cursor)
    return [*removed, *dropped]


_ROWS: Final = "select key, message, size_bytes from last_value where cursor = ?"


def _too_many(tables: ShortTables, effect: KeepValues) -> list[Any]:
    """The oldest values beyond the queue's limits of keys and bytes."""
    messages = effect.messages + effect.more - effect.most
    size_bytes = effect.size_bytes + effect.more_bytes - effect.most_bytes
    is_over = bool(effect.most_bytes) and size_bytes > 0
    if messages <= 0 and not is_over:
        return []
    most = MOST_AT_ONCE if is_over else min(messages, MOST_AT_ONCE)
    found = []
    for row in tables.ask(f"{_ROWS} order by message limit {most}", effect.cursor):
        if messages <= 0 and not (is_over and size_bytes > 0):
            break
        messages, size_bytes = messages - 1, size_bytes - row[2]
        found.append(row)
    return found


def _remove(tables: ShortTables, effect: KeepValues, rows: Sequence[Any]) -> list[int]:
    """Delete these values (key, message, bytes). Returns the ids of their messages."""
    for piece in _pieces([row[0] for row in rows]):
        tables.ask(
            f"delete from last_value where cursor = ? and key in ({_marks(piece)})", effect.cursor, *piece
        )
    effect.more -= len(rows)
    effect.more_bytes -= sum(size_bytes for _, _, size_bytes in rows)
    return [message for _, message, _ in rows]


def _pieces(values: Iterable[T]) -> Iterator[tuple[T, ...]]:
    rest = iter(tuple(values))
    while piece := tuple(islice(rest, PIECE)):
        yield piece


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))
