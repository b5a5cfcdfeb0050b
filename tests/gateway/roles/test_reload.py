"""Reading the configuration again, with stores on other machines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from gateway.config import read
from store.ports import Durability
from tests.gateway.roles.conftest import Connect, ask, is_active
from tests.support.client import texts
from tests.support.messages import data
from tests.support.running import PLAIN_HTTP, ConfigurationFile, RunningGateway
from tests.support.shared_store import URL, SharedDatabase
from tests.support.waiting import wait_until

Configure = Callable[[str], list[str]]


@pytest.fixture
def file(tmp_path: Path) -> ConfigurationFile:
    return ConfigurationFile(tmp_path)


@pytest.fixture
def gateway(database: SharedDatabase, file: ConfigurationFile, _ending: ExitStack) -> RunningGateway:
    """A gateway that waits, as another one has the store of its Message VPN `default`."""
    database.hold("other.example.com:5672")
    file.write(store())
    return _ending.enter_context(RunningGateway(read(file.path), engine=database.engine))


@pytest.fixture
def configure(gateway: RunningGateway, file: ConfigurationFile) -> Configure:
    """Reloads with another configuration; returns what was refused."""

    def configure(text: str) -> list[str]:
        file.write(text)
        url = gateway.call(lambda running: running.admin[0])
        answer = httpx.put(f"{url}/SEMP/v2/action/reload", **PLAIN_HTTP)
        assert answer.status_code == 200, answer.text
        refused: list[str] = answer.json()["data"]["refused"]
        return refused

    return configure


def store(more: str = "", vpn: str = "default", url: str = URL) -> str:
    """The table of a Message VPN's store."""
    return f'[vpn.{vpn}.store]\nurl = "{url}"\n{more}\n'


def test_what_a_waiting_message_vpn_is_told_holds_when_it_is_active(
    database: SharedDatabase, gateway: RunningGateway, configure: Configure, connect: Connect
) -> None:
    """Settings changed while another gateway is active apply once this one is; later ones immediately."""
    queue = '[vpn.default.queue.orders]\nsubscriptions = ["t/>"]\n'
    assert configure(store() + queue) == []
    database.durability = Durability.ONE_MACHINE
    database.release()
    wait_until(lambda: is_active(gateway), "it takes over")
    client = connect(gateway)
    sender = client.sender("topic://t/1")
    sender.send_all([data(1)])
    assert texts(client.receiver("orders").drain()) == ["1"]
    assert configure(store("require_standby = true") + queue) == []
    assert "standby" in sender.rejection(sender.send(data(2))).text


def test_another_url_is_for_the_next_start(gateway: RunningGateway, configure: Configure) -> None:
    """
    The change is refused, in a sentence without the password. A new Message VPN on another store is opened, and
    `/readyz` names it.
    """
    (told,) = configure(store(url=URL.replace("double", "elsewhere")) + store(vpn="trading"))
    assert told.startswith("vpn.default.store.url ") and "until the next start" in told
    assert "rewind:***@" in told and "secret" not in told
    wait_until(lambda: is_active(gateway, "trading"), "it is opened")
    assert ask(gateway, "/readyz?vpn=trading").status_code == 200
    assert ask(gateway, "/readyz?vpn=default").status_code == 503
