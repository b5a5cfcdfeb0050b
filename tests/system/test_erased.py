"""Messages erased under load, and SIGKILL in the middle: an erasure has happened, or it has not."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from urllib.parse import urlsplit

from amqp_ext.message.erased import ERASED_REASON
from store.sqlite.check import check
from tests.support.client import Client
from tests.system.conftest import Start
from tests.system.gateway_process import GatewayProcess
from tests.system.load import Consumer, Named, Publisher

CONFIG = """
[vpn.default.queue.load]
subscriptions = ["load/>"]
"""
ROUNDS = 4
MARK = f"{ERASED_REASON}".encode()


class Eraser(threading.Thread):
    """Erases messages one call after the other, until the gateway is gone."""

    def __init__(self, gateway: GatewayProcess, newest: int, chance: random.Random) -> None:
        super().__init__()
        self.answered: list[set[int]] = []
        self.asked: set[int] = set()
        """By the last call, of which there was no answer."""
        self.has_erased = threading.Event()
        self._url = urlsplit(gateway.ready["admin"])
        self._newest = newest
        self._chance = chance

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port, timeout=30)
        path = "/SEMP/v2/action/msgVpns/default/replayLogs/default/redactMsg"
        try:
            while True:
                self.asked = {
                    self._chance.randint(1, self._newest) for _ in range(self._chance.randint(1, 40))
                }
                body = json.dumps({"msgId": sorted(self.asked), "reason": "the law"})
                connection.request("PUT", path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                told = json.loads(answer.read())
                assert answer.status == 200, told
                assert set(told["data"]["msgIds"]) == self.asked
                self.answered.append(self.asked)
                self.asked = set()
                self.has_erased.set()
        except (OSError, http.client.HTTPException, ValueError):
            return
        finally:
            connection.close()


def erased(gateway: GatewayProcess) -> tuple[set[int], int]:
    """Ids of markers in the log as an AMQP client reads it, and the last id."""
    with Client("{}:{}".format(*gateway.address)) as client:
        receiver = client.receiver("log://>?replay-start=beginning&until=now", credit=1_000)
        found = receiver.take_to_end(1_000)
    ids = [one.id for one in found]
    assert ids == list(range(1, len(ids) + 1))
    return {one.id for one in found if MARK in one.raw}, len(ids)


def test_kills_leave_no_erasure_half_done(start: Start) -> None:
    """Under publishers, a consumer and erasures: what was answered is erased, and of what was not all or nothing."""
    chance = random.Random(7)
    named = Named()
    clients = [
        Publisher(0, "queue://load", chance),
        Publisher(1, "topic://load/a", chance),
        Consumer("queue://load", named, chance),
    ]
    markers: set[int] = set()
    for number in range(ROUNDS):
        gateway = start(CONFIG)
        for client in clients:
            client.start(gateway.address)
        for publisher in clients[:2]:
            assert publisher.is_busy.wait(30), publisher.mistakes
        eraser = Eraser(gateway, 50, chance)
        eraser.start()
        if number:
            assert eraser.has_erased.wait(30)
        time.sleep(chance.uniform(0, 0.3))  # the moment of the kill is what is random, nothing is waited for
        gateway.kill()
        for client in clients:
            client.join()
        eraser.join()
        assert not gateway.mistakes()
        assert check(gateway.data / "default.db") == []
        gateway = start(CONFIG)
        found, _ = erased(gateway)
        expected = markers.union(*eraser.answered)
        assert found in (expected, expected | eraser.asked)
        markers = found
        gateway.terminate()
        gateway.wait()
    assert len(markers) > 10
