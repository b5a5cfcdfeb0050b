"""What the tests of roles share: a store that is shared, gateways on it, and clients that end before them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from gateway.config import Vpn, VpnStore
from tests.support.client import Client
from tests.support.running import PLAIN_HTTP, RunningGateway, settings_for
from tests.support.shared_store import URL, SharedDatabase

T = TypeVar("T")

Start = Callable[..., RunningGateway]
Connect = Callable[..., Client]

LEASE_SECONDS = 2


def is_active(gateway: RunningGateway, vpn: str = "default") -> bool:
    """Whether the gateway has the store of a Message VPN."""
    return gateway.call(lambda running: vpn in running.vpns)


def ask(gateway: RunningGateway, path: str) -> httpx.Response:
    """GET from the administration."""
    url = gateway.call(lambda running: running.admin[0])
    return httpx.get(f"{url}{path}", **PLAIN_HTTP, timeout=30)


@pytest.fixture
def database(tmp_path: Path) -> SharedDatabase:
    """What the gateways of the test share."""
    return SharedDatabase(tmp_path / "shared")


@pytest.fixture
def start(database: SharedDatabase, tmp_path: Path, _ending: ExitStack) -> Start:
    """Starts a gateway on the shared store: `start("a", require_standby=True)`."""

    def start(name: str = "a", vpn: dict[str, Any] | None = None, **store: Any) -> RunningGateway:
        store = {"url": URL, "lease_seconds": LEASE_SECONDS, "advertise": f"{name}.example.com:5672", **store}
        settings = settings_for(tmp_path / name, Vpn(store=VpnStore(**store), **(vpn or {})))
        return _ending.enter_context(RunningGateway(settings, engine=database.engine))

    return start


@pytest.fixture
def connect(_ending: ExitStack) -> Connect:
    """Connects clients that end before the gateway does: `connect(gateway)`."""
    return lambda gateway, **more: _ending.enter_context(Client(gateway.url, **more))


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    """One on the shared store."""
    return start()


@pytest.fixture
def client(gateway: RunningGateway, connect: Connect) -> Client:
    """A client of it."""
    return connect(gateway)
