"""
A gateway's life: ready, stopped, refused, restarted; clients that hang, say nothing or are too many; stores copied.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import httpx
import pytest
from proton import symbol

from store.copies import LEAST_SKIPPED
from tests.bench.crowds import allow_files
from tests.support.client import SELECTOR, Client, Received, numbered, refusal, texts
from tests.support.frames import (
    BEGIN,
    CLOSE,
    DETACH,
    OPEN,
    SASL_OUTCOME,
    anonymous_start,
    begin_frame,
    error_of,
    open_frame,
)
from tests.support.messages import data
from tests.support.peer import OK, SYS_TEMP, Peer
from tests.support.postgresql import Server
from tests.support.running import PLAIN_HTTP
from tests.support.waiting import wait_until
from tests.system.conftest import Start
from tests.system.gateway_process import ROOT, STOP_SECONDS, GatewayProcess
from tests.system.load import Bystander

# --- A gateway's life -----------------------------------------------------------------------------------------------


def test_the_ready_line_says_where_everything_is(start: Start, tmp_path: Path) -> None:
    """
    The ready line is one line of JSON: event, AMQP and admin URLs with the actual ports, data folder, process id. The
    log also names the store's engine with its version. A second gateway on the same data folder says in one sentence
    which process uses it, ends with status 1, and does no harm.
    """
    gateway = start()
    assert gateway.ready["event"] == "ready"
    assert gateway.ready["pid"] == gateway.pid
    assert Path(gateway.ready["data"]) == tmp_path / "data"
    assert gateway.ready["admin"].startswith("http://127.0.0.1:")
    assert all(port > 0 for _, port in gateway.addresses)
    [(version,)] = apsw.Connection(":memory:").execute("select sqlite_version()")
    assert gateway.wait_for_log("ready")["engine"] == [f"SQLite {version}"]
    second = subprocess.run(
        [sys.executable, "-m", "gateway", "serve", "--data", str(gateway.data), "--listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert second.returncode == 1
    assert f"{gateway.data}: another gateway uses it (process {gateway.pid})" in second.stderr
    assert "Traceback" not in second.stderr
    with Peer.opened(gateway.address) as peer:
        peer.attach_sender("queue://q")
        peer.publish(b"still here")


@pytest.mark.parametrize(
    ("number", "is_abstract"), [(signal.SIGTERM, False), (signal.SIGINT, True)], ids=["SIGTERM", "SIGINT"]
)
def test_a_stop_closes_connections_says_why_and_ends_with_0(
    start: Start, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, is_abstract: bool
) -> None:
    """
    The gateway closes the connection with amqp:connection:forced and does not detach the links before, so that clients
    reconnect with their links. The exit status is 0, within seconds. systemd is notified of readiness, for which a unit
    with Type=notify waits, and of the stop (sd_notify(3)).
    """
    with ExitStack() as closing:
        # Keep the path short: a socket's path has at most 107 bytes.
        folder = closing.enter_context(TemporaryDirectory(dir="/tmp"))
        address = f"{folder}/notify"
        manager = closing.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        manager.bind(f"\0{address}" if is_abstract else address)
        manager.settimeout(STOP_SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{address}" if is_abstract else address)
        gateway = start()
        assert manager.recv(100) == b"READY=1"
        peer = closing.enter_context(Peer.opened(gateway.address))
        peer.attach_receiver("queue://q", credit=1)
        began = time.monotonic()
        os.kill(gateway.pid, number)
        assert error_of(peer.skip_to(CLOSE, never=DETACH))[0] == "amqp:connection:forced"
        peer.sock.close()
        assert gateway.wait() == 0
        assert time.monotonic() - began < 5
        assert manager.recv(100) == b"STOPPING=1"


def test_a_stop_does_not_wait_for_clients_that_do_not_answer(start: Start) -> None:
    """Clients that are idle, in a handshake, or reading nothing delay the stop by seconds at most."""
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


def test_a_silent_client_is_closed(start: Start) -> None:
    """
    A client that connects and sends nothing is cut after handshake_timeout_ms. In SASL it is told to try again
    (sys-temp), after SASL a close names the limit. An open connection without traffic is closed after idle_timeout_ms.
    """
    gateway = start("[limits]\nhandshake_timeout_ms = 300\nidle_timeout_ms = 1000\n")
    with Peer.connect(gateway.address) as peer:
        assert peer.rest() == b""
    gateway.wait_for_log("handshake_failed")
    with Peer.connect(gateway.address) as peer:
        peer.mechanisms()
        assert int(peer.expect(SASL_OUTCOME).fields[0]) == SYS_TEMP
        assert peer.rest() == b""
    with Peer.connect(gateway.address) as peer:
        assert peer.anonymous() == OK
        peer.expect(OPEN)
        condition, text = error_of(peer.expect(CLOSE))
        assert condition == "amqp:resource-limit-exceeded"
        assert "no open came within 300 ms (handshake_timeout_ms)" in text
    with Peer.opened(gateway.address) as peer:
        assert error_of(peer.skip_to(CLOSE))[0] == "amqp:resource-limit-exceeded"
    wait_until(lambda: gateway.established_sockets() == 0, "the socket is closed")


def test_connections_are_bounded(start: Start) -> None:
    """One connection more than max_connections is refused; after a disconnect another client may connect."""
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
    """
    SIGHUP applies the settings that can change, and logs each change and each refusal. A broken file changes nothing.
    """
    gateway = start()
    file = tmp_path / "data.toml"
    file.write_text("[vpn.default]\ncreate_queues = false\n[store]\nread_threads = 2\n")
    os.kill(gateway.pid, signal.SIGHUP)
    assert gateway.wait_for_log("configuration_read_again", applied=1, refused=1)
    assert "create_queues: true became false" in gateway.wait_for_log("setting_changed")["reason"]
    assert "store.read_threads takes effect when" in gateway.wait_for_log("setting_not_changed")["reason"]
    file.write_text("[vpn.default]\ncreate_queue = true\n")
    os.kill(gateway.pid, signal.SIGHUP)
    assert "create_queues" in gateway.wait_for_log("configuration_not_read")["reason"][0]
    with Peer.opened(gateway.address):
        assert gateway.is_running


# --- The modules that a gateway loads -------------------------------------------------------------------------------

VERBS = """
import json, sys
from importlib import import_module

from gateway.cli.command import CLIENTS

for place in CLIENTS.values():
    import_module(place.partition(":")[0])
print(json.dumps(list(sys.modules)))
"""
"""Loads every verb that is a client of a gateway, and prints all modules that are loaded then."""

INSTALLED = ("numpy", "pandas", "pyarrow", "pyspark", "rich")
"""Packages of Spark or of the test tools, which one of our libraries would import if they are there."""

ADMINISTRATION = {"fastapi", "prometheus_client", "starlette", "uvicorn"}
MIGRATIONS = {"pluggy", "sqlite_utils"}
PASSWORDS = {"asn1crypto", "scramp"}
CONFIGURATION = {"gateway.config", "pydantic"}
COMMANDS = {"gateway.cli.api", "gateway.cli.send", "gateway.cli.tail", "proton.reactor"}


def publish_and_consume(gateway: GatewayProcess) -> None:
    """Publish a message, consume it, and read it from the log."""
    with Peer.opened(gateway.address) as peer:
        peer.attach_sender("queue://q")
        peer.publish(b"once")
        for address in ("queue://q", "log://>?replay-start=beginning"):
            peer.attach_receiver(address, credit=1)
            assert peer.receive()


def test_a_gateway_loads_what_it_uses(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A gateway does not load the administration before the first request, nor password checking without users, nor the
    clients of other verbs. It loads sqlite-utils only to create or change tables, and never what is merely installed.
    """
    installed = tmp_path / "installed"
    installed.mkdir()
    for name in INSTALLED:
        (installed / f"{name}.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.setenv("LOADED", str(tmp_path / "loaded.json"))
    loaded = []
    for is_scraped in (False, True):
        gateway = start(module="tests.system.loaded_gateway")
        publish_and_consume(gateway)
        if is_scraped:
            assert httpx.get(f"{gateway.ready['admin']}/metrics", **PLAIN_HTTP).status_code == 200
        assert gateway.stop() == 0
        loaded.append(set(json.loads((tmp_path / "loaded.json").read_text())))
    first, second = loaded
    assert {"apsw", "gateway.amqp.links.publisher"} | MIGRATIONS <= first
    assert first & {*INSTALLED, *ADMINISTRATION, *PASSWORDS, *COMMANDS} == set()
    assert second >= ADMINISTRATION
    assert second & {*INSTALLED, *MIGRATIONS, *PASSWORDS, *COMMANDS} == set()


def test_a_client_waits_for_no_configuration_to_load() -> None:
    """Loading the settings' validation takes longer than the rest of a verb, and a client has no settings."""
    loaded = subprocess.run(
        [sys.executable, "-c", VERBS], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert {"click", "gateway.cli.api"} <= set(json.loads(loaded))
    assert CONFIGURATION.isdisjoint(json.loads(loaded))


# --- Many clients ---------------------------------------------------------------------------------------------------

IDLE = 2_000


@pytest.fixture
def _many_files() -> Iterator[None]:
    """Raises the limit of open files for ``IDLE`` clients in this process and in gateways that it starts."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        allow_files(IDLE)
    except OSError as error:
        pytest.skip(str(error))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def connected(gateway: GatewayProcess, count: int, held: ExitStack) -> list[Peer]:
    """This many clients, connected in a burst, each with an open connection and a session."""
    peers = []
    for _ in range(count):
        peer = held.enter_context(Peer.connect(gateway.address))
        # Without waiting in between: clients come in such a burst when a network returns.
        peer.send(anonymous_start(), open_frame(), begin_frame())
        peers.append(peer)
    for peer in peers:
        peer.take(8)
        peer.frame()
        peer.frame()
        peer.take(8)
        peer.skip_to(BEGIN)
    return peers


def open_connections(gateway: GatewayProcess) -> int:
    """The number of connections by the gateway's own gauge."""
    text = httpx.get(f"{gateway.ready['admin']}/metrics", **PLAIN_HTTP).text
    (found,) = [line for line in text.splitlines() if line.startswith("rewind_connections{")]
    return int(float(found.split()[-1]))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_many_files")
def test_thousands_of_idle_clients_are_carried_and_forgotten(start: Start) -> None:
    """
    2,000 clients connect in a burst and cost less than 48 KiB each; another client is served meanwhile; when they
    close, no connection is left.
    """
    # The idle clients send nothing while the others connect, however long that takes on a busy machine.
    gateway = start(f"[limits]\nmax_connections_per_address = {IDLE + 1}\nidle_timeout_ms = 600000\n")
    before = gateway.resident_bytes()
    with Bystander(gateway) as bystander, ExitStack() as held:
        connected(gateway, IDLE, held)
        assert bystander.count > 0
        wait_until(lambda: gateway.established_sockets() == IDLE + 1, "all are connected", 60)
        assert gateway.resident_bytes() - before < IDLE * 48 * 1024
    wait_until(lambda: gateway.established_sockets() == 0, "no connection is left", 60)
    # The number of log lines about an address is limited; the gauge counts every connection.
    wait_until(lambda: open_connections(gateway) == 0, "each is forgotten", 60)


# --- `rewind store backup`, `restore` and `copy`, with a running gateway and between gateways -------------------------

LISTENER = '[[listener]]\nhost = "127.0.0.1"\nport = 0\n'
CONFIG = f"""
{LISTENER}
{LISTENER}
event_hubs_mode = true
[vpn.default.queue.orders]
subscriptions = ["orders/>"]
[vpn.default.queue.hub]
kind = "stream"
subscriptions = ["orders/>"]
"""


def rewind(*arguments: object, status: int = 0) -> str:
    """Run ``rewind store`` in a process of its own; returns its output."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "store", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


@contextmanager
def a_client(gateway: GatewayProcess, listener: int = 0) -> Iterator[Client]:
    """A client that closes properly at the end, so that all its settlements have arrived."""
    with Client(gateway.ready["amqp"][listener]) as client:
        yield client
        client.close()


def publish(gateway: GatewayProcess, *numbers: int) -> None:
    with a_client(gateway) as client:
        client.sender("topic://orders/a").send_all(map(data, numbers))


def read(gateway: GatewayProcess, count: int, begin: str = "beginning") -> list[Received]:
    """Read messages of the log."""
    with a_client(gateway) as client:
        return client.receiver("log://>", filters={"rewind:replay-start": begin}, credit=count).take(count)


def replay_ids(gateway: GatewayProcess, count: int, begin: str = "beginning") -> list[str]:
    return [str(message.annotations["x-opt-replay-id"]) for message in read(gateway, count, begin)]


def on_queue(gateway: GatewayProcess, count: int) -> list[str]:
    with a_client(gateway) as client:
        return texts(client.receiver("orders", credit=count).take_and_accept(count))


def after_offset(gateway: GatewayProcess, offset: int, count: int) -> list[str]:
    """The messages that a client of Event Hubs gets after an offset."""
    hub = "hub/ConsumerGroups/$Default/Partitions/0"
    with a_client(gateway, 1) as client:
        filters = {SELECTOR: f"amqp.annotation.x-opt-offset > '{offset}'"}
        return texts(client.receiver(hub, filters=filters, credit=count).take(count))


def test_what_was_told_of_a_lost_log_means_nothing_in_the_restored_one(start: Start, tmp_path: Path) -> None:
    """
    Messages 5 to 9 came after the backup. Their replay ids are refused in each form. Their plain offsets lead to the
    first message after the restore, which has an id that was never used before. Clients of Event Hubs keep plain
    offsets: the offset of an event in the backup still names that event, and no old offset names a new event.
    """
    gateway = start(CONFIG, listen=())
    publish(gateway, *range(5))
    assert on_queue(gateway, 3) == numbered(3)
    backup = tmp_path / "backup.db"
    rewind("backup", backup, "--data", gateway.data)
    publish(gateway, *range(5, 10))
    assert on_queue(gateway, 3) == numbered(3, 6)
    assert after_offset(gateway, 2, 8) == numbered(2, 10)
    ids = replay_ids(gateway, 10)
    said = rewind("restore", backup, "--data", gateway.data, "--replace", status=1)
    assert f"another gateway uses it (process {gateway.pid})" in said
    gateway.kill()
    said = rewind("restore", backup, "--data", gateway.data, status=1)
    assert "it has a store already. Use --replace" in said
    said = rewind("restore", backup, "--data", gateway.data, "--replace")
    assert "messages up to 5; the log's generation is " in said
    next_id = int(said.splitlines()[-2].rpartition(" ")[2].replace(",", ""))
    assert next_id > 10 + LEAST_SKIPPED

    restored = start(CONFIG, listen=())
    publish(restored, 100, 101)
    with a_client(restored) as client:
        for replay_id in ids:
            for asked in (replay_id, {symbol("at"): replay_id}):
                refused = refusal(client.receiver, "log://>", filters={"rewind:replay-start": asked})
                assert (refused.replay_error, refused.subcode) == ("log-modified", 145)
    for offset in range(6, 11):
        assert texts(read(restored, 2, f"#{offset}")) == ["100", "101"]
        assert after_offset(restored, offset - 1, 2) == ["100", "101"]
    whole = read(restored, 7)
    assert texts(whole) == [*numbered(5), "100", "101"]
    assert after_offset(restored, 2, 5) == texts(whole)[2:]
    assert [message.id for message in whole] == [1, 2, 3, 4, 5, next_id, next_id + 1]
    # Only what was consumed after the backup is delivered again.
    assert on_queue(restored, 4) == ["3", "4", "100", "101"]


@pytest.mark.postgresql
def test_a_store_moves_to_postgresql_and_back(start: Start, tmp_path: Path, postgresql: Server) -> None:
    """
    In both directions consumers go on where they were, with their replay ids. A store in use is not copied. The source
    of a copy is closed: opening it is refused with the name of its copy.
    """
    place = f"url = '{postgresql.url()}'"
    on_postgresql = f"{CONFIG}\n[vpn.default.store]\n{place}\n"
    gateway = start(CONFIG, listen=())
    publish(gateway, *range(5))
    assert on_queue(gateway, 3) == numbered(3)
    (replay_id,) = replay_ids(gateway, 1, "last")
    assert "another gateway uses it" in rewind("copy", gateway.data, postgresql.url(), status=1)
    gateway.stop()
    said = rewind("copy", gateway.data, postgresql.url())
    assert "schema rewind_default: sound, 5 messages, the next is 6; " in said
    assert "default.db: closed; the copy continues its ids" in said
    with pytest.raises(AssertionError, match=r"it is closed: its copy .* continues"):
        start(CONFIG, listen=())
    moved = start(on_postgresql, listen=(), data=tmp_path / "moved")
    publish(moved, 5, 6)
    assert texts(read(moved, 2, replay_id)) == ["5", "6"]
    assert on_queue(moved, 1) == ["3"]
    said = rewind("copy", postgresql.url(), tmp_path / "back", status=1)
    assert "cannot copy" in said
    assert "is active" in said
    moved.stop()
    assert rewind("check", postgresql.url()).endswith(": sound\n")
    said = rewind("copy", postgresql.url(), tmp_path / "back")
    assert "default.db: sound, 7 messages, the next is 8; " in said
    closed = start(on_postgresql, listen=(), data=tmp_path / "moved")
    reason = closed.wait_for_log("alarm_raised", alarm="store")["reason"]
    assert "it is closed: its copy" in reason and "continues" in reason
    closed.stop()
    back = start(CONFIG, listen=(), data=tmp_path / "back")
    publish(back, 7)
    assert texts(read(back, 3, replay_id)) == ["5", "6", "7"]
    assert on_queue(back, 4) == numbered(4, 8)
