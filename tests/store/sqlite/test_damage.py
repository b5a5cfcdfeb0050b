"""A disk that gives back another byte than it was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from gateway.core.effects import Effect
from gateway.core.model import ID, TOPIC, Columns, Row
from gateway.core.replay.search import Search
from store.cursors import apply_priorities
from store.errors import DamagedMessage, ReadFailed
from store.sqlite.check import check
from store.sqlite.cursors import SqliteShortTables
from store.sqlite.database import connect_reader, connect_writer
from store.sqlite.packed import MESSAGE, fetch_sound
from store.sqlite.reader import FEW_ROWS, SqliteReader
from store.sqlite.schema import PAGE_BYTES
from tests.store.effects import publication, queue, route
from tests.store.histories import histories
from tests.store.vpn_file import MADE_MS, bounds, commit, query, writing_to

TOPICS = ("first", "second", "third")
CONTENTS = (b"content of the first", b"content of the second", b"content of the third")
ROWS = [
    (i, MADE_MS + i, topic, 3, route(1).number, None, content)
    for i, (topic, content) in enumerate(zip(TOPICS, CONTENTS, strict=True), 1)
]
DAMAGED = 2
"""The id of the one whose bytes change."""

END = 4


@pytest.fixture
def three(path: Path) -> Path:
    """A file of three messages on a queue, all of it in the file itself."""
    with closing(writing_to(path)) as connection:
        commit(connection, queue(1, "q"))
        for message_id, time_ms, topic, bare, _, _, content in ROWS:
            commit(
                connection,
                [
                    publication(
                        message_id, [content], topic=topic, endpoints=(1,), time_ms=time_ms, bares=[bare]
                    )
                ],
            )
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    return path


@pytest.fixture
def open_reader() -> Iterator[Callable[..., SqliteReader]]:
    """Makes readers that end with the test; pages have so many rows."""
    readers: list[SqliteReader] = []

    def make(path: Path, rows: int = 1_000) -> SqliteReader:
        readers.append(SqliteReader(path, bounds(rows), 64))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


def cell(path: Path, message_id: int) -> range:
    """Where a message's row is in a file whose messages are all on one page (SQLite's "B-tree Pages")."""
    ((root,),) = query(path, "select rootpage from sqlite_master where name = 'message'")
    page = path.read_bytes()[(root - 1) * PAGE_BYTES : root * PAGE_BYTES]
    assert page[0] == 13, "a leaf"
    place = int.from_bytes(page[6 + 2 * message_id : 8 + 2 * message_id])
    length, found_id = page[place], page[place + 1]
    assert found_id == message_id
    assert length < 128
    start = (root - 1) * PAGE_BYTES + place
    return range(start, start + 2 + length)


def flip(path: Path, place: int, change: int = 0x01) -> None:
    """Change a byte of the file."""
    content = bytearray(path.read_bytes())
    content[place] ^= change
    path.write_bytes(content)


def place_of(path: Path, field: str) -> int:
    """Where a byte of the field is, of the message in the middle."""
    where = cell(path, DAMAGED)
    raw = path.read_bytes()[where.start : where.stop]
    time = (MADE_MS + DAMAGED).to_bytes(6)
    found = {
        "id": 1,
        "time": raw.index(time) + 5,
        "topic": raw.index(b"second") + 2,
        # Between the topic and the checksum: offset and route have a byte each.
        "bare": raw.index(b"second") + 6,
        "route": raw.index(b"second") + 7,
        "checksum": raw.index(b"content") - 3,
        "content": raw.index(b"content") + 4,
    }
    return where.start + found[field]


FIELDS = ("id", "time", "topic", "bare", "route", "checksum", "content")


def read_to_the_end(page: Callable[[int], tuple[list[Row], int]]) -> list[Row]:
    """All rows up to where pages end, or cannot be read."""
    rows: list[Row] = []
    position = 1
    while position < END:
        found, position = page(position)
        rows += found
    return rows


@pytest.mark.parametrize("field", FIELDS)
def test_the_check_names_the_message(three: Path, field: str) -> None:
    """A byte that changes in any field of a message is told with its id, and what to do."""
    assert check(three) == []
    flip(three, place_of(three, field), change=0x04)
    found = check(three)
    told = f"message {DAMAGED} is not what was written: its checksum is wrong. Restore"
    expected = {"id": "SQLite: ", "route": "SQLite: "}.get(
        field, told
    )  # they are in an index, or an order, too
    assert found[0].startswith(expected), found


@pytest.mark.parametrize("rows", [1_000, FEW_ROWS, 2, 1])
@pytest.mark.parametrize("field", FIELDS[1:])
def test_no_page_has_the_message(
    three: Path, open_reader: Callable[..., SqliteReader], field: str, rows: int
) -> None:
    """What comes before it is read as it was written; then reading fails, names it, and goes on failing."""
    flip(three, place_of(three, field), change=0x04)
    reader = open_reader(three, rows)
    got: list[Row] = []

    def page(position: int) -> tuple[list[Row], int]:
        found = reader.log_page(position, 100, ())
        got.extend(found.rows)
        return found.rows, found.position

    with pytest.raises(DamagedMessage) as caught:
        read_to_the_end(page)
    assert got == ROWS[:1]
    assert f"message {DAMAGED} is not what was written" in str(caught.value)
    assert reader.damage == str(caught.value)
    with pytest.raises(DamagedMessage):
        reader.log_page(DAMAGED, 100, ())


@pytest.mark.parametrize("rows", [1_000, 1])
def test_other_ways_to_read_it_fail_as_well(
    three: Path, open_reader: Callable[..., SqliteReader], rows: int
) -> None:
    """By its route, by its id, and by a search that looks at it, whether its bytes are looked through first or not."""
    flip(three, place_of(three, "content"))
    reader = open_reader(three, rows)
    assert reader.routed_page([route(1).number], 0, DAMAGED).rows == ROWS[:1]
    for read in (
        lambda: reader.routed_page([route(1).number], 1),
        lambda: reader.messages([DAMAGED]),
        lambda: reader.search_page(Search(lambda view: False), (), DAMAGED, END),
        lambda: reader.search_page(Search(lambda view: False, needles=(b"second",)), (), 1, END),
    ):
        with pytest.raises(DamagedMessage, match=f"message {DAMAGED} is not"):
            read()
    assert reader.messages([1, 3]) == [ROWS[0], ROWS[2]] or rows == 1


def test_a_topic_that_is_no_text_any_more_is_damage(
    three: Path, open_reader: Callable[..., SqliteReader]
) -> None:
    """Where topics alone are read, too, the error is that of a file that cannot be read."""
    flip(three, place_of(three, "topic"), change=0x80)
    reader = open_reader(three)
    with pytest.raises(ReadFailed, match="no text any more"):
        reader.last_matching(lambda topic: False)
    assert reader.damage is not None
    reader = open_reader(three)
    with pytest.raises(DamagedMessage, match=f"message {DAMAGED} is not"):
        reader.log_page(DAMAGED, END, ())
    assert check(three)[0].startswith(f"message {DAMAGED} is not")


@pytest.mark.parametrize("change", [0x01, 0x80, 0xFF])
def test_whichever_byte_of_a_row_changes(
    three: Path, open_reader: Callable[..., SqliteReader], tmp_path: Path, change: int
) -> None:
    """The check sees it; and no way to read gives anything that was not written."""
    damaged = tmp_path / "damaged.db"
    for place in cell(three, DAMAGED):
        damaged.write_bytes(three.read_bytes())
        flip(damaged, place, change)
        assert check(damaged), place
        reader = open_reader(damaged)
        for read in (
            lambda reader=reader: reader.log_page(1, 100, ()).rows,
            lambda reader=reader: reader.log_page(1, 100, (), held=True).rows,
            lambda reader=reader: reader.routed_page([route(1).number], 0).rows,
            lambda reader=reader: reader.messages([1, 2, 3]),
        ):
            try:
                rows = read()
            except ReadFailed:
                assert reader.damage is not None
            else:
                assert [row for row in rows if row not in ROWS] == [], place
        damaged.unlink()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=30)
@given(history=histories())
def test_pages_are_compared_as_a_whole(fresh: Callable[[], Path], history: list[list[Effect]]) -> None:
    """Whatever was written, and however: the sum of a page's checksums is that of its messages."""
    path = fresh()
    with closing(writing_to(path)) as connection:
        for effects in history:
            commit(connection, effects)
    with closing(connect_reader(path)) as connection:
        found = fetch_sound(connection, MESSAGE, "from message order by id", [], 1)
        assert found == fetch_sound(connection, MESSAGE, "from message order by id", [], 1 << 20)
        assert found is not None
        rows, columns = found
        assert columns is None or columns == Columns.of(rows)._replace(topics=columns.topics)
        assert columns is None or set(columns.topics) == {row[TOPIC] for row in rows}
        assert [row[ID] for row in rows] == [i for (i,) in query(path, "select id from message order by id")]


def test_a_message_that_changes_its_route_stays_what_it_is(three: Path) -> None:
    """A queue that is to deliver by priority: what was sound is, and what was not is not."""
    with closing(connect_writer(three, synchronous="OFF")) as connection, connection:
        connection.execute("update message set content = cast(replace(content, 'second', 'Second') as blob)")
        before = [number for (number,) in connection.execute("select route from message order by id")]
        apply_priorities(SqliteShortTables(connection), {"q": True})
        after = [number for (number,) in connection.execute("select route from message order by id")]
    assert before != after
    assert [sentence.partition(":")[0] for sentence in check(three)] == [
        f"message {DAMAGED} is not what was written"
    ]
