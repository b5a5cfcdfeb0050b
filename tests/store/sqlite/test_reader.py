"""Pages, probes and their bounds, on real files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from store.errors import ReadFailed
from store.sqlite.reader import SqliteReader
from store.sqlite.schema import PAGE_BYTES
from tests.store.effects import publication, queue, route
from tests.store.vpn_file import MADE_MS, bounds, writing_to, written

LARGE = 1 << 20
"""More than any content here: with it, a reader looks at lengths before it reads contents."""


@pytest.fixture
def open_reader() -> Iterator[Callable[..., SqliteReader]]:
    """Makes readers that end with the test."""
    readers: list[SqliteReader] = []

    def make(path: Path, *, rows: int = 1_000, largest_bytes: int = 64) -> SqliteReader:
        readers.append(SqliteReader(path, bounds(rows), largest_bytes))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


QUEUE_ROUTE = route(1).number
"""Of what lies on the queue of the tests alone."""


# --- pages ----------------------------------------------------------------------------------------------------------


def test_a_merge_reads_no_more_than_its_page(path: Path, open_reader: Callable[..., SqliteReader]) -> None:
    """Ids are merged by the index as far as the page goes, and rows of those alone are read."""
    contents = [bytes(2_000)] * 1_000
    both = [publication(1 + 1_000 * k, contents, endpoints=(1 + k,), time_ms=MADE_MS) for k in (0, 1)]
    written(path, [[*queue(1, "q"), *queue(2, "r")], both])
    reader = open_reader(path, rows=10)
    connection = reader._connection
    connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS, True)
    found = reader.routed_page([route(1).number, route(2).number], 500)
    assert [row[0] for row in found.rows] == list(range(501, 511))
    misses, _ = connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS)
    assert misses < 60


def test_small_contents_are_not_measured_first(path: Path, open_reader: Callable[..., SqliteReader]) -> None:
    """While a page of the largest content ever stored fits the bound, one statement reads it."""
    written(path, [[publication(1, [b"x"] * 20, time_ms=MADE_MS)]])
    for largest, statements in ((64, 1), (LARGE, 4)):
        seen: list[str] = []
        reader = open_reader(path, largest_bytes=largest)
        reader._connection.exec_trace = lambda cursor, sql, values, seen=seen: seen.append(sql) is None
        assert len(reader.log_page(1, 21, ()).rows) == 20
        assert len(seen) == statements


# --- connections ----------------------------------------------------------------------------------------------------


def test_a_reader_leaves_no_snapshot_behind(path: Path, open_reader: Callable[..., SqliteReader]) -> None:
    """After every kind of read the WAL can be begun anew: no statement and no transaction is left open."""
    written(path, [queue(1, "q"),
                   [publication(1, [b"x"] * 25, endpoints=(1,), time_ms=MADE_MS)]])  # fmt: skip
    reads: list[Callable[[SqliteReader], object]] = [
        lambda reader: reader.log_page(1, 26, ()),
        lambda reader: reader.routed_page([QUEUE_ROUTE], 0),
        lambda reader: reader.routed_page(range(1, 90), 0),
        lambda reader: reader.messages([1, 2]),
        lambda reader: reader.attempts(1),
        lambda reader: reader.first_since(MADE_MS),
        lambda reader: reader.positions_since([MADE_MS]),
        lambda reader: reader.time_of(1),
        lambda reader: reader.last_matching(None),
    ]
    with closing(writing_to(path)) as connection:
        for largest in (1, LARGE):
            reader = open_reader(path, largest_bytes=largest, rows=7)
            for read in reads:
                connection.execute("update log set largest_bytes = largest_bytes")
                read(reader)
                ((busy, _, _),) = connection.execute("pragma wal_checkpoint(restart)").fetchall()
                assert not busy


def test_a_reader_cannot_write(path: Path, open_reader: Callable[..., SqliteReader]) -> None:
    """Its connection refuses: the writer alone changes the file."""
    connection = open_reader(path)._connection
    with pytest.raises(apsw.ReadOnlyError, match="readonly"):
        connection.execute("delete from message")


# --- damage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("largest_bytes", [64, LARGE])
def test_damage_is_known_after_it_was_met(
    path: Path, open_reader: Callable[..., SqliteReader], largest_bytes: int
) -> None:
    """A page that cannot be read fails with SQLite's own reason, and the reader says from then on that it met one."""
    written(path, [[publication(1, [b"x" * 300] * 200, time_ms=MADE_MS)]])
    with closing(writing_to(path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    content = bytearray(path.read_bytes())
    leaf = content.index(b"xxx") // PAGE_BYTES * PAGE_BYTES
    content[leaf] = 0x5A
    path.write_bytes(content)
    reader = open_reader(path, largest_bytes=largest_bytes)
    assert reader.damage is None
    with pytest.raises(ReadFailed, match="malformed"):
        reader.log_page(1, 201, ())
    assert reader.damage is not None
    assert "malformed" in reader.damage
