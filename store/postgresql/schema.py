"""
The tables of a Message VPN's schema in PostgreSQL. ``store.postgresql.migrations`` makes them.

Shape, and why. What is not said here is as in ``store.sqlite.schema``:

``message``     what the replay log holds, and that alone: one row a message, by id, never changed. Partitioned by id,
                so that trimming drops whole partitions behind, and leaves nothing to be vacuumed; what a retention rule
                takes out between others is deleted, and its place is vacuumed, or goes with the partition. Rows with
                ids below the log's ``first_id`` are not there for any reader, even where their partition still is:
                whoever reads says ``id >= first_id`` in the same statement. Partitions are named by the ids that they
                hold (``store.postgresql.partitions``); they need not be of one size.
``message_route_id_idx`` of each partition: the messages of a route, in the order of their ids.
``held_message``  what endpoints alone hold: not logged by policy, or trimmed while one needed it. Trimming puts it
                here, with the count of those that need it in ``held``; the last of them takes the row with it.
``route``       ``endpoints`` as an array. One that no message names any more is dropped behind.
``property_value``  by segments of ids, and trimmed by segments.
``log``         one row, which every transaction changes, first of all that it does. Beside what SQLite's says:
                ``epoch`` rises whenever a gateway takes the store over, ``commit_no`` counts commits, so that one
                whose answer was lost is looked up; ``active`` is the HOST:PORT that the active gateway's clients use. A
                transaction of a gateway that was deposed, or one that was done already, would make ``commit_no`` null,
                which it must not be (``FENCE``). ``told_id`` is what ``last_id`` was before the newest commit: that
                one was begun when the one before it was known to be as durable as any, and nobody takes back what a
                standby has of it. So it bounds who reads on a standby, which may show a commit before its gateway has
                told of it, or one that a failover undoes.
``migration``   names of the migrations that were applied, in their order.

All text is UTF-8 in the order of its bytes, and holds no U+0000, which PostgreSQL cannot store
(``store.postgresql.text``). Rows that change often have room on their page for their next version, so that no index is
written with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.core import model

KNOWN: Final = ("m001_routes_cursors_checksums", "m002_replay_records", "m003_retention")
"""Names of the migrations of this version, in their order."""

MESSAGE_COLUMNS: Final = "id, time, checksum, route, bare, topic, content"
"""Of ``message``, as they lie in its rows: those of eight bytes first, so that none is padded."""

HELD_COLUMNS: Final = "id, time, checksum, route, bare, held, topic, content"
"""Of ``held_message``."""

FENCE: Final = (
    "update log set commit_no = case when epoch = %s and commit_no = %s then %s end, "
    "last_id = greatest(last_id, %s), last_time = greatest(last_time, %s), size_bytes = size_bytes + %s, "
    "largest_bytes = greatest(largest_bytes, %s), next_number = greatest(next_number, %s), "
    "archived_id = greatest(archived_id, %s), counted_id = greatest(counted_id, %s), told_id = last_id"
)
"""
What every transaction of a writer begins with. Its values: the writer's epoch, the last commit's number, this one's,
and then what the log's row says from now on. Where the epoch or the number is another, it fails (not-null).
"""

_ROW: Final = (
    f"(octet_length(content) + octet_length(replace(topic, chr(1), '')) + {model.ROW_BYTES})::bigint"
)

_LONGER: Final = f"({_ROW} - {model.LEAST_BYTES})"

_REST: Final = f"mod({_LONGER}, {model.OVERFLOW_BYTES})"

SIZE_ON_DISK: Final = f"""coalesce(sum({model.ENTRY_BYTES} + case
    when {_ROW} <= {model.WHOLE_BYTES}
        then {model.PAGE_BYTES} / ({model.USABLE_BYTES} / {_ROW})
    when {_REST} <= {model.WHOLE_BYTES - model.LEAST_BYTES}
        then {_LONGER} / {model.OVERFLOW_BYTES} * {model.PAGE_BYTES}
            + {model.PAGE_BYTES} / ({model.USABLE_BYTES} / ({model.LEAST_BYTES} + {_REST}))
    else ({_LONGER} / {model.OVERFLOW_BYTES} + 1) * {model.PAGE_BYTES}
        + {model.PAGE_BYTES // (model.USABLE_BYTES // model.LEAST_BYTES)}
    end), 0)::bigint"""
"""SQL that sums what messages take of the disk (``disk_usage.stored_bytes``: of SQLite's file, so that quotas mean the
same whatever the engine); contents are not read for it. An escaped character of a topic counts as the one it is."""


def unknown_migrations(applied: Iterable[str]) -> list[str]:
    """Those of the names that this version does not know."""
    return sorted(set(applied).difference(KNOWN))
