"""
Pages of a search in the database: a bounded piece of the log, looked at for the first message that a ``Search``
takes; and where in the log times lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gateway.core.model import ID, Row
from gateway.core.replay.search import PageWork, Search
from store.ports import SearchPage
from store.postgresql.connection import ReadConnection, Value
from store.postgresql.packed import number
from store.property_index import SEGMENT_BITS, IndexedSpan
from store.reading import named_topics

PAGE_CANDIDATES: Final = 256
"""Messages that one page reads because the index or their bytes speak for them."""

PAGE_SEGMENTS: Final = 256
"""Segments of the index that one page looks into: a few milliseconds."""

WIDER: Final = 4
"""Where nothing was found in some segments, so many times as many are looked into next."""

PAGE_IDS: Final = 10_000
"""Messages whose bytes one page looks through, if they are small: some milliseconds."""

ReadLogged = Callable[[Sequence[int]], "list[Row]"]
"""Those of some ids that the log holds, as many as a page holds."""

LOOK_UP: Final = """
    select found.message from generate_series($1::bigint, $2::bigint) as looked_at (segment) cross join lateral (
        select message from property_value where property_value.segment = looked_at.segment
        and number = $3::bigint and value = any($4::text[]) and message >= $5::bigint and message < $6::bigint
        order by message limit $7::bigint) as found
    order by found.message limit $7::bigint
"""


def look_up(
    connection: ReadConnection,
    read: ReadLogged,
    search: Search,
    span: IndexedSpan,
    texts: Sequence[str],
    position: int,
    stop: int,
) -> SearchPage:
    """Look at messages that the index has under one of these texts."""
    work = PageWork()
    looked_at, width = 0, 1
    while looked_at < PAGE_SEGMENTS and position < stop:
        first = position >> SEGMENT_BITS
        last = min(first + width - 1, (stop - 1) >> SEGMENT_BITS)
        bound = min(stop, (last + 1) << SEGMENT_BITS)
        values: list[Value] = [first, last, span.number, texts, position, bound, PAGE_CANDIDATES]
        ids = [number(found) for (found,) in connection.ask(LOOK_UP, values)]
        page = _first_taken(read, search, ids, work, bound)
        if page is not None:
            return page
        position = bound
        looked_at += width
        width = min(width * WIDER, PAGE_SEGMENTS - looked_at)
    return SearchPage(None, position, work.unknown)


def scan(
    connection: ReadConnection,
    read: ReadLogged,
    search: Search,
    topics: tuple[str, Sequence[Value]],
    position: int,
    stop: int,
    budget_bytes: int | None,
) -> SearchPage:
    """
    Look at messages that contain one of the search's needles.

    Args:
        topics: SQL that topics of interest fulfil, and its values, of which the first is the statement's fourth.
        budget_bytes: Content to look through, and one message at least; None when ``PAGE_IDS`` messages are not more.
    """
    stop = min(stop, position + PAGE_IDS)
    if budget_bytes is not None:
        # Lengths are known without the contents, where these lie apart from their rows.
        ((last,),) = connection.ask(
            "select min(id) from (select id, sum(octet_length(content)) over (order by id) as total from message "
            "where id >= $1::bigint and id < $2::bigint) as page where total > $3::bigint",
            [position, stop, budget_bytes],
        )
        stop = stop if last is None else number(last) + 1
    condition, values = topics
    first_needle = 4 + len(values)
    needles = " or ".join(
        f"position(${first_needle + k}::bytea in content) > 0" for k in range(len(search.needles))
    )
    found = connection.ask(
        "select id from message where id >= $1::bigint and id < $2::bigint and id >= (select first_id from log)"
        f"{condition} and ({needles}) order by id limit $3::bigint",
        [position, stop, PAGE_CANDIDATES, *values, *search.needles],
    )
    work = PageWork()
    page = _first_taken(read, search, [number(message_id) for (message_id,) in found], work, stop)
    return page or SearchPage(None, stop, work.unknown)


def _first_taken(
    read: ReadLogged, search: Search, ids: Sequence[int], work: PageWork, stop: int
) -> SearchPage | None:
    """
    What came of looking at candidates; None where the search takes none of them, and these were all.
    """
    start, count = 0, 1
    while start < len(ids):
        wanted = ids[start : start + count]
        rows = read(wanted)
        for row in rows:
            if work.is_over:
                return SearchPage(None, row[ID], work.unknown)
            if search.takes(row, work):
                return SearchPage(row[ID], row[ID] + 1, work.unknown)
        # Fewer rows than ids: a page's bytes were full, or some were trimmed meanwhile.
        start = start + len(wanted) if len(rows) == len(wanted) or not rows else _behind(ids, rows[-1][ID])
        count = min(count * WIDER, PAGE_CANDIDATES)
    if len(ids) == PAGE_CANDIDATES:
        return SearchPage(None, min(ids[-1] + 1, stop), work.unknown)
    return None


def _behind(ids: Sequence[int], message_id: int) -> int:
    """Where the ids above this one begin."""
    return next((k for k, other in enumerate(ids) if other > message_id), len(ids))


def topic_condition(patterns: Sequence[str], place: int) -> tuple[str, list[Value]]:
    """
    SQL that holds for every topic one of the patterns matches, and for few others; and its values.

    Args:
        place: The number of its first value.
    """
    literals, wildcards = named_topics(patterns, _literal, "%") or ((), ())
    if not literals and not wildcards:
        return "", []
    return (
        f" and (topic = any(${place}::text[]) or topic like any(${place + 1}::text[]))",
        [literals, wildcards],
    )


def _literal(text: str) -> str:
    return "".join(f"\\{c}" if c in "%_\\" else c for c in text)


def positions_since(newest: str) -> str:
    """
    SQL for the positions of the times in ``$1``, in their order (``store.ports.Reader.positions_since``).

    Args:
        newest: SQL, over the log's row, for the last id that is looked at.
    """
    return f"""
        with recursive bounds as (
            select first_id, greatest(first_id, {newest} + 1) as next_id from log
        ),
        searched (number, time, low, high) as (
            select wanted.number, wanted.time, first_id, next_id
                from bounds, unnest($1::bigint[]) with ordinality as wanted (time, number)
            union all
            select number, searched.time,
                case when probe.time < searched.time then probe.id + 1 else low end,
                case when probe.time < searched.time then high else (low + high) / 2 end
                from searched left join lateral (
                    select id, time from message
                    where id >= (searched.low + searched.high) / 2 and id < searched.high order by id limit 1
                ) as probe on true
                where low < high
        )
        select low::bigint from searched where low >= high order by number
    """
