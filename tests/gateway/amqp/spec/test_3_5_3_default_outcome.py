"""
3.5.3, the default-outcome of a source: of deliveries that its receiver settles without an outcome, or had not settled
when the source was gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqp_ext.codec import Described, Symbol, UInt, ULong, decode
from gateway.config import Vpn
from gateway.config.vpn import Queue
from tests.gateway.amqp.conftest import Start
from tests.gateway.amqp.spec.conftest import (
    MODIFIED,
    REJECTED,
    RELEASED,
    OpenedAt,
    ScriptedPeer,
    in_transaction,
)
from tests.support.frames import ACCEPTED, DETACH, DISPOSITION, END, TRANSFER, WINDOW, Frame, error_of, frame
from tests.support.messages import body_of, data

FLOW_STATE = [UInt(0), UInt(WINDOW), UInt(0), UInt(WINDOW)]
AGAIN, DEAD, GONE = "again", "dead", "gone"


def outcome(code: int, *fields: Any) -> Described:
    return Described(ULong(code), list(fields))


def source(address: str, default: Any, expiry: Any = None) -> list[Any]:
    return [address, None, expiry, *[None] * 5, default]


Open = Callable[[], ScriptedPeer]


@pytest.fixture
def open_peer(start: Start, opened_at: OpenedAt) -> Open:
    """Opens connections to a gateway with the queue `q`, whose dead messages go to `dead`."""
    gateway = start(vpn=Vpn(queues={"q": Queue(dead_message_queue="dead"), "dead": Queue()}))
    return lambda: opened_at(gateway)


def publish(peer: ScriptedPeer, body: bytes, *, number: int, handle: int = 0, to: str = "queue://q") -> None:
    """Send a message, the session's delivery of this number, over a link of its own."""
    peer.attach(handle, target=[to])
    peer.transfer(handle, number, data(body))
    assert peer.told() == ACCEPTED
    peer.detach(handle, closed=True)


def receive(peer: ScriptedPeer, handle: int, default: Any, *, address: str = "queue://q") -> Frame:
    """The first message, of a receiver whose source has this default outcome."""
    peer.attach(handle, receiver=True, source=source(address, default))
    peer.send(frame(0x13, [*FLOW_STATE, UInt(handle), UInt(0), UInt(1)]))
    return peer.skip_to(TRANSFER)


def failures_of(delivery: Frame) -> int:
    """The delivery-count of a message."""
    section, _ = decode(delivery.payload)
    header = section.value if section.descriptor == 0x70 else []
    return int([*header, *[None] * 5][4] or 0)


def end_of(peer: ScriptedPeer, *, number: int = 1) -> tuple[str, int]:
    """What became of the first message on `q`: again there, with so many failed deliveries; dead; or gone."""
    publish(peer, b"mark", number=number)
    found = receive(peer, 7, None)
    if body_of(found.payload) == b"one":
        return AGAIN, failures_of(found)
    peer.detach(7, closed=True)
    publish(peer, b"mark", number=number + 1, to="queue://dead")
    dead = receive(peer, 9, None, address="queue://dead")
    return (DEAD, 0) if body_of(dead.payload) == b"one" else (GONE, 0)


EACH = [
    (None, (AGAIN, 1)),
    (outcome(ACCEPTED), (GONE, 0)),
    (outcome(REJECTED), (DEAD, 0)),
    (outcome(RELEASED), (AGAIN, 0)),
    (outcome(MODIFIED), (AGAIN, 0)),
    (outcome(MODIFIED, True, False), (AGAIN, 1)),
    (Described(Symbol("amqp:accepted:list"), []), (GONE, 0)),
]


@pytest.mark.parametrize(("default", "end"), EACH)
def test_settled_without_an_outcome(open_peer: Open, default: Any, end: tuple[str, int]) -> None:
    """It gets the default outcome; none loses nothing, and counts as a failed delivery."""
    peer = open_peer()
    publish(peer, b"one", number=0)
    delivery = receive(peer, 1, default).field(1)
    peer.send(frame(DISPOSITION, [True, UInt(delivery), None, True, None]))
    assert end_of(peer) == end


@pytest.mark.parametrize(("default", "end"), EACH)
def test_settled_in_a_state_that_is_none_of_the_outcomes(
    open_peer: Open, default: Any, end: tuple[str, int]
) -> None:
    """Received is not terminal (3.4.1)."""
    peer = open_peer()
    publish(peer, b"one", number=0)
    delivery = receive(peer, 1, default).field(1)
    peer.send(frame(DISPOSITION, [True, UInt(delivery), None, True, outcome(0x23, UInt(0), ULong(0))]))
    assert end_of(peer) == end


@pytest.mark.parametrize("how", ["close", "end", "lost"])
@pytest.mark.parametrize(("default", "end"), EACH)
def test_unsettled_when_the_source_is_gone(
    open_peer: Open, default: Any, end: tuple[str, int], how: str
) -> None:
    """By a closed link, the end of its session, or a lost connection: a source expires with its session."""
    peer, other = open_peer(), open_peer()
    publish(other, b"one", number=0)
    receive(peer, 1, default)
    if how == "close":
        peer.detach(1, closed=True)
    elif how == "end":
        peer.send(frame(END, []))
        peer.skip_to(END)
    else:
        peer.sock.close()
    assert end_of(other) == end


def test_a_suspended_link_s_source_is_there(open_peer: Open) -> None:
    """What it has unsettled when its name is attached again comes again, whatever its default outcome is."""
    peer = open_peer()
    publish(peer, b"one", number=0)
    receive(peer, 1, outcome(ACCEPTED))
    peer.detach(1)
    assert body_of(receive(peer, 1, outcome(ACCEPTED)).payload) == b"one"


def test_the_end_of_a_durable_source_s_session_is_not_its_own(open_peer: Open) -> None:
    """A source that never expires is there when its session is not: what it had not settled comes again."""
    peer, other = open_peer(), open_peer()
    never = source("topic://t", outcome(ACCEPTED), Symbol("never"))
    peer.attach(1, receiver=True, source=never, name="mine")
    other.attach(0, target=["topic://t"])
    other.transfer(0, 0, data(b"one"))
    assert other.told() == ACCEPTED
    flow = frame(0x13, [*FLOW_STATE, UInt(1), UInt(0), UInt(1)])
    peer.send(flow)
    peer.skip_to(TRANSFER)
    peer.send(frame(END, []))
    peer.skip_to(END)
    peer.begin()
    peer.attach(1, receiver=True, source=never, name="mine")
    peer.send(flow)
    assert body_of(peer.skip_to(TRANSFER).payload) == b"one"


@pytest.mark.parametrize(("default", "end"), EACH)
def test_settled_in_a_transaction_that_is_rolled_back(
    open_peer: Open, default: Any, end: tuple[str, int]
) -> None:
    """Its controller can say nothing of it any more: the resource applies the default outcome (4.4.2)."""
    peer = open_peer()
    publish(peer, b"one", number=0)
    peer.attach_coordinator(2)
    txn_id = peer.declare(2, 1)
    delivery = receive(peer, 1, default).field(1)
    peer.disposition(delivery, in_transaction(txn_id, ACCEPTED), settled=True)
    assert peer.discharge(2, 2, txn_id, fail=True) == ACCEPTED
    peer.detach(1, closed=True)
    assert end_of(peer, number=3) == end


@pytest.mark.parametrize(
    ("default", "condition"),
    [
        ("amqp:accepted:list", "amqp:decode-error"),
        (outcome(0x23, UInt(0), ULong(0)), "amqp:invalid-field"),
        (Described(Symbol("vendor:parked:list"), []), "amqp:invalid-field"),
    ],
)
def test_a_default_outcome_that_is_none_is_refused(open_peer: Open, default: Any, condition: str) -> None:
    """It has to be one of the four."""
    peer = open_peer()
    peer.attach(0, receiver=True, source=source("queue://q", default))
    assert error_of(peer.skip_to(DETACH))[0] == condition
