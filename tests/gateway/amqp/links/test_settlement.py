"""Transfers and their settlement: modes, outcomes, many frames, aborts, and messages that are too large."""

from __future__ import annotations

from pathlib import Path

import pytest
from proton import Delivery, Link

from amqp_ext.codec import Symbol
from gateway.config import Limits
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Client, numbered, texts
from tests.support.messages import HEADER, MESSAGE_ANNOTATIONS, data, message_to, section
from tests.support.running import RunningGateway
from tests.support.stored import lying

MEGABYTE = 2**20


def references(tmp_path: Path) -> int:
    """What lies on all endpoints, as the file has it at this moment."""
    return lying(tmp_path / "data" / "default.db")


# --- publishers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Link.SND_UNSETTLED, Link.SND_MIXED])
@pytest.mark.parametrize("receiver_mode", [Link.RCV_FIRST, Link.RCV_SECOND])
def test_an_unsettled_message_is_stored_before_it_is_accepted(
    client: Client, tmp_path: Path, mode: int, receiver_mode: int
) -> None:
    """When `accepted` arrives, the message and its route are in the file; the gateway has settled by then."""
    sender = client.sender("orders", snd_settle_mode=mode, rcv_settle_mode=receiver_mode)
    for count in range(1, 6):
        delivery = sender.send(data("x"))
        assert sender.outcome(delivery) == "ACCEPTED"
        assert delivery.settled
        assert references(tmp_path) == count


@pytest.mark.parametrize("mode", [Link.SND_SETTLED, Link.SND_MIXED])
def test_a_settled_message_reaches_the_queue(client: Client, mode: int) -> None:
    """Messages that come settled land on their queue, though nobody is told of it."""
    sender = client.sender("orders", snd_settle_mode=mode)
    for i in range(50):
        sender.send(data(i), settled=True)
    assert texts(client.receiver("orders", credit=50).take(50)) == numbered(50)


def test_no_message_at_all_is_rejected(client: Client) -> None:
    """Bytes that are no AMQP message are rejected as `amqp:decode-error`; those around them are accepted."""
    sender = client.sender("orders")
    deliveries = [sender.send(raw) for raw in (data("before"), b"\xde\xad\xbe\xef", b"", data("after"))]
    assert sender.outcome(deliveries[0]) == "ACCEPTED"
    assert sender.rejection(deliveries[1]).name == "amqp:decode-error"
    assert sender.rejection(deliveries[2]).name == "amqp:decode-error"
    assert sender.outcome(deliveries[3]) == "ACCEPTED"
    assert texts(client.receiver("orders").drain()) == ["before", "after"]


# --- consumers ----------------------------------------------------------------------------------------------------


def test_a_consumer_that_wants_settled_messages_gets_them_settled(
    gateway: RunningGateway, client: Client
) -> None:
    """In sender mode settled, a delivery arrives settled, and the message has left the queue with it."""
    client.sender("orders").send_all([data(i) for i in range(5)])
    receiver = client.receiver("orders", credit=5, snd_settle_mode=Link.SND_SETTLED)
    taken = receiver.take(5)
    assert all(message.delivery.settled for message in taken)
    assert gateway.depth("orders") == 0
    receiver.close()
    assert client.receiver("orders").drain() == []


@pytest.mark.parametrize("mode", [Link.SND_UNSETTLED, Link.SND_MIXED])
def test_a_consumer_settles_first(gateway: RunningGateway, client: Client, mode: int) -> None:
    """In receiver mode first, a message is the consumer's when it settles it, and on the queue until then."""
    client.sender("orders").send_all([data(i) for i in range(5)])
    receiver = client.receiver("orders", credit=5, snd_settle_mode=mode)
    taken = receiver.take(5)
    assert not any(message.delivery.settled for message in taken)
    assert gateway.depth("orders") == 5
    receiver.settle(taken)
    client.wait(lambda: gateway.depth("orders") == 0, "the messages leave the queue")


def test_a_consumer_settles_second(client: Client, tmp_path: Path) -> None:
    """In receiver mode second, the gateway settles after the consumer's outcome is in the file, not before."""
    client.sender("orders").send_all([data(i) for i in range(5)])
    receiver = client.receiver("orders", credit=5, rcv_settle_mode=Link.RCV_SECOND)
    for left, message in zip(range(4, -1, -1), receiver.take(5), strict=True):
        receiver.update([message])
        client.wait(lambda m=message: m.delivery.settled, "the gateway settles")
        assert message.delivery.remote_state == Delivery.ACCEPTED
        assert references(tmp_path) == left
        message.delivery.settle()


def test_an_accepted_message_is_gone(gateway: RunningGateway, client: Client, connect: Connect) -> None:
    """An accepted message does not come again, not even after a restart."""
    client.sender("orders").send_all([data(i) for i in range(3)])
    client.receiver("orders", credit=2).take_and_accept(2)
    client.close()
    gateway.restart()
    assert texts(connect(gateway).receiver("orders").drain()) == ["2"]


def test_all_released_come_back_in_order(client: Client) -> None:
    """Messages released in any order come back in the order of the queue."""
    client.sender("orders").send_all([data(i) for i in range(6)])
    receiver = client.receiver("orders", credit=6)
    taken = receiver.take(6)
    for i in (3, 0, 5, 1, 4, 2):
        receiver.settle([taken[i]], Delivery.RELEASED)
    receiver.flow(6)
    assert texts(receiver.take(6)) == numbered(6)


def test_a_modified_message_counts_its_failures(client: Client) -> None:
    """Modified with delivery-failed raises the header's delivery-count by one each time, without it by none."""
    client.sender("orders").send_all([data("x")])
    receiver = client.receiver("orders")
    counts = []
    for failed in (True, False, True, True, False):
        receiver.flow(1)
        (message,) = receiver.take(1)
        counts.append(message.delivery_count)
        receiver.modify([message], failed=failed)
    assert counts == [0, 1, 1, 2, 3]


def test_the_delivery_count_goes_on_from_the_messages_own(client: Client) -> None:
    """A message that came with a header keeps it but for the delivery-count, which goes on from what it said."""
    client.sender("orders").send_all([section(HEADER, [True, None, None, True, None]) + data("x")])
    receiver = client.receiver("orders", credit=1)
    (message,) = receiver.take(1)
    assert message.header == [True, None, None, True, None]
    receiver.modify([message], failed=True)
    receiver.flow(1)
    (again,) = receiver.take(1)
    assert again.header is not None
    assert again.header[0] is True
    assert again.header[3] is False, "it is not the first acquirer any more"
    assert again.delivery_count == 1


def test_settled_without_an_outcome_counts_as_failed(client: Client) -> None:
    """A delivery settled with no outcome is lost to nobody: it comes again, with its delivery-count raised."""
    client.sender("orders").send_all([data("x")])
    receiver = client.receiver("orders", credit=1)
    receiver.settle(receiver.take(1), None)
    receiver.flow(1)
    (again,) = receiver.take(1)
    assert again.delivery_count == 1


def test_outcomes_of_every_kind_together(client: Client) -> None:
    """In one burst each does its part and nothing else: what comes again is in its place, before what is behind it."""
    client.sender("orders").send_all([data(i) for i in range(9)])
    receiver = client.receiver("orders", credit=8)
    taken = receiver.take(8)
    receiver.settle(taken[0:2], Delivery.ACCEPTED)
    receiver.settle(taken[2:4], Delivery.REJECTED)
    receiver.settle(taken[4:6], Delivery.RELEASED)
    receiver.modify(taken[6:8], failed=True)
    receiver.flow(8)
    again = receiver.take(5)
    said = [(message.text, message.delivery_count) for message in again]
    assert said == [("4", 0), ("5", 0), ("6", 1), ("7", 1), ("8", 0)]
    assert again[0].id == taken[4].id
    receiver.close()
    assert texts(client.receiver("orders").drain()) == numbered(4, 9)


def test_outcomes_of_two_links_in_turn(gateway: RunningGateway, client: Client) -> None:
    """
    In one burst one link settles, the other waits to be told, by turns: each outcome is its own link's, and who waits
    for the gateway to settle is not forgotten.
    """
    for queue in ("orders", "bills"):
        client.sender(queue).send_all([data(i) for i in range(6)])
    first = client.receiver("orders", credit=6)
    second = client.receiver("bills", credit=6, rcv_settle_mode=Link.RCV_SECOND)
    ours, theirs = first.take(6), second.take(6)
    for i in range(0, 6, 2):
        first.settle(ours[i : i + 1])
        second.update(theirs[i : i + 1])
        first.settle(ours[i + 1 : i + 2], Delivery.RELEASED)
        second.update(theirs[i + 1 : i + 2], Delivery.RELEASED)
    client.wait(lambda: all(message.delivery.settled for message in theirs), "the gateway settles")
    for message in theirs:
        message.delivery.settle()
    assert gateway.depth("bills") == 3
    client.wait(lambda: gateway.depth("orders") == 3, "what the first accepted is gone")
    assert texts(first.drain()) == ["1", "3", "5"]
    assert texts(second.drain()) == ["1", "3", "5"]


# --- large messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame_size", [512, 4_096, 65_536, None])
def test_messages_larger_than_a_frame(gateway: RunningGateway, connect: Connect, frame_size: int) -> None:
    """Messages up to a megabyte cross in as many frames as either side's maximum asks for, bit for bit."""
    client = connect(gateway, max_frame_size=frame_size)
    raws = [data(bytes([size % 251]) * size) for size in (0, 1, 400, 512, 5_000, 65_536, 100_000, MEGABYTE)]
    client.sender("orders").send_all(raws)
    receiver = client.receiver("orders", credit=len(raws))
    assert [message.bare for message in receiver.take(len(raws))] == raws


@pytest.mark.parametrize("limit", [3_000, MEGABYTE, 16 * MEGABYTE])
def test_a_message_of_exactly_the_largest_size(start: Start, connect: Connect, limit: int) -> None:
    """A message of exactly `max_message_bytes` is taken and delivered."""
    client = connect(start(limits=Limits(max_message_bytes=limit)))
    raw = data(b"\x55" * (limit - len(data(b"\x55" * 300)) + 300))
    assert len(raw) == limit
    client.sender("orders").send_all([raw])
    assert client.receiver("orders", credit=1).take(1)[0].bare == raw


@pytest.mark.parametrize("excess", [1, 200_000, 5 * MEGABYTE])
@pytest.mark.parametrize("settled", [False, True])
def test_a_message_that_is_too_large(start: Start, connect: Connect, excess: int, settled: bool) -> None:
    """A message over `max_message_bytes` costs its link, with an error; nothing of it is stored, and others go on."""
    gateway = start(limits=Limits(max_message_bytes=300_000))
    client = connect(gateway)
    other = client.sender("orders")
    sender = client.sender("orders")
    sender.send_all([data("before")])
    sender.send(data(b"\x55" * (300_000 + excess)), settled=settled)
    refused = sender.detached_by_peer()
    assert refused.name == "amqp:link:message-size-exceeded"
    assert "300000" in refused.text
    other.send_all([data("after")])
    assert texts(client.receiver("orders").drain()) == ["before", "after"]
    client.sender("orders").send_all([data("again")])


@pytest.mark.parametrize("address", ["orders", None])
def test_a_message_with_too_much_in_front(start: Start, connect: Connect, address: str | None) -> None:
    """What stands before the bare message is bounded: at the limit it is taken, past it rejected alone."""
    client = connect(start(limits=Limits(max_annotations_bytes=2_000)))
    client.receiver("orders").close()
    bare = data("x") if address is not None else message_to("orders", "x")
    front = section(HEADER, [True]) + section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-own"): "y" * 1_000})
    fits = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-own"): "y" * (1_000 + 2_000 - len(front))})
    sender = client.sender(address)
    raws = [section(HEADER, [True]) + fits + bare, section(HEADER, [True, None, None]) + fits + bare, bare]
    assert raws[0].index(bare) == 2_000 < raws[1].index(bare)
    deliveries = [sender.send(raw) for raw in raws]
    assert [sender.outcome(delivery) for delivery in deliveries] == ["ACCEPTED", "REJECTED", "ACCEPTED"]
    condition = deliveries[1].remote.condition
    assert condition.name == "amqp:resource-limit-exceeded"
    assert "at most 2000 are taken (max_annotations_bytes)" in condition.description
    assert len(client.receiver("orders").drain()) == 2


@pytest.mark.parametrize("sent_bytes", [0, 10, 100_000, 1_000_000])
def test_an_aborted_delivery_never_was(client: Client, sent_bytes: int) -> None:
    """A delivery that is aborted in the middle leaves nothing; the messages around it arrive (section 2.6.14)."""
    sender = client.sender("orders")
    sender.send_all([data("before")])
    delivery = sender.link.delivery("aborted")
    sender.link.stream(data(b"\x55" * MEGABYTE)[:sent_bytes])
    client.open_session()  # A round trip: what was written has arrived as far as it is there.
    delivery.abort()
    sender.send_all([data("after")])
    assert texts(client.receiver("orders").drain()) == ["before", "after"]


def test_aborted_deliveries_give_their_credit_back(start: Start, connect: Connect) -> None:
    """A publisher that aborts more deliveries than it has credit is not left without."""
    client = connect(start(limits=Limits(link_credit=4)))
    sender = client.sender("orders")
    for i in range(20):
        client.wait(lambda: sender.link.credit > 0, "there is credit")
        delivery = sender.link.delivery(f"aborted-{i}")
        sender.link.stream(data(b"\x55" * 100_000)[:70_000])
        client.open_session()
        delivery.abort()
    sender.send_all([data("after")])
    assert texts(client.receiver("orders").drain()) == ["after"]


def test_large_messages_interleave_with_small_ones(client: Client) -> None:
    """Large messages on one link do not disturb the frames of another link on the same connection."""
    large, small = client.sender("large"), client.sender("small")
    deliveries = []
    for i in range(10):
        deliveries.append((large, large.send(data(bytes([i]) * 300_000))))
        deliveries += [(small, small.send(data(f"{i}-{n}"))) for n in range(10)]
    assert {sender.outcome(delivery) for sender, delivery in deliveries} == {"ACCEPTED"}
    assert [m.bare for m in client.receiver("large").drain()] == [
        data(bytes([i]) * 300_000) for i in range(10)
    ]
    assert texts(client.receiver("small").drain()) == [f"{i}-{n}" for i in range(10) for n in range(10)]


def test_a_consumer_that_stops_reading_does_not_stop_others(start: Start, connect: Connect) -> None:
    """A consumer that reads nothing fills no more than its bound, while another connection's messages flow."""
    gateway = start(limits=Limits(connection_output_bytes=100_000))
    publisher, lazy, eager = connect(gateway), connect(gateway), connect(gateway)
    lazy.receiver("lazy", credit=1_000)
    publisher.sender("lazy").send_all([data(bytes([i]) * 100_000) for i in range(100)])
    publisher.sender("eager").send_all([data(i) for i in range(1_000)])
    assert len(eager.receiver("eager", credit=1_000).take_and_accept(1_000)) == 1_000
    (receiver,) = lazy._receivers.values()
    assert [message.bare for message in receiver.take(100)] == [
        data(bytes([i]) * 100_000) for i in range(100)
    ]
