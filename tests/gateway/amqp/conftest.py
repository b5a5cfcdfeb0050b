"""What the tests of the wire share: gateways that end with their test, clients that end before them, and a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway.config import Limits, Vpn
from gateway.vpn import message_vpn
from tests.support.client import Client
from tests.support.running import RunningGateway, settings_for


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    yield
    structlog.reset_defaults()


class Clock:
    """The gateway's wall clock, moved by hand."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Ask for it before a gateway: from then on, that gateway's time is the test's."""
    clock = Clock()
    monkeypatch.setattr(message_vpn, "now_ms", clock)
    return clock


Start = Callable[..., RunningGateway]
Connect = Callable[..., Client]


@pytest.fixture
def _ending() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def start(tmp_path: Path, _ending: ExitStack) -> Start:
    """Starts a gateway with settings of the test's own: `start(vpn=Vpn(…), limits=Limits(…))`."""

    def start(vpn: Vpn | None = None, limits: Limits | None = None, **more: Any) -> RunningGateway:
        return _ending.enter_context(RunningGateway(settings_for(tmp_path / "data", vpn, limits, **more)))

    return start


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    """A gateway as it is without configuration."""
    return start()


@pytest.fixture
def connect(_ending: ExitStack) -> Connect:
    """Connects clients that end before the gateway does: `connect(gateway)`."""
    return lambda gateway, **more: _ending.enter_context(Client(gateway.url, **more))


@pytest.fixture
def client(gateway: RunningGateway, connect: Connect) -> Client:
    """A client of `gateway`."""
    return connect(gateway)
