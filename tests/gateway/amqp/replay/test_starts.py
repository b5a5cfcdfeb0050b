"""Where replays start: every dialect, on a log reader and on an endpoint, and what the answer says of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from proton import Described, Link, symbol, timestamp, ulong

from amqp_ext.replay_id import format_replay_id
from tests.support import starts
from tests.support.client import Client, Refused, texts
from tests.support.running import RunningGateway
from tests.support.starts import STARTS, Start


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """The log of `tests.support.starts`, all of it sent to the queue `orders`; replays leave it as it is."""
    with starts.gateway_with_log(tmp_path_factory.mktemp("starts"), ["orders"]) as running:
        yield running


@pytest.fixture
def generation(client: Client) -> int:
    return int(client.receiver("log://>").link.remote_properties["rewind:replay-generation"])


SOURCES = ["log://>", "orders"]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("start", STARTS, ids=[start.name for start in STARTS])
def test_every_way_to_ask(
    gateway: RunningGateway, client: Client, generation: int, start: Start, source: str
) -> None:
    """Each way to ask leads to exactly its first message, on log and endpoint, and the answer says which it is."""
    receiver = client.receiver(**start.arguments(source, generation))
    numbers = range(start.first, starts.COUNT)
    if source == "orders" and start.first == starts.LIVE:
        # No replay: the queue has what the replay before has left on it.
        receiver.close()
        return
    taken = receiver.drain()
    receiver.settle(taken)
    assert texts(taken) == [str(number) for number in numbers]
    assert [message.id for message in taken] == [number + 1 for number in numbers]
    assert [message.is_end for message in taken] == [number == starts.COUNT - 1 for number in numbers]
    assert [message.delivery_count for message in taken] == [0] * len(taken)
    answer = receiver.start
    assert answer["offset"] == start.first + 1
    assert answer["id"] == format_replay_id(generation, start.first + 1)
    assert answer["generation"] == generation
    if start.first < starts.COUNT:
        assert answer["date"] == starts.arrival_ms(start.first)
    receiver.close()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("start", STARTS, ids=[start.name for start in STARTS])
def test_the_answer_repeats_what_was_asked(
    client: Client, generation: int, start: Start, source: str
) -> None:
    """Entries that were understood come back unchanged in the answer's filter-set, beside the resolved start."""
    if start.filters is None:
        return
    asked = start.filters(generation)
    receiver = client.receiver(**start.arguments(source, generation))
    for key, value in asked.items():
        if key == "rewind:replay-start":
            continue  # Under this key comes the start as it was resolved.
        described = value if isinstance(value, Described) else Described(symbol(key), value)
        assert receiver.filters[key] == described
    assert "rewind:replay-start" in receiver.filters
    receiver.close()


@pytest.mark.parametrize("source", SOURCES)
def test_unknown_filters_are_not_repeated(client: Client, source: str) -> None:
    """A filter that is not known is neither applied nor repeated, so that the client can see it (section 3.5.8)."""
    receiver = client.receiver(
        source,
        filters={"x": Described(symbol("example.com:unknown"), 1), "rewind:replay-start": "last"},
    )
    assert set(receiver.filters) == {"rewind:replay-start"}
    receiver.close()


@pytest.mark.parametrize(
    ("asked", "has_it"),
    [({"rabbitmq:stream-offset-spec": "first"}, True), ({"rewind:replay-start": "beginning"}, False)],
)
@pytest.mark.parametrize("source", SOURCES)
def test_only_those_who_asked_like_rabbitmq_get_its_offset(
    client: Client, source: str, asked: dict[str, str], has_it: bool
) -> None:
    """`x-stream-offset` is there as a long on links that used RabbitMQ's filter, and on no others."""
    receiver = client.receiver(source, filters=asked)
    taken = receiver.drain()
    receiver.settle(taken)
    assert len(taken) == starts.COUNT
    for message in taken:
        assert message.annotations.get("x-stream-offset") == (message.id if has_it else None)
    receiver.close()


def test_annotations_of_a_delivery(client: Client, generation: int) -> None:
    """Each delivery says where it lies in the log: id, sequence number, offset, arrival and topic."""
    (message,) = client.receiver("log://>?replay-start=%235&until=%235").take_to_end()
    assert message.annotations == {
        "x-opt-topic": "#queue/orders",
        "x-opt-sequence-number": 5,
        "x-opt-enqueued-time": starts.arrival_ms(4),
        "x-opt-replay-id": format_replay_id(generation, 5),
        "x-opt-offset": "5",
        "x-opt-replay-end": True,
    }


TWO_STARTS = [
    pytest.param("log://>?replay-start=beginning", {"rewind:replay-start": "last"}, id="option and filter"),
    pytest.param(
        "log://>", {"rewind:replay-start": "last", "rabbitmq:stream-offset-spec": "first"}, id="two dialects"
    ),
    pytest.param(
        "log://>",
        {
            "rabbitmq:stream-offset-spec": "first",
            "apache.org:selector-filter:string": "amqp.annotation.x-opt-offset > '5'",
        },
        id="RabbitMQ and Event Hubs",
    ),
    pytest.param(
        "log://>",
        {"rewind:replay-start": {symbol("offset"): ulong(5), symbol("date"): timestamp(1)}},
        id="two in one map",
    ),
]


@pytest.mark.parametrize(("address", "filters"), TWO_STARTS)
def test_two_starts_are_refused(client: Client, address: str, filters: dict[str, object]) -> None:
    """An attach that asks for two different starts is refused: none of them would be the right one to drop."""
    with pytest.raises(Refused) as refused:
        client.receiver(address, filters=filters)
    assert refused.value.name == "amqp:invalid-field"
    assert (refused.value.replay_error, refused.value.subcode) == ("unknown-start", 139)


def test_the_same_start_twice_is_welcome(client: Client) -> None:
    """An attach that asks for the same start in two places gets it."""
    receiver = client.receiver("log://>?replay-start=%236", filters={"rewind:replay-start": ulong(6)})
    assert texts(receiver.drain()) == ["5", "6", "7", "8", "9"]


# --- bounded replays ----------------------------------------------------------------------------------------------

BOUNDS = [
    pytest.param({symbol("until"): symbol("now")}, range(10), id="now, from the beginning"),
    pytest.param({symbol("offset"): ulong(4), symbol("until"): "now"}, range(3, 10), id="now"),
    pytest.param({symbol("offset"): ulong(4), symbol("until"): ulong(7)}, range(3, 7), id="offset"),
    pytest.param({symbol("offset"): ulong(4), symbol("until"): ulong(4)}, range(3, 4), id="one message"),
    pytest.param({symbol("offset"): ulong(4), symbol("until"): ulong(3)}, range(0), id="nothing"),
    pytest.param(
        {symbol("offset"): ulong(4), symbol("until"): timestamp(starts.arrival_ms(6))}, range(3, 7), id="date"
    ),
    pytest.param(
        {symbol("offset"): ulong(4), symbol("until"): timestamp(starts.arrival_ms(6) - 1)},
        range(3, 6),
        id="date, a millisecond early",
    ),
]


@pytest.mark.parametrize(("value", "numbers"), BOUNDS)
def test_bounded_replays(client: Client, value: dict[symbol, object], numbers: range) -> None:
    """A bounded replay delivers up to its bound, inclusive, marks the last one, and ends without an error."""
    receiver = client.receiver("log://>", filters={"rewind:replay-start": value})
    taken = receiver.take_to_end()
    assert texts(taken) == [str(number) for number in numbers]
    assert [message.is_end for message in taken] == [number == numbers[-1] for number in numbers]
    assert receiver.start["until"] == (numbers[-1] + 1 if numbers else 3)


def test_bounded_by_an_id(client: Client, generation: int) -> None:
    """A bound may be a replay id, in the filter or as an option."""
    bound = format_replay_id(generation, 7)
    value = {symbol("offset"): ulong(4), symbol("until"): bound}
    for receiver in (
        client.receiver("log://>", filters={"rewind:replay-start": value}),
        client.receiver(f"log://>?replay-start=%234&until={bound}"),
    ):
        assert texts(receiver.take_to_end()) == ["3", "4", "5", "6"]


@pytest.mark.parametrize("credit", [1, 2, 3, 10, 500])
def test_a_bounded_replay_with_any_credit(client: Client, credit: int) -> None:
    """However little credit there is at a time, a bounded replay delivers all and ends."""
    receiver = client.receiver("log://>?until=now")
    taken = []
    while len(taken) < starts.COUNT:
        receiver.flow(credit)
        count = min(credit, starts.COUNT - len(taken))
        taken += receiver.take_and_accept(count)
    assert texts(taken) == [str(number) for number in range(starts.COUNT)]
    assert not receiver.detached_by_peer().name


def test_a_bounded_replay_waits_for_settlements(client: Client) -> None:
    """The detach that ends a bounded replay comes after the client has settled what it got."""
    receiver = client.receiver("log://>?until=now", credit=100)
    taken = receiver.take(starts.COUNT)
    client.open_session()
    assert not client.is_detached(receiver.link)
    receiver.settle(taken[:-1])
    client.open_session()
    assert not client.is_detached(receiver.link)
    receiver.settle(taken[-1:])
    assert not receiver.detached_by_peer().name


def test_a_bounded_replay_that_comes_settled_ends_at_once(client: Client) -> None:
    """Where deliveries come settled there is nothing to wait for: the detach follows the last one."""
    receiver = client.receiver("log://>?until=now", credit=100, snd_settle_mode=Link.SND_SETTLED)
    assert len(receiver.take(starts.COUNT)) == starts.COUNT
    assert not receiver.detached_by_peer().name
