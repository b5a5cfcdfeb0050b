"""A gateway that is killed in the middle of replays and transactions, and started again on the same files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support.client import Client, Received, texts
from tests.support.messages import data
from tests.support.publishing import Publishing
from tests.support.transactions import DISCHARGE, Controller, acknowledge, publish
from tests.system.gateway_process import GatewayProcess

pytestmark = pytest.mark.system


def client_of(process: GatewayProcess) -> Client:
    """A client of a gateway that is a process of its own."""
    return Client(process.ready["amqp"][0])


@pytest.fixture
def process(tmp_path: Path) -> Iterator[list[GatewayProcess]]:
    """The gateways of a test, the last one running."""
    processes = [GatewayProcess(tmp_path / "data")]
    yield processes
    processes[-1].stop()


def kill_and_start(processes: list[GatewayProcess]) -> GatewayProcess:
    """`kill -9`, and a new gateway on the same files."""
    processes[-1].kill()
    processes.append(GatewayProcess(processes[-1].data))
    return processes[-1]


def test_a_replay_survives_being_killed(process: list[GatewayProcess]) -> None:
    """Killed again and again in the middle of a replay, the gateway goes on with it: what was unsettled comes again."""
    client = client_of(process[-1])
    client.sender("orders").send_all([data(i) for i in range(4_000)])
    receiver = client.receiver("orders?replay-start=beginning")
    settled = 0
    for _ in range(3):
        receiver.flow(600)
        taken = receiver.take(600)
        numbers = [int(message.text) for message in taken]
        assert numbers == list(range(numbers[0], numbers[0] + 600))
        # A settlement is durable when the gateway says so, and that it says only in receiver mode second: what comes
        # again are the last of those that were settled, never any before them.
        assert settled - 500 <= numbers[0] <= settled
        receiver.settle(taken[:500])
        settled = numbers[500]
        client.open_session()
        client.cut()
        client = client_of(kill_and_start(process))
        receiver = client.receiver("orders")
    receiver.flow(1)
    rest = receiver.take_and_accept(1)
    first = int(rest[0].text)
    receiver.collect(rest, 4_000 - first)
    assert texts(rest) == [str(i) for i in range(first, 4_000)]
    assert receiver.drain(0) == []
    client.close()


def test_nothing_accepted_is_lost_from_a_replay(process: list[GatewayProcess]) -> None:
    """Killed while a replay meets a busy publisher, the gateway has every accepted message in queue and log, once."""
    with Publishing(process[-1].ready["amqp"][0], "orders") as publishing:
        publishing.wait_for(2_000)
        client = client_of(process[-1])
        receiver = client.receiver("orders?replay-start=beginning")
        receiver.flow(1_000)
        receiver.take(1_000)
        publishing.expect_an_end()
        started = kill_and_start(process)
        client.cut()
    client = client_of(started)
    log = client.receiver("log://>?until=now").take_to_end()
    numbers = [int(message.text) for message in log]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= publishing.accepted
    queue: list[Received] = []
    receiver = client.receiver("orders")
    receiver.collect(queue, len(numbers))
    assert texts(queue) == texts(log)
    assert [message.id for message in queue] == [message.id for message in log]
    assert receiver.drain(0) == []
    client.close()


def test_a_named_replay_goes_on_under_its_name_after_kills(process: list[GatewayProcess]) -> None:
    """
    Killed twice in its middle while others publish, it goes on: one record, which says so; history keeps the mark, and
    what was published since has none.
    """
    url = process[-1].ready["amqp"][0]
    with Client(url) as client:
        client.sender("orders").send_all([data(i) for i in range(2_000)])
        receiver = client.receiver("orders?replay-start=beginning&replay-name=nightly", credit=300)
        found = {message.id: message.annotations.get("x-opt-replay-name") for message in receiver.take(300)}
    for _ in range(2):
        with Publishing(url, "orders") as publishing:
            publishing.wait_for(200)
            publishing.expect_an_end()
            url = kill_and_start(process).ready["amqp"][0]
    client = client_of(process[-1])
    (record,) = _replays(process[-1])
    assert (record["replayName"], record["target"], record["endedTimeMs"]) == ("nightly", "orders", None)
    assert record["outcome"] == "interrupted by a stop, and went on"
    receiver = client.receiver("orders", credit=100)
    taken: list[Received] = []
    receiver.collect(taken, 2_400)
    found |= {message.id: message.annotations.get("x-opt-replay-name") for message in taken}
    assert sorted(found) == list(range(1, len(found) + 1))
    assert found == {i: "nightly" if i <= 2_000 else None for i in found}
    receiver.settle(taken)
    receiver.flow(100_000)
    client.wait(
        lambda: receiver.settle(receiver.drain(0)) or _replays(process[-1])[0]["endedTimeMs"], "it ends"
    )
    (record,) = _replays(process[-1])
    assert (record["state"], record["outcome"]) == ("complete", "every message was acknowledged")
    client.close()


def _replays(process: GatewayProcess) -> list[dict[str, Any]]:
    """Those on record."""
    admin = process.ready["admin"]
    with urlopen(f"{admin}/SEMP/v2/monitor/msgVpns/default/replays") as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]
    return found


def test_a_transaction_survives_being_killed_whole_or_not_at_all(process: list[GatewayProcess]) -> None:
    """Killed among commits: each message is where it was or where it went, with its copy, and none told is undone."""
    count, told = 120, 0
    client = client_of(process[-1])
    client.sender("queue://in").send_all([data(i) for i in range(count)])
    for _ in range(2):
        controller = Controller(client)
        sender, copies = client.sender("queue://out"), client.sender("topic://copies")
        receiver = client.receiver("queue://in", credit=50)
        discharges = []
        for message in receiver.take(50):
            txn_id = controller.declare()
            for link in (sender, copies):
                publish(link, data(message.text), txn_id)
            acknowledge(message, txn_id)
            discharges.append(controller.ask(DISCHARGE, [txn_id, False]))
        client.wait(lambda d=discharges: d[9].remote_state, "some are committed")
        started = kill_and_start(process)
        told += sum(1 for discharge in discharges if discharge.remote_state)
        client.cut()
        client = client_of(started)
    moved = texts(client.receiver("log://copies?until=now").take_to_end())
    assert len(moved) >= told >= 20
    queue: list[Received] = []
    client.receiver("queue://out").collect(queue, len(moved))
    assert texts(queue) == moved
    left: list[Received] = []
    receiver = client.receiver("queue://in")
    receiver.collect(left, count - len(moved))
    assert sorted(map(int, [*texts(left), *moved])) == list(range(count))
    assert receiver.drain(0) == []
    client.close()
