"""Local transactions through real sockets: a commit takes effect as a whole and durably, a rollback has no effect."""

from __future__ import annotations

import pytest
from proton import Message, Terminus, symbol

from gateway.app import Gateway
from gateway.config import Limits, Vpn
from gateway.config.vpn import Queue
from gateway.core.effects import Publication
from tests.gateway.amqp.conftest import Connect, FullDisk, Start, Telling
from tests.support.client import Client, Received, Receiver, texts
from tests.support.messages import data, message_to
from tests.support.running import RunningGateway
from tests.support.transactions import (
    DECLARE,
    DISCHARGE,
    Controller,
    acknowledge,
    provisional_outcome,
    publish,
)

UNKNOWN, ROLLBACK = "amqp:transaction:unknown-id", "amqp:transaction:rollback"


@pytest.fixture
def controller(client: Client) -> Controller:
    """A link to the coordinator of `gateway`."""
    return Controller(client)


def fill(client: Client, address: str, *contents: str) -> None:
    """Publish without a transaction."""
    client.sender(address).send_all(map(data, contents))


def test_published_messages_exist_from_the_commit_on(client: Client, controller: Controller) -> None:
    """
    Before the commit they are nowhere; after it their ids are in the order of commits, not of sending. A settled
    message is part of its transaction, too; one that is rolled back takes no id.
    """
    first, second, never = (controller.declare() for _ in range(3))
    sender = client.sender("topic://t")
    for text, txn_id in (("late", first), ("early", second), ("never", never)):
        assert provisional_outcome(sender, publish(sender, data(text), txn_id)) == 0x24
    publish(sender, data("settled"), first, settled=True)
    sender.send_all([data("outside")])
    assert controller.roll_back(never) == "ACCEPTED"
    for txn_id in (second, first):
        assert controller.commit(txn_id) == "ACCEPTED"
    found = client.read_log("t")
    assert texts(found) == ["outside", "early", "late", "settled"]
    assert [message.id for message in found] == [1, 2, 3, 4]


@pytest.mark.parametrize("settle", [True, False])
def test_acknowledgements_hold_from_the_commit_on(
    gateway: RunningGateway, client: Client, controller: Controller, settle: bool
) -> None:
    """They are committed with the messages published; a delivery that its consumer left unsettled is settled then."""
    fill(client, "queue://in", "a", "b")
    receiver = client.receiver("queue://in", credit=2)
    sender = client.sender("queue://out")
    txn_id = controller.declare()
    messages = receiver.take(2)
    for message in messages:
        acknowledge(message, txn_id, settle=settle)
        publish(sender, data(message.text.upper()), txn_id)
    client.wait(lambda: sender.link.credit, "it is written")
    assert (gateway.depth("in"), gateway.depth("out")) == (2, 0)
    assert controller.commit(txn_id) == "ACCEPTED"
    assert (gateway.depth("in"), gateway.depth("out")) == (0, 2)
    if not settle:
        client.wait(lambda: all(m.delivery.settled for m in messages), "they are settled")
    assert texts(client.receiver("queue://out", credit=2).take(2)) == ["A", "B"]


def test_a_rollback_leaves_deliveries(
    gateway: RunningGateway, client: Client, controller: Controller
) -> None:
    """
    A delivery that its consumer had settled comes again with a raised delivery-count. One that it had not settled stays
    with it: it can still give an outcome, in another transaction or in none.
    """
    fill(client, "queue://q", "a", "b", "c")
    receiver = client.receiver("queue://q", credit=10)
    settled, *messages = receiver.take(3)
    txn_id = controller.declare()
    acknowledge(settled, txn_id)
    for message in messages:
        acknowledge(message, txn_id, settle=False)
    assert controller.roll_back(txn_id) == "ACCEPTED"
    (again,) = receiver.take(1)
    assert (again.text, again.delivery_count) == ("a", 1)
    assert gateway.depth("q") == 3
    txn_id = controller.declare()
    acknowledge(messages[0], txn_id)
    assert controller.commit(txn_id) == "ACCEPTED"
    assert gateway.depth("q") == 2
    receiver.settle([messages[1], again])
    client.wait(lambda: gateway.depth("q") == 0, "the others are gone, too")


def test_other_outcomes_hold_with_the_commit(
    gateway: RunningGateway, client: Client, controller: Controller
) -> None:
    """
    Released and failed messages come again, the failed one with a raised delivery-count; the rejected one is gone.
    """
    fill(client, "queue://q", "released", "failed", "rejected")
    receiver = client.receiver("queue://q", credit=10)
    messages = receiver.take(3)
    txn_id = controller.declare()
    for message, outcome, fields in zip(messages, (0x26, 0x27, 0x25), ((), (True,), ()), strict=True):
        acknowledge(message, txn_id, outcome, fields)
    assert controller.commit(txn_id) == "ACCEPTED"
    again = receiver.take(2)
    assert sorted((m.text, m.delivery_count) for m in again) == [("failed", 1), ("released", 0)]
    assert gateway.depth("q") == 2


@pytest.mark.parametrize("how", ["link", "connection"])
def test_transactions_end_with_their_coordinator(gateway: RunningGateway, connect: Connect, how: str) -> None:
    """A closed link and a lost connection are rollbacks."""
    fill(connect(gateway), "queue://q", "a")
    client = connect(gateway)
    controller = Controller(client)
    txn_id = controller.declare()
    receiver, sender = client.receiver("queue://q", credit=2), client.sender("queue://q")
    (message,) = receiver.take(1)
    acknowledge(message, txn_id)
    provisional_outcome(sender, publish(sender, data("never"), txn_id))
    if how == "link":
        controller.sender.close()
        (again,) = receiver.take(1)
        late = publish(sender, data("late"), txn_id)
        assert sender.rejection(late).name == UNKNOWN
    else:
        client.cut()
        (again,) = connect(gateway).receiver("queue://q", credit=2).take(1)
    assert (again.text, again.delivery_count) == ("a", 1)
    assert gateway.depth("q") == 1


def test_an_unknown_transaction_is_told(gateway: RunningGateway, client: Client) -> None:
    """
    To its discharge, to a consumer, and to a publisher, also where there is no coordinator, and wherever it is in a
    burst. The message is never published outside of a transaction; a settled one has its link detached, as nothing else
    would report the loss.
    """
    sender = client.sender("queue://q")
    plain = [sender.send(data("a")), sender.send(data("b"))]
    unknown = publish(sender, data("x"), b"none")
    plain.append(sender.send(data("c")))
    assert sender.rejection(unknown).name == UNKNOWN
    assert [sender.outcome(delivery) for delivery in plain] == ["ACCEPTED"] * 3
    sender.send(data("d"))
    publish(sender, data("x"), b"none", settled=True)
    assert sender.detached_by_peer().name == UNKNOWN
    controller = Controller(client)
    assert controller.commit(b"none") == UNKNOWN
    txn_id = controller.declare()
    assert controller.commit(txn_id) == "ACCEPTED"
    assert controller.commit(txn_id) == UNKNOWN
    assert gateway.depth("q") == 4
    receiver = client.receiver("queue://q", credit=1)
    acknowledge(receiver.take(1)[0], b"none")
    assert receiver.detached_by_peer().name == UNKNOWN
    assert texts(client.receiver("queue://q").drain()) == ["a", "b", "c", "d"]


def test_a_message_that_is_not_taken_rolls_back(
    gateway: RunningGateway, client: Client, controller: Controller
) -> None:
    """It is rejected, and the commit fails with rollback; the transaction's other messages are never published."""
    relay, sender = client.sender(None), client.sender("queue://q")
    for raw in (b"\x00", message_to("log://x", "a"), data("nowhere")):
        txn_id = controller.declare()
        for link, content, outcome in ((sender, data(1), 0x24), (relay, raw, 0x25), (sender, data(2), 0x25)):
            assert provisional_outcome(link, publish(link, content, txn_id)) == outcome
        assert controller.commit(txn_id) == ROLLBACK
    assert gateway.depth("q") == 0


def test_a_quota_holds_at_the_commit(start: Start, connect: Connect) -> None:
    """All or nothing; messages that the transaction itself acknowledges make room."""
    gateway = start(Vpn(queues={"q": Queue(quota_messages=2)}))
    client = connect(gateway)
    controller, sender = Controller(client), client.sender("queue://q")
    other = client.sender("topic://other")
    txn_id = controller.declare()
    publish(other, data("other"), txn_id)
    for content in ("a", "b", "c"):
        publish(sender, data(content), txn_id)
    assert controller.commit(txn_id) == ROLLBACK
    assert gateway.depth("q") == 0
    fill(client, "queue://q", "d", "e")
    receiver = client.receiver("queue://q", credit=2)
    txn_id = controller.declare()
    for message in receiver.take(2):
        assert message.id <= 2, "what was rolled back has taken no id"
        acknowledge(message, txn_id)
        publish(sender, data(message.text * 2), txn_id)
    assert controller.commit(txn_id) == "ACCEPTED"
    assert gateway.depth("q") == 2


def test_a_transaction_has_its_time(start: Start, connect: Connect) -> None:
    """The timeout counts from its first message, not from its declare; the discharge reports it."""
    gateway = start(limits=Limits(transaction_timeout_ms=100))
    client = connect(gateway)
    controller = Controller(client)
    idle = controller.declare()
    fill(client, "queue://q", "a")
    receiver = client.receiver("queue://q", credit=2)
    txn_id = controller.declare()
    acknowledge(receiver.take(1)[0], txn_id)
    (again,) = receiver.take(1)
    assert again.delivery_count == 1
    assert controller.commit(txn_id) == "amqp:transaction:timeout"
    assert controller.commit(idle) == "ACCEPTED"


def test_what_transactions_hold_is_bounded(start: Start, connect: Connect) -> None:
    """For each connection and in all; an ended transaction gives its room back."""
    gateway = start(limits=Limits(transaction_bytes=30_000, transactions_bytes=40_000, max_transactions=2))
    client, other = connect(gateway), connect(gateway)
    for one, fits in ((client, 2), (other, 1)):
        controller, sender = Controller(one), one.sender("queue://q")
        txn_id = controller.declare()
        for _ in range(fits):
            assert provisional_outcome(sender, publish(sender, data("x" * 10_000), txn_id)) == 0x24
        if one is other:
            assert provisional_outcome(sender, publish(sender, data("x" * 10_000), txn_id)) == 0x25
            assert controller.commit(txn_id) == ROLLBACK
        else:
            controller.declare()
            assert controller.outcome(controller.ask(0x31, [None])) == "amqp:resource-limit-exceeded"
    client.close()
    gateway.call(lambda g: None)
    txn_id = controller.declare()
    for _ in range(2):
        assert provisional_outcome(sender, publish(sender, data("x" * 10_000), txn_id)) == 0x24
    assert provisional_outcome(sender, publish(sender, data("x" * 10_000), txn_id)) == 0x25
    assert gateway.call(lambda g: g._container.ledger.held["transactions"] if g._container else 0) == 0


def test_control_messages(client: Client, controller: Controller) -> None:
    """
    The answer to the coordinator's attach has its capabilities. A message that is not a control message is rejected; a
    settled one has its link detached. Descriptors may be symbols, too, as in Proton's own transactions (AMQP 1.0
    section 1.3).
    """
    target = controller.sender.link.remote_target
    assert target.type == Terminus.COORDINATOR
    target.capabilities.rewind()
    assert target.capabilities.next()
    assert "amqp:local-transactions" in map(str, target.capabilities.get_object())
    declared = controller.ask(symbol("amqp:declare:list"), [None])
    client.wait(lambda: declared.remote_state, "the transaction is declared")
    discharge = [bytes(declared.remote.data[0]), False]
    assert controller.outcome(controller.ask(symbol("amqp:discharge:list"), discharge)) == "ACCEPTED"
    for raw in (data("x"), Message(body="x").encode(), b"\x00"):
        assert controller.sender.rejection(controller.sender.send(raw)).name == "amqp:invalid-field"
    for descriptor, field in ((DECLARE, b"global"), (DISCHARGE, "x")):
        assert controller.outcome(controller.ask(descriptor, [field])) == "amqp:invalid-field"
    controller.ask(DECLARE, [None], settled=True)
    assert controller.sender.detached_by_peer().name == "amqp:not-allowed"


def test_a_replay_that_begins_voids_acknowledgements(
    gateway: RunningGateway, client: Client, controller: Controller
) -> None:
    """The commit fails as a whole, so that no message that the replay has put back is lost."""
    fill(client, "queue://q", "a", "b")
    receiver = client.receiver("queue://q", credit=1)
    txn_id = controller.declare()
    acknowledge(receiver.take(1)[0], txn_id, settle=False)
    client.wait(lambda: True, "it is written")
    controller.declare()
    gateway.start_replay("q", "beginning")
    assert controller.commit(txn_id) == ROLLBACK
    assert texts(client.receiver("queue://q", credit=2).take(2)) == ["a", "b"]


def acknowledged(gateway: RunningGateway) -> int:
    """How many deliveries open transactions acknowledge."""

    def count(running: Gateway) -> int:
        assert running._container is not None
        clients = [connection._client for connection in running._container.connections]
        found = [open_.transactions._open.values() for open_ in clients if open_ is not None]
        return sum(len(transaction.acknowledged) for opened in found for transaction in opened)

    return gateway.call(count)


def both_acknowledged(
    gateway: RunningGateway, client: Client, controller: Controller
) -> tuple[Receiver, list[Received], bytes]:
    """A receiver with both messages of a queue, and the id of an open transaction that acknowledges them."""
    fill(client, "queue://q", "a", "b")
    receiver = client.receiver("queue://q", credit=2)
    messages = receiver.take(2)
    txn_id = controller.declare()
    for message in messages:
        acknowledge(message, txn_id, settle=False)
    # Of several states of a delivery that the engine reads together, it shows only the last.
    client.wait(lambda: acknowledged(gateway) == 2, "both are acknowledged in the transaction")
    return receiver, messages, txn_id


def test_settled_outside_of_its_transaction(
    gateway: RunningGateway, client: Client, controller: Controller
) -> None:
    """A delivery that gets an outcome outside of its transaction makes the commit fail."""
    receiver, messages, txn_id = both_acknowledged(gateway, client, controller)
    receiver.settle([messages[0]])
    client.wait(lambda: gateway.depth("q") == 1, "the outcome of its own holds")
    assert controller.commit(txn_id) == ROLLBACK
    assert gateway.depth("q") == 1


def test_what_is_settled_outside_comes_too_late_for_a_commit_under_way(
    telling: Telling, gateway: RunningGateway, connect: Connect
) -> None:
    """A discharge that was sent is not undone by a later outcome: all deliveries of the transaction are settled."""
    client = connect(gateway)
    controller = Controller(client)
    receiver, messages, txn_id = both_acknowledged(gateway, client, controller)
    telling.hold()
    discharge = controller.ask(DISCHARGE, [txn_id, False])
    client.wait(lambda: acknowledged(gateway) == 0, "the commit is under way")
    receiver.settle([messages[0]])
    client.receiver("log://>", credit=1)
    telling.go_on()
    assert controller.outcome(discharge) == "ACCEPTED"
    client.wait(lambda: messages[1].delivery.settled, "the other one is settled")
    assert gateway.depth("q") == 0


def test_the_commit_is_told_when_it_is_durable(
    telling: Telling, gateway: RunningGateway, connect: Connect
) -> None:
    """Until the store has confirmed the commit, the discharge has no outcome and nothing is delivered."""
    client = connect(gateway)
    controller, sender = Controller(client), client.sender("queue://q")
    txn_id = controller.declare()
    provisional_outcome(sender, publish(sender, data("a"), txn_id))
    telling.hold(Publication)
    discharge = controller.ask(0x32, [txn_id, False])
    client.receiver("log://>", credit=1)
    assert not discharge.remote_state
    telling.go_on()
    assert controller.outcome(discharge) == "ACCEPTED"
    assert gateway.depth("q") == 1


def test_a_commit_that_the_store_cannot_write_is_rolled_back(
    gateway: RunningGateway, client: Client, controller: Controller, full_disk: FullDisk
) -> None:
    """Neither half is kept: not in memory, not in what is still to be stored, not after a restart."""
    fill(client, "queue://in", "a")
    receiver, sender = client.receiver("queue://in", credit=3), client.sender("queue://out")
    txn_id = controller.declare()
    acknowledge(receiver.take(1)[0], txn_id)
    provisional_outcome(sender, publish(sender, data("A"), txn_id))
    with full_disk():
        assert controller.commit(txn_id) == ROLLBACK
    (again,) = receiver.take(1)
    assert (again.text, again.delivery_count) == ("a", 1)
    assert (gateway.depth("in"), gateway.depth("out")) == (1, 0)
    gateway.restart()
    assert (gateway.depth("in"), gateway.depth("out")) == (1, 0)


def test_pipelined_transactions_keep_their_order(client: Client, controller: Controller) -> None:
    """In one burst, what comes before a discharge belongs to its transaction, however the bytes are read."""
    begun = {"a": controller.declare(), "b": controller.declare()}
    sender, discharges = client.sender("queue://q"), []
    for content, txn_id in begun.items():
        publish(sender, data(content), txn_id)
        discharges.append(controller.ask(DISCHARGE, [txn_id, False]))
    assert [controller.outcome(discharge) for discharge in discharges] == ["ACCEPTED", "ACCEPTED"]
    assert texts(client.receiver("queue://q", credit=2).take(2)) == ["a", "b"]
