"""
Rows that were read and are wanted soon: kept until they are handed out.

They are mostly taken in the order in which they came, so they lie in lists and are taken as slices. Where they are
not (by priority, by selectors, given back), they lie in a dictionary until all of them are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gateway.core.erasing import with_markers
from gateway.core.model import ID, Row, sizes_of


class KeptRows:
    """Invariant: a row is in the lists, whose ids rise, or in the dictionary, and one of both is empty."""

    __slots__ = ("_by_id", "_ids", "_rows", "_sizes")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._rows: list[Row] = []
        self._sizes: list[int] = []
        """Of their contents, in bytes."""
        self._by_id: dict[int, Row] = {}

    def __len__(self) -> int:
        return len(self._ids) or len(self._by_id)

    @property
    def size_bytes(self) -> int:
        """Their content; each is looked at."""
        return sum(self._sizes or sizes_of(list(self._by_id.values())))

    def keep(self, ids: Sequence[int], rows: Sequence[Row], sizes: Sequence[int]) -> None:
        """
        Take these.

        Args:
            ids: Of ``rows``, rising.
            sizes: Of their contents, in bytes.
        """
        if not ids:
            return
        if self._by_id or (self._ids and ids[0] <= self._ids[-1]):
            self._mix()
            self._by_id.update(zip(ids, rows, strict=True))
        else:
            self._ids += ids
            self._rows += rows
            self._sizes += sizes

    def take(self, ids: list[int]) -> tuple[list[Row], list[int]]:
        """
        The rows of these, rising, as many from the first on as are here, and the sizes of their contents; they are
        wanted no more.
        """
        there = self._ids
        count = len(ids)
        if there and there[:count] == ids:
            rows, sizes = self._rows[:count], self._sizes[:count]
            del there[:count], self._rows[:count], self._sizes[:count]
            return rows, sizes
        rows = self.first_of(ids)
        self.forget(ids[: len(rows)])
        return rows, sizes_of(rows)

    def first_of(self, ids: list[int]) -> list[Row]:
        """The rows of these, rising, as many from the first on as are here."""
        there = self._ids
        count = len(ids)
        if there:
            if self._begins_with(ids):
                return self._rows[:count]
            self._mix()
        found: list[Row] = []
        for i in ids:
            row = self._by_id.get(i)
            if row is None:
                break
            found.append(row)
        return found

    def forget(self, ids: list[int]) -> None:
        """These, rising, are wanted no more, whether they are here or not."""
        there = self._ids
        count = len(ids)
        if there and self._begins_with(ids):
            del there[:count], self._rows[:count], self._sizes[:count]
            return
        if there and ids and ids[0] <= there[-1] and ids[-1] >= there[0]:
            self._mix()
        if self._by_id:
            for i in ids:
                self._by_id.pop(i, None)

    def _begins_with(self, ids: list[int]) -> bool:
        """What is kept in order begins with these, or is what they begin with."""
        there = self._ids
        return there[: len(ids)] == ids[: len(there)]

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages are no more: the markers are what is kept."""
        self._rows = with_markers(self._rows, markers)
        self._sizes = sizes_of(self._rows)
        self._by_id.update((row[ID], row) for row in with_markers(self._found(markers), markers))

    def _found(self, ids: Iterable[int]) -> list[Row]:
        return [row for i in ids if (row := self._by_id.get(i)) is not None]

    def clear(self) -> None:
        """Nothing of this is wanted any more."""
        self._ids.clear()
        self._rows.clear()
        self._sizes.clear()
        self._by_id.clear()

    def _mix(self) -> None:
        """They are taken by id from now on, until all are gone."""
        self._by_id.update(zip(self._ids, self._rows, strict=True))
        self._ids.clear()
        self._rows.clear()
        self._sizes.clear()
