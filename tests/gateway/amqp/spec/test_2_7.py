"""
2.7, performatives: fields that have to be there, their types, and frames for what is not there. What is wrong on a
session ends that; what is wrong about the connection closes it.
"""

from __future__ import annotations

from typing import Any

from amqp_ext.codec import Described, Symbol, UByte, UInt, ULong, UShort, encode
from gateway.config import Limits
from tests.gateway.amqp.spec.conftest import Opened, OpenedAt, ScriptedPeer
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
    begin_frame,
    error_of,
    frame,
    framed,
)
from tests.support.messages import body_of, data
from tests.support.running import RunningGateway

INVALID_FIELD, DECODE_ERROR = "amqp:invalid-field", "amqp:decode-error"
FRAMING_ERROR = "amqp:connection:framing-error"
UNATTACHED = "amqp:session:unattached-handle"
SESSION = [UInt(0), UInt(WINDOW), UInt(0), UInt(WINDOW)]
TARGET, SOURCE = Described(ULong(0x29), ["queue://q"]), Described(ULong(0x28), [])


def a_session_works(peer: ScriptedPeer, channel: int) -> None:
    """What is wrong on one session is no other's concern: this one begins, and has a link."""
    peer.send(begin_frame()[:6] + channel.to_bytes(2, "big") + begin_frame()[8:])
    peer.skip_to(BEGIN)
    peer.attach(0, receiver=True, source=["queue://q"], channel=channel)


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
    """With an end that says why. What comes on its channel meanwhile is discarded, up to the peer's own end (2.5.8)."""
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
    """What a consumer had not settled is another's."""
    peer = opened()
    peer.attach(0, target=["queue://q"])
    peer.transfer(0, 0, data(b"one"))
    assert peer.told() == ACCEPTED
    peer.attach(1, receiver=True, source=["queue://q"])
    peer.send(frame(FLOW, [*SESSION, UInt(1), UInt(0), UInt(1)]))
    peer.skip_to(TRANSFER)
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
    A session that cannot begin has no end to say it by; neither has a channel, or a handle, that cannot be. A handle in
    use closes not its session alone, though the condition is a session's: 2.7.3 says so of the field.
    """
    for wrong, condition in WRONG_ABOUT_THE_CONNECTION:
        peer = opened()
        peer.attach(0, target=["queue://q"])
        peer.send(wrong)
        assert error_of(peer.skip_to(CLOSE))[0] == condition, wrong


def test_the_settle_mode_of_a_settled_transfer_is_ignored(opened: Opened) -> None:
    """There is nothing left to settle (2.7.5)."""
    peer = opened()
    peer.attach(0, target=["queue://q"])
    peer.send(frame(TRANSFER, [UInt(0), UInt(0), b"t", UInt(0), True, False, UByte(1)], data(b"one")))
    peer.attach(1, receiver=True, source=["queue://q"])
    peer.send(frame(FLOW, [*SESSION, UInt(1), UInt(0), UInt(1)]))
    assert body_of(peer.skip_to(TRANSFER).payload) == b"one"


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
    Without a container-id, of wrong types, with properties that are no UTF-8, no ASCII or no symbols (1.6.20, 1.6.21,
    2.7.1), with frames below 512 octets, on another channel than 0 (2.4.1).
    """
    for sent, condition in [*WRONG_OPENS, (frame(OPEN, ["c", None, UInt(512)]) + begin_frame(), None)]:
        host, _, port = gateway.address.rpartition(":")
        with ScriptedPeer.connect((host, int(port))) as peer:
            peer.anonymous()
            peer.send(sent)
            peer.expect(OPEN)
            if condition is None:
                peer.expect(BEGIN)
            else:
                assert error_of(peer.expect(CLOSE))[0] == condition, sent


def test_a_begin_says_how_many_handles_there_may_be(start: Any, opened_at: OpenedAt) -> None:
    """`max_links_per_session` (2.7.2), which a link at the last of them is within."""
    gateway = start(limits=Limits(max_links_per_session=4))
    host, _, port = gateway.address.rpartition(":")
    with ScriptedPeer.connect((host, int(port))) as peer:
        peer.anonymous()
        peer.open()
        assert peer.begin().field(4) == 3
        peer.attach(3, target=["queue://q"])
        peer.send(frame(ATTACH, ["n", UInt(4), True]))
        assert error_of(peer.skip_to(CLOSE))[0] == FRAMING_ERROR


def test_credit_past_the_largest_is_the_largest(opened: Opened) -> None:
    """An engine may take it for a debt, and send nothing (2.7.4)."""
    peer = opened()
    peer.attach(0, target=["queue://q"])
    peer.transfer(0, 0, data(b"one"))
    assert peer.told() == ACCEPTED
    peer.attach(1, receiver=True, source=["queue://q"])
    peer.send(frame(FLOW, [*SESSION, UInt(1), UInt(0), UInt(2**32 - 1)]))
    assert body_of(peer.skip_to(TRANSFER).payload) == b"one"


def test_a_message_format_holds_for_all_of_a_delivery(opened: Opened) -> None:
    """A continuation says it again or not at all (2.7.5); another ends the session, and the message is nowhere."""
    peer = opened()
    peer.attach(0, target=["queue://q"])
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
    """What follows is a delivery of its own, with a format of its own."""
    peer = opened()
    peer.attach(0, target=["queue://q"])
    peer.send(
        frame(TRANSFER, [UInt(0), UInt(0), b"t", UInt(0), False, True], b"half"),
        frame(TRANSFER, [UInt(0), None, None, None, None, False, None, None, None, True]),
        frame(TRANSFER, [UInt(0), UInt(1), b"u", UInt(1), False], data(b"whole")),
    )
    assert peer.told() == ACCEPTED


def by_symbol(name: str, fields: list[Any], payload: bytes = b"") -> bytes:
    """A performative whose descriptor is spelled out (1.3)."""
    return framed(encode(Described(Symbol(f"amqp:{name}:list"), fields)) + payload)


def test_performatives_and_states_may_be_described_by_symbols(opened: Opened) -> None:
    """All that a peer says of a message, from the attach to the outcome, and the session that it says it on."""
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
    """The commit has the message."""
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
    """As often as one likes, in one write."""
    peer = opened()
    for _ in range(3):
        peer.send(frame(END, []), frame(BEGIN, [None, *SESSION[1:], UShort(0)][:4]))
        peer.skip_to(END)
        peer.skip_to(BEGIN)
    peer.attach(0, target=["queue://q"])


def test_a_delivery_id_holds_for_all_of_a_delivery(opened: Opened) -> None:
    """A continuation says it again or not at all (2.7.5)."""
    peer = opened()
    peer.attach(0, target=["queue://q"])
    peer.send(
        frame(TRANSFER, [UInt(0), UInt(0), b"t", UInt(0), False, True], b"half"),
        frame(TRANSFER, [UInt(0), UInt(9), b"t", None, False, False], b"whole"),
    )
    assert (
        error_of(next(said for said in peer.until(END, CLOSE) if said.code in (END, CLOSE)))[0]
        == INVALID_FIELD
    )
