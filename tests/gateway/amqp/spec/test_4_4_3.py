"""4.4.3, transactional acquisition: it is not there, and who asks for it is told."""

from __future__ import annotations

from amqp_ext.codec import Symbol, UInt
from tests.gateway.amqp.spec.conftest import Opened
from tests.support.frames import DETACH, FLOW, WINDOW, error_of, frame

SESSION = [UInt(0), UInt(WINDOW), UInt(0), UInt(WINDOW)]


def test_a_flow_in_a_transaction_detaches_its_link(opened: Opened) -> None:
    """Else its messages would be acquired outside of the transaction, and its rollback not give them back."""
    peer = opened()
    peer.attach_coordinator(0)
    txn_id = peer.declare(0, 0)
    peer.attach(1, receiver=True, source=["queue://q"])
    properties = {Symbol("txn-id"): txn_id}
    peer.send(
        frame(FLOW, [*SESSION, UInt(1), UInt(0), UInt(1), None, None, None, {Symbol("other"): 1}]),
        frame(FLOW, [*SESSION, UInt(1), UInt(0), UInt(1), None, None, None, properties]),
    )
    detach = peer.skip_to(DETACH)
    assert detach.field(1) is True
    assert error_of(detach)[0] == "amqp:not-implemented"
