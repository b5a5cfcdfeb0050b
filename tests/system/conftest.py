"""Gateways as processes for the tests in this folder, each of which is marked ``system``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.gateway_process import ALL, GatewayProcess

HERE = Path(__file__).parent
FIRST: pytest.StashKey[int] = pytest.StashKey()

Start = Callable[..., GatewayProcess]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all tests of this folder ``system`` before -m selects by marker."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.system)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the end of the log of its last gateways."""
    report = yield
    if report.failed:
        used = [
            value for value in getattr(item, "funcargs", {}).values() if isinstance(value, GatewayProcess)
        ]
        for process in dict.fromkeys([*used, *ALL[item.stash.get(FIRST, len(ALL)) :][-2:]]):
            report.sections.append((f"log of gateway {process.pid}", process.log_tail()))
    return report


@pytest.fixture(autouse=True)
def _mark_first(request: pytest.FixtureRequest) -> None:
    request.node.stash[FIRST] = len(ALL)


@pytest.fixture(autouse=True, scope="session")
def _no_process_is_left() -> Iterator[None]:
    """Fails if a test has left a gateway process running."""
    yield
    left = [process for process in ALL if process.is_running]
    for process in left:
        process.kill()
    assert not left, f"gateways that nobody ended: {[process.pid for process in left]}"


def starting(folder: Path) -> Generator[Start]:
    """
    Starts gateways, by default on one data folder, and stops those that still run at the end.

    A gateway that has to be killed, or that has logged an error of its own, fails the test.
    """
    started: list[GatewayProcess] = []

    def begin(config: str = "", *, data: Path = folder / "data", **options: Any) -> GatewayProcess:
        process = GatewayProcess(data, config, **options)
        started.append(process)
        return process

    yield begin
    running = [process for process in started if process.is_running]
    for process in running:
        process.terminate()
    statuses = [process.wait() for process in running]
    assert statuses == [0] * len(running)
    mistakes = [line for process in started for line in process.mistakes()]
    assert not mistakes, mistakes


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts gateways for a single test."""
    yield from starting(tmp_path)


@pytest.fixture(scope="module")
def start_for_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts gateways for all tests of a file that leave nothing behind; each test names a data folder."""
    yield from starting(tmp_path_factory.mktemp("shared"))
