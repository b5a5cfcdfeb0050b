"""
What reaches the port and is not a proper client: each stream ends cleanly, is logged, and harms no other client.

Random streams come from the fuzzer (``tests/fuzz``).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from amqp_ext.codec import Described, UInt, ULong, UShort, encode
from tests.support.frames import (
    AMQP_HEADER,
    ATTACH,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    OPEN,
    SASL_HEADER,
    TRANSFER,
    Frame,
    attach_frame,
    begin_frame,
    error_of,
    frame,
    framed,
    parse,
    transfer_frame,
)
from tests.support.messages import data
from tests.support.peer import OK, Peer
from tests.support.waiting import wait_until
from tests.system.conftest import Start
from tests.system.corpus import CASES, NOISE, OPENED, TO_OPEN, End
from tests.system.gateway_process import GatewayProcess
from tests.system.load import Bystander

MEGABYTE = 2**20
CREDIT = 100
MAX_MESSAGE_BYTES = 65_536
CONFIG = f"""
[limits]
handshake_timeout_ms = 3000
idle_timeout_ms = 3000
link_credit = {CREDIT}
max_message_bytes = {MAX_MESSAGE_BYTES}
"""


@pytest.fixture(scope="module")
def gateway(start_for_all: Start) -> GatewayProcess:
    return start_for_all(CONFIG)


@pytest.fixture
def harmless(gateway: GatewayProcess) -> Iterator[None]:
    """Checks that another client is served during the test, and that the gateway logs no error of its own."""
    with Bystander(gateway):
        yield
    assert gateway.mistakes() == []


# --- the corpus -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Played:
    """The result of a stream: what the gateway sent, whether it closed, and its log lines about this peer."""

    headers: list[bytes]
    frames: list[Frame]
    has_ended: bool
    lines: list[dict[str, Any]] = field(repr=False)

    def says(self, text: str) -> bool:
        return any(text in str(line) for line in self.lines)


def taken_apart(answer: bytes) -> tuple[list[bytes], list[Frame]]:
    headers, frames, at = [], [], 0
    while at < len(answer):
        if answer[at : at + 4] == b"AMQP":
            headers.append(answer[at : at + 8])
            at += 8
            continue
        stop = at + int.from_bytes(answer[at : at + 4], "big")
        assert at + 8 <= stop <= len(answer), "the gateway sent a frame that is none"
        received = parse(answer, at, stop)
        if received is not None:
            frames.append(received)
        at = stop
    return headers, frames


@pytest.fixture(scope="module")
def played(gateway: GatewayProcess) -> dict[str, Played]:
    """Every stream of the corpus, played concurrently while a bystander is served."""
    peers: dict[str, Peer] = {}
    answers: dict[str, tuple[bytes, bool]] = {}
    with ExitStack() as open_peers, Bystander(gateway):
        for name, case in CASES.items():
            peer = peers[name] = open_peers.enter_context(Peer.connect(gateway.address))
            peer.send(case.data)
        names = {name: peer.name for name, peer in peers.items()}
        for name, peer in peers.items():
            try:
                answers[name] = peer.rest(), True
            except TimeoutError:
                answers[name] = b"", False
    return {
        name: Played(*taken_apart(answer), has_ended, gateway.log_lines(peer=names[name]))
        for name, (answer, has_ended) in answers.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_stream_is_ended_logged_and_answered_in_amqp(name: str, played: dict[str, Played]) -> None:
    """
    The gateway ends the connection in the way the case says, and one line of its log says why. What it sends is a
    protocol header and whole frames; once it has opened, its last frame is a close.
    """
    result = played[name]
    assert result.has_ended
    assert result.says(CASES[name].end.value), result.lines
    assert not result.says("connection_failed")
    codes = [received.code for received in result.frames]
    assert set(result.headers) <= {SASL_HEADER, AMQP_HEADER}
    if OPEN in codes:
        assert codes[-1] == CLOSE
        if CASES[name].end is not End.CLOSE:
            assert error_of(result.frames[-1])[0].startswith("amqp:")


# --- a correct start, then a broken rule --------------------------------------------------------------------------


def sender(gateway: GatewayProcess) -> Peer:
    peer = Peer.opened(gateway.address)
    peer.attach_sender("queue://hostile")
    return peer


def receiver(gateway: GatewayProcess) -> Peer:
    peer = Peer.opened(gateway.address)
    peer.attach_receiver("queue://other", credit=10)
    return peer


def continued(body: bytes) -> bytes:
    """A further transfer of the delivery under way, with more to come."""
    return frame(TRANSFER, [UInt(0), None, None, None, None, True], body)


ONE = transfer_frame(0, 0, data(b"x"))
ENDLESS = transfer_frame(0, 0, data(b"x"), more=True) + continued(bytes(60_000)) * 50
FRAMING = "amqp:connection:framing-error"
BROKEN: dict[str, tuple[Callable[[GatewayProcess], Peer], bytes, str]] = {
    "transfers beyond the credit": (
        sender,
        b"".join(transfer_frame(0, n, data(b"x")) for n in range(CREDIT + 1)),
        "amqp:link:transfer-limit-exceeded",
    ),
    "a transfer on a receiver's link": (receiver, ONE, "amqp:not-allowed"),
    "an endless transfer on a receiver's link": (receiver, ENDLESS, "amqp:not-allowed"),
    "a channel above channel-max": (sender, framed(begin_frame()[8:], channel=60_000), FRAMING),
    "a transfer on no session": (sender, framed(ONE[8:], channel=9), "amqp:illegal-state"),
    "an end of no session": (sender, framed(frame(END, [])[8:], channel=9), "amqp:illegal-state"),
    "an unknown performative": (sender, frame(0x77, []), "amqp:decode-error"),
    "a frame of no type": (sender, framed(frame(END, [])[8:], kind=9), "amqp:decode-error"),
    "noise": (sender, NOISE, FRAMING),
    "a frame too long": (sender, (70_000).to_bytes(4, "big") + bytes(70_000), FRAMING),
    "a second open": (sender, OPENED[len(TO_OPEN) :], "amqp:not-allowed"),
}
"""For each broken rule: how to connect, what is sent, and the condition of the error."""


@pytest.mark.usefixtures("harmless")
@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_closes_the_connection(gateway: GatewayProcess, rule: str) -> None:
    """A peer that breaks a rule of the protocol gets an immediate close that says which rule."""
    begin, sent, condition = BROKEN[rule]
    with begin(gateway) as peer:
        peer.send(sent)
        assert error_of(peer.skip_to(CLOSE))[0] == condition
        assert peer.rest() == b""


@pytest.mark.usefixtures("harmless")
def test_what_comes_on_a_session_that_was_ended_is_not_kept(gateway: GatewayProcess) -> None:
    """However much arrives after the session's end: here 60 MB after an outcome for two billion deliveries."""
    two_billion = [True, UInt(0), UInt(2**31), True, Described(ULong(0x24), [])]
    before = gateway.resident_bytes()
    with sender(gateway) as peer:
        peer.send(frame(DISPOSITION, two_billion))
        assert error_of(peer.skip_to(END))[0] == "amqp:invalid-field"
        for number in range(1_000):
            peer.send(transfer_frame(0, number, bytes(60_000)))
        assert gateway.resident_bytes() - before < 16 * MEGABYTE


def test_heartbeats_come_as_often_as_the_client_asks(gateway: GatewayProcess) -> None:
    """A client with an idle time-out of 2 s gets an empty frame in time, several times."""
    with Peer.connect(gateway.address) as peer:
        assert peer.anonymous() == OK
        peer.open(idle_ms=2_000)
        for _ in range(2):
            began = time.monotonic()
            assert peer.frame() is None
            assert time.monotonic() - began < 2
            peer.send(framed(b""))


def test_an_idle_time_out_too_short_to_keep_to_is_refused(gateway: GatewayProcess) -> None:
    """A peer that asks for a heartbeat every millisecond is refused (AMQP 1.0 section 2.4.5)."""
    with Peer.connect(gateway.address) as peer:
        assert peer.anonymous() == OK
        peer.open(idle_ms=1)
        condition, text = error_of(peer.expect(CLOSE))
        assert condition == "amqp:not-allowed"
        assert "1 ms" in text


TO_NOWHERE = b"\x00\x53\x73\xc0\x05\x03\x40\x40\xa1\x09" + data(b"x")
TO_HOSTILE = encode(Described(ULong(0x73), [None, None, "queue://hostile"])) + data(b"good")


def test_a_to_that_cannot_be_read_is_rejected_and_the_relay_goes_on(gateway: GatewayProcess) -> None:
    """The message gets a decode error; the next one is accepted."""
    with Peer.opened(gateway.address) as peer:
        peer.attach_sender(None)
        peer.send(transfer_frame(0, 0, TO_NOWHERE), transfer_frame(0, 1, TO_HOSTILE))
        outcome = peer.skip_to(DISPOSITION).field(4)
        assert outcome.descriptor == 0x25
        assert str(outcome.value[0].value[0]) == "amqp:decode-error"
        assert peer.skip_to(DISPOSITION).field(4).descriptor == 0x24


@pytest.mark.usefixtures("harmless")
@pytest.mark.parametrize(
    ("address", "code", "condition"),
    [
        ("log://>", CLOSE, "amqp:resource-limit-exceeded"),
        ("queue://hostile", DETACH, "amqp:link:message-size-exceeded"),
    ],
    ids=["on a link that was refused", "on a link"],
)
def test_an_endless_message_is_stopped_at_a_limit(
    gateway: GatewayProcess, address: str, code: int, condition: str
) -> None:
    """An endless message costs its link over ``max_message_bytes``, or its connection, and nothing of it is kept."""
    before = gateway.resident_bytes()
    with Peer.opened(gateway.address) as peer:
        peer.send(attach_frame(0, receiver=False, address=address))
        attached = peer.expect(ATTACH)
        if attached.field(6) is None:
            assert error_of(peer.expect(DETACH))[0] == "amqp:not-allowed"
        with suppress(OSError):
            peer.send(transfer_frame(0, 0, bytes(60_000), more=True))
            for _ in range(1_000):
                peer.send(continued(bytes(60_000)))
        assert error_of(peer.skip_to(code))[0] == condition
        assert gateway.resident_bytes() - before < 16 * MEGABYTE


def test_a_message_cut_short_is_not_stored(gateway: GatewayProcess) -> None:
    """A message whose last transfer never comes is not stored, whether its link is detached or its connection lost."""
    pieces = transfer_frame(0, 0, data(b"cut short"), more=True)
    for end in (frame(DETACH, [UInt(0), True]), frame(END, []), frame(CLOSE, []), b""):
        with Peer.opened(gateway.address) as peer:
            peer.attach_sender("queue://cut")
            peer.send(pieces, end)
            peer.sock.shutdown(socket.SHUT_WR)
            peer.rest()
    with Peer.opened(gateway.address) as peer:
        peer.attach_sender("queue://cut")
        peer.publish(b"whole")
        peer.attach_receiver("queue://cut", credit=10)
        assert peer.receive() == b"whole"


ANSWERED_BEGIN = framed(encode(Described(ULong(0x11), [UShort(0), UInt(0), UInt(100), UInt(100)])))
"""A begin that answers a begin of the gateway on channel 0; the gateway has sent none."""

TWICE = {
    "an ended session answered, and ended again": frame(END, []) + ANSWERED_BEGIN + frame(END, []),
    "a session answered that is open": ANSWERED_BEGIN + frame(END, []) + frame(END, []),
    "an answered session on another channel": framed(ANSWERED_BEGIN[8:], channel=7) + frame(END, []),
    "a link attached anew behind its detach": (
        (attach_frame(5, receiver=True, address="queue://hostile") + frame(DETACH, [UInt(5), True])) * 3
    ),
    "a link detached behind the end of its session": (
        attach_frame(5, receiver=False, address="queue://hostile")
        + frame(END, [])
        + ANSWERED_BEGIN
        + frame(DETACH, [UInt(5), True])
        + frame(END, [])
    ),
}
"""Frames that make the engine reuse a session or link that the gateway has already released."""


@pytest.mark.usefixtures("harmless")
@pytest.mark.parametrize("name", TWICE)
def test_nothing_is_let_go_of_twice(gateway: GatewayProcess, name: str) -> None:
    """The peer gets a close; the process lives and serves others."""
    for _ in range(30):
        with Peer.opened(gateway.address) as peer:
            peer.send(TWICE[name], frame(CLOSE, []))
            assert any(received.code == CLOSE for received in taken_apart(peer.rest())[1])
    assert gateway.is_running


def test_after_all_that_a_client_is_served(gateway: GatewayProcess) -> None:
    """
    After all those streams the gateway serves a client, has closed every socket, and has logged no error of its own.
    """
    with Bystander(gateway):
        pass
    wait_until(lambda: gateway.established_sockets() == 0, "all connections gone")
    assert gateway.mistakes() == []
