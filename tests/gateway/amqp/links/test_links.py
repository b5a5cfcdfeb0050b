"""Sessions, links, credit, drain, detach and refusal (AMQP 1.0 part 2); transfers and their settlement."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from proton import Delivery, Endpoint, Link, Terminus, symbol

from amqp_ext.codec import Described, Symbol, UInt, ULong
from gateway.config import Limits
from tests.gateway.amqp.conftest import Connect, Start, Telling, attaches_under_way
from tests.gateway.amqp.spec.conftest import ScriptedPeer
from tests.support.client import Client, Refused, numbered, refusal, texts
from tests.support.frames import ATTACH, DETACH, FLOW, error_of, frame, framed
from tests.support.messages import HEADER, MESSAGE_ANNOTATIONS, data, message_to, section
from tests.support.peer import OK, Peer
from tests.support.running import RunningGateway
from tests.support.stored import lying
from tests.support.waiting import wait_until


def test_the_open_frame_introduces_the_gateway(client: Client) -> None:
    """The open frame names the product and offers the anonymous relay and replay, so that clients can choose."""
    connection = client.connection
    assert connection.remote_container
    assert connection.remote_properties["product"] == "Rewind"
    assert {"ANONYMOUS-RELAY", "SHARED-SUBS", "rewind:replay-start"} <= set(
        connection.remote_offered_capabilities
    )


def test_a_publisher_is_kept_in_credit(start: Start, connect: Connect) -> None:
    """A publisher is granted `link_credit` at attach, and credit again as its messages are settled."""
    client = connect(start(limits=Limits(link_credit=8)))
    sender = client.sender("orders")
    client.wait(lambda: sender.link.credit, "the first credit arrives")
    assert sender.link.credit == 8
    sender.send_all([data(i) for i in range(100)])
    assert len(client.receiver("orders").drain(200)) == 100


def test_a_drain_delivers_all_there_is_and_uses_up_the_credit(
    gateway: RunningGateway, client: Client, connect: Connect
) -> None:
    """
    With an empty queue it ends immediately (AMQP 1.0 section 2.6.7), and the next message goes to another consumer,
    which has credit. New credit works as before.
    """
    receiver = client.receiver("orders")
    assert receiver.drain(100) == []
    assert receiver.link.credit == 0
    busy = connect(gateway)
    busy.sender("orders").send_all([data("elsewhere")])
    consumer = busy.receiver("orders", credit=1)
    assert texts(consumer.take_and_accept(1)) == ["elsewhere"]
    consumer.close()
    client.sender("orders").send_all([data(i) for i in range(700)])
    assert texts(receiver.drain(1_000)) == numbered(700)
    receiver.flow(1)
    client.sender("orders").send_all([data("after")])
    assert texts(receiver.take(1)) == ["after"]


def test_drain_delivers_what_only_the_disk_has(start: Start, connect: Connect) -> None:
    """A drain ends only when messages that have to be read from disk are delivered, from a queue and from the log."""
    limits = Limits(tail_bytes=1_000, endpoint_window=10, read_page_rows=7)
    gateway = start(limits=limits)
    client = connect(gateway)
    client.sender("orders").send_all([data(i) for i in range(300)])
    client = connect.again(gateway, client)
    client.sender("orders").send_all([data(i) for i in range(300, 400)])
    expected = numbered(400)
    reader = client.receiver("log://>", filters={"rewind:replay-start": "beginning"})
    assert texts(reader.drain(1_000)) == expected
    assert texts(client.receiver("orders").drain(1_000)) == expected


@pytest.mark.parametrize("how", ["close", "detach"])
def test_a_link_that_detaches_and_comes_back(client: Client, how: str) -> None:
    """After a close or a detach its name can be attached again; what it left unsettled is in its old place."""
    for i in range(5):
        sender = client.sender("orders", name="again")
        sender.send_all([data(i)])
        getattr(sender, how)()
    receiver = client.receiver("orders", name="again", credit=3)
    receiver.settle(receiver.take(3)[1:2])
    getattr(receiver, how)()
    again = client.receiver("orders", name="again", credit=4)
    assert texts(again.take_and_accept(4)) == ["0", "2", "3", "4"]


def test_a_detach_while_the_attach_is_under_way(gateway: RunningGateway, client: Client) -> None:
    """A link that is detached before its attach was answered leaves nothing behind, and the connection goes on."""
    link = client.session.receiver("hasty")
    link.source.address = "topic://hasty/topic"
    link.open()
    link.close()
    client.wait(lambda: link.state & Endpoint.REMOTE_CLOSED, "the link is closed")
    client.sender("orders").send_all([data("still here")])
    wait_until(lambda: gateway.endpoints() == {"orders"}, "the link's endpoint is gone")


def test_a_publisher_without_a_target_is_refused(client: Client) -> None:
    """A link without any target is not the anonymous relay: it could never take a message (section 2.7.3)."""

    def without_target(link: Link) -> None:
        link.target.type = Terminus.UNSPECIFIED

    with pytest.raises(Refused, match="needs a target") as refused:
        client.sender(None, set_up=without_target)
    assert refused.value.name == "amqp:invalid-field"


def test_after_refusals_the_connection_goes_on(client: Client) -> None:
    """After any number of refused links, the connection works as before, and so does the refused link's name."""
    for _ in range(20):
        refusal(client.receiver, "orders?replay-start=nonsense", name="again")
        refusal(client.sender, "orders?nonsense=1", name="again")
    client.sender("orders", name="again").send_all([data("fine")])
    assert texts(client.receiver("orders", name="again", credit=1).take(1)) == ["fine"]


def test_the_answer_to_an_attach(start: Start, connect: Connect) -> None:
    """It has the address and settlement modes, max-message-size, and for a log reader the bounds of the log."""
    client = connect(start(limits=Limits(max_message_bytes=12_345)))
    link = client.sender("orders", snd_settle_mode=Link.SND_UNSETTLED).link
    assert link.remote_target.address == "orders"
    assert link.remote_snd_settle_mode == Link.SND_UNSETTLED
    assert link.remote_max_message_size == 12_345
    link = client.receiver("orders", snd_settle_mode=Link.SND_SETTLED, rcv_settle_mode=Link.RCV_SECOND).link
    assert link.remote_source.address == "orders"
    assert link.remote_snd_settle_mode == Link.SND_SETTLED
    assert link.remote_rcv_settle_mode == Link.RCV_SECOND
    assert link.remote_source.distribution_mode == Terminus.DIST_MODE_MOVE
    client.sender("orders").send_all([data(i) for i in range(7)])
    link = client.receiver("log://>").link
    assert link.remote_source.distribution_mode == Terminus.DIST_MODE_COPY
    properties = link.remote_properties
    bounds = [properties[symbol(f"rewind:replay-{name}")] for name in ("first", "last", "generation")]
    assert bounds[:2] == [1, 7]
    assert bounds[2] > 0


MEGABYTE = 2**20


def references(tmp_path: Path) -> int:
    """How many messages are on all endpoints, as the file has it at this moment."""
    return lying(tmp_path / "data" / "default.db")


# --- publishers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Link.SND_UNSETTLED, Link.SND_MIXED])
@pytest.mark.parametrize("receiver_mode", [Link.RCV_FIRST, Link.RCV_SECOND])
def test_an_unsettled_message_is_stored_before_it_is_accepted(
    client: Client, tmp_path: Path, mode: int, receiver_mode: int
) -> None:
    """When `accepted` arrives, the message and its route are in the file, and the gateway has settled."""
    sender = client.sender("orders", snd_settle_mode=mode, rcv_settle_mode=receiver_mode)
    for count in range(1, 6):
        delivery = sender.send(data("x"))
        assert sender.outcome(delivery) == "ACCEPTED"
        assert delivery.settled
        assert references(tmp_path) == count


# --- consumers ----------------------------------------------------------------------------------------------------


def test_a_consumer_that_wants_settled_messages_gets_them_settled(
    gateway: RunningGateway, client: Client
) -> None:
    """In sender mode settled, a delivery arrives settled, and its message has left the queue by then."""
    client.sender("orders").send_all([data(i) for i in range(5)])
    receiver = client.receiver("orders", credit=5, snd_settle_mode=Link.SND_SETTLED)
    taken = receiver.take(5)
    assert all(message.delivery.settled for message in taken)
    assert gateway.depth("orders") == 0
    receiver.close()
    assert client.receiver("orders").drain() == []


@pytest.mark.parametrize("mode", [Link.SND_UNSETTLED, Link.SND_MIXED])
def test_a_consumer_settles_first(
    gateway: RunningGateway, client: Client, connect: Connect, mode: int
) -> None:
    """
    In receiver mode first, a message stays on the queue until the consumer settles it; once accepted, it is not
    delivered again, not even after a restart.
    """
    client.sender("orders").send_all([data(i) for i in range(5)])
    receiver = client.receiver("orders", credit=5, snd_settle_mode=mode)
    taken = receiver.take(5)
    assert not any(message.delivery.settled for message in taken)
    assert gateway.depth("orders") == 5
    receiver.settle(taken[:4])
    client.wait(lambda: gateway.depth("orders") == 1, "the messages leave the queue")
    client.close()
    gateway.restart()
    assert texts(connect(gateway).receiver("orders").drain()) == ["4"]


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


def test_a_modified_message_counts_its_failures(client: Client) -> None:
    """
    Modified with delivery-failed raises the header's delivery-count by one, without it not at all. The rest of the
    message's own header stays, except that first-acquirer becomes false.
    """
    client.sender("orders").send_all([section(HEADER, [True, None, None, True, None]) + data("x")])
    receiver = client.receiver("orders")
    counts, first_acquirer = [], []
    for failed in (True, False, True, True, False):
        receiver.flow(1)
        (message,) = receiver.take(1)
        assert message.header is not None and message.header[0] is True
        first_acquirer.append(message.header[3])
        counts.append(message.delivery_count)
        receiver.modify([message], failed=failed)
    assert counts == [0, 1, 1, 2, 3]
    assert first_acquirer == [True, False, False, False, False]


def test_outcomes_of_every_kind_together(client: Client) -> None:
    """
    In one burst each outcome applies to its own deliveries; those that come again do so in order, before later
    messages. A delivery settled without an outcome comes again, and counts as failed.
    """
    client.sender("orders").send_all([data(i) for i in range(10)])
    receiver = client.receiver("orders", credit=9)
    taken = receiver.take(9)
    receiver.settle(taken[0:2], Delivery.ACCEPTED)
    receiver.settle(taken[2:4], Delivery.REJECTED)
    receiver.settle(taken[4:6], Delivery.RELEASED)
    receiver.modify(taken[6:8], failed=True)
    receiver.settle(taken[8:9], None)
    receiver.flow(9)
    again = receiver.take(6)
    said = [(message.text, message.delivery_count) for message in again]
    assert said == [("4", 0), ("5", 0), ("6", 1), ("7", 1), ("8", 1), ("9", 0)]
    assert again[0].id == taken[4].id
    receiver.close()
    assert texts(client.receiver("orders").drain()) == numbered(4, 10)


def test_outcomes_of_two_links_in_turn(gateway: RunningGateway, client: Client) -> None:
    """
    In one burst, two links send outcomes in turns, one with mode first, one with second: each outcome applies to its
    own link, and the gateway settles those of the second.
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
    """Messages up to a megabyte arrive bit for bit, in as many frames as either side's maximum requires."""
    client = connect(gateway, max_frame_size=frame_size)
    raws = [data(bytes([size % 251]) * size) for size in (0, 1, 400, 512, 5_000, 65_536, 100_000, MEGABYTE)]
    client.sender("orders").send_all(raws)
    receiver = client.receiver("orders", credit=len(raws))
    assert [message.bare for message in receiver.take(len(raws))] == raws


@pytest.mark.parametrize(("limit", "excess"), [(3_000, 1), (MEGABYTE, 200_000)])
@pytest.mark.parametrize("settled", [False, True])
def test_a_message_that_is_too_large(
    start: Start, connect: Connect, limit: int, excess: int, settled: bool
) -> None:
    """
    A message of exactly `max_message_bytes` is accepted and delivered. A larger one has its link detached with an
    error; nothing of it is stored, and other links go on.
    """
    client = connect(start(limits=Limits(max_message_bytes=limit)))
    other, sender = client.sender("orders"), client.sender("orders")
    largest = data(b"\x55" * (limit - len(data(b"\x55" * 300)) + 300))
    assert len(largest) == limit
    sender.send_all([largest])
    sender.send(data(b"\x55" * (limit + excess - len(data(b"\x55" * 300)) + 300)), settled=settled)
    refused = sender.detached_by_peer()
    assert refused.name == "amqp:link:message-size-exceeded"
    assert str(limit) in refused.text
    other.send_all([data("after")])
    first, second = client.receiver("orders").drain()
    assert (first.bare, second.text) == (largest, "after")
    client.sender("orders").send_all([data("again")])


@pytest.mark.parametrize("address", ["orders", None])
def test_a_message_with_too_much_in_front(start: Start, connect: Connect, address: str | None) -> None:
    """The sections before the bare message have a limit: up to it a message is accepted, past it rejected alone."""
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
    assert "at most 2000 are accepted (max_annotations_bytes)" in condition.description
    assert len(client.receiver("orders").drain()) == 2


def test_an_aborted_delivery_never_was(start: Start, connect: Connect) -> None:
    """
    A delivery that is aborted in the middle leaves nothing, and gives its credit back; the messages around it arrive
    (section 2.6.14).
    """
    client = connect(start(limits=Limits(link_credit=4)))
    sender = client.sender("orders")
    for number, sent_bytes in enumerate([0, 10, 100_000, 1_000_000, *[70_000] * 16]):
        sender.send_all([data(number)])
        client.wait(lambda: sender.link.credit > 0, "there is credit")
        delivery = sender.link.delivery(f"aborted-{number}")
        sender.link.stream(data(b"\x55" * MEGABYTE)[:sent_bytes])
        client.open_session()  # A round trip: what was written has arrived.
        delivery.abort()
    sender.send_all([data("after")])
    assert texts(client.receiver("orders").drain()) == [*numbered(20), "after"]


def test_a_consumer_that_stops_reading_does_not_stop_others(start: Start, connect: Connect) -> None:
    """A consumer that reads nothing fills no more than its buffer, and another connection's messages flow."""
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


def test_a_browser_of_a_queue_that_was_deleted_meanwhile_is_refused(
    telling: Telling, gateway: RunningGateway
) -> None:
    """While its attach waits for a commit, the queue is deleted: nobody would tell the link later."""
    with ScriptedPeer.opened(gateway.host_and_port()) as peer:
        assert isinstance(peer, ScriptedPeer)
        peer.attach(0, target=["queue://q"])
        peer.skip_to(FLOW)
        telling.hold()
        peer.transfer(0, 0, data(b"uncommitted"))
        browsed = Described(ULong(0x28), ["queue://q", *[None] * 5, Symbol("copy")])
        peer.send(frame(ATTACH, ["b", UInt(1), True, None, None, browsed, Described(ULong(0x29), [])]))
        wait_until(lambda: attaches_under_way(gateway) == 1, "the attach waits for the commit")
        gateway.ask(lambda vpn: vpn.endpoints.delete(vpn.endpoints.by_name["q"]))
        telling.go_on()
        # The publisher, and the browser.
        assert [error_of(peer.skip_to(DETACH))[0] for _ in range(2)] == ["amqp:resource-deleted"] * 2


# --- publishers that wait -----------------------------------------------------------------------------------------


def test_a_publisher_that_waits_is_not_taken_for_dead(start: Start) -> None:
    """
    While too much is uncommitted, nothing is read, for longer than `idle_timeout_ms`: the publisher gets heartbeats,
    its own count when they are read, and it goes on.
    """
    gateway = start(limits=Limits(idle_timeout_ms=1_000))
    most = gateway.ask(lambda vpn: vpn.committer._most_pending_bytes)
    gateway.ask(lambda vpn: vpn.committer.hold(most))
    with Peer.connect(gateway.host_and_port()) as peer:
        assert peer.anonymous() == OK
        peer.open(idle_ms=1_000)
        peer.begin()
        peer.attach_sender("queue://q")
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            assert peer.frame() is None, "a heartbeat"
            peer.send(framed(b""))
        gateway.ask(lambda vpn: vpn.committer.let_go(most))
        peer.publish(b"at last")
