"""Where replays start: every dialect, on a log, a stream and an endpoint, and what the answer says of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from proton import Described, Link, symbol, timestamp, ulong

from amqp_ext.replay_id import format_replay_id
from gateway.config import Queue, Vpn
from tests.support import starts
from tests.support.client import BEGINNING, SELECTOR, Client, numbered, refusal, texts
from tests.support.running import RunningGateway
from tests.support.starts import STARTS, Start

VPN = Vpn(queues={"audit": Queue(kind="stream", subscriptions=("#queue/orders",))})


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """
    A gateway with the log of `tests.support.starts`, all of it sent to the queue `orders`, which the stream `audit`
    shows; replays do not change it.
    """
    with starts.gateway_with_log(tmp_path_factory.mktemp("starts"), ["orders"], VPN) as running:
        yield running


@pytest.fixture
def generation(client: Client) -> int:
    return int(client.receiver("log://>").link.remote_properties["rewind:replay-generation"])


SOURCES = ["log://>", "audit", "orders"]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("start", STARTS, ids=[start.name for start in STARTS])
def test_every_way_to_ask(client: Client, generation: int, start: Start, source: str) -> None:
    """
    Each way to ask starts at exactly its first message, on log, stream and endpoint, and the answer says which that is.
    Filters that were understood come back unchanged in the answer's filter-set, next to the resolved start.
    """
    arguments = start.arguments(source, generation)
    receiver = client.receiver(**arguments)
    for key, value in arguments.get("filters", {}).items():
        if key != "rewind:replay-start":  # Under this key comes the start as it was resolved.
            described = value if isinstance(value, Described) else Described(symbol(key), value)
            assert receiver.filters[key] == described
    assert "rewind:replay-start" in receiver.filters
    if source != "orders" or start.first != starts.LIVE:
        # Otherwise there is no replay, and the queue has what the last one left on it.
        numbers = range(start.first, starts.COUNT)
        taken = receiver.drain()
        receiver.settle(taken)
        assert texts(taken) == numbered(start.first, starts.COUNT)
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
def test_only_those_who_asked_like_rabbitmq_get_its_offset(client: Client, source: str) -> None:
    """`x-stream-offset` is a long on deliveries of links that used RabbitMQ's filter, and absent on others."""
    for filters, has_it in (({"rabbitmq:stream-offset-spec": "first"}, True), (BEGINNING, False)):
        receiver = client.receiver(source, filters=filters)
        taken = receiver.drain()
        receiver.settle(taken)
        assert len(taken) == starts.COUNT
        for message in taken:
            assert message.annotations.get("x-stream-offset") == (message.id if has_it else None)
        receiver.close()


def test_annotations_of_a_delivery(client: Client, generation: int) -> None:
    """Each delivery has its place in the log: id, sequence number, offset, arrival and topic."""
    (message,) = client.receiver("log://>?replay-start=%235&until=%235").take_to_end()
    assert message.annotations == {
        "x-opt-topic": "#queue/orders",
        "x-opt-sequence-number": 5,
        "x-opt-enqueued-time": starts.arrival_ms(4),
        "x-opt-replay-id": format_replay_id(generation, 5),
        "x-opt-offset": "5",
        "x-opt-replay-end": True,
    }


TWO_STARTS: dict[str, dict[str, Any]] = {
    "option and filter": {
        "address": "log://>?replay-start=beginning",
        "filters": {"rewind:replay-start": "last"},
    },
    "two dialects": {"filters": {"rewind:replay-start": "last", "rabbitmq:stream-offset-spec": "first"}},
    "RabbitMQ and Event Hubs": {
        "filters": {"rabbitmq:stream-offset-spec": "first", SELECTOR: "amqp.annotation.x-opt-offset > '5'"}
    },
    "two in one map": {
        "filters": {"rewind:replay-start": {symbol("offset"): ulong(5), symbol("date"): timestamp(1)}}
    },
}


def test_two_starts_are_refused(client: Client) -> None:
    """
    An attach that asks for two different starts is refused: neither could be ignored. One that asks for the same start
    in two places gets it.
    """
    for name, asked in TWO_STARTS.items():
        refused = refusal(client.receiver, **{"address": "log://>", **asked})
        assert refused.replay_refusal == ("amqp:invalid-field", "unknown-start", 139), name
    receiver = client.receiver("log://>?replay-start=%236", filters={"rewind:replay-start": ulong(6)})
    assert texts(receiver.drain()) == ["5", "6", "7", "8", "9"]


# --- bounded replays ----------------------------------------------------------------------------------------------

BOUNDS: dict[str, tuple[int, Any, range]] = {
    "now, from the beginning": (1, symbol("now"), range(10)),
    "now": (4, "now", range(3, 10)),
    "offset": (4, ulong(7), range(3, 7)),
    "one message": (4, ulong(4), range(3, 4)),
    "nothing": (4, ulong(3), range(0)),
    "date": (4, timestamp(starts.arrival_ms(6)), range(3, 7)),
    "date, a millisecond early": (4, timestamp(starts.arrival_ms(6) - 1), range(3, 6)),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounded_replays(client: Client, name: str) -> None:
    """A bounded replay delivers up to its bound, inclusive, marks the last one, and ends without an error."""
    offset, until, numbers = BOUNDS[name]
    value = {symbol("offset"): ulong(offset), symbol("until"): until}
    receiver = client.receiver("log://>", filters={"rewind:replay-start": value})
    taken = receiver.take_to_end()
    assert texts(taken) == [str(number) for number in numbers]
    assert [message.is_end for message in taken] == [number == numbers[-1] for number in numbers]
    assert receiver.start["until"] == (numbers[-1] + 1 if numbers else 3)


def test_a_bound_without_a_start(client: Client, generation: int) -> None:
    """The replay begins at the beginning. A bound may be a replay id, in the filter or as an option."""
    assert (
        len(
            client.receiver(
                "log://>", filters={"rewind:replay-start": {symbol("until"): "now"}}
            ).take_to_end()
        )
        == 10
    )
    bound = format_replay_id(generation, 7)
    value = {symbol("offset"): ulong(4), symbol("until"): bound}
    for receiver in (
        client.receiver("log://>", filters={"rewind:replay-start": value}),
        client.receiver(f"log://>?replay-start=%234&until={bound}"),
    ):
        assert texts(receiver.take_to_end()) == ["3", "4", "5", "6"]


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
    """With settled deliveries there is nothing to wait for: the detach follows the last one."""
    receiver = client.receiver("log://>?until=now", credit=100, snd_settle_mode=Link.SND_SETTLED)
    assert len(receiver.take(starts.COUNT)) == starts.COUNT
    assert not receiver.detached_by_peer().name
