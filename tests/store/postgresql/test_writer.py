"""What a writer leaves in the tables, after any history of effects: compared with the store that is dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from gateway.core.effects import Effect
from store.errors import WriteFailed
from store.postgresql.database import Connection
from tests.store.effects import applied, publication, purge, queue, settled, trimming
from tests.store.postgresql.schema_state import state_of
from tests.store.postgresql.vpn import Gateway, PostgresVpn
from tests.store.vpn_file import MADE_MS, empty_model
from tests.support.naive_store import NaiveStore

"""Bits: every history needs many."""


def check_state(connection: Connection, model: NaiveStore) -> None:
    """All that can be seen of the tables is the naive store's."""
    found, known = state_of(connection), model.state()
    for field in fields(found):
        assert getattr(found, field.name) == getattr(known, field.name), field.name


def test_what_failed_for_a_while_is_owed(vpn: PostgresVpn, asked: Connection) -> None:
    """A settlement whose transaction failed for a reason that may pass is in the next one that does not."""
    model = empty_model()
    gateway = vpn.gateway()
    assert gateway.commit(*applied(model, queue(1, "q"))) is None
    made = publication(1, [b"x"] * 9, endpoints=(1,), time_ms=MADE_MS)
    assert gateway.commit(*applied(model, [made])) is None
    asked.execute(
        b"create function full_disk() returns trigger language plpgsql as "
        b"$$ begin raise exception 'no space left' using errcode = 'disk_full'; end $$"
    )
    asked.execute(b"create trigger full_disk before update on cursor execute function full_disk()")
    failed = gateway.commit(*applied(model, list(settled(model, 1, [1, 2, 3]))))
    assert isinstance(failed, WriteFailed)
    assert "no space left" in str(failed)
    asked.execute(b"drop trigger full_disk on cursor")
    assert gateway.commit(*applied(model, [publication(10, [b"y"], time_ms=MADE_MS)])) is None
    check_state(asked, model)


def test_what_dropped_cursors_leave_is_worked_off(vpn: PostgresVpn, asked: Connection) -> None:
    """Held for a queue that was purged, and trimmed before that: it goes, and so does the route that none names."""
    model = empty_model()
    gateway = vpn.gateway()
    steps: list[Callable[[], list[Effect]]] = [
        lambda: [*queue(1, "q"), *queue(2, "r")],
        lambda: [publication(1, [b"x"] * 3_000, endpoints=(1,), time_ms=MADE_MS)],
        lambda: [publication(3_001, [b"x"] * 3_000, endpoints=(1, 2), logged=False, time_ms=MADE_MS)],
        lambda: [trimming(model, 2_900)],
        lambda: purge(model, 1),
        lambda: [trimming(model, 3_001)],
    ]
    for step in steps:
        assert gateway.commit(*applied(model, step())) is None
    wait_until(gateway, asked, b"select count(*) = 0 from garbage")
    wait_until(gateway, asked, b"select count(*) = 1 from route")
    check_state(asked, model)
    assert asked.execute(b"select count(*), min(held), max(held) from held_message").fetchall() == [
        (3_000, 1, 1)
    ]


def wait_until(gateway: Gateway, asked: Connection, query: bytes) -> None:
    """Until a query says so; the writer's heartbeats are waited for."""
    for _ in range(600):
        if asked.execute(query).fetchall() == [(True,)]:
            return
        gateway.beat()
    raise AssertionError(query)
