"""What a consumer has unsettled, against a dictionary."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.core.endpoint.flow import Unsettled

SOME = st.lists(st.integers(1, 12), unique=True)


class UnsettledMachine(RuleBasedStateMachine):
    """In whatever order messages come and go, those that are there are found, each with its size."""

    def __init__(self) -> None:
        super().__init__()
        self.unsettled = Unsettled()
        self.model: dict[int, int] = {}

    @rule(ids=SOME)
    def hold(self, ids: list[int]) -> None:
        new = [i for i in ids if i not in self.model]
        sizes = [10 * i for i in new]
        self.unsettled.hold(new, iter(sizes))
        self.model.update(zip(new, sizes, strict=True))

    @rule(count=st.integers(0, 5))
    def take_the_first(self, count: int) -> None:
        self._take(list(self.model)[:count])

    @rule(ids=SOME)
    def take(self, ids: list[int]) -> None:
        self._take(ids)

    def _take(self, ids: list[int]) -> None:
        there = [i for i in ids if i in self.model]
        assert self.unsettled.take(ids) == (there, [self.model.pop(i) for i in there])

    @precondition(lambda self: self.model)
    @rule(pick=st.integers(0, 11))
    def pop_one(self, pick: int) -> None:
        message_id = list(self.model)[pick % len(self.model)]
        assert self.unsettled.pop(message_id) == self.model.pop(message_id)

    @rule(message_id=st.integers(1, 12))
    def look(self, message_id: int) -> None:
        assert (message_id in self.unsettled) == (message_id in self.model)
        assert self.unsettled.get(message_id) == self.model.get(message_id)

    @rule(message_id=st.integers(1, 12))
    def give_one_back(self, message_id: int) -> None:
        if message_id not in self.model:
            self.unsettled.update({message_id: 1})
            self.model[message_id] = 1

    @rule()
    def clear(self) -> None:
        self.unsettled.clear()
        self.model.clear()

    @invariant()
    def the_same_is_there(self) -> None:
        assert len(self.unsettled) == len(self.model)
        assert list(self.unsettled) == list(self.model)


TestUnsettled = UnsettledMachine.TestCase
