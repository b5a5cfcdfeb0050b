"""The AMQP client: links and logins, against proton's public engine."""

from __future__ import annotations

import gc
import socket
import threading
from pathlib import Path

import pytest

from amqp_ext.codec import Array, Described, Symbol, UByte, decode
from spark_bridge.amqp_client.links import Receiver, Sender
from spark_bridge.amqp_client.wire import Broker, Wire
from spark_bridge.errors import Refused
from store.archive.errors import ConnectionFailed
from tests.spark_bridge.log_peer import LogPeer, annotated, data
from tests.support.frames import (
    AMQP_HEADER,
    SASL_FRAME,
    SASL_HEADER,
    SASL_MECHANISMS,
    SASL_OUTCOME,
    frame,
)

pytestmark = pytest.mark.spark
FROM_BEGINNING = {"rewind:replay-start": Described(Symbol("rewind:replay-start"), "beginning")}


def everything(link: Receiver) -> list[bytes]:
    """All messages up to the end of the link."""
    messages: list[bytes] = []
    while taken := link.receive(700):
        messages += taken
    return messages


def test_messages_arrive_bit_for_bit_in_order(log_peer: LogPeer) -> None:
    """Messages of one frame or many arrive as sent, and after the link's end receive returns nothing."""
    sizes = [0, 1, 300, 70_000, 1_000_000, 5] * 3 + [10] * 6_000
    log_peer.messages = {n: annotated(n, data(bytes([n % 251]) * size)) for n, size in enumerate(sizes)}
    with Wire(log_peer.broker) as wire:
        link = Receiver(wire, "log://>", filters=FROM_BEGINNING)
        assert everything(link) == list(log_peer.messages.values())
        assert link.receive(1) == []


def test_what_is_sent_is_accepted_in_order(log_peer: LogPeer) -> None:
    """``send`` returns when all messages are accepted, and the reported progress never falls."""
    messages = [b"m%d" % n * (n % 90) or b"-" for n in range(3_000)] + [b"x" * 200_000]
    counts: list[int] = []
    with Wire(log_peer.broker) as wire:
        link = Sender(wire, None)
        assert link.send(messages, counts.append) == len(messages)
        link.detach()
    assert log_peer.received == messages
    assert counts == sorted(counts)
    assert counts[-1] == len(messages)


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        ("REJECTED", r"a message was rejected: amqp:resource-limit-exceeded \(the log is full\)\."),
        ("RELEASED", r"a message was released\."),
    ],
)
def test_a_message_not_accepted_is_an_error(log_peer: LogPeer, outcome: str, sentence: str) -> None:
    """The error names the outcome and quotes the broker's error."""
    log_peer.outcome = outcome
    with Wire(log_peer.broker) as wire, pytest.raises(Refused, match=sentence):
        Sender(wire, "topic://a").send([b"m"])


def test_a_refused_link_tells_the_brokers_reason(log_peer: LogPeer) -> None:
    """Condition and text of the refusal reach the caller."""
    log_peer.refusal = ("amqp:not-found", "there is no such queue.")
    with Wire(log_peer.broker) as wire, pytest.raises(Refused) as caught:
        Receiver(wire, "queue://none", filters=FROM_BEGINNING)
    assert caught.value.condition == "amqp:not-found"
    assert caught.value.sentence == (
        f"Reading queue://none from {log_peer.url} was refused: amqp:not-found (there is no such queue)."
    )


def test_a_detach_with_an_error_is_not_an_end(log_peer: LogPeer) -> None:
    """A link that is detached with an error raises it rather than looking like the end of the log."""
    log_peer.messages = {n: annotated(n) for n in range(10)}
    log_peer.stop_after = 4
    with Wire(log_peer.broker) as wire:
        link = Receiver(wire, "log://>", filters=FROM_BEGINNING)
        with pytest.raises(Refused, match="was ended by the broker: amqp:resource-deleted"):
            everything(link)


def test_a_silent_peer_is_given_up(log_peer: LogPeer) -> None:
    """Waiting ends after the timeout, and the error says how long the peer was silent."""
    log_peer.messages = {n: annotated(n) for n in range(10)}
    log_peer.stop_after, log_peer.ending = 4, "silent"
    with Wire(log_peer.broker, timeout=0.2) as wire:
        link = Receiver(wire, "log://>", filters=FROM_BEGINNING)
        with pytest.raises(ConnectionFailed, match="has been silent for 0"):
            everything(link)


def test_nobody_listening_is_a_sentence() -> None:
    """A refused connection, the most common mistake, is an error with the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{port} cannot be reached: Connection refused"):
        Wire(Broker("127.0.0.1", port))


def test_a_closed_wire_leaves_nothing_open(log_peer: LogPeer) -> None:
    """A second close is no error, and no socket stays open: its ResourceWarning would fail the test."""
    wire = Wire(log_peer.broker)
    wire.close()
    wire.close()
    del wire
    gc.collect()


def sasl_frame(code: int, *fields: object) -> bytes:
    return frame(code, list(fields), kind=SASL_FRAME)


def mechanisms(*names: str) -> bytes:
    """The broker's first bytes: the SASL header and sasl-mechanisms."""
    return SASL_HEADER + sasl_frame(SASL_MECHANISMS, Array([Symbol(name) for name in names]))


def outcome(code: int) -> bytes:
    """The frame sasl-outcome with this code."""
    return sasl_frame(SASL_OUTCOME, UByte(code))


def failed_login(tmp_path: Path, answer: bytes, user: str | None) -> tuple[str, bytes]:
    """Log in to a broker that sends ``answer`` and closes; returns the client's error and what the client sent."""
    sent: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        with listener.accept()[0] as peer:
            peer.sendall(answer)
            peer.shutdown(socket.SHUT_WR)
            while received := peer.recv(4_096):
                sent.append(received)

    (tmp_path / "password").write_text("pä55\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve, args=(listener,))
        serving.start()
        broker = Broker("127.0.0.1", listener.getsockname()[1], "trading", user, str(tmp_path / "password"))
        with pytest.raises(ConnectionFailed, match=r"^\[REWIND_CONNECTION\] ") as caught:
            Wire(broker)
        serving.join()
    assert broker.url in str(caught.value)
    return str(caught.value), b"".join(sent)


@pytest.mark.parametrize(
    ("offered", "user", "init"),
    [
        (mechanisms("PLAIN", "ANONYMOUS"), None, ["ANONYMOUS", b"anonymous"]),
        (mechanisms("PLAIN", "ANONYMOUS"), "ann", ["PLAIN", b"\0ann\0" + "pä55".encode()]),
        # a field with multiple values may have a single one without an array (AMQP 1.0, section 1.3)
        (
            SASL_HEADER + sasl_frame(SASL_MECHANISMS, Symbol("ANONYMOUS")),
            None,
            ["ANONYMOUS", b"anonymous"],
        ),
    ],
)
def test_plain_is_for_a_user_and_anonymous_for_nobody(
    tmp_path: Path, offered: bytes, user: str | None, init: list[object]
) -> None:
    """With a user the client uses PLAIN, otherwise ANONYMOUS; after the login it opens AMQP for the Message VPN."""
    _, sent = failed_login(tmp_path, offered + outcome(0) + AMQP_HEADER, user)
    assert sent.startswith(SASL_HEADER)
    value, end = decode(sent, 16)
    assert value == Described(0x41, init)
    assert sent[end:].startswith(AMQP_HEADER) and b"vhost:trading" in sent[end:]


@pytest.mark.parametrize(
    ("answer", "user", "sentence"),
    [
        (mechanisms("PLAIN"), None, "not offer SASL ANONYMOUS; set the options user and passwordFile"),
        (mechanisms("ANONYMOUS"), "ann", "not offer SASL PLAIN; leave user and passwordFile out"),
        (mechanisms("PLAIN") + outcome(1), "ann", "login of ann: the user name or password is wrong"),
        (mechanisms("PLAIN") + outcome(2), "ann", "refused the login of ann: the broker had a system error"),
        (AMQP_HEADER, None, "does not speak AMQP 1.0 with SASL"),
        (b"HTTP/1.1 400 Bad", None, "does not speak AMQP 1.0 with SASL"),
        (SASL_HEADER + b"\xff" * 8, None, "does not speak AMQP 1.0 with SASL"),
        (
            SASL_HEADER + b"\0\0\0\x0b\2\1\0\0\0\x53\x40",
            None,
            "closed the connection during the SASL exchange",
        ),
        (SASL_HEADER, None, "closed the connection during the SASL exchange"),
    ],
)
def test_a_failed_login_is_explained(tmp_path: Path, answer: bytes, user: str | None, sentence: str) -> None:
    """For each failure of a login, the error names the broker and, where possible, a remedy."""
    assert sentence in failed_login(tmp_path, answer, user)[0]
