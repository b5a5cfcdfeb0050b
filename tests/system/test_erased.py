"""SIGKILL while messages are erased under load: an erasure has happened, or it has not."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from amqp_ext.message.annotations import ERASED_REASON
from store.sqlite.check import check
from tests.store.port.postgresql_vpn import check_url
from tests.support.client import Client
from tests.support.postgresql import Server
from tests.support.running import PLAIN_HTTP
from tests.system.conftest import Start
from tests.system.gateway_process import GatewayProcess
from tests.system.load import Consumer, Named, Publisher

CONFIG = """
[vpn.default.queue.load]
subscriptions = ["load/>"]
"""
MARK = ERASED_REASON.encode()
NEWEST = 50
"""Of what is erased: the same messages again and again."""

MOST_ERASED = 40
"""In one call."""


class Eraser(threading.Thread):
    """Erases messages one call after the other, until the gateway is gone."""

    def __init__(self, gateway: GatewayProcess, chance: random.Random) -> None:
        super().__init__()
        self.answered: list[set[int]] = []
        self.asked: set[int] = set()
        """By the last call, of which there was no answer."""
        self.has_erased = threading.Event()
        self._url = gateway.ready["admin"]
        self._chance = chance

    def run(self) -> None:
        path = "/SEMP/v2/action/msgVpns/default/replayLogs/default/redactMsg"
        chance = self._chance
        with (
            httpx.Client(base_url=self._url, **PLAIN_HTTP, timeout=30) as http,
            suppress(httpx.TransportError),
        ):
            while True:
                self.asked = {chance.randint(1, NEWEST) for _ in range(chance.randint(1, MOST_ERASED))}
                answer = http.put(path, json={"msgId": sorted(self.asked), "reason": "the law"})
                assert answer.status_code == 200, answer.text
                assert set(answer.json()["data"]["msgIds"]) == self.asked
                self.answered.append(self.asked)
                self.asked = set()
                self.has_erased.set()


def erased(gateway: GatewayProcess) -> set[int]:
    """Ids of markers among the first messages of the log as an AMQP client reads it."""
    with Client(gateway.url) as client:
        found = client.receiver("log://>?replay-start=beginning", credit=NEWEST).take(NEWEST)
    assert [one.id for one in found] == list(range(1, NEWEST + 1))
    return {one.id for one in found if MARK in one.raw}


def kill_erasing(
    start: Callable[[], GatewayProcess], rounds: int, look: Callable[[GatewayProcess, set[int]], None]
) -> None:
    """
    Under publishers, a consumer and erasures, kill a gateway some times: what was answered is erased, and of what was
    not, all or nothing.

    Args:
        look: Is called with the gateway that came after, and the ids that are erased.
    """
    chance = random.Random(7)
    named = Named()
    clients = [
        Publisher(0, "queue://load", chance),
        Publisher(1, "topic://load/a", chance),
        Consumer("queue://load", named, chance),
    ]
    markers: set[int] = set()
    gateway = start()
    for number in range(rounds):
        for client in clients:
            client.start(gateway.address)
        for publisher in clients[:2]:
            assert publisher.is_busy.wait(30), publisher.mistakes
        eraser = Eraser(gateway, chance)
        eraser.start()
        if number:
            assert eraser.has_erased.wait(30)
        time.sleep(chance.uniform(0, 0.3))  # the moment of the kill is what is random, nothing is waited for
        gateway.kill()
        for client in clients:
            client.join()
        eraser.join()
        assert not gateway.mistakes()
        gateway = start()
        expected = markers.union(*eraser.answered)
        markers = erased(gateway)
        assert markers in (expected, expected | eraser.asked)
        look(gateway, markers)
    assert len(markers) > 10


ON_POSTGRESQL = """
[vpn.default.store]
url = "{url}"
lease_seconds = 2
"""


def test_kills_leave_no_erasure_half_done(start: Start) -> None:
    """On SQLite; the file is sound after each kill."""

    def begin() -> GatewayProcess:
        assert files == [] or check(files[0]) == []
        gateway = start(CONFIG)
        files[:] = [gateway.data / "default.db"]
        return gateway

    files: list[Path] = []
    kill_erasing(begin, 4, lambda _gateway, _markers: None)


@pytest.mark.postgresql
def test_kills_leave_no_erasure_half_done_on_postgresql(start: Start, postgresql: Server) -> None:
    """On PostgreSQL; the tables are sound in the end."""
    url = postgresql.url(postgresql.new_database())
    config = CONFIG + ON_POSTGRESQL.format(url=url)
    kill_erasing(lambda: start(config), 3, lambda _gateway, _markers: None)
    assert check_url(url, "default") == []
