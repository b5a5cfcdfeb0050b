"""An endpoint by itself: expiry of messages, turns of consumers, limits, and what consumers have unsettled."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from amqp_ext.codec import Symbol, UInt, ULong
from amqp_ext.message import fields
from gateway.core.broker import Broker
from gateway.core.effects import NO_VALUES, Publication
from gateway.core.endpoint.endpoint import FLOW_QUANTUM, NEVER_MS, Endpoint, Flow
from gateway.core.endpoint.expiry import expiries
from gateway.core.endpoint.flow import SLACK, Unsettled
from gateway.core.endpoint.last_values import LastValues
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings
from gateway.core.model import CONTENT, Row, stored_bytes
from gateway.core.publications import TooLarge
from gateway.core.replay.states import Replay, ReplayState
from tests.support.core import new_broker, new_endpoint
from tests.support.messages import HEADER, MESSAGE_ANNOTATIONS, PROPERTIES, data, section
from tests.support.messages import row as row_of

# --- When messages expire -------------------------------------------------------------------------------------------

ARRIVED_MS = 1_000
ID = 5
REPLAYS = st.sampled_from(
    [
        # A replay, and the first id that is live: a message that the replay has put never expires.
        (None, 0),
        (Replay(ID, state=ReplayState.ACTIVE), NEVER_MS),
        (Replay(ID, state=ReplayState.PENDING_COMPLETE, live_from=ID + 1), ID + 1),
        (Replay(ID, state=ReplayState.COMPLETE, live_from=ID), ID),
        (Replay(ID, state=ReplayState.FAILED), 0),
    ]
)


def message(message_id: int, ttl_ms: int | None) -> Row:
    """A message whose content is its ttl; without a ttl it has no header."""
    content = b"" if ttl_ms is None else b"%d" % ttl_ms
    return (message_id, ARRIVED_MS, "t", len(content), 0, None, content)


def ttl_of(content: bytes) -> int:
    return int(content)


@given(
    ttls=st.lists(st.none() | st.integers(0, 5), min_size=1, max_size=5),
    max_ttl_ms=st.integers(0, 5),
    after_ms=st.integers(0, 6),
    replay=REPLAYS,
)
@example(ttls=[None, 2], max_ttl_ms=0, after_ms=3, replay=(None, 0))
@example(ttls=[2, 2], max_ttl_ms=0, after_ms=2, replay=(None, 0))
@example(ttls=[1, 3], max_ttl_ms=0, after_ms=2, replay=(None, 0))
@example(ttls=[None], max_ttl_ms=2, after_ms=3, replay=(None, 0))
def test_a_live_message_is_dead_once_the_shorter_of_its_lives_is_over(
    ttls: list[int | None], max_ttl_ms: int, after_ms: int, replay: tuple[Replay | None, int]
) -> None:
    """The lower of the header's ttl and the endpoint's counts; each message expires by its own header."""
    lying = new_endpoint(EndpointSettings(max_ttl_ms=max_ttl_ms), replay=replay[0])
    rows = [message(i, ttl_ms) for i, ttl_ms in enumerate(ttls, ID - 2)]
    expected = {}
    for row, ttl_ms in zip(rows, ttls, strict=True):
        lives_ms = [ms for ms in (ttl_ms, max_ttl_ms or None) if ms is not None]
        is_live = row[0] >= replay[1]
        expected[row[0]] = ARRIVED_MS + min(lives_ms) if lives_ms and is_live else NEVER_MS
    assert {row[0]: lying.expires_ms(row, ttl_of) for row in rows} == expected
    now_ms = ARRIVED_MS + after_ms
    dead = dict.fromkeys((i for i, last_ms in expected.items() if last_ms < now_ms), "expired")
    assert lying.dead(rows, now_ms, ttl_of) == dead


# --- Consumers of an endpoint ---------------------------------------------------------------------------------------

CONSUMERS = st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3)), min_size=1, max_size=6)
"""For each consumer, its priority and its demand."""


def endpoint_of(consumers: list[tuple[int, int]]) -> tuple[Endpoint, list[Flow]]:
    """An endpoint with these consumers."""
    endpoint = new_endpoint(EndpointSettings())
    flows = [Flow(endpoint, None, priority=priority) for priority, _ in consumers]
    for flow, (_, demand) in zip(flows, consumers, strict=True):
        endpoint.bind(flow)
        flow.demand = demand
    return endpoint, flows


@given(CONSUMERS, st.data())
def test_nobody_is_served_before_who_has_a_higher_priority(
    consumers: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Each turn goes to a hungry consumer of the highest priority among the hungry, also as consumers come and go."""
    endpoint, flows = endpoint_of(consumers)
    while (flow := endpoint.next_flow()) is not None:
        hungry = [each for each in endpoint.flows if each.is_hungry]
        assert flow in hungry
        assert flow.priority == max(each.priority for each in hungry)
        flow.demand -= 1
        change = data.draw(st.sampled_from(["none", "none", "hungry", "gone"]))
        other = data.draw(st.sampled_from(flows))
        if change == "hungry" and sum(each.demand for each in flows) < 10 and data.draw(st.booleans()):
            other.demand += 1
        elif change == "gone":
            endpoint.unbind(other)
    assert not any(each.is_hungry for each in endpoint.flows)


def test_consumers_of_one_priority_take_turns() -> None:
    """Consumers of the same priority get turns in rotation, and share the ready messages among themselves only."""
    endpoint, flows = endpoint_of([(1, FLOW_QUANTUM), (0, FLOW_QUANTUM), (1, FLOW_QUANTUM)])
    turns = [endpoint.next_flow() for _ in range(4)]
    assert turns == [flows[0], flows[2]] * 2
    endpoint.ready.add_committed(range(1, 11))
    assert endpoint.share(flows[0]) == 5


# --- selectors ------------------------------------------------------------------------------------------------------
def row(message_id: int) -> Row:
    return (message_id, 0, "a", 0, 0, None, b"x")


def is_odd(found: Row) -> bool:
    return found[0] % 2 == 1


def endpoint_with(*ids: int, window: int = 10) -> Endpoint:
    endpoint = new_endpoint(EndpointSettings(), window)
    for i in ids:
        endpoint.ready.add_committed([i])
    return endpoint


def selecting_flow(endpoint: Endpoint) -> Flow:
    flow = Flow(endpoint, None, matches=is_odd)
    flow.demand = 10
    endpoint.bind(flow)
    return flow


def test_what_was_taken_out_of_the_middle_and_came_back_is_ready_once() -> None:
    """A message that a selector took from behind another and released is ready again in its place, once."""
    endpoint = endpoint_with(1, 2, 3, 4)
    flow = selecting_flow(endpoint)
    endpoint.hand_out(flow, [1, 3], [row(1), row(3)], 1)

    endpoint.release(flow, [3])
    assert endpoint.ready.peek(10) == [2, 3, 4]

    endpoint.unbind(flow)
    assert endpoint.ready.peek(1) == [1]
    plain = Flow(endpoint, None)
    endpoint.bind(plain)
    for i in (1, 2, 3, 4):
        assert endpoint.ready.peek(1) == [i]
        endpoint.hand_out(plain, [i], [row(i)], 1)
    assert endpoint.ready.peek(1) == []


def test_what_no_selector_wants_does_not_hide_what_is_new() -> None:
    """A new message is offered to a selector, however many messages that it does not want are before it."""
    endpoint = endpoint_with(2, 4, 6, 8, 10, window=2)
    queue = endpoint.queue_to_read(page_rows=10)
    assert queue is not None
    queue.add_page([2, 4, 6, 8], 9)
    flow = selecting_flow(endpoint)
    assert flow.candidates is not None
    assert flow.candidates.take(10) == [2, 4, 6, 8, 10]
    endpoint.ready.add_committed([11])
    assert flow.candidates.take(10) == [11]


# --- suspended ------------------------------------------------------------------------------------------------------
def test_a_suspended_flow_keeps_its_messages_until_its_end() -> None:
    """Then they are ready again, except for those settled meanwhile. An active flow is not affected."""
    endpoint = endpoint_with(1, 2, 3)
    flow = Flow(endpoint, None)
    endpoint.bind(flow)
    endpoint.hand_out(flow, [1, 2, 3], [row(1), row(2), row(3)], 1)
    endpoint.end_suspended(flow)
    assert (endpoint.ready.ready, list(flow.unsettled), flow in endpoint.flows) == (0, [1, 2, 3], True)
    endpoint.suspend(flow)
    assert (endpoint.ready.ready, list(flow.unsettled)) == (0, [1, 2, 3])
    assert (flow in endpoint.flows, flow in endpoint.suspended) == (False, True)
    endpoint.settle(flow, [2], 3)
    endpoint.end_suspended(flow)
    assert (endpoint.ready.peek(10), dict(flow.unsettled), list(endpoint.suspended)) == ([1, 3], {}, [])
    endpoint.end_suspended(flow)
    assert endpoint.ready.peek(10) == [1, 3]


# --- Messages larger than an endpoint takes -------------------------------------------------------------------------


def broker_with(limit_bytes: int, quota_messages: int) -> Broker:
    """An endpoint with limits and one without, both for the topic `t`; the log takes everything."""
    broker = new_broker(window=1_000)
    settings = EndpointSettings(max_message_bytes=limit_bytes, quota_messages=quota_messages)
    broker.create("limited", EndpointKind.QUEUE, settings, ["t"])
    broker.create("free", EndpointKind.QUEUE, EndpointSettings(), ["t"])
    return broker


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=30),
    limit_bytes=st.integers(0, 20),
    quota_messages=st.integers(0, 10),
)
def test_only_messages_too_large_or_beyond_the_quota_are_refused(
    sizes: list[int], limit_bytes: int, quota_messages: int
) -> None:
    """Of messages published together, those that fit go to all endpoints and the log, the others nowhere."""
    broker = broker_with(limit_bytes, quota_messages)
    contents = [bytes([i]) * size for i, size in enumerate(sizes)]
    expected = [c for c in contents if not limit_bytes or len(c) <= limit_bytes]
    if quota_messages:
        expected = expected[:quota_messages]
    taken: list[bytes] = []
    publications: list[Publication] = []
    left = contents
    while left:
        publication, count, refused = broker.publications.publish(1, "t", left, [0] * len(left), None)
        assert (publication is None) == (count == 0)
        if publication is not None:
            assert [row[CONTENT] for row in publication.rows] == left[:count]
            assert publication.logged
            taken += left[:count]
            publications.append(publication)
        if isinstance(refused, TooLarge):
            assert all(len(content) > limit_bytes for content in left[count : count + refused.count])
            left = left[count + refused.count :]
            continue
        assert count == len(left) or quota_messages, "nothing else can be in the way"
        break
    assert taken == expected
    for publication in publications:
        broker.publications.committed(publication)
    assert [broker.endpoints[name].depth for name in ("limited", "free")] == [len(taken)] * 2
    assert broker.log.size_bytes == (stored_bytes("t", list(map(len, taken))) if taken else 0)
    assert broker.log.unused_id == len(taken) + 1, "a refused message has no id"


# --- What a consumer has unsettled, against a dictionary ------------------------------------------------------------

SOME = st.lists(st.integers(1, 12), unique=True)


class UnsettledMachine(RuleBasedStateMachine):
    """
    Whatever is held and taken in whatever order, the unsettled messages are found with size and time, and their locks
    with the time since when they are locked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unsettled = Unsettled()
        self.model: dict[int, int] = {}
        self.came: dict[int, int] = {}
        self.locks: dict[int, int] | None = None
        self.now_ms = self.newest_ms = 0

    @rule(ids=SOME, later_ms=st.integers(0, 2), times=st.sampled_from([1, 1, 1, 400]))
    def hold(self, ids: list[int], later_ms: int, times: int) -> None:
        """A rule may do this 400 times, so that entries of past turns have to be forgotten."""
        self.now_ms += later_ms
        new = sorted(i for i in ids if i not in self.model)
        for _ in range(times if new else 0):
            self._take([i for i in new if i in self.model])
            sizes = [10 * i for i in new]
            self.unsettled.hold(new, iter(sizes), self.now_ms)
            self.model.update(zip(new, sizes, strict=True))
            self.newest_ms = self.now_ms
            self._came(new, self.now_ms)

    def _came(self, ids: list[int], now_ms: int) -> None:
        self.came |= dict.fromkeys(ids, now_ms)
        if self.locks is not None:
            self.locks |= dict.fromkeys(ids, now_ms)

    def _gone(self, ids: list[int]) -> None:
        for i in ids:
            (self.locks or {}).pop(i, None)

    @rule(count=st.integers(0, 5))
    def take_the_first(self, count: int) -> None:
        self._take(list(self.model)[:count])

    @rule(ids=SOME)
    def take(self, ids: list[int]) -> None:
        self._take(ids)

    def _take(self, ids: list[int]) -> None:
        there = [i for i in ids if i in self.model]
        assert self.unsettled.take(ids) == (there, [self.model.pop(i) for i in there])
        self._gone(there)

    @precondition(lambda self: self.model)
    @rule(pick=st.integers(0, 11))
    def pop_one(self, pick: int) -> None:
        message_id = list(self.model)[pick % len(self.model)]
        assert self.unsettled.pop(message_id) == self.model.pop(message_id)
        self._gone([message_id])

    @rule(message_id=st.integers(1, 12))
    def look(self, message_id: int) -> None:
        assert (message_id in self.unsettled) == (message_id in self.model)
        assert self.unsettled.get(message_id) == self.model.get(message_id)

    @rule(message_id=st.integers(1, 12))
    def give_one_back(self, message_id: int) -> None:
        if message_id not in self.model:
            self.unsettled.update({message_id: 1})
            self.model[message_id] = 1
            self._came([message_id], self.newest_ms)

    @rule()
    def clear(self) -> None:
        self.unsettled.clear()
        self._gone(list(self.model))
        self.model.clear()

    @rule(are_locked=st.booleans())
    def lock(self, are_locked: bool) -> None:
        self.unsettled.lock(are_locked=are_locked)
        if not are_locked:
            self.locks = None
        elif self.locks is None:
            self.locks = {i: self.came[i] for i in self.model}

    @rule(ids=SOME, later_ms=st.integers(0, 2))
    def renew(self, ids: list[int], later_ms: int) -> None:
        self.now_ms += later_ms
        self.unsettled.renew(ids, self.now_ms)
        if self.locks is not None:
            self.newest_ms = self.now_ms
            self.locks |= {i: self.now_ms for i in ids if i in self.locks}

    @rule(ids=SOME)
    def unlock(self, ids: list[int]) -> None:
        self.unsettled.unlock(ids)
        self._gone(ids)

    @rule(ago_ms=st.integers(0, 4), limit=st.integers(0, 5))
    def end_locks(self, ago_ms: int, limit: int) -> None:
        """The oldest locks are found first, and no more than the limit."""
        time_ms, locks = self.now_ms - ago_ms, self.locks or {}
        found = self.unsettled.locked_since(time_ms, limit)
        ended = {i: since_ms for i, since_ms in locks.items() if since_ms <= time_ms}
        assert len(found) == len(set(found)) == min(limit, len(ended))
        assert [ended.pop(i) for i in found] == sorted(locks.values())[: len(found)]

    @invariant()
    def the_same_is_there(self) -> None:
        assert len(self.unsettled) == len(self.model)
        assert list(self.unsettled) == list(self.model)
        assert self.unsettled.oldest == next(((i, self.came[i]) for i in self.model), None)
        assert self.unsettled.are_locked == (self.locks is not None)
        assert self.unsettled.oldest_lock_ms == min((self.locks or {}).values(), default=None)
        assert self.unsettled._noted <= 2 * len(self.model) + SLACK
        assert self.unsettled._noted == sum(len(ids) for _, ids in self.unsettled._turns)


TestUnsettled = UnsettledMachine.TestCase


_FRONTS = [
    b"",
    section(HEADER, [True]),
    section(HEADER, [None, None, UInt(500)]),
    section(HEADER, [None, None, UInt(700)]),
    b"\x00\x80" + bytes(7) + b"\x70" + section(HEADER, [None, None, UInt(500)])[3:],
    section(HEADER, [True]) + section(MESSAGE_ANNOTATIONS, {Symbol("x"): 1}),
]
_BARES = [section(PROPERTIES, ["id"]) + data("x"), data("x"), b"\x00\x80" + bytes(7) + b"\x75\xa0\x01x"]


@given(st.lists(st.tuples(st.sampled_from(_FRONTS), st.sampled_from(_BARES)), max_size=6), st.integers(1, 6))
def test_messages_expire_together_as_each_by_itself(
    messages: list[tuple[bytes, bytes]], fresh_from: int
) -> None:
    """Rows expire together as each alone, whatever their headers, wherever the bare message begins."""
    rows = [
        (i, 10 * i, "t", len(front), 1, None, front + bare) for i, (front, bare) in enumerate(messages, 1)
    ]
    expected = {}
    for row in rows:
        lives_ms = fields.ttl_of(row[6])
        if lives_ms is not None and row[0] >= fresh_from:
            expected[row[0]] = row[1] + lives_ms
    assert expiries(rows, fresh_from, 0, fields.ttl_of) == expected


# --- The values of a last-value queue -------------------------------------------------------------------------------


def test_a_change_that_failed_does_not_hide_messages_that_were_read_anew() -> None:
    """The index covers no message that was taken after the topics had changed and that is not durable."""
    values, settings = LastValues(1, NO_VALUES), EndpointSettings()
    values.follows = lambda: 101
    values.take([row_of(100, data("x"))], settings)
    change = values.change(7, settings, now_ms=0)
    assert change is not None
    values.read_anew(7, 1)
    values.follows = lambda: 51
    values.take([row_of(50, data("x"), "u")], settings)
    assert values.reached() == 50
    values.written(change, is_committed=False)
    assert values.reached() == values.needed_from == 50


def test_a_value_with_a_time_to_live_that_no_header_has_does_not_expire() -> None:
    """A ttl of 64 bits would give a time that no store can hold, so that no commit with it would succeed."""
    values = LastValues(1, NO_VALUES)
    values.take([row_of(1, section(HEADER, [None, None, ULong(2**64 - 1)]) + data("x"))], EndpointSettings())
    change = values.change(7, EndpointSettings(), now_ms=0)
    assert change is not None
    assert [value.expires_ms for value in change.values] == [None]
