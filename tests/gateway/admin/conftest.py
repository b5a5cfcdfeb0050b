"""What the tests of administration share: a gateway, an AMQP client, and the API over real HTTP."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
import trustme
from click.testing import CliRunner, Result

from amqp_ext.sasl import hash_password
from gateway.admin.administered_gateway import AdministeredGateway
from gateway.cli import main
from gateway.config import Settings, Tls, Vpn
from gateway.users import Users
from gateway.vpn.clients import ClientConnection
from store.sqlite.check import check
from tests.support.client import Client
from tests.support.log_lines import Line, kept_lines
from tests.support.running import PLAIN_HTTP, RunningGateway, settings_for

HASH = hash_password("secret", salt=b"0123456789abcdef", iterations=4096)
OTHER_HASH = hash_password("other", salt=b"0123456789abcdef", iterations=4096)
QUEUES = "/SEMP/v2/config/msgVpns/default/queues"
LOG = "/replayLogs/default"


def connect(http: httpx.Client) -> socket.socket:
    """A new connection to the address of this HTTP client; nothing is sent on it yet."""
    return socket.create_connection((http.base_url.host, http.base_url.port or 0), 20)


class Api:
    """The administration API of a gateway, for its Message VPN `default`."""

    def __init__(self, gateway: RunningGateway) -> None:
        self.gateway = gateway
        url = gateway.call(lambda running: running.admin[0])
        # Not over TLS: the certificates of the world take longer to load than most tests.
        self.http = httpx.Client(base_url=url, **PLAIN_HTTP)

    def restart(self) -> None:
        """Restart the gateway, and follow its administration to the new address."""
        self.gateway.restart()
        self.http.base_url = self.gateway.call(lambda running: running.admin[0])

    def rewind(self, *words: str, **more: Any) -> Result:
        """Run the command line against this administration."""
        return CliRunner().invoke(main, [*words, "--admin", str(self.http.base_url)], **more)

    def ask(self, method: str, tree: str, path: str, body: Any = None, **query: Any) -> httpx.Response:
        """Send a request to `/SEMP/v2/{tree}/msgVpns/default{path}`; return the response."""
        return self.http.request(
            method,
            f"/SEMP/v2/{tree}/msgVpns/default{path}",
            json=body if method != "GET" else None,
            params=query,
        )

    def done(self, method: str, tree: str, path: str, body: Any = None, **query: Any) -> Any:
        """Send a request that has to succeed; return the answer's data."""
        answer = self.ask(method, tree, path, body, **query)
        assert answer.status_code == 200, answer.text
        assert answer.json()["meta"]["responseCode"] == 200
        return answer.json()["data"]

    def refused(self, method: str, tree: str, path: str, body: Any = None, **query: Any) -> dict[str, Any]:
        """Send a request that has to be refused; return the answer's error."""
        answer = self.ask(method, tree, path, body, **query)
        assert answer.status_code == 400, answer.text
        error: dict[str, Any] = answer.json()["meta"]["error"]
        return error

    def seen(self, path: str = "", **query: Any) -> Any:
        """Return what the monitor tree shows."""
        return self.done("GET", "monitor", path, **query)

    def make(self, path: str, body: Any) -> Any:
        """Create an object of the configuration; return it as it is shown."""
        return self.done("POST", "config", path, body)

    def make_queue(self, name: str, *topics: str, **said: Any) -> None:
        """Create a queue with topic subscriptions."""
        self.make("/queues", {"queueName": name, **said})
        for topic in topics:
            self.make(f"/queues/{name}/subscriptions", {"subscriptionTopic": topic})

    def act(self, path: str, body: Any) -> Any:
        """Run an action; return its result."""
        return self.done("PUT", "action", path, body)

    def change(self, path: str, body: Any) -> Any:
        """Change an object of the configuration; return it as it is shown afterwards."""
        return self.done("PATCH", "config", path, body)

    def delete(self, path: str) -> None:
        """Delete an object of the configuration."""
        self.done("DELETE", "config", path)

    def why(self, method: str, tree: str, path: str, body: Any = None, **query: Any) -> str:
        """Send a request that has to be refused; return the sentence of the refusal."""
        return str(self.refused(method, tree, path, body, **query)["description"])

    def queue(self, name: str) -> Any:
        """Return a queue as the monitor shows it."""
        return self.seen(f"/queues/{name}")

    def pages(self, tree: str, path: str, **query: Any) -> list[list[dict[str, Any]]]:
        """Return a list, page by page; every page but the last one is full."""
        found: list[list[dict[str, Any]]] = []
        while True:
            answer = self.ask("GET", tree, path, **query).json()
            found.append(answer["data"])
            paging = answer["meta"].get("paging")
            if paging is None:
                assert len(found[-1]) <= query["count"]
                return found
            assert len(found[-1]) == query["count"]
            query["cursor"] = paging["cursorQuery"]

    def all_of(self, tree: str, path: str, name: str, **query: Any) -> list[Any]:
        """Return one attribute of every object of a list, read page by page."""
        return [one[name] for page in self.pages(tree, path, **query) for one in page]


def stop_and_check(api: Api, client: Client) -> None:
    """Check that the gateway is healthy, stop it, and check that its file is sound."""
    assert api.http.get("/readyz").status_code == 200
    assert api.done("GET", "monitor", "")["storeProblem"] is None
    client.cut()
    file = Path(api.gateway.call(lambda running: running.vpns["default"].state.store.place))
    api.gateway.stop()
    assert check(file) == []


class _NoVpns(dict[str, Any]):
    """No Message VPNs, and none that waits to start."""

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
    """A gateway with the default configuration."""
    return start()


Administer = Callable[[RunningGateway], Api]


@pytest.fixture
def administer(_ending: ExitStack) -> Administer:
    """Opens the administration API of a gateway; it is closed when the test ends."""

    def administer(gateway: RunningGateway) -> Api:
        api = Api(gateway)
        _ending.callback(api.http.close)
        return api

    return administer


Serve = Callable[..., Api]


@pytest.fixture
def serve(start: Start, administer: Administer) -> Serve:
    """Starts a gateway with settings of the test's own, and returns its administration."""
    return lambda *vpn, **more: administer(start(*vpn, **more))


@pytest.fixture
def api(gateway: RunningGateway, administer: Administer) -> Api:
    """The administration of `gateway`."""
    return administer(gateway)


@pytest.fixture
def client(gateway: RunningGateway, _ending: ExitStack) -> Client:
    """An AMQP client of `gateway`."""
    return _ending.enter_context(Client(gateway.url))


@pytest.fixture
def logged() -> Iterator[list[Line]]:
    """The lines about administration."""
    with kept_lines(logging.INFO, "administered", "administration_refused") as lines:
        yield lines


def tls_of(authority: trustme.CA, folder: Path) -> Tls:
    """A certificate for 127.0.0.1 from this authority; certificates of clients are accepted, but not required."""
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.cert_chain_pems[0].write_to_path(folder / "server.pem")
    issued.private_key_pem.write_to_path(folder / "server.key")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return Tls(certificate=folder / "server.pem", key=folder / "server.key", client_ca=folder / "ca.pem")
