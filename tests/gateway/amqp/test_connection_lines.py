"""How many log lines one peer can cause, and how long they are."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest
import structlog
from structlog.testing import capture_logs

from gateway.amqp.connection_log import ConnectionLog
from gateway.logging.lines import ADDRESS_BURST, BURST, COUNTS
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Refused


@pytest.fixture(autouse=True)
def _told() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(20))


def test_a_client_that_is_refused_again_and_again_is_told_of_now_and_then(
    start: Start, connect: Connect
) -> None:
    """Hundreds of refused links cause some lines; the connection's last line says how many were left out."""
    gateway = start()
    with capture_logs() as lines:
        client = connect(gateway)
        for _ in range(200):
            with suppress(Refused):
                client.receiver("queue://no/such/queue?create=never")
        client.close()
        gateway.stop()
    refused = [line for line in lines if line["event"] == "attach_refused"]
    assert BURST <= len(refused) < 100
    (closed,) = [line for line in lines if line["event"] == "connection_closed"]
    assert len(refused) + closed["held_back"] + sum(line.get("held_back", 0) for line in refused) == 200


def test_what_stands_in_every_line_is_cut() -> None:
    """A container-id of 64 kB is not in full in every line."""
    with capture_logs() as lines:
        log = ConnectionLog(1)
        log.bind(container="\x01" * 64_000)
        log.info("connection_opened")
    assert len(lines[0]["container"]) < 300


def test_who_connects_again_and_again_is_told_of_now_and_then(start: Start) -> None:
    """Each connection has a line or two; hundreds from one address have some, and a last line counts those left out."""
    gateway = start()
    before, count = COUNTS.held_back, ADDRESS_BURST * 2
    with capture_logs() as lines:
        for _ in range(count):
            with socket.create_connection(gateway.host_and_port()) as refused:
                refused.sendall(b"GET / HT")
                while refused.recv(4096):
                    pass
        gateway.stop()
    failed = [line for line in lines if line["event"] == "handshake_failed"]
    (told,) = [line for line in lines if line["event"] == "lines_held_back"]
    assert ADDRESS_BURST <= len(failed) < count
    assert len(failed) + sum(line.get("held_back", 0) for line in failed) + told["held_back"] == count
    assert told["peer"] == "127.0.0.1"
    assert COUNTS.held_back - before == count - len(failed)
