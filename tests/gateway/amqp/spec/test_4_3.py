"""4.3, discharging a transaction: how a controller is told that its transaction could not be committed."""

from __future__ import annotations

import pytest

from tests.gateway.amqp.spec.conftest import DISCHARGE, Opened, in_transaction
from tests.support.frames import ACCEPTED, DETACH, error_of
from tests.support.messages import data

UNKNOWN, ROLLBACK = "amqp:transaction:unknown-id", "amqp:transaction:rollback"
COORDINATOR, SENDER = 0, 1


@pytest.mark.parametrize("outcomes", [(), ("amqp:accepted:list", "amqp:rejected:list")])
def test_a_controller_that_knows_rejected_is_told_by_it(opened: Opened, outcomes: tuple[str, ...]) -> None:
    """As is one whose source lists no outcomes: all that were ever asked say nothing, and know it."""
    peer = opened()
    peer.attach_coordinator(COORDINATOR, *outcomes)
    assert peer.discharge(COORDINATOR, 0, b"no such transaction") == UNKNOWN
    assert isinstance(peer.declare(COORDINATOR, 1), bytes)


def test_a_controller_that_does_not_know_rejected_is_detached(opened: Opened) -> None:
    """The detach has the transaction's error."""
    peer = opened()
    peer.attach_coordinator(COORDINATOR, "amqp:accepted:list")
    peer.declare(COORDINATOR, 0)
    peer.control(COORDINATOR, 1, DISCHARGE, [b"no such transaction", False])
    assert error_of(peer.skip_to(DETACH))[0] == UNKNOWN


def test_a_commit_that_fails_detaches_it_as_well(opened: Opened) -> None:
    """Not only what is wrong with the discharge itself: here, a message was not taken."""
    peer = opened()
    peer.attach_coordinator(COORDINATOR, "amqp:accepted:list")
    txn_id = peer.declare(COORDINATOR, 0)
    peer.attach(SENDER, target=[None])
    peer.transfer(SENDER, 1, data(b"without an address"), state=in_transaction(txn_id), settled=True)
    peer.control(COORDINATOR, 2, DISCHARGE, [txn_id, False])
    assert error_of(peer.skip_to(DETACH))[0] == ROLLBACK


def test_a_coordinator_that_is_detached_keeps_its_transactions(opened: Opened) -> None:
    """They are rolled back when its link is closed; attached again, or by another, they can be discharged."""
    peer = opened()
    peer.attach_coordinator(COORDINATOR, name="controller")
    first, second = peer.declare(COORDINATOR, 0), peer.declare(COORDINATOR, 1)
    peer.detach(COORDINATOR)
    peer.attach_coordinator(COORDINATOR, name="controller")
    assert peer.discharge(COORDINATOR, 2, first) == ACCEPTED
    peer.detach(COORDINATOR, closed=True)
    peer.attach_coordinator(COORDINATOR, name="controller")
    assert peer.discharge(COORDINATOR, 3, second) == UNKNOWN
