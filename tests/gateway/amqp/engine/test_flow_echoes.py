"""
Flows that ask for our state, and credit that a consumer takes back, in raw frames (AMQP 1.0 sections 2.6.7 and
2.7.4).
"""

from __future__ import annotations

from typing import Any

import pytest

from amqp_ext.codec import Symbol, UInt
from tests.gateway.amqp.engine.conftest import Opened
from tests.support.frames import FLOW, OPEN, TRANSFER, WINDOW, Frame, flow_frame, frame, transfer_frame
from tests.support.messages import body_of, data
from tests.support.peer import Peer


def flow(*link: Any, drain: bool | None = None, echo: bool | None = None, properties: Any = None) -> bytes:
    """A flow of the session, or of a link: its handle, delivery-count and credit."""
    state = [None if number is None else UInt(number) for number in (*link, *[None] * (3 - len(link)))]
    return frame(FLOW, [UInt(0), UInt(WINDOW), UInt(0), UInt(WINDOW), *state, None, drain, echo, properties])


def link_of(said: Frame) -> tuple[Any, Any, Any, bool]:
    """Handle, delivery-count, credit and drain of a flow."""
    return said.field(4), said.field(5), said.field(6), said.field(8, False)


def nothing_more(peer: Peer) -> None:
    """The gateway has said all: the next it says is the answer to an echo of the session."""
    peer.send(flow(echo=True))
    assert peer.expect(FLOW).field(4) is None


def test_an_echo_is_answered_with_the_state_of_the_session_or_of_a_publishers_link(opened: Opened) -> None:
    """
    A flow without a handle that asks for an echo gets one with the session's state, and one that does not, none. A
    publisher that asks on its link gets delivery-count and credit as they are, as often as it asks; its credit stays.
    """
    peer = opened()
    granted = peer.attach_sender("queue://echoed").field(6)
    for count in range(3):
        peer.send(flow())
        peer.send(flow(echo=True))
        said = peer.expect(FLOW)
        assert (said.field(4), said.field(0)) == (None, count)
        peer.send(flow(0, count, echo=True))
        assert link_of(peer.expect(FLOW)) == (0, count, granted - count, False)
        peer.publish(b"one")
    peer.send(flow(0, 3))
    nothing_more(peer)


def test_an_echo_on_a_consumers_link_tells_what_was_sent(opened: Opened) -> None:
    """A consumer that asks gets delivery-count and what is left of its credit, by our own handle of the link."""
    peer = opened()
    peer.attach_sender("queue://echoed")
    peer.attach_receiver("queue://other")
    own = peer.attach_receiver("queue://echoed", credit=5).field(1)
    for count in range(2):
        peer.publish(b"one")
        peer.receive()
        peer.send(flow(2, count + 1, 4 - count, echo=True))
        assert link_of(peer.expect(FLOW)) == (own, count + 1, 4 - count, False)
    peer.publish(b"one")
    assert peer.receive() == b"one"


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        # As it was before the two came.
        ({"count": 0, "credit": 2, "drain": True}, (2, 0, True)),
        # fe2o3-amqp drains by what it has looked at, which may be less than has come.
        ({"count": 1, "credit": 0, "drain": True, "echo": True}, (2, 0, True)),
        ({"count": 1, "credit": 0, "echo": True}, (2, 0, False)),
    ],
)
def test_messages_that_crossed_a_flow_have_used_its_credit_up(
    opened: Opened, seen: dict[str, Any], said: tuple[int, int, bool]
) -> None:
    """The peer is told what was sent, and waits no longer: no credit is left, and none owed."""
    peer = opened()
    peer.attach_sender("queue://drained")
    own = peer.attach_receiver("queue://drained", credit=2).field(1)
    for _ in range(2):
        peer.publish(b"one")
    peer.skip_to(TRANSFER)
    peer.skip_to(TRANSFER)
    peer.send(flow(1, seen["count"], seen["credit"], drain=seen.get("drain"), echo=seen.get("echo")))
    assert link_of(peer.expect(FLOW)) == (own, *said)
    nothing_more(peer)


@pytest.mark.parametrize("echo", [None, True])
def test_a_drain_is_answered_once(opened: Opened, echo: bool | None) -> None:
    """Credit that there is nothing for is used up and told by one flow, whether an echo is asked for or not."""
    peer = opened()
    peer.attach_receiver("queue://drained")
    for drained in (7, 14):
        peer.send(flow(0, drained - 7, 7, drain=True, echo=echo, properties={Symbol("any"): 1}))
        assert link_of(peer.expect(FLOW)) == (0, drained, 0, True)
    nothing_more(peer)


def test_a_drain_waits_for_the_sessions_window(opened: Opened) -> None:
    """While the peer's window is closed nothing is drained; once it opens, the message goes first, then the rest."""
    peer = opened()
    own = peer.attach_receiver("queue://drained").field(1)
    closed = [UInt(0), UInt(0), UInt(0), UInt(WINDOW), UInt(0), UInt(0), UInt(5)]
    peer.send(frame(FLOW, closed))
    other = opened()
    other.attach_sender("queue://drained")
    other.publish(b"one")
    peer.send(frame(FLOW, [*closed, None, False, True]))
    assert link_of(peer.expect(FLOW)) == (own, 0, 5, False)
    peer.send(frame(FLOW, [*closed, None, True, True]))
    peer.send(frame(FLOW, [*closed[:4], None, None, None, None, None, True]))
    assert peer.expect(FLOW).field(4) is None
    peer.send(flow())
    assert body_of(peer.expect(TRANSFER).payload) == b"one"
    assert link_of(peer.expect(FLOW)) == (own, 5, 0, True)


def test_each_of_several_flows_at_once_is_answered(opened: Opened) -> None:
    """Flows that come together are answered each for its link, in their order."""
    peer = opened()
    owns = [peer.attach_receiver(f"queue://q{n}").field(1) for n in range(3)]
    peer.send(*(flow(n, 0, 5 + n, echo=True) for n in (2, 0, 1)), flow_frame(0, 0, 9))
    assert [link_of(peer.expect(FLOW))[:3] for _ in range(3)] == [(owns[n], 0, 5 + n) for n in (2, 0, 1)]
    nothing_more(peer)


def test_a_flow_in_a_message_asks_for_nothing(opened: Opened) -> None:
    """Only the peer's own frames are looked at: bytes of a message that look like a flow, cut anywhere, are none."""
    peer = opened()
    peer.attach_sender("queue://echoed")
    sent = transfer_frame(0, 0, data(flow(echo=True) + flow(0, 0, echo=True)))
    at = sent.index(flow(echo=True))
    peer.send(sent[:at])
    other = opened()
    other.attach_sender("queue://echoed")
    other.publish(b"by now the first piece is taken")
    peer.send(sent[at:])
    peer._deliveries = 1
    assert peer.frame() is not None
    nothing_more(peer)


@pytest.mark.parametrize(
    "sent",
    [
        frame(FLOW, [UInt(0), UInt(9), UInt(0), UInt(9), "handle", None, None, None, True, True]),
        frame(FLOW, [None, UInt(9), None, UInt(9), UInt(0), "count", UInt(1), None, True, True]),
    ],
    ids=["handle", "count"],
)
def test_a_flow_that_makes_no_sense_harms_nobody_else(opened: Opened, sent: bytes) -> None:
    """A flow with fields of wrong types may end its own connection; another goes on."""
    peer, other = opened(), opened()
    peer.attach_receiver("queue://echoed")
    peer.send(sent)
    nothing_more(other)
    assert OPEN not in {kept.code for kept in other._kept}
