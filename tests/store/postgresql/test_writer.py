"""What a writer leaves in the tables, after any history of effects: compared with the store that is dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, given, settings

from gateway.core.effects import Effect, SaveEndpoint, SavePoint, SaveSubscription
from gateway.core.model import Point
from store.errors import WriteFailed
from store.ports import Recovered
from store.postgresql.database import Connection
from store.postgresql.transaction import FEW
from tests.store.effects import publication, purge, queue, settled, trimming
from tests.store.histories import histories
from tests.store.postgresql.schema_state import state_of
from tests.store.postgresql.vpn import Gateway, PostgresVpn
from tests.store.vpn_file import MADE_MS, empty_model
from tests.support.naive_store import NaiveStore

SMALL_PARTITIONS = 5
"""Bits: every history needs many."""


def applied(model: NaiveStore, effects: list[Effect]) -> list[Effect]:
    for effect in effects:
        model.apply(effect)
    return effects


def check_state(connection: Connection, model: NaiveStore) -> None:
    """All that can be seen of the tables is the naive store's."""
    found, known = state_of(connection), model.state()
    for field in fields(found):
        assert getattr(found, field.name) == getattr(known, field.name), field.name


@settings(suppress_health_check=list(HealthCheck), max_examples=10, deadline=None)
@given(history=histories())
def test_any_history_leaves_what_the_naive_store_has(
    vpn: PostgresVpn, asked: Connection, history: list[list[Effect]]
) -> None:
    """Committed together as it comes, over many partitions; a start then finds what the naive store has."""
    vpn.stores().remove(vpn.name)
    model = empty_model()
    stores = vpn.stores(partition_bits=SMALL_PARTITIONS)
    gateway = vpn.gateway(stores)
    for effects in history:
        gateway.submit(*applied(model, effects))
    gateway.close()
    assert [told.error for told in gateway.told if told.error] == []
    check_state(asked, model)
    again = vpn.gateway(stores)
    again.close()
    found, known = again.store.recovered, model.recover(again.store.recovered.log.generation)
    for field in fields(Recovered):
        if field.name != "routes":
            assert getattr(found, field.name) == getattr(known, field.name), field.name


@pytest.mark.parametrize("count", [1, FEW, FEW + 1, 1_000])
@pytest.mark.parametrize("logged", [True, False], ids=["logged", "held"])
def test_few_and_many_are_written_alike(
    vpn: PostgresVpn, asked: Connection, count: int, logged: bool
) -> None:
    """By INSERT or by COPY, into the log or for an endpoint alone; each reads as it was written."""
    model = empty_model()
    contents = [bytes([n % 256]) * (n % 50) for n in range(count)]
    made = publication(
        1, contents, topic="a/ä", endpoints=(1,), logged=logged, time_ms=MADE_MS, bares=[0] * count
    )
    vpn.write([applied(model, [*queue(1, "q")]), applied(model, [made])])
    check_state(asked, model)


def test_text_may_hold_what_the_engine_cannot(vpn: PostgresVpn, asked: Connection) -> None:
    """U+0000 in a topic, a name, a pattern or a point's name: stored, and found at the next start."""
    model = empty_model()
    definition, opened = queue(1, "a\0b")[1], queue(1, "a\0b")[0]
    assert isinstance(definition, SaveEndpoint)
    history = [
        applied(model, [opened, definition, SaveSubscription(1, "t\0/>"), SaveSubscription(1, "\1")]),
        applied(model, [publication(1, [b"x"] * 50, topic="t\0/\1", endpoints=(1,), time_ms=MADE_MS)]),
        applied(model, [publication(51, [b"y"], topic="t\0/0", time_ms=MADE_MS)]),
        applied(model, [SavePoint(Point("p\0", 1, MADE_MS, MADE_MS))]),
        applied(model, [trimming(model, 20)]),
    ]
    vpn.write(history)
    check = state_of(asked)
    assert {row[2] for row in check.messages.values()} == {"t\0/\1", "t\0/0"}
    again = vpn.gateway()
    found = again.store.recovered
    (endpoint,) = found.endpoints
    assert endpoint.definition.name == "a\0b"
    assert endpoint.subscriptions == ["\1", "t\0/>"]
    assert [point.name for point in found.points] == ["p\0"]
    assert found.log == replace(model.recover(found.log.generation).log)


def test_who_is_at_fault_fails_alone(vpn: PostgresVpn, asked: Connection) -> None:
    """Of what is committed together, what cannot be written fails, and all else is there."""
    gateway = vpn.gateway()
    first = gateway.submit(*queue(1, "q"))
    bad = [gateway.submit(SaveSubscription(1, "\ud800"))]
    good = [gateway.submit(publication(n, [b"x"], time_ms=MADE_MS)) for n in range(2, 40)]
    # What the engine refuses: an id twice.
    bad += [gateway.submit(publication(2, [b"y"] * count, time_ms=MADE_MS)) for count in (1, 100)]
    good += [gateway.submit(publication(n, [b"x"], time_ms=MADE_MS)) for n in range(40, 60)]
    assert gateway.wait(first) is None
    assert all(isinstance(gateway.wait(batch), WriteFailed) for batch in bad)
    assert [gateway.wait(batch) for batch in good] == [None] * len(good)
    assert list(state_of(asked).messages) == list(range(2, 60))


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


def test_an_idle_writer_commits(vpn: PostgresVpn) -> None:
    """So that it is known that nobody has taken over."""
    gateway = vpn.gateway()
    before = gateway.writer.confirmed_at
    gateway.beat()
    assert gateway.writer.confirmed_at > before
