"""A model machine that tests drive by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.core.machines.test_endpoints import EndpointMachine
from tests.gateway.core.machines.world import Sizes


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Iterator[EndpointMachine]:
    """A machine whose rules the test calls (see ``sized``); all of its checks run at the end."""
    sizes, history = getattr(request, "param", (Sizes(), 0))
    machine = EndpointMachine()
    machine.start(sizes=sizes, history=history)
    yield machine
    machine.teardown()
