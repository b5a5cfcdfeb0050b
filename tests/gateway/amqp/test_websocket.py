"""AMQP over WebSocket: the same connection, carried by binary messages."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_websocket
from websockets.typing import Subprotocol

from amqp_ext.codec import UInt
from gateway.config import ConfigError, Limits, Listener, Tls, WebSocket, parse
from tests.gateway.amqp.conftest import Start
from tests.support.client import Client, texts
from tests.support.frames import (
    ACCEPTED,
    BEGIN,
    CLOSE,
    DISPOSITION,
    TRANSFER,
    WINDOW,
    disposition,
    error_of,
    frame,
    transfer_frame,
)
from tests.support.messages import data
from tests.support.peer import OK, Peer
from tests.support.running import RunningGateway

AMQP = Subprotocol("amqp")
PAGE = "https://console.example.com"


class Tunnel:
    """A WebSocket as a socket: what is sent goes out in binary messages of at most ``piece`` bytes."""

    def __init__(self, websocket: ClientConnection, piece: int = 1 << 20) -> None:
        self.websocket = websocket
        self._piece = piece

    def sendall(self, content: bytes) -> None:
        for start in range(0, len(content), self._piece):
            self.websocket.send(content[start : start + self._piece])

    def recv(self, size: int) -> bytes:
        try:
            received = self.websocket.recv(15)
        except ConnectionClosed:
            return b""
        assert isinstance(received, bytes)
        return received

    def setsockopt(self, *option: Any) -> None:
        self.websocket.socket.setsockopt(*option)

    def close(self) -> None:
        self.websocket.socket.close()


def opened(websocket: ClientConnection, piece: int = 1 << 20) -> Peer:
    peer = Peer(Tunnel(websocket, piece))  # type: ignore[arg-type]
    assert peer.anonymous() == OK
    peer.open()
    peer.begin()
    return peer


def how_it_ends(websocket: ClientConnection) -> int:
    """The code of the WebSocket's close, which comes next."""
    with pytest.raises(ConnectionClosed) as closed:
        websocket.recv(15)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    """A gateway that listens for WebSockets, with limits, and for plain sockets."""
    limited = WebSocket(origins=(PAGE,), max_message_bytes=100_000)
    return start(listeners=(Listener(port=0, websocket=limited), Listener(port=0)))


def connected(url: str, **options: Any) -> ClientConnection:
    return connect_websocket(url, subprotocols=[AMQP], compression=None, legacy=True, **options)


@pytest.mark.parametrize("piece", [1 << 20, 1], ids=["at once", "byte by byte"])
def test_a_client_publishes_and_consumes(gateway: RunningGateway, piece: int) -> None:
    """
    AMQP's bytes are the payload, however they are cut into messages; the subprotocol is amqp. A message sent over a
    WebSocket is consumed over TCP, too.
    """
    websocket = connected(gateway.url)
    assert websocket.subprotocol == "amqp"
    with opened(websocket, piece) as peer:
        peer.attach_sender("queue://q")
        peer.publish_all([b"over ws", b"over both"])
        peer.attach_receiver("queue://q", credit=1)
        assert peer.receive() == b"over ws"
        peer.close()
    with Client(gateway.urls[1]) as client:
        assert texts(client.receiver("q", credit=1).take_and_accept(1)) == ["over both"]


def test_a_message_of_megabytes_goes_both_ways(start: Start) -> None:
    """Output waits while the socket is full, and goes on."""
    gateway = start(listeners=(Listener(port=0, websocket=WebSocket()),))
    whole, size = data(bytes(range(256)) * 16_000), 60_000
    with opened(connected(gateway.url, max_size=None)) as peer:
        peer.attach_sender("queue://q")
        # In one transfer it would be larger than a frame may be.
        for at in range(0, len(whole), size):
            fields = [UInt(0), UInt(0), b"t", UInt(0), False, at + size < len(whole)]
            peer.send(frame(TRANSFER, fields, whole[at : at + size]))
        assert peer.skip_to(DISPOSITION).field(4).descriptor == ACCEPTED
        peer.attach_receiver("queue://q", credit=1)
        received, has_more = b"", True
        while has_more:
            transfer = peer.skip_to(TRANSFER)
            received += transfer.payload
            has_more = transfer.field(5, False)
        assert received.endswith(whole)


@pytest.mark.parametrize(
    ("options", "status", "word"),
    [
        ({"subprotocols": [Subprotocol("mqtt")]}, 400, b"subprotocol"),
        ({"subprotocols": [AMQP], "origin": "https://evil.example.com"}, 403, b""),
    ],
    ids=["another subprotocol", "another page"],
)
def test_who_may_not_connect_is_told_why(
    gateway: RunningGateway, options: dict[str, Any], status: int, word: bytes
) -> None:
    """
    A client that does not ask for amqp (AMQP WebSocket Binding, section 2.1), and a script of a page whose origin is
    not configured; one of a configured origin connects.
    """
    with pytest.raises(InvalidStatus) as refused:
        connect_websocket(gateway.url, legacy=True, **options)
    assert refused.value.response.status_code == status
    assert word in (refused.value.response.body or b"")
    connected(gateway.url, origin=PAGE).close()


@pytest.mark.parametrize(
    ("sent", "code"), [("AMQP", 1003), (bytes(100_001), 1009)], ids=["text", "more than the limit"]
)
def test_what_is_no_amqp_ends_it(gateway: RunningGateway, sent: str | bytes, code: int) -> None:
    """A text message ends it, and so does one that is too large, before that is held in memory."""
    websocket = connected(gateway.url)
    websocket.send(sent)
    assert how_it_ends(websocket) == code


def test_a_stop_is_told_through_it(gateway: RunningGateway) -> None:
    """AMQP's close comes first, then the WebSocket's, with 1000."""
    websocket = connected(gateway.url)
    peer = opened(websocket)
    gateway.stop()
    assert error_of(peer.skip_to(CLOSE))[0] == "amqp:connection:forced"
    assert how_it_ends(websocket) == 1000


SESSIONS = b"".join(
    frame(BEGIN, [None, UInt(0), UInt(WINDOW), UInt(WINDOW)], channel=channel) for channel in range(1, 150)
)
"""More than one turn of the loop handles."""


@pytest.mark.parametrize("before", [b"", SESSIONS], ids=["at once", "in a later turn"])
@pytest.mark.parametrize("last", [b"\x88\x80\0\0\0\0", b"\xff\xff"], ids=["a close", "no frame"])
def test_what_came_before_the_end_counts(gateway: RunningGateway, before: bytes, last: bytes) -> None:
    """An accept and a message that are read together with the WebSocket's close, or with bytes that are no frame."""
    websocket = connected(gateway.url)
    peer = opened(websocket)
    peer.attach_sender("queue://q")
    peer.publish(b"accepted")
    peer.attach_receiver("queue://q", credit=1)
    assert peer.receive(accept=False) == b"accepted"
    frames = [before, disposition(0, 0), transfer_frame(0, 1, data(b"sent last"))]
    sent = [Frame(Opcode.BINARY, content).serialize(mask=True) for content in frames if content]
    websocket.socket.sendall(b"".join(sent) + last)
    with pytest.raises(ConnectionClosed):
        while True:
            websocket.recv(15)
    with Client(gateway.urls[1]) as client:
        assert texts(client.receiver("q", credit=1).take_and_accept(1)) == ["sent last"]


def test_who_connects_and_does_not_ask_is_cut_off(start: Start) -> None:
    """The handshake timeout begins with the socket: waiting before the upgrade does not prolong it."""
    gateway = start(
        limits=Limits(handshake_timeout_ms=100), listeners=(Listener(port=0, websocket=WebSocket()),)
    )
    with Peer.connect(gateway.host_and_port()) as peer:
        assert peer.rest() == b""


def test_who_is_refused_and_does_not_answer_the_close_is_cut_off(gateway: RunningGateway) -> None:
    """A client that speaks no AMQP gets a close frame; if it does not answer that, its connection ends all the same."""
    with Peer.connect(gateway.host_and_port()) as peer:
        no_amqp = Frame(Opcode.BINARY, b"GET / HTTP/1.1").serialize(mask=True)
        peer.send(HEAD.format(version="13").encode() + no_amqp)
        assert b"\x88\x02\x03\xe8" in peer.rest(), "a close frame, and the end of the socket"


def test_it_goes_through_tls(start: Start, tmp_path: Path) -> None:
    """With a certificate the listener is wss."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    tls = Tls(certificate=tmp_path / "server.pem", key=tmp_path / "server.key")
    issued.cert_chain_pems[0].write_to_path(tls.certificate)
    issued.private_key_pem.write_to_path(tls.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    gateway = start(listeners=(Listener(port=0, websocket=WebSocket(), tls=tls),))
    assert gateway.url.startswith("wss://")
    opened(connected(gateway.url, ssl=context, server_hostname="localhost")).sock.close()


def test_an_origin_is_written_as_browsers_send_it() -> None:
    """With a path it would never match: the error says what to write."""
    with pytest.raises(ConfigError, match="write `https://HOST`"):
        parse('[[listener]]\n[listener.websocket]\norigins = ["https://a.example.com/"]\n')


HEAD = (
    "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: {version}\r\n"
    "Sec-WebSocket-Protocol: amqp\r\n\r\n"
)


@pytest.mark.parametrize(
    ("version", "behind", "status"),
    [
        ("13", b"\x88\x80\0\0\0\0", b"101"),
        ("13", b"\x89\x80\0\0\0\0", b"101"),
        ("13", b"\xff\xff" + bytes(20), b"101"),
        ("8", b"\xff\xff" + bytes(20), b"400"),
        ("8", b"\x88\x80\0\0\0\0", b"400"),
    ],
    ids=["a close", "a ping", "no frame", "no frame, refused", "a close, refused"],
)
def test_what_is_behind_the_upgrade_is_answered_behind_it(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture, version: str, behind: bytes, status: bytes
) -> None:
    """
    A client that sends more before the answer gets the answer to its upgrade first, whatever it sent; nothing fails.
    """
    with Peer.connect(gateway.host_and_port()) as peer:
        peer.send(HEAD.format(version=version).encode() + behind)
        assert peer.take(12) == b"HTTP/1.1 " + status
        if behind[0] != 0x89:
            peer.rest()
        else:
            answer = b""
            while not answer.endswith(b"\r\n\r\n"):
                answer += peer.take(1)
            assert peer.take(2) == b"\x8a\x00", "a pong"
    assert "Fatal error" not in caplog.text
