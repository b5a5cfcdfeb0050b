"""The SASL exchange, with a scripted broker at the other end of a socket pair."""

import socket
from collections.abc import Iterator

import pytest

from amqp_ext.codec import Array, Described, Symbol, UByte, decode
from spark_bridge.amqp_client.wire import SASL_HEADER, authenticate
from store.archive.errors import ConnectionFailed
from tests.support.frames import SASL_FRAME, SASL_MECHANISMS, SASL_OUTCOME, frame

pytestmark = pytest.mark.spark


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets: the bridge's and the broker's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def sasl_frame(code: int, *fields: object) -> bytes:
    return frame(code, list(fields), kind=SASL_FRAME)


def mechanisms(*names: str) -> bytes:
    """The broker's opening: header and sasl-mechanisms."""
    return SASL_HEADER + sasl_frame(SASL_MECHANISMS, Array([Symbol(name) for name in names]))


def outcome(code: int) -> bytes:
    """sasl-outcome."""
    return sasl_frame(SASL_OUTCOME, UByte(code))


def test_anonymous_without_a_user(pair: tuple[socket.socket, socket.socket]) -> None:
    """Header, then sasl-init with ANONYMOUS; and not a byte behind the outcome is taken."""
    ours, theirs = pair
    theirs.sendall(mechanisms("PLAIN", "ANONYMOUS") + outcome(0) + b"AMQP\x00\x01\x00\x00")
    authenticate(ours, "amqp://b", None, None, "")
    sent = theirs.recv(4096)
    assert sent[:8] == SASL_HEADER
    assert decode(sent, 16)[0] == Described(0x41, ["ANONYMOUS", b"anonymous"])
    assert ours.recv(8) == b"AMQP\x00\x01\x00\x00"


def test_plain_with_a_user(pair: tuple[socket.socket, socket.socket]) -> None:
    """PLAIN sends user and password apart by NUL, and the Message VPN as host name."""
    ours, theirs = pair
    theirs.sendall(mechanisms("PLAIN") + outcome(0))
    authenticate(ours, "amqp://b", "trading", "ann", "pä55")
    assert decode(theirs.recv(4096), 16)[0] == Described(
        0x41, ["PLAIN", b"\0ann\0" + "pä55".encode(), "trading"]
    )


def test_a_single_mechanism_need_not_be_an_array(pair: tuple[socket.socket, socket.socket]) -> None:
    """A field that may hold many may hold one value without the array (AMQP 1.0, 1.3)."""
    ours, theirs = pair
    theirs.sendall(SASL_HEADER + sasl_frame(SASL_MECHANISMS, Symbol("ANONYMOUS")) + outcome(0))
    authenticate(ours, "amqp://b", None, None, "")


@pytest.mark.parametrize(
    ("answer", "user", "sentence"),
    [
        (
            mechanisms("PLAIN"),
            None,
            "offers SASL PLAIN, not ANONYMOUS; set the options user and passwordFile",
        ),
        (mechanisms("ANONYMOUS"), "ann", "offers SASL ANONYMOUS, not PLAIN; leave user and passwordFile out"),
        (
            mechanisms("PLAIN") + outcome(1),
            "ann",
            "refused the login of ann: the user name or password is wrong",
        ),
        (mechanisms("PLAIN") + sasl_frame(SASL_OUTCOME), "ann", "refused the login of ann"),
        (b"AMQP\x00\x01\x00\x00", None, "does not speak AMQP 1.0 with SASL"),
        (b"HTTP/1.1 400 Bad", None, "does not speak AMQP 1.0 with SASL"),
        (SASL_HEADER + b"\xff" * 8, None, "where a SASL frame should start"),
        (SASL_HEADER + b"\x00\x00\x00\x0b\x02\x01\x00\x00\x00\x53\x40", None, "that cannot be read"),
        (SASL_HEADER + outcome(0), None, "where SASL performative 0x40 is due"),
        (SASL_HEADER, None, "closed the connection during the SASL exchange"),
    ],
)
def test_a_failed_login_is_explained(
    pair: tuple[socket.socket, socket.socket], answer: bytes, user: str | None, sentence: str
) -> None:
    """Whatever the broker answers, the error names the broker and the remedy where there is one."""
    ours, theirs = pair
    theirs.sendall(answer)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionFailed, match=r"^\[REWIND_CONNECTION\] amqp://b ") as caught:
        authenticate(ours, "amqp://b", None, user, "x")
    assert sentence in str(caught.value)
