"""Messages that leave the log: who still needs them is told, and holds them from then on; the others go."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import apsw

from gateway.core.effects import TrimLog, TrimTopics
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
    for route, first, last, endpoints in effect.held:
        if endpoints:
            # Less what the references made of it (below nothing): both hold.
            execute(
                "update message set held = ? - coalesce(held, 0) "
                f"where {which} and id between ? and ? and route = ? and (held is null or held < 0)",
                (endpoints, *span, first, last, route),
            )
            is_held = is_held or connection.changes() > 0
    if effect.references:
        execute(
            "update message indexed by message_held set held = -held where id >= ? and id < ? and held < 0",
            (effect.first, effect.stop),
        )
    execute(f"delete from message where {which} and held is null", span)
    whole_ms = effect.newest_ms + 1 if effect.newest_ms else 0
    if isinstance(effect, TrimTopics):
        execute("update log set size_bytes = size_bytes - ?", (effect.freed_bytes,))
        if effect.newest_ms:
            execute(
                "insert into retention (rule, below, whole_time) values (?, ?, ?) on conflict (rule) do update set "
                "below = max(below, excluded.below), whole_time = max(whole_time, excluded.whole_time)",
                (effect.rule, effect.stop, whole_ms),
            )
        return is_held
    execute("delete from property_value where segment < ?", (effect.stop >> SEGMENT_BITS,))
    # What rules took out below where the log begins now is missing for whoever asks for that time.
    passed: list[Any] = execute(
        "delete from retention where below <= ? returning whole_time", (effect.stop,)
    ).fetchall()
    execute(
        "update log set first_id = max(first_id, ?), size_bytes = size_bytes - ?, floor_time = max(floor_time, ?)",
        (effect.stop, effect.freed_bytes, max([whole_ms, *[passed_ms for (passed_ms,) in passed]])),
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
