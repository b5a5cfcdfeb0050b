"""What a writer leaves in the tables, after any history of effects: compared with the store that is dictionaries."""

from __future__ import annotations

from dataclasses import fields

from store.errors import WriteFailed
from store.postgresql.database import Connection
from tests.store.effects import applied, publication, purge, queue, settled, trimming
from tests.store.postgresql.vpn import Gateway, state_of
from tests.store.vpn_file import MADE_MS
from tests.support.naive_store import NaiveStore
from tests.support.postgresql import eventually

"""Bits: every history needs many."""


def check_state(connection: Connection, model: NaiveStore) -> None:
    """All that can be seen of the tables is the naive store's."""
    found, known = state_of(connection), model.state()
    for field in fields(found):
        assert getattr(found, field.name) == getattr(known, field.name), field.name


def test_what_failed_for_a_while_is_owed(gateway: Gateway, asked: Connection) -> None:
    """A settlement whose transaction failed for a reason that may pass is in the next one that does not."""
    gateway.write(*queue(1, "q"))
    gateway.publish(1, count=9, on=(1,))
    asked.execute(
        b"create function full_disk() returns trigger language plpgsql as "
        b"$$ begin raise exception 'no space left' using errcode = 'disk_full'; end $$"
    )
    asked.execute(b"create trigger full_disk before update on cursor execute function full_disk()")
    failed = gateway.commit(*applied(gateway.model, settled(gateway.model, 1, [1, 2, 3])))
    assert isinstance(failed, WriteFailed)
    assert "no space left" in str(failed)
    asked.execute(b"drop trigger full_disk on cursor")
    gateway.publish(10)
    check_state(asked, gateway.model)


def test_what_dropped_cursors_leave_is_worked_off(gateway: Gateway, asked: Connection) -> None:
    """Held for a queue that was purged, and trimmed before that: it goes, and so does the route that none names."""
    gateway.write(*queue(1, "q"), *queue(2, "r"))
    gateway.publish(1, count=3_000, on=(1,))
    gateway.write(publication(3_001, [b"x"] * 3_000, endpoints=(1, 2), logged=False, time_ms=MADE_MS))
    gateway.write(trimming(gateway.model, 2_900))
    gateway.write(*purge(gateway.model, 1))
    gateway.write(trimming(gateway.model, 3_001))
    for query in (b"select count(*) = 0 from garbage", b"select count(*) = 1 from route"):
        eventually(lambda query=query: asked.execute(query).fetchall() == [(True,)], query.decode())  # type: ignore[misc]
    check_state(asked, gateway.model)
    held = b"select count(*), min(held), max(held) from held_message"
    assert asked.execute(held).fetchall() == [(3_000, 1, 1)]
