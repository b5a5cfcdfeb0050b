"""The engines that a store can have, as the tests of the port open them; a new engine gets an entry in ``ADAPTERS``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from store.ports import Store, StoreOptions
from store.sqlite.check import check
from store.sqlite.store import message_file
from tests.store.port.postgresql_vpn import PostgresTables, check_url, state_at
from tests.store.port.sqlite_vpn import SqliteFile
from tests.store.port.vpns import StoredVpn
from tests.store.victim import opened, stores_of
from tests.store.vpn_file import MADE_MS, new_file, state_of
from tests.support.naive_store import State
from tests.support.postgresql import Server

PARTITION_BITS: Final = 8
"""Ids per partition in PostgreSQL, as a power of two: few enough for a history to fill several partitions."""

_numbers = count(1)


class Place(NamedTuple):
    """The place of a store that one test uses alone."""

    where: str
    """The folder, or the database's URL (``tests.store.victim``)."""
    vpn: str


@dataclass(frozen=True)
class Adapter:
    """An engine, as one test uses it."""

    name: str
    place: Callable[[], Place]
    """Returns a new place without a store."""
    check: Callable[[Place], list[str]]
    """Returns the broken promises of a closed store."""
    state: Callable[[Place], State]
    """Returns the visible state of a closed store."""
    vpn: Callable[[], StoredVpn]
    """Returns a new empty Message VPN, which may replace the last one."""

    def open(self, place: Place, options: StoreOptions) -> Store:
        """Open the store at this place."""
        return opened(stores_of(self.name, place.where, PARTITION_BITS), place.vpn, options, MADE_MS)


def _sqlite(request: pytest.FixtureRequest) -> Adapter:
    folder: Path = request.getfixturevalue("tmp_path")
    made: list[SqliteFile] = []

    def place() -> Place:
        where = folder / f"stores-{next(_numbers)}"
        where.mkdir()
        return Place(str(where), "orders")

    def file(place: Place) -> Path:
        return message_file(Path(place.where), place.vpn)

    def vpn() -> SqliteFile:
        made.append(SqliteFile(new_file(folder / f"vpn-{next(_numbers)}.db")))
        return made[-1]

    request.addfinalizer(lambda: [found.close() for found in made] and None)
    return Adapter(
        "sqlite", place, lambda place: check(file(place)), lambda place: state_of(file(place)), vpn
    )


def _postgresql(request: pytest.FixtureRequest) -> Adapter:
    server: Server = request.getfixturevalue("postgresql")

    def vpn() -> PostgresTables:
        tables: PostgresTables = request.getfixturevalue("postgresql_tables")
        tables.clear()
        return tables

    return Adapter(
        "postgresql",
        lambda: Place(server.url(), f"stores-{next(_numbers)}"),
        lambda place: check_url(*place),
        lambda place: state_at(*place),
        vpn,
    )


ADAPTERS: Final[dict[str, Callable[[pytest.FixtureRequest], Adapter]]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
}

MARKED: Final = [
    pytest.param(name, marks=[pytest.mark.postgresql] if name == "postgresql" else []) for name in ADAPTERS
]
"""The engines as parameters of a test."""
