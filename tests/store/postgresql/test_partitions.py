"""Partitions: every id has one before it is written, and what is wholly trimmed is dropped, while others read."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.postgresql.database import Connection
from store.postgresql.partitions import Span, attached_spans, missing_spans, partition_size, span_of
from tests.store.effects import trimming
from tests.store.postgresql.test_writer import check_state
from tests.store.postgresql.vpn import Gateway, PostgresVpn, state_of
from tests.support.postgresql import eventually

BITS = 5
SIZE = 1 << BITS


@pytest.fixture
def gateway(vpn: PostgresVpn) -> Gateway:
    """One whose partitions are small."""
    return vpn.gateway(vpn.stores(partition_bits=BITS))


def is_gone(asked: Connection) -> bool:
    """Whether the first partition is no table any more."""
    return asked.execute(b"select to_regclass('message_0_32')").fetchall() == [(None,)]


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 70), st.sampled_from([8, 32, 64])), max_size=8))
def test_every_id_has_one_partition(asked_for: list[tuple[int, int, int]]) -> None:
    """Whatever sizes they had before: what is made fills what is free, and overlaps nothing."""
    spans: list[Span] = []
    for first, more, size in asked_for:
        spans = sorted([*spans, *missing_spans(spans, first, first + more, size)])
        assert not missing_spans(spans, first, first + more, size)
        assert all(span.first < span.end for span in spans)
        assert all(one.end <= other.first for one, other in pairwise(spans))
    assert [span_of(span.name) for span in spans] == spans


def test_a_long_log_has_few() -> None:
    """However long it is: some thirty to sixty; and no partition is smaller or larger than is sensible."""
    assert partition_size(0) == partition_size(32 << 13) == 1 << 14
    for bits in range(20, 29):
        assert 16 <= (1 << bits) / partition_size(1 << bits) <= 64
    assert partition_size(1 << 40) == 1 << 24


def test_they_are_made_ahead(gateway: Gateway, asked: Connection) -> None:
    """One more than is needed, always; and a transaction that needs more than there are has them made first."""
    eventually(lambda: attached_spans(asked)[-1:] == [Span(SIZE, 2 * SIZE)], "the first two")
    gateway.publish(1, count=5 * SIZE)
    eventually(lambda: attached_spans(asked)[-1].end > 6 * SIZE, "the next one")
    check_state(asked, gateway.model)


def test_what_is_trimmed_is_dropped(gateway: Gateway, asked: Connection) -> None:
    """Not while somebody reads it, who sees it to the end; nobody else waits for that."""
    gateway.publish(1, count=4 * SIZE)
    with asked.transaction():
        asked.execute(b"set transaction isolation level repeatable read")
        before = asked.execute(b"select count(*) from message").fetchall()
        gateway.write(trimming(gateway.model, 3 * SIZE))
        gateway.publish(4 * SIZE + 1)
        assert asked.execute(b"select count(*) from message where id <= %s", (4 * SIZE,)).fetchall() == before
    eventually(lambda: attached_spans(asked)[0].first == 3 * SIZE, "the end of the first ones")
    eventually(lambda: is_gone(asked), "its end as a table")
    check_state(asked, gateway.model)


def test_a_lock_on_a_partition_is_not_waited_for_for_ever(
    vpn: PostgresVpn, gateway: Gateway, asked: Connection
) -> None:
    """
    While another session has a lock on one that is to go: it is given up for a while, partitions are made ahead, and
    the gateway commits and ends. The next one drops it, when the lock is gone.
    """
    gateway.publish(1, count=2 * SIZE)
    waiting = (
        b"select count(*) from pg_stat_activity where application_name like '% partitions %' "
        b"and wait_event_type = 'Lock'"
    )

    def is_waiting() -> bool:
        asked.execute(b"select pg_stat_clear_snapshot()")
        return asked.execute(waiting).fetchall() == [(1,)]

    with asked.transaction():
        asked.execute(b"lock table message_0_32 in access share mode")
        gateway.write(trimming(gateway.model, SIZE + 1))
        eventually(is_waiting, "a wait for the lock")
        eventually(lambda: not is_waiting(), "its end")
        gateway.publish(2 * SIZE + 1, count=2 * SIZE)
        eventually(lambda: attached_spans(asked)[-1].end > 5 * SIZE, "what is made ahead")
        eventually(is_waiting, "another try")
        gateway.close()
        assert not is_gone(asked)
    vpn.gateway(vpn.stores(partition_bits=BITS))
    eventually(lambda: is_gone(asked), "its end")
    check_state(asked, gateway.model)


def test_what_was_left_behind_is_dropped_by_the_next(
    vpn: PostgresVpn, gateway: Gateway, asked: Connection
) -> None:
    """A gateway that ended between detaching and dropping leaves a table, which the next one drops."""
    gateway.publish(1, count=70)
    gateway.close()
    asked.execute(b"update log set first_id = 33")
    asked.execute(b"alter table message detach partition message_0_32 concurrently")
    vpn.gateway(vpn.stores(partition_bits=BITS))
    eventually(lambda: is_gone(asked), "its end")
    assert min(state_of(asked).messages) == 33
