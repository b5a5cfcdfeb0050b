"""Pages of a search: a bounded piece of the log in a file, looked at for the first message that a ``Search`` takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import apsw

from gateway.core.replay.search import PageWork, Search
from store.errors import DamagedMessage
from store.ports import SearchPage
from store.property_index import SEGMENT_BITS, IndexedSpan
from store.sqlite.packed import CHECKED, sound_row

PAGE_CANDIDATES: Final = 256
"""Messages that one page reads because the index or their bytes speak for them."""

PAGE_SEGMENTS: Final = 256
"""Segments of the index that one page looks into: a millisecond."""

PAGE_IDS: Final = 10_000
"""Messages whose bytes one page looks through, if they are small: some milliseconds."""


def look_up(
    connection: apsw.Connection,
    search: Search,
    span: IndexedSpan,
    texts: Sequence[str],
    position: int,
    stop: int,
) -> SearchPage:
    """Look at messages that the index has under one of these texts."""
    statement = (
        f"select message from property_value where segment = ? and number = ? and value in ({_places(texts)}) "
        "and message >= ? and message < ? order by message limit ?"
    )
    work = PageWork()
    for _ in range(PAGE_SEGMENTS):
        if position >= stop:
            break
        segment = position >> SEGMENT_BITS
        bound = min(stop, (segment + 1) << SEGMENT_BITS)
        ids = _ids(connection, statement, [segment, span.number, *texts, position, bound, PAGE_CANDIDATES])
        found, stopped = _first_taken(connection, search, ids, work)
        if stopped is not None:
            return SearchPage(None, stopped, work.unknown)
        if found is not None or len(ids) == PAGE_CANDIDATES:
            return SearchPage(found, ids[-1] + 1, work.unknown)
        position = bound
    return SearchPage(None, position, work.unknown)


def scan(
    connection: apsw.Connection,
    search: Search,
    topics: tuple[str, Sequence[int | str]],
    position: int,
    stop: int,
    budget_bytes: int | None,
) -> SearchPage:
    """
    Look at messages that contain one of the search's needles.

    Args:
        topics: SQL that topics of interest fulfil, and its values.
        budget_bytes: Content to look through, and one message at least; None when ``PAGE_IDS`` messages are not more.
    """
    stop = min(stop, position + PAGE_IDS)
    if budget_bytes is not None:
        # Lengths come from the row headers: long contents are not read for it.
        ((last,),) = connection.execute(
            "select min(id) from (select id, sum(length(content)) over (order by id) as total from message"
            " where id >= ? and id < ?) where total > ?",
            (position, stop, budget_bytes),
        )
        stop = stop if last is None else last + 1
    condition, values = topics
    needles = " or ".join(["instr(content, ?) > 0"] * len(search.needles))
    ids = _ids(
        connection,
        f"select id from message where id >= ? and id < ? and held is null{condition} and ({needles})"
        " order by id limit ?",
        [position, stop, *values, *search.needles, PAGE_CANDIDATES],
    )
    work = PageWork()
    found, stopped = _first_taken(connection, search, ids, work)
    if stopped is not None:
        return SearchPage(None, stopped, work.unknown)
    if found is not None or len(ids) == PAGE_CANDIDATES:
        return SearchPage(found, ids[-1] + 1, work.unknown)
    return SearchPage(None, stop, work.unknown)


def _first_taken(
    connection: apsw.Connection, search: Search, ids: Iterable[int], work: PageWork
) -> tuple[int | None, int | None]:
    """The first message that the search takes; and that before which the page's work was done."""
    # One by one: the first one is nearly always it, and contents may be large.
    for message_id in ids:
        if work.is_over:
            return None, message_id
        found: list[Any] = connection.execute(
            f"select {CHECKED} from message where id = ?", (message_id,)
        ).fetchall()
        for checked in found:
            row = sound_row(checked)
            if row is None:
                raise DamagedMessage(message_id)
            if search.takes(row, work):
                return message_id, None
    return None, None


def _ids(connection: apsw.Connection, statement: str, values: Sequence[int | str | bytes]) -> list[int]:
    return [message_id for (message_id,) in connection.execute(statement, values)]


def _places(values: Sequence[str]) -> str:
    return ",".join("?" * len(values))
