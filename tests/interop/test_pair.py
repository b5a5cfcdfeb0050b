"""
Foreign clients that reconnect by themselves, with two gateways on one PostgreSQL: the active gateway is killed.

The clients get both addresses, that of the waiting gateway first.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from urllib.error import URLError

import pytest

from interop.__main__ import Scenario, attempt, install
from interop.client import Client
from interop.gateway_process import GatewayProcess
from interop.scenarios import failover, failover_of_publisher
from tests.interop.trials import clients, trials
from tests.support.chance import IS_NIGHTLY
from tests.support.ports import free_port
from tests.support.postgresql import Server
from tests.support.waiting import wait_until

TRIED = clients("proton-blocking", "proton-container", "rhea", "qpid-jms", *["protonj2"] * IS_NIGHTLY)

READY_WITHIN = 30.0
"""In seconds."""

pytestmark = [pytest.mark.clients, pytest.mark.postgresql, pytest.mark.timeout(600)]


class Pair(GatewayProcess):
    """Two gateways that look like one: a restart kills the active one, and the other one takes over."""

    def __init__(self, database: str) -> None:
        store = f'[vpn.default.store]\nurl = "{database}"\n'
        self._active, self._other = (
            GatewayProcess(settings=store, ports=(free_port(), free_port())) for _ in range(2)
        )

    def start(self) -> None:
        self._active.start()
        self._other.start()

    def stop(self) -> None:
        self._other.stop()
        self._active.stop()

    def __exit__(self, *_: object) -> None:
        self._other.__exit__()
        self._active.__exit__()

    @property
    def url(self) -> str:  # type: ignore[override]
        """The URL of the active gateway."""
        return self._active.url

    @property
    def websocket_url(self) -> str:  # type: ignore[override]
        return self._active.websocket_url

    @property
    def failover_url(self) -> str:
        return f"{self._other.url},{self._active.url}"

    def restart(self) -> None:
        """Kill the active gateway, and start it again when the other one has taken over."""
        self._active.kill()
        self._active, self._other = self._other, self._active
        wait_until(lambda: _is_ready(self._active), "the other gateway takes over", READY_WITHIN)
        self._other.start()

    def last_lines(self, count: int = 10) -> str:
        return self._active.last_lines(count)


def _is_ready(gateway: GatewayProcess) -> bool:
    with suppress(URLError), urllib.request.urlopen(f"{gateway.admin_url}/readyz") as answer:
        return bool(answer.status == 200)
    return False


@pytest.fixture(scope="module")
def pair(postgresql: Server) -> Iterator[Pair]:
    with Pair(postgresql.url(postgresql.new_database())) as started:
        yield started


@trials(
    (client, scenario)
    for client in TRIED
    for scenario in (failover, failover_of_publisher)
    # The consumers of the other clients first wait for their heartbeats and time-outs.
    if IS_NIGHTLY or scenario is failover_of_publisher or client.name == "proton-container"
)
def test_a_client_goes_on_with_the_other(client: Client, scenario: Scenario, pair: Pair) -> None:
    """The client, unmodified, reconnects by itself, and no accepted message is missing."""
    install(client)
    result = attempt(client, scenario, pair)
    assert result.status == "pass", result.note
