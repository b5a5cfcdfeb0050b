"""What is in PostgreSQL's tables: partitions, text and binary COPY."""

from __future__ import annotations

from itertools import pairwise
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.model import Row
from store.checksum import is_sound
from store.postgresql.database import Connection, read_text, stored_text
from store.postgresql.packed import checksums, copied
from store.postgresql.partitions import Span, attached_spans, missing_spans, partition_size, span_of
from tests.store.effects import trimming
from tests.store.postgresql.vpn import Gateway, PostgresVpn, state_of
from tests.store.state import check_state
from tests.support.postgresql import eventually

# --- Every id has a partition before it is written; what is wholly trimmed is dropped ---------------------------------

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
    check_state(state_of(asked), gateway.model)


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
    check_state(state_of(asked), gateway.model)


def test_a_lock_on_a_partition_is_not_waited_for_for_ever(
    vpn: PostgresVpn, gateway: Gateway, asked: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    While another session has a lock on one that is to go: it is given up for a while, partitions are made ahead, and
    the gateway commits and ends. The next one drops it, when the lock is gone.
    """
    monkeypatch.setattr("store.postgresql.partitions.PATIENCE_MS", 500)
    monkeypatch.setattr("store.postgresql.partitions.RETRY_SECONDS", 0.5)
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
    check_state(state_of(asked), gateway.model)


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


# --- Text that PostgreSQL cannot store is stored as other text, and read as what it was -------------------------------

_texts = st.text(st.sampled_from("\0\x01\x0201a/*")) | st.text()


@given(_texts, _texts)
def test_what_is_stored_is_read(one: str, other: str) -> None:
    """
    Whatever it holds; and what is stored holds no U+0000. Each character is written by itself, so what begins with a
    text does so where it is stored, and patterns can be matched there. Nearly every topic is stored as the same object.
    """
    assert read_text(stored_text(one)) == one
    assert "\0" not in stored_text(one)
    assert stored_text(one + other) == stored_text(one) + stored_text(other)
    usual = "a/ä/€"
    assert stored_text(usual) is read_text(usual) is usual


# --- Messages as binary COPY takes them: compared with columns written one by one -------------------------------------

_rows = st.lists(
    st.tuples(
        st.integers(1, 1 << 62),
        st.integers(0, 1 << 45),
        st.sampled_from(["", "a", "ä/€", "a\0b", "#queue/q"]),
        st.integers(0, 300),
        st.integers(0, 1 << 31),
        st.just(None),
        st.binary(max_size=40) | st.sampled_from([b"x" * 6_000]),
    ),
    min_size=1,
    max_size=20,
)


def _column(value: bytes) -> bytes:
    return pack(">i", len(value)) + value


def _plainly(rows: list[Row]) -> bytes:
    """As the documentation of COPY has it, a column after the other."""
    found = [b"PGCOPY\n\xff\r\n\0", pack(">ii", 0, 0)]
    for (message_id, time, topic, bare, route, held, content), checksum in zip(
        rows, checksums(rows, 6_000), strict=True
    ):
        columns = [
            pack(">q", message_id), pack(">q", time), pack(">q", checksum), pack(">q", route), pack(">i", bare),
            *([] if held is None else [pack(">i", held)]), stored_text(topic).encode(), content,
        ]  # fmt: skip
        found += [pack(">h", len(columns)), *map(_column, columns)]
    return b"".join(found) + pack(">h", -1)


@given(_rows)
def test_rows_are_what_the_format_says(rows: list[Row]) -> None:
    """Logged ones and held ones, of one topic or of many; and a reader takes each row for what was written."""
    assert copied(rows, 6_000) == _plainly(rows)
    held: list[Row] = [(*row[:5], 3, row[6]) for row in rows]
    assert copied(held, 6_000) == _plainly(held)
    for (*head, _, content), checksum in zip(rows, checksums(rows, 6_000), strict=True):
        assert is_sound(*head, content, checksum)
