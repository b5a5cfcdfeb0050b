"""The load generator against its null peer, over real sockets in one process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from amqp_ext.codec import Described, Symbol, ULong
from tests.bench.generator import null_peer
from tests.bench.generator.connection import Connection, Refused
from tests.bench.generator.receiver import Receiver
from tests.bench.generator.sender import MAX_OUTSTANDING, Sender
from tests.bench.generator.transfers import BLOCK
from tests.support.frames import ATTACH, DETACH, frame

COUNT = 5 * BLOCK + 3
"""Not a multiple of a block, and beyond what one octet of a delivery id can count."""


@pytest.fixture
def connection() -> Iterator[Connection]:
    """A client's connection to a null peer that serves it from another thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as sock:
                null_peer.serve(Connection.accept(sock, "null"))

        peer = threading.Thread(target=serve)
        peer.start()
        client = Connection.connect("127.0.0.1", listener.getsockname()[1], "test")
        yield client
        client.close()
        peer.join()


@pytest.mark.parametrize("outstanding", [1, 7, 1000])
def test_every_message_sent_is_accepted_and_timed(connection: Connection, outstanding: int) -> None:
    """A run of publishing ends when all is accepted, with one latency for each message."""
    connection.attach(sender=True, address="null")

    sent = Sender(connection, 256).send(COUNT, outstanding)

    assert sent.count == len(sent.latencies) == COUNT
    assert min(sent.latencies) > 0


@pytest.mark.parametrize("credit", [1, 10, 1000])
def test_messages_received_are_those_sent_in_their_order(connection: Connection, credit: int) -> None:
    """The numbers in the bodies come through every octet of a block's patches, and credit never dries up."""
    connection.attach(sender=False, address="null")

    received = Receiver(connection, 256).receive(COUNT, credit, timed=True)

    assert received.count == len(received.latencies) == COUNT
    assert received.in_order


def test_outstanding_beyond_the_sockets_buffers_is_refused(connection: Connection) -> None:
    """A limit that could deadlock the blocking socket is an error, not a hang."""
    connection.attach(sender=True, address="null")

    with pytest.raises(ValueError, match="from 1 to 10000"):
        Sender(connection, 256).send(1, MAX_OUTSTANDING + 1)


def test_a_refused_link_says_why() -> None:
    """A detach after an attach with a null terminus becomes ``Refused`` in the peer's own words."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        error = Described(ULong(0x1D), [Symbol("amqp:not-allowed"), "a log cannot be written to"])

        def refuse() -> None:
            with listener.accept()[0] as sock:
                peer = Connection.accept(sock, "refusing")
                peer.fill()
                sock.sendall(frame(ATTACH, ["bench", ULong(0), True, None, None, None, None]))
                sock.sendall(frame(DETACH, [ULong(0), True, error]))
                with pytest.raises(Refused, match="closed the socket"):
                    peer.fill()

        peer = threading.Thread(target=refuse)
        peer.start()
        client = Connection.connect("127.0.0.1", listener.getsockname()[1], "test")

        with pytest.raises(Refused, match="amqp:not-allowed: a log cannot be written to"):
            client.attach(sender=True, address="log://>")

        client.sock.close()
        peer.join()
