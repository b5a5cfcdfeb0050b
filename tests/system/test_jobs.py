"""SIGKILL in the middle of jobs, again and again, with publishers beside them: each message comes once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from proton import Delivery

from store.sqlite.check import check
from tests.support.client import Client, Received, Receiver, texts
from tests.support.http import PLAIN_HTTP
from tests.support.messages import data
from tests.support.ports import free_port
from tests.support.publishing import Publishing
from tests.support.waiting import wait_until
from tests.system.conftest import Start
from tests.system.gateway_process import GatewayProcess

KILLS = 5
MESSAGES = 6_000
CONFIG = """
[vpn.default.queue.orders]
dead_message_queue = "dead"
[vpn.default.queue.dead]
[vpn.default.queue.copies]
"""


def ask(gateway: GatewayProcess, method: str, tree: str, path: str, body: Any = None) -> Any:
    """A request to the administration that is done; its data."""
    url = f"{gateway.ready['admin']}/SEMP/v2/{tree}/msgVpns/default{path}"
    answer = httpx.request(method, url, json=body, **PLAIN_HTTP, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def url_of(gateway: GatewayProcess) -> str:
    host, port = gateway.address
    return f"amqp://{host}:{port}"


def state_of(gateway: GatewayProcess, name: str) -> str:
    return str(ask(gateway, "GET", "monitor", f"/replays/{name}")["state"])


def killed_until_over(start: Start, name: str, begin: Callable[[GatewayProcess], None]) -> GatewayProcess:
    """A job is begun and the gateway killed at random moments; the one under which the job came to its end."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    gateway = start(CONFIG)
    begin(gateway)
    for _ in range(KILLS):
        with Publishing(url_of(gateway), "topic://live") as publishing:
            publishing.wait_for(10)
            time.sleep(
                chance.uniform(0, 0.3)
            )  # the moment of the kill is what is random, nothing is waited for
            publishing.expect_an_end()
            gateway.kill()
        gateway = start(CONFIG)
    wait_until(lambda: state_of(gateway, name) == "complete", "the job is complete", 60)
    return gateway


@pytest.mark.slow
@pytest.mark.timeout(600)  # it starts a process each time
def test_a_killed_copy_goes_on_where_it_was(start: Start, tmp_path: Path) -> None:
    """All messages of the past are copied once, in order, and none of what was published meanwhile."""

    def begin(gateway: GatewayProcess) -> None:
        with Client(url_of(gateway)) as client:
            client.sender("topic://past").send_all([data(n) for n in range(MESSAGES)])
        body = {"target": "queue://copies", "subscriptions": ["past"], "rate": MESSAGES / 2, "name": "copy"}
        ask(gateway, "PUT", "action", "/replayLogs/default/startCopy", body)

    gateway = killed_until_over(start, "copy", begin)
    with Client(url_of(gateway)) as client:
        found: list[Received] = []
        client.receiver("copies").collect(found, MESSAGES)
        assert texts(found) == [str(n) for n in range(MESSAGES)]
        assert [one.annotations["x-opt-replay-source-id"] for one in found] == [*range(1, MESSAGES + 1)]
    assert ask(gateway, "GET", "monitor", "/replays/copy")["sentMsgCount"] == MESSAGES
    assert gateway.stop() == 0
    assert check(tmp_path / "data" / "default.db") == []


def of_queue(client: Client) -> Receiver:
    """A consumer of a queue."""
    return client.receiver("orders")


def of_topic_endpoint(client: Client) -> Receiver:
    """A consumer of a durable topic endpoint."""
    return client.receiver("topic://orders", name="mine", durable=True)


@pytest.mark.slow
@pytest.mark.timeout(600)  # it starts a process each time
@pytest.mark.parametrize(
    ("address", "consumer"),
    [("orders", of_queue), ("topic://orders", of_topic_endpoint)],
    ids=["queue", "topic endpoint"],
)
def test_a_killed_return_loses_and_doubles_no_dead_letter(
    start: Start, tmp_path: Path, address: str, consumer: Callable[[Client], Receiver]
) -> None:
    """Each is where it died, once, and the dead message queue is empty."""
    count = MESSAGES // 4

    def begin(gateway: GatewayProcess) -> None:
        with Client(url_of(gateway)) as client:
            receiver = consumer(client)
            for one in ask(gateway, "GET", "monitor", "/topicEndpoints"):
                name = quote(one["topicEndpointName"], safe="")
                ask(gateway, "PATCH", "config", f"/topicEndpoints/{name}", {"deadMsgQueue": "dead"})
            client.sender(address).send_all([data(n) for n in range(count)])
            receiver.flow(count)
            receiver.settle(receiver.take(count), Delivery.REJECTED)
            client.wait(
                lambda: ask(gateway, "GET", "monitor", "/queues/dead")["spooledMsgCount"] == count,
                "all are dead",
            )
            receiver.detach()
        ask(gateway, "PUT", "action", "/queues/dead/returnDead", {"rate": count / 2, "name": "return"})

    gateway = killed_until_over(start, "return", begin)
    assert ask(gateway, "GET", "monitor", "/queues/dead")["spooledMsgCount"] == 0
    with Client(url_of(gateway)) as client:
        found: list[Received] = []
        consumer(client).collect(found, count)
        assert sorted(texts(found), key=int) == [str(n) for n in range(count)]
    assert gateway.stop() == 0
    assert check(tmp_path / "data" / "default.db") == []


@pytest.mark.slow
@pytest.mark.timeout(600)  # it starts a process each time
def test_copies_at_another_gateway_outlive_kills_of_both(start: Start, tmp_path: Path) -> None:
    """None is missing on the other side; what comes twice has the same source id, and the same content."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    port = free_port()
    config = f'{CONFIG}[vpn.default.replay_target.far]\nurl = "amqp://127.0.0.1:{port}"\n'

    def start_far() -> GatewayProcess:
        return start(data=tmp_path / "far", listen=(f"127.0.0.1:{port}",))

    gateway, far = start(config), start_far()
    with Client(url_of(gateway)) as client:
        client.sender("topic://past").send_all([data(n) for n in range(MESSAGES)])
    body = {"target": "queue://copies", "replayTarget": "far", "subscriptions": ["past"], "name": "copy"}
    ask(gateway, "PUT", "action", "/replayLogs/default/startCopy", {**body, "rate": MESSAGES / 3})
    for _ in range(KILLS):
        time.sleep(chance.uniform(0, 0.4))  # the moment of the kill is what is random, nothing is waited for
        far.kill()
        far = start_far()
        time.sleep(chance.uniform(0, 0.4))
        gateway.kill()
        gateway = start(config)
    wait_until(lambda: state_of(gateway, "copy") == "complete", "the job is complete", 60)
    with Client(url_of(far)) as client:
        found = client.receiver("copies").drain(3 * MESSAGES)
    by_id = {
        one.annotations["x-opt-replay-source-id"]: text for one, text in zip(found, texts(found), strict=True)
    }
    assert [by_id.get(place) for place in range(1, MESSAGES + 1)] == [str(n) for n in range(MESSAGES)]
    assert len(by_id) == MESSAGES
    for process, name in ((gateway, "data"), (far, "far")):
        assert process.stop() == 0
        assert check(tmp_path / name / "default.db") == []
