"""Jobs, and durability, of gateways that share a store."""

from __future__ import annotations

from typing import Any

import httpx
from proton import Delivery

from gateway.config import Queue
from gateway.core.model import ReplayRecord
from store.ports import Durability
from tests.gateway.roles.conftest import Connect, Start, alarms, ask, is_active
from tests.support.client import Client, Received, texts
from tests.support.messages import data
from tests.support.running import PLAIN_HTTP, RunningGateway
from tests.support.shared_store import SharedDatabase
from tests.support.waiting import wait_until

# --- The store is taken away during a job: the next active gateway continues it ---------------------------------------

MESSAGES = 3_000
TAKEN = 4
"""How often the store is taken away."""


def record(gateway: RunningGateway) -> ReplayRecord | None:
    """The record of the copy; None if this gateway does not have the store."""

    def find(running: Any) -> ReplayRecord | None:
        vpn = running.vpns.get("default")
        return None if vpn is None else vpn.broker.replay_records.by_name.get("copy")

    return gateway.call(find)


def test_another_gateway_goes_on_with_a_copy(database: SharedDatabase, start: Start) -> None:
    """The store changes hands several times: each message is copied once, and in order."""
    gateways = [start("a"), start("b")]
    (active,) = [gateway for gateway in gateways if is_active(gateway)]
    with Client(active.url) as client:
        client.sender("topic://past").send_all([data(n) for n in range(MESSAGES)])
    url = active.call(lambda running: running.admin[0])
    wanted = {"target": "queue://copies", "subscriptions": ["past"], "rate": MESSAGES / 2, "name": "copy"}
    path = "/SEMP/v2/action/msgVpns/default/replayLogs/default/startCopy"
    assert httpx.put(f"{url}{path}", json=wanted, **PLAIN_HTTP).status_code == 200
    for _ in range(TAKEN):
        began = wait_until(lambda: next(filter(None, map(record, gateways)), None), "one has it")
        wait_until(
            lambda before=began: any(
                found.sent > before.sent or found.is_ended for found in map(record, gateways) if found
            ),
            "the copy gets on",
        )
        database.take_away()
        wait_until(lambda: any(map(is_active, gateways)), "one has the store")
    wait_until(
        lambda: any(found.state == "complete" for found in map(record, gateways) if found), "it is complete"
    )
    (active,) = [gateway for gateway in gateways if is_active(gateway)]
    with Client(active.url) as client:
        found: list[Received] = []
        client.receiver("copies").collect(found, MESSAGES)
        assert texts(found) == [str(n) for n in range(MESSAGES)]
        assert client.receiver("copies").drain() == []


# --- A store that holds its commits on one machine only ---------------------------------------------------------------


def state(gateway: RunningGateway) -> dict[str, Any]:
    """The Message VPN as `rewind status` shows it."""
    found: dict[str, Any] = ask(gateway, "/SEMP/v2/monitor/msgVpns/default").json()["data"]
    return found


def test_it_is_known_at_the_start_and_while_it_runs(
    database: SharedDatabase, gateway: RunningGateway
) -> None:
    """Status, metric and alarm follow the store's durability; the gateway stays ready."""
    metric = 'rewind_store_on_two_machines{vpn="default"} '
    assert state(gateway)["storeDurability"] == "two-machines"
    assert f"{metric}1.0" in ask(gateway, "/metrics").text and alarms(gateway) == {}
    database.durability = Durability.ONE_MACHINE
    wait_until(lambda: state(gateway)["storeDurability"] == "one-machine", "it is asked again")
    assert f"{metric}0.0" in ask(gateway, "/metrics").text
    assert "one machine only" in state(gateway)["storeProblem"]
    assert ask(gateway, "/readyz").status_code == 200
    wait_until(lambda: list(alarms(gateway)) == ["one-machine"], "the alarm is raised")
    database.durability = Durability.TWO_MACHINES
    wait_until(lambda: not alarms(gateway), "the alarm is cleared")


def test_a_standby_can_be_required(database: SharedDatabase, start: Start, connect: Connect) -> None:
    """
    Without a standby, messages are refused with a sentence; pre-settled ones are counted as dropped. Messages on queues
    are delivered, and dead ones moved. With a standby again, messages are accepted.
    """
    queues = {"orders": Queue(dead_message_queue="dead")}  # type: ignore[call-arg]
    gateway = start(vpn={"queues": queues}, require_standby=True)
    client = connect(gateway)
    sender, receiver = client.sender("orders"), client.receiver("orders", credit=10)
    sender.send_all([data(1)])
    database.durability = Durability.ONE_MACHINE
    wait_until(lambda: state(gateway)["storeDurability"] == "one-machine", "it is asked again")
    refused = sender.rejection(sender.send(data(2)))
    assert refused.name == "amqp:precondition-failed" and "standby" in refused.text
    assert "refused" in state(gateway)["storeProblem"]
    client.sender("orders").send(data(2), settled=True)
    client.wait(lambda: state(gateway)["directDroppedMsgCount"] == 1, "it is counted")
    receiver.settle(receiver.take(1), Delivery.REJECTED)
    assert texts(client.receiver("dead", credit=1).take(1)) == ["1"]
    database.durability = Durability.TWO_MACHINES
    wait_until(lambda: state(gateway)["storeDurability"] == "two-machines", "it is asked again")
    sender.send_all([data(3)])
    assert texts(receiver.take(1)) == ["3"]
