"""What the tests of the adapter share: Message VPNs in one database, each of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from store.postgresql.database import Connection, Database
from tests.store.postgresql.vpn import PostgresVpn
from tests.support.postgresql import Server

_numbers = count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that ask for the server need one."""
    for item in items:
        if "postgresql" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.postgresql)


@pytest.fixture(scope="session")
def database(postgresql: Server) -> str:
    """The name of one that is these tests' own."""
    return postgresql.new_database()


@pytest.fixture
def vpn(postgresql: Server, database: str) -> Iterator[PostgresVpn]:
    """A Message VPN that nobody else has."""
    found = PostgresVpn(postgresql, database, f"vpn-{next(_numbers)}")
    yield found
    found.close()


@pytest.fixture
def asked(vpn: PostgresVpn) -> Iterator[Connection]:
    """A connection to look at its tables."""
    with Database(vpn.url).connect(vpn.name, "test") as connection:
        yield connection
