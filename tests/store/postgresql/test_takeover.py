"""One gateway at a time has a store: who waits, who is taken over, and what a commit needs to be told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from store.copies import SKIP_IDS
from store.errors import Deposed, StoreHeld
from store.ports import Durability
from store.postgresql import takeover
from store.postgresql.database import Connection
from store.postgresql.partitions import attached_spans
from tests.store.effects import publication
from tests.store.postgresql.vpn import OPTIONS, Gateway, PostgresVpn, state_of, wait_for_standby
from tests.store.vpn_file import MADE_MS
from tests.support.postgresql import Server, eventually
from tests.support.tcp_proxy import Fate, Proxy


def test_a_store_that_is_held_says_by_whom(vpn: PostgresVpn) -> None:
    """And is had as soon as it is free, with what was committed; its epoch is one higher."""
    first = vpn.gateway(options=replace(OPTIONS, advertise="here:5672"))
    stores = vpn.stores()
    for _ in range(3):
        with pytest.raises(StoreHeld) as held:
            stores.open(vpn.name, MADE_MS, OPTIONS)
        assert held.value.active == "here:5672"
    assert first.commit(publication(1, [b"x"], time_ms=MADE_MS)) is None
    first.close()
    second = vpn.gateway(stores)
    assert second.store.recovered.log.next_id == 2
    with pytest.raises(StoreHeld) as held:
        vpn.stores().open(vpn.name, MADE_MS, OPTIONS)
    assert held.value.active is None


def test_a_gateway_with_another_epoch_is_refused(gateway: Gateway, asked: Connection) -> None:
    """Even where it knows nothing of it, and has its session and the lock: nothing of what it sends is stored."""
    gateway.publish(1)
    asked.execute(b"update log set epoch = epoch + 1")
    assert isinstance(gateway.commit(publication(2, [b"y"] * 100, time_ms=MADE_MS)), Deposed)
    assert isinstance(gateway.commit(publication(3, [b"y"], time_ms=MADE_MS)), Deposed)
    assert list(state_of(asked).messages) == [1]


def test_an_idle_gateway_hears_that_it_was_deposed(gateway: Gateway, asked: Connection) -> None:
    """Though it has nothing to write."""
    asked.execute(b"update log set epoch = epoch + 1")
    assert isinstance(gateway.wait_for_error(), Deposed)
    (told,) = gateway.told
    assert told.batches == []


def test_a_gateway_that_was_deposed_before_it_wrote_is_told(vpn: PostgresVpn, asked: Connection) -> None:
    """Its commits begin when its store is opened, so it may be found out before anybody listens."""
    store = vpn.stores().open(vpn.name, MADE_MS, OPTIONS)
    asked.execute(b"update log set epoch = epoch + 1")
    eventually(lambda: store._untold is not None, "the end of it")
    told: list[object] = []
    store.start_writer(lambda batches, error: told.append((batches, error)))
    store.close()
    ((batches, error),) = told
    assert batches == []
    assert isinstance(error, Deposed)


def test_a_gateway_that_stopped_is_taken_over(
    vpn: PostgresVpn, behind: Gateway, proxy: Proxy, asked: Connection
) -> None:
    """
    It keeps its session, and says nothing: after its lease another takes over. What it sends when it goes on is
    refused.
    """
    behind.publish(1)
    goes_on = threading.Event()
    held = threading.Event()

    def hold(*_: object) -> Fate:
        held.set()
        assert goes_on.wait(60)
        return Fate.PASS

    proxy.fate = hold
    assert held.wait(60)
    late = behind.submit(publication(2, [b"late"], time_ms=MADE_MS))
    other = vpn.taken_over(vpn.stores(lease_seconds=0.5))
    other.publish(2, b"theirs")
    goes_on.set()
    assert isinstance(behind.wait(late), Deposed)
    assert [row[6] for row in state_of(asked).messages.values()] == [b"x", b"theirs"]


def test_a_gateway_that_is_well_is_not_taken_over(vpn: PostgresVpn, gateway: Gateway) -> None:
    """However long another waits: its commits go on, though nobody publishes."""
    stores = vpn.stores(lease_seconds=0.5)
    for _ in range(4):
        gateway.beat()
        for _ in range(5):
            with pytest.raises(StoreHeld):
                vpn.gateway(stores)
    assert gateway.told == []


@pytest.mark.parametrize("who", ["the one that had it", "one that waits"])
def test_ids_that_the_database_has_lost_are_not_given_out_again(
    vpn: PostgresVpn, asked: Connection, who: str
) -> None:
    """
    It went over to a standby that did not have the last commits, though they were told: who was active is deposed, and
    whoever knows of them begins another log, with ids above.
    """
    stores = vpn.stores()
    first = vpn.gateway(stores)
    for n in range(1, 4):
        assert first.commit(publication(n, [b"x"], time_ms=MADE_MS)) is None
    if who == "one that waits":
        stores = vpn.stores()
        with pytest.raises(StoreHeld):
            stores.open(vpn.name, MADE_MS, OPTIONS)
    before = first.store.recovered.log.generation
    with asked.transaction():
        asked.execute(b"update log set commit_no = commit_no - 2, last_id = 1")
        asked.execute(b"delete from message where id > 1")
    assert isinstance(first.commit(publication(4, [b"x"], time_ms=MADE_MS)), Deposed)
    first.close()
    second = vpn.gateway(stores)
    log = second.store.recovered.log
    assert log.generation != before
    assert log.next_id > 3 + SKIP_IDS
    assert second.commit(publication(log.next_id, [b"y"], time_ms=MADE_MS)) is None
    second.close()
    assert vpn.gateway(stores).store.recovered.log.generation == log.generation


def test_a_barrier_sees_another_epoch(vpn: PostgresVpn, asked: Connection) -> None:
    """It commits nothing then."""
    vpn.write([])
    ((epoch, commit_no),) = asked.execute(b"select epoch, commit_no from log").fetchall()
    assert takeover.barrier(asked, epoch) == commit_no
    with pytest.raises(Deposed):
        takeover.barrier(asked, epoch - 1)


@pytest.fixture
def waited_for(postgresql: Server) -> Iterator[Server]:
    """The server, of which every commit waits for a standby that never comes, while the test has it so."""
    yield postgresql
    wait_for_standby(postgresql, "")


def test_a_wait_that_somebody_ended_is_no_commit(
    vpn: PostgresVpn, asked: Connection, waited_for: Server
) -> None:
    """
    The server says that it is done all the same, with a warning: nothing is told of it before a standby has it. Then it
    is done, once.
    """
    asked.execute(b"set synchronous_commit = local")
    gateway = vpn.gateway()
    # All partitions that are needed are there.
    eventually(lambda: len(attached_spans(asked)) == 2, "the first partitions")
    wait_for_standby(waited_for, "nobody")
    batch = gateway.submit(publication(1, [b"x"], time_ms=MADE_MS))
    waits = (
        b"select pid, query_start::text from pg_stat_activity "
        b"where application_name like %s and wait_event = 'SyncRep'"
    )
    seen: list[tuple[int, str]] = []

    def waits_for_the(count: int) -> bool:
        rows = asked.execute(waits, (f"rewind % writer {vpn.name}",)).fetchall()
        seen.extend(row for row in rows if row not in seen)
        return len(seen) >= count

    for count in (1, 2, 3):
        eventually(partial(waits_for_the, count), "the wait")
        pid, _ = seen[-1]
        assert asked.execute(b"select pg_cancel_backend(%s::integer)", (pid,)).fetchall() == [(True,)]
    eventually(partial(waits_for_the, 4), "the last wait")
    assert gateway.told == []
    wait_for_standby(waited_for, "")
    assert gateway.wait(batch) is None
    assert gateway.commit(publication(2, [b"y"], time_ms=MADE_MS)) is None
    assert list(state_of(asked).messages) == [1, 2]


def test_what_a_commit_survives_is_asked(gateway: Gateway) -> None:
    """Without a standby: one machine."""
    assert gateway.store.durability() is Durability.ONE_MACHINE
