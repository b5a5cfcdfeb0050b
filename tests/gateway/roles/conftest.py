"""What the tests of roles share: a shared store, gateways on it, and clients that are closed before them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from proton import Event, Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

from gateway.config import Vpn, VpnStore
from tests.support.client import WAIT_SECONDS, Client
from tests.support.running import PLAIN_HTTP, RunningGateway, settings_for
from tests.support.shared_store import URL, SharedDatabase

Start = Callable[..., RunningGateway]
Connect = Callable[..., Client]

LEASE_SECONDS = 2


def is_active(gateway: RunningGateway, vpn: str = "default") -> bool:
    """Whether the gateway has the store of a Message VPN."""
    return gateway.call(lambda running: vpn in running.vpns)


def ask(gateway: RunningGateway, path: str) -> httpx.Response:
    """Send GET to administration."""
    url = gateway.call(lambda running: running.admin[0])
    return httpx.get(f"{url}{path}", **PLAIN_HTTP)


def alarms(gateway: RunningGateway) -> dict[str, str]:
    """The alarms, each with its text."""
    found = ask(gateway, "/SEMP/v2/monitor/msgVpns/default/alarms").json()["data"]
    return {alarm["alarm"]: alarm["description"] for alarm in found}


class _Publisher(MessagingHandler):  # type: ignore[misc]  # proton has no types
    """A Proton client with several addresses, which publishes until a message is accepted."""

    def __init__(self, urls: list[str], options: dict[str, Any]) -> None:
        super().__init__()
        self._urls, self._options = urls, options
        self.accepted_by = ""

    def on_start(self, event: Event) -> None:
        self.connection = event.container.connect(urls=self._urls, **self._options)
        event.container.create_sender(self.connection, "topic://s/1")
        event.container.schedule(WAIT_SECONDS, self)

    def on_sendable(self, event: Event) -> None:
        if not self.accepted_by:
            event.sender.send(Message("hello"))

    def on_accepted(self, event: Event) -> None:
        self.accepted_by = event.connection.connected_address
        event.container.stop()

    def on_timer_task(self, event: Event) -> None:
        event.container.stop()


def published_by_proton(urls: list[str], **options: Any) -> str:
    """The address at which a Proton client's message was accepted; the client tries these addresses in order."""
    publisher = _Publisher(urls, options)
    Container(publisher).run()
    return publisher.accepted_by


@pytest.fixture
def database(tmp_path: Path) -> SharedDatabase:
    """The store that the test's gateways share."""
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
    """Connects clients that are closed before the gateway stops: `connect(gateway)`."""
    return lambda gateway, **more: _ending.enter_context(Client(gateway.url, **more))


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    """A gateway on the shared store."""
    return start()


@pytest.fixture
def client(gateway: RunningGateway, connect: Connect) -> Client:
    """A client of `gateway`."""
    return connect(gateway)
