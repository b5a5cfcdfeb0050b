"""Sessions, links, credit, drain, detach and refusal, as the wire shows them (AMQP 1.0 part 2)."""

from __future__ import annotations

import socket

import pytest
from proton import Endpoint, Link, Terminus, symbol

from gateway.config import Limits, Vpn
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Client, Refused, numbered, refusal, texts
from tests.support.messages import data
from tests.support.running import RunningGateway
from tests.support.waiting import wait_until


def test_the_open_frame_introduces_the_gateway(client: Client) -> None:
    """The open frame names the product and offers the anonymous relay and replay, so that clients can choose."""
    connection = client.connection
    assert connection.remote_container
    assert connection.remote_properties["product"] == "Rewind"
    assert {"ANONYMOUS-RELAY", "SHARED-SUBS", "rewind:replay-start"} <= set(
        connection.remote_offered_capabilities
    )


def test_sessions_carry_links_side_by_side(client: Client) -> None:
    """Links of several sessions on one connection work at the same time, each with its own messages."""
    sessions = [client.open_session() for _ in range(5)]
    receivers = [client.receiver(f"q{i}", session=s, credit=10) for i, s in enumerate(sessions)]
    senders = [client.sender(f"q{i}", session=s) for i, s in enumerate(sessions)]
    for i, sender in enumerate(senders):
        sender.send_all([data(f"{i}-{n}") for n in range(3)])
    for i, receiver in enumerate(receivers):
        assert texts(receiver.take_and_accept(3)) == [f"{i}-0", f"{i}-1", f"{i}-2"]


def test_ending_a_session_gives_its_messages_back_and_spares_the_others(client: Client) -> None:
    """A session that ends takes its links along: what they had not settled is delivered to another session's link."""
    client.sender("orders").send_all([data(i) for i in range(3)])
    ending = client.open_session()
    client.receiver("orders", session=ending, credit=10).take(3)
    ending.close()
    client.wait(lambda: ending.state & Endpoint.REMOTE_CLOSED, "the session ends")
    assert texts(client.receiver("orders", credit=3).take_and_accept(3)) == ["0", "1", "2"]


def test_never_more_than_the_credit_is_sent(client: Client) -> None:
    """A receiver gets exactly as many messages as it gave credit for, and the next ones with the next credit."""
    client.sender("orders").send_all([data(i) for i in range(10)])
    receiver = client.receiver("orders", credit=3)
    assert texts(receiver.take(3)) == ["0", "1", "2"]
    assert receiver.link.credit == 0
    client.open_session()  # A round trip: whatever was on its way is here.
    assert not receiver.arrived
    receiver.flow(2)
    assert texts(receiver.take(2)) == ["3", "4"]
    client.open_session()
    assert not receiver.arrived


def test_a_publisher_is_kept_in_credit(start: Start, connect: Connect) -> None:
    """A publisher is granted `link_credit` at attach, and as much again as its messages are dealt with."""
    client = connect(start(limits=Limits(link_credit=8)))
    sender = client.sender("orders")
    client.wait(lambda: sender.link.credit, "the first credit arrives")
    assert sender.link.credit == 8
    sender.send_all([data(i) for i in range(100)])
    assert len(client.receiver("orders").drain(200)) == 100


def test_a_drain_delivers_all_there_is_and_uses_up_the_credit(client: Client) -> None:
    """At once where there is nothing (AMQP 1.0 section 2.6.7); new credit works as before."""
    receiver = client.receiver("orders")
    assert receiver.drain(100) == []
    assert receiver.link.credit == 0
    client.sender("orders").send_all([data(i) for i in range(700)])
    assert texts(receiver.drain(1_000)) == numbered(700)
    receiver.flow(1)
    client.sender("orders").send_all([data("after")])
    assert texts(receiver.take(1)) == ["after"]


def test_drain_delivers_what_only_the_disk_has(start: Start, connect: Connect) -> None:
    """Messages that have to be read from disk are delivered before a drain is over, from a queue and from the log."""
    limits = Limits(tail_bytes=1_000, endpoint_window=10, read_page_rows=7)
    gateway = start(limits=limits)
    client = connect(gateway)
    client.sender("orders").send_all([data(i) for i in range(300)])
    client.close()
    gateway.restart()
    client = connect(gateway)
    client.sender("orders").send_all([data(i) for i in range(300, 400)])
    expected = numbered(400)
    reader = client.receiver("log://>", filters={"rewind:replay-start": "beginning"})
    assert texts(reader.drain(1_000)) == expected
    assert texts(client.receiver("orders").drain(1_000)) == expected


def test_drained_credit_is_used_up(gateway: RunningGateway, connect: Connect) -> None:
    """A consumer that had its credit drained is given nothing more: what comes next goes to one that has credit."""
    idle, busy = connect(gateway), connect(gateway)
    first = idle.receiver("orders")
    assert first.drain() == []
    busy.sender("orders").send_all([data(i) for i in range(3)])
    assert texts(busy.receiver("orders", credit=3).take(3)) == ["0", "1", "2"]


@pytest.mark.parametrize("how", ["close", "detach"])
def test_a_link_that_detaches_and_comes_back(client: Client, how: str) -> None:
    """Closing or not, it can be attached again under its name; what it left unsettled is in its old place."""
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
    """An attach without any target is no relay, and is told so: such a link never takes a message (section 2.7.3)."""

    def without_target(link: Link) -> None:
        link.target.type = Terminus.UNSPECIFIED

    with pytest.raises(Refused, match="needs a target") as refused:
        client.sender(None, set_up=without_target)
    assert refused.value.name == "amqp:invalid-field"


def test_after_refusals_the_connection_goes_on(client: Client) -> None:
    """Any number of refused links leaves a connection, and even the refused link's name, as good as before."""
    for _ in range(20):
        refusal(client.receiver, "orders?replay-start=nonsense", name="again")
        refusal(client.sender, "orders?nonsense=1", name="again")
    client.sender("orders", name="again").send_all([data("fine")])
    assert texts(client.receiver("orders", name="again", credit=1).take(1)) == ["fine"]


def test_the_answer_to_an_attach(start: Start, connect: Connect) -> None:
    """It repeats address and settlement modes, says how large a message may be, and the bounds of the log."""
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


def test_a_protocol_error_ends_the_connection_at_once(gateway: RunningGateway) -> None:
    """A frame that breaks the protocol is answered with an error, and the socket is closed without any delay."""
    host, port = gateway.address.split(":")
    with socket.create_connection((host, int(port)), timeout=5) as peer:
        peer.sendall(b"AMQP\x00\x01\x00\x00" + bytes.fromhex("0000000c02000000ffffffff"))
        said = b""
        while more := peer.recv(4096):
            said += more
    assert said.startswith(b"AMQP\x00\x01\x00\x00")
    assert b"amqp:" in said


@pytest.mark.parametrize("hostname", ["other", "vhost:other"])
def test_the_hostname_chooses_the_message_vpn(start: Start, connect: Connect, hostname: str) -> None:
    """
    `open.hostname` selects a Message VPN by `name` or `vhost:name`; VPNs see nothing of each other. One that names
    none, such as a machine's, means `default`; `vhost:` with an unknown name is refused.
    """
    gateway = start(vpns={"other": Vpn()})
    other, default = connect(gateway, hostname=hostname), connect(gateway, hostname="broker.example.com")
    for client, text in ((other, "other"), (default, "default")):
        client.sender("orders").send_all([data(text)])
    assert texts(connect(gateway).receiver("orders").drain()) == ["default"]
    assert texts(other.receiver("orders").drain()) == ["other"]
    assert connect(gateway, hostname="vhost:none").closed_by_peer().name == "amqp:not-found"


def test_a_silent_peer_is_heard_of(gateway: RunningGateway, connect: Connect) -> None:
    """A client that asks for heartbeats gets them while nothing else is said (section 2.4.5)."""
    client = connect(gateway, idle_timeout=2.0)
    before = client.transport.frames_input
    client.wait(lambda: client.transport.frames_input >= before + 3, "three heartbeats arrive")
    client.sender("orders").send_all([data("alive")])
