"""The comparison, with the one broker that is always at hand."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path

import pytest

from tests.bench.generator import null_peer
from tests.bench.generator.connection import Connection
from tests.bench.peers.__main__ import main
from tests.bench.peers.broker import PeerFailed
from tests.bench.peers.broker_process import BrokerProcess
from tests.support.ports import free_port

BURN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ntime.sleep(60)"
PARENT = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {BURN!r}]).wait()"


def test_rewind_is_measured_in_all_that_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Messages come back durable, numbered and in order, or there would be no figure."""
    status = main(
        ["rewind", "--count", "2000", "--single", "50", "--rounds", "1", "--json", "--keep-in", str(tmp_path)]
    )

    (figures,) = json.loads(capsys.readouterr().out)["rewind"]
    assert status == 0
    for name in ("publish", "consume", "replay"):
        assert figures[name] > 0
        assert figures[f"{name}_resident"] > 10
    assert 0 < figures["single_p50"] <= figures["single_p99"]
    assert figures["commit_p50"] > 0
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_an_unknown_broker_is_an_error_that_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    """Bad usage ends before anything is brought."""
    with pytest.raises(SystemExit):
        main(["kafka"])
    assert "no broker kafka; there are rewind, rabbitmq-quorum" in capsys.readouterr().err


def test_a_brokers_children_are_counted_with_it() -> None:
    """A start script that stays, or a virtual machine's helpers: their processor time and memory are the broker's."""
    with BrokerProcess([sys.executable, "-c", PARENT], free_port()) as process:
        while process.cpu_seconds() < 0.3:
            threading.Event().wait(0.01)
        assert len(process.pids()) == 2
        assert process.resident_bytes() > 2 * 4_000_000
        pids = process.pids()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_a_broker_that_ends_says_why() -> None:
    """What it printed last is in the error."""
    with (
        BrokerProcess([sys.executable, "-c", "print('no journal here')"], free_port()) as process,
        pytest.raises(PeerFailed, match="no journal here"),
    ):
        process.wait("bench")


def test_a_broker_is_ready_when_a_publisher_can_attach() -> None:
    """An open port is not enough."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):
                listener.accept()[0].close()
            with listener.accept()[0] as sock:
                null_peer.serve(Connection.accept(sock, "null"))

        peer = threading.Thread(target=serve)
        peer.start()
        with BrokerProcess(
            [sys.executable, "-c", "import time; time.sleep(60)"], listener.getsockname()[1]
        ) as process:
            process.wait_for_port()
            process.wait("bench")
        peer.join()
