"""Two gateways on one PostgreSQL, each in a process of its own: one is killed or stopped, and the other takes over."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.amqp.delivery.test_by_key import Crew
from tests.gateway.amqp.delivery.test_by_key import numbered as grouped
from tests.gateway.amqp.delivery.test_dedup import named
from tests.gateway.amqp.delivery.test_delayed import delayed
from tests.gateway.amqp.streams.test_last_values import keyed
from tests.support.client import Client, Received, texts
from tests.support.messages import data
from tests.support.ports import free_port
from tests.support.postgresql import Server
from tests.support.publishing import Publishing
from tests.support.running import PLAIN_HTTP
from tests.support.waiting import wait_until
from tests.system.gateway_process import GatewayProcess

pytestmark = [pytest.mark.system, pytest.mark.postgresql]

LEASE_SECONDS = 2

TAKE_OVER_SECONDS = 5.0
"""How long publishers may wait for the other gateway when the active one is killed."""

Start = Callable[..., GatewayProcess]


@pytest.fixture
def start(postgresql: Server, tmp_path: Path, _ending: ExitStack) -> Start:
    """Starts a gateway on the test's own database: `start("a", require_standby="true")`."""
    url = postgresql.url(postgresql.new_database())

    def start(name: str, **store: str) -> GatewayProcess:
        more = "".join(f"{key} = {value}\n" for key, value in store.items())
        config = f'[vpn.default.store]\nurl = "{url}"\nlease_seconds = {LEASE_SECONDS}\n{more}'
        process = GatewayProcess(tmp_path / name, config, listen=(f"127.0.0.1:{free_port()}",))
        _ending.callback(process.stop)
        return process

    return start


@pytest.fixture
def pair(start: Start) -> tuple[GatewayProcess, GatewayProcess]:
    """An active gateway, and one that waits for it."""
    active = start("a")
    return active, start("b")


def url_of(gateway: GatewayProcess) -> str:
    """The address for clients."""
    return str(gateway.ready["amqp"][0])


def readiness(gateway: GatewayProcess) -> httpx.Response:
    """The answer of `/readyz`."""
    return httpx.get(f"{gateway.ready['admin']}/readyz", **PLAIN_HTTP)


def is_ready(gateway: GatewayProcess) -> bool:
    return readiness(gateway).status_code == 200


@pytest.fixture
def stopped(pair: tuple[GatewayProcess, GatewayProcess]) -> Iterator[Callable[[], None]]:
    """Stops the active gateway's process, as when its machine hangs, and continues it when the test ends."""
    pid = pair[0].pid
    yield lambda: os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGCONT)


def test_the_other_accepts_within_seconds(pair: tuple[GatewayProcess, GatewayProcess]) -> None:
    """
    The active gateway is killed under load: each accepted message is there once, in order, with rising ids. So are
    messages that a replay had put, and unlogged ones that it had kept.
    """
    active, other = pair
    with Client(url_of(active)) as client:
        client.sender("kept").send_all([data(i) for i in range(10)])
    active.ask("PUT", "action", "/replayLogs/default/trimLoggedMsgs", {"before": "#6"})
    active.ask("PUT", "action", "/queues/kept/startReplay", {"keepUnlogged": True})
    waiting = readiness(other).json()
    assert (waiting["state"], waiting["active"]) == ("waiting", f"127.0.0.1:{active.address[1]}")
    with Publishing(url_of(active), "orders") as publishing:
        publishing.wait_for(2_000)
        publishing.expect_an_end()
        active.kill()
    killed_at = time.monotonic()
    wait_until(lambda: is_ready(other), "the other is ready")
    with Client(url_of(other)) as client:
        client.sender("orders").send_all([data("after")])
        assert time.monotonic() - killed_at < TAKE_OVER_SECONDS
        found: list[Received] = []
        receiver = client.receiver("orders")
        receiver.collect(found, publishing.accepted + 1)
        found += receiver.drain()
        assert texts(client.receiver("kept").drain()) == [str(i) for i in range(10)]
    *before, after = texts(found)
    assert after == "after"
    assert before == [str(number) for number in range(len(before))] and len(before) >= publishing.accepted
    ids = [message.id for message in found]
    assert ids == sorted(set(ids))


QUEUES: dict[str, dict[str, Any]] = {
    "groups": {"messageGroups": True},
    "replayed": {"partitionCount": 7},
    "once": {"dedupWindow": 100},
    "latest": {"kind": "last-value", "valueKey": "isin"},
    "again": {"retryType": "failed", "retryDelayMs": 3_000},
    "later": {},
}


def test_what_queues_promise_holds_with_the_other(pair: tuple[GatewayProcess, GatewayProcess]) -> None:
    """
    The active gateway is killed. Order by key holds, with unsettled messages first, also during a replay; dedup ids are
    known; a last-value queue has the newest of each key; delayed messages come when due, with their counts.
    """
    active, other = pair
    url = [url_of(active)]
    crews = [Crew(lambda: Client(url[0]), name) for name in ("groups", "replayed")]
    with ExitStack() as stack:
        stack.callback(lambda: [crew.dies() for crew in crews for _ in tuple(crew.receivers)])
        client = stack.enter_context(Client(url[0]))
        for name, said in QUEUES.items():
            active.ask("POST", "config", "/queues", {"queueName": name, **said})
        for crew in crews:
            client.sender(crew.address).send_all(grouped(25, 8))
        active.ask("PUT", "action", "/queues/replayed/startReplay", {})
        client.sender("once").send_all([named("a", "1"), named("b", "2")])
        client.receiver("once", credit=1).take_and_accept(1)
        client.sender("latest").send_all([keyed("x", "old"), keyed("y", "y"), keyed("x", "new")])
        client.sender("again").send_all([data("again")])
        failing = client.receiver("again", credit=1)
        due_s = time.time() + 3
        failing.modify(failing.take(1), failed=True)
        client.sender("later").send_all([delayed("later", 3_000)])
        again = partial(active.ask, "GET", "monitor", "/queues/again")
        client.wait(lambda: again()["delayedMsgCount"] == 1, "it waits, durably")
        for crew in crews:
            for credit in (10, 10, 30):
                crew.add(credit)
            crew.work(60)
        active.kill()
        wait_until(lambda: is_ready(other), "the other is ready")
        url[0] = url_of(other)
        for crew in crews:
            for _ in range(3):
                crew.dies()
                crew.add(10)
        client = stack.enter_context(Client(url[0]))
        client.sender("once").send_all([named("a", "3"), named("b", "4"), named("c", "5")])
        assert texts(client.receiver("once").drain()) == ["2", "5"]
        assert texts(client.receiver("latest").drain()) == ["y", "new"]
        for crew in crews:
            crew.work(200)
        for name, count in (("again", 1), ("later", 0)):
            (found,) = client.receiver(name, credit=1).take(1)
            assert (found.text, found.delivery_count) == (name, count)
            assert time.time() > due_s


def test_one_that_was_stopped_tells_nobody_anything(
    pair: tuple[GatewayProcess, GatewayProcess], stopped: Callable[[], None]
) -> None:
    """When it continues after its lease, it delivers and accepts nothing, and closes its clients."""
    active, other = pair
    publisher, consumer = Client(url_of(active)), Client(url_of(active))
    sender = publisher.sender("orders")
    sender.send_all(data(number) for number in range(100))
    receiver = consumer.receiver("orders", credit=10)
    receiver.take(10)
    stopped()
    # Waiting for it when it continues: credit for messages that it has in memory, and a message.
    receiver.flow(50)
    consumer.wait(lambda: True, "credit is on its way")
    delivery = sender.send(data("late"))
    publisher.wait(lambda: True, "the message is on its way")
    wait_until(lambda: is_ready(other), "the other takes over from one that has stopped to commit")
    with Client(url_of(other)) as client:
        taken = client.receiver("orders", credit=200).take_and_accept(100)
        assert texts(taken) == [str(number) for number in range(100)]
    os.kill(active.pid, signal.SIGCONT)
    for deposed in (consumer, publisher):
        assert deposed.closed_by_peer().name == "amqp:connection:forced"
        deposed.cut()
    assert not receiver.arrived
    assert delivery.remote_state == 0
    wait_until(lambda: readiness(active).json().get("state") == "waiting", "it waits")
    with Client(url_of(other)) as client:
        assert client.receiver("log://>?replay-start=beginning&until=now").take_to_end()[-1].text == "99"


def test_publishers_wait_while_the_database_is_gone(start: Start, postgresql: Server) -> None:
    """After a crash of the database, publishers only wait: messages sent meanwhile are accepted once it is back."""
    gateway = start("a")
    with Client(url_of(gateway)) as client:
        sender = client.sender("orders")
        sender.send_all([data("before")])
        postgresql.crash()
        deliveries = [sender.send(data(number)) for number in range(5)]
        client.wait(lambda: not is_ready(gateway), "its lease runs out")
        assert [delivery.remote_state for delivery in deliveries] == [0] * 5
        postgresql.start()
        assert {sender.outcome(delivery) for delivery in deliveries} == {"ACCEPTED"}
        assert texts(client.receiver("orders", credit=9).take(6)) == ["before", *map(str, range(5))]
