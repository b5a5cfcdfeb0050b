"""
Delayed retry against a naive model: in which order messages are handed out, how often each was tried, and which
messages wait because of strict order, whatever is released, written or not, due, and stopped, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp_ext.addresses.address import queue_topic
from gateway.core.broker import Broker
from gateway.core.effects import CancelDelayed, DelayedMessage, Effect
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, RetryType
from gateway.core.log import LogPolicy
from gateway.core.model import CONTENT, ID
from store.ports import UNDONE_BY_FAILURE
from tests.support.chance import times
from tests.support.core import new_broker
from tests.support.naive_reader import NaivePages
from tests.support.naive_store import NaiveStore

PAGE_ROWS = 3
WINDOW = 4
picks = st.integers(0, 50)


def _ranked(priority: int) -> bytes:
    return bytes.fromhex("005370c004024050") + bytes((priority,))


class RetryMachine(RuleBasedStateMachine):
    """One queue and one consumer; commits wait, succeed, fail, or are lost in a crash."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.ready: set[int] = set()
        self.unsettled: list[int] = []
        self.coming: dict[int, int] = {}
        """Messages that are to wait, not committed yet, with the times when they are due."""
        self.waiting: dict[int, int] = {}
        """Messages that wait durably, with the times when they are due."""
        self.in_order: set[int] = set()
        """Messages of both that make others wait, as order is strict."""
        self.tries: dict[int, int] = {}
        self.ranks: dict[int, int] = {}
        self.orders: list[tuple[Sequence[Effect], Callable[[bool], None], Callable[[], None]]] = []
        """Commits in progress: the effects, what to do with the result, and what a crash undoes."""

    @initialize(is_ranked=st.booleans(), in_order=st.booleans(), retry_type=st.sampled_from(RetryType))
    def start(self, is_ranked: bool, in_order: bool, retry_type: RetryType) -> None:
        self.store = NaiveStore(1_000)
        self.broker = new_broker(window=WINDOW)
        made = EndpointSettings(
            priorities=is_ranked, strict_order=in_order, retry_type=retry_type, retry_delay_ms=4
        )
        self.endpoint, effects = self.broker.create("q", EndpointKind.QUEUE, made)
        self.apply(effects)
        self.bind()

    def bind(self) -> None:
        self.flow = Flow(self.endpoint, None)
        self.endpoint.bind(self.flow)

    def apply(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self.store.apply(effect)

    def order(
        self,
        effects: Sequence[Effect],
        then: Callable[[bool], None] = lambda _: None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.orders.append((effects, then, lost))

    # --- what happens -------------------------------------------------------------------------------------------------

    @rule(ranks=st.lists(st.sampled_from([1, 4, 4, 8]), min_size=1, max_size=6))
    def publish(self, ranks: list[int]) -> None:
        self.commit(len(self.orders), False)
        contents = [_ranked(rank) + b"\x00\x53\x77\x40" for rank in ranks]
        bares = [len(_ranked(rank)) for rank in ranks]
        publication, _, _ = self.broker.publications.publish(
            self.now_ms, queue_topic("q"), contents, bares, None
        )
        assert publication is not None
        self.apply([publication])
        self.broker.publications.committed(publication)
        is_ranked = self.endpoint.settings.priorities
        for row, rank in zip(publication.rows, ranks, strict=True):
            self.ready.add(row[ID])
            self.ranks[row[ID]] = rank if is_ranked else 0

    def expected(self) -> list[int]:
        """The ids that may be handed out, in order: those before the first that makes others wait."""
        found = []
        for i in sorted(self.ready, key=lambda i: (-self.ranks[i], i)):
            if any((-self.ranks[b], b) < (-self.ranks[i], i) for b in self.in_order):
                break
            found.append(i)
        return found

    @rule(count=st.integers(1, 6))
    def take(self, count: int) -> None:
        """Each message handed out is the next one, with its count of tries; none comes only if none may."""
        endpoint, pages = self.endpoint, NaivePages(self.store, PAGE_ROWS)
        for _ in range(count):
            while (queue := endpoint.queue_to_read(PAGE_ROWS)) is not None:
                after, until = queue.next_page(self.store.last_id + 1)
                page = pages.routed_page(endpoint.backlog.route_numbers(queue.part), after, until)
                ids = [row[ID] for row in page.rows]
                counts = pages.attempts(endpoint.cursor_number, ids[0], ids[-1]) if ids else []
                endpoint.add_page(queue, ids, page.position, counts)
            ids = endpoint.ready.peek(1)
            assert ids == self.expected()[:1]
            if not ids:
                return
            rows = [self.store.messages[i] for i in ids]
            endpoint.hand_out(self.flow, ids, rows, 0)
            assert endpoint.attempts.get(ids[0], 0) == self.tries.get(ids[0], 0)
            self.ready -= {*ids}
            self.unsettled += ids

    def some(self, pick: int, count: int) -> list[int]:
        first = pick % len(self.unsettled)
        found = self.unsettled[first : first + count]
        del self.unsettled[first : first + count]
        return found

    @precondition(lambda self: self.unsettled)
    @rule(pick=picks, count=st.integers(1, 3))
    def settle(self, pick: int, count: int) -> None:
        ids = self.some(pick, count)
        before = {i: self.tries.pop(i, 0) for i in ids}
        gone, effects = self.broker.settlements.settle(self.flow, ids)
        assert gone == sorted(ids)

        def lost() -> None:
            self.ready.update(ids)
            self.tries.update(before)

        self.order(effects, lost=lost)

    @precondition(lambda self: self.unsettled)
    @rule(
        pick=picks, count=st.integers(1, 3), failed=st.booleans(), asked=st.sampled_from([0, 0, 1, 9, 10**9])
    )
    def give_back(self, pick: int, count: int, failed: bool, asked: int) -> None:
        """Whether and until when a message waits is up to the settings and the consumer; else it is ready."""
        ids, said = self.some(pick, count), self.endpoint.settings
        for i in ids if failed else ():
            self.tries[i] = self.tries.get(i, 0) + 1
        asked_ms = dict.fromkeys(ids, self.now_ms + asked) if asked else {}
        takes = said.retry_type is RetryType.ALL or said.retry_type.value == (
            "failed" if failed else "returned"
        )
        due = {
            i: asked_ms.get(i, self.now_ms + 4 * 2 ** (max(self.tries.get(i, 0), 1) - 1))
            for i in ids
            if takes or asked
        }
        found = self.endpoint.retry_times(self.flow, ids, asked_ms, self.now_ms, failed=failed)
        assert found == due
        if not due:
            self.endpoint.release(self.flow, ids, failed=failed)
            self.ready.update(ids)
            return
        pending = self.broker.settlements.hold_back(self.flow, due)
        self.coming |= due
        in_order = set(ids) if said.strict_order else set[int]()
        self.in_order |= in_order

        def then(is_committed: bool) -> None:
            settlements = self.broker.settlements
            self.apply(settlements.held_back(pending) if is_committed else settlements.failed(pending))
            for i in ids:
                del self.coming[i]
            if is_committed:
                self.waiting |= due
            else:
                self.ready.update(ids)
                self.in_order -= in_order

        self.order(pending.effects, then)

    @rule(milliseconds=st.integers(1, 40), count=st.integers(1, 5))
    def time_passes(self, milliseconds: int, count: int) -> None:
        """Messages that are due are released, the earliest first; if that fails, they are found again."""
        self.now_ms += milliseconds
        cursor = self.store.cursor_of(self.endpoint.number)
        due = sorted(
            (due_ms, i)
            for i, (due_ms, _, _) in cursor.delayed.items()
            if due_ms <= self.now_ms and i not in self.endpoint.backlog.put.coming
        )
        due = [found for found in due if self.waiting.get(found[1]) == found[0]]
        messages = [
            DelayedMessage(
                due_ms, i, cursor.delayed[i][1], len(self.store.messages[i][CONTENT]),
                self.ranks[i], cursor.attempts.get(i, 0), True,
            )
            for due_ms, i in due[:count]
        ]  # fmt: skip
        if not messages:
            return
        effect, endpoint = self.endpoint.begin_release(messages), self.endpoint

        def then(is_committed: bool) -> None:
            assert endpoint.end_release(effect, messages, is_committed=is_committed) is is_committed
            for message in messages if is_committed else ():
                del self.waiting[message.id]
                self.in_order.discard(message.id)
                self.ready.add(message.id)

        self.order([effect], then)

    @precondition(lambda self: self.waiting)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        self.commit(len(self.orders), False)
        waiting = sorted(self.waiting)
        if not waiting:
            return
        i = waiting[pick % len(waiting)]
        due_ms, size, _ = self.store.cursor_of(self.endpoint.number).delayed[i]
        self.apply([CancelDelayed(self.endpoint.cursor_number, [(due_ms, i)])])
        self.endpoint.cancelled(DelayedMessage(due_ms, i, size, size, self.ranks[i], 0, True))
        del self.waiting[i]
        self.in_order.discard(i)
        self.tries.pop(i, None)

    @rule(count=st.integers(1, 4), fails=st.sampled_from([False, False, True]))
    def commit(self, count: int, fails: bool) -> None:
        """Commits; a failing commit undoes what failure undoes, and writes everything else."""
        for _ in range(min(count, len(self.orders))):
            effects, then, _ = self.orders.pop(0)
            can_fail = fails and any(isinstance(effect, UNDONE_BY_FAILURE) for effect in effects)
            self.apply([e for e in effects if not (can_fail and isinstance(e, UNDONE_BY_FAILURE))])
            then(not can_fail)

    @rule(in_order=st.booleans())
    def redefine(self, in_order: bool) -> None:
        """The setting applies to messages released from then on."""
        self.order([self.endpoint.change_settings(replace(self.endpoint.settings, strict_order=in_order))])

    @rule()
    def purge(self) -> None:
        self.commit(len(self.orders), False)
        _, effects = self.broker.purge(self.endpoint)
        self.apply(effects)
        for gone in (self.ready, self.unsettled, self.coming, self.waiting, self.in_order, self.tries):
            gone.clear()

    @rule()
    def crash(self) -> None:
        """Settlements that were not durable are undone; messages that wait durably go on waiting."""
        for _, _, lost in self.orders:
            lost()
        self.orders.clear()
        self.ready.update(self.unsettled, self.coming)
        self.in_order -= self.coming.keys()
        self.unsettled.clear()
        self.coming.clear()
        found = self.store.recover(1)
        self.broker = Broker(found.log, LogPolicy(), window=WINDOW, create_queues=True)
        self.broker.restore(found.endpoints, found.routes, found.replays, found.next_number)
        self.endpoint: Endpoint = self.broker.endpoints["q"]
        self.bind()
        self.tries = dict(self.store.cursor_of(self.endpoint.number).attempts)

    # --- what holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def each_message_is_counted_where_it_is(self) -> None:
        if not hasattr(self, "endpoint"):
            return
        endpoint, delayed = self.endpoint, self.endpoint.backlog.delayed
        assert endpoint.depth == len(self.ready) + len(self.unsettled) + len(self.coming)
        assert (delayed.messages, delayed.retries) == (len(self.waiting), len(self.waiting))
        assert (len(endpoint.held_up), endpoint.holding_back) == (len(self.in_order), len(self.coming))
        assert endpoint.attempts.keys() <= {*self.ready, *self.unsettled, *self.coming}
        assert delayed.next_ms is None or delayed.next_ms <= min(self.waiting.values())
        if not self.orders:
            self.store.check()

    def teardown(self) -> None:
        """In the end every waiting message comes, and nothing is left."""
        if not hasattr(self, "endpoint"):
            return
        for _ in range(100):
            self.commit(len(self.orders), False)
            self.take(100)
            if self.unsettled:
                self.settle(0, len(self.unsettled))
            if not (self.ready or self.waiting or self.orders):
                break
            self.time_passes(10**9, 100)
        assert self.endpoint.depth == self.endpoint.backlog.delayed.messages == 0


TestRetries = RetryMachine.TestCase
TestRetries.settings = settings(
    max_examples=times(400, 20_000, dev=100),
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)


def test_a_page_brings_no_attempts_of_a_message_that_waits() -> None:
    """After a restart, on a queue by priority, the page of a priority has the delayed message's row as well."""
    machine = RetryMachine()
    machine.start(is_ranked=True, in_order=False, retry_type=RetryType.FAILED)
    machine.publish(ranks=[1, 4])
    machine.take(count=1)
    machine.give_back(asked=0, count=1, failed=True, pick=0)
    machine.publish(ranks=[1])
    machine.crash()
    machine.take(count=1)
    machine.each_message_is_counted_where_it_is()
    machine.teardown()
