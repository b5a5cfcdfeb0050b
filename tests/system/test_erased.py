"""Messages erased under load, and SIGKILL in the middle: an erasure has happened, or it has not."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.sqlite.check import check
from tests.store.port.postgresql_vpn import check_url
from tests.support.postgresql import Server
from tests.system.conftest import Start
from tests.system.erasing import CONFIG, kill_erasing
from tests.system.gateway_process import GatewayProcess

ON_POSTGRESQL = """
[vpn.default.store]
url = "{url}"
lease_seconds = 2
"""


def test_kills_leave_no_erasure_half_done(start: Start) -> None:
    """On SQLite; the file is sound after each kill."""

    def begin() -> GatewayProcess:
        assert files == [] or check(files[0]) == []
        gateway = start(CONFIG)
        files[:] = [gateway.data / "default.db"]
        return gateway

    files: list[Path] = []
    kill_erasing(begin, 4, lambda _gateway, _markers: None)


@pytest.mark.postgresql
def test_kills_leave_no_erasure_half_done_on_postgresql(start: Start, postgresql: Server) -> None:
    """On PostgreSQL; the tables are sound in the end."""
    url = postgresql.url(postgresql.new_database())
    config = CONFIG + ON_POSTGRESQL.format(url=url)
    kill_erasing(lambda: start(config), 3, lambda _gateway, _markers: None)
    assert check_url(url, "default") == []
