"""How many queues and subscriptions clients may make, and what becomes of subscriptions that nobody uses."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.config import Vpn
from gateway.vpn.runtime import SystemClock
from gateway.vpn.upkeep import expiry
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import refusal
from tests.support.messages import data


def test_a_message_vpn_has_so_many_endpoints_and_no_more(start: Start, connect: Connect) -> None:
    """A queue on first use, a temporary one and a subscription are refused alike once the Message VPN is full."""
    gateway = start(vpn=Vpn(max_endpoints=2))
    client = connect(gateway)
    client.sender("one").send_all([data(1)])
    client.sender("two").send_all([data(2)])
    for attach in (
        lambda: client.sender("three"),
        lambda: client.receiver("topic://a/>"),
        lambda: client.receiver(None, dynamic=True),
    ):
        refused = refusal(attach)
        assert refused.name == "amqp:resource-limit-exceeded"
        assert "max_endpoints" in refused.text
    assert gateway.endpoints() == {"one", "two"}
    client.sender("one").send_all([data(3)])  # what is there is not refused


class FarClock(SystemClock):
    """A clock that can be moved on by hours."""

    def __init__(self) -> None:
        self.hours = 0

    def seconds(self) -> float:  # type: ignore[override]
        return time.perf_counter() + self.hours * 3_600


def test_a_subscription_that_nobody_uses_expires(
    start: Start, connect: Connect, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the hours that the settings say it is gone with what lies on it; one that has a consumer stays."""
    monkeypatch.setattr(expiry, "LOOK_SECONDS", 0.01)
    clock = given["clock"] = FarClock()
    gateway = start(vpn=Vpn(subscription_expiry_hours=2))
    client = connect(gateway)
    used = client.receiver("topic://a/>", name="used", durable=True)
    client.receiver("topic://a/>", name="left", durable=True).detach()
    client.sender("topic://a/b").send_all([data(1)])
    assert len(gateway.endpoints()) == 2

    def seen(gateway: Gateway) -> int:
        """One that is used can have been seen, too: in the moment before its consumer came."""
        return sum(not endpoint.flows for endpoint in gateway.vpns["default"].unused._unused_since)

    client.wait(lambda: gateway.call(seen) == 1, "it was seen")
    clock.hours = 1
    client.sender("topic://a/b").send_all([data(2)])
    assert len(gateway.endpoints()) == 2
    clock.hours = 3
    client.wait(lambda: len(gateway.endpoints()) == 1, "the unused one is gone")
    used.close()
