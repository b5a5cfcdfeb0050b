"""4.4.2, transactional retirement: a receiver gives a delivery its outcome in a transaction."""

from __future__ import annotations

from amqp_ext.codec import Described, ULong
from tests.gateway.amqp.spec.conftest import MODIFIED, Opened, ScriptedPeer, in_transaction
from tests.support.frames import ACCEPTED, DISPOSITION, TRANSFER, flow_frame
from tests.support.messages import body_of, data

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


def test_a_delivery_is_accepted_in_a_transaction_after_its_link_was_detached(opened: Opened) -> None:
    """The link was detached and not closed: the delivery is unsettled still (2.6.3), and the commit settles it."""
    peer, txn_id, delivery = with_a_delivery(opened)
    peer.detach(RECEIVER)
    peer.disposition(delivery, in_transaction(txn_id, ACCEPTED))
    assert peer.discharge(COORDINATOR, 3, txn_id) == ACCEPTED
    told = peer.skip_to(DISPOSITION)
    assert (told.field(0), told.field(1), told.field(3)) == (False, delivery, True)
    assert next_of_queue(opened) == b"second"


def test_what_was_accepted_in_a_transaction_before_the_detach_is_committed(opened: Opened) -> None:
    """The peer settles it with the disposition; the detach behind that takes nothing back."""
    peer, txn_id, delivery = with_a_delivery(opened)
    peer.disposition(delivery, in_transaction(txn_id, ACCEPTED), settled=True)
    peer.detach(RECEIVER)
    assert peer.discharge(COORDINATOR, 3, txn_id) == ACCEPTED
    assert next_of_queue(opened) == b"second"


def test_a_rollback_after_the_detach_brings_the_message_back(opened: Opened) -> None:
    """The receiver had settled it: what becomes of it is not for the receiver to say any more."""
    peer, txn_id, delivery = with_a_delivery(opened)
    peer.detach(RECEIVER)
    peer.disposition(delivery, in_transaction(txn_id, ACCEPTED), settled=True)
    assert peer.discharge(COORDINATOR, 3, txn_id, fail=True) == ACCEPTED
    assert next_of_queue(opened) == b"first"


def test_a_closed_link_s_delivery_makes_the_commit_fail(opened: Opened) -> None:
    """Its link does not exist any more: the message went back, and the commit says that it did not settle it."""
    peer, txn_id, delivery = with_a_delivery(opened)
    peer.disposition(delivery, in_transaction(txn_id, ACCEPTED))
    peer.detach(RECEIVER, closed=True)
    assert peer.discharge(COORDINATOR, 3, txn_id) == "amqp:transaction:rollback"
    assert next_of_queue(opened) == b"first"


def test_a_detached_link_s_delivery_is_settled_outside_of_transactions_as_well(opened: Opened) -> None:
    """Released, it goes to others; until then nobody else has it."""
    peer, _, delivery = with_a_delivery(opened)
    peer.detach(RECEIVER)
    other = opened()
    other.attach_receiver("queue://q", credit=2)
    assert other.receive() == b"second"
    peer.disposition(delivery, Described(ULong(MODIFIED), [True]), settled=True)
    assert other.receive() == b"first"
