"""The ready queue: which ids are in memory, which only the store has, and in which order they leave."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.core.endpoint.cursor import Cursor
from gateway.core.endpoint.ready_queue import ASLEEP_WINDOW, SHORT_RANGE, Candidates, ReadyQueue


def rows(ids: list[int]) -> list[Any]:
    return [(i, 0, "a", 0, 1, None, b"x") for i in ids]


def new_queue(window: int = 4, floor: int = 0) -> ReadyQueue:
    return ReadyQueue(window, Cursor(floor))


def test_what_the_store_alone_knows_is_read_from_the_floor_on() -> None:
    queue = new_queue(floor=5)
    assert not queue.has_more
    queue.stored(5)
    assert not queue.has_more
    queue.stored(9)
    assert queue.has_more
    assert queue.next_page(100) == (5, 100)
    queue.add_page([6, 9], 100)
    assert not queue.has_more
    assert queue.peek(10) == queue.cursor.open == [6, 9]


def test_pages_leave_out_long_ranges_of_settled_messages_and_read_across_short_ones() -> None:
    start = 10 * SHORT_RANGE
    queue = ReadyQueue(4, Cursor(3, [(10, 20), (start, start + SHORT_RANGE - 1)]))
    queue.stored(10**6)
    assert queue.next_page(10**6) == (3, start)
    assert queue.next_page(50) == (3, 50)
    queue.add_page([4, 9, 15, 30], start)
    assert queue.peek(10) == [4, 9, 30], "what is done is in the page, and is not ready"
    queue.add_page([], start + 1)
    assert queue.next_page(10**6) == (start + SHORT_RANGE - 1, 10**6)


def test_a_page_that_is_ahead_of_what_was_told_brings_no_more_than_that() -> None:
    queue = new_queue()
    queue.stored(3)
    queue.add_page([1, 2, 3, 4, 5], 6)
    assert (queue.peek(10), queue.read_up_to) == ([1, 2, 3], 3)
    queue.add_committed([4, 5])
    assert [*queue.peek(10), *queue.newest] == [1, 2, 3, 4, 5]


def test_messages_that_nobody_was_told_of_lie_behind_the_newest() -> None:
    """The newest go back to the store, and come by pages with those behind them; what was told of is not read."""
    queue = new_queue(window=2)
    queue.add_committed([1, 2, 3, 4, 5])
    assert (list(queue.newest), queue.stored_up_to) == ([4, 5], 3)
    queue.stored(5)
    assert (list(queue.newest), queue.stored_up_to) == ([4, 5], 3)
    queue.stored(7)
    assert (list(queue.newest), queue.stored_up_to) == ([], 7)
    queue.add_page([1, 2, 3, 4, 5, 6, 7], 8)
    assert queue.peek(10) == [1, 2, 3, 4, 5, 6, 7]


def test_behind_a_replay_it_is_read_from_where_that_ended() -> None:
    queue = new_queue(floor=10)
    queue.add_put([2, 4, 12], [12])
    assert queue.cursor.open == [12], "what came by its route is the cursor's, what the log had is not"
    queue.read_from(15, 20)
    assert queue.next_page(100)[0] == 14
    queue.add_page([16, 20], 100)
    assert (queue.peek(10), queue.cursor.open) == ([2, 4, 12, 16, 20], [12, 16, 20])


def test_asleep_the_oldest_stay_in_memory_and_all_that_a_page_would_not_bring() -> None:
    last = ASLEEP_WINDOW + 50
    queue = new_queue(window=10 * last)
    queue.add_put([1, 2], [])
    queue.add_committed(range(11, 11 + last))
    queue.give_back([last + 500])
    queue.fall_asleep({1, 2, last + 500})
    cut = 10 + ASLEEP_WINDOW
    assert list(queue.oldest) == [1, 2, *range(11, cut + 1)]
    assert queue.given_back == [last + 500]
    assert queue.cursor.open == list(range(11, cut + 1))
    assert (queue.read_up_to, queue.stored_up_to) == (cut, 10 + last)
    assert queue.next_page(10**6)[0] == cut


def test_while_a_transaction_has_some_all_stays_in_memory() -> None:
    queue = new_queue(window=1_000)
    queue.add_committed(range(1, ASLEEP_WINDOW + 100))
    queue.hand_out([1])
    queue.fall_asleep(())
    assert len(queue.oldest) == ASLEEP_WINDOW + 98
    assert not queue.has_more


def test_references_behind_what_the_store_alone_knows_wait_for_it_with_a_selector_too() -> None:
    queue = new_queue()
    queue.give_back([3, 7, 12])
    queue.stored(9)
    search = Candidates(queue.queues)
    assert not search.take(10)
    queue.add_page([1, 5], 6)
    assert search.take(10) == [1, 3, 5]
    queue.hand_out([3])
    assert queue.given_back == [7, 12], "what waits is not lost"
    queue.give_back([3])
    queue.add_committed([10, 11])
    queue.add_page([9], 10)
    assert [search.take(1) for _ in range(6)] == [[3], [7], [9], [10], [11], [12]]


class ReadyQueueMachine(RuleBasedStateMachine):
    """
    A queue and its store; whoever consumes comes and goes. ``there`` is what is not settled.

    References lead to ids that were left out; a flow with a selector wants every second id.
    """

    def __init__(self) -> None:
        super().__init__()
        self.queue = new_queue(window=3)
        self.there: set[int] = set()
        self.references: set[int] = set()
        self.held: list[int] = []
        self.next_id = 1
        self.left_out: list[int] = []
        self.newest_id = 0
        self.is_asleep = False
        self.search: Candidates | None = None
        self.had: set[int] = set()
        """What the search has had; one of it that comes back may come later than its place."""

    @rule(gaps=st.lists(st.integers(0, 1), min_size=1, max_size=8))
    def publish(self, gaps: list[int]) -> None:
        ids = []
        for gap in gaps:
            self.left_out += range(self.next_id, self.next_id + gap)
            ids.append(self.next_id + gap)
            self.next_id += gap + 1
        self.there.update(ids)
        self.newest_id = ids[-1]
        if self.is_asleep:
            self.queue.stored(ids[-1])
        else:
            self.queue.add_committed(ids)

    @precondition(lambda self: self.left_out)
    @rule(data=st.data())
    def refer(self, data: st.DataObject) -> None:
        """An administrator copies messages here."""
        some = sorted(data.draw(st.sets(st.sampled_from(self.left_out), min_size=1)))
        self.left_out = [i for i in self.left_out if i not in some]
        self.references.update(some)
        self.there.update(some)
        self.queue.give_back(some)

    @precondition(lambda self: self.queue.has_more)
    @rule(count=st.integers(1, 5))
    def read(self, count: int) -> None:
        after, end = self.queue.next_page(self.next_id)
        found = sorted(i for i in self.there - self.references if after < i < end)
        page = found[:count]
        self.queue.add_page(page, page[-1] + 1 if len(found) > count else end)

    @precondition(lambda self: not self.is_asleep)
    @rule(count=st.integers(1, 5))
    def hand_out(self, count: int) -> None:
        """What is next is the oldest that nobody has, whatever was read so far."""
        ids = self.queue.peek(count)
        due = sorted(self.there - set(self.held))
        assert ids == due[: len(ids)]
        assert ids or not due or self.queue.has_more
        if ids:
            self.queue.hand_out(ids)
            self.held += ids

    @precondition(lambda self: not self.is_asleep)
    @rule(limit=st.integers(1, 5))
    def select(self, limit: int) -> None:
        """What a selector wants comes in order, whatever was read so far; and all of it comes."""
        if self.search is None:
            self.search = Candidates(self.queue.queues)
            self.had.clear()
        candidates = self.search.take(limit)
        chosen = [i for i in candidates if i % 2]
        due = sorted(i for i in self.there - set(self.held) if i % 2)
        fresh = [i for i in chosen if i not in self.had]
        assert fresh == [i for i in due if i not in self.had][: len(fresh)]
        assert candidates or not due or self.queue.has_more
        if chosen:
            self.queue.hand_out(chosen)
            self.held += chosen
            self.had.update(chosen)

    @rule()
    def end_search(self) -> None:
        if self.search is not None:
            self.search.close()
            self.queue.stop_searching()
            self.search = None

    @precondition(lambda self: self.held)
    @rule(data=st.data(), is_settled=st.booleans())
    def tell_outcome(self, data: st.DataObject, is_settled: bool) -> None:
        some = sorted(data.draw(st.sets(st.sampled_from(self.held), min_size=1)))
        self.held = [i for i in self.held if i not in some]
        if is_settled:
            if routed := [i for i in some if i not in self.references]:
                self.queue.cursor.settle(routed)
            self.references.difference_update(some)
            self.there.difference_update(some)
        else:
            self.queue.give_back(some)

    @rule(leaves_some=st.booleans())
    def fall_asleep(self, leaves_some: bool) -> None:
        """Its consumers are gone; a transaction may have some of what they held."""
        self.end_search()
        if not leaves_some:
            self.queue.give_back(self.held)
            self.held.clear()
        self.is_asleep = True
        self.queue.fall_asleep(self.references)

    @rule()
    def wake(self) -> None:
        self.is_asleep = False
        self.queue.stored(self.newest_id)

    @rule()
    def restart(self) -> None:
        before = self.queue.cursor
        self.queue = ReadyQueue(3, Cursor(before.floor, before.ranges))
        self.queue.give_back(self.references)
        self.queue.stored(self.newest_id)
        self.held.clear()
        self.search = None

    @invariant()
    def each_message_is_in_one_place(self) -> None:
        queue, known = self.queue, [*self.held]
        oldest = queue.oldest if queue.selectable is None else queue.selectable.intersection(queue.oldest)
        known += [*queue.newest, *{*oldest, *queue.given_back}]
        assert len(known) == len(set(known))
        stored = {i for i in self.there if queue.read_up_to < i <= queue.stored_up_to} - set(known)
        assert set(known) | stored == self.there
        routed = {*oldest, *queue.given_back, *self.held} - self.references
        assert queue.cursor.open == sorted(routed)
        assert not any(queue.cursor.is_done(i) for i in self.there - self.references)


ReadyQueueMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=30)
TestReadyQueue = ReadyQueueMachine.TestCase
