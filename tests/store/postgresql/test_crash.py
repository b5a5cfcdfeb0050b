"""Whenever a server ends: what is found afterwards is what there was after some transaction, with all that was told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gateway.core.effects import Effect
from store.postgresql.check import check
from store.postgresql.database import Database
from tests.store.effects import applied
from tests.store.histories import histories
from tests.store.postgresql.vpn import PostgresVpn, state_of
from tests.store.vpn_file import empty_model
from tests.support.postgresql import Server, server

pytestmark = [pytest.mark.postgresql, pytest.mark.slow]


@pytest.fixture(scope="module")
def durable() -> Iterator[Server]:
    """A server that syncs what it commits, and that is these tests' own."""
    with server(quick=False) as found:
        yield found


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
        vpn.gateway().close()
        assert check(Database(vpn.url).connect(vpn.name, "check"), vpn.name) == []
    finally:
        vpn.close()
