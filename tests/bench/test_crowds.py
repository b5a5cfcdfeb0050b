"""Clients in large numbers that leave something behind, or wait."""

from __future__ import annotations

from pathlib import Path

from tests.bench.idle import LINKS, waiting_readers
from tests.bench.subscriptions import subscribe
from tests.support.running import RunningGateway, settings_for

COUNT = LINKS + 3


def test_durable_subscriptions_stay_when_their_client_is_gone(tmp_path: Path) -> None:
    """Each is an endpoint of its own, subscribed to the topic."""
    with RunningGateway(settings_for(tmp_path)) as gateway:
        subscribe(gateway.address, "topic://a/b", COUNT)

        assert gateway.endpoints() == {f"durable{n}" for n in range(COUNT)}
        assert gateway.subscriptions("durable7") == ["a/b"]


def test_log_readers_wait_on_few_connections(tmp_path: Path) -> None:
    """More than one connection's links are shared out."""
    with RunningGateway(settings_for(tmp_path)) as gateway, waiting_readers(gateway.address, COUNT):
        assert gateway.log_readers() == COUNT
        assert gateway.connections() == 2
