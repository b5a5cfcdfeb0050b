"""Alarms: raised once, cleared once, and not for every small move around a threshold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.admin.semp.envelope import refusal
from gateway.core.alarms import Alarm, AlarmKind, Alarms
from gateway.core.broker import Broker
from gateway.core.effects import CountedUpTo, Effect, MoveCursor
from gateway.core.endpoint.endpoint import Flow
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import LogPolicy
from gateway.core.model import WHOLE, LogState
from gateway.core.router import UNCOUNTED_IDS, BacklogCounts
from gateway.core.steady_time import SETTLE_SECONDS, STEP_MS, WAITING_PACE, SteadyTime
from tests.support.core import new_broker, publish
from tests.support.naive_store import NaiveStore

# --- Alarms ---------------------------------------------------------------------------------------------------------

THRESHOLDS = (80, 90)
HYSTERESIS = 5


class Told:
    """What was told of, in order: the threshold, and whether it was raised."""

    def __init__(self) -> None:
        self.events: list[tuple[int, bool]] = []
        self.alarms = Alarms(self)

    def __call__(self, alarm: Alarm, is_raised: bool) -> None:
        self.events.append((alarm.threshold_percent, is_raised))

    def use(self, percent: float) -> list[tuple[int, bool]]:
        """What a use of so much leads to."""
        self.events.clear()
        self.alarms.note_use(AlarmKind.ENDPOINT_USE, "q", percent / 100, THRESHOLDS, HYSTERESIS, now_ms=7)
        return self.events.copy()


def test_each_threshold_is_raised_and_cleared_once() -> None:
    """Within the hysteresis nothing is told; below it, that it is over."""
    told = Told()
    assert told.use(79) == []
    assert told.use(80) == [(80, True)]
    assert told.use(95) == [(90, True)]
    assert told.use(85) == []
    assert told.use(84.9) == [(90, False)]
    assert told.use(90) == [(90, True)]
    assert told.use(10) == [(80, False), (90, False)]
    assert told.alarms.active() == []


@given(st.lists(st.floats(0, 150)))
def test_raised_and_cleared_take_turns(uses: list[float]) -> None:
    """However the use moves, a threshold is never raised twice in a row, and what is active was raised last."""
    told = Told()
    last = dict.fromkeys(THRESHOLDS, False)
    for percent in uses:
        for threshold, is_raised in told.use(percent):
            assert is_raised is not last[threshold]
            last[threshold] = is_raised
    assert {one.threshold_percent for one in told.alarms.active()} == {
        one for one, is_on in last.items() if is_on
    }


def test_what_an_alarm_is_about_may_go() -> None:
    """An alarm about what is gone is cleared, and one about something else stays."""
    told = Told()
    told.use(85)
    told.alarms.note(AlarmKind.STORE, "", "the disk is full", now_ms=8)
    told.alarms.note(AlarmKind.STORE, "", "the disk is still full", now_ms=9)
    told.alarms.keep(lambda alarm: alarm.subject != "q")
    assert told.events == [(80, True), (0, True), (80, False)]
    assert told.alarms.active() == [Alarm(AlarmKind.STORE, "", 0, 8, "the disk is full")]


def test_time_that_is_left_is_told_of_once() -> None:
    """Below the hours it is raised, a quarter above them cleared; what nobody knows is none, and 0 hours never."""
    told = Told()

    def left(hours: float | None, threshold: int = 24) -> list[Alarm]:
        left_ms = None if hours is None else int(hours * 3_600_000)
        told.alarms.note_time(AlarmKind.DISK_TIME, left_ms, threshold, "the disk is full in", now_ms=7)
        return told.alarms.active()

    assert left(24) == []
    assert left(23.5) == [Alarm(AlarmKind.DISK_TIME, "", 0, 7, "the disk is full in 23.5 hours")]
    assert len(left(29)) == 1
    assert left(30) == []
    assert len(left(1)) == 1
    assert left(None) == []
    assert left(1, threshold=0) == []
    assert told.events == [(0, True), (0, False), (0, True), (0, False)]


# --- What a store counts of endpoints, against what is there, whenever a gateway starts -----------------------------


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
        endpoint.hand_out(flow, found, [self.store.messages[i] for i in found], 1)
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


# --- The time that messages are stamped with follows the machine's clock, and neither jumps nor goes back -----------

START = 1_800_000_000_000
YEARS = 14 * 365 * 86_400_000


class Machine:
    """Clocks of a machine, and the time that goes by them."""

    def __init__(self, at_least_ms: int = 0) -> None:
        self.wall = START
        self.seconds = 50.0
        self.time = SteadyTime(at_least_ms)
        self.now = self.time.read(self.wall, self.seconds)

    def passes(self, seconds: float) -> int:
        """So much time passes, looked at each second."""
        for _ in range(int(seconds)):
            self.wall += 1_000
            self.seconds += 1
            self.now = self.time.read(self.wall, self.seconds)
        return self.now

    def set_by(self, ms: int) -> int:
        """Somebody sets the clock."""
        self.wall += ms
        self.now = self.time.read(self.wall, self.seconds)
        return self.now


def test_it_is_the_machine_s_time() -> None:
    """As long as nobody sets the clock, and when it is corrected by little."""
    machine = Machine()
    assert machine.passes(100) == START + 100_000
    assert machine.set_by(STEP_MS) == START + 100_000 + STEP_MS
    assert machine.time.problem() is None


def test_a_jump_for_a_moment_is_not_followed() -> None:
    """A clock that is fourteen years ahead for a minute stamps nothing with that, and an alarm says so meanwhile."""
    machine = Machine()
    assert machine.set_by(YEARS) == START
    assert machine.passes(60) == START + 60_000
    assert "ahead" in (machine.time.problem() or "")
    assert machine.set_by(-YEARS) == START + 60_000
    assert machine.passes(10) == START + 70_000
    assert machine.time.problem() is None


def test_a_jump_that_stays_is_followed() -> None:
    """A machine that slept for an hour is believed after a while."""
    machine = Machine()
    machine.set_by(3_600_000)
    machine.passes(SETTLE_SECONDS + 1)
    assert machine.now == machine.wall
    assert machine.time.problem() is None


@pytest.mark.parametrize("how", ["set back", "restarted behind the log"])
def test_a_time_to_live_is_as_long_while_time_is_ahead(how: str) -> None:
    """Time goes on, a tenth slower, until the clock has come up; it does not stand still for years."""
    machine = Machine(at_least_ms=START + YEARS if how == "restarted behind the log" else 0)
    if how == "set back":
        machine.set_by(-YEARS)
    before = machine.now
    machine.passes(1_000)
    assert machine.now - before == pytest.approx(1_000_000 * WAITING_PACE, abs=1_000)
    assert "ahead" in (machine.time.problem() or "")


def test_a_clock_that_was_set_back_a_little_is_caught_up_with() -> None:
    """Ten seconds ahead, it agrees again within two minutes."""
    machine = Machine()
    machine.set_by(-10_000)
    machine.passes(120)
    assert machine.now == machine.wall


@given(
    st.lists(st.tuples(st.integers(-YEARS, YEARS), st.integers(0, 1_000)), max_size=30),
    st.integers(0, 2 * START),
)
def test_it_never_goes_back(steps: list[tuple[int, int]], at_least_ms: int) -> None:
    """Whatever is done to the clock: times never fall, and are never below those given out before a restart."""
    machine = Machine(at_least_ms)
    last = machine.now
    assert last >= at_least_ms
    for by, seconds in steps:
        for now in (machine.set_by(by), machine.passes(seconds)):
            assert now >= last
            last = now


# --- The table of errors, on which the wire, administration and the documents rely ----------------------------------

SOURCES = Path(__file__).parents[3] / "gateway"


@pytest.mark.parametrize("code", ErrorCode)
def test_every_row_is_whole(code: ErrorCode) -> None:
    """A condition is a symbol of AMQP's, a replay-error comes with its subcode, and the documents have a case."""
    assert code.condition.startswith("amqp:")
    assert (code.replay_error is None) is (code.subcode is None)
    assert code.case
    assert code.case[-1] != "."


def test_no_row_stands_for_another() -> None:
    """Rows that are alike on the wire are still two; subcodes and replay-errors are those of one row each."""
    assert len(ErrorCode.__members__) == len(list(ErrorCode))
    for told in ("subcode", "replay_error"):
        values = [value for code in ErrorCode if (value := getattr(code, told)) is not None]
        assert len(values) == len(set(values))


def test_every_row_is_used() -> None:
    """A row that nothing raises is a promise that nobody keeps; what a walk over frames finds it names by condition."""
    text = "\n".join(path.read_text() for path in SOURCES.rglob("*.py") if path.name != "errors.py")
    walk = (SOURCES.parent / "amqp_ext" / "frames" / "walk.py").read_text()
    unused = [code for code in ErrorCode if f"ErrorCode.{code.name}" not in text]
    assert [code.name for code in unused if f'"{code.condition}"' not in walk] == []


def test_what_exists_already_is_told_by_its_code() -> None:
    """Administration tells Solace's ALREADY_EXISTS by the code, whatever the text says."""
    assert refusal(Refused(ErrorCode.ALREADY_EXISTS, "taken")).status == "ALREADY_EXISTS"
    assert refusal(Refused(ErrorCode.PRECONDITION_FAILED, "it exists already")).status == "NOT_ALLOWED"
    assert ErrorCode.ALREADY_EXISTS.condition == ErrorCode.PRECONDITION_FAILED.condition
