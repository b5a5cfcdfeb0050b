"""A model machine that tests drive by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.core.machines.test_endpoints import EndpointMachine
from tests.gateway.core.machines.world import Sizes


@pytest.fixture
def machine() -> Iterator[EndpointMachine]:
    """One whose rules are called by hand; everything it has checks of is checked in the end."""
    machine = EndpointMachine()
    machine.start(sizes=Sizes())
    yield machine
    machine.teardown()
