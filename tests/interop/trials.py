"""The pairs of foreign clients and scenarios to run; an unknown name is an error at import."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from interop.__main__ import Scenario
from interop.client import Client
from interop.clients import CLIENTS
from interop.scenarios import SCENARIOS, title

_CLIENTS = {client.name: client for client in CLIENTS}
_SCENARIOS = {title(scenario): scenario for scenario in SCENARIOS}


def clients(*names: str) -> list[Client]:
    """The clients with these names."""
    return [_CLIENTS[name] for name in names]


def scenarios(*titles: str) -> list[Scenario]:
    """The scenarios with these titles."""
    return [_SCENARIOS[each] for each in titles]


def trials(pairs: Iterable[tuple[Client, Scenario]]) -> pytest.MarkDecorator:
    """Parametrizes a test with these pairs; those of one client come one after another."""
    return pytest.mark.parametrize(
        ("client", "scenario"),
        [
            pytest.param(
                client,
                scenario,
                marks=pytest.mark.xdist_group(client.name),
                id=f"{client.name}-{title(scenario)}",
            )
            for client, scenario in pairs
        ],
    )
