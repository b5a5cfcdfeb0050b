"""
Foreign clients, live: proton, rhea and Qpid JMS run the most important scenarios, each with its own gateway process.

Scenarios with a transcript are replayed without the client (``test_transcripts``), and run with it nightly. ``./run
interop`` runs all scenarios with all clients.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interop.__main__ import Scenario, attempt, install
from interop.client import Client
from interop.gateway_process import GatewayProcess
from interop.scenarios import title
from interop.transcript import FOLDER
from tests.interop.trials import clients, scenarios, trials
from tests.support.chance import IS_NIGHTLY
from tests.support.ports import free_port

TRIED = clients("proton-blocking", "proton-container", "rhea", "qpid-jms")
BEHAVIOURS = scenarios(
    "queue",
    "durable subscription",
    "request reply",
    "redelivery",
    "redelivery delay",
    "failover",
    "replay by filter",
    "replay by address option",
    "replay by selector term",
    "replay into live",
    "bad start",
    "exclusive taken",
)

LIVE = ("queue", "replay by address option")
"""These are run with each client, although there are transcripts of them."""

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def gateways() -> Iterator[dict[str, GatewayProcess]]:
    started: dict[str, GatewayProcess] = {}
    yield started
    for gateway in started.values():
        gateway.__exit__()


def is_tried(client: Client, scenario: Scenario) -> bool:
    """Whether the client supports the scenario and no transcript covers it in less time."""
    recorded = FOLDER / client.name / f"{scenario.__name__}.json"
    is_due = IS_NIGHTLY or title(scenario) in LIVE or not recorded.exists()
    return is_due and title(scenario) not in client.without


@trials((client, scenario) for client in TRIED for scenario in BEHAVIOURS if is_tried(client, scenario))
def test_a_client_does_it(client: Client, scenario: Scenario, gateways: dict[str, GatewayProcess]) -> None:
    """The client, unmodified, does what the scenario says, and its user sees the result."""
    if client.name not in gateways:
        install(client)
        gateways[client.name] = GatewayProcess(ports=(free_port(), free_port())).__enter__()
    result = attempt(client, scenario, gateways[client.name])
    assert result.status == "pass", result.note
