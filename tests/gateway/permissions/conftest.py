"""A gateway with users, clients that log in as a user, and the lines that the gateway logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from amqp_ext.sasl import hash_password
from gateway.config import User, Vpn, read
from tests.support.client import Client
from tests.support.log_lines import Line, kept_lines
from tests.support.running import ConfigurationFile, RunningGateway, settings_for

PASSWORD = "secret"
# The minimum of iterations: these tests are not about the hash.
HASH = hash_password(PASSWORD, salt=b"0123456789abcdef", iterations=4_096)


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[Line]]:
    """The lines the gateway logs, warnings and worse."""
    with kept_lines(logging.WARNING) as lines:
        yield lines


Start = Callable[..., RunningGateway]
Login = Callable[..., Client]


@pytest.fixture
def start(tmp_path: Path, _ending: ExitStack) -> Start:
    """Starts a gateway with these users: `start(ann={"publish": [...]}, bob={})`."""

    def start(*, vpn: Vpn | None = None, **rules: dict[str, Any]) -> RunningGateway:
        users = {
            name: User(password=HASH, **{key: tuple(value) for key, value in lists.items()})
            for name, lists in rules.items()
        }
        return _ending.enter_context(RunningGateway(settings_for(tmp_path / "data", vpn, users=users)))

    return start


@pytest.fixture
def login(_ending: ExitStack) -> Login:
    """Connects as a user: `login(gateway, "ann")`."""

    def login(gateway: RunningGateway, name: str, **more: Any) -> Client:
        return _ending.enter_context(Client(gateway.url, user=(name, PASSWORD), **more))

    return login


class Reloaded:
    """A gateway whose users are read from a file."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        self._file = ConfigurationFile(folder)
        self._ending = ending
        self.gateway: RunningGateway

    def write(self, users: str) -> None:
        """Write these users to the file."""
        self._file.write(users, listener=f"port = 0\n{self.listener}")

    def start(self, users: str, listener: str = "") -> RunningGateway:
        """Start with these users, and with these settings of the listener."""
        self.listener = listener
        self.write(users)
        self.gateway = self._ending.enter_context(RunningGateway(read(self._file.path)))
        return self.gateway

    def reload(self, users: str) -> None:
        """Reload with these users."""
        self.write(users)
        self.gateway.run_coroutine(lambda running: running.reload())


@pytest.fixture
def reloaded(tmp_path: Path, _ending: ExitStack) -> Reloaded:
    return Reloaded(tmp_path, _ending)


def user(name: str, rules: str = "") -> str:
    """The table of a user."""
    return f"[user.{name}]\npassword = '{HASH}'\n{rules}\n"
