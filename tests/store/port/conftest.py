"""Fixtures of the port's tests, which run with every engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.store.port.adapters import ADAPTERS, MARKED, Adapter
from tests.store.port.vpns import StoredVpn


@pytest.fixture(params=MARKED)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    """One engine after another."""
    return ADAPTERS[request.param](request)


@pytest.fixture
def new_vpn(adapter: Adapter) -> Callable[[], StoredVpn]:
    """Returns a new empty Message VPN at each call, which may replace the last one."""
    return adapter.vpn


@pytest.fixture
def vpn(adapter: Adapter) -> StoredVpn:
    """One new Message VPN."""
    return adapter.vpn()
