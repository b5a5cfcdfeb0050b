"""The backlog of an endpoint: how much is unsettled, by which routes, and what is written of it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp_ext.message.fields import DEFAULT
from gateway.core.effects import AddReferences, DropCursor, MoveCursor, OpenCursor, SettleInTransaction
from gateway.core.endpoint.backlog import Backlog, RoutedMessages
from gateway.core.endpoint.cursor import Cursor, CursorChange
from gateway.core.model import WHOLE
from tests.support.chance import times

# --- The backlog of an endpoint -------------------------------------------------------------------------------------


def new_backlog(*, priorities: bool = False, floor: int = 0) -> Backlog:
    parts = range(10) if priorities else (WHOLE,)
    return Backlog(7, 70, {part: Cursor(floor) for part in parts})


def new_route(backlog: Backlog, number: int = 1, priority: int | None = None) -> RoutedMessages:
    route = RoutedMessages(number, priority)
    backlog.add_route(route)
    return route


def came(backlog: Backlog, route: RoutedMessages, messages: int, size_bytes: int) -> None:
    """Tell route and backlog of a publication, as the broker does."""
    route.messages += messages
    route.size_bytes += size_bytes
    if backlog.is_awake:
        backlog.published(route, messages, size_bytes)


def replaying(ids: list[int], first: int = 1) -> Backlog:
    """A backlog on which a replay has put these messages, of one byte each."""
    backlog = new_backlog(floor=100)
    backlog.put.begin_replay(71, first)
    backlog.put.add(ids, len(ids))
    return backlog


def move(effect: Any) -> MoveCursor:
    assert isinstance(effect, MoveCursor)
    return effect


# --- how much it is -------------------------------------------------------------------------------------------------
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["came", "wakes", "sleeps", "settled", "retired", "counted"]), st.integers(1, 4)
        ),
        max_size=25,
    ),
    priorities=st.booleans(),
)
def test_what_there_is_does_not_depend_on_who_counts_it(
    steps: list[tuple[str, int]], priorities: bool
) -> None:
    """Asleep, an endpoint sums up its routes; awake, it counts. The numbers are the same, also in the store."""
    backlog = new_backlog(priorities=priorities)
    routes = [new_route(backlog, number, number % 3) for number in (1, 2, 3, 4)]
    there = {id(route): 0 for route in routes}
    stored = dict.fromkeys(backlog.parts, 0)
    message_id = 0

    def write(effects: list[Any]) -> None:
        for effect in effects:
            assert effect.counted_id == message_id
            assert effect.messages * 5 == effect.size_bytes
            stored[effect.part] += effect.messages

    for what, number in steps:
        route = routes[number - 1]
        part = backlog.part_of(route)
        match what:
            case "came":
                message_id += 2
                if route not in backlog.routes:
                    backlog.add_route(route)
                came(backlog, route, 2, 10)
                there[id(route)] += 2
            case "wakes" | "sleeps":
                backlog.wake(what == "wakes")
            case "settled" if there[id(route)]:
                there[id(route)] -= 1
                message_id += 1
                cursor = backlog.parts[part]
                cursor.load([message_id])
                write([backlog.settle(part, [message_id], 5, message_id, ())])
                assert stored[part] == sum(there[id(r)] for r in routes if backlog.part_of(r) == part)
            case "retired" if route in backlog.routes and not there[id(route)]:
                backlog.retire_route(route)
                route.messages = route.size_bytes = 0
            case "counted":
                write(backlog.count_effects(message_id))
                assert backlog.count_effects(message_id) == []
                assert sum(stored.values()) == sum(there.values())
        assert (backlog.messages, backlog.size_bytes) == (sum(there.values()), 5 * sum(there.values()))


def test_room_is_what_a_quota_leaves_beside_what_comes_and_goes() -> None:
    backlog = new_backlog()
    came(backlog, new_route(backlog), 3, 30)
    contents = [b"x" * 10] * 5
    assert backlog.room_for(contents, 0, 0) == 5
    assert backlog.room_for(contents, 5, 0) == 2
    assert backlog.room_for(contents, 0, 55) == 2
    assert backlog.room_for(contents, 0, 60) == 3
    backlog.reserve(1, 10)
    assert (backlog.room_for(contents, 5, 0), backlog.room_for(contents, 0, 55)) == (1, 1)
    backlog.reserve(-2, -20)
    assert (backlog.room_for(contents, 5, 0), backlog.room_for(contents, 0, 55)) == (3, 3)
    assert backlog.room_for(contents, 2, 0) == 0
    assert (backlog.messages, backlog.size_bytes) == (3, 30), "what is reserved is not there yet"


def test_what_is_settled_is_let_go_of_and_its_failures_are_forgotten() -> None:
    backlog = new_backlog()
    came(backlog, new_route(backlog), 3, 30)
    backlog.parts[WHOLE].load([2, 3, 5])
    settled = backlog.settle(WHOLE, [2, 5], 20, 9, [5])
    assert (settled.cursor, settled.part, settled.floor, settled.ranges) == (70, WHOLE, 2, {4: 5})
    assert (settled.done, settled.attempts, settled.references) == ([2, 5], [5], ())
    assert (settled.counted_id, settled.messages, settled.size_bytes) == (9, 1, 10)


# --- routes ---------------------------------------------------------------------------------------------------------
def test_a_message_without_a_priority_is_in_the_default_part() -> None:
    backlog = new_backlog(priorities=True)
    plain, high = new_route(backlog, 1, None), new_route(backlog, 2, 8)
    high.numbers.append(5)
    plain.newest_id, high.newest_id = 30, 40
    assert (backlog.part_of(plain), backlog.part_of(high)) == (DEFAULT, 8)
    assert (backlog.route_numbers(DEFAULT), backlog.route_numbers(8), backlog.route_numbers(0)) == (
        [1],
        [2, 5],
        [],
    )
    assert (backlog.newest_id(DEFAULT), backlog.newest_id(8), backlog.newest_id(0)) == (30, 40, 0)


def test_a_message_of_the_store_lies_here_by_its_route_until_it_is_done() -> None:
    backlog = new_backlog(floor=3)
    new_route(backlog, 5)
    backlog.put.refer([2], 1)

    def row(message_id: int, route: int) -> Any:
        return (message_id, 0, "a", 0, route, 1, b"x")

    assert [backlog.has(row(i, 5)) for i in (2, 3, 4)] == [True, False, True]
    assert not backlog.has(row(4, 6))


def test_an_endpoint_that_was_emptied_has_nothing_and_counts_what_comes() -> None:
    for is_awake in (False, True):
        backlog = new_backlog()
        route = new_route(backlog)
        backlog.wake(is_awake)
        came(backlog, route, 3, 30)
        backlog.put.refer([1], 1)
        backlog.put.begin_replay(71, 1)
        assert backlog.drop_effects(9) == [DropCursor(70, 7, 9), DropCursor(71, 0, 0)]
        backlog.reset(80, 9)
        assert (backlog.messages, backlog.size_bytes, backlog.put.ids) == (0, 0, [])
        assert (backlog.cursor_number, backlog.emptied_up_to, backlog.parts[WHOLE].floor) == (80, 9, 9)
        assert backlog.open_effects(9) == [OpenCursor(80, (WHOLE,), 9)]
        assert backlog.drop_effects(9) == [DropCursor(80, 7, 9)]
        assert backlog.count_effects(9) == []
        came(backlog, route, 2, 20)
        backlog.wake(not is_awake)
        assert (backlog.messages, backlog.size_bytes) == (2, 20)


# --- replays and references -----------------------------------------------------------------------------------------
def test_what_a_replay_puts_lies_here_until_it_is_settled_and_its_own_cursor_moves() -> None:
    backlog = replaying([2, 3, 5], first=2)
    backlog.put.keep_by_reference(range(3, 4))
    assert (backlog.messages, backlog.size_bytes, backlog.put.ids) == (3, 3, [2, 3, 5])
    assert backlog.put.has(2)
    assert not backlog.put.has(4)
    first, *_ = backlog.settle_all({}, {2, 3}, {2: 1, 3: 1}, 100, {3})
    assert move(first).references == [3], "the reference goes, and what is held by it"
    assert (move(first).cursor, move(first).attempts, move(first).messages) == (70, [3], 0)
    acknowledged = backlog.put.acknowledged(2)
    assert (acknowledged.cursor, acknowledged.floor, acknowledged.messages) == (71, 4, -2)
    assert acknowledged.done == [2]
    assert (backlog.messages, backlog.size_bytes, backlog.put.ids) == (1, 1, [5])


def test_what_a_replay_put_stays_by_references_where_it_is_forced_to_be_complete() -> None:
    backlog = replaying([2, 3, 5])
    effects = backlog.put.keep()
    assert effects == [AddReferences(70, [2, 3, 5]), DropCursor(71, 0, 0)]
    assert (backlog.messages, backlog.put.ids, backlog.put.replayed) == (3, [2, 3, 5], None)
    assert backlog.put.end_replay() == [], "its cursor is dropped once"


def test_a_replay_that_fails_takes_with_it_what_it_had_put() -> None:
    backlog = replaying([2, 3, 5])
    backlog.put.keep_by_reference(range(3, 4))
    route = new_route(backlog)
    came(backlog, route, 2, 9)
    gone, effects = backlog.put.drop({5: 1}, set())
    assert gone == [2, 3, 5]
    dropped, ended = effects
    assert (move(dropped).references, move(dropped).attempts) == ([3], [5])
    assert ended == DropCursor(71, 0, 0)
    assert (backlog.messages, backlog.size_bytes, backlog.put.ids) == (2, 9, [])


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_reference_that_a_transaction_is_about_to_settle_is_removed_once_when_the_replay_fails(
    is_committed: bool,
) -> None:
    backlog = replaying([2, 3])
    backlog.put.keep_by_reference(range(2, 4))
    _, effects = backlog.put.drop((), {2})
    assert move(effects[0]).references == [3], "what becomes of the other is the transaction's to say"
    found = backlog.put.orphans_settled([2, 3], is_committed=is_committed)
    assert [move(effect).references for effect in found] == ([] if is_committed else [[2]])
    assert backlog.put.orphans_settled([2], is_committed=False) == []


def test_a_transaction_settles_what_came_in_each_way() -> None:
    backlog = replaying([2, 4], first=2)
    backlog.put.keep_by_reference(range(4, 5))
    backlog.put.refer([9], 1)
    route = new_route(backlog)
    came(backlog, route, 3, 6)
    cursor = backlog.parts[WHOLE]
    cursor.load([101, 102, 103])
    sizes = {2: 1, 4: 1, 9: 1, 101: 2, 103: 2}
    effects = backlog.settle_in_transaction({WHOLE: [101, 103]}, sizes, {2, 4, 9}, 2, 103, {9, 103})
    counted, routed, put, replayed = map(move, effects)
    assert (counted.messages, counted.size_bytes, counted.counted_id) == (3, 6, 103)
    assert not isinstance(counted, SettleInTransaction)
    assert all(isinstance(effect, SettleInTransaction) for effect in (routed, put, replayed))
    assert (routed.ranges, routed.messages, routed.size_bytes) == ({101: 101, 103: 103}, -2, -4)
    assert (routed.done, routed.attempts, routed.counted_id, routed.floor) == ([101, 103], [103], None, None)
    assert (put.references, put.done, put.attempts, put.messages) == ([4, 9], [4, 9], [9], 0)
    assert (replayed.cursor, replayed.ranges, replayed.messages) == (71, {2: 4}, -2)
    assert replayed.done == [2]
    assert backlog.messages == 6, "it is not known yet"
    backlog.settled_by_transaction({WHOLE: [101, 103]}, sizes, effects)
    backlog.put.settled_by_transaction({2: 1, 4: 1, 9: 1}, effects)
    assert (backlog.messages, backlog.put.ids) == (1, [])
    assert backlog.count_effects(103) == [], "the store has counted it"
    assert (cursor.floor, cursor.ranges) == (101, [(103, 103)])
    assert (backlog.put.replayed is not None) and backlog.put.replayed.floor == 4
    assert cursor.change().ranges == {101: None, 103: 103}, "what it wrote is in the floor by now"
    assert backlog.put.replayed.change().ranges == {2: None}


def test_what_is_open_still_is_told_apart_by_part() -> None:
    backlog = new_backlog(priorities=True)
    backlog.parts[4].load([2, 3])
    backlog.parts[9].load([5])
    backlog.parts[9].settle([5])
    assert backlog.open_among({4: [2, 3, 4], 9: [5]}) == {4: [2, 3]}


# --- A cursor against sets of ids, and against what a store would have of it ----------------------------------------

LAST = 40
"""Few ids, so that ranges meet."""

ids = st.integers(1, LAST)
spans = st.tuples(ids, ids).map(lambda pair: (min(pair), max(pair)))
many_spans = st.lists(spans, max_size=8, unique_by=lambda span: span[0])


def done_ids(cursor: Cursor) -> set[int]:
    return {i for i in range(1, LAST + 10) if cursor.is_done(i)}


def ids_of(spans: list[tuple[int, int]]) -> set[int]:
    return {i for first, last in spans for i in range(first, last + 1)}


def check_shape(cursor: Cursor) -> None:
    """Ranges are in rising order, and touch neither each other nor the floor."""
    end = cursor.floor
    for first, last in cursor.ranges:
        assert end + 1 < first <= last
        end = last


def write(rows: dict[int, int], change: CursorChange) -> None:
    """Apply a change as a store does: it keeps ranges by their first ids."""
    for first, last in change.ranges.items():
        if last is None:
            rows.pop(first, None)
        else:
            rows[first] = last


# --- what is done ---------------------------------------------------------------------------------------------------
@given(floor=st.integers(0, LAST), given_spans=many_spans)
def test_a_cursor_is_done_with_its_floor_and_its_ranges_in_whatever_order_they_come(
    floor: int, given_spans: list[tuple[int, int]]
) -> None:
    restored = Cursor(floor, given_spans)
    added = Cursor(floor)
    for first, last in given_spans:
        added.add(first, last)
    expected = set(range(1, floor + 1)) | ids_of(given_spans)
    for cursor in (restored, added):
        assert done_ids(cursor) == expected
        check_shape(cursor)
        assert cursor.floor == next(i for i in range(1, LAST + 2) if i not in expected or i == LAST + 1) - 1
    assert restored.ranges == added.ranges


@pytest.mark.parametrize(
    ("floor", "ranges"), [(3, [(6, 8), (10, 10), (14, 20)]), (0, []), (0, [(2, 24)]), (20, [(22, 22)])]
)
def test_what_is_asked_of_a_cursor_is_right_from_each_id_to_each(
    floor: int, ranges: list[tuple[int, int]]
) -> None:
    """From every id to every id, so at the edges of every range, and between them."""
    cursor = Cursor(floor, ranges)
    done = {*range(1, floor + 1), *ids_of(ranges)}
    assert done_ids(cursor) == done
    for first in range(1, 27):
        assert cursor.next_open(first) == next(i for i in range(first, 40) if i not in done)
        assert cursor.has_done_after(first) == any(i >= first for i in done)
        for last in range(first, 27):
            gaps = list(cursor.gaps(first, last))
            assert ids_of(gaps) == set(range(first, last + 1)) - done
            assert all(begin <= end for begin, end in gaps)
            assert all(end + 1 < begin for (_, end), (begin, _) in pairwise(gaps))
        for shortest in (1, 2, 3, 4, 7, 8):
            found = [begin for begin, end in ranges if begin > first and end - begin + 1 >= shortest]
            assert cursor.next_range(first, shortest) == min(found, default=None)


@given(opened=st.sets(ids), asked=st.sets(ids, min_size=1), data=st.data())
def test_it_has_all_that_follow_each_other_among_the_open_ones(
    opened: set[int], asked: set[int], data: st.DataObject
) -> None:
    """True if the ids are all open, and no other open id is between them."""
    cursor = Cursor(0)
    cursor.load(sorted(opened))
    if opened and data.draw(st.booleans()):
        low, high = sorted((data.draw(ids), data.draw(ids)))
        asked = {i for i in opened if low <= i <= high}
    wanted = sorted(asked)
    between = [i for i in sorted(opened) if wanted and wanted[0] <= i <= wanted[-1]]
    assert cursor.has_all(wanted) == (between == wanted)


def test_what_nobody_else_needs_in_between_makes_one_range() -> None:
    """A transaction writes one range for messages with no other open message between them, whatever their ids."""
    cursor = Cursor(0)
    cursor.load([1, 3, 5, 6, 9])
    assert cursor.ranges_of([1, 3]) == [(1, 3)]
    assert cursor.ranges_of([1, 5, 6]) == [(1, 1), (5, 6)]
    assert cursor.ranges_of([3, 6, 9]) == [(3, 3), (6, 9)]


# --- what is written ------------------------------------------------------------------------------------------------
def test_ranges_that_a_transaction_left_touching_are_one_after_a_start_and_are_written_so() -> None:
    cursor = Cursor(4, [(5, 5), (7, 8), (9, 9), (12, 12)])
    assert (cursor.floor, cursor.ranges) == (5, [(7, 9), (12, 12)])
    assert cursor.change() == CursorChange(5, {5: None, 7: 9, 9: None})


def test_ranges_that_a_transaction_wrote_apart_are_one_once_what_lay_between_is_settled() -> None:
    """No row stays inside a longer range: read first, it would hide the rest of that range."""
    cursor = Cursor(0)
    cursor.load(range(1, 10))
    written = cursor.ranges_of([5, 7])
    assert written == [(5, 5), (7, 7)]
    cursor.settle([6])
    assert cursor.change() == CursorChange(None, {6: 6})
    rows = {5: 5, 6: 6, 7: 7}
    cursor.settled_elsewhere([5, 7], [first for first, _ in written])
    cursor.settle([8])
    write(rows, cursor.change())
    assert rows == {5: 8}


def test_what_is_counted_is_saved_as_a_change_of_what_was_saved_before() -> None:
    cursor = Cursor(0, messages=9, size_bytes=90, saved_messages=4, saved_bytes=40)
    assert cursor.saves(9, 90) == (5, 50)
    assert cursor.saves(9, 90) == (0, 0)
    assert cursor.saves(7, 65) == (-2, -25)


class CursorMachine(RuleBasedStateMachine):
    """
    Messages come and are settled, one by one or in transactions. ``rows`` are the ranges that a store has; ``needed``
    are the endpoint's unsettled messages, whether in memory or not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor(0)
        self.next_id = 1
        self.needed: set[int] = set()
        self.settled: set[int] = set()
        self.loaded_up_to = 0
        self.floor = 0
        self.rows: dict[int, int] = {}
        self.under_way: list[tuple[list[int], list[tuple[int, int]]]] = []
        """For each transaction in progress, the ids that it settles and the ranges that it writes."""

    @initialize(floor=st.integers(0, 5))
    def begins(self, floor: int) -> None:
        self.cursor = Cursor(floor)
        self.floor = self.loaded_up_to = floor
        self.next_id = floor + 1

    @rule(gaps=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def come(self, gaps: list[int]) -> None:
        """Messages of the endpoint come, with other endpoints' messages between them."""
        for gap in gaps:
            self.needed.add(self.next_id + gap)
            self.next_id += gap + 1

    @rule(count=st.integers(1, 8))
    def load(self, count: int) -> None:
        """Load the next messages that only the store has."""
        found = sorted(i for i in self.needed if i > self.loaded_up_to and not self.cursor.is_done(i))[:count]
        self.cursor.load(found)
        if found:
            self.loaded_up_to = found[-1]

    @precondition(lambda self: self.cursor.open and not self.under_way)
    @rule(data=st.data())
    def unload(self, data: st.DataObject) -> None:
        above = data.draw(st.sampled_from(self.cursor.open))
        self.cursor.unload(above)
        self.loaded_up_to = above

    def free(self) -> list[int]:
        taken = {i for gone, _ in self.under_way for i in gone}
        return [i for i in self.cursor.open if i not in taken]

    @precondition(lambda self: self.free())
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        gone = sorted(data.draw(st.sets(st.sampled_from(self.free()), min_size=1)))
        self.cursor.settle(gone)
        self.are_gone(gone)

    @precondition(lambda self: self.free())
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """A transaction begins that is to settle some messages."""
        gone = sorted(data.draw(st.sets(st.sampled_from(self.free()), min_size=1)))
        self.written()
        ranges = self.cursor.ranges_of(gone)
        assert not ids_of(ranges) & (set(self.cursor.open) - set(gone)), "others are not settled by it"
        assert set(gone) <= ids_of(ranges)
        self.under_way.append((gone, ranges))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), is_committed=st.booleans(), before=st.booleans())
    def end(self, data: st.DataObject, is_committed: bool, before: bool) -> None:
        """The transaction commits or fails; settlements outside of it may have been written before."""
        gone, ranges = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        if is_committed:
            if before:
                self.written()
            self.rows.update(ranges)
            self.cursor.settled_elsewhere(gone, [first for first, _ in ranges])
            self.are_gone(gone)

    def are_gone(self, gone: list[int]) -> None:
        self.needed.difference_update(gone)
        self.settled.update(gone)

    @rule()
    def written(self) -> None:
        change = self.cursor.change()
        if change.floor is not None:
            self.floor = change.floor
        write(self.rows, change)
        assert sorted(self.rows.items()) == self.cursor.ranges, "the store has these ranges, and no others"
        assert self.floor == self.cursor.floor

    @precondition(lambda self: not self.under_way)
    @rule()
    def restart(self) -> None:
        """The cursor is the same when it is read back from what was written."""
        before = self.cursor
        self.written()
        self.cursor = Cursor(self.floor, self.rows.items())
        assert (self.cursor.floor, self.cursor.ranges) == (before.floor, before.ranges)
        assert self.cursor.change() == CursorChange(None, {})
        self.loaded_up_to = self.cursor.floor

    @invariant()
    def says_what_is_needed(self) -> None:
        cursor = self.cursor
        check_shape(cursor)
        assert all(cursor.is_done(i) for i in self.settled)
        assert not any(cursor.is_done(i) for i in self.needed)
        assert cursor.open == sorted(i for i in self.needed if i <= self.loaded_up_to)
        spans = [(cursor.floor, cursor.floor), *cursor.ranges]
        for (_, end), (begin, _) in pairwise(spans):
            assert any(end < i < begin for i in self.needed), "a hole that nobody needs"


CursorMachine.TestCase.settings = settings(max_examples=times(200, 10_000), stateful_step_count=30)
TestCursor = CursorMachine.TestCase
