"""Links to request nodes: which link an answer goes to, how many requests may wait, and what a peer's mistakes cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from proton import Link, Message

from gateway.amqp.links.requests import MAX_REQUEST_BYTES, WINDOW
from gateway.config import Listener
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Client, Receiver, Sender, refusal, with_properties
from tests.support.frames import CLOSE, error_of, transfer_frame
from tests.support.peer import Peer
from tests.support.running import RunningGateway

NODE = "/management"
PAIRED = with_properties({"paired": True})


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    return start(listeners=(Listener(port=0, rabbitmq_mode=True), Listener(port=0)))


def request(number: int, *, reply_to: str = "$me", path: str = "/queues/q", method: str = "GET") -> bytes:
    """A request, by default for the queue `q`: the answer is 404 until that exists."""
    return bytes(Message(id=number, reply_to=reply_to, address=path, subject=method).encode())


def answers(receiver: Receiver, count: int) -> list[tuple[int, int]]:
    """Correlation-id and status of the next ``count`` answers."""
    found = []
    for received in receiver.take(count):
        message = Message()
        message.decode(received.raw)
        found.append((int(message.correlation_id), int(message.subject)))
    return found


def pair(client: Client, name: str = "pair", credit: int = 100) -> tuple[Sender, Receiver]:
    """A paired sender and receiver, which have the same name."""
    return (
        client.sender(NODE, name=name, set_up=PAIRED),
        client.receiver(NODE, name=name, set_up=PAIRED, credit=credit),
    )


@pytest.fixture
def _undisturbed(client: Client) -> Iterator[None]:
    """A pair of another connection, which must still get answers after the test."""
    sender, receiver = pair(client)
    yield
    sender.send(request(1))
    assert answers(receiver, 1) == [(1, 404)]


def test_paired_links_have_their_own_answers(client: Client) -> None:
    """With two pairs on a session, each gets the answers to its own requests, in their order."""
    one, other = pair(client, "one"), pair(client, "other")
    for number in range(3):
        one[0].send(request(number))
        other[0].send(request(10 + number))
    assert answers(one[1], 3) == [(0, 404), (1, 404), (2, 404)]
    assert answers(other[1], 3) == [(10, 404), (11, 404), (12, 404)]


def test_links_that_are_not_paired_find_each_other_by_reply_to(client: Client) -> None:
    """The answer goes to the receiver whose target is the request's reply-to."""

    def known_as(address: str) -> Receiver:
        def set_up(link: Link) -> None:
            link.target.address = address

        return client.receiver(NODE, set_up=set_up, credit=10)

    red, blue = known_as("red"), known_as("blue")
    sender = client.sender(NODE)
    sender.send(request(1, reply_to="blue"))
    sender.send(request(2, reply_to="red"))
    assert answers(blue, 1) == [(1, 404)]
    assert answers(red, 1) == [(2, 404)]


def test_a_request_without_a_link_for_its_answer_is_rejected(gateway: RunningGateway, client: Client) -> None:
    """A request that cannot be answered is not carried out; the rejection says which link is missing."""
    sender = client.sender(NODE)
    rejected = sender.rejection(sender.send(request(1, reply_to="nobody", method="PUT")))
    assert rejected.name == "amqp:precondition-failed"
    assert "reply-to" in rejected.text
    assert gateway.depth("q") is None


@pytest.mark.parametrize("settled", [True, False])
def test_answers_wait_for_credit_and_requests_for_answers(client: Client, settled: bool) -> None:
    """Without credit for answers, no more requests are accepted than the window; with it, all are answered."""
    sender, receiver = pair(client, credit=0)
    for number in range(WINDOW):
        sender.send(request(number), settled=settled)
    # The second pair's answer comes after any that the first pair could have got.
    other, its_answers = pair(client, "other", credit=1)
    other.send(request(99))
    assert answers(its_answers, 1) == [(99, 404)]
    assert (sender.link.credit, len(receiver.arrived)) == (0, 0)
    receiver.flow(WINDOW)
    assert answers(receiver, WINDOW) == [(number, 404) for number in range(WINDOW)]
    client.wait(lambda: sender.link.credit == WINDOW, "credit is given back")


def test_what_becomes_of_a_request(client: Client) -> None:
    """
    `accepted` says that the request was read; its result is in the answer, also for a path that the node does not know.
    Bytes that are not a message are rejected. Afterwards, credit can be drained.
    """
    sender, receiver = pair(client)
    assert sender.outcome(sender.send(request(1, method="PUT"))) == "ACCEPTED"
    assert sender.rejection(sender.send(b"\x00\x53\x75\xff")).name == "amqp:decode-error"
    sender.send(request(2, path="/nothing"))
    assert answers(receiver, 2) == [(1, 201), (2, 404)]
    assert receiver.drain(5) == []


@pytest.mark.usefixtures("_undisturbed")
def test_what_nobody_could_be_told_of_costs_its_link(gateway: RunningGateway, connect: Connect) -> None:
    """A settled transfer that is not a message, and a request larger than the attach's max-message-size."""
    hostile = connect(gateway)
    bad, _ = pair(hostile)
    bad.send(b"no message", settled=True)
    assert bad.detached_by_peer().name == "amqp:decode-error"
    giant, _ = pair(hostile, "giant")
    assert giant.link.remote_max_message_size == MAX_REQUEST_BYTES
    giant.send(bytes(MAX_REQUEST_BYTES + 1))
    assert giant.detached_by_peer().name == "amqp:link:message-size-exceeded"


def too_many(peer: Peer) -> bytes:
    """Attach a pair; the transfers of one request more than there is credit for."""
    peer.attach_sender(NODE)
    peer.attach_receiver(NODE, credit=10)
    return b"".join(transfer_frame(0, number, request(number)) for number in range(WINDOW + 1))


def an_answer_to_the_node(peer: Peer) -> bytes:
    """Attach a receiver; a transfer on it, in the wrong direction."""
    peer.attach_receiver(NODE, credit=10)
    return transfer_frame(0, 0, request(0))


@pytest.mark.usefixtures("_undisturbed")
@pytest.mark.parametrize(
    ("break_a_rule", "condition"),
    [(too_many, "amqp:link:transfer-limit-exceeded"), (an_answer_to_the_node, "amqp:not-allowed")],
)
def test_a_broken_rule_costs_its_connection(
    gateway: RunningGateway, break_a_rule: Callable[[Peer], bytes], condition: str
) -> None:
    """A peer that breaks a rule of transfers at a node gets a close with the condition for that rule."""
    with Peer.opened(gateway.host_and_port()) as peer:
        peer.send(break_a_rule(peer))
        assert error_of(peer.skip_to(CLOSE))[0] == condition


def test_a_node_is_there_where_its_dialect_is_spoken(gateway: RunningGateway) -> None:
    """On a listener without the switch, the address is not a node, for a sender or a receiver."""
    with Client(gateway.urls[1]) as plain:
        for attach in (plain.sender, plain.receiver):
            refusal(attach, NODE)
