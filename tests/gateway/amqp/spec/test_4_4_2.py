"""4.4.2, transactional retirement: a receiver gives a delivery its outcome in a transaction."""

from __future__ import annotations

from amqp_ext.codec import Described, ULong
from gateway.config import Limits
from tests.gateway.amqp.conftest import Start
from tests.gateway.amqp.spec.conftest import MODIFIED, Opened, OpenedAt, ScriptedPeer, in_transaction
from tests.support.frames import ACCEPTED, CLOSE, DISPOSITION, TRANSFER, attach_frame, error_of, flow_frame
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


def test_a_disposition_for_a_link_that_was_closed_before_makes_the_commit_fail(opened: Opened) -> None:
    """The engine has no such delivery any more, and says nothing of it: the commit would not have happened."""
    peer, txn_id, delivery = with_a_delivery(opened)
    peer.detach(RECEIVER, closed=True)
    peer.disposition(delivery, in_transaction(txn_id, ACCEPTED), settled=True)
    assert peer.discharge(COORDINATOR, 3, txn_id) == "amqp:transaction:rollback"
    assert next_of_queue(opened) == b"first"


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
