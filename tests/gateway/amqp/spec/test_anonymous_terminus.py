"""
"Using the Anonymous Terminus for Message Routing" (OASIS), section 2.2.2: what a sender is told whose message leads
nowhere.
"""

from __future__ import annotations

from typing import Any

import pytest

from amqp_ext.codec import Array, Described, Symbol, ULong, encode
from gateway.config import Vpn
from tests.gateway.amqp.conftest import Start
from tests.gateway.amqp.spec.conftest import REJECTED, TRANSACTIONAL, Opened, ScriptedPeer, in_transaction
from tests.support.frames import ACCEPTED, DETACH, DISPOSITION, error_of
from tests.support.messages import data

COORDINATOR, RELAY = 0, 1
ACCEPTED_ONLY = [*[None] * 9, Array([Symbol("amqp:accepted:list")])]
NOWHERE = "queue://not there/"


def to(address: str) -> bytes:
    """A message whose properties have this address."""
    return encode(Described(ULong(0x73), [None, None, address])) + data(b"x")


def sent_nowhere(
    peer: ScriptedPeer, *, source: Any = None, settled: bool = False
) -> tuple[ScriptedPeer, bytes]:
    """A peer that has sent a message nowhere in a transaction; its id."""
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
    """In the error's info; those before and behind it are taken."""
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
    """Its sender has settled the message, or its source does not know the outcome."""
    peer = opened()
    peer.attach(RELAY, source=[] if settled else ACCEPTED_ONLY, target=[None])
    peer.transfer(RELAY, 0, to("queue://q"), settled=settled)
    peer.transfer(RELAY, 1, to(NOWHERE), settled=settled)
    detach = peer.skip_to(DETACH)
    assert error_of(detach)[0] == "amqp:invalid-field"
    assert tag_in(detach.field(2)) == (1).to_bytes(4, "big")


def test_in_a_transaction_the_rejection_is_the_provisional_outcome(opened: Opened) -> None:
    """With the tag, too."""
    peer, _ = sent_nowhere(opened())
    state = peer.skip_to(DISPOSITION).field(4)
    assert (state.descriptor, state.value[1].descriptor) == (TRANSACTIONAL, REJECTED)
    assert tag_in(state.value[1].value[0]) == (1).to_bytes(4, "big")


def test_in_a_transaction_without_a_rejection_the_link_is_detached(opened: Opened) -> None:
    """And the transaction is not committed."""
    peer, txn_id = sent_nowhere(opened(), source=ACCEPTED_ONLY)
    assert tag_in(peer.skip_to(DETACH).field(2)) == (1).to_bytes(4, "big")
    assert peer.discharge(COORDINATOR, 2, txn_id) == "amqp:transaction:rollback"


def test_a_settled_message_in_a_transaction_fails_that_and_nothing_else(opened: Opened) -> None:
    """The discharge tells it; the link stays."""
    peer, txn_id = sent_nowhere(opened(), settled=True)
    assert peer.discharge(COORDINATOR, 2, txn_id) == "amqp:transaction:rollback"
    peer.transfer(RELAY, 3, to("queue://q"))
    assert peer.told() == ACCEPTED


def test_what_may_not_be_made_is_not_found(start: Start, opened_at: Any) -> None:
    """A queue that is not there, where messages do not make queues."""
    peer = opened_at(start(vpn=Vpn(create_queues=False)))
    peer.attach(RELAY, target=[None])
    peer.transfer(RELAY, 0, to("queue://missing"))
    assert peer.told() in ("amqp:not-found", "amqp:unauthorized-access")
