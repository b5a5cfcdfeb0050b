"""The login, with a scripted broker at the other end."""

import socket
import threading
from pathlib import Path

import pytest

from amqp_ext.codec import Array, Described, Symbol, UByte, decode
from spark_bridge.amqp_client.wire import Broker, Wire
from store.archive.errors import ConnectionFailed
from tests.support.frames import (
    AMQP_HEADER,
    SASL_FRAME,
    SASL_HEADER,
    SASL_MECHANISMS,
    SASL_OUTCOME,
    frame,
)

pytestmark = pytest.mark.spark


def sasl_frame(code: int, *fields: object) -> bytes:
    return frame(code, list(fields), kind=SASL_FRAME)


def mechanisms(*names: str) -> bytes:
    """The broker's opening: header and sasl-mechanisms."""
    return SASL_HEADER + sasl_frame(SASL_MECHANISMS, Array([Symbol(name) for name in names]))


def outcome(code: int) -> bytes:
    """sasl-outcome."""
    return sasl_frame(SASL_OUTCOME, UByte(code))


def failed_login(tmp_path: Path, answer: bytes, user: str | None) -> tuple[str, bytes]:
    """What is said of a broker that answers so and ends, and what it was sent."""
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
        # a field that may hold many may hold one value without the array (AMQP 1.0, 1.3)
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
    """PLAIN sends user and password apart by NUL; once that is accepted AMQP begins, for the Message VPN."""
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
    """Whatever the broker answers, the error names the broker and the remedy where there is one."""
    assert sentence in failed_login(tmp_path, answer, user)[0]
