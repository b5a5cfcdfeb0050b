"""SIGKILL around replays that keep what the log does not have: none of it is lost, and none comes twice."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import httpx
import pytest

from store.sqlite.check import check
from tests.support.client import Client, Received
from tests.support.http import PLAIN_HTTP
from tests.support.messages import data
from tests.system.conftest import Start
from tests.system.gateway_process import GatewayProcess

KILLS = 2
MESSAGES = 600
FIRST = 301
CONFIG = """
[vpn.default.replay_log]
topics = ["!#queue/q"]
[vpn.default.queue.q]
subscriptions = ["logged"]
"""


def url_of(gateway: GatewayProcess) -> str:
    host, port = gateway.address
    return f"amqp://{host}:{port}"


def replay(gateway: GatewayProcess, start: str) -> None:
    """Ask for one; the gateway may be gone before it answers."""
    url = f"{gateway.ready['admin']}/SEMP/v2/action/msgVpns/default/queues/q/startReplay"
    try:
        answer = httpx.request(
            "PUT", url, json={"keepUnlogged": True, "start": start}, **PLAIN_HTTP, timeout=30
        )
    except httpx.TransportError:
        return
    assert answer.status_code == 200, answer.text


@pytest.mark.slow
@pytest.mark.timeout(300)  # it starts a process each time
def test_killed_at_any_moment_of_its_start(start: Start, tmp_path: Path) -> None:
    """After each kill all that the log does not have is still there, once; so is in the end what it has."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    gateway = start(CONFIG)
    with Client(url_of(gateway)) as client:
        logged, unlogged = client.sender("topic://logged"), client.sender("queue://q")
        for first in range(0, MESSAGES, 20):
            logged.send_all([data(n) for n in range(first, first + 10)])
            unlogged.send_all([data(n) for n in range(first + 10, first + 20)])
    for _ in range(KILLS):
        asking = threading.Thread(target=replay, args=(gateway, f"#{chance.choice([1, FIRST])}"))
        asking.start()
        time.sleep(chance.uniform(0, 0.03))  # the moment of the kill is random, nothing is waited for
        gateway.kill()
        asking.join()
        gateway = start(CONFIG)
    replay(gateway, f"#{FIRST}")
    with Client(url_of(gateway)) as client:
        found: list[Received] = []
        receiver = client.receiver("q", credit=1_000)
        kept_or_replayed = [n for n in range(MESSAGES) if n % 20 >= 10 or n + 1 >= FIRST]
        receiver.collect(found, len(kept_or_replayed))
        assert [int(message.text) for message in found] == kept_or_replayed
        assert receiver.drain(0) == []
    gateway.stop()
    assert check(tmp_path / "data" / "default.db") == []
