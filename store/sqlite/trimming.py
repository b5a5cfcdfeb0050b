"""Messages that leave the log: who still needs them is told, and holds them from then on; the others go."""

from __future__ import annotations

from collections import Counter

import apsw

from gateway.core.effects import TrimLog
from store.property_index import SEGMENT_BITS
from store.sqlite.schema import SIZE_ON_DISK
from store.sqlite.statements import chunks, marks


def trim(connection: apsw.Connection, effect: TrimLog) -> bool:
    """
    Carry it out, and fill in what it did. Small enough pieces are the caller's care: this visits every message.

    Returns:
        Whether it left messages that the log does not hold.
    """
    execute = connection.execute
    span = (effect.first, effect.stop)
    ((effect.freed_bytes, effect.newest_ms),) = execute(
        f"select coalesce({SIZE_ON_DISK}, 0), coalesce(max(time), 0) from message "
        "where id >= ? and id < ? and held is null",
        span,
    )
    is_held = _refer(connection, effect)
    for route, first, last, endpoints in effect.held:
        if endpoints:
            # Less what the references made of it (below nothing): both hold.
            execute(
                "update message set held = ? - coalesce(held, 0) "
                "where id between ? and ? and route = ? and (held is null or held < 0)",
                (endpoints, max(first, effect.first), min(last, effect.stop - 1), route),
            )
            is_held = is_held or connection.changes() > 0
    if effect.references:
        execute(
            "update message indexed by message_held set held = -held where id >= ? and id < ? and held < 0",
            span,
        )
    execute("delete from message where id >= ? and id < ? and held is null", span)
    execute("delete from property_value where segment < ?", (effect.stop >> SEGMENT_BITS,))
    execute(
        "update log set first_id = max(first_id, ?), size_bytes = size_bytes - ?, floor_time = max(floor_time, ?)",
        (effect.stop, effect.freed_bytes, effect.newest_ms + 1 if effect.newest_ms else 0),
    )
    return is_held


def _refer(connection: apsw.Connection, effect: TrimLog) -> bool:
    """
    Logged messages that are needed by references get the count of these, below nothing for now: what is held already
    can be told from what this trimming makes so.
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
