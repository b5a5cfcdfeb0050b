"""The ready queue: which ids are in memory, which only the store has, and in which order they leave."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.endpoint.cursor import Cursor
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.ready_queue import ASLEEP_WINDOW, SHORT_RANGE, Candidates, ReadyQueue
from gateway.core.endpoint.settings import EndpointSettings
from gateway.core.model import Row
from tests.support.chance import times
from tests.support.core import new_endpoint

# --- The ready queue ------------------------------------------------------------------------------------------------


def new_queue(window: int = 4, floor: int = 0) -> ReadyQueue:
    return ReadyQueue(window, Cursor(floor))


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
    """A commit that was not announced: ids in memory from there on are given up, and come by pages, in order."""
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


# --- An endpoint that delivers by priority, against the plainest queue there is -------------------------------------

PAGE_ROWS = 3
WINDOW = 4
PRIORITIES = st.lists(st.sampled_from([1, 4, 8]), min_size=1, max_size=12)
"""Few enough that ready queues get deeper than their windows."""
MODULUS = 3
"""The selector wants ids that are multiples of this."""


def row(message: int) -> Row:
    return (message, 0, "a", 0, 0, None, b"x")


def endpoint_of(window: int = WINDOW, stored_up_to: int = 0) -> Endpoint:
    return new_endpoint(EndpointSettings(priorities=True), window, stored_up_to=stored_up_to)


def is_wanted(found: Row) -> bool:
    return found[0] % MODULUS == 0


class Priorities(RuleBasedStateMachine):
    """``stored`` is what the store would have: every reference, with its priority. ``held`` is what flows have."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[int, int] = {}
        self.held: dict[int, Flow] = {}
        self.next_id = 1
        self.endpoint = endpoint_of()
        self.plain = Flow(self.endpoint, None)
        self.choosy: Flow | None = None
        self.was_choosy = False
        self.reading: tuple[ReadyQueue, int, int, list[int]] | None = None
        """A page being read: its queue, up to where that was read before, the page's end, and its ids."""

    @initialize(priorities=PRIORITIES)
    def recovered(self, priorities: list[int]) -> None:
        """Some messages are from before a restart: only the store knows them."""
        for priority in priorities:
            self.stored[self.next_id] = priority
            self.next_id += 1
        self.endpoint = endpoint_of(stored_up_to=max(self.stored, default=0))
        self.plain = Flow(self.endpoint, None)
        self.endpoint.bind(self.plain)

    # --- what the naive queue would do ------------------------------------------------------------------------

    def ready(self) -> list[int]:
        """All ids that no flow has, in the order of delivery."""
        return sorted(self.stored.keys() - self.held.keys(), key=lambda i: (-self.stored[i], i))

    # --- references come --------------------------------------------------------------------------------------

    @rule(priorities=PRIORITIES, gap=st.integers(0, 1))
    def publish(self, priorities: list[int], gap: int) -> None:
        """Messages are committed together."""
        first = self.next_id + gap
        ids = range(first, first + len(priorities))
        self.next_id = ids[-1] + 1
        self.stored |= dict(zip(ids, priorities, strict=True))
        self.endpoint.ready.note_priorities(ids, priorities)
        self.endpoint.ready.add_committed(ids)

    @precondition(lambda self: self.reading is None)
    @rule()
    def begin_page(self) -> None:
        """Begin to read a page: it will have what the store has now."""
        queue = self.endpoint.queue_to_read(PAGE_ROWS)
        if queue is None:
            return
        after, end = queue.next_page(self.next_id)
        found = [i for i in sorted(self.stored) if after < i < end and self.stored[i] == queue.part]
        if len(found) > PAGE_ROWS:
            found, end = found[:PAGE_ROWS], found[PAGE_ROWS - 1] + 1
        self.reading = queue, queue.read_up_to, end, found

    @precondition(lambda self: self.reading is not None)
    @rule()
    def end_page(self) -> None:
        assert self.reading is not None
        (queue, read_up_to, end, found), self.reading = self.reading, None
        if queue.read_up_to == read_up_to:
            queue.add_page(found, end)

    def read_all(self) -> bool:
        """Read pages as long as the endpoint wants one; return whether it wanted any."""
        count = 0
        while True:
            if self.reading is not None:
                self.end_page()
                count += 1
            self.begin_page()
            if self.reading is None:
                return count > 0

    # --- references go ----------------------------------------------------------------------------------------

    @rule(limit=st.integers(1, 6))
    def take(self, limit: int) -> None:
        """With all pages read, a consumer gets the first ids of the highest priority."""
        self.read_all()
        ids, expected = self.endpoint.ready.peek(limit), self.ready()
        assert bool(ids) == bool(expected)
        assert ids == expected[: len(ids)]
        assert len({self.stored[i] for i in ids}) <= 1
        if ids:
            self.hand_out(self.plain, ids)

    @rule(limit=st.integers(1, 6))
    def take_at_once(self, limit: int) -> None:
        """While a page is being read, a consumer gets the right ids or none."""
        ids = self.endpoint.ready.peek(limit)
        assert ids == self.ready()[: len(ids)]
        if ids:
            self.hand_out(self.plain, ids)

    def hand_out(self, flow: Flow, ids: Sequence[int]) -> None:
        self.endpoint.hand_out(flow, ids, [row(i) for i in ids], 1)
        self.held |= dict.fromkeys(ids, flow)

    @precondition(lambda self: self.choosy is not None)
    @rule(limit=st.integers(1, 6), waits=st.booleans())
    def select(self, limit: int, waits: bool) -> None:
        """
        A flow with a selector gets the ids that it wants in the same order: all of them if it waits for pages,
        otherwise at least none out of order.
        """
        flow = self.choosy
        assert flow is not None
        expected = [i for i in self.ready() if is_wanted(row(i))][:limit]
        flow.demand = limit
        taken: list[int] = []
        while len(taken) < limit:
            assert flow.candidates is not None
            ids = flow.candidates.take(PAGE_ROWS)
            if not ids:
                if waits and self.read_all():
                    continue
                break
            assert flow.candidates is not None
            wanted = [i for i in ids if is_wanted(row(i))][: limit - len(taken)]
            if len(taken) + len(wanted) == limit:
                flow.candidates.put_back([i for i in ids if i > wanted[-1]])
            if wanted:
                self.hand_out(flow, wanted)
                taken += wanted
        flow.demand = 0
        assert taken == (expected if waits else expected[: len(taken)])

    @precondition(lambda self: self.choosy is None)
    @rule()
    def bind(self) -> None:
        self.was_choosy = True
        self.choosy = Flow(self.endpoint, None, matches=is_wanted)
        self.endpoint.bind(self.choosy)

    @precondition(lambda self: self.choosy is not None)
    @rule()
    def unbind(self) -> None:
        """The flow's messages are ready again."""
        assert self.choosy is not None
        self.endpoint.unbind(self.choosy)
        self.held = {i: flow for i, flow in self.held.items() if flow is not self.choosy}
        self.choosy = None

    @rule(data=st.data(), keeps=st.booleans())
    def settle(self, data: st.DataObject, keeps: bool) -> None:
        """Some messages of flows are settled or released."""
        if not self.held:
            return
        ids = data.draw(st.lists(st.sampled_from(sorted(self.held)), unique=True))
        for i in ids:
            flow = self.held.pop(i)
            if keeps:
                self.endpoint.release(flow, [i])
            else:
                self.endpoint.settle(flow, [i], self.next_id - 1)
                del self.stored[i]

    @rule()
    def forget(self) -> None:
        """A purge leaves nothing ready, and nothing with flows."""
        self.held.clear()
        self.stored.clear()
        self.endpoint.empty(3, self.next_id - 1)
        assert self.endpoint.ready.peek(1) == []
        assert self.endpoint.queue_to_read(PAGE_ROWS) is None

    # --- always -----------------------------------------------------------------------------------------------

    @invariant()
    def is_bounded(self) -> None:
        """
        However deep it is, a ready queue has at most two windows and a page in memory; with selectors it may have more.
        """
        for queue in self.endpoint.ready.queues:
            assert len(queue.newest) <= WINDOW
            assert len(queue.oldest) <= 2 * WINDOW + PAGE_ROWS or self.was_choosy

    @invariant()
    def nothing_is_noted_in_vain(self) -> None:
        """Priorities are remembered for messages that flows have, and for no others."""
        assert self.endpoint.ready._noted.keys() == self.held.keys()  # type: ignore[union-attr]

    def teardown(self) -> None:
        """All messages are delivered in order."""
        if self.choosy is not None:
            self.unbind()
        self.endpoint.unbind(self.plain)
        self.held.clear()
        self.endpoint.bind(self.plain)
        while self.ready():
            self.take(limit=5)
            self.endpoint.settle(self.plain, list(self.held), self.next_id - 1)
            for i in self.held:
                del self.stored[i]
            self.held.clear()
        assert self.endpoint.ready.peek(1) == []


TestPriorities = Priorities.TestCase
TestPriorities.settings = settings(max_examples=times(150, 10_000), stateful_step_count=40)


def test_replayed_messages_and_those_that_awaited_them_go_by_priority() -> None:
    """Messages noted before or after others, and added later in any mixture, are ready by priority."""
    endpoint = endpoint_of(window=10)
    endpoint.ready.note_priorities([7, 8], [9, 1])
    endpoint.ready.note_priorities([1, 2, 9], [1, 9, 9])
    endpoint.ready.add_committed([1, 2, 7, 8, 9])
    assert [endpoint.ready.peek(5)] == [[2, 7, 9]]
    flow = Flow(endpoint, None)
    endpoint.hand_out(flow, [2, 7, 9], [row(i) for i in (2, 7, 9)], 1)
    assert endpoint.ready.peek(5) == [1, 8]


def test_consumers_share_what_is_next() -> None:
    """One of two hungry consumers gets half of the highest priority, whatever is below it."""
    endpoint = endpoint_of(window=100)
    flows = [Flow(endpoint, None), Flow(endpoint, None)]
    for flow in flows:
        endpoint.bind(flow)
        flow.demand = 50
    ids = range(1, 41)
    endpoint.ready.note_priorities(ids, [9] * 10 + [0] * 30)
    endpoint.ready.add_committed(ids)
    assert endpoint.share(flows[0]) == 5
