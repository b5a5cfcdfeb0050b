"""Partitions, stored text and binary COPY of PostgreSQL."""

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

# --- Every id has a partition before it is written; a wholly trimmed partition is dropped -----------------------------

BITS = 5
SIZE = 1 << BITS


@pytest.fixture
def gateway(vpn: PostgresVpn) -> Gateway:
    """A gateway with small partitions."""
    return vpn.gateway(vpn.stores(partition_bits=BITS))


def is_gone(asked: Connection) -> bool:
    """Whether the table of the first partition is dropped."""
    return asked.execute(b"select to_regclass('message_0_32')").fetchall() == [(None,)]


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 70), st.sampled_from([8, 32, 64])), max_size=8))
def test_every_id_has_one_partition(asked_for: list[tuple[int, int, int]]) -> None:
    """New partitions fill the gaps between existing ones of any size, and overlap none."""
    spans: list[Span] = []
    for first, more, size in asked_for:
        spans = sorted([*spans, *missing_spans(spans, first, first + more, size)])
        assert not missing_spans(spans, first, first + more, size)
        assert all(span.first < span.end for span in spans)
        assert all(one.end <= other.first for one, other in pairwise(spans))
    assert [span_of(span.name) for span in spans] == spans


def test_a_long_log_has_few() -> None:
    """A log has 16 to 64 partitions, except that a partition has at least 2^14 and at most 2^24 ids."""
    assert partition_size(0) == partition_size(32 << 13) == 1 << 14
    for bits in range(20, 29):
        assert 16 <= (1 << bits) / partition_size(1 << bits) <= 64
    assert partition_size(1 << 40) == 1 << 24


def test_they_are_made_ahead(gateway: Gateway, asked: Connection) -> None:
    """There is always a spare partition, and a transaction that needs more gets them before it is written."""
    eventually(lambda: attached_spans(asked)[-1:] == [Span(SIZE, 2 * SIZE)], "the first two")
    gateway.publish(1, count=5 * SIZE)
    eventually(lambda: attached_spans(asked)[-1].end > 6 * SIZE, "the next one")
    check_state(state_of(asked), gateway.model)


def test_what_is_trimmed_is_dropped(gateway: Gateway, asked: Connection) -> None:
    """A trimmed partition is dropped after its readers have finished; meanwhile the gateway commits."""
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
    While another session locks a trimmed partition, the gateway gives up dropping it for a while, makes new partitions,
    commits and closes. The next gateway drops the partition once the lock is released.
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
    """The next gateway drops a table that was detached but not dropped when the last gateway ended."""
    gateway.publish(1, count=70)
    gateway.close()
    asked.execute(b"update log set first_id = 33")
    asked.execute(b"alter table message detach partition message_0_32 concurrently")
    vpn.gateway(vpn.stores(partition_bits=BITS))
    eventually(lambda: is_gone(asked), "its end")
    assert min(state_of(asked).messages) == 33


# --- Text that PostgreSQL cannot store is stored in another form, and read as it was ----------------------------------

_texts = st.text(st.sampled_from("\0\x01\x0201a/*")) | st.text()


@given(_texts, _texts)
def test_what_is_stored_is_read(one: str, other: str) -> None:
    """
    Any text is read as it was, and is stored without U+0000. Each character is encoded by itself, so stored texts keep
    their prefixes and patterns can be matched on them. A usual topic is stored as the same object.
    """
    assert read_text(stored_text(one)) == one
    assert "\0" not in stored_text(one)
    assert stored_text(one + other) == stored_text(one) + stored_text(other)
    usual = "a/ä/€"
    assert stored_text(usual) is read_text(usual) is usual


# --- Messages in the format of binary COPY, compared with columns encoded one by one ----------------------------------

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
    """The rows in the binary format of COPY's documentation, column by column."""
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
    """Logged and held rows are encoded as COPY's documentation says, and their checksums are right."""
    assert copied(rows, 6_000) == _plainly(rows)
    held: list[Row] = [(*row[:5], 3, row[6]) for row in rows]
    assert copied(held, 6_000) == _plainly(held)
    for (*head, _, content), checksum in zip(rows, checksums(rows, 6_000), strict=True):
        assert is_sound(*head, content, checksum)
