"""Engines that a store can have, as the tests of the port open them: a new one is held to them by its line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from store.ports import Stores
from store.sqlite.check import check
from store.sqlite.store import SqliteStores, message_file
from tests.store.port.postgresql_vpn import NamedStores, PostgresTables, check_named, check_url, state_named
from tests.store.port.sqlite_vpn import SqliteFile
from tests.store.port.vpns import StoredVpn
from tests.store.vpn_file import new_file, state_of
from tests.support.naive_store import State
from tests.support.postgresql import Server


@dataclass(frozen=True)
class Adapter:
    """An engine, as one test has it."""

    name: str
    stores: Callable[[Path], Stores]
    """In a folder of the test's."""
    check: Callable[[Path, str], list[str]]
    """What of the promises a closed store of that folder breaks, by the Message VPN's name."""
    state: Callable[[Path, str], State]
    """All that can be seen of a closed store of that folder."""
    place: Callable[[], str]
    """A new one for another process's stores (``tests.store.victim``)."""
    check_at: Callable[[str, str], list[str]]
    """What of the promises a closed store of such a place breaks."""
    vpn: Callable[[], StoredVpn]
    """A new empty one, maybe in place of the last."""


def _sqlite(request: pytest.FixtureRequest) -> Adapter:
    folder: Path = request.getfixturevalue("tmp_path")
    numbers = count()
    made: list[SqliteFile] = []

    def vpn() -> SqliteFile:
        made.append(SqliteFile(new_file(folder / f"vpn-{next(numbers)}.db")))
        return made[-1]

    request.addfinalizer(lambda: [found.close() for found in made] and None)
    return Adapter(
        "sqlite",
        SqliteStores,
        lambda folder, vpn: check(message_file(folder, vpn)),
        lambda folder, vpn: state_of(message_file(folder, vpn)),
        lambda: str(folder),
        lambda place, vpn: check(message_file(Path(place), vpn)),
        vpn,
    )


def _postgresql(request: pytest.FixtureRequest) -> Adapter:
    server: Server = request.getfixturevalue("postgresql")
    made: list[PostgresTables] = []

    def vpn() -> PostgresTables:
        # Making a schema takes longer than most of what is done with it.
        if not made:
            made.append(PostgresTables(server))
        made[0].clear()
        return made[0]

    request.addfinalizer(lambda: [found.close() for found in made] and None)
    return Adapter(
        "postgresql",
        partial(NamedStores, server),
        partial(check_named, server),
        partial(state_named, server),
        lambda: server.url(server.new_database()),
        check_url,
        vpn,
    )


ADAPTERS: Final[dict[str, Callable[[pytest.FixtureRequest], Adapter]]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
}

MARKED: Final = [
    pytest.param(name, marks=[pytest.mark.postgresql] if name == "postgresql" else []) for name in ADAPTERS
]
"""As parameters of a test."""
