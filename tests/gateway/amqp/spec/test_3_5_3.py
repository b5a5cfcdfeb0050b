"""
3.5.3 and 3.5.4, sources and targets: outcomes, the default-outcome, and fields of other types or with values that
there are not.

A default-outcome is of deliveries that a receiver settles without an outcome, or had not settled when the source was
gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqp_ext.codec import Array, Described, Symbol, UByte, UInt, ULong, decode
from gateway.config import Vpn
from gateway.config.vpn import Queue
from tests.gateway.amqp.conftest import Start
from tests.gateway.amqp.spec.conftest import (
    MODIFIED,
    REJECTED,
    RELEASED,
    Opened,
    OpenedAt,
    ScriptedPeer,
    in_transaction,
)
from tests.support.frames import (
    ACCEPTED,
    ATTACH,
    DETACH,
    DISPOSITION,
    END,
    TRANSFER,
    WINDOW,
    Frame,
    error_of,
    frame,
)
from tests.support.messages import body_of, data

ACCEPTED_NAME, REJECTED_NAME = Symbol("amqp:accepted:list"), Symbol("amqp:rejected:list")
ALL = [ACCEPTED_NAME, REJECTED_NAME, Symbol("amqp:released:list"), Symbol("amqp:modified:list")]


def knowing(address: str | None, outcomes: Any) -> list[Any]:
    return [address, *[None] * 8, outcomes]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (None, ALL),
        (Array([ACCEPTED_NAME, Symbol("vendor:parked:list")]), [ACCEPTED_NAME]),
        (REJECTED_NAME, [REJECTED_NAME]),
    ],
)
def test_a_receiver_is_told_the_outcomes_that_it_may_choose(opened: Opened, asked: Any, said: Any) -> None:
    """All that there are, or those of them that it asks for."""
    answer = opened().attach(0, receiver=True, source=knowing("queue://q", asked))
    assert list(answer.field(5).value[9]) == said


def test_a_sender_s_source_is_told_back(opened: Opened) -> None:
    """With its outcomes, or empty; its sender knows that it has one."""
    peer = opened()
    listed = Array([ACCEPTED_NAME])
    answer = peer.attach(0, source=knowing("mine", listed), target=["queue://q"])
    assert (answer.field(5).value[0], list(answer.field(5).value[9])) == ("mine", [ACCEPTED_NAME])
    assert peer.attach(1, source=[], target=["queue://q"]).field(5) is not None


@pytest.mark.parametrize("listed", ["text", 7, [Symbol("vendor:parked:list")]])
def test_outcomes_that_are_none_are_refused(opened: Opened, listed: Any) -> None:
    """By the name of the field."""
    peer = opened()
    peer.attach(0, source=knowing(None, listed), target=["queue://q"])
    assert error_of(peer.skip_to(DETACH))[0] == "amqp:invalid-field"


@pytest.fixture
def to_a_full_queue(start: Start, opened_at: Any) -> Any:
    """Attaches a sender whose messages are not taken, with these outcomes; the peer."""
    gateway = start(vpn=Vpn(queues={"q": Queue(quota_messages=1)}))

    def attach(*outcomes: Symbol) -> ScriptedPeer:
        peer: ScriptedPeer = opened_at(gateway)
        peer.attach(0, source=knowing(None, Array(outcomes)), target=["queue://q"])
        peer.transfer(0, 0, data(b"fits"))
        assert peer.told() == ACCEPTED
        peer.transfer(0, 1, data(b"does not fit"))
        return peer

    return attach


@pytest.mark.parametrize("knows_rejection", [True, False])
def test_a_message_that_is_not_taken_is_rejected(to_a_full_queue: Any, knows_rejection: bool) -> None:
    """Where the source knows that outcome; else the link is detached with the error that it would have."""
    if knows_rejection:
        assert to_a_full_queue(ACCEPTED_NAME, REJECTED_NAME).told() == "amqp:resource-limit-exceeded"
    else:
        assert error_of(to_a_full_queue(ACCEPTED_NAME).skip_to(DETACH))[0] == "amqp:resource-limit-exceeded"


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


@pytest.mark.parametrize("state", [None, outcome(0x23, UInt(0), ULong(0))], ids=["none", "received"])
@pytest.mark.parametrize(("default", "end"), EACH)
def test_settled_without_an_outcome(open_peer: Open, default: Any, end: tuple[str, int], state: Any) -> None:
    """It gets the default outcome; none loses nothing, and counts as a failed delivery. Received is none (3.4.1)."""
    peer = open_peer()
    publish(peer, b"one", number=0)
    delivery = receive(peer, 1, default).field(1)
    peer.send(frame(DISPOSITION, [True, UInt(delivery), None, True, state]))
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


DECODE_ERROR, INVALID_FIELD = "amqp:decode-error", "amqp:invalid-field"
ADDRESS, DURABLE, EXPIRY, TIMEOUT, DYNAMIC, PROPERTIES, MODE, FILTER, _, _, CAPABILITIES = range(11)
TARGET_CAPABILITIES = 6

OF_BOTH = [
    (ADDRESS, 7, DECODE_ERROR),
    (ADDRESS, Symbol("queue://q"), DECODE_ERROR),
    (ADDRESS, b"queue://q", DECODE_ERROR),
    (DURABLE, "yes", DECODE_ERROR),
    (DURABLE, UByte(1), DECODE_ERROR),
    (DURABLE, UInt(3), INVALID_FIELD),
    (EXPIRY, "never", DECODE_ERROR),
    (EXPIRY, Symbol("tomorrow"), INVALID_FIELD),
    (TIMEOUT, "soon", DECODE_ERROR),
    (DYNAMIC, UInt(1), DECODE_ERROR),
    (PROPERTIES, [], DECODE_ERROR),
    (PROPERTIES, {"lifetime-policy": Described(ULong(0x2B), [])}, DECODE_ERROR),
    (PROPERTIES, {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}, INVALID_FIELD),
]


def terminus(index: int, value: Any) -> list[Any]:
    fields: list[Any] = ["queue://q", *[None] * 10]
    fields[index] = value
    return fields[: max(index, 0) + 1]


OF_SOURCES = [
    *OF_BOTH,
    (MODE, "move", DECODE_ERROR),
    (MODE, Symbol("steal"), INVALID_FIELD),
    (FILTER, ["selector"], DECODE_ERROR),
    (FILTER, {"selector": "a = 1"}, DECODE_ERROR),
    (CAPABILITIES, "queue", DECODE_ERROR),
    (CAPABILITIES, ["queue"], DECODE_ERROR),
    (CAPABILITIES, {Symbol("queue"): True}, DECODE_ERROR),
]
OF_TARGETS = [
    *OF_BOTH,
    (TARGET_CAPABILITIES, "queue", DECODE_ERROR),
    (TARGET_CAPABILITIES, ["queue"], DECODE_ERROR),
]


@pytest.mark.parametrize("receiver", [True, False])
def test_a_source(opened: Opened, receiver: bool) -> None:
    """Of a receiver, and of a sender, whose own it is."""
    for index, value, condition in OF_SOURCES:
        peer = opened()
        peer.attach(0, receiver=receiver, source=terminus(index, value), target=["queue://q"])
        refused = peer.skip_to(DETACH, never=END)
        assert error_of(refused)[0] == condition, (index, value)
        assert refused.field(2).value[2][Symbol("field")]
        peer.attach(1, receiver=True, source=["queue://q"])


def test_a_target(opened: Opened) -> None:
    """The attach is answered without one, and detached; its session goes on."""
    for index, value, condition in OF_TARGETS:
        peer = opened()
        answer = peer.attach(0, target=terminus(index, value))
        assert answer.field(6) is None
        assert error_of(peer.skip_to(DETACH, never=END))[0] == condition, (index, value)
        peer.attach(1, target=["queue://q"])
        peer.transfer(1, 0, data(b"one"))
        peer.told()


def test_all_that_there_is_may_be_said(opened: Opened) -> None:
    """Each field with a value of its type."""
    peer = opened()
    said = [
        "queue://q",
        UInt(0),
        Symbol("session-end"),
        UInt(0),
        False,
        {},
        Symbol("move"),
        {},
        Described(ULong(0x26), []),
        Array([Symbol("amqp:accepted:list")]),
        Array([Symbol("queue")]),
    ]
    assert peer.attach(0, receiver=True, source=said).field(5) is not None


def test_a_source_that_is_no_list(opened: Opened) -> None:
    """There is nothing to be read in it."""
    peer = opened()
    peer.send(frame(ATTACH, ["n", UInt(0), True, None, None, Described(ULong(0x28), {})]))
    peer.skip_to(ATTACH)
    assert error_of(peer.skip_to(DETACH))[0] == DECODE_ERROR


@pytest.mark.parametrize("receiver", [True, False])
def test_a_link_without_the_peer_s_own_end_is_refused(opened: Opened, receiver: bool) -> None:
    """2.6.3: where a receiver's target, or a sender's source, is null, so is our side, and the link is detached."""
    peer = opened()
    there = Described(ULong(0x28 if receiver else 0x29), ["queue://q"])
    ends = [there, None] if receiver else [None, there]
    peer.send(frame(ATTACH, ["n", UInt(0), receiver, None, None, *ends, None, None, UInt(0)]))
    answer = peer.skip_to(ATTACH)
    assert (answer.field(5), answer.field(6)) == (None, None)
    refused = peer.skip_to(DETACH, never=END)
    assert error_of(refused)[0] == INVALID_FIELD
    assert refused.field(2).value[2] == {Symbol("field"): "target" if receiver else "source"}
    peer.attach(1, target=["queue://q"])


def test_received_is_no_outcome(open_peer: Open) -> None:
    """3.4.1: the delivery stays unsettled, later ones go on, and it may be accepted."""
    peer = open_peer()
    for number, body in enumerate((b"one", b"two")):
        publish(peer, body, number=number)
    delivery = receive(peer, 1, None).field(1)
    peer.send(frame(DISPOSITION, [True, UInt(delivery), None, False, outcome(0x23, UInt(0), ULong(0))]))
    peer.send(frame(0x13, [*FLOW_STATE, UInt(1), UInt(1), UInt(1)]))
    assert body_of(peer.skip_to(TRANSFER).payload) == b"two"
    peer.send(frame(DISPOSITION, [True, UInt(delivery), None, False, outcome(ACCEPTED)]))
    told = peer.skip_to(DISPOSITION)
    assert (told.field(1), told.field(4).descriptor) == (delivery, ACCEPTED)
