"""A primary that stops, or crashes, and its synchronous standby in its place: what was told is there, in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from store.ports import Durability
from store.postgresql.database import Database
from store.postgresql.store import PostgresStores
from tests.store.effects import publication
from tests.store.postgresql.vpn import OPTIONS, Gateway, state_of
from tests.store.vpn_file import MADE_MS
from tests.support.postgresql import Server, server

pytestmark = [pytest.mark.postgresql, pytest.mark.slow]

SENT = 40


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
        for n in range(1, SENT):
            sent.append(gateway.submit(publication(n, [b"x"], time_ms=MADE_MS)))
            if n == SENT // 2:
                assert gateway.wait(sent[0]) is None
                if end == "stopped":
                    primary.hold()
                else:
                    primary.crash()
        standby.promote()
        assert [gateway.wait(batch) for batch in sent] == [None] * len(sent)
        with Database(standby.url()).connect("v", "test") as asked:
            assert list(state_of(asked).messages) == list(range(1, SENT))
        assert gateway.store.durability() is Durability.ONE_MACHINE
    finally:
        primary.go_on()
        gateway.close()
