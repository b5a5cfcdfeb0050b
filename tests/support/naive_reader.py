"""Pages of a naive store, as ``store.ports.Reader`` defines them; tests compare real readers with these."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from gateway.core.model import CONTENT, HELD, ID, ROUTE, TIME_MS, TOPIC, UNROUTED, Row
from gateway.core.replay.search import Search
from store.errors import LogTrimmed
from store.ports import MAX_ID, DiskUse, LengthPage, LogPage, SearchPage, TopicPage
from tests.support.naive_store import NaiveStore


def agree(page: LogPage, expected: LogPage, most: int) -> bool:
    """
    Whether a page has the naive reader's rows and position. A full page of a real reader may leave open what follows.

    Args:
        most: The number of rows of a full page.
    """
    is_full = len(page.rows) == most and page.position == page.rows[-1][ID] + 1
    return page.rows == expected.rows and (page.position == expected.position or is_full)


class NaivePages:
    """
    Pages of ``page_rows`` messages of what is durable at the moment of each call. The caller matches topic patterns.
    """

    def __init__(self, store: NaiveStore, page_rows: int) -> None:
        self._store = store
        self._page_rows = page_rows

    def _rows(self, position: int = 0, end: int = MAX_ID) -> Iterator[Row]:
        return (row for i, row in sorted(self._store.messages.items()) if position <= i < end)

    def _logged(self, position: int = 0, end: int = MAX_ID) -> Iterator[Row]:
        return (row for row in self._rows(position, end) if row[HELD] is None)

    def log_page(self, position: int, end: int, patterns: Sequence[str], *, held: bool = False) -> LogPage:
        if self._store.first_id > position:
            raise LogTrimmed(position, self._store.first_id)
        rows = self._rows(position, end) if held else self._logged(position, end)
        return LogPage(*self._page(rows, end, self._page_rows))

    def search_page(self, search: Search, patterns: Sequence[str], position: int, end: int) -> SearchPage:
        found = next((row[ID] for row in self._logged(position, end) if search.takes(row)), None)
        return SearchPage(found, end if found is None else found + 1)

    def routed_page(
        self, routes: Sequence[int], after: int, end: int = MAX_ID, limit: int | None = None
    ) -> LogPage:
        assert UNROUTED not in routes
        assert list(routes) == sorted(set(routes))
        wanted = set(routes)
        most = self._page_rows if limit is None else min(limit, self._page_rows)
        rows = (row for row in self._rows(after + 1, end) if row[ROUTE] in wanted)
        return LogPage(*self._page(rows, end, most))

    def messages(self, ids: Sequence[int]) -> list[Row]:
        assert list(ids) == sorted(ids)
        messages = self._store.messages
        return [messages[i] for i in ids if i in messages][: self._page_rows]

    def values_page(self, cursor: int, position: int, end: int, now_ms: int) -> LogPage:
        values = self._store.cursors[cursor].values if cursor in self._store.cursors else {}
        ids = {v.id for v in values.values() if v.expires_ms is None or v.expires_ms > now_ms}
        rows = (row for row in self._rows(position, end) if row[ID] in ids)
        return LogPage(*self._page(rows, end, self._page_rows))

    def value_of(self, cursor: int, key: bytes) -> int | None:
        values = self._store.cursors[cursor].values if cursor in self._store.cursors else {}
        return values[key].id if key in values else None

    def topics_below(self, before: int, first: int, patterns: Sequence[str]) -> TopicPage:
        if self._store.first_id >= before:
            raise LogTrimmed(before - 1, self._store.first_id)
        logged = reversed(list(self._logged(first, before)))
        return TopicPage([(row[ID], row[TOPIC]) for row in logged], max(first, self._store.first_id))

    def lengths_page(self, position: int, end: int, patterns: Sequence[str]) -> LengthPage:
        return LengthPage(
            [(row[ID], row[TOPIC], len(row[CONTENT])) for row in self._logged(position, end)], end
        )

    def attempts(self, cursor: int, first: int = 0, last: int = MAX_ID) -> list[tuple[int, int]]:
        found = self._store.cursors.get(cursor)
        return sorted((i, n) for i, n in found.attempts.items() if first <= i <= last) if found else []

    def tally(self, position: int, end: int, patterns: Sequence[str]) -> list[tuple[str, int, int]]:
        sizes: defaultdict[str, list[int]] = defaultdict(list)
        for row in self._logged(position, end):
            sizes[row[TOPIC]].append(len(row[CONTENT]))
        return [(topic, len(lengths), sum(lengths)) for topic, lengths in sizes.items()]

    @staticmethod
    def _page(rows: Iterable[Row], end: int, most: int) -> tuple[list[Row], int]:
        """Up to one full page of rows, and the next id to read."""
        remaining = iter(rows)
        page = list(islice(remaining, most))
        is_whole = next(remaining, None) is None
        return page, end if is_whole or not page else page[-1][ID] + 1

    # --- probes -----------------------------------------------------------------------------------------------------

    def disk(self) -> DiskUse:
        return DiskUse(sum(len(row[CONTENT]) for row in self._logged()), 0, None)

    def first_since(self, time_ms: int) -> int | None:
        return next((row[ID] for row in self._logged() if row[TIME_MS] >= time_ms), None)

    def time_of(self, message_id: int) -> int | None:
        row = self._store.messages.get(message_id)
        return row[TIME_MS] if row is not None and row[HELD] is None else None

    def last_matching(self, matches: Callable[[str], bool] | None) -> int | None:
        logged = reversed(list(self._logged()))
        return next((row[ID] for row in logged if matches is None or matches(row[TOPIC])), None)
