"""Rows kept until they are handed out, against a dictionary."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.core.model import CONTENT, Row
from gateway.vpn.feeds.endpoint_feed import KeptRows

IDS = st.sets(st.integers(1, 12)).map(sorted)


def rows_of(ids: list[int]) -> list[Row]:
    return [(i, 0, "t", 0, 1, None, b"%d" % i) for i in ids]


def sizes_of(rows: list[Row]) -> list[int]:
    return [len(row[CONTENT]) for row in rows]


class KeptRowsMachine(RuleBasedStateMachine):
    """Whatever the order in which rows come and go, those that are there are found by their ids."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = KeptRows()
        self.model: dict[int, Row] = {}
        self.newest = 0

    @rule(ids=IDS)
    def keep(self, ids: list[int]) -> None:
        self._keep(ids)

    @rule(count=st.integers(0, 4))
    def keep_newer(self, count: int) -> None:
        self._keep(list(range(self.newest + 1, self.newest + 1 + count)))

    def _keep(self, ids: list[int]) -> None:
        self.kept.keep(ids, rows_of(ids), sizes_of(rows_of(ids)))
        self.model.update(zip(ids, rows_of(ids), strict=True))
        self.newest = max([self.newest, *ids])

    @rule(ids=IDS)
    def look(self, ids: list[int]) -> None:
        self._look(ids)

    @rule(count=st.integers(0, 5), beyond=st.integers(0, 2))
    def take_the_first(self, count: int, beyond: int) -> None:
        ids = self._first(count, beyond)
        self._look(ids)
        self._forget(ids)

    @rule(count=st.integers(0, 5), beyond=st.integers(0, 2))
    def take_and_forget_the_first(self, count: int, beyond: int) -> None:
        self._take(self._first(count, beyond))

    @rule(ids=IDS)
    def take(self, ids: list[int]) -> None:
        self._take(ids)

    @rule(ids=IDS)
    def forget(self, ids: list[int]) -> None:
        self._forget(ids)

    def _first(self, count: int, beyond: int) -> list[int]:
        return [*sorted(self.model)[:count], *range(self.newest + 1, self.newest + 1 + beyond)]

    def _take(self, ids: list[int]) -> None:
        there = next((n for n, i in enumerate(ids) if i not in self.model), len(ids))
        rows = [self.model.pop(i) for i in ids[:there]]
        assert self.kept.take(ids) == (rows, sizes_of(rows))

    def _look(self, ids: list[int]) -> None:
        there = next((n for n, i in enumerate(ids) if i not in self.model), len(ids))
        assert self.kept.first_of(ids) == [self.model[i] for i in ids[:there]]

    def _forget(self, ids: list[int]) -> None:
        self.kept.forget(ids)
        for i in ids:
            self.model.pop(i, None)

    @rule()
    def clear(self) -> None:
        self.kept.clear()
        self.model.clear()

    @invariant()
    def nothing_more_is_kept(self) -> None:
        assert len(self.kept) == len(self.model)


TestKeptRows = KeptRowsMachine.TestCase
