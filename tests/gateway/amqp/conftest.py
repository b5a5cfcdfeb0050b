"""What the tests of the wire share: gateways that end with their test, clients that end before them, and a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from gateway.app import Gateway
from gateway.config import Limits, Vpn
from gateway.core.effects import Effect
from gateway.vpn.runtime import SystemClock
from gateway.vpn.upkeep import delayed, locks
from store.errors import WriteFailed
from store.ports import Batch, OnCommit, StoreOptions
from store.sqlite.store import SqliteStore, SqliteStores
from store.sqlite.transaction import Transaction
from tests.support.client import Client
from tests.support.running import RunningGateway, settings_for


@pytest.fixture
def given() -> dict[str, Any]:
    """Keyword arguments for the test's gateways, such as a clock or stores: see ``RunningGateway``."""
    return {}


class Clock(SystemClock):
    """The gateway's wall clock, moved by hand."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def now_ms(self) -> int:  # type: ignore[override]
        return self.ms


@pytest.fixture
def clock(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that the test moves, and that the gateway looks at every 30 ms. Request it before a gateway."""
    for module in (delayed, locks):
        monkeypatch.setattr(module, "LONGEST_SECONDS", 0.03)
    clock = given["clock"] = Clock()
    return clock


HOLD_SECONDS = 30
"""How long a notification may be held back: a test that fails meanwhile has to be able to end."""


class Telling:
    """Holds back notifications of commits: the changes are in the file, and the gateway does not know yet."""

    def __init__(self) -> None:
        self._may_tell = threading.Event()
        self._may_tell.set()
        self._only: type[Effect] | None = None
        self.was_impatient = False
        """The time was up before `go_on`: what the test has looked at meanwhile proves nothing."""

    def delayed(self, tell: OnCommit) -> OnCommit:
        """``tell``, which waits while notifications are held back."""

        def wait_and_tell(batches: list[Batch], error: WriteFailed | None) -> None:
            effects = [effect for batch in batches for effect in batch.effects]
            if self._only is None or any(isinstance(effect, self._only) for effect in effects):
                self.was_impatient |= not self._may_tell.wait(HOLD_SECONDS)
            tell(batches, error)

        return wait_and_tell

    def hold(self, only: type[Effect] | None = None) -> None:
        """Hold back notifications of commits by the writer's thread: all, or of those with effects of this type."""
        self._only = only
        self._may_tell.clear()

    def go_on(self) -> None:
        """Let the held notifications through, and all later ones."""
        self._may_tell.set()


class _TellingStores(SqliteStores):
    """Stores whose writers notify through a ``Telling``."""

    def __init__(self, folder: Path, telling: Telling) -> None:
        super().__init__(folder)
        self._telling = telling

    def open(self, vpn: str, now_ms: int, options: StoreOptions) -> SqliteStore:
        store = super().open(vpn, now_ms, options)
        start_writer = store.start_writer
        store.start_writer = lambda tell: start_writer(self._telling.delayed(tell))  # type: ignore[method-assign]
        return store


@pytest.fixture
def telling(given: dict[str, Any]) -> Iterator[Telling]:
    """Request it before a gateway, to look at the gateway between a commit and its notification."""
    telling = Telling()
    given["stores"] = lambda folder: _TellingStores(folder, telling)
    yield telling
    telling.go_on()
    assert not telling.was_impatient, "the test did not go on in time"


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """No store writes anything while the block runs: `with full_disk(): …`."""

    def fail(_: Transaction) -> None:
        raise apsw.FullError("database or disk is full")

    @contextmanager
    def full_disk() -> Iterator[None]:
        with monkeypatch.context() as broken:
            broken.setattr(Transaction, "finish", fail)
            yield

    return full_disk


FullDisk = Callable[[], AbstractContextManager[None]]
Start = Callable[..., RunningGateway]


class Connect:
    """Connects clients that end before the gateway does: `connect(gateway)`."""

    def __init__(self, ending: ExitStack) -> None:
        self._ending = ending

    def __call__(self, gateway: RunningGateway, **more: Any) -> Client:
        return self._ending.enter_context(Client(gateway.url, **more))

    def again(self, gateway: RunningGateway, client: Client, vpn: Vpn | None = None) -> Client:
        """Close the client, restart the gateway (with another Message VPN if one is given); a new client."""
        client.close()
        gateway.restart(vpn)
        return self(gateway)


@pytest.fixture
def start(tmp_path: Path, given: dict[str, Any], _ending: ExitStack) -> Start:
    """Starts a gateway with settings of the test's own: `start(vpn=Vpn(…), limits=Limits(…))`."""

    def start(vpn: Vpn | None = None, limits: Limits | None = None, **more: Any) -> RunningGateway:
        settings = settings_for(tmp_path / "data", vpn, limits, **more)
        return _ending.enter_context(RunningGateway(settings, **given))

    return start


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    """A gateway as it is without configuration."""
    return start()


@pytest.fixture
def connect(_ending: ExitStack) -> Connect:
    return Connect(_ending)


@pytest.fixture
def client(gateway: RunningGateway, connect: Connect) -> Client:
    """A client of `gateway`."""
    return connect(gateway)


def attaches_under_way(gateway: RunningGateway) -> int:
    """How many attaches of all clients are not answered yet."""

    def count(running: Gateway) -> int:
        assert running._container is not None
        return sum(connection.tasks.count for connection in running._container.connections)

    return gateway.call(count)
