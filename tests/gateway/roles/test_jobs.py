"""A job under which the store is taken away: the gateway that has it then goes on with it."""

from __future__ import annotations

from typing import Any

import httpx

from gateway.core.model import ReplayRecord
from tests.gateway.roles.conftest import Start, is_active
from tests.support.client import Client, Received, texts
from tests.support.messages import data
from tests.support.running import PLAIN_HTTP, RunningGateway
from tests.support.shared_store import SharedDatabase
from tests.support.waiting import wait_until

MESSAGES = 3_000
TAKEN = 4
"""Times that the store is taken away."""


def record(gateway: RunningGateway) -> ReplayRecord | None:
    """Of the copy, where this gateway has the store."""

    def find(running: Any) -> ReplayRecord | None:
        vpn = running.vpns.get("default")
        return None if vpn is None else vpn.broker.replay_records.by_name.get("copy")

    return gateway.call(find)


def test_another_gateway_goes_on_with_a_copy(database: SharedDatabase, start: Start) -> None:
    """Taken over again and again: each message is copied once, and in order."""
    gateways = [start("a"), start("b")]
    (active,) = [gateway for gateway in gateways if is_active(gateway)]
    with Client(active.url) as client:
        client.sender("topic://past").send_all([data(n) for n in range(MESSAGES)])
    url = active.call(lambda running: running.admin[0])
    wanted = {"target": "queue://copies", "subscriptions": ["past"], "rate": MESSAGES / 2, "name": "copy"}
    path = "/SEMP/v2/action/msgVpns/default/replayLogs/default/startCopy"
    assert httpx.put(f"{url}{path}", json=wanted, **PLAIN_HTTP, timeout=30).status_code == 200
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
