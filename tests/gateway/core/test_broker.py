"""The broker: alarms, counts, time, errors, streams, dead letters and trimming."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.semp.envelope import refusal
from gateway.core.alarms import Alarm, AlarmKind, Alarms
from gateway.core.broker import Broker
from gateway.core.effects import CountedUpTo, MoveCursor, SaveEndpoint, SaveSubscription
from gateway.core.endpoint.backlog import Backlog
from gateway.core.endpoint.cursor import Cursor
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import (
    DeadLetterWay,
    EndpointKind,
    EndpointSettings,
    Exclusivity,
    circle_of,
    way_of,
)
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import LogPolicy
from gateway.core.model import WHOLE, LogState, stored_bytes
from gateway.core.router import UNCOUNTED_IDS, BacklogCounts, RouteTable
from gateway.core.steady_time import SETTLE_SECONDS, STEP_MS, WAITING_PACE, SteadyTime
from gateway.core.trimming import MOST_TRIM_IDS, TRIM_IDS, held_references, held_runs
from tests.support.core import new_broker, new_endpoint, publish

# --- Alarms ---------------------------------------------------------------------------------------------------------

THRESHOLDS = (80, 90)
HYSTERESIS = 5


class Told:
    """The events so far, in order: the threshold, and whether it was raised."""

    def __init__(self) -> None:
        self.events: list[tuple[int, bool]] = []
        self.alarms = Alarms(self)

    def __call__(self, alarm: Alarm, is_raised: bool) -> None:
        self.events.append((alarm.threshold_percent, is_raised))

    def use(self, percent: float) -> list[tuple[int, bool]]:
        """Report this use; return the events that follow."""
        self.events.clear()
        self.alarms.note_use(AlarmKind.ENDPOINT_USE, "q", percent / 100, THRESHOLDS, HYSTERESIS, now_ms=7)
        return self.events.copy()


def test_each_threshold_is_raised_and_cleared_once() -> None:
    """Within the hysteresis there is no event; below it, the alarm is cleared."""
    told = Told()
    assert told.use(79) == []
    assert told.use(80) == [(80, True)]
    assert told.use(95) == [(90, True)]
    assert told.use(85) == []
    assert told.use(84.9) == [(90, False)]
    assert told.use(90) == [(90, True)]
    assert told.use(10) == [(80, False), (90, False)]
    assert told.alarms.active() == []


def test_what_an_alarm_is_about_may_go() -> None:
    """An alarm that was not said again in a round is cleared; alarms of other kinds stay."""
    told = Told()
    told.use(85)
    told.alarms.note(AlarmKind.STORE, "", "the disk is full", now_ms=8)
    told.alarms.note(AlarmKind.STORE, "", "the disk is still full", now_ms=9)
    told.alarms.clear_unsaid([AlarmKind.ENDPOINT_USE])
    assert told.events == [(80, True), (0, True)]
    told.alarms.clear_unsaid([AlarmKind.ENDPOINT_USE])
    assert told.events == [(80, True), (0, True), (80, False)]
    assert told.alarms.active() == [Alarm(AlarmKind.STORE, "", 0, 8, "the disk is full")]


def test_time_that_is_left_is_told_of_once() -> None:
    """Raised below the threshold, cleared a quarter above it; never if the time is unknown, or for 0 hours."""
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


# --- The store's counts of endpoints, compared with their messages, at any start ------------------------------------


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
    """Messages with ids that are not committed yet are purged, too, and reported once."""
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


# --- Message timestamps follow the machine's clock, and neither jump nor go back ------------------------------------

START = 1_800_000_000_000
YEARS = 14 * 365 * 86_400_000


class Machine:
    """The clocks of a machine, and the time computed from them."""

    def __init__(self, at_least_ms: int = 0) -> None:
        self.wall = START
        self.seconds = 50.0
        self.time = SteadyTime(at_least_ms)
        self.now = self.time.read(self.wall, self.seconds)

    def passes(self, seconds: float) -> int:
        """Let this time pass, reading the time each second."""
        for _ in range(int(seconds)):
            self.wall += 1_000
            self.seconds += 1
            self.now = self.time.read(self.wall, self.seconds)
        return self.now

    def set_by(self, ms: int) -> int:
        """Set the machine's clock forward or back."""
        self.wall += ms
        self.now = self.time.read(self.wall, self.seconds)
        return self.now


def test_it_is_the_machine_s_time() -> None:
    """As long as the clock is not set, or is corrected only a little."""
    machine = Machine()
    assert machine.passes(100) == START + 100_000
    assert machine.set_by(STEP_MS) == START + 100_000 + STEP_MS
    assert machine.time.problem() is None


def test_a_jump_for_a_moment_is_not_followed() -> None:
    """If the clock is fourteen years ahead for a minute, no timestamp follows it, and an alarm is raised meanwhile."""
    machine = Machine()
    assert machine.set_by(YEARS) == START
    assert machine.passes(60) == START + 60_000
    assert "ahead" in (machine.time.problem() or "")
    assert machine.set_by(-YEARS) == START + 60_000
    assert machine.passes(10) == START + 70_000
    assert machine.time.problem() is None


def test_a_jump_that_stays_is_followed() -> None:
    """A clock that is an hour ahead, as after a suspend, is followed after a while, and not before."""
    machine = Machine()
    machine.set_by(3_600_000)
    assert machine.passes(SETTLE_SECONDS - 1) == machine.wall - 3_600_000
    machine.passes(2)
    assert machine.now == machine.wall
    assert machine.time.problem() is None


@pytest.mark.parametrize("how", ["set back", "restarted behind the log"])
def test_a_time_to_live_is_as_long_while_time_is_ahead(how: str) -> None:
    """Time goes on at nine tenths of its pace until the clock has caught up; it does not stand still."""
    machine = Machine(at_least_ms=START + YEARS if how == "restarted behind the log" else 0)
    if how == "set back":
        machine.set_by(-YEARS)
    before = machine.now
    machine.passes(1_000)
    assert machine.now - before == pytest.approx(1_000_000 * WAITING_PACE, abs=1_000)
    assert "ahead" in (machine.time.problem() or "")


@given(
    st.lists(st.tuples(st.integers(-YEARS, YEARS), st.integers(0, 1_000)), max_size=30),
    st.integers(0, 2 * START),
)
def test_it_never_goes_back(steps: list[tuple[int, int]], at_least_ms: int) -> None:
    """However the clock is set, times never fall, and are never below those before a restart."""
    machine = Machine(at_least_ms)
    last = machine.now
    assert last >= at_least_ms
    for by, seconds in steps:
        for now in (machine.set_by(by), machine.passes(seconds)):
            assert now >= last
            last = now


# --- The table of errors, on which wire protocol, administration and documents rely ---------------------------------

SOURCES = Path(__file__).parents[3] / "gateway"


@pytest.mark.parametrize("code", ErrorCode)
def test_every_row_is_whole(code: ErrorCode) -> None:
    """A condition is an AMQP symbol, a replay-error has a subcode, and the documents have a case."""
    assert code.condition.startswith("amqp:")
    assert (code.replay_error is None) is (code.subcode is None)
    assert code.case
    assert code.case[-1] != "."


def test_no_row_stands_for_another() -> None:
    """Rows with the same condition are distinct members; no two rows share a subcode or a replay-error."""
    assert len(ErrorCode.__members__) == len(list(ErrorCode))
    for told in ("subcode", "replay_error"):
        values = [value for code in ErrorCode if (value := getattr(code, told)) is not None]
        assert len(values) == len(set(values))


def test_every_row_is_used() -> None:
    """Every code is raised somewhere, or its condition is in the walk over frames, which names errors by condition."""
    text = "\n".join(path.read_text() for path in SOURCES.rglob("*.py") if path.name != "errors.py")
    walk = (SOURCES.parent / "amqp_ext" / "frames" / "walk.py").read_text()
    unused = [code for code in ErrorCode if f"ErrorCode.{code.name}" not in text]
    assert [code.name for code in unused if f'"{code.condition}"' not in walk] == []


def test_what_exists_already_is_told_by_its_code() -> None:
    """Administration derives Solace's ALREADY_EXISTS from the code, not from the text."""
    assert refusal(Refused(ErrorCode.ALREADY_EXISTS, "taken")).status == "ALREADY_EXISTS"
    assert refusal(Refused(ErrorCode.PRECONDITION_FAILED, "it exists already")).status == "NOT_ALLOWED"
    assert ErrorCode.ALREADY_EXISTS.condition == ErrorCode.PRECONDITION_FAILED.condition


# --- Streams in the broker ------------------------------------------------------------------------------------------

STREAM = EndpointKind.STREAM


def stream(broker: Broker, *subscriptions: str, exclusive: Exclusivity = Exclusivity.NONE) -> Endpoint:
    return broker.create("s", STREAM, EndpointSettings(exclusive=exclusive), subscriptions)[0]


@pytest.mark.parametrize("topic", ["#queue/s", "a/b"])
def test_nothing_is_put_on_a_stream(topic: str) -> None:
    """A message that matches a stream goes to the log only, and to matching queues."""
    broker = new_broker()
    endpoint = stream(broker, "a/>")
    publication, taken, refused = broker.publications.publish(0, topic, [b"x"], [0], None)
    assert publication is not None
    assert (publication.routes, publication.logged, taken, refused) == ([], True, 1, None)
    assert broker.publications.committed(publication) == []
    queue, _ = broker.create("q", EndpointKind.QUEUE, EndpointSettings(), ["a/>", "#queue/s"])
    publication, _, _ = broker.publications.publish(0, topic, [b"x"], [0], None)
    assert publication is not None
    assert [route.endpoints for route in publication.routes] == [(queue.number,)]
    broker.publications.committed(publication)
    assert (endpoint.depth, queue.depth) == (0, 1)


@pytest.mark.parametrize(
    ("policy", "is_direct", "taken"),
    [({"promote_direct": True}, True, 1), ({}, True, 0), ({"writes": False}, False, 0)],
)
def test_only_what_the_log_takes_is_put_on_a_stream(
    policy: dict[str, bool], is_direct: bool, taken: int
) -> None:
    """A pre-settled message needs `promote_direct`; if the log takes no messages, a stream takes none."""
    broker = new_broker(LogPolicy(**policy))
    stream(broker)
    found = broker.publications.publish(0, "#queue/s", [b"x"], [0], None, is_direct=is_direct)
    assert found[1:] == (taken, None)
    assert (found[0] is not None and found[0].logged) is bool(taken)


@pytest.mark.parametrize(
    ("subscriptions", "shown", "not_shown"),
    [
        ((), ["#queue/s"], ["s", "a", "#queue/t"]),
        (("a/>", "!a/x/>"), ["#queue/s", "a/b"], ["a/x/y", "b"]),
        ((">", "!>"), ["#queue/s"], ["a"]),
        ((">",), ["#queue/s", "a"], ["#queue/t"]),
        (("#queue/>",), ["#queue/s", "#queue/t"], ["a"]),
    ],
)
def test_what_a_stream_shows(subscriptions: tuple[str, ...], shown: list[str], not_shown: list[str]) -> None:
    """A stream shows its own topic, and what its subscriptions would attract to a queue."""
    broker = new_broker()
    shows = stream(broker, *subscriptions).topics.matches
    assert all(shows(topic) for topic in shown)
    assert not any(shows(topic) for topic in not_shown)


def test_a_stream_is_made_on_first_use() -> None:
    """It is stored as a stream; later requests that name no kind find it."""
    broker = new_broker()
    endpoint, effects = broker.queue_for("s", kind=STREAM, exclusive=Exclusivity.WAIT)
    assert [(e.name, e.kind) for e in effects if isinstance(e, SaveEndpoint)] == [("s", "stream")]
    assert broker.queue_for("s") == (endpoint, [])
    assert broker.queue_for("s", kind=STREAM, exclusive=Exclusivity.WAIT) == (endpoint, [])
    with pytest.raises(Refused) as refused:
        broker.queue_for("s", kind=EndpointKind.QUEUE)
    assert refused.value.code is ErrorCode.PRECONDITION_FAILED
    assert broker.set_subscriptions(endpoint, ["a"]) == [SaveSubscription(endpoint.number, "a")]


def test_without_a_log_no_stream_is_made() -> None:
    """A log that only writes, or only reads, is enough."""
    with pytest.raises(Refused) as refused:
        new_broker(LogPolicy(writes=False, reads=False)).queue_for("s", kind=STREAM)
    assert refused.value.code is ErrorCode.REPLAY_DISABLED
    for policy in ({"writes": False}, {"reads": False}):
        new_broker(LogPolicy(**policy)).queue_for("s", kind=STREAM)


@pytest.mark.parametrize("by_client", [False, True])
def test_a_stream_is_not_rewound(by_client: bool) -> None:
    """An endpoint replay puts messages on an endpoint, and a stream stores none."""
    broker = new_broker()
    with pytest.raises(Refused) as refused:
        broker.replay_commands.check(stream(broker), by_client=by_client)
    assert refused.value.code is ErrorCode.NOT_ALLOWED


# --- Circles of dead message queues ---------------------------------------------------------------------------------

NAMES = "abcde"


def ways(**said: tuple[str, tuple[str, ...]]) -> dict[str, DeadLetterWay]:
    """Queues, each with a dead message queue and subscriptions."""
    found = {name: way_of(name, EndpointKind.QUEUE, *of) for name, of in said.items()}
    return {name: way for name, way in found.items() if way is not None}


@pytest.mark.parametrize(
    ("said", "circle"),
    [
        ({"a": ("b", ())}, ""),
        ({"a": ("a", ())}, "aa"),
        ({"a": ("b", ()), "b": ("a", ())}, "aba"),
        ({"a": ("b", ()), "b": ("c", ()), "c": ("a", ())}, "abca"),
        ({"a": ("b", ()), "b": ("c", ()), "c": ("b", ())}, ""),
        ({"a": ("d", ("#queue/d",))}, "aa"),
        ({"a": ("d", ("#queue/>", "!#queue/d"))}, ""),
        ({"a": ("d", (">",))}, ""),
        ({"a": ("d", ()), "b": ("a", ("#queue/*",))}, "aba"),
    ],
)
def test_a_circle_is_found_by_name_and_by_subscription(
    said: dict[str, tuple[str, tuple[str, ...]]], circle: str
) -> None:
    """A dead message goes to the queue that is named, and to those that subscribe to its topic."""
    assert "".join(circle_of("a", ways(**said))) == circle


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from([*NAMES, ""])))
def test_a_circle_is_there_where_following_the_names_comes_back(dead: dict[str, str]) -> None:
    """Compared with a walk of as many steps as there are queues."""
    found = ways(**{name: (queue, ()) for name, queue in dead.items()})
    for name in NAMES:
        here, seen = name, []
        for _ in NAMES:
            here = dead.get(here, "")
            seen.append(here)
        circle = circle_of(name, found)
        assert bool(circle) is (name in seen)
        assert not circle or (circle[0] == circle[-1] == name and len(set(circle)) == len(circle) - 1)


def test_a_stream_ends_a_way() -> None:
    """No message on a stream can die."""
    assert way_of("a", EndpointKind.STREAM, "b", ()) is None


# --- What trimming reports to endpoints, against a count of single messages -------------------------------------------

LAST = 20

ids = st.integers(1, LAST)
spans = st.lists(
    st.tuples(ids, ids).map(lambda pair: (min(pair), max(pair))), max_size=4, unique_by=lambda s: s[0]
)


@given(
    cursors=st.lists(st.tuples(st.integers(0, LAST), spans), min_size=1, max_size=4),
    routes=st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=4),
    names=st.lists(st.integers(0, 3), min_size=LAST, max_size=LAST),
    first=ids,
    length=st.integers(0, LAST),
)
def test_each_message_is_held_by_as_many_endpoints_as_are_not_done_with_it(
    cursors: list[tuple[int, list[tuple[int, int]]]],
    routes: list[set[int]],
    names: list[int],
    first: int,
    length: int,
) -> None:
    last = min(first + length, LAST)
    endpoints = [new_endpoint(number=k, cursor=Cursor(*cursor)) for k, cursor in enumerate(cursors, 1)]
    table = RouteTable()
    by_message = {}
    for i, name in enumerate(names, 1):
        chosen = sorted({k % len(endpoints) for k in routes[name % len(routes)]})
        route = by_message[i] = table.intern([endpoints[k] for k in chosen], None)
        route.add(1, 1, i)
    runs = held_runs(table, endpoints, first, last)
    for i, route in by_message.items():
        needing = [e for e in route.endpoints if not e.backlog.parts[WHOLE].is_done(i)]
        found = [run for run in runs if run.route == route.definition.number and run.first <= i <= run.last]
        expected = len(needing) if first <= i <= last else 0
        assert [run.endpoints for run in found] == ([expected] if expected else [])
    assert all(first <= run.first <= run.last <= last for run in runs)


def test_each_number_of_a_route_that_was_merged_is_held() -> None:
    table = RouteTable()
    one, two = new_endpoint(), new_endpoint(number=2)
    table.intern([one], None).add(1, 1, 5)
    table.intern([one, two], None).add(1, 1, 6)
    table.remove_endpoint(two)
    assert {tuple(run) for run in held_runs(table, [one], 1, 9)} == {(1, 1, 9, 1), (2, 1, 9, 1)}


def test_a_route_whose_newest_message_is_older_is_not_looked_at() -> None:
    table = RouteTable()
    one = new_endpoint()
    table.intern([one], None).add(1, 1, 5)
    assert held_runs(table, [one], 6, 9) == []
    assert len(held_runs(table, [one], 5, 9)) == 1


def test_an_endpoint_needs_by_priority_what_that_part_is_not_done_with() -> None:
    parts = {priority: Cursor(9 if priority == 4 else 3) for priority in range(10)}
    options = EndpointSettings(priorities=True)
    one = Endpoint(1, "q1", EndpointKind.QUEUE, options, 10, Backlog(1, 101, parts))
    table = RouteTable()
    for priority in (4, 8):
        table.intern([one], priority).add(1, 1, 9)
    assert [tuple(run) for run in held_runs(table, [one], 1, 9)] == [(2, 4, 9, 1)]


def test_what_was_put_or_copied_or_is_about_to_be_is_kept_by_reference() -> None:
    one, two = (new_endpoint(number=number, cursor=Cursor(9)) for number in (1, 2))
    one.backlog.put.begin_replay(200, 1)
    one.backlog.put.add([2, 3, 5, 8], 4)
    one.backlog.put.refer([4], 1)
    two.backlog.put.refer([3, 9], 2)
    two.backlog.put.coming.add(5)
    found = held_references([one, two], range(3, 8))
    assert Counter(found) == Counter([(101, 3), (101, 4), (101, 5), (102, 3), (102, 5)])
    assert one.backlog.put.references == {3, 4, 5}
    assert two.backlog.put.references == {3, 9}, "a copy is there when it is durable"
    one.backlog.put.not_kept([3, 4, 5])
    assert one.backlog.put.references == {4}, "the log has what the replay put, as before"


def test_pieces_keep_up_with_commits_that_bring_more() -> None:
    """On a slow disk many messages come during a piece: the next one has twice as many, up to a limit."""
    broker = new_broker()
    publish(broker, "t", 10_000)
    sizes = []
    for came in (3_000, 0, 50_000, 0):
        piece = broker.trimming.next_piece(broker.log.next_id)
        assert piece is not None
        sizes.append(piece.stop - piece.first)
        if came:
            publish(broker, "t", came)
        broker.trimming.trimmed(piece)
    assert sizes == [TRIM_IDS, 6_000, TRIM_IDS, MOST_TRIM_IDS]


def test_a_log_that_is_nearly_full_is_trimmed_in_large_pieces() -> None:
    """For a publisher it is better to wait a tenth of a second for a large piece than to be refused."""
    each = stored_bytes("t", [1])
    broker = new_broker(LogPolicy(quota_bytes=10_000 * each))
    publish(broker, "t", 9_400)
    calm = broker.trimming.next_piece(broker.log.next_id)
    assert calm is not None
    assert (calm.first, calm.stop) == (1, TRIM_IDS + 1)
    publish(broker, "t", 200)
    urgent = broker.trimming.next_piece(broker.log.next_id)
    assert urgent is not None
    assert (urgent.first, urgent.stop) == (TRIM_IDS + 1, 9_601)


def test_room_is_made_by_as_many_messages_as_are_too_many() -> None:
    """Of a hundred messages that fill a log, twenty are trimmed to reach 80 %; at least one is trimmed."""
    each = stored_bytes("t", [1])
    broker = new_broker(LogPolicy(quota_bytes=100 * each))
    publish(broker, "t", 100)
    assert broker.trimming.room_below(0.80) == 21
    assert broker.trimming.room_below(1.0) == 2
    piece = broker.trimming.next_piece(broker.trimming.room_below(0.80))
    assert piece is not None
    piece.freed_bytes = 20 * each
    broker.trimming.trimmed(piece)
    assert (broker.log.first_id, broker.trimming.usage) == (21, 0.80)


def test_which_queues_take_dead_messages_is_known() -> None:
    """From when the first endpoint names a queue until the last one names another, or is deleted."""
    broker = new_broker()
    to_d = EndpointSettings(dead_message_queue="d")
    one, other = (broker.create(name, EndpointKind.QUEUE, to_d)[0] for name in ("one", "other"))
    assert list(broker.dead_message_queues) == ["d"]
    broker.change_settings(one, EndpointSettings(dead_message_queue="e"))
    assert sorted(broker.dead_message_queues) == ["d", "e"]
    broker.delete(other)
    assert list(broker.dead_message_queues) == ["e"]
    broker.change_settings(one, EndpointSettings())
    assert not broker.dead_message_queues
