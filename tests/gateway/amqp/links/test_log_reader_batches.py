"""Several messages in a delivery, for log readers that ask for it: the same messages, in the same order."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Link, symbol

from amqp_ext import codec
from tests.gateway.amqp.conftest import Connect
from tests.support.client import Client, Received, Receiver
from tests.support.messages import DATA, HEADER, MESSAGE_ANNOTATIONS, data, section, take_apart
from tests.support.running import RunningGateway

BEGINNING = {"rewind:replay-start": "beginning"}
ASKED = {symbol("rewind:batches"): True}


def ask(link: Link) -> None:
    link.properties = ASKED


def reader(client: Client, address: str = "log://>", **options: Any) -> Receiver:
    """One that asks for batches, from the beginning."""
    options = {"filters": BEGINNING, "snd_settle_mode": Link.SND_SETTLED, **options}
    return client.receiver(address, set_up=ask, **options)


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
    """The same messages to the byte, in order, with annotations and the mark before live; in far fewer deliveries."""
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
    """A reader slides into live traffic, and what comes live comes in the same form."""
    sender = client.sender("topic://a")
    sender.send_all([data("old 1"), data("old 2")])
    batched = reader(client, credit=100)
    sender.send_all([data("new")])
    deliveries: list[Received] = []
    while len(unpacked(deliveries)) < 3:
        deliveries += batched.take(1)
    messages = unpacked(deliveries)
    assert [take_apart(raw)[2] for raw in messages] == [data("old 1"), data("old 2"), data("new")]
    ends = [dict(take_apart(raw)[1] or {}).get("x-opt-replay-end", False) for raw in messages]
    assert ends == [False, True, False]


def test_large_messages_make_small_batches(client: Client) -> None:
    """A delivery has as many messages as its size allows, and one at least."""
    large = [data(b"%d" % i * 50_000) for i in range(8)]
    client.sender("topic://a").send_all(large)
    deliveries = reader(client).drain()
    assert [take_apart(raw)[2] for raw in unpacked(deliveries)] == large
    assert all(len(delivery.raw) < 200_000 for delivery in deliveries)


@pytest.mark.parametrize("credit", [1, 3])
def test_credit_counts_deliveries_and_bounds_their_messages(client: Client, credit: int) -> None:
    """Who gives little credit gets small batches: none has more messages than there was credit."""
    client.sender("topic://a").send_all([data(i) for i in range(20)])
    batched = reader(client)
    deliveries: list[Received] = []
    while len(unpacked(deliveries)) < 20:
        batched.flow(credit - batched.link.credit)
        deliveries += batched.take(1)
    assert [take_apart(raw)[2] for raw in unpacked(deliveries)] == [data(i) for i in range(20)]
    assert max(len(unpacked([delivery])) for delivery in deliveries) <= credit


@pytest.mark.parametrize("address", ["log://>", "orders", "topic://a"])
@pytest.mark.parametrize("mode", [Link.SND_MIXED, Link.SND_UNSETTLED, Link.SND_SETTLED])
def test_only_log_readers_that_settle_nothing_get_batches(client: Client, address: str, mode: int) -> None:
    """A consumer that has a say in each message gets each alone, and so does everyone off the log."""
    receiver = reader(client, address, snd_settle_mode=mode, filters=None)
    assert is_granted(receiver) == (address == "log://>" and mode == Link.SND_SETTLED)
    client.sender("orders").send_all([data(1), data(2)])
    client.sender("topic://a").send_all([data(1), data(2)])
    if not is_granted(receiver):
        first = receiver.drain()[0]
        assert first.bare == data(1)


def test_what_cannot_be_granted_in_words_is_not(connect: Connect, gateway: RunningGateway) -> None:
    """Where the answer has no room for its properties, messages come one by one: the reader cannot know of batches."""
    client = connect(gateway, max_frame_size=512)
    client.sender("topic://a").send_all([data(1), data(2)])
    batched = reader(client, name="n" * 240)
    assert not is_granted(batched)
    assert [message.bare for message in batched.drain()] == [data(1), data(2)]


def test_another_value_asks_for_nothing(client: Client) -> None:
    """The property has to be true."""
    client.sender("topic://a").send_all([data(1)])

    def ask_badly(link: Link) -> None:
        link.properties = {symbol("rewind:batches"): "yes"}

    receiver = client.receiver(
        "log://>", filters=BEGINNING, snd_settle_mode=Link.SND_SETTLED, set_up=ask_badly
    )
    assert not is_granted(receiver)
    assert [message.bare for message in receiver.drain()] == [data(1)]


def test_a_named_replay_marks_each_message_of_a_batch(client: Client) -> None:
    """The mark of a reader that names its replay is on every message of history, in batches as without."""
    client.sender("topic://a").send_all([data(i) for i in range(50)])
    named = reader(client, "log://a?replay-start=beginning&replay-name=look", filters=None)
    assert is_granted(named)
    messages = unpacked(named.drain())
    marks = [(take_apart(message)[1] or {}).get("x-opt-replay-name") for message in messages]
    assert marks == ["look"] * 50
    client.sender("topic://a").send_all([data(50)])
    (live,) = unpacked(named.drain())
    assert "x-opt-replay-name" not in (take_apart(live)[1] or {})
