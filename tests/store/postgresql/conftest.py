"""Fixtures of the adapter's tests: Message VPNs in one database, one per test."""

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
    """Mark the tests that use the server's fixture."""
    for item in items:
        if "postgresql" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.postgresql)


@pytest.fixture(scope="session")
def database(postgresql: Server) -> str:
    """The name of a database for these tests."""
    return postgresql.new_database()


@pytest.fixture
def vpn(postgresql: Server, database: str) -> Iterator[PostgresVpn]:
    """A new Message VPN."""
    found = PostgresVpn(postgresql, database, f"vpn-{next(_numbers)}")
    yield found
    found.close()


@pytest.fixture
def asked(vpn: PostgresVpn) -> Iterator[Connection]:
    """A connection to the tables of ``vpn``."""
    with Database(vpn.url).connect(vpn.name, "test") as connection:
        yield connection


@pytest.fixture
def gateway(vpn: PostgresVpn) -> Gateway:
    """A gateway that has the store of ``vpn``."""
    return vpn.gateway()


@pytest.fixture
def proxy(vpn: PostgresVpn) -> Proxy:
    """A proxy between a gateway and the server."""
    return vpn.proxy()


@pytest.fixture
def behind(vpn: PostgresVpn, proxy: Proxy) -> Gateway:
    """A gateway that has the store of ``vpn``, and reaches it through ``proxy``."""
    return vpn.gateway(vpn.stores(proxy))


@pytest.fixture
def waited_for(postgresql: Server) -> Iterator[Server]:
    """The server, for tests that make its commits wait for a standby; reset after the test."""
    yield postgresql
    wait_for_standby(postgresql, "")
