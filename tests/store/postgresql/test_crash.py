"""Whenever a server ends: what is found afterwards is what there was after some transaction, with all that was told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gateway.core.effects import Effect
from store.postgresql.check import check
from store.postgresql.database import Database
from tests.store.effects import applied, publication, queue
from tests.store.histories import histories
from tests.store.postgresql.vpn import Gateway, PostgresVpn, state_of
from tests.store.vpn_file import MADE_MS, empty_model
from tests.support.postgresql import Server, server

pytestmark = [pytest.mark.postgresql, pytest.mark.slow]


@pytest.fixture(scope="module")
def durable() -> Iterator[Server]:
    """A server that syncs what it commits, and that is these tests' own."""
    with server(quick=False) as found:
        yield found


def reopened(vpn: PostgresVpn) -> None:
    """Another gateway opens it; the schema keeps every promise."""
    vpn.gateway().close()
    assert check(Database(vpn.url).connect(vpn.name, "check"), vpn.name) == []


@settings(
    suppress_health_check=list(HealthCheck),
    max_examples=3,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
)
@given(history=histories(), data=st.data())
def test_a_server_that_is_killed_loses_nothing_that_was_told(
    durable: Server, history: list[list[Effect]], data: st.DataObject
) -> None:
    """At any commit, with others under way: it comes again, the writer finds out what was done, and goes on."""
    vpn = PostgresVpn(durable, durable.new_database(), "crash")
    model = empty_model()
    try:
        gateway = vpn.gateway()
        kill_at = data.draw(st.integers(0, len(history) - 1))
        batches = []
        for k, effects in enumerate(history):
            batches.append(gateway.submit(*effects))
            applied(model, effects)
            if k == kill_at:
                told = len(gateway.told)
                durable.crash()
                durable.start()
                assert len(gateway.told) >= told
        assert [gateway.wait(batch) for batch in batches] == [None] * len(batches)
        gateway.close()
        with Database(vpn.url).connect(vpn.name, "test") as connection:
            assert state_of(connection) == model.state()
        reopened(vpn)
    finally:
        vpn.close()


def test_what_was_told_is_on_the_standby_that_takes_over() -> None:
    """The primary is killed under load, for good: all that was told is on the other one, and the writer goes on."""
    with server() as primary:
        standby = primary.standby(synchronous=True)
        vpn = PostgresVpn(primary, "postgres", "crash")
        # Both, in the order in which they are tried.
        both = f"{primary.sockets},{primary.sockets}"
        vpn.url = primary.url(
            host=both, port=f"{primary.port},{standby.port}", target_session_attrs="read-write"
        )
        try:
            gateway = vpn.gateway()
            assert gateway.commit(*queue(1, "q")) is None
            batches = [_submitted(gateway, number) for number in range(200)]
            assert gateway.wait(batches[50]) is None
            primary.crash()
            standby.promote()
            assert [gateway.wait(batch) for batch in batches] == [None] * len(batches)
            gateway.close()
            with Database(vpn.url).connect(vpn.name, "test") as connection:
                assert sorted(state_of(connection).messages) == list(range(1, 2_001))
            reopened(vpn)
        finally:
            vpn.close()


def _submitted(gateway: Gateway, number: int) -> object:
    first = 1 + 10 * number
    return gateway.submit(publication(first, [b"%d" % first] * 10, endpoints=(1,), time_ms=MADE_MS))
