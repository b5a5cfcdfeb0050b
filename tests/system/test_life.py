"""A gateway's life: ready, stopped, refused, restarted; and the clients that are stuck, silent or too many."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from amqp_ext.codec import Symbol
from tests.support.frames import CLOSE, DETACH
from tests.support.peer import Peer
from tests.support.waiting import wait_until
from tests.system.conftest import Start
from tests.system.gateway_process import ROOT, GatewayProcess


def serve_again(gateway: GatewayProcess, *more: str) -> subprocess.CompletedProcess[str]:
    """A second gateway, which is to end by itself."""
    arguments = [sys.executable, "-m", "gateway", "serve", "--admin", "127.0.0.1:0", *more]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)


def test_the_ready_line_says_where_everything_is(start: Start, tmp_path: Path) -> None:
    """
    One JSON line: event, AMQP and admin URLs with the ports that were taken, the data folder, the process. The log
    names the store's engine and its version beside them.
    """
    gateway = start()
    assert gateway.ready["event"] == "ready"
    assert gateway.ready["pid"] == gateway.pid
    assert Path(gateway.ready["data"]) == tmp_path / "data"
    assert gateway.ready["admin"].startswith("http://127.0.0.1:")
    assert all(port > 0 for _, port in gateway.addresses)
    [(version,)] = apsw.Connection(":memory:").execute("select sqlite_version()")
    assert gateway.wait_for_log("ready")["engine"] == [f"SQLite {version}"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_closes_connections_says_why_and_ends_with_0(start: Start, number: signal.Signals) -> None:
    """
    The connection is closed with amqp:connection:forced, its links end with it and not before, so that clients
    reconnect with them; the exit status is 0, within seconds.
    """
    gateway = start()
    with Peer.opened(gateway.address) as peer:
        peer.attach_receiver("queue://q", credit=1)
        began = time.monotonic()
        os.kill(gateway.pid, number)
        assert str(peer.skip_to(CLOSE, never=DETACH).field(0).value[0]) == "amqp:connection:forced"
        peer.sock.close()
        assert gateway.wait() == 0
        assert time.monotonic() - began < 5


def test_a_stop_does_not_wait_for_clients_that_do_not_answer(start: Start) -> None:
    """Clients that are idle, shaking hands, or reading nothing of what is sent to them hold it up for seconds."""
    gateway = start()
    with (
        Peer.opened(gateway.address) as publisher,
        Peer.opened(gateway.address) as stuck,
        Peer.opened(gateway.address),
        Peer.connect(gateway.address),
    ):
        publisher.attach_sender("queue://q")
        publisher.publish_all([b"x" * 30_000] * 500)
        stuck.attach_receiver("queue://q", credit=1_000)
        gateway.terminate()
        gateway.wait_for_log("stopping")
        began = time.monotonic()
        assert gateway.wait() == 0
        assert time.monotonic() - began < 10


def test_a_data_folder_belongs_to_one_gateway(start: Start) -> None:
    """A second one is refused with a sentence that names the folder and the process, status 1, and harms nothing."""
    gateway = start()
    second = serve_again(gateway, "--data", str(gateway.data), "--listen", "127.0.0.1:0")
    assert second.returncode == 1
    assert str(gateway.data) in second.stderr
    assert str(gateway.pid) in second.stderr
    with Peer.opened(gateway.address) as peer:
        peer.attach_sender("queue://q")
        peer.publish(b"still here")


def test_a_port_that_is_taken_is_said_so(start: Start, tmp_path: Path) -> None:
    """Status 1 and a sentence with the address."""
    gateway = start()
    host, port = gateway.address
    second = serve_again(gateway, "--data", str(tmp_path / "elsewhere"), "--listen", f"{host}:{port}")
    assert second.returncode == 1
    assert str(port) in second.stderr
    assert "Traceback" not in second.stderr


def test_a_restart_brings_everything_back(start: Start) -> None:
    """Messages, one that was delivered and not settled among them, and ids that go on."""
    gateway = start()
    with Peer.opened(gateway.address) as peer:
        peer.attach_sender("queue://q")
        for number in range(5):
            peer.publish(b"%d" % number)
        peer.attach_receiver("queue://q", credit=2)
        assert peer.receive(accept=False) == b"0"
        assert peer.receive(accept=False) == b"1"
    assert gateway.stop() == 0
    again = start()
    with Peer.opened(again.address) as peer:
        peer.attach_receiver("queue://q", credit=10)
        assert [peer.receive() for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_restart_brings_subscriptions_back(start: Start) -> None:
    """A durable topic endpoint collects while nobody consumes from it, before a restart and after; the log goes on."""
    subscription = {"address": "topic://a/*", "expiry": Symbol("never"), "name": "daily"}
    gateway = start()
    with Peer.opened(gateway.address) as peer:
        first = peer.attach_receiver(**subscription)
        peer.attach_sender("topic://a/b")
    with Peer.opened(gateway.address) as peer:
        peer.attach_sender("topic://a/b")
        peer.publish(b"before")
    assert gateway.stop() == 0
    again = start()
    with Peer.opened(again.address) as peer:
        peer.attach_sender("topic://a/c")
        peer.publish(b"after")
        second = peer.attach_receiver(**subscription, credit=10)
        assert [peer.receive(), peer.receive()] == [b"before", b"after"]
    generation = Symbol("rewind:replay-generation")
    assert first.field(13)[generation] == second.field(13)[generation]


def test_a_silent_client_is_dropped_before_it_opens(start: Start) -> None:
    """Who connects and says nothing is cut after handshake_timeout_ms."""
    gateway = start("[limits]\nhandshake_timeout_ms = 300\n")
    with Peer.connect(gateway.address) as peer:
        assert peer.rest() == b""
    gateway.wait_for_log("handshake_failed")


def test_a_silent_client_is_closed_after_the_idle_time_out(start: Start) -> None:
    """An open connection from which nothing comes is closed with amqp:resource-limit-exceeded, and is gone."""
    gateway = start("[limits]\nidle_timeout_ms = 1000\n")
    with Peer.opened(gateway.address) as peer:
        error = peer.skip_to(CLOSE).field(0)
        assert str(error.value[0]) == "amqp:resource-limit-exceeded"
    wait_until(lambda: gateway.established_sockets() == 0, "the socket is closed")


def test_heartbeats_come_as_often_as_the_client_asks(start: Start) -> None:
    """A client with an idle time-out of 2 s gets an empty frame in time, several times."""
    gateway = start()
    with Peer.connect(gateway.address) as peer:
        assert peer.anonymous() == 0
        peer.open(idle_ms=2_000)
        for _ in range(3):
            began = time.monotonic()
            assert peer.frame() is None
            assert time.monotonic() - began < 2


def test_connections_are_bounded(start: Start) -> None:
    """One more than max_connections is turned away; when one goes, another may come."""
    gateway = start("[limits]\nmax_connections = 2\n")
    with Peer.opened(gateway.address) as first, Peer.opened(gateway.address):
        with socket.create_connection(gateway.address) as third:
            third.settimeout(10)
            with suppress(ConnectionResetError):
                assert third.recv(1) == b""
        first.close()
        wait_until(lambda: gateway.established_sockets() < 2, "the first is gone")
        with Peer.opened(gateway.address):
            pass


def test_a_hangup_has_the_configuration_read_again(start: Start, tmp_path: Path) -> None:
    """SIGHUP applies what can change, logs each change and each refusal, and a broken file leaves all as it is."""
    gateway = start()
    file = tmp_path / "data.toml"
    file.write_text("[vpn.default]\ncreate_queues = false\n[store]\nread_threads = 2\n")
    os.kill(gateway.pid, signal.SIGHUP)
    assert gateway.wait_for_log("configuration_read_again", applied=1, refused=1)
    assert "create_queues: true became false" in gateway.wait_for_log("setting_changed")["reason"]
    assert "store.read_threads is said" in gateway.wait_for_log("setting_not_changed")["reason"]
    file.write_text("[vpn.default]\ncreate_queue = true\n")
    os.kill(gateway.pid, signal.SIGHUP)
    assert "create_queues" in gateway.wait_for_log("configuration_not_read")["reason"][0]
    with Peer.opened(gateway.address):
        assert gateway.is_running
