"""
What a consumer has unsettled: ids of messages and the sizes of their contents.

Most are settled in the order in which they were handed out, so they lie in two lists and are taken as slices. Where
they are not, they lie in a dictionary until all of them are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from itertools import repeat
from typing import Final

NOT_HELD: Final = -1
"""The size of a message that is not here."""


class Unsettled(MutableMapping[int, int]):
    """
    Content sizes in bytes by id, in the order in which they came.

    Invariant: an id is in the lists or in the dictionary, once, and one of both is empty.
    """

    __slots__ = ("_by_id", "_ids", "_sizes")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._sizes: list[int] = []
        self._by_id: dict[int, int] = {}

    def hold(self, ids: Sequence[int], sizes: Iterable[int]) -> None:
        """
        These come, and are not here yet.

        Args:
            sizes: Of each.
        """
        if self._by_id:
            self._by_id.update(zip(ids, sizes, strict=True))
        else:
            self._ids += ids
            self._sizes += sizes

    def take(self, ids: list[int]) -> tuple[list[int], list[int]]:
        """
        These go.

        Returns:
            Those of them that were here, and their sizes.
        """
        count = len(ids)
        if self._ids:
            if self._ids[:count] == ids:
                sizes = self._sizes[:count]
                del self._ids[:count], self._sizes[:count]
                return ids, sizes
            self._mix()
        by_id = self._by_id
        before = len(by_id)
        sizes = list(map(by_id.pop, ids, repeat(NOT_HELD)))
        if before - len(by_id) < count:
            ids = [i for i, size in zip(ids, sizes, strict=True) if size != NOT_HELD]
            sizes = [size for size in sizes if size != NOT_HELD]
        return ids, sizes

    def _mix(self) -> dict[int, int]:
        """They are taken by id from now on, until all are gone."""
        if self._ids:
            self._by_id = dict(zip(self._ids, self._sizes, strict=True))
            self._ids, self._sizes = [], []
        return self._by_id

    # --- as a mapping ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._ids) or len(self._by_id)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids or self._by_id)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._mix()

    def __getitem__(self, message_id: int) -> int:
        return self._mix()[message_id]

    def __setitem__(self, message_id: int, size_bytes: int) -> None:
        self._mix()[message_id] = size_bytes

    def __delitem__(self, message_id: int) -> None:
        del self._mix()[message_id]

    def clear(self) -> None:
        """Nothing is here any more."""
        self._ids, self._sizes, self._by_id = [], [], {}
