"""Every refusal of a replay as a client sees it: condition, `rewind:replay-error` and Solace's subcode."""

from __future__ import annotations

from typing import Any

import pytest
from proton import symbol, timestamp, ulong

from amqp_ext.replay_id import format_replay_id
from gateway.config import Limits, Queue, ReplayLog, Vpn
from tests.gateway.amqp.conftest import Clock, Connect, Start
from tests.support.client import BEGINNING, SELECTOR, Client, texts
from tests.support.client import refusal as attach_refused
from tests.support.messages import data
from tests.support.running import RunningGateway, no_log

INVALID_FIELD = "amqp:invalid-field"
PRECONDITION_FAILED = "amqp:precondition-failed"
UNKNOWN_START = (INVALID_FIELD, "unknown-start", 139)
START_TIME_NOT_AVAILABLE = (PRECONDITION_FAILED, "start-time-not-available", 143)
START_MESSAGE_UNAVAILABLE = (PRECONDITION_FAILED, "start-message-unavailable", 156)
LOG_MODIFIED = (PRECONDITION_FAILED, "log-modified", 145)
NON_EXCLUSIVE = ("amqp:not-allowed", "non-exclusive", 135)
INACTIVE_FLOW = ("amqp:resource-locked", "inactive-flow", 136)
DISABLED = ("amqp:not-implemented", "disabled", 134)
OUT_OF_RESOURCES = ("amqp:resource-limit-exceeded", "out-of-resources", 147)

SOURCES = ["log://>", "audit", "orders", "topic://a/>"]
STREAM = {"audit": Queue(kind="stream", subscriptions=("#queue/orders", "a/>"))}


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    """A gateway with a stream; queues are made on first use."""
    return start(Vpn(queues=STREAM))


def refusal(client: Client, address: str, **arguments: Any) -> tuple[str, str | None, int | None]:
    """Condition, replay-error and subcode of the error that an attach is refused with."""
    refused = attach_refused(client.receiver, address, **arguments)
    assert len(refused.text) > 20, "the text is a sentence for a person"
    return refused.replay_refusal


BAD_VALUES: list[Any] = [
    "nonsense",
    "",
    "10 minutes",
    "12345",
    "2026-02-30T00:00:00Z",
    "2026-01-01T00:00:00",
    "#-1",
    "rmid1:zzz",
    True,
    -1,
    1.5,
    [],
    {},
    {symbol("from"): symbol("nowhere")},
    {symbol("nonsense"): 1},
    {symbol("missing"): symbol("fail")},
    {symbol("from"): symbol("beginning"), symbol("speed"): -1.0},
    {symbol("from"): symbol("beginning"), symbol("missing"): symbol("maybe")},
    {symbol("date"): "yesterday"},
]


def test_a_bad_start_is_refused(client: Client) -> None:
    """
    A meaningless start is refused with 139 on every kind of source: it is never dropped and never guessed. So it is in
    RabbitMQ's form, where RabbitMQ would silently start at `next`, in Event Hubs' form, and in an option. Only log
    readers may have a bound: on an endpoint it is refused, too, not ignored.
    """
    asked = [(source, {"rewind:replay-start": value}) for source in SOURCES for value in BAD_VALUES]
    for value in ("nonsense", "10 minutes", True, -1):
        asked.append(("log://>", {"rabbitmq:stream-offset-spec": value}))
    for text in ("offset > 'x'", "enqueued-time > 'yesterday'", "enqueued-time > '@latest'"):
        asked.append(("log://>", {SELECTOR: f"amqp.annotation.x-opt-{text}"}))
    for options in ("replay-start=nonsense", "missing=clamp", "replay-start=last&speed=fast"):
        asked.append((f"orders?{options}", {}))
    for source in SOURCES[2:]:
        asked.append((f"{source}?replay-start=beginning&until=now", {}))
    for address, filters in asked:
        assert refusal(client, address, filters=filters) == UNKNOWN_START, (address, filters)


def test_dates_out_of_the_logs_reach(clock: Clock, gateway: RunningGateway, connect: Connect) -> None:
    """
    A start before the log, as a date or as an age, is refused with 143, a date in the future with 139; with
    `missing=clamp` neither is. A bound in the future is refused: a replay without one goes on live.
    """
    clock.ms += 5_000
    client = connect(gateway)
    assert refusal(client, "log://>?replay-start=6s") == START_TIME_NOT_AVAILABLE
    client.receiver("log://>?replay-start=5s")
    clock.ms += 5_000
    for address in ("orders", "topic://a/b"):
        client.sender(address).send_all([data("x")])

    def start(**entries: Any) -> dict[str, Any]:
        return {"rewind:replay-start": {symbol(key): entry for key, entry in entries.items()}}

    early, late = timestamp(clock.ms - 20_000), timestamp(clock.ms + 1)
    until = start(**{"from": symbol("beginning"), "until": late})
    assert refusal(client, "log://>", filters=until) == UNKNOWN_START
    clamp = symbol("clamp")
    for source in SOURCES:
        assert refusal(client, source, filters=start(date=early)) == START_TIME_NOT_AVAILABLE
        assert refusal(client, source, filters=start(date=late)) == UNKNOWN_START
        receiver = client.receiver(source, filters=start(date=early, missing=clamp))
        assert "x" in texts(receiver.drain())
        receiver.close()
        assert client.receiver(source, filters=start(date=late, missing=clamp)).start["offset"] == 3


@pytest.mark.parametrize("source", SOURCES)
def test_messages_that_are_not_in_the_log(client: Client, source: str) -> None:
    """
    An id or offset that the log does not hold is refused with 156; the next offset to be assigned is live. An id of
    another log, or a start for another generation, is refused with 145: it means other messages.
    """
    client.sender("orders").send_all(map(data, range(3)))
    generation = client.receiver("log://>").link.remote_properties["rewind:replay-generation"]
    missing: list[Any] = [ulong(offset) for offset in (0, 5, 10_000)]
    for key in ("after", "at"):
        missing += [{symbol(key): format_replay_id(generation, number)} for number in (0, 4, 10_000)]
    others: list[Any] = [
        {symbol("from"): symbol("beginning"), symbol("generation"): ulong(generation + 1)},
        {symbol("after"): format_replay_id(generation + 1, 2)},
        format_replay_id(generation - 1, 2),
    ]
    for values, error in ((missing, START_MESSAGE_UNAVAILABLE), (others, LOG_MODIFIED)):
        for value in values:
            assert refusal(client, source, filters={"rewind:replay-start": value}) == error
    client.receiver(source, filters={"rewind:replay-start": ulong(4)})


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ("", NON_EXCLUSIVE),
        ("?exclusive=wait", INACTIVE_FLOW),
        ("?exclusive=refuse", ("amqp:resource-locked", None, None)),
    ],
)
def test_a_queue_with_another_consumer(
    gateway: RunningGateway, connect: Connect, option: str, error: tuple[str, str | None, int | None]
) -> None:
    """
    A client may not rewind a non-exclusive queue that has other consumers (135), nor an exclusive one with another
    active consumer (136), nor one that refuses a second consumer. Others are not disturbed; alone, it may.
    """
    first, second = connect(gateway), connect(gateway)
    first.sender(f"orders{option}").send_all([data("x")])
    consumer = first.receiver("orders", credit=1)
    consumer.take_and_accept(1)
    assert refusal(second, "orders?replay-start=beginning") == error
    assert gateway.replay_state("orders") == "n/a"
    consumer.flow(1)
    first.sender("orders").send_all([data("y")])
    assert texts(consumer.take(1)) == ["y"], "the refused one has disturbed nobody"
    consumer.close()
    assert texts(second.receiver("orders?replay-start=beginning").drain()) == ["x", "y"]


def test_without_a_log(start: Start, connect: Connect) -> None:
    """Where the replay log is off, every replay and every log reader is refused with 134."""
    client = connect(start(no_log()))
    for address in (
        "log://>?replay-start=beginning",
        "log://>",
        "hub/ConsumerGroups/$Default/Partitions/0",
        "orders?replay-start=beginning",
        "topic://a?replay-start=last",
        "orders?replay-start=10m",
    ):
        assert refusal(client, address) == DISABLED
    client.sender("orders").send_all([data("x")])
    assert texts(client.receiver("orders?replay-start=live").drain()) == ["x"], "that is no replay"


def test_temporary_endpoints_where_they_may_not(start: Start, connect: Connect) -> None:
    """
    With `replay_temporary` off, a replay of a temporary endpoint is refused with 138, and the endpoint is deleted.
    """
    gateway = start(Vpn(replay_log=ReplayLog(replay_temporary=False)))
    client = connect(gateway)
    client.sender("topic://a").send_all([data("x")])
    for address, dynamic in (("topic://a", False), ("", True)):
        condition, _, subcode = refusal(client, address, dynamic=dynamic, filters=BEGINNING)
        assert (condition, subcode) == ("amqp:not-implemented", 138)
    assert gateway.endpoints() == set()
    durable = client.receiver("topic://a", name="mine", durable=True, filters=BEGINNING)
    assert texts(durable.drain()) == ["x"], "durable ones are not concerned"


def test_too_many_replays(start: Start, connect: Connect) -> None:
    """Beyond `max_replays` under way, the next is refused with 147; when one is complete, there is room again."""
    vpn = Vpn(replay_log=ReplayLog(max_replays=1), queues={"a": Queue(), "b": Queue()})
    gateway = start(vpn, limits=Limits(max_unsettled_per_flow=10))
    client = connect(gateway)
    for queue in ("a", "b"):
        client.sender(queue).send_all(map(data, range(50)))
    first = client.receiver("a?replay-start=beginning")
    assert refusal(client, "b?replay-start=beginning") == OUT_OF_RESOURCES
    first.collect([], 50)
    client.wait(lambda: gateway.replay_state("a") == "complete", "the first replay is complete")
    second = client.receiver("b?replay-start=beginning", credit=10)
    assert texts(second.take(3)) == ["0", "1", "2"]


# --- a log that is written or read only ---------------------------------------------------------------------------


def test_a_log_that_is_not_read(start: Start, connect: Connect) -> None:
    """Closed to readers, the log refuses replays and readers with 134, is still written, and can be opened again."""
    gateway = start(Vpn(queues=STREAM, replay_log=ReplayLog(read=False)))
    client = connect(gateway)
    client.sender("orders").send_all(map(data, range(3)))
    client.receiver("orders").drain()
    for address in ("orders?replay-start=beginning", "log://>", "log://>?replay-start=live", "audit"):
        assert refusal(client, address) == DISABLED
    assert texts(connect.again(gateway, client, Vpn()).read_log()) == ["0", "1", "2"]


def test_a_log_that_is_not_written(gateway: RunningGateway, client: Client, connect: Connect) -> None:
    """Closed to new messages, the log can be replayed; messages published meanwhile go only to queues, none lost."""
    client.sender("orders").send_all(map(data, range(3)))
    client = connect.again(gateway, client, Vpn(replay_log=ReplayLog(write=False)))
    sender = client.sender("orders")
    sender.send_all(map(data, range(3, 5)))
    assert texts(client.read_log()) == ["0", "1", "2"]
    receiver = client.receiver("orders")
    assert texts(receiver.drain()) == ["0", "1", "2", "3", "4"]
    receiver.close()
    receiver = client.receiver("orders?replay-start=beginning")
    sender.send_all([data("live")])
    assert texts(receiver.drain()) == ["0", "1", "2", "live"]
    assert client.sender("topic://nobody").outcomes([data("x")]) == ["RELEASED"]
