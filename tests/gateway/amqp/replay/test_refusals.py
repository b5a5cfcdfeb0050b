"""Every refusal of a replay as a client sees it: condition, `rewind:replay-error` and Solace's subcode."""

from __future__ import annotations

from typing import Any

import pytest
from proton import symbol, timestamp, ulong

from amqp_ext.replay_id import format_replay_id
from gateway.config import Limits, Queue, ReplayLog, Vpn
from tests.gateway.amqp.conftest import Clock, Connect, Start
from tests.support.client import Client, Refused, texts
from tests.support.messages import data
from tests.support.running import RunningGateway, no_log, settings_for

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

SOURCES = ["log://>", "orders", "topic://a/>"]


def refusal(client: Client, address: str, **arguments: Any) -> tuple[str, str | None, int | None]:
    """The error that an attach is refused with."""
    with pytest.raises(Refused) as refused:
        client.receiver(address, **arguments)
    assert len(refused.value.text) > 20, "the text is a sentence for a person"
    return refused.value.replay_refusal


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


@pytest.mark.parametrize("value", BAD_VALUES, ids=repr)
def test_a_bad_start_is_refused(client: Client, value: Any) -> None:
    """A start that says nothing is refused with 139 on every kind of source: it is never dropped and never guessed."""
    for source in SOURCES:
        assert refusal(client, source, filters={"rewind:replay-start": value}) == UNKNOWN_START


@pytest.mark.parametrize("value", ["nonsense", "10 minutes", True, -1])
def test_a_bad_start_in_rabbitmqs_form(client: Client, value: Any) -> None:
    """A bad offset specification is refused with 139, where RabbitMQ would start at `next` without a word."""
    assert refusal(client, "log://>", filters={"rabbitmq:stream-offset-spec": value}) == UNKNOWN_START


@pytest.mark.parametrize("text", ["offset > 'x'", "enqueued-time > 'yesterday'", "enqueued-time > '@latest'"])
def test_a_bad_start_in_event_hubs_form(client: Client, text: str) -> None:
    """A position of Event Hubs' form that is none is refused with 139."""
    filters = {"apache.org:selector-filter:string": f"amqp.annotation.x-opt-{text}"}
    assert refusal(client, "log://>", filters=filters) == UNKNOWN_START


@pytest.mark.parametrize("option", ["replay-start=nonsense", "missing=clamp", "replay-start=last&speed=fast"])
def test_a_bad_start_in_an_option(client: Client, option: str) -> None:
    """A bad option behind the address is refused with 139."""
    assert refusal(client, f"orders?{option}") == UNKNOWN_START


@pytest.mark.parametrize("source", SOURCES)
def test_dates_out_of_the_logs_reach(
    clock: Clock, gateway: RunningGateway, connect: Connect, source: str
) -> None:
    """A date before the log is refused with 143, one in the future with 139; with `missing=clamp` neither is."""
    client = connect(gateway)
    client.sender("orders").send_all([data("x")])
    client.sender("topic://a/b").send_all([data("x")])

    def start(ms: int, **more: Any) -> dict[str, Any]:
        return {"rewind:replay-start": {symbol("date"): timestamp(ms), **more}}

    assert refusal(client, source, filters=start(clock.ms - 1)) == START_TIME_NOT_AVAILABLE
    assert refusal(client, source, filters=start(clock.ms + 1)) == UNKNOWN_START
    clamp = {symbol("missing"): symbol("clamp")}
    receiver = client.receiver(source, filters=start(clock.ms - 1, **clamp))
    assert "x" in texts(receiver.drain())
    receiver.close()
    assert client.receiver(source, filters=start(clock.ms + 1, **clamp)).start["offset"] == 3


def test_ago_before_the_log(clock: Clock, gateway: RunningGateway, connect: Connect) -> None:
    """A time ago that is before the log was made is refused with 143."""
    clock.ms += 5_000
    client = connect(gateway)
    assert refusal(client, "log://>?replay-start=6s") == START_TIME_NOT_AVAILABLE
    client.receiver("log://>?replay-start=5s")


def test_a_bound_in_the_future(clock: Clock, gateway: RunningGateway, connect: Connect) -> None:
    """A replay until a date in the future is refused with 139: leave the bound out to go on live."""
    value = {symbol("from"): symbol("beginning"), symbol("until"): timestamp(clock.ms + 1)}
    assert refusal(connect(gateway), "log://>", filters={"rewind:replay-start": value}) == UNKNOWN_START


@pytest.mark.parametrize("source", SOURCES)
def test_messages_that_are_not_in_the_log(client: Client, source: str) -> None:
    """An id or offset that the log does not hold is refused with 156; the offset that comes next is live."""
    client.sender("orders").send_all([data(i) for i in range(3)])
    generation = client.receiver("log://>").link.remote_properties["rewind:replay-generation"]
    for key in ("after", "at"):
        for number in (0, 4, 10_000):
            value = {symbol(key): format_replay_id(generation, number)}
            filters = {"rewind:replay-start": value}
            assert refusal(client, source, filters=filters) == START_MESSAGE_UNAVAILABLE
    for offset in (0, 5, 10_000):
        assert (
            refusal(client, source, filters={"rewind:replay-start": ulong(offset)})
            == START_MESSAGE_UNAVAILABLE
        )
    client.receiver(source, filters={"rewind:replay-start": ulong(4)})


@pytest.mark.parametrize("source", SOURCES)
def test_another_logs_positions(client: Client, source: str) -> None:
    """An id from another log, or a start for another generation, is refused with 145: it means other messages."""
    client.sender("orders").send_all([data(i) for i in range(3)])
    generation = client.receiver("log://>").link.remote_properties["rewind:replay-generation"]
    values: list[Any] = [
        {symbol("from"): symbol("beginning"), symbol("generation"): ulong(generation + 1)},
        {symbol("after"): format_replay_id(generation + 1, 2)},
        format_replay_id(generation - 1, 2),
    ]
    for value in values:
        assert refusal(client, source, filters={"rewind:replay-start": value}) == LOG_MODIFIED


def test_a_shared_queue_with_other_consumers(gateway: RunningGateway, connect: Connect) -> None:
    """A client may not rewind a non-exclusive queue under its other consumers (135); alone, it may."""
    first, second = connect(gateway), connect(gateway)
    first.sender("orders").send_all([data("x")])
    consumer = first.receiver("orders", credit=1)
    consumer.take_and_accept(1)
    assert refusal(second, "orders?replay-start=beginning") == NON_EXCLUSIVE
    consumer.flow(1)
    first.sender("orders").send_all([data("y")])
    assert texts(consumer.take(1)) == ["y"], "the refused one has disturbed nobody"
    consumer.close()
    assert texts(second.receiver("orders?replay-start=beginning").drain()) == ["x", "y"]


def test_an_exclusive_queue_with_an_active_consumer(gateway: RunningGateway, connect: Connect) -> None:
    """On an exclusive=wait queue only the active consumer may ask for a replay (136); once it is gone, the next may."""
    first, second = connect(gateway), connect(gateway)
    first.sender("orders?exclusive=wait").send_all([data("x")])
    consumer = first.receiver("orders", credit=1)
    consumer.take_and_accept(1)
    assert refusal(second, "orders?replay-start=beginning") == INACTIVE_FLOW
    consumer.close()
    assert texts(second.receiver("orders?replay-start=beginning").drain()) == ["x"]


def test_an_exclusive_queue_that_refuses(gateway: RunningGateway, connect: Connect) -> None:
    """On an exclusive=refuse queue a second consumer is refused as locked, also with a replay, and nothing starts."""
    first, second = connect(gateway), connect(gateway)
    first.sender("orders?exclusive=refuse").send_all([data("x")])
    first.receiver("orders", credit=1).take_and_accept(1)
    condition, replay_error, _ = refusal(second, "orders?replay-start=beginning")
    assert (condition, replay_error) == ("amqp:resource-locked", None)
    assert gateway.replay_state("orders") == "n/a"


@pytest.mark.parametrize(
    "address",
    [
        "log://>?replay-start=beginning",
        "log://>",
        "hub/ConsumerGroups/$Default/Partitions/0",
        "orders?replay-start=beginning",
        "topic://a?replay-start=last",
        "orders?replay-start=10m",
    ],
)
def test_without_a_log(start: Start, connect: Connect, address: str) -> None:
    """Where the replay log is off, every replay and every log reader is refused with 134."""
    client = connect(start(no_log()))
    assert refusal(client, address) == DISABLED
    client.sender("orders").send_all([data("x")])
    assert texts(client.receiver("orders").drain()) == ["x"]


def test_temporary_endpoints_where_they_may_not(start: Start, connect: Connect) -> None:
    """With `replay_temporary` off, a replay of a temporary endpoint is refused with 138, and the endpoint goes."""
    gateway = start(Vpn(replay_log=ReplayLog(replay_temporary=False)))
    client = connect(gateway)
    client.sender("topic://a").send_all([data("x")])
    filters = {"rewind:replay-start": "beginning"}
    condition, _, subcode = refusal(client, "topic://a", filters=filters)
    assert (condition, subcode) == ("amqp:not-implemented", 138)
    condition, _, subcode = refusal(client, "", dynamic=True, filters=filters)
    assert (condition, subcode) == ("amqp:not-implemented", 138)
    assert gateway.endpoints() == set()
    durable = client.receiver("topic://a", name="mine", durable=True, filters=filters)
    assert texts(durable.drain()) == ["x"], "durable ones are not concerned"


def test_too_many_replays(start: Start, connect: Connect) -> None:
    """Beyond `max_replays` under way, the next is refused with 147; when one has read all, there is room again."""
    vpn = Vpn(replay_log=ReplayLog(max_replays=1), queues={"a": Queue(), "b": Queue()})
    gateway = start(vpn, limits=Limits(max_unsettled_per_flow=10))
    client = connect(gateway)
    for queue in ("a", "b"):
        client.sender(queue).send_all([data(i) for i in range(50)])
    first = client.receiver("a?replay-start=beginning")
    assert refusal(client, "b?replay-start=beginning") == OUT_OF_RESOURCES
    taken: list[Any] = []
    first.collect(taken, 50)
    client.wait(lambda: gateway.replay_state("a") == "complete", "the first replay is complete")
    second = client.receiver("b?replay-start=beginning", credit=10)
    assert texts(second.take(3)) == ["0", "1", "2"]


@pytest.mark.parametrize("source", SOURCES)
def test_a_bound_is_for_log_readers(client: Client, source: str) -> None:
    """A bounded replay is one of a log reader: on an endpoint it is refused with 139, not ignored."""
    if source.startswith("log:"):
        assert not client.receiver(f"{source}?until=now", credit=1).detached_by_peer().name
    else:
        assert refusal(client, f"{source}?replay-start=beginning&until=now") == UNKNOWN_START


# --- a log that is written or read only ---------------------------------------------------------------------------


def test_a_log_that_is_not_read(start: Start, connect: Connect) -> None:
    """Closed to readers, the log refuses replays and readers with 134, is written all the same, and can be opened."""
    gateway = start(Vpn(replay_log=ReplayLog(read=False)))
    client = connect(gateway)
    client.sender("orders").send_all([data(i) for i in range(3)])
    client.receiver("orders").drain()
    for address in ("orders?replay-start=beginning", "log://>", "log://>?replay-start=live"):
        with pytest.raises(Refused) as refused:
            client.receiver(address)
        assert (refused.value.name, refused.value.subcode) == ("amqp:not-implemented", 134)
    client.close()
    gateway.stop()
    with RunningGateway(settings_for(gateway.settings.data)) as opened, Client(opened.url) as again:
        assert texts(again.receiver("log://>?replay-start=beginning").drain()) == ["0", "1", "2"]


def test_a_log_that_is_not_written(start: Start, connect: Connect) -> None:
    """Closed to new messages, the log can be replayed; what is published meanwhile goes to queues alone, none lost."""
    gateway = start()
    client = connect(gateway)
    client.sender("orders").send_all([data(i) for i in range(3)])
    client.close()
    gateway.stop()
    closed = Vpn(replay_log=ReplayLog(write=False))
    with RunningGateway(settings_for(gateway.settings.data, closed)) as running, Client(running.url) as again:
        sender = again.sender("orders")
        sender.send_all([data(i) for i in range(3, 5)])
        assert texts(again.receiver("log://>?replay-start=beginning").drain()) == ["0", "1", "2"]
        receiver = again.receiver("orders")
        assert texts(receiver.drain()) == ["0", "1", "2", "3", "4"]
        receiver.close()
        receiver = again.receiver("orders?replay-start=beginning")
        sender.send_all([data("live")])
        assert texts(receiver.drain()) == ["0", "1", "2", "live"]
        nobody = again.sender("topic://nobody")
        assert nobody.outcome(nobody.send(data("x"))) == "RELEASED"
