"""Many clients: connected at once, idle, coming and going; what they cost while they are there, and afterwards."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.bench.crowds import allow_files
from tests.support.frames import BEGIN, anonymous_start, begin_frame, open_frame
from tests.support.peer import Peer
from tests.support.running import PLAIN_HTTP
from tests.support.waiting import wait_until
from tests.system.conftest import Start
from tests.system.gateway_process import GatewayProcess
from tests.system.load import Bystander

IDLE = 5_000
ROUNDS = 3
COMING_AND_GOING = 400
MEGABYTE = 2**20


@pytest.fixture
def _many_files() -> Iterator[None]:
    """Sockets for ``IDLE`` clients here, and in the gateways started meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        allow_files(IDLE)
    except OSError as error:
        pytest.skip(str(error))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def connected(gateway: GatewayProcess, count: int, held: ExitStack) -> list[Peer]:
    """So many clients, connected in a burst, each open and with a session begun."""
    peers = []
    for _ in range(count):
        peer = held.enter_context(Peer.connect(gateway.address))
        # Nothing is waited for in between: a burst is what a network's return is like.
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
    """As the gateway itself counts them."""
    text = httpx.get(f"{gateway.ready['admin']}/metrics", **PLAIN_HTTP).text
    (found,) = [line for line in text.splitlines() if line.startswith("rewind_connections{")]
    return int(float(found.split()[-1]))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_many_files")
def test_five_thousand_idle_clients_are_carried_and_forgotten(start: Start) -> None:
    """5,000 clients connect in a burst and cost less than 48 KiB each; a client beside them is served all the
    while; when they close, no connection is left."""
    # They say nothing while the others connect, however long a busy machine takes for that.
    gateway = start(f"[limits]\nmax_connections_per_address = {IDLE + 1}\nidle_timeout_ms = 600000\n")
    before = gateway.resident_bytes()
    with Bystander(gateway) as bystander, ExitStack() as held:
        connected(gateway, IDLE, held)
        assert bystander.count > 0
        wait_until(lambda: gateway.established_sockets() == IDLE + 1, "all are connected", 60)
        assert gateway.resident_bytes() - before < IDLE * 48 * 1024
    wait_until(lambda: gateway.established_sockets() == 0, "no connection is left", 60)
    # Lines of the log are limited by address; the gauge knows each of them.
    wait_until(lambda: open_connections(gateway) == 0, "each is forgotten", 60)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_clients_that_come_and_go_leave_nothing_behind(start: Start) -> None:
    """Three rounds of 400 connections that attach a sender and a receiver and go: memory stays after the first."""
    gateway = start()
    sizes = []
    for _ in range(ROUNDS):
        for number in range(COMING_AND_GOING):
            with Peer.opened(gateway.address) as peer:
                peer.attach_sender("queue://busy")
                peer.attach_receiver("queue://busy", credit=10)
                if number % 100 == 0:
                    peer.publish(b"something")
                    peer.receive()
                if number % 2:
                    peer.close()
                else:
                    # Half of them go without a word.
                    peer.sock.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: gateway.established_sockets() == 0, "no connection is left", 60)
        sizes.append(gateway.resident_bytes())
    assert sizes[-1] - sizes[0] < 4 * MEGABYTE, sizes
