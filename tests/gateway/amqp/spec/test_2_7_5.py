"""
2.7.5, delivery-ids: a peer may count them apart for each link of a session, from whatever id each begins with. What
becomes of a delivery is said by the id that came on its link.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from amqp_ext.codec import Described, UInt, ULong
from gateway.amqp.engine import link_table
from gateway.config import Limits
from tests.gateway.amqp.spec.conftest import DISCHARGE, Opened, ScriptedPeer, in_transaction, outcome_of
from tests.support.frames import (
    ACCEPTED,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    TRANSFER,
    disposition,
    error_of,
    frame,
)
from tests.support.messages import body_of, data

INVALID_FIELD = "amqp:invalid-field"
FRAME_BYTES = 65_536


def outcomes(peer: ScriptedPeer, count: int) -> list[tuple[int, Any]]:
    """Ids of so many deliveries of the peer's in the order in which they are settled, and what became of them."""
    told: list[tuple[int, Any]] = []
    while len(told) < count:
        received = peer.skip_to(DISPOSITION)
        assert (received.field(0), received.field(3)) == (True, True), received
        first = received.field(1)
        told += [
            (number, outcome_of(received.field(4))) for number in range(first, received.field(2, first) + 1)
        ]
    return told


def bodies(opened: Opened, queue: str, count: int) -> list[bytes]:
    """What a queue has."""
    other = opened()
    other.attach_receiver(queue, credit=count)
    return [other.receive() for _ in range(count)]


def test_two_publishers_and_a_coordinator_count_apart(opened: Opened) -> None:
    """Declare and discharge are the coordinator's 0 and 1, whatever is published between them; then all goes on."""
    peer = opened()
    peer.attach_coordinator(0)
    txn_id = peer.declare(0, 0)
    peer.attach(1, target=["queue://q"])
    peer.attach(2, target=["queue://r"])
    for number in range(3):
        peer.transfer(1, number, data(b"q%d" % number), state=in_transaction(txn_id))
        peer.transfer(2, number + 7, data(b"r%d" % number), state=in_transaction(txn_id))
    assert Counter(number for number, _ in outcomes(peer, 6)) == Counter([0, 1, 2, 7, 8, 9])
    assert peer.discharge(0, 1, txn_id) == ACCEPTED
    peer.transfer(2, 10, data(b"r3"))
    assert outcomes(peer, 1) == [(10, ACCEPTED)]
    txn_id = peer.declare(0, 2)
    peer.transfer(1, 3, data(b"lost"), state=in_transaction(txn_id))
    peer.control(0, 3, DISCHARGE, [txn_id, True])
    assert {number for number, _ in outcomes(peer, 2)} == {3}
    assert bodies(opened, "queue://q", 3) == [b"q0", b"q1", b"q2"]
    assert bodies(opened, "queue://r", 4) == [b"r0", b"r1", b"r2", b"r3"]


def test_each_delivery_is_told_its_own_outcome(opened: Opened) -> None:
    """Those of one link are refused, and those of the other are not; of the ids 0 to 9 each is there twice."""
    peer = opened()
    peer.attach(0, target=["queue://q"])
    peer.attach(1, target=["queue://q"])
    for number in range(10):
        peer.transfer(0, number, data(b"%d" % number))
        peer.transfer(1, number + 100, b"no message")
    told = outcomes(peer, 20)
    assert [number for number, outcome in told if outcome == ACCEPTED] == list(range(10))
    assert [number for number, outcome in told if outcome != ACCEPTED] == list(range(100, 110))


def test_a_delivery_of_several_transfers_counts_once(opened: Opened) -> None:
    """Whether the later ones say its id or not; one that is taken back counts, and nothing is said of it."""
    peer = opened()
    peer.attach(0, target=["queue://q"])
    peer.attach(1, target=["queue://q"])
    peer.send(frame(TRANSFER, [UInt(0), UInt(0), b"t", UInt(0), False, True], data(b"first")[:3]))
    for number, again in ((0, UInt(0)), (1, None)):
        message = data(b"in pieces %d" % number)
        peer.send(
            frame(TRANSFER, [UInt(1), UInt(number), b"t", UInt(0), False, True], message[:4]),
            frame(TRANSFER, [UInt(1), again, None, None, None, True], message[4:5]),
            frame(TRANSFER, [UInt(1), again, None, None, None, False], message[5:]),
        )
    peer.send(frame(TRANSFER, [UInt(0), None, None, None, None, False], data(b"first")[3:]))
    aborted = [None] * 5
    peer.send(
        frame(TRANSFER, [UInt(1), UInt(2), b"t", UInt(0), False, True], b"half"),
        frame(TRANSFER, [UInt(1), None, None, None, None, False, *aborted[:3], True]),
    )
    peer.transfer(1, 3, data(b"last"))
    assert Counter(number for number, _ in outcomes(peer, 4)) == Counter([0, 0, 1, 3])
    assert bodies(opened, "queue://q", 4) == [b"in pieces 0", b"in pieces 1", b"first", b"last"]


def test_a_transfer_may_fill_its_frame(opened: Opened) -> None:
    """Though the engine's id for it takes more octets than the peer's does."""
    peer = opened()
    peer.attach(0, target=["queue://q"])
    peer.attach(1, target=["queue://q"])
    for number in range(300):
        peer.transfer(0, number, data(b""), settled=True)
    for number in range(2):
        room = FRAME_BYTES - len(
            frame(TRANSFER, [UInt(1), UInt(number), b"tttt", UInt(0), False, False, None, None])
        )
        peer.transfer(1, number, data(b"x" * (room - 8)))
    assert outcomes(peer, 2) == [(0, ACCEPTED), (1, ACCEPTED)]


def test_what_a_peer_says_of_its_own_deliveries_is_let_be(opened: Opened) -> None:
    """It does not say of which link's; all the same, it is told what becomes of them."""
    peer = opened()
    peer.attach(0, target=["queue://q"])
    peer.attach(1, target=["queue://q"])
    for handle in (0, 1):
        peer.transfer(handle, 0, data(b"x"))
    peer.send(disposition(0, 1, receiver=False), disposition(2**31 - 1, 2**32 - 2, receiver=False))
    assert outcomes(peer, 2) == [(0, ACCEPTED), (0, ACCEPTED)]


def test_what_is_received_in_such_a_session_is_settled_as_ever(opened: Opened) -> None:
    """Our own ids are over all links."""
    peer = opened()
    peer.attach(0, target=["queue://q"])
    peer.attach(1, target=["queue://q"])
    for handle in (0, 1):
        peer.transfer(handle, 0, data(b"%d" % handle))
    outcomes(peer, 2)
    peer.attach(2, receiver=True, source=["queue://q"])
    peer.send(frame(FLOW, [UInt(0), UInt(9), UInt(2), UInt(9), UInt(2), UInt(0), UInt(2)]))
    for number in (0, 1):
        delivery = peer.skip_to(TRANSFER)
        assert body_of(delivery.payload) == b"%d" % number
        peer.disposition(delivery.field(1), Described(ULong(ACCEPTED), []), settled=True)
    peer.detach(2, closed=True)
    peer.transfer(0, 1, data(b"next"))
    assert outcomes(peer, 1) == [(1, ACCEPTED)]
    assert bodies(opened, "queue://q", 1) == [b"next"]


def test_what_is_remembered_of_a_peer_is_held_for_it(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the connection's bound: here one such id is as much as all."""
    monkeypatch.setattr(link_table, "DELIVERY_ID_BYTES", Limits().connection_bytes + 1)
    peer = opened()
    peer.attach(0, target=["queue://q"])
    peer.attach(1, target=["queue://q"])
    peer.transfer(0, 0, data(b"x"))
    assert outcomes(peer, 1) == [(0, ACCEPTED)]
    peer.send(frame(TRANSFER, [UInt(1), UInt(0), b"t", UInt(0), False, True], b"half"))
    assert error_of(peer.skip_to(CLOSE))[0] == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize(
    ("sent", "ends_with"),
    [
        pytest.param([(0, 0), (0, 2)], CLOSE, id="a link alone leaves one out"),
        pytest.param([(0, 0), (1, 1), (0, 3)], CLOSE, id="two that count together leave one out"),
        pytest.param([(0, 0), (1, 0), (1, 2)], END, id="one of two that count apart leaves one out"),
        pytest.param([(0, 0), (1, 0), (1, 0)], END, id="one of two that count apart says one again"),
    ],
)
def test_an_id_left_out_is_an_error(opened: Opened, sent: list[tuple[int, int]], ends_with: int) -> None:
    """Of the session where its links count apart, else of the connection."""
    peer = opened()
    peer.attach(0, target=["queue://q"])
    peer.attach(1, target=["queue://q"])
    for handle, number in sent:
        peer.transfer(handle, number, data(b"x"))
    ended = next(said for said in peer.until(END, CLOSE) if said.code in (END, CLOSE))
    assert (ended.code, error_of(ended)[0]) == (ends_with, INVALID_FIELD)


@pytest.mark.parametrize("seed", range(5))
def test_links_that_come_and_go_with_ids_at_random_cost_nobody_else(opened: Opened, seed: int) -> None:
    """What is settled is said by an id that was sent, and all of it where its link stays; a jump ends the session."""
    dice, peer = Random(seed), opened()
    sent: list[Counter[int]] = []
    links: dict[int, tuple[int, Counter[int]]] = {}
    for step in range(300):
        handle = dice.randrange(8)
        if handle not in links:
            peer.attach(handle, target=["queue://jump"], name=f"link-{step}")
            sent.append(Counter())
            links[handle] = dice.randrange(2**32), sent[-1]
        elif dice.random() < 0.1:
            peer.send(frame(DETACH, [UInt(handle), True]))
            del links[handle]
        else:
            number, of_link = links[handle]
            peer.transfer(handle, number, data(b"x"))
            of_link[number] += 1
            links[handle] = (number + 1) % 2**32, of_link
    last, (number, of_link) = next(iter(links.items()))
    peer.transfer(last, number, data(b"x"))
    of_link[number] += 1
    of_links = sum((of_link for _, of_link in links.values()), Counter())
    told: Counter[int] = Counter()
    while not of_links <= told:
        told.update(number for number, _ in outcomes(peer, 1))
    peer.transfer(last, number + 5, data(b"jump"))
    ended = peer.skip_to(END)
    assert error_of(ended)[0] == INVALID_FIELD
    assert told <= sum(sent, Counter())
    other = opened()
    other.attach_sender("queue://jump")
    other.publish(b"y")
