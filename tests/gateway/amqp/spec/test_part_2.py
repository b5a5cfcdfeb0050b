"""AMQP 1.0, part 2: links, flows, sessions, transfers and deliveries, in raw frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from amqp_ext.codec import Described, Symbol, UByte, UInt, ULong, UShort, encode
from gateway.amqp.engine import link_table
from gateway.config import Limits, Listener
from tests.gateway.amqp.conftest import Start, Telling, attaches_under_way
from tests.gateway.amqp.spec.conftest import (
    DISCHARGE,
    Opened,
    OpenedAt,
    ScriptedPeer,
    in_transaction,
    outcome_of,
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
    OPEN,
    TRANSFER,
    WINDOW,
    attach_frame,
    begin_frame,
    disposition,
    error_of,
    frame,
    framed,
)
from tests.support.messages import body_of, data
from tests.support.running import RunningGateway
from tests.support.waiting import wait_until

# --- 2.5.6, session flow control: transfer-ids rise and wrap around, and do not go back -------------------------------

VIOLATION = "amqp:session:window-violation"
LARGEST = 2**32 - 1


def flow(channel: int, incoming: int | None, outgoing: int) -> bytes:
    """A flow of the session that asks for an echo."""
    expected = None if incoming is None else UInt(incoming)
    session = [expected, UInt(WINDOW), UInt(outgoing), UInt(WINDOW)]
    return frame(FLOW, [*session, *[None] * 5, True], channel=channel)


def begun(opened: Opened, first: int) -> ScriptedPeer:
    """A peer with a session on channel 1 whose first transfer-id is this."""
    peer = opened()
    peer.send(frame(BEGIN, [None, UInt(first), UInt(WINDOW), UInt(WINDOW)], channel=1))
    peer.skip_to(BEGIN)
    return peer


@pytest.mark.parametrize(
    ("first", "flows"),
    [
        (5, [(0, 4)]),
        (0, [(0, LARGEST)]),
        (5, [(0, 7), (0, 6)]),
        (0, [(7, 0), (6, 0)]),
        (0, [(LARGEST, 0), (0, 0), (LARGEST, 0)]),
    ],
)
def test_ids_that_go_back_end_the_session(opened: Opened, first: int, flows: list[tuple[int, int]]) -> None:
    """A flow's ids may not be below earlier ones. Other sessions go on."""
    peer = begun(opened, first)
    peer.send(*(flow(1, *numbers) for numbers in flows))
    assert error_of(peer.skip_to(END, never=CLOSE))[0] == VIOLATION
    peer.attach(0, target=["queue://q"])


@pytest.mark.parametrize(
    ("first", "flows"),
    [
        (LARGEST - 1, [(0, LARGEST - 1), (0, LARGEST), (0, 0), (0, 1)]),
        (0, [(None, 0), (LARGEST, 0), (None, 0), (0, 0), (0, 0), (3, 9)]),
    ],
)
def test_ids_that_rise_do_not(opened: Opened, first: int, flows: list[tuple[int | None, int]]) -> None:
    """They stay, rise, or wrap around after the largest; next-incoming-id may be absent."""
    peer = begun(opened, first)
    peer.send(*(flow(1, *numbers) for numbers in flows))
    for _ in flows:
        peer.skip_to(FLOW, never=END)


# --- 2.6.1, naming a link: what becomes of the older link when its name is attached again, by `link_stealing` ---------

STOLEN = "amqp:link:stolen"
Begin = Callable[..., ScriptedPeer]


@pytest.fixture
def at(start: Start, opened_at: OpenedAt) -> Callable[[str], Begin]:
    """Opens connections to a gateway with this `link_stealing`."""

    def at(stealing: Any) -> Begin:
        gateway = start(listeners=(Listener(port=0, link_stealing=stealing),))
        return lambda **fields: opened_at(gateway, **fields)

    return at


def attach(peer: ScriptedPeer, handle: int = 0, channel: int = 0) -> None:
    peer.attach(handle, name="the name", target=["queue://q"], channel=channel)


def is_attached(peer: ScriptedPeer) -> bool:
    """Whether the link of handle 0 takes a message; otherwise it was detached as stolen."""
    peer.transfer(0, 0, data(b"x"))
    for said in peer.until(DISPOSITION, DETACH):
        if said.code == DETACH:
            assert error_of(said)[0] == STOLEN
            return False
    return True


def of_the_session(peer: ScriptedPeer, begin: Begin) -> None:
    attach(peer, 1)


def of_another_session(peer: ScriptedPeer, begin: Begin) -> None:
    peer.send(begin_frame(channel=1))
    peer.skip_to(BEGIN)
    attach(peer, channel=1)
    peer.skip_to(FLOW)


def of_another_connection(peer: ScriptedPeer, begin: Begin) -> None:
    other = begin()
    attach(other)
    other.skip_to(FLOW)
    assert is_attached(other)


def in_the_other_direction(peer: ScriptedPeer, begin: Begin) -> None:
    peer.attach(1, receiver=True, name="the name", source=["queue://q"])


STEALING: dict[str, list[Callable[[ScriptedPeer, Begin], None]]] = {
    "session": [of_the_session],
    "connection": [of_the_session, of_another_session],
    "container": [of_the_session, of_another_session, of_another_connection],
}
"""The second links that take the place of the first, by setting; the specification says `container`."""


@pytest.mark.parametrize("stealing", STEALING)
@pytest.mark.parametrize(
    "second", [of_the_session, of_another_session, of_another_connection, in_the_other_direction]
)
def test_a_name_is_one_link(
    at: Callable[[str], Begin], stealing: str, second: Callable[[ScriptedPeer, Begin], None]
) -> None:
    """In each direction, within a session, a connection or a container, as the setting says."""
    begin = at(stealing)
    peer = begin()
    attach(peer)
    peer.skip_to(FLOW)
    second(peer, begin)
    assert is_attached(peer) is (second not in STEALING[stealing])


def test_of_two_attaches_at_once_one_steals(telling: Telling, start: Start, opened_at: OpenedAt) -> None:
    """Neither link is there yet when the other one attaches: one of them gets credit, the other is detached."""
    gateway = start(listeners=(Listener(port=0, link_stealing="container"),))
    writer, *peers = (opened_at(gateway) for _ in range(3))
    writer.attach(5, target=["queue://q"])
    writer.skip_to(FLOW)
    telling.hold()
    writer.transfer(5, 0, data(b"uncommitted"))
    for peer in peers:
        peer.send(attach_frame(0, receiver=False, address="queue://q"))
    wait_until(lambda: attaches_under_way(gateway) == 2, "both wait for the commit")
    telling.go_on()
    assert sorted(peer.until(FLOW, DETACH)[-1].code for peer in peers) == [FLOW, DETACH]


def test_what_a_stolen_suspended_link_had_is_the_new_one_s(at: Callable[[str], Begin]) -> None:
    """Also on another connection, as after one that failed without being noticed."""
    begin = at("container")
    first, second = begin(), begin()
    attach(first)
    first.transfer(0, 0, data(b"one"))
    first.told()
    first.first(1, name="r", source=["queue://q"])
    first.detach(1)
    assert body_of(second.first(0, name="r", source=["queue://q"]).payload) == b"one"


# --- 2.7, performatives: mandatory fields, types, and frames for links that are not attached --------------------------
# An error on a session ends the session; an error of the connection closes it.

INVALID_FIELD, DECODE_ERROR = "amqp:invalid-field", "amqp:decode-error"
FRAMING_ERROR = "amqp:connection:framing-error"
UNATTACHED = "amqp:session:unattached-handle"
SESSION = [UInt(0), UInt(WINDOW), UInt(0), UInt(WINDOW)]
TARGET, SOURCE = Described(ULong(0x29), ["queue://q"]), Described(ULong(0x28), [])


def a_session_works(peer: ScriptedPeer, channel: int) -> None:
    """An error on one session does not affect others: this one begins, and has a link."""
    peer.send(begin_frame(channel=channel))
    peer.skip_to(BEGIN)
    peer.attach(0, receiver=True, source=["queue://q"], channel=channel)


def publishing(opened: Opened, links: int = 1) -> ScriptedPeer:
    """A peer with this many links that send to the queue `q`."""
    peer = opened()
    for handle in range(links):
        peer.attach(handle, target=["queue://q"])
    return peer


WRONG_ON_A_SESSION = [
    (frame(FLOW, [*SESSION, UInt(9), UInt(0), UInt(1)]), UNATTACHED),
    (frame(TRANSFER, [UInt(9), UInt(0), b"t", UInt(0)], data(b"x")), UNATTACHED),
    (frame(DETACH, [UInt(9), True]), UNATTACHED),
    (frame(TRANSFER, [None, UInt(0), b"t", UInt(0)], data(b"x")), INVALID_FIELD),
    (frame(TRANSFER, [UInt(0), UInt(0), None, UInt(0)], data(b"x")), INVALID_FIELD),
    (frame(TRANSFER, [UInt(0), None, b"t", UInt(0)], data(b"x")), INVALID_FIELD),
    (
        frame(TRANSFER, [UInt(0), UInt(0), b"t", UInt(0), False, False, UByte(1)], data(b"x")),
        INVALID_FIELD,
    ),
    (frame(TRANSFER, [UInt(0), UInt(0), b"t", UInt(0), "yes"], data(b"x")), DECODE_ERROR),
    (frame(FLOW, []), INVALID_FIELD),
    (frame(FLOW, [UInt(0), None, UInt(0), UInt(WINDOW)]), INVALID_FIELD),
    (frame(FLOW, [*SESSION, UInt(0), UInt(0), "many"]), DECODE_ERROR),
    (frame(ATTACH, []), INVALID_FIELD),
    (
        frame(ATTACH, [None, UInt(1), True, None, None, Described(ULong(0x28), ["queue://q"])]),
        INVALID_FIELD,
    ),
    (frame(ATTACH, ["n", UInt(1), None]), INVALID_FIELD),
    (frame(ATTACH, ["n", ULong(1), True]), DECODE_ERROR),
    (frame(DISPOSITION, [True]), INVALID_FIELD),
    (frame(DISPOSITION, [None, UInt(0)]), INVALID_FIELD),
    (frame(DISPOSITION, [True, UInt(5), UInt(4)]), INVALID_FIELD),
    (frame(DETACH, []), INVALID_FIELD),
]


def test_what_is_wrong_on_a_session_ends_it(opened: Opened) -> None:
    """The end has the error. What arrives on its channel meanwhile is discarded, up to the peer's own end (2.5.8)."""
    late = frame(TRANSFER, [UInt(0), UInt(0), b"t", UInt(0)], data(b"late"))
    for wrong, condition in WRONG_ON_A_SESSION:
        peer = opened()
        peer.attach(0, target=["queue://q"])
        peer.skip_to(FLOW)
        peer.send(wrong, late, frame(FLOW, [*SESSION, None, None, None, None, None, True]))
        assert error_of(peer.skip_to(END, never=CLOSE))[0] == condition, wrong
        a_session_works(peer, 3)
        peer.send(late, frame(END, []))
        a_session_works(peer, 0)
        peer.close()


def test_links_of_a_session_that_was_ended_are_gone(opened: Opened) -> None:
    """What a consumer had not settled goes to another."""
    peer = publishing(opened)
    peer.put(0, 0, b"one")
    peer.first(1, source=["queue://q"])
    peer.send(frame(DETACH, [UInt(7), True]))
    peer.skip_to(END)
    a_session_works(peer, 1)
    peer.send(frame(FLOW, [*SESSION, UInt(0), UInt(0), UInt(1)], channel=1))
    assert body_of(peer.skip_to(TRANSFER).payload) == b"one"


WRONG_ABOUT_THE_CONNECTION = [
    (frame(BEGIN, [], channel=2), INVALID_FIELD),
    (frame(BEGIN, [None, UInt(0), None, UInt(1)], channel=2), INVALID_FIELD),
    (frame(BEGIN, [None, "0", UInt(1), UInt(1)], channel=2), DECODE_ERROR),
    (begin_frame(), "amqp:not-allowed"),
    (frame(ATTACH, ["n", UInt(70_000), True]), FRAMING_ERROR),
    (frame(ATTACH, ["again", UInt(0), False, None, None, SOURCE, TARGET]), "amqp:session:handle-in-use"),
]


def test_what_is_wrong_about_the_connection_closes_it(opened: Opened) -> None:
    """
    A session that could not begin has no end for an error; nor has a channel or a handle out of bounds. A handle in use
    closes the connection, though its condition is a session's: 2.7.3 says so of the field.
    """
    for wrong, condition in WRONG_ABOUT_THE_CONNECTION:
        peer = opened()
        peer.attach(0, target=["queue://q"])
        peer.send(wrong)
        assert error_of(peer.skip_to(CLOSE))[0] == condition, wrong


def test_the_settle_mode_of_a_settled_transfer_is_ignored(opened: Opened) -> None:
    """There is nothing left to settle (2.7.5)."""
    peer = publishing(opened)
    peer.send(frame(TRANSFER, [UInt(0), UInt(0), b"t", UInt(0), True, False, UByte(1)], data(b"one")))
    assert body_of(peer.first(1, source=["queue://q"]).payload) == b"one"


NAMED = ["c", *[None] * 8]
WRONG_OPENS = [
    (frame(OPEN, []), INVALID_FIELD),
    (frame(OPEN, [UInt(1)]), DECODE_ERROR),
    (
        frame(OPEN, [*NAMED, {Symbol("product"): "??"}]).replace(b"??", b"\xff\xff"),
        DECODE_ERROR,
    ),
    (frame(OPEN, [*NAMED, {Symbol("??"): "rhea"}]).replace(b"??", b"\xc3\xa9"), DECODE_ERROR),
    (
        frame(OPEN, [*NAMED, {Symbol("char"): UInt(2**32 - 1)}]).replace(b"\x70", b"\x73"),
        DECODE_ERROR,
    ),
    (frame(OPEN, [*NAMED, {Described(ULong(1), "key"): "rhea"}]), DECODE_ERROR),
    (frame(OPEN, ["c", None, UInt(511)]), FRAMING_ERROR),
    (frame(OPEN, ["c", None, UInt(0)]), FRAMING_ERROR),
    (frame(OPEN, ["c"], channel=1), FRAMING_ERROR),
]


def test_an_open_that_is_wrong_is_answered_and_closed(gateway: RunningGateway) -> None:
    """
    Without a container-id, with wrong types, with properties that are not UTF-8, ASCII or symbols (1.6.20, 1.6.21,
    2.7.1), with frames below 512 octets, or on another channel than 0 (2.4.1).
    """
    for sent, condition in [*WRONG_OPENS, (frame(OPEN, ["c", None, UInt(512)]) + begin_frame(), None)]:
        with ScriptedPeer.connect(gateway.host_and_port()) as peer:
            peer.anonymous()
            peer.send(sent)
            peer.expect(OPEN)
            if condition is None:
                peer.expect(BEGIN)
            else:
                assert error_of(peer.expect(CLOSE))[0] == condition, sent


def test_a_begin_says_how_many_handles_there_may_be(start: Any) -> None:
    """handle-max comes from `max_links_per_session` (2.7.2); a link may have that handle."""
    gateway = start(limits=Limits(max_links_per_session=4))
    with ScriptedPeer.connect(gateway.host_and_port()) as peer:
        peer.anonymous()
        peer.open()
        assert peer.begin().field(4) == 3
        peer.attach(3, target=["queue://q"])
        peer.send(frame(ATTACH, ["n", UInt(4), True]))
        assert error_of(peer.skip_to(CLOSE))[0] == FRAMING_ERROR


def test_credit_past_the_largest_is_the_largest(opened: Opened) -> None:
    """The engine would take it for negative credit, and send nothing (2.7.4)."""
    peer = publishing(opened)
    peer.put(0, 0, b"one")
    peer.attach(1, receiver=True, source=["queue://q"])
    peer.send(frame(FLOW, [*SESSION, UInt(1), UInt(0), UInt(2**32 - 1)]))
    assert body_of(peer.skip_to(TRANSFER).payload) == b"one"


def test_a_message_format_holds_for_all_of_a_delivery(opened: Opened) -> None:
    """A continuation repeats it or leaves it out (2.7.5); another format ends the session."""
    peer = publishing(opened)
    message = data(b"in parts")
    for number, form in ((0, None), (1, UInt(0))):
        peer.send(
            frame(TRANSFER, [UInt(0), UInt(number), b"t", UInt(0), False, True], message[:5]),
            frame(TRANSFER, [UInt(0), None, None, form, False, False], message[5:]),
        )
        assert peer.told() == ACCEPTED
    peer.send(
        frame(TRANSFER, [UInt(0), UInt(2), b"t", UInt(0), False, True], message[:5]),
        frame(TRANSFER, [UInt(0), None, None, UInt(1), False, False], message[5:]),
    )
    assert error_of(peer.skip_to(END))[0] == INVALID_FIELD


def test_an_aborted_delivery_is_over(opened: Opened) -> None:
    """The next transfer begins a delivery of its own, with a format of its own."""
    peer = publishing(opened)
    peer.send(
        frame(TRANSFER, [UInt(0), UInt(0), b"t", UInt(0), False, True], b"half"),
        frame(TRANSFER, [UInt(0), None, None, None, None, False, None, None, None, True]),
        frame(TRANSFER, [UInt(0), UInt(1), b"u", UInt(1), False], data(b"whole")),
    )
    assert peer.told() == ACCEPTED


def by_symbol(name: str, fields: list[Any], payload: bytes = b"") -> bytes:
    """A performative with a symbol as its descriptor (1.3)."""
    return framed(encode(Described(Symbol(f"amqp:{name}:list"), fields)) + payload)


def test_performatives_and_states_may_be_described_by_symbols(opened: Opened) -> None:
    """All that a peer sends about a message, from the attach to the outcome, and the end of its session."""
    peer = opened()
    ends = [Described(Symbol("amqp:source:list"), []), Described(Symbol("amqp:target:list"), ["queue://q"])]
    peer.send(by_symbol("attach", ["s", UInt(0), False, None, None, *ends, None, None, UInt(0)]))
    peer.skip_to(FLOW)
    for number in range(2):
        peer.send(by_symbol("transfer", [UInt(0), UInt(number), b"t", UInt(0), False], data(b"%d" % number)))
        assert peer.told() == ACCEPTED
    peer.attach(1, receiver=True, source=["queue://q"])
    peer.send(by_symbol("flow", [*SESSION, UInt(1), UInt(0), UInt(2)]))
    delivery = peer.skip_to(TRANSFER).field(1)
    peer.skip_to(TRANSFER)
    released = Described(Symbol("amqp:released:list"), [])
    accepted = Described(Symbol("amqp:accepted:list"), [])
    peer.send(by_symbol("disposition", [True, UInt(delivery), None, True, accepted]))
    peer.send(by_symbol("disposition", [True, UInt(delivery + 1), None, True, released]))
    peer.send(by_symbol("detach", [UInt(1), True]), by_symbol("end", []))
    peer.skip_to(END)
    other = opened()
    other.attach_receiver("queue://q", credit=1)
    assert other.receive() == b"1"


def test_a_coordinator_and_a_transaction_s_state_may_be(opened: Opened) -> None:
    """Described by symbols, they work: the commit publishes the message."""
    peer = opened()
    coordinator = Described(Symbol("amqp:coordinator:list"), [])
    peer.attach(0, target=coordinator)
    txn_id = peer.declare(0, 0)
    peer.attach(1, target=["queue://q"])
    peer.transfer(1, 1, data(b"one"), state=Described(Symbol("amqp:transactional-state:list"), [txn_id]))
    peer.skip_to(DISPOSITION)
    assert peer.discharge(0, 2, txn_id) == ACCEPTED
    other = opened()
    other.attach_receiver("queue://q", credit=1)
    assert other.receive() == b"one"


def test_a_channel_can_be_begun_again_after_its_end(opened: Opened) -> None:
    """Repeatedly, with the end and the begin in one write."""
    peer = opened()
    for _ in range(3):
        peer.send(frame(END, []), frame(BEGIN, [None, *SESSION[1:], UShort(0)][:4]))
        peer.skip_to(END)
        peer.skip_to(BEGIN)
    peer.attach(0, target=["queue://q"])


def test_a_delivery_id_holds_for_all_of_a_delivery(opened: Opened) -> None:
    """A continuation repeats it or leaves it out (2.7.5); another id is an error."""
    peer = publishing(opened)
    peer.send(
        frame(TRANSFER, [UInt(0), UInt(0), b"t", UInt(0), False, True], b"half"),
        frame(TRANSFER, [UInt(0), UInt(9), b"t", None, False, False], b"whole"),
    )
    assert (
        error_of(next(said for said in peer.until(END, CLOSE) if said.code in (END, CLOSE)))[0]
        == INVALID_FIELD
    )


# --- 2.7.5, delivery-ids: a peer may count them apart for each link of a session --------------------------------------

FRAME_BYTES = 65_536


def outcomes(peer: ScriptedPeer, count: int) -> list[tuple[int, Any]]:
    """Ids and outcomes of the peer's next ``count`` deliveries, in the order in which they are settled."""
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
    """The bodies of a queue's first ``count`` messages."""
    other = opened()
    other.attach_receiver(queue, credit=count)
    return [other.receive() for _ in range(count)]


def test_two_publishers_and_a_coordinator_count_apart(opened: Opened) -> None:
    """
    Declare and discharge are 0 and 1 on the coordinator's link, whatever is published between them; then all goes on.
    """
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
    """Those of one link are accepted, and those of the other, with ids from 100, are rejected."""
    peer = publishing(opened, 2)
    for number in range(10):
        peer.transfer(0, number, data(b"%d" % number))
        peer.transfer(1, number + 100, b"no message")
    told = outcomes(peer, 20)
    assert [number for number, outcome in told if outcome == ACCEPTED] == list(range(10))
    assert [number for number, outcome in told if outcome != ACCEPTED] == list(range(100, 110))


def test_a_delivery_of_several_transfers_counts_once(opened: Opened) -> None:
    """Whether later transfers repeat its id or not; an aborted delivery counts, and gets no outcome."""
    peer = publishing(opened, 2)
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
    """Though the engine's delivery-id takes more octets than the peer's."""
    peer = publishing(opened, 2)
    for number in range(300):
        peer.transfer(0, number, data(b""), settled=True)
    for number in range(2):
        room = FRAME_BYTES - len(
            frame(TRANSFER, [UInt(1), UInt(number), b"tttt", UInt(0), False, False, None, None])
        )
        peer.transfer(1, number, data(b"x" * (room - 8)))
    assert outcomes(peer, 2) == [(0, ACCEPTED), (1, ACCEPTED)]


def test_what_a_peer_says_of_its_own_deliveries_is_let_be(opened: Opened) -> None:
    """A sender's disposition does not name a link, and is ignored; the sender still gets its outcomes."""
    peer = publishing(opened, 2)
    for handle in (0, 1):
        peer.transfer(handle, 0, data(b"x"))
    peer.send(disposition(0, 1, receiver=False), disposition(2**31 - 1, 2**32 - 2, receiver=False))
    assert outcomes(peer, 2) == [(0, ACCEPTED), (0, ACCEPTED)]


def test_what_is_received_in_such_a_session_is_settled_as_ever(opened: Opened) -> None:
    """The gateway's own ids count over all links."""
    peer = publishing(opened, 2)
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
    """The ids count against the connection's memory: here a single one exceeds that."""
    monkeypatch.setattr(link_table, "DELIVERY_ID_BYTES", Limits().connection_bytes + 1)
    peer = publishing(opened, 2)
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
    """Of the session if its links count apart, otherwise of the connection."""
    peer = publishing(opened, 2)
    for handle, number in sent:
        peer.transfer(handle, number, data(b"x"))
    ended = next(said for said in peer.until(END, CLOSE) if said.code in (END, CLOSE))
    assert (ended.code, error_of(ended)[0]) == (ends_with, INVALID_FIELD)


@pytest.mark.parametrize("seed", range(3))
def test_links_that_come_and_go_with_ids_at_random_cost_nobody_else(opened: Opened, seed: int) -> None:
    """Outcomes have only ids that were sent, and all those of links that stay attached; a jump ends the session."""
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
