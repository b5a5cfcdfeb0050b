"""Delayed delivery: `x-opt-delivery-time` and `x-opt-delivery-delay` over the wire, on queues and topics."""

from __future__ import annotations

import time
from typing import Any

import pytest
from proton import Delivery

from amqp_ext.codec import Long, Symbol, Timestamp, UInt, ULong
from gateway.config import Queue, ReplayLog, Vpn
from gateway.core.effects import DelayedMessage
from store.sqlite.check import check
from tests.gateway.amqp.conftest import Clock, Connect, Start
from tests.support.client import BEGINNING, Client, numbered, texts
from tests.support.messages import HEADER, MESSAGE_ANNOTATIONS, PROPERTIES, data, section
from tests.support.running import RunningGateway, trim_before

HOUR_MS = 3_600_000
HOUR = Long(HOUR_MS)


def delayed(
    text: str | int, delay_ms: Any = HOUR, *, header: Any = None, to: str | None = None, **annotations: Any
) -> bytes:
    """A message with `x-opt-delivery-delay`, and with `x-opt-delivery-NAME` for each of these annotations."""
    said = {f"x-opt-delivery-{name}": value for name, value in annotations.items()}
    front = b"" if header is None else section(HEADER, header)
    properties = b"" if to is None else section(PROPERTIES, [None, None, to])
    said = {"x-opt-delivery-delay": delay_ms} | said
    return (
        front
        + section(MESSAGE_ANNOTATIONS, {Symbol(key): said[key] for key in said})
        + properties
        + data(text)
    )


def waiting(gateway: RunningGateway, name: str) -> int:
    """How many delayed messages an endpoint has that are not due."""
    return gateway.call(lambda g: g.vpns["default"].endpoints.by_name[name].backlog.delayed.messages)


def listed(gateway: RunningGateway, name: str) -> list[DelayedMessage]:
    async def page(running: Any) -> list[DelayedMessage]:
        vpn = running.vpns["default"]
        return list(await vpn.delayed.page(vpn.endpoints.by_name[name], (0, 0), 1_000))

    return gateway.run_coroutine(page)


# --- when they are delivered ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Timestamp, Long, ULong, int])
def test_a_message_is_delivered_when_its_time_has_come(client: Client, kind: type[int]) -> None:
    """
    Not before, and not much later. It is accepted immediately, and others overtake it. `x-opt-delivery-time`, in ms
    since the epoch, takes precedence over a delay; a time in the past means now.
    """
    sender, receiver = client.sender("orders"), client.receiver("orders", credit=10)
    started = time.time()
    due_ms = int(started * 1000) + 300
    sender.send_all(
        [delayed("at", time=kind(due_ms)), delayed("past", time=kind(1)), delayed("later", UInt(700))]
    )
    assert time.time() - started < 0.3, "they were accepted at once"
    assert texts(receiver.take_and_accept(1)) == ["past"]
    assert texts(receiver.take_and_accept(1)) == ["at"]
    assert time.time() * 1000 >= due_ms
    assert texts(receiver.take_and_accept(1)) == ["later"]
    assert 0.7 <= time.time() - started < 4


def test_a_topic_s_subscribers_each_have_it_in_time(
    client: Client, connect: Connect, gateway: RunningGateway
) -> None:
    """Each subscriber at the time of publishing gets it; a later one does not (Jakarta Messaging 3.1, 7.9)."""
    there = [connect(gateway).receiver("topic://a/b", credit=5) for _ in range(2)]
    client.sender(None).send_all([delayed("x", Long(300), to="topic://a/b")])
    late = connect(gateway).receiver("topic://a/*", credit=5)
    assert [texts(receiver.take_and_accept(1)) for receiver in there] == [["x"], ["x"]]
    assert late.drain(1) == []


def test_by_priority_among_what_is_ready(start: Start, connect: Connect) -> None:
    """On a queue that delivers by priority, a delayed message that is due is delivered by its priority."""
    gateway = start(Vpn(queues={"ranked": Queue(priorities=True)}))
    client = connect(gateway)
    client.sender("ranked").send_all(
        delayed(text, Long(100), header=[True, priority]) for text, priority in (("low", 1), ("high", 8))
    )
    client.wait(lambda: gateway.depth("ranked") == 2, "both are due")
    assert texts(client.receiver("ranked", credit=5).take_and_accept(2)) == ["high", "low"]


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_a_restart_forgets_nothing(clock: Clock, gateway: RunningGateway, connect: Connect) -> None:
    """A message that is not due still waits; one that became due meanwhile is delivered."""
    connect(gateway).sender("orders").send_all([delayed("soon"), delayed("later", Long(3 * HOUR_MS))])
    gateway.stop()
    clock.ms += 2 * HOUR_MS
    gateway.start()
    client = connect(gateway)
    receiver = client.receiver("orders", credit=10)
    assert texts(receiver.take_and_accept(1)) == ["soon"]
    assert receiver.drain(1) == []
    assert waiting(gateway, "orders") == 1
    clock.ms += HOUR_MS
    receiver.flow(5)
    assert texts(receiver.take_and_accept(1)) == ["later"]
    assert waiting(gateway, "orders") == 0


def test_the_log_has_it_at_once(client: Client, gateway: RunningGateway) -> None:
    """A log reader does not wait for the time; nor does a replay of the queue, and then it is not delivered again."""
    sender = client.sender("orders")
    sender.send_all([data("first"), delayed("second")])
    reader = client.receiver("log://>", filters=BEGINNING, credit=5)
    assert texts(reader.take(2)) == ["first", "second"]
    replayed = client.receiver("orders", filters=BEGINNING, credit=5)
    assert texts(replayed.take_and_accept(2)) == ["first", "second"]
    assert waiting(gateway, "orders") == 0
    sender.send_all([data("third")])
    assert texts(replayed.take_and_accept(1)) == ["third"]


@pytest.mark.parametrize("count", [3, 4_000], ids=["near", "behind"])
def test_what_is_published_during_a_replay_waits_for_its_time(
    clock: Clock, gateway: RunningGateway, connect: Connect, count: int
) -> None:
    """It is not history, even where the log has it before the replay gets there: it is delivered once, at its time."""
    client = connect(gateway)
    sender = client.sender("orders")
    sender.send_all(data(i) for i in range(count))
    receiver = client.receiver("orders", filters=BEGINNING, credit=1)
    taken = receiver.take(1)
    sender.send_all([delayed("later"), data("live")])
    assert gateway.replay("orders").is_reading is (count > 3), "it is behind where there is much"
    receiver.settle(taken)
    receiver.collect(taken, count + 1)
    assert texts(taken) == [*numbered(count), "live"]
    client.wait(lambda: not gateway.replay("orders").is_under_way, "the replay is complete")
    assert waiting(gateway, "orders") == 1
    clock.ms += HOUR_MS
    assert texts(receiver.take_and_accept(1)) == ["later"]
    assert receiver.drain(1) == []


@pytest.mark.parametrize(
    ("ends", "count", "restarts"),
    [
        ("settled", 1, False),
        ("settled", 1, True),
        ("cancelled", 1, False),
        ("cancelled", 1, True),
        ("cancelled", 4_000, False),  # published while the replay is behind
    ],
)
def test_a_replayed_message_that_stays_unsettled_holds_up_no_delayed_one(
    clock: Clock, gateway: RunningGateway, connect: Connect, ends: str, count: int, restarts: bool
) -> None:
    """
    Once a replay has read the log, live messages follow, and so do delayed ones whose time has come. They are not the
    replay's: it is complete without them, and leaves them where they are if it is cancelled, also after a restart.
    """
    client = connect(gateway)
    sender = client.sender("orders")
    sender.send_all([data("history"), *(data(i) for i in range(1, count))])
    receiver = client.receiver("orders", filters=BEGINNING, credit=1)
    history = receiver.take(1)
    sender.send_all([delayed("consumed"), delayed("later"), data("live")])
    receiver.collect([], count)
    client.wait(lambda: gateway.replay_state("orders") == "pending-complete", "live messages follow")
    clock.ms += HOUR_MS
    receiver.flow(5)
    consumed, _later = receiver.take(2)
    receiver.settle([consumed])
    client.wait(lambda: gateway.depth("orders") == 2, "what is settled has gone")
    assert gateway.replay_state("orders") == "pending-complete"
    if restarts:
        client.cut()
        gateway.restart()
        client = connect(gateway)
        receiver = client.receiver("orders", credit=5)
        taken = receiver.take(2)
        assert sorted(texts(taken)) == ["history", "later"]
        history = [message for message in taken if message.text == "history"]
    if ends == "cancelled":
        gateway.cancel_replay("orders")
        assert receiver.detached_by_peer().replay_error == "cancelled"
    else:
        receiver.settle(history)
        client.wait(lambda: gateway.replay_state("orders") == "complete", "the replay is complete")
        receiver.close()
    assert gateway.depth("orders") == 1
    assert texts(client.receiver("orders", credit=5).take_and_accept(1)) == ["later"]
    client.wait(lambda: gateway.depth("orders") == 0, "nothing is left")
    client.close()
    gateway.stop()
    assert check(gateway.settings.data / "default.db") == []


def test_a_dead_letter_is_not_delayed_once_more(start: Start, connect: Connect, clock: Clock) -> None:
    """The dead letter lacks the delay annotations, so that neither this gateway nor another delays it again."""
    gateway = start(Vpn(queues={"orders": Queue(dead_message_queue="dead"), "dead": Queue()}))
    client = connect(gateway)
    client.sender("orders").send_all([delayed("x")])
    clock.ms += HOUR_MS
    receiver = client.receiver("orders", credit=1)
    receiver.settle(receiver.take(1), Delivery.REJECTED)
    (copied,) = client.receiver("dead", credit=1).take(1)
    assert copied.text == "x"
    assert not {name for name in copied.annotations if name.startswith("x-opt-delivery")}


def test_a_quota_counts_what_waits(start: Start, connect: Connect) -> None:
    """
    Otherwise a publisher could fill the disk. Where the log is off, the queue alone holds the message until it is
    delivered.
    """
    vpn = Vpn(replay_log=ReplayLog(enabled=False), queues={"small": Queue(quota_messages=2)})
    gateway = start(vpn)
    client = connect(gateway)
    sender = client.sender("small")
    sender.send_all([delayed("a", Long(1_000)), delayed("b")])
    for content in (delayed("c"), data("d")):
        assert sender.rejection(sender.send(content)).name == "amqp:resource-limit-exceeded"
    assert texts(client.receiver("small", credit=5).take_and_accept(1)) == ["a"]
    client.wait(lambda: gateway.depth("small") == 0, "nothing is left")


def test_trimming_the_log_leaves_what_waits(clock: Clock, gateway: RunningGateway, connect: Connect) -> None:
    """A delayed message that is trimmed from the log is still delivered at its time, after a restart as well."""
    client = connect(gateway)
    client.sender("orders").send_all([delayed("x"), data("y")])

    trim_before(gateway, 3)
    client.close()
    gateway.restart()
    clock.ms += HOUR_MS
    assert sorted(texts(connect(gateway).receiver("orders", credit=5).take_and_accept(2))) == ["x", "y"]


@pytest.mark.parametrize("how", ["purge", "delete"])
def test_it_goes_with_its_queue(gateway: RunningGateway, connect: Connect, clock: Clock, how: str) -> None:
    """Delayed messages are dropped by a purge, and with the queue."""
    client = connect(gateway)
    sender = client.sender("orders")
    sender.send_all([delayed("x")])

    async def drop(running: Any) -> None:
        endpoints = running.vpns["default"].endpoints
        getattr(endpoints, how)(endpoints.by_name["orders"])
        await running.vpns["default"].committer.committed()

    gateway.run_coroutine(drop)
    clock.ms += 2 * HOUR_MS
    client = connect.again(gateway, client)
    client.sender("orders").send_all([data("y")])
    assert texts(client.receiver("orders", credit=5).take_and_accept(1)) == ["y"]


# --- transactions, mistakes, administration ---------------------------------------------------------------------------


def test_what_is_no_time_is_rejected(client: Client) -> None:
    """The rejection names the annotation. A null has no effect, and other messages are accepted."""
    sender = client.sender("orders")
    for value in ("soon", True, -1, 2**60, 1.5):
        refused = sender.rejection(sender.send(delayed("bad", time=value)))
        assert refused.name == "amqp:invalid-field"
        assert "x-opt-delivery-time is a whole number of milliseconds" in refused.text
    sender.send_all([delayed("null", None, time=None), data("good")])
    assert texts(client.receiver("orders", credit=5).take_and_accept(2)) == ["null", "good"]


def test_one_that_is_cancelled_is_not_delivered(
    clock: Clock, gateway: RunningGateway, connect: Connect
) -> None:
    """The log keeps it; other delayed messages are delivered."""
    client = connect(gateway)
    client.sender("orders").send_all([delayed("a"), delayed("b")])
    first, second = listed(gateway, "orders")
    assert (first.id, second.id) == (1, 2)
    assert first.due_ms == clock.ms + HOUR_MS

    async def cancel(running: Any) -> None:
        vpn = running.vpns["default"]
        await vpn.delayed.cancel(vpn.endpoints.by_name["orders"], first.id)

    gateway.run_coroutine(cancel)
    assert [message.id for message in listed(gateway, "orders")] == [2]
    clock.ms += HOUR_MS
    receiver = client.receiver("orders", credit=5)
    assert texts(receiver.take_and_accept(1)) == ["b"]
    assert receiver.drain(1) == []
    log = client.receiver("log://>", filters=BEGINNING, credit=5)
    assert texts(log.take(2)) == ["a", "b"]


def test_a_backlog_of_what_is_due_stays_in_the_store(
    gateway: RunningGateway, connect: Connect, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only `MOST_RELEASED` due messages are in memory at a time; all are delivered, each once."""
    monkeypatch.setattr("gateway.core.endpoint.endpoint.MOST_RELEASED", 1_000)
    client = connect(gateway)
    client.sender("orders").send_all(delayed(i, Long(1_000)) for i in range(1_200))
    clock.ms += HOUR_MS
    client.wait(lambda: gateway.depth("orders") == 1_000, "as many are ready as may be")
    assert waiting(gateway, "orders") == 200
    receiver = client.receiver("orders", credit=1_200)
    taken = [*receiver.take_and_accept(600), *receiver.take_and_accept(600)]
    assert sorted(int(text) for text in texts(taken)) == list(range(1_200))
