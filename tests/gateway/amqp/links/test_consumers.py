"""Consumers of queues, and readers of the log."""

from __future__ import annotations

import time
from typing import Any

import pytest
from proton import Link, symbol, ulong

from amqp_ext import codec
from gateway.config import Limits
from gateway.core.effects import OpenCursor
from tests.gateway.amqp.conftest import Connect, Start, Telling
from tests.support.client import (
    BEGINNING,
    Client,
    Received,
    Receiver,
    numbered,
    refusal,
    texts,
    with_properties,
)
from tests.support.messages import DATA, HEADER, MESSAGE_ANNOTATIONS, data, section, take_apart
from tests.support.publishing import Publishing
from tests.support.running import RunningGateway

# --- Consumers of one queue: fair turns, exclusivity, and what becomes of messages when a consumer is lost ------------

EPOCH = "com.microsoft:epoch"


# --- consumers that are lost --------------------------------------------------------------------------------------


def test_a_consumer_lost_while_its_replay_starts_is_not_bound(
    telling: Telling, gateway: RunningGateway, connect: Connect
) -> None:
    """A connection lost between the start of its replay and the answer leaves the queue free for another consumer."""
    client, lost = connect(gateway), connect(gateway)
    client.sender("orders?exclusive=refuse").send_all([data(i) for i in range(5)])
    telling.hold(OpenCursor)
    link = lost.session.receiver("lost")
    link.source.address = "orders?replay-start=beginning"
    link.open()
    lost.wait(lambda: gateway.replay_state("orders") == "initializing", "the replay starts")
    lost.cut()
    client.wait(lambda: gateway.connections() == 1, "the gateway notices")
    telling.go_on()
    client.wait(lambda: gateway.flows("orders") == 0, "nobody is bound")
    assert texts(client.receiver("orders?replay-start=beginning", credit=5).take(5)) == numbered(5)


# --- exclusive queues ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("holder", "newcomer"), [(None, None), (1, 1), (1, 2), (0, 5), (5, 4)])
@pytest.mark.parametrize("in_address", [False, True])
def test_exclusive_steal(
    gateway: RunningGateway, connect: Connect, holder: int | None, newcomer: int | None, in_address: bool
) -> None:
    """
    On a queue that is exclusive=steal, a consumer of an equal or higher epoch takes over, and the first is detached;
    one of a lower epoch is refused, and the holder stays. Clients that set no link properties give the epoch in the
    address.
    """
    first, second = connect(gateway), connect(gateway)
    first.sender("orders?exclusive=steal").send_all([data(i) for i in range(3)])

    def attach(client: Client, epoch: int | None, credit: int) -> Receiver:
        if in_address and epoch is not None:
            return client.receiver(f"orders?epoch={epoch}", credit=credit)
        return client.receiver("orders", credit=credit, set_up=with_properties({EPOCH: epoch}))

    held = attach(first, holder, 2)
    held.take(2)
    if (newcomer or 0) < (holder or 0):
        refused = refusal(attach, second, newcomer, 3)
        assert (refused.name, f"epoch {holder}" in refused.text) == ("amqp:link:stolen", True)
        held.flow(1)
        assert texts(held.take(1)) == ["2"]
        return
    thief = attach(second, newcomer, 3)
    told = held.detached_by_peer()
    assert told.name == "amqp:link:stolen"
    who = "a consumer" if newcomer is None else f"a consumer of epoch {newcomer}"
    assert told.text.startswith(f"{who} took")
    assert texts(thief.take(3)) == ["0", "1", "2"]


def test_an_epoch_is_said_once(client: Client) -> None:
    """An address and a property that differ are refused, and so is an epoch that is not a whole number."""
    refused = refusal(client.receiver, "orders?epoch=6", set_up=with_properties({EPOCH: 7}))
    assert "give only one of them" in str(refused)
    assert "whole number" in str(refusal(client.receiver, "orders?epoch=-1"))


# --- Log readers: they take nothing, disturb nobody, and slide from history into live traffic -------------------------


PATTERNS = {
    ">": ["a", "a/b", "a/b/c", "b", "#queue/q"],
    "a": ["a"],
    "a/>": ["a/b", "a/b/c"],
    "a/*": ["a/b"],
    "*": ["a", "b"],
    "#queue/q": ["#queue/q"],
    "#queue/>": ["#queue/q"],
    "none": [],
}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_readers_topics(gateway: RunningGateway, connect: Connect, restarted: bool) -> None:
    """
    A reader gets the topics of its pattern, from memory and from disk, messages sent to a queue by name among them.
    """
    client = connect(gateway)
    for topic in ("a", "a/b", "a/b/c", "b"):
        client.sender(f"topic://{topic}").send_all([data(topic)])
    client.sender("q").send_all([data("#queue/q")])
    if restarted:
        client = connect.again(gateway, client)
    for pattern, expected in PATTERNS.items():
        taken = client.receiver(f"log://{pattern}", filters=BEGINNING).drain()
        assert texts(taken) == expected, pattern
        assert [message.annotations["x-opt-topic"] for message in taken] == expected
        assert [message.is_end for message in taken] == [False] * (len(taken) - 1) + [True] * bool(taken)


def test_the_end_of_history_is_marked_once(client: Client) -> None:
    """
    Only the last message before live is marked, also if messages of other topics follow it; in an empty history none
    is. A reader that asks for no start gets what is published from then on.
    """
    sender, other = client.sender("topic://a/x"), client.sender("topic://b/x")
    none = client.receiver("log://a/>", filters=BEGINNING, credit=1)
    sender.send_all([data(i) for i in range(3)])
    assert not none.take(1)[0].is_end
    other.send_all([data("other") for _ in range(3)])
    reader = client.receiver("log://a/>", filters=BEGINNING, credit=100)
    assert [message.is_end for message in reader.take(3)] == [False, False, True]
    live = client.receiver("log://>", credit=10)
    sender.send_all([data("live")])
    for receiver in (reader, live):
        (message,) = receiver.take(1)
        assert (message.text, message.is_end) == ("live", False)


@pytest.mark.parametrize("credit", [1, 7, 100])
@pytest.mark.parametrize("drains", [False, True])
def test_little_credit(client: Client, credit: int, drains: bool) -> None:
    """
    However little credit there is at a time, drained or not, history arrives whole and in order, then live messages.
    """
    sender = client.sender("topic://a")
    sender.send_all([data(i) for i in range(20)])
    reader = client.receiver("log://>", filters=BEGINNING)
    taken: list[Received] = []
    while len(taken) < 20:
        wanted = min(credit, 20 - len(taken))
        if drains:
            taken += reader.drain(wanted)
        else:
            reader.flow(wanted)
            taken += reader.take_and_accept(wanted)
    assert texts(taken) == numbered(20)
    assert [message.is_end for message in taken] == [False] * 19 + [True]
    assert reader.link.credit == 0
    if drains:
        assert reader.drain(credit) == []
    sender.send_all([data("live")])
    client.open_session()
    assert not reader.arrived, "there was no credit for it"
    reader.flow(1)
    assert texts(reader.take(1)) == ["live"]


SMALL_TAIL = Limits(tail_bytes=50_000, read_page_rows=100)


@pytest.mark.parametrize("limits", [None, SMALL_TAIL], ids=["from memory", "from disk"])
def test_readers_catch_up_while_a_publisher_goes_on(
    start: Start, connect: Connect, limits: Limits | None
) -> None:
    """
    Readers that attach while a publisher is at full speed get every message once, in order, with one end mark. A live
    reader that gives no credit meanwhile reads the rest from disk, without a gap. The queue's consumer misses none.
    """
    gateway = start(limits=limits)
    slow, consumer = connect(gateway).receiver("log://>", credit=10), connect(gateway).receiver("orders")
    slow.client.open_session()
    consumed: list[Received] = []
    with Publishing(gateway.url, "orders", limit=3_000) as publishing:
        readers = []
        for _ in range(3):
            publishing.wait_for(publishing.accepted + 300)
            history = publishing.accepted
            readers.append((connect(gateway).receiver("log://>", filters=BEGINNING), history, []))
        for reader, _, taken in readers:
            reader.collect(taken, history + 500)
            consumer.collect(consumed, len(consumed) + 500)
        publishing.stop()
        for reader, history, taken in readers:
            reader.collect(taken, publishing.next)
            assert texts(taken) == numbered(publishing.next)
            assert [message.id for message in taken] == list(range(1, publishing.next + 1))
            ends = [number for number, message in enumerate(taken) if message.is_end]
            assert len(ends) == 1
            assert ends[0] >= history - 1
    for receiver, taken in ((slow, []), (consumer, consumed)):
        receiver.collect(taken, publishing.next)
        assert texts(taken) == numbered(publishing.next)


def test_a_bounded_replay_ahead_of_the_log(client: Client) -> None:
    """
    A replay until an offset that does not exist yet goes on live up to it and ends; an empty one ends immediately.
    """
    sender = client.sender("topic://a")
    sender.send_all([data(i) for i in range(3)])
    value = {symbol("offset"): ulong(2), symbol("until"): ulong(5)}
    reader = client.receiver("log://>", filters={"rewind:replay-start": value}, credit=100)
    assert texts(reader.take_and_accept(2)) == ["1", "2"]
    sender.send_all([data(3)])
    assert texts(reader.take_and_accept(1)) == ["3"]
    sender.send_all([data(4), data(5)])
    assert texts(reader.take_and_accept(1)) == ["4"]
    assert not reader.detached_by_peer().name
    assert client.receiver("log://b?until=now", credit=1).take_to_end() == []


def test_a_rate_slows_a_replay_and_loses_nothing(client: Client) -> None:
    """
    At 200 a second, fifty messages take a quarter of a second, and all arrive in order, the last one marked. On a queue
    a rate is refused, not ignored.
    """
    client.sender("topic://a").send_all(data(i) for i in range(50))
    began = time.monotonic()
    taken = client.receiver("log://a?replay-start=beginning&until=now&rate=200").take_to_end()
    assert time.monotonic() - began >= 0.24
    assert texts(taken) == numbered(50)
    assert [m.is_end for m in taken] == [False] * 49 + [True]
    assert "log readers" in str(refusal(client.receiver, "orders?replay-start=beginning&rate=10"))


def test_a_drain_is_not_answered_before_what_there_is_was_sent(start: Start, connect: Connect) -> None:
    """A reader at its bound of unsettled deliveries settles them and drains: it gets the next messages first."""
    client = connect(start(limits=Limits(max_unsettled_per_flow=2)))
    client.sender("topic://t").send_all([data(str(i)) for i in range(20)])
    reader = client.receiver("log://t?replay-start=beginning", credit=2)
    found = []
    while len(found) < 18:
        taken = reader.take(2)
        found += texts(taken)
        reader.settle(taken)
        taken = reader.drain(2)
        found += texts(taken)
        reader.settle(taken)
        reader.flow(2)
    assert found == [str(i) for i in range(len(found))]
    assert len(found) % 4 == 0


def reader(client: Client, address: str = "log://>", **options: Any) -> Receiver:
    """A log reader that asks for batches, from the beginning."""
    asked = {"filters": BEGINNING, "snd_settle_mode": Link.SND_SETTLED, "set_up": ASKING}
    return client.receiver(address, **(asked | options))


ASKING = with_properties({"rewind:batches": True})


def is_granted(receiver: Receiver) -> bool:
    return bool((receiver.link.remote_properties or {}).get(symbol("rewind:batches"), False))


def unpacked(deliveries: list[Received]) -> list[bytes]:
    """The messages in the data sections of deliveries; they have no other sections."""
    found = []
    for delivery in deliveries:
        position = 0
        while position < len(delivery.raw):
            described, position = codec.decode(delivery.raw, position)
            assert described.descriptor == DATA
            found.append(described.value)
    return found


def test_batches_bring_what_single_deliveries_bring(client: Client) -> None:
    """The same messages to the byte, in order, with annotations and end mark, in far fewer deliveries."""
    headers = section(HEADER, [True, None]) + section(MESSAGE_ANNOTATIONS, {codec.Symbol("x-own"): 1})
    client.sender("topic://a").send_all([data(i) for i in range(600)] + [headers + data("own")])
    client.sender("topic://b").send_all([data(i) for i in range(600)])
    plain = client.receiver("log://>", filters=BEGINNING, snd_settle_mode=Link.SND_SETTLED)
    assert not is_granted(plain)
    expected = [bytes(message.raw) for message in plain.drain(2_000)]
    batched = reader(client)
    assert is_granted(batched)
    deliveries = batched.drain()
    assert unpacked(deliveries) == expected
    assert len(expected) == 1_201
    assert len(deliveries) < 50


def test_live_messages_follow_in_batches(client: Client) -> None:
    """A reader goes on to live messages in the same form; large messages make small batches, of at least one."""
    sender = client.sender("topic://a")
    old = [data(b"%d" % i * 50_000) for i in range(8)]
    sender.send_all(old)
    batched = reader(client, credit=100)
    sender.send_all([data("new")])
    deliveries: list[Received] = []
    while len(unpacked(deliveries)) < 9:
        deliveries += batched.take(1)
    messages = unpacked(deliveries)
    assert [take_apart(raw)[2] for raw in messages] == [*old, data("new")]
    ends = [dict(take_apart(raw)[1] or {}).get("x-opt-replay-end", False) for raw in messages]
    assert ends == [False] * 7 + [True, False]
    assert all(len(delivery.raw) < 200_000 for delivery in deliveries)


@pytest.mark.parametrize("credit", [1, 3])
def test_credit_counts_deliveries_and_bounds_their_messages(client: Client, credit: int) -> None:
    """No batch has more messages than the reader had credit."""
    client.sender("topic://a").send_all([data(i) for i in range(20)])
    batched = reader(client)
    deliveries: list[Received] = []
    while len(unpacked(deliveries)) < 20:
        batched.flow(credit - batched.link.credit)
        deliveries += batched.take(1)
    assert [take_apart(raw)[2] for raw in unpacked(deliveries)] == [data(i) for i in range(20)]
    assert max(len(unpacked([delivery])) for delivery in deliveries) <= credit


@pytest.mark.parametrize(
    ("address", "options"),
    [
        *(("log://>", {"snd_settle_mode": mode}) for mode in (Link.SND_MIXED, Link.SND_UNSETTLED)),
        *((address, {}) for address in ("orders", "topic://a")),
        # The answer has no room for its properties, so the reader cannot know of batches.
        ("log://>", {"name": "n" * 240}),
        # The property has to be true.
        ("log://>", {"set_up": with_properties({"rewind:batches": "yes"})}),
    ],
)
def test_only_log_readers_that_settle_nothing_get_batches(
    connect: Connect, gateway: RunningGateway, address: str, options: dict[str, Any]
) -> None:
    """
    A link that may settle each message gets each in a delivery of its own, and so does every consumer of a queue or
    topic.
    """
    client = connect(gateway, max_frame_size=512 if "name" in options else None)
    receiver = reader(client, address, filters=None, **options)
    assert (is_granted(receiver), is_granted(reader(connect(gateway)))) == (False, True)
    client.sender("orders").send_all([data(1), data(2)])
    client.sender("topic://a").send_all([data(1), data(2)])
    assert [message.bare for message in receiver.drain()[:2]] == [data(1), data(2)]


def test_a_named_replay_marks_each_message_of_a_batch(client: Client) -> None:
    """The name of a reader's replay is on every message of its history."""
    client.sender("topic://a").send_all([data(i) for i in range(50)])
    named = reader(client, "log://a?replay-start=beginning&replay-name=look", filters=None)
    assert is_granted(named)
    messages = unpacked(named.drain())
    marks = [(take_apart(message)[1] or {}).get("x-opt-replay-name") for message in messages]
    assert marks == ["look"] * 50
    client.sender("topic://a").send_all([data(50)])
    (live,) = unpacked(named.drain())
    assert "x-opt-replay-name" not in (take_apart(live)[1] or {})
