"""What the tests of the administration share: a gateway, an AMQP client, and the API over real HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from gateway.admin.administered_gateway import AdministeredGateway
from gateway.config import Settings, Vpn
from gateway.users import Users
from gateway.vpn.clients import ClientConnection
from store.sqlite.check import check
from tests.support.client import Client
from tests.support.running import PLAIN_HTTP, RunningGateway, settings_for


class Api:
    """The administration of a gateway's VPN `default`."""

    def __init__(self, gateway: RunningGateway) -> None:
        url = gateway.call(lambda running: running.admin[0])
        # Not over TLS: the certificates of the world take longer to load than most tests.
        self.http = httpx.Client(base_url=url, **PLAIN_HTTP, timeout=30)

    def ask(self, method: str, tree: str, path: str, body: Any = None, **query: Any) -> httpx.Response:
        """A request to `/SEMP/v2/{tree}/msgVpns/default{path}`."""
        return self.http.request(
            method,
            f"/SEMP/v2/{tree}/msgVpns/default{path}",
            json=body if method != "GET" else None,
            params=query,
        )

    def done(self, method: str, tree: str, path: str, body: Any = None, **query: Any) -> Any:
        """The same, which has to succeed: its data."""
        answer = self.ask(method, tree, path, body, **query)
        assert answer.status_code == 200, answer.text
        assert answer.json()["meta"]["responseCode"] == 200
        return answer.json()["data"]

    def refused(self, method: str, tree: str, path: str, body: Any = None, **query: Any) -> dict[str, Any]:
        """The same, which has to be refused: its error."""
        answer = self.ask(method, tree, path, body, **query)
        assert answer.status_code == 400, answer.text
        error: dict[str, Any] = answer.json()["meta"]["error"]
        return error

    def queue(self, name: str) -> Any:
        """A queue as the monitor shows it."""
        return self.done("GET", "monitor", f"/queues/{name}")


def stop_and_check(gateway: RunningGateway, api: Api, client: Client) -> None:
    """The gateway is well, and once it has stopped, its file is, too."""
    assert api.http.get("/readyz").status_code == 200
    assert api.done("GET", "monitor", "")["storeProblem"] is None
    client.cut()
    file = Path(gateway.call(lambda running: running.vpns["default"].place))
    gateway.stop()
    assert check(file) == []


class _NoVpns(dict[str, Any]):
    """No Message VPNs, and none that wait."""

    waiting: Mapping[str, Any] = {}


class EmptyGateway(AdministeredGateway):
    """A gateway with nothing in it."""

    users = Users(Settings())
    vpns: Any = _NoVpns()
    connections: ClassVar[list[ClientConnection]] = []

    def problem(self, vpn: str | None = None) -> str | None:
        return None


Start = Callable[..., RunningGateway]


@pytest.fixture
def start(tmp_path: Path, _ending: ExitStack) -> Start:
    """Starts a gateway with settings of the test's own."""

    def start(vpn: Vpn | None = None, **more: Any) -> RunningGateway:
        return _ending.enter_context(RunningGateway(settings_for(tmp_path / "data", vpn, **more)))

    return start


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    """A gateway as it is without configuration."""
    return start()


Administer = Callable[[RunningGateway], Api]


@pytest.fixture
def administer(_ending: ExitStack) -> Administer:
    """The administration of a gateway, until the test ends."""

    def administer(gateway: RunningGateway) -> Api:
        api = Api(gateway)
        _ending.callback(api.http.close)
        return api

    return administer


@pytest.fixture
def api(gateway: RunningGateway, administer: Administer) -> Api:
    """The administration of `gateway`."""
    return administer(gateway)


@pytest.fixture
def client(gateway: RunningGateway, _ending: ExitStack) -> Client:
    """An AMQP client of `gateway`."""
    return _ending.enter_context(Client(gateway.url))
