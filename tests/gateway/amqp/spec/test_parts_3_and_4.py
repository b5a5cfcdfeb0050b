"""AMQP 1.0, parts 3 and 4, and the anonymous terminus: sources, targets and transactions, in raw frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqp_ext.codec import Array, Described, Symbol, UByte, UInt, ULong, decode, encode
from gateway.config import Limits, Vpn
from gateway.config.vpn import Queue
from tests.gateway.amqp.conftest import Start
from tests.gateway.amqp.spec.conftest import (
    DISCHARGE,
    MODIFIED,
    REJECTED,
    RELEASED,
    TRANSACTIONAL,
    Opened,
    OpenedAt,
    ScriptedPeer,
    in_transaction,
)
from tests.support.frames import (
    ACCEPTED,
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    TRANSFER,
    WINDOW,
    Frame,
    attach_frame,
    begin_frame,
    error_of,
    flow_frame,
    frame,
)
from tests.support.messages import PROPERTIES, body_of, data, section
from tests.support.running import RunningGateway

# --- 3.5.3 and 3.5.4, sources and targets -----------------------------------------------------------------------------

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
    """All outcomes, or those of them that its attach lists."""
    answer = opened().attach(0, receiver=True, source=knowing("queue://q", asked))
    assert list(answer.field(5).value[9]) == said


def test_a_sender_s_source_is_told_back(opened: Opened) -> None:
    """With its outcomes, or empty: the answer has a source, as the attach has."""
    peer = opened()
    listed = Array([ACCEPTED_NAME])
    answer = peer.attach(0, source=knowing("mine", listed), target=["queue://q"])
    assert (answer.field(5).value[0], list(answer.field(5).value[9])) == ("mine", [ACCEPTED_NAME])
    assert peer.attach(1, source=[], target=["queue://q"]).field(5) is not None


@pytest.mark.parametrize("listed", ["text", 7, [Symbol("vendor:parked:list")]])
def test_outcomes_that_are_none_are_refused(opened: Opened, listed: Any) -> None:
    """A list without any known outcome is an invalid field."""
    peer = opened()
    peer.attach(0, source=knowing(None, listed), target=["queue://q"])
    assert error_of(peer.skip_to(DETACH))[0] == "amqp:invalid-field"


@pytest.fixture
def to_a_full_queue(start: Start, opened_at: Any) -> Any:
    """Attaches a sender with these outcomes, whose second message does not fit on its queue; the peer."""
    gateway = start(vpn=Vpn(queues={"q": Queue(quota_messages=1)}))

    def attach(*outcomes: Symbol) -> ScriptedPeer:
        peer: ScriptedPeer = opened_at(gateway)
        peer.attach(0, source=knowing(None, Array(outcomes)), target=["queue://q"])
        peer.put(0, 0, b"fits")
        peer.transfer(0, 1, data(b"does not fit"))
        return peer

    return attach


@pytest.mark.parametrize("knows_rejection", [True, False])
def test_a_message_that_is_not_taken_is_rejected(to_a_full_queue: Any, knows_rejection: bool) -> None:
    """If the source lists that outcome; otherwise the link is detached with the same error."""
    if knows_rejection:
        assert to_a_full_queue(ACCEPTED_NAME, REJECTED_NAME).told() == "amqp:resource-limit-exceeded"
    else:
        assert error_of(to_a_full_queue(ACCEPTED_NAME).skip_to(DETACH))[0] == "amqp:resource-limit-exceeded"


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
    """Send a message, the session's delivery ``number``, over a link of its own."""
    peer.attach(handle, target=[to])
    peer.put(handle, number, body)
    peer.detach(handle, closed=True)


def receive(peer: ScriptedPeer, handle: int, default: Any, *, address: str = "queue://q") -> Frame:
    """The first message for a receiver whose source has this default outcome."""
    return peer.first(handle, source=source(address, default))


def failures_of(delivery: Frame) -> int:
    """The delivery-count of a message."""
    section, _ = decode(delivery.payload)
    header = section.value if section.descriptor == 0x70 else []
    return int([*header, *[None] * 5][4] or 0)


def end_of(peer: ScriptedPeer, *, number: int = 1) -> tuple[str, int]:
    """What became of the first message on `q`: there again, with this delivery-count; dead; or gone."""
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
    """
    The default outcome applies; without one the message comes again, counted as failed. Received is no outcome (3.4.1).
    """
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
    """After a close, the end of its session, or a lost connection, the default outcome applies."""
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
    """Unsettled messages come again when its name is attached again, whatever its default outcome is."""
    peer = open_peer()
    publish(peer, b"one", number=0)
    receive(peer, 1, outcome(ACCEPTED))
    peer.detach(1)
    assert body_of(receive(peer, 1, outcome(ACCEPTED)).payload) == b"one"


def test_the_end_of_a_durable_source_s_session_is_not_its_own(open_peer: Open) -> None:
    """A source that never expires outlives its session: what it had not settled comes again."""
    peer, other = open_peer(), open_peer()
    never = source("topic://t", outcome(ACCEPTED), Symbol("never"))
    peer.attach(1, receiver=True, source=never, name="mine")
    other.attach(0, target=["topic://t"])
    other.put(0, 0, b"one")
    peer.send(flow_frame(1, 0, 1))
    peer.skip_to(TRANSFER)
    peer.send(frame(END, []))
    peer.skip_to(END)
    peer.begin()
    assert body_of(peer.first(1, source=never, name="mine").payload) == b"one"


@pytest.mark.parametrize(("default", "end"), EACH)
def test_settled_in_a_transaction_that_is_rolled_back(
    open_peer: Open, default: Any, end: tuple[str, int]
) -> None:
    """The controller can give it no other outcome any more: the resource applies the default outcome (4.4.2)."""
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
    """It has to be one of the four outcomes."""
    peer = open_peer()
    peer.attach(0, receiver=True, source=source("queue://q", default))
    assert error_of(peer.skip_to(DETACH))[0] == condition


def test_nothing_is_taken_behind_a_message_that_detaches_its_link(
    gateway: RunningGateway, opened: Opened
) -> None:
    """
    A source without the outcome rejected: the link is detached at the first message that is none, and the messages
    behind it, which came in the same read, get no outcome and are nowhere.
    """
    peer = opened()
    peer.attach(0, source=knowing(None, ACCEPTED_NAME), target=["queue://q"])
    peer.skip_to(FLOW)
    tags = enumerate((data(b"one"), b"no message", data(b"three")))
    peer.send(b"".join(frame(TRANSFER, [UInt(0), UInt(n), b"%d" % n, UInt(0)], raw) for n, raw in tags))
    assert error_of(peer.skip_to(DETACH))[0] == "amqp:decode-error"
    assert gateway.depth("q") == 1


DECODE_ERROR, INVALID_FIELD = "amqp:decode-error", "amqp:invalid-field"
ADDRESS, DURABLE, EXPIRY, TIMEOUT, DYNAMIC, NODE_PROPERTIES, MODE, FILTER, _, _, CAPABILITIES = range(11)
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
    (NODE_PROPERTIES, [], DECODE_ERROR),
    (NODE_PROPERTIES, {"lifetime-policy": Described(ULong(0x2B), [])}, DECODE_ERROR),
    (NODE_PROPERTIES, {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}, INVALID_FIELD),
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
    """Each wrong field is refused, in the source of a receiver and in a sender's own."""
    for index, value, condition in OF_SOURCES:
        peer = opened()
        peer.attach(0, receiver=receiver, source=terminus(index, value), target=["queue://q"])
        refused = peer.skip_to(DETACH, never=END)
        assert error_of(refused)[0] == condition, (index, value)
        assert refused.field(2).value[2][Symbol("field")]
        peer.attach(1, receiver=True, source=["queue://q"])


def test_a_target(opened: Opened) -> None:
    """With a wrong field, the attach is answered without a target, and detached; its session goes on."""
    for index, value, condition in OF_TARGETS:
        peer = opened()
        answer = peer.attach(0, target=terminus(index, value))
        assert answer.field(6) is None
        assert error_of(peer.skip_to(DETACH, never=END))[0] == condition, (index, value)
        peer.attach(1, target=["queue://q"])
        peer.transfer(1, 0, data(b"one"))
        peer.told()


def test_all_that_there_is_may_be_said(opened: Opened) -> None:
    """Each field of a source may have a value of its type."""
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
    """It is a decode error."""
    peer = opened()
    peer.send(frame(ATTACH, ["n", UInt(0), True, None, None, Described(ULong(0x28), {})]))
    peer.skip_to(ATTACH)
    assert error_of(peer.skip_to(DETACH))[0] == DECODE_ERROR


@pytest.mark.parametrize("receiver", [True, False])
def test_a_link_without_the_peer_s_own_end_is_refused(opened: Opened, receiver: bool) -> None:
    """2.6.3: if a receiver's target or a sender's source is null, so is our side, and the link is detached."""
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
    peer.send(flow_frame(1, 1, 1))
    assert body_of(peer.skip_to(TRANSFER).payload) == b"two"
    peer.send(frame(DISPOSITION, [True, UInt(delivery), None, False, outcome(ACCEPTED)]))
    told = peer.skip_to(DISPOSITION)
    assert (told.field(1), told.field(4).descriptor) == (delivery, ACCEPTED)


# --- 3.5.10 and 3.5.6: how long a dynamic node lives, and what the answer says of it ----------------------------------

DELETE_ON_CLOSE = {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}
SESSION_END = Symbol("session-end")


def dynamic(*, durable: int = 0, expiry: Any = None, address: Any = None) -> list[Any]:
    return [address, UInt(durable), expiry, None, True, DELETE_ON_CLOSE]


@pytest.mark.parametrize("receiver", [True, False])
def test_a_detach_does_not_delete_what_a_close_would(
    gateway: RunningGateway, opened: Opened, receiver: bool
) -> None:
    """A suspended link keeps its node; attached again by its name and closed, the link is gone with its node."""
    peer = opened()
    end = "source" if receiver else "target"
    answer = peer.attach(0, receiver=receiver, name="mine", **{end: dynamic()})  # type: ignore[arg-type]
    address = answer.field(5 if receiver else 6).value[0]
    peer.detach(0)
    other = opened()
    other.attach(0, target=[address])
    other.put(0, 0, b"still there")
    peer.attach(0, receiver=receiver, name="mine", **{end: [address]})  # type: ignore[arg-type]
    assert gateway.endpoints() == {address.removeprefix("queue://")}
    peer.detach(0, closed=True)
    assert error_of(other.skip_to(DETACH))[0] == "amqp:resource-deleted"
    assert gateway.endpoints() == set()


def test_the_end_of_the_session_ends_a_suspended_link(gateway: RunningGateway, opened: Opened) -> None:
    """The link's node is deleted with it."""
    peer = opened()
    peer.attach(0, receiver=True, source=dynamic())
    peer.detach(0)
    assert len(gateway.endpoints()) == 1
    peer.send(frame(END, []))
    peer.skip_to(END)
    assert gateway.endpoints() == set()
    peer.send(begin_frame(), frame(CLOSE, []))
    peer.skip_to(BEGIN)


def test_a_link_that_expires_with_its_detach_is_not_suspended(
    gateway: RunningGateway, opened: Opened
) -> None:
    """With the expiry-policy link-detach, the detach deletes the node."""
    peer = opened()
    answer = peer.attach(0, receiver=True, source=dynamic(expiry=Symbol("link-detach")))
    assert answer.field(5).value[2] == "link-detach"
    peer.detach(0)
    assert gateway.endpoints() == set()


@pytest.mark.parametrize("expiry", [None, SESSION_END, Symbol("connection-close"), Symbol("never")])
def test_what_is_said_of_a_dynamic_node_is_what_holds(opened: Opened, expiry: Any) -> None:
    """It is not durable, and deleted with its session at the latest, whatever was asked for."""
    source = opened().attach(0, receiver=True, source=dynamic(durable=2, expiry=expiry)).field(5).value
    assert source[1] in (None, 0)
    assert source[2] in (None, SESSION_END)


def test_an_address_beside_dynamic_is_refused(opened: Opened) -> None:
    """A dynamic source or target has no address yet (3.5.3)."""
    peer = opened()
    peer.attach(0, receiver=True, source=dynamic(address="queue://q"))
    assert error_of(peer.skip_to(DETACH))[0] == "amqp:invalid-field"


@pytest.mark.parametrize("kind", ["temporary-queue", "temporary-topic"])
def test_a_temporary_node_is_its_own_connection_s(opened: Opened, kind: str) -> None:
    """
    A node with JMS's capabilities: others that know its name may send to it, and not receive (JMS 2.0, section 6.2.2).
    """
    peer = opened()
    target = [*dynamic(), Symbol(kind)]
    address = peer.attach(0, target=target).field(6).value[0]
    peer.attach(1, receiver=True, source=[address])
    other = opened()
    other.attach(1, target=[address])
    other.attach(0, receiver=True, source=[address])
    assert error_of(other.skip_to(DETACH))[0] == "amqp:unauthorized-access"


def test_a_temporary_topic_that_is_gone_is_unknown(opened: Opened) -> None:
    """An attach to its name is refused; an attached sender is told at its next message, and so is the relay's."""
    peer, other = opened(), opened()
    address = peer.attach(0, target=[*dynamic(), Symbol("temporary-topic")]).field(6).value[0]
    other.attach(0, target=[address])
    other.attach(1, target=[None])
    to = section(PROPERTIES, [None, None, address])
    other.transfer(1, 0, to + data(b"!"))
    assert other.told() == ACCEPTED
    peer.detach(0, closed=True)
    other.transfer(1, 1, to + data(b"!"))
    assert other.told() == "amqp:not-found"
    other.transfer(0, 2, data(b"!"))
    assert other.told() == "amqp:resource-deleted"
    assert error_of(other.skip_to(DETACH))[0] == "amqp:resource-deleted"
    for receiver in (True, False):
        other.attach(2 + receiver, receiver=receiver, **{"source" if receiver else "target": [address]})
        assert error_of(other.skip_to(DETACH))[0] == "amqp:not-found"


@pytest.mark.parametrize("kind", ["temporary-queue", "temporary-topic"])
def test_node_properties_may_be_said_again_of_a_node_that_the_connection_made(
    opened: Opened, kind: str
) -> None:
    """
    JMS clients repeat them in the source of a consumer that is not dynamic. For another connection's node, or for one
    that was not made dynamically, they are refused.
    """
    peer = opened()
    address = peer.attach(0, target=[*dynamic(), Symbol(kind)]).field(6).value[0]
    again = [address, UInt(0), None, None, False, DELETE_ON_CLOSE]
    assert peer.attach(1, receiver=True, source=again).field(5).value[0] == address
    other = opened()
    for handle, source in enumerate((again, ["queue://q", *again[1:]], [None, *again[1:]])):
        other.attach(handle, receiver=True, source=source)
        refused = error_of(other.skip_to(DETACH))
        assert refused[0] == "amqp:invalid-field"
        assert refused[1].startswith("dynamic-node-properties are for a source that is dynamic")
    peer.attach(2, receiver=True, source=["queue://q"], target=again)
    assert error_of(peer.skip_to(DETACH))[0] == "amqp:invalid-field"


# --- 4.3 and 4.4, transactions ----------------------------------------------------------------------------------------

UNKNOWN, ROLLBACK = "amqp:transaction:unknown-id", "amqp:transaction:rollback"
CONTROLLER, PUBLISHER = 0, 1


@pytest.mark.parametrize("outcomes", [(), ("amqp:accepted:list", "amqp:rejected:list")])
def test_a_controller_that_knows_rejected_is_told_by_it(opened: Opened, outcomes: tuple[str, ...]) -> None:
    """So is one whose source lists no outcomes: the known clients that list none do know it."""
    peer = opened()
    peer.attach_coordinator(CONTROLLER, *outcomes)
    assert peer.discharge(CONTROLLER, 0, b"no such transaction") == UNKNOWN
    assert isinstance(peer.declare(CONTROLLER, 1), bytes)


@pytest.mark.parametrize(("discharged", "condition"), [(b"no such transaction", UNKNOWN), (None, ROLLBACK)])
def test_a_controller_that_does_not_know_rejected_is_detached(
    opened: Opened, discharged: bytes | None, condition: str
) -> None:
    """
    The detach has the transaction's error: of the discharge itself, or of a commit with a message that was refused.
    """
    peer = opened()
    peer.attach_coordinator(CONTROLLER, "amqp:accepted:list")
    txn_id = peer.declare(CONTROLLER, 0)
    peer.attach(PUBLISHER, target=[None])
    peer.transfer(PUBLISHER, 1, data(b"without an address"), state=in_transaction(txn_id), settled=True)
    peer.control(CONTROLLER, 2, DISCHARGE, [discharged or txn_id, False])
    assert error_of(peer.skip_to(DETACH))[0] == condition


def test_a_coordinator_that_is_detached_keeps_its_transactions(opened: Opened) -> None:
    """When the link is attached again, they can be discharged; when it is closed, they are rolled back."""
    peer = opened()
    peer.attach_coordinator(CONTROLLER, name="controller")
    first, second = peer.declare(CONTROLLER, 0), peer.declare(CONTROLLER, 1)
    peer.detach(CONTROLLER)
    peer.attach_coordinator(CONTROLLER, name="controller")
    assert peer.discharge(CONTROLLER, 2, first) == ACCEPTED
    peer.detach(CONTROLLER, closed=True)
    peer.attach_coordinator(CONTROLLER, name="controller")
    assert peer.discharge(CONTROLLER, 3, second) == UNKNOWN


COORDINATOR, RECEIVER, SENDER = 0, 1, 2


def with_a_delivery(opened: Opened) -> tuple[ScriptedPeer, bytes, int]:
    """A peer that got the first of a queue's two messages; the id of its transaction, and the delivery-id."""
    peer = opened()
    peer.attach_coordinator(COORDINATOR)
    txn_id = peer.declare(COORDINATOR, 0)
    peer.attach(SENDER, target=["queue://q"])
    for number, body in ((1, b"first"), (2, b"second")):
        peer.put(SENDER, number, body)
    transfer = peer.first(RECEIVER, source=["queue://q"])
    assert body_of(transfer.payload) == b"first"
    return peer, txn_id, int(transfer.field(1))


def next_of_queue(opened: Opened) -> bytes:
    """The first message that another connection gets."""
    other = opened()
    other.attach_receiver("queue://q", credit=1)
    return other.receive()


@pytest.mark.parametrize(
    ("is_said_first", "settled", "closed", "fail", "discharged", "left"),
    [
        (False, False, False, False, ACCEPTED, b"second"),
        (True, True, False, False, ACCEPTED, b"second"),
        (False, True, False, True, ACCEPTED, b"first"),
        (True, False, True, False, ROLLBACK, b"first"),
        (False, True, True, False, ROLLBACK, b"first"),
    ],
    ids=["detached", "settled before", "rolled back", "closed", "closed before"],
)
def test_a_delivery_of_a_link_that_was_detached(
    opened: Opened,
    is_said_first: bool,
    settled: bool,
    closed: bool,
    fail: bool,
    discharged: Any,
    left: bytes,
) -> None:
    """
    A link that is detached and not closed still has its deliveries unsettled (2.6.3): the commit settles them, or a
    rollback brings them back. A closed link does not exist any more: the message has gone back, and the commit fails,
    also if the disposition came after the detach, which the engine does not report.
    """
    peer, txn_id, delivery = with_a_delivery(opened)
    steps = [
        lambda: peer.disposition(delivery, in_transaction(txn_id, ACCEPTED), settled=settled),
        lambda: peer.detach(RECEIVER, closed=closed),
    ]
    for step in steps if is_said_first else reversed(steps):
        step()
    assert peer.discharge(COORDINATOR, 3, txn_id, fail=fail) == discharged
    if not settled and not closed:
        told = peer.skip_to(DISPOSITION)
        assert (told.field(0), told.field(1), told.field(3)) == (False, delivery, True)
    assert next_of_queue(opened) == left


def test_a_detached_link_s_delivery_is_settled_outside_of_transactions_as_well(opened: Opened) -> None:
    """Given back as failed, it goes to another consumer; until then nobody else has it."""
    peer, _, delivery = with_a_delivery(opened)
    peer.detach(RECEIVER)
    other = opened()
    other.attach_receiver("queue://q", credit=2)
    assert other.receive() == b"second"
    peer.disposition(delivery, Described(ULong(MODIFIED), [True]), settled=True)
    assert other.receive() == b"first"


def test_what_a_reader_says_in_a_transaction_fails_none(opened: Opened) -> None:
    """Outcomes of a log reader settle nothing, and do not make the commit fail."""
    peer, txn_id, _ = with_a_delivery(opened)
    read = peer.first(3, source=["log://>?replay-start=beginning"])
    peer.disposition(int(read.field(1)), in_transaction(txn_id, ACCEPTED))
    assert peer.discharge(COORDINATOR, 3, txn_id) == ACCEPTED


def test_suspended_links_count_as_links(start: Start, opened_at: OpenedAt) -> None:
    """A peer that detaches without settling holds no more links than it may attach."""
    peer = opened_at(start(limits=Limits(max_links_per_session=4)))
    peer.attach(SENDER, target=["queue://q"])
    for number in range(6):
        peer.put(SENDER, number, b"x")
    for number in range(3):
        peer.first(RECEIVER, source=["queue://q"], name=f"receiver-{number}")
        peer.detach(RECEIVER)
    peer.send(attach_frame(RECEIVER, receiver=True, address="queue://q", name="one more"))
    assert error_of(peer.skip_to(CLOSE))[0] == "amqp:resource-limit-exceeded"


SESSION_STATE = [UInt(0), UInt(WINDOW), UInt(0), UInt(WINDOW)]


def test_a_flow_in_a_transaction_detaches_its_link(opened: Opened) -> None:
    """Otherwise its messages would be acquired outside of the transaction, and a rollback would not give them back."""
    peer = opened()
    peer.attach_coordinator(0)
    txn_id = peer.declare(0, 0)
    peer.attach(1, receiver=True, source=["queue://q"])
    properties = {Symbol("txn-id"): txn_id}
    peer.send(
        frame(FLOW, [*SESSION_STATE, UInt(1), UInt(0), UInt(1), None, None, None, {Symbol("other"): 1}]),
        frame(FLOW, [*SESSION_STATE, UInt(1), UInt(0), UInt(1), None, None, None, properties]),
    )
    detach = peer.skip_to(DETACH)
    assert detach.field(1) is True
    assert error_of(detach)[0] == "amqp:not-implemented"


@pytest.mark.parametrize(
    ("again", "fail", "left"),
    [
        (4_000_000_000_000, False, b"second"),
        (4_000_000_000_000, True, b"first"),
        ("soon", False, b"first"),
    ],
    ids=["committed", "rolled back", "no time"],
)
def test_a_delivery_is_modified_until_a_time(opened: Opened, again: Any, fail: bool, left: bytes) -> None:
    """In a transaction it waits from the commit on; a bad time detaches the link, and is no part of the transaction."""
    peer, txn_id, delivery = with_a_delivery(opened)
    outcome = Described(ULong(MODIFIED), [True, False, {Symbol("x-opt-delivery-time"): again}])
    state = Described(in_transaction(txn_id).descriptor, [txn_id, outcome])
    peer.disposition(delivery, state, settled=True)
    assert peer.discharge(COORDINATOR, 3, txn_id, fail=fail) == ACCEPTED
    assert next_of_queue(opened) == left


# --- "Using the Anonymous Terminus for Message Routing" (OASIS), section 2.2.2 ----------------------------------------

RELAY = 1
ACCEPTED_ONLY = [*[None] * 9, Array([Symbol("amqp:accepted:list")])]
NOWHERE = "queue://not there/"


def to(address: str) -> bytes:
    """A message with this `to`."""
    return encode(Described(ULong(0x73), [None, None, address])) + data(b"x")


def sent_nowhere(
    peer: ScriptedPeer, *, source: Any = None, settled: bool = False
) -> tuple[ScriptedPeer, bytes]:
    """Send a message to a bad address in a transaction; the peer and the transaction's id."""
    peer.attach_coordinator(COORDINATOR)
    txn_id = peer.declare(COORDINATOR, 0)
    peer.attach(RELAY, source=source, target=[None])
    peer.transfer(RELAY, 1, to(NOWHERE), state=in_transaction(txn_id), settled=settled)
    return peer, txn_id


def tag_in(error: Any) -> bytes:
    """The delivery-tag in an error's info."""
    info = error.value[2]
    assert isinstance(info, dict)
    return bytes(info["delivery-tag"])


def test_a_rejected_message_is_named_by_its_tag(opened: Opened) -> None:
    """In the error's info; messages before and after it are accepted."""
    peer = opened()
    peer.attach(RELAY, target=[None])
    for number, address in enumerate(["queue://q", NOWHERE, "queue://q"]):
        peer.transfer(RELAY, number, to(address))
    told = {}
    while len(told) < 3:
        frame = peer.skip_to(DISPOSITION)
        for number in range(frame.field(1), frame.field(2, frame.field(1)) + 1):
            told[number] = frame.field(4)
    assert [told[number].descriptor for number in range(3)] == [ACCEPTED, REJECTED, ACCEPTED]
    assert tag_in(told[1].value[0]) == (1).to_bytes(4, "big")


@pytest.mark.parametrize("settled", [True, False])
def test_where_no_rejection_can_be_said_the_link_is_detached(opened: Opened, settled: bool) -> None:
    """The sender has settled the message, or its source does not list the outcome."""
    peer = opened()
    peer.attach(RELAY, source=[] if settled else ACCEPTED_ONLY, target=[None])
    peer.transfer(RELAY, 0, to("queue://q"), settled=settled)
    peer.transfer(RELAY, 1, to(NOWHERE), settled=settled)
    detach = peer.skip_to(DETACH)
    assert error_of(detach)[0] == "amqp:invalid-field"
    assert tag_in(detach.field(2)) == (1).to_bytes(4, "big")


def test_in_a_transaction_the_rejection_is_the_provisional_outcome(opened: Opened) -> None:
    """It has the delivery-tag, too."""
    peer, _ = sent_nowhere(opened())
    state = peer.skip_to(DISPOSITION).field(4)
    assert (state.descriptor, state.value[1].descriptor) == (TRANSACTIONAL, REJECTED)
    assert tag_in(state.value[1].value[0]) == (1).to_bytes(4, "big")


def test_in_a_transaction_without_a_rejection_the_link_is_detached(opened: Opened) -> None:
    """And the commit fails."""
    peer, txn_id = sent_nowhere(opened(), source=ACCEPTED_ONLY)
    assert tag_in(peer.skip_to(DETACH).field(2)) == (1).to_bytes(4, "big")
    assert peer.discharge(COORDINATOR, 2, txn_id) == "amqp:transaction:rollback"


def test_a_settled_message_in_a_transaction_fails_that_and_nothing_else(opened: Opened) -> None:
    """The discharge reports it; the link stays attached."""
    peer, txn_id = sent_nowhere(opened(), settled=True)
    assert peer.discharge(COORDINATOR, 2, txn_id) == "amqp:transaction:rollback"
    peer.transfer(RELAY, 3, to("queue://q"))
    assert peer.told() == ACCEPTED
