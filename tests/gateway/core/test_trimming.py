"""What trimming says that endpoints need, against a count message by message."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.addresses.address import queue_topic
from gateway.core.endpoint.backlog import Backlog
from gateway.core.endpoint.cursor import Cursor
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings
from gateway.core.log import LogPolicy
from gateway.core.model import WHOLE, stored_bytes
from gateway.core.router import RouteTable
from gateway.core.trimming import MOST_TRIM_IDS, TRIM_IDS, held_references, held_runs
from tests.support.core import new_broker, publish

LAST = 20

ids = st.integers(1, LAST)
spans = st.lists(
    st.tuples(ids, ids).map(lambda pair: (min(pair), max(pair))), max_size=4, unique_by=lambda s: s[0]
)


def new_endpoint(number: int, floor: int, ranges: list[tuple[int, int]]) -> Endpoint:
    backlog = Backlog(number, 100 + number, {WHOLE: Cursor(floor, ranges)})
    return Endpoint(number, f"q{number}", EndpointKind.QUEUE, EndpointSettings(), 10, backlog)


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
    endpoints = [new_endpoint(k + 1, *cursor) for k, cursor in enumerate(cursors)]
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
    one, two = new_endpoint(1, 0, []), new_endpoint(2, 0, [])
    table.intern([one], None).add(1, 1, 5)
    table.intern([one, two], None).add(1, 1, 6)
    table.remove_endpoint(two)
    assert {tuple(run) for run in held_runs(table, [one], 1, 9)} == {(1, 1, 9, 1), (2, 1, 9, 1)}


def test_a_route_whose_newest_message_is_older_is_not_looked_at() -> None:
    table = RouteTable()
    one = new_endpoint(1, 0, [])
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
    one, two = new_endpoint(1, 9, []), new_endpoint(2, 9, [])
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


def test_nothing_is_trimmed_that_a_transaction_is_about_to_settle() -> None:
    broker = new_broker()
    endpoint, _ = broker.queue_for("q")
    flow = Flow(endpoint, None)
    endpoint.bind(flow)
    publish(broker, queue_topic("q"), 6)
    ids = endpoint.ready.peek(6)
    endpoint.hand_out(flow, ids, [(i, 1_000, "", 0, 1, None, b"x") for i in ids], 1)
    broker.settlements.settle(flow, [1, 2])
    pending = broker.settlements.begin(flow, [3, 4])
    piece = broker.trimming.next_piece(7)
    assert piece is not None
    assert (piece.first, piece.stop) == (1, 3)
    broker.trimming.trimmed(piece)
    assert broker.trimming.next_piece(7) is None
    assert broker.trimming.waits
    broker.settlements.committed(pending)
    assert not broker.trimming.waits
    piece = broker.trimming.next_piece(7)
    assert piece is not None
    assert (piece.first, piece.stop) == (3, 7)
    assert [tuple(run[1:]) for run in piece.held] == [(5, 6, 1)]


def test_pieces_keep_up_with_commits_that_bring_more() -> None:
    """On a slow disk many messages come with each commit: twice as many go with the next."""
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
    """A publisher had rather wait for a tenth of a second than be refused."""
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
    """However few they are: of a hundred that fill a log, twenty go for it to be 80 % full; one goes at least."""
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
