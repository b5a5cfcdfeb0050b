"""
Local transactions from the client's side: the coordinator link, and publishing and acknowledging in a transaction.
"""

from __future__ import annotations

from typing import Any

from cproton_ffi import lib
from proton import Condition, Delivery, Described, Message, Terminus, symbol, ulong
from proton import Link as EngineLink

from tests.support.client import Client, Received, Sender

TRANSACTIONAL = 0x34
DECLARE, DISCHARGE = 0x31, 0x32


class Controller:
    """A client's link to the coordinator. Each method but ``ask`` waits for the answer."""

    def __init__(self, client: Client) -> None:
        def to_coordinator(link: EngineLink) -> None:
            link.target.type = Terminus.COORDINATOR

        self.sender = client.sender(None, set_up=to_coordinator)

    def ask(self, descriptor: int | symbol, fields: list[Any], *, settled: bool = False) -> Delivery:
        """Send a control message."""
        spelled = descriptor if isinstance(descriptor, symbol) else ulong(descriptor)
        return self.sender.send(Message(body=Described(spelled, fields)).encode(), settled=settled)

    def declare(self) -> bytes:
        """Declare a transaction; returns its id."""
        delivery = self.ask(0x31, [None])
        self.sender.client.wait(lambda: delivery.remote_state, "the transaction is declared")
        assert int(delivery.remote_state) == 0x33, delivery.remote_state
        return bytes(delivery.remote.data[0])

    def commit(self, txn_id: bytes) -> str:
        """Discharge with commit; returns ``ACCEPTED``, or the condition of the rejection."""
        return self.outcome(self.ask(0x32, [txn_id, False]))

    def roll_back(self, txn_id: bytes) -> str:
        """Discharge with rollback; returns the same."""
        return self.outcome(self.ask(0x32, [txn_id, True]))

    def outcome(self, delivery: Delivery) -> str:
        """``ACCEPTED``, or the condition of the rejection."""
        found = self.sender.outcome(delivery)
        if found != "REJECTED":
            return found
        condition: Condition = delivery.remote.condition
        assert condition.description, "a text says why"
        return str(condition.name)


def publish(sender: Sender, raw: bytes, txn_id: bytes, *, settled: bool = False) -> Delivery:
    """Send a message in a transaction."""
    if sender.link.credit <= 0:
        sender.client.wait(lambda: sender.link.credit > 0, "there is credit")
    delivery = sender.link.delivery(f"t{id(raw)}-{sender.link.credit}")
    delivery.local.data = [txn_id]
    delivery.update(TRANSACTIONAL)
    sender.link.stream(raw)
    if settled:
        delivery.settle()
    sender.link.advance()
    return delivery


def provisional_outcome(sender: Sender, delivery: Delivery) -> int:
    """The outcome that the delivery will have if its transaction commits."""
    sender.client.wait(lambda: delivery.remote_state, "there is an outcome")
    assert int(delivery.remote_state) == TRANSACTIONAL, delivery.remote_state
    return int(delivery.remote.data[1].descriptor)


def acknowledge(
    message: Received,
    txn_id: bytes,
    outcome: int = 0x24,
    fields: tuple[Any, ...] = (),
    *,
    settle: bool = True,
) -> None:
    """Give a delivery an outcome in a transaction."""
    # The engine would append the state to that of an earlier transaction.
    lib.pn_data_clear(lib.pn_disposition_data(lib.pn_delivery_local(message.delivery._impl)))
    message.delivery.local.data = [txn_id, Described(ulong(outcome), list(fields))]
    message.delivery.update(TRANSACTIONAL)
    if settle:
        message.delivery.settle()
