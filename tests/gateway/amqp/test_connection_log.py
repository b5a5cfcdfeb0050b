"""What one peer can have the log say."""

from __future__ import annotations

from contextlib import suppress

import pytest
import structlog
from structlog.testing import capture_logs

from gateway.amqp.connection_log import ConnectionLog
from gateway.line_rate import BURST
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Refused


@pytest.fixture
def _told() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(20))


@pytest.mark.usefixtures("_told")
def test_a_client_that_is_refused_again_and_again_is_told_of_now_and_then(
    start: Start, connect: Connect
) -> None:
    """Hundreds of refused links are some lines; the last one of the connection says how many were left out."""
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


@pytest.mark.usefixtures("_told")
def test_what_stands_in_every_line_is_cut() -> None:
    """A container-id of 64 kB is not held, and not said, with every line."""
    with capture_logs() as lines:
        log = ConnectionLog(1)
        log.bind(container="\x01" * 64_000)
        log.info("connection_opened")
    assert len(lines[0]["container"]) < 300
