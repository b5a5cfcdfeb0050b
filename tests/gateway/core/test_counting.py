"""What a store counts of endpoints, against what is there, whenever a gateway starts."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.core.broker import Broker
from gateway.core.effects import CountedUpTo, Effect, MoveCursor
from gateway.core.endpoint.endpoint import Flow
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings
from gateway.core.log import LogPolicy
from gateway.core.model import WHOLE, LogState
from gateway.core.router import UNCOUNTED_IDS, BacklogCounts
from tests.support.core import new_broker, publish
from tests.support.naive_store import NaiveStore


def test_what_came_is_counted_once() -> None:
    broker = new_broker()
    endpoint, _ = broker.create("q", EndpointKind.QUEUE, EndpointSettings(), ("a/>",))
    publish(broker, "a/x", 3, size_bytes=5)
    publish(broker, "b/x", 1)
    move, counted = broker.counts.effects()
    assert isinstance(move, MoveCursor)
    assert (move.cursor, move.part, move.counted_id) == (endpoint.cursor_number, WHOLE, 4)
    assert (move.messages, move.size_bytes) == (3, 15)
    assert counted == CountedUpTo(4)
    assert broker.counts.effects() == []
    publish(broker, "a/x", 1, size_bytes=0)
    move, counted = broker.counts.effects()
    assert isinstance(move, MoveCursor)
    assert (move.counted_id, move.messages, move.size_bytes) == (5, 1, 0), (
        "one message, of no content, is one"
    )
    assert counted == CountedUpTo(5)


def test_a_purge_counts_what_was_on_its_way() -> None:
    """Messages that have ids and are not committed are purged, too: each is counted once, by whoever asks first."""
    broker = new_broker()
    endpoint, _ = broker.create("q", EndpointKind.QUEUE, EndpointSettings(), ("a/>",))
    publish(broker, "a/x", 2)
    on_its_way, _, _ = broker.publications.publish(1_000, "a/x", [b"x"] * 3, [0] * 3, None)
    assert on_its_way is not None
    assert broker.purge(endpoint)[0] == 2
    assert broker.purge(endpoint)[0] == 0
    broker.publications.committed(on_its_way)
    assert (
        endpoint.depth,
        endpoint.backlog.take_dropped_on_way(),
        endpoint.backlog.take_dropped_on_way(),
    ) == (0, 3, 0)
    publish(broker, "a/x", 1)
    assert (broker.purge(endpoint)[0], endpoint.backlog.take_dropped_on_way()) == (1, 0)


def test_where_nothing_comes_to_any_endpoint_a_start_looks_at_few_ids() -> None:
    log = LogState(1, 1, UNCOUNTED_IDS + 1, 0, 0)
    counts = BacklogCounts(log)
    assert counts.effects() == []
    log.next_id += 1
    assert counts.effects() == [CountedUpTo(UNCOUNTED_IDS + 1)]
    log.next_id += UNCOUNTED_IDS
    assert counts.effects() == []


class CountingMachine(RuleBasedStateMachine):
    """Messages come and go, are counted or not, and the gateway ends at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.store = NaiveStore()
        self.broker = new_broker()
        for name, patterns in (("q1", ("a/>",)), ("q2", ("a/x",)), ("q3", ("b/>",))):
            options = EndpointSettings(priorities=name == "q2")
            self.keep(self.broker.create(name, EndpointKind.QUEUE, options, patterns)[1])
        self.there: dict[str, dict[int, int]] = {"q1": {}, "q2": {}, "q3": {}}
        """Sizes by id."""
        self.flows: dict[str, Flow] = {}

    def keep(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.store.apply(effect)

    @rule(topic=st.sampled_from(["a/x", "a/y", "b/x"]), count=st.integers(1, 3), size=st.integers(0, 3))
    def publish(self, topic: str, count: int, size: int) -> None:
        publication = publish(self.broker, topic, count, size)
        self.store.apply(publication)
        takers = {"a/x": ("q1", "q2"), "a/y": ("q1",), "b/x": ("q3",)}[topic]
        for name in takers:
            self.there[name] |= {row[0]: size for row in publication.rows}

    @rule(name=st.sampled_from(["q1", "q2", "q3"]))
    def bind_or_unbind(self, name: str) -> None:
        endpoint = self.broker.endpoints[name]
        flow = self.flows.pop(name, None)
        if flow is not None:
            endpoint.unbind(flow)
        else:
            flow = self.flows[name] = Flow(endpoint, None)
            endpoint.bind(flow)

    @precondition(lambda self: self.flows)
    @rule(data=st.data(), how=st.sampled_from(["settled", "settled", "committed", "rolled back", "failed"]))
    def consume(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.flows)))
        flow, endpoint = self.flows[name], self.broker.endpoints[name]
        queue = endpoint.queue_to_read(10)
        if queue is not None:
            numbers = endpoint.backlog.route_numbers(queue.part)
            after, end = queue.next_page(self.broker.log.next_id)
            rows = [r for i, r in sorted(self.store.messages.items()) if after < i < end and r[4] in numbers]
            endpoint.add_page(queue, [row[0] for row in rows], end, ())
        found = endpoint.ready.peek(3)
        if not found:
            return
        endpoint.hand_out(flow, found, [self.store.messages[i] for i in found])
        gone = sorted(data.draw(st.sets(st.sampled_from(found), min_size=1)))
        settlements = self.broker.settlements
        if how == "settled":
            self.keep(settlements.settle(flow, gone)[1])
        else:
            pending = settlements.begin(flow, gone)
            if how == "committed":
                self.keep([*pending.effects])
                self.keep(settlements.committed(pending))
            else:
                # What failed to be written is written later, but for the transaction's own.
                self.keep(pending.counts)
                self.keep(settlements.failed(pending))
        endpoint.release(flow, list(flow.unsettled))
        if how in ("settled", "committed"):
            for i in gone:
                del self.there[name][i]

    @rule()
    def count(self) -> None:
        self.keep(self.broker.counts.effects())

    @rule()
    def sweep(self) -> None:
        self.broker.publications.sweep_routes()

    @rule(name=st.sampled_from(["q1", "q2", "q3"]))
    def purge(self, name: str) -> None:
        count, effects = self.broker.purge(self.broker.endpoints[name])
        assert count == len(self.there[name])
        self.keep(effects)
        self.there[name].clear()

    @rule()
    def restart(self) -> None:
        found = self.store.recover(1)
        self.broker = Broker(found.log, LogPolicy(), window=4, create_queues=True)
        self.broker.restore(found.endpoints, found.routes, found.replays, found.next_number)
        self.flows.clear()

    @invariant()
    def depths_are_right(self) -> None:
        for name, there in self.there.items():
            endpoint = self.broker.endpoints[name]
            assert (endpoint.depth, endpoint.size_bytes) == (len(there), sum(there.values()))


CountingMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=25)
TestCounting = CountingMachine.TestCase
