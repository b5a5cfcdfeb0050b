"""What the tests of the port share: each is run with every engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.store.port.adapters import ADAPTERS, MARKED, Adapter
from tests.store.port.vpns import StoredVpn


@pytest.fixture(params=MARKED)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    """Each engine there is."""
    return ADAPTERS[request.param](request)


@pytest.fixture
def new_vpn(adapter: Adapter) -> Callable[[], StoredVpn]:
    """A new empty Message VPN at every call, maybe in place of the last."""
    return adapter.vpn


@pytest.fixture
def vpn(adapter: Adapter) -> StoredVpn:
    """One new Message VPN."""
    return adapter.vpn()
