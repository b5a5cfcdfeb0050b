"""What the tests of the adapter share: Message VPNs in one database, each of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from store.postgresql.database import Connection, Database
from tests.store.postgresql.vpn import Gateway, PostgresVpn, wait_for_standby
from tests.support.postgresql import Server
from tests.support.tcp_proxy import Proxy

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


@pytest.fixture
def gateway(vpn: PostgresVpn) -> Gateway:
    """One that has its store."""
    return vpn.gateway()


@pytest.fixture
def proxy(vpn: PostgresVpn) -> Proxy:
    """Between a gateway and the server."""
    return vpn.proxy()


@pytest.fixture
def behind(vpn: PostgresVpn, proxy: Proxy) -> Gateway:
    """A gateway that has its store behind that proxy."""
    return vpn.gateway(vpn.stores(proxy))


@pytest.fixture
def waited_for(postgresql: Server) -> Iterator[Server]:
    """The server, of which every commit waits for a standby that never comes, while the test has it so."""
    yield postgresql
    wait_for_standby(postgresql, "")
