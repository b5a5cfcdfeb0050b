"""Fixtures of the store's tests: empty stores to begin with."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from tests.store.port.postgresql_vpn import PostgresTables
from tests.store.vpn_file import new_file
from tests.support.postgresql import Server


@pytest.fixture(scope="session")
def _empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_file(tmp_path_factory.mktemp("store") / "empty.db")


@pytest.fixture
def fresh(_empty: Path, tmp_path: Path) -> Callable[[], Path]:
    """Returns a new empty file at each call: a copy of one that is made once per session, which is faster."""
    numbers = count()

    def copied() -> Path:
        path = tmp_path / f"{next(numbers)}.db"
        shutil.copy(_empty, path)
        return path

    return copied


@pytest.fixture
def path(fresh: Callable[[], Path]) -> Path:
    """One new empty file."""
    return fresh()


@pytest.fixture(scope="session")
def postgresql_tables(postgresql: Server) -> Iterator[PostgresTables]:
    """One Message VPN for all tests: creating a schema takes longer than most tests."""
    with closing(PostgresTables(postgresql)) as found:
        yield found
