"""
4.3 and 4.4, transactions: their discharge, retirement in one (4.4.2), and acquisition in one (4.4.3), which is not
there.
"""

from __future__ import annotations

from typing import Any

import pytest

from amqp_ext.codec import Described, Symbol, UInt, ULong
from gateway.config import Limits
from tests.gateway.amqp.conftest import Start
from tests.gateway.amqp.spec.conftest import (
    DISCHARGE,
    MODIFIED,
    Opened,
    OpenedAt,
    ScriptedPeer,
    in_transaction,
)
from tests.support.frames import (
    ACCEPTED,
    CLOSE,
    DETACH,
    DISPOSITION,
    FLOW,
    TRANSFER,
    WINDOW,
    attach_frame,
    error_of,
    flow_frame,
    frame,
)
from tests.support.messages import body_of, data

UNKNOWN, ROLLBACK = "amqp:transaction:unknown-id", "amqp:transaction:rollback"
CONTROLLER, PUBLISHER = 0, 1


@pytest.mark.parametrize("outcomes", [(), ("amqp:accepted:list", "amqp:rejected:list")])
def test_a_controller_that_knows_rejected_is_told_by_it(opened: Opened, outcomes: tuple[str, ...]) -> None:
    """As is one whose source lists no outcomes: all that were ever asked say nothing, and know it."""
    peer = opened()
    peer.attach_coordinator(CONTROLLER, *outcomes)
    assert peer.discharge(CONTROLLER, 0, b"no such transaction") == UNKNOWN
    assert isinstance(peer.declare(CONTROLLER, 1), bytes)


def test_a_controller_that_does_not_know_rejected_is_detached(opened: Opened) -> None:
    """The detach has the transaction's error."""
    peer = opened()
    peer.attach_coordinator(CONTROLLER, "amqp:accepted:list")
    peer.declare(CONTROLLER, 0)
    peer.control(CONTROLLER, 1, DISCHARGE, [b"no such transaction", False])
    assert error_of(peer.skip_to(DETACH))[0] == UNKNOWN


def test_a_commit_that_fails_detaches_it_as_well(opened: Opened) -> None:
    """Not only what is wrong with the discharge itself: here, a message was not taken."""
    peer = opened()
    peer.attach_coordinator(CONTROLLER, "amqp:accepted:list")
    txn_id = peer.declare(CONTROLLER, 0)
    peer.attach(PUBLISHER, target=[None])
    peer.transfer(PUBLISHER, 1, data(b"without an address"), state=in_transaction(txn_id), settled=True)
    peer.control(CONTROLLER, 2, DISCHARGE, [txn_id, False])
    assert error_of(peer.skip_to(DETACH))[0] == ROLLBACK


def test_a_coordinator_that_is_detached_keeps_its_transactions(opened: Opened) -> None:
    """They are rolled back when its link is closed; attached again, or by another, they can be discharged."""
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
    """A peer with a transaction, and one delivery of two messages of a queue; its delivery-id."""
    peer = opened()
    peer.attach_coordinator(COORDINATOR)
    txn_id = peer.declare(COORDINATOR, 0)
    peer.attach(SENDER, target=["queue://q"])
    for number, body in ((1, b"first"), (2, b"second")):
        peer.transfer(SENDER, number, data(body))
        assert peer.told() == ACCEPTED
    peer.attach(RECEIVER, receiver=True, source=["queue://q"])
    peer.send(flow_frame(RECEIVER, 0, 1))
    transfer = peer.skip_to(TRANSFER)
    assert body_of(transfer.payload) == b"first"
    return peer, txn_id, int(transfer.field(1))


def next_of_queue(opened: Opened) -> bytes:
    """What somebody else gets first."""
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
    Detached and not closed, a link has its deliveries unsettled still (2.6.3), and the commit settles them, or a
    rollback brings them back. Closed, it does not exist any more: the message went back, and the commit fails, also
    where the disposition came behind the detach, of which the engine says nothing.
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
    """Released, it goes to others; until then nobody else has it."""
    peer, _, delivery = with_a_delivery(opened)
    peer.detach(RECEIVER)
    other = opened()
    other.attach_receiver("queue://q", credit=2)
    assert other.receive() == b"second"
    peer.disposition(delivery, Described(ULong(MODIFIED), [True]), settled=True)
    assert other.receive() == b"first"


def test_what_a_reader_says_in_a_transaction_fails_none(opened: Opened) -> None:
    """A reader of the log has its deliveries, and settles nothing by them."""
    peer, txn_id, _ = with_a_delivery(opened)
    peer.attach(3, receiver=True, source=["log://>?replay-start=beginning"])
    peer.send(flow_frame(3, 0, 1))
    peer.disposition(int(peer.skip_to(TRANSFER).field(1)), in_transaction(txn_id, ACCEPTED))
    assert peer.discharge(COORDINATOR, 3, txn_id) == ACCEPTED


def test_suspended_links_count_as_links(start: Start, opened_at: OpenedAt) -> None:
    """Whoever detaches and settles nothing holds no more of them than may be attached."""
    peer = opened_at(start(limits=Limits(max_links_per_session=4)))
    peer.attach(SENDER, target=["queue://q"])
    for number in range(6):
        peer.transfer(SENDER, number, data(b"x"))
        assert peer.told() == ACCEPTED
    for number in range(3):
        peer.attach(RECEIVER, receiver=True, source=["queue://q"], name=f"receiver-{number}")
        peer.send(flow_frame(RECEIVER, 0, 1))
        peer.skip_to(TRANSFER)
        peer.detach(RECEIVER)
    peer.send(attach_frame(RECEIVER, receiver=True, address="queue://q", name="one more"))
    assert error_of(peer.skip_to(CLOSE))[0] == "amqp:resource-limit-exceeded"


SESSION_STATE = [UInt(0), UInt(WINDOW), UInt(0), UInt(WINDOW)]


def test_a_flow_in_a_transaction_detaches_its_link(opened: Opened) -> None:
    """Else its messages would be acquired outside of the transaction, and its rollback not give them back."""
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
    """In a transaction it waits from the commit on; what is no time detaches its link, and is no part of that."""
    peer, txn_id, delivery = with_a_delivery(opened)
    outcome = Described(ULong(MODIFIED), [True, False, {Symbol("x-opt-delivery-time"): again}])
    state = Described(in_transaction(txn_id).descriptor, [txn_id, outcome])
    peer.disposition(delivery, state, settled=True)
    assert peer.discharge(COORDINATOR, 3, txn_id, fail=fail) == ACCEPTED
    assert next_of_queue(opened) == left
