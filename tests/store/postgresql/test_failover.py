"""A primary that stops, or crashes, and its synchronous standby in its place: what was told is there, in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from store.ports import Durability
from store.postgresql.check import check_vpn
from store.postgresql.database import Database
from store.postgresql.store import PostgresStores
from tests.store.effects import publication, queue
from tests.store.postgresql.vpn import OPTIONS, Gateway, state_of
from tests.store.vpn_file import MADE_MS
from tests.support.postgresql import Server, server

pytestmark = [pytest.mark.postgresql, pytest.mark.slow]

SENT = 200
"""Batches of ten messages."""


@pytest.fixture
def primary() -> Iterator[Server]:
    """One of a test's own."""
    with server() as found:
        yield found


@pytest.mark.parametrize("end", ["stopped", "crashed"])
def test_the_standby_goes_on_where_the_primary_ended(
    primary: Server, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A primary is stopped in its tracks, so that its connections stand and nothing comes of them, or is killed.
    Publishers wait, and go on with the standby once it is promoted; what the old one may have had alone is nowhere.
    """
    monkeypatch.setattr("store.postgresql.writer.LOST_SECONDS", 1.0)
    standby = primary.standby(synchronous=True)
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write&connect_timeout=2"
    gateway = Gateway(PostgresStores(url).open("v", MADE_MS, OPTIONS))
    try:
        assert gateway.store.durability() is Durability.TWO_MACHINES
        sent = []
        assert gateway.commit(*queue(1, "q")) is None
        for n in range(SENT):
            made = publication(1 + 10 * n, [b"%d" % n] * 10, endpoints=(1,), time_ms=MADE_MS)
            sent.append(gateway.submit(made))
            if n == SENT // 2:
                assert gateway.wait(sent[SENT // 4]) is None
                if end == "stopped":
                    primary.hold()
                else:
                    primary.crash()
        standby.promote()
        assert [gateway.wait(batch) for batch in sent] == [None] * len(sent)
        with Database(standby.url()).connect("v", "test") as asked:
            assert sorted(state_of(asked).messages) == list(range(1, 10 * SENT + 1))
        assert gateway.store.durability() is Durability.ONE_MACHINE
        gateway.close()
        assert check_vpn(Database(standby.url()), "v") == []
    finally:
        primary.go_on()
        gateway.close()
