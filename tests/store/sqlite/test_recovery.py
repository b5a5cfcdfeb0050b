"""What a start finds in a file, also after a crash, and what is read from a damaged file."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.effects import AddReferences, Effect, SettleInTransaction
from gateway.core.model import ID, TOPIC, WHOLE, Columns, Row
from store.cursors import apply_priorities
from store.errors import DamagedMessage, ReadFailed
from store.recovery import recovered
from store.sqlite.check import check
from store.sqlite.cursors import SqliteShortTables
from store.sqlite.database import connect_reader, connect_writer, open_file
from store.sqlite.log_row import read_log
from store.sqlite.packed import MESSAGE, fetch_sound
from store.sqlite.reader import SqliteReader
from store.sqlite.schema import PAGE_BYTES
from store.sqlite.store import recover
from tests.store.effects import (
    BY_PRIORITY,
    applied,
    publication,
    purge,
    queue,
    route,
    settled,
    trimming,
)
from tests.store.histories import histories
from tests.store.vpn_file import (
    MADE_MS,
    bounds,
    collect_garbage,
    commit,
    copied_files,
    empty_model,
    query,
    state_of,
    writing_to,
    written,
)
from tests.store.writing import writing
from tests.support.chance import times
from tests.support.naive_store import State

# --- What a start finds in a file -----------------------------------------------------------------------------------


def test_no_content_is_read_for_it(path: Path) -> None:
    """However large messages are, a start reads only a page or two of each, for the heads of the rows."""
    large = publication(1, [bytes(1 << 20)] * 20, endpoints=(1,), time_ms=MADE_MS)
    written(path, [queue(1, "q"), [large]])
    with closing(connect_reader(path)) as connection:
        connection.execute("begin")
        log = read_log(connection)
        assert log is not None
        recovered(SqliteShortTables(connection), log)
        misses, _ = connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS)
    assert misses * PAGE_BYTES < 1 << 19


# --- After a crash at any moment ------------------------------------------------------------------------------------


def wal_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def states(history: list[list[Effect]]) -> list[State]:
    """The states after zero, one, two … transactions."""
    model = empty_model()
    found = [model.state()]
    for effects in history:
        applied(model, effects)
        found.append(model.state())
    return found


def reopened(path: Path) -> State:
    """Open a file as a start does, check its promises, and return its state."""
    open_file(path, MADE_MS + 1, synchronous="OFF").close()
    assert check(path) == []
    state = state_of(path)
    assert recover(path).log.next_id == state.last_id + 1
    return state


SLOW = settings(max_examples=times(15, 2_000))


@SLOW
@given(history=histories(), checkpoint_bytes=st.sampled_from([1, 1 << 16, 1 << 24]))
def test_a_kill_after_any_commit_loses_nothing_that_was_told(
    fresh: Callable[[], Path], history: list[list[Effect]], checkpoint_bytes: int
) -> None:
    """A copy of the files at the moment a transaction is reported has it and all earlier ones, despite checkpoints."""
    path = fresh()
    copies: list[Path] = []

    def copy() -> None:
        copies.append(copied_files(path, path.with_name(f"{path.stem}-{len(copies)}.db")))

    with writing(path, checkpoint_bytes=checkpoint_bytes, on_told=copy) as w:
        for effects in history:
            assert w.commit(*effects) is None
    assert len(copies) == len(history)
    for found, state in zip([*copies, path], [*states(history)[1:], states(history)[-1]], strict=True):
        assert reopened(found) == state
        found.unlink()


class Cut(NamedTuple):
    """Where to cut a WAL. Numbers are taken modulo its length, which may differ from run to run."""

    place: int
    offset: int
    """Octets from the end of a transaction; ``ANYWHERE``: ``place`` is any octet of the WAL."""
    junk: bytes
    """What follows the cut."""


ANYWHERE = 2

cuts = st.builds(
    Cut,
    st.integers(0, 1 << 20),
    st.sampled_from([-1, 0, 1, ANYWHERE]),
    st.builds(
        lambda seed, count: random.Random(seed).randbytes(count),
        st.integers(0, 9),
        st.sampled_from([0, 1, 9_000]),
    ),
)


@SLOW
@given(history=histories(), made=st.lists(cuts, min_size=5, max_size=5))
def test_a_wal_that_ends_anywhere_holds_the_transactions_before(
    fresh: Callable[[], Path], history: list[list[Effect]], made: list[Cut]
) -> None:
    """A WAL that is cut at any byte, with or without junk after it, has the transactions that end before the cut."""
    path = fresh()
    ends: list[int] = []

    with writing(path, on_told=lambda: ends.append(wal_of(path).stat().st_size)) as w:
        for effects in history:
            w.commit(*effects)
        w.hold.clear()
        w.commit()  # an empty batch: once it is reported, the files no longer change
        main, wal = path.read_bytes(), wal_of(path).read_bytes()
    expected = states(history)
    ends = ends[: len(history)]
    for place, offset, junk in made:
        anywhere = place % (len(wal) + 1)
        cut = anywhere if offset == ANYWHERE else min(ends[place % len(ends)] + offset, len(wal))
        copy = fresh()
        copy.write_bytes(main)
        wal_of(copy).write_bytes(wal[:cut] + junk)
        assert reopened(copy) == expected[sum(end <= cut for end in ends)]
        copy.unlink()


LARGE = b"x" * 3_000
"""A few contents of this size make a transaction of many pages."""

BEFORE: list[Effect] = [
    *queue(1, "q"),
    *queue(2, "r"),
    publication(1, [LARGE] * 10, endpoints=(1, 2), time_ms=MADE_MS),
    publication(11, [LARGE] * 10, topic="#queue/r", endpoints=(1, 2), logged=False, time_ms=MADE_MS),
]
TRANSACTION: list[Effect] = [
    publication(21, [LARGE] * 10, topic="a/b", endpoints=(1,), time_ms=MADE_MS),
    publication(31, [LARGE] * 10, topic="#queue/r", endpoints=(2,), logged=False, time_ms=MADE_MS),
    publication(41, [LARGE] * 10, topic="a", time_ms=MADE_MS),
    SettleInTransaction(1, WHOLE, None, {1: 19}, 20, 1, len(LARGE), list(range(1, 20))),
    SettleInTransaction(2, WHOLE, None, {2: 2, 12: 12, 20: 20}, 20, 17, 17 * len(LARGE), [2, 12, 20]),
]
"""Messages with and without an endpoint, logged or not; settled ones are then held by both queues, one or none."""


def test_a_crash_at_any_statement_of_a_transaction_leaves_nothing_of_it(fresh: Callable[[], Path]) -> None:
    """At each statement the files still have the state before the transaction, though pages of it are written."""
    path = fresh()
    copies: list[Path] = []
    connection = writing_to(path)
    # A cache of one page writes pages to the file before the commit.
    connection.execute("pragma cache_size = 1")
    commit(connection, BEFORE)
    sizes: list[int] = []

    def copy(*statement: object) -> bool:
        sizes.append(wal_of(path).stat().st_size)
        copies.append(copied_files(path, fresh()))
        return True

    connection.exec_trace = copy
    commit(connection, TRANSACTION)
    connection.exec_trace = None
    copy("its end")
    connection.close()
    nothing, before, after = states([BEFORE, TRANSACTION])
    assert nothing != before != after
    assert sizes[-2] > sizes[0], "some of it was in the file before it was committed"
    assert [reopened(found) for found in copies] == [before] * (len(copies) - 1) + [after]


@pytest.mark.parametrize("logged", [True, False])
def test_what_a_dropped_cursor_leaves_is_let_go_of_once(
    fresh: Callable[[], Path], monkeypatch: pytest.MonkeyPatch, logged: bool
) -> None:
    """A crash between any two pieces does not release a message twice, and the rest is released in the end."""
    monkeypatch.setattr("store.cursors.PIECE_ROWS", 3)
    path = fresh()
    first = publication(1, [b"x"] * 20, endpoints=(1, 2), logged=logged, time_ms=MADE_MS, ranked=True)
    last = publication(21, [b"y"] * 5, endpoints=(1, 2), logged=False, time_ms=MADE_MS, ranked=True)
    model = written(
        path,
        [
            [*queue(1, "q", settings=BY_PRIORITY), *queue(2, "r")],
            [first],
            lambda model: settled(model, 1, [3, 4, 9, 10, 11], is_joined=False),
            [AddReferences(1, [3, 10])] if logged else [],
            lambda model: [trimming(model, 13)] if logged else [],
            lambda model: purge(model, 1),
            [last],
        ],
    )
    pieces = 0
    while query(path, "select 1 from garbage"):
        copy = fresh()
        shutil.copy(path, copy)
        assert reopened(copy) == model.state()
        assert collect_garbage(copy)
        assert reopened(copy) == model.state()
        collect_garbage(path, pieces=1)
        pieces += 1
    assert pieces > 5
    assert reopened(path) == model.state()
    for table, column in (("cursor", "number"), ("cursor_range", "number"), ("reference", "cursor")):
        assert query(path, f"select * from {table} where {column} = 1") == []


# --- A disk that returns other bytes than were written --------------------------------------------------------------

TOPICS = ("first", "second", "third")
CONTENTS = (b"content of the first", b"content of the second", b"content of the third")
ROWS = [
    (i, MADE_MS + i, topic, 3, route(1).number, None, content)
    for i, (topic, content) in enumerate(zip(TOPICS, CONTENTS, strict=True), 1)
]
DAMAGED = 2
"""The id of the message whose bytes change."""


@pytest.fixture
def three(path: Path) -> Path:
    """A file with three messages on a queue, checkpointed, so that its WAL is empty."""
    made = [
        publication(i, [content], topic=topic, endpoints=(1,), time_ms=time_ms, bares=[bare])
        for i, time_ms, topic, bare, _, _, content in ROWS
    ]
    written(path, [queue(1, "q"), made])
    with closing(writing_to(path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    return path


@contextmanager
def reading(path: Path, *, rows: int = 1_000, largest_bytes: int = 64) -> Iterator[SqliteReader]:
    """A reader with these bounds of its pages and contents."""
    with closing(SqliteReader(path, bounds(rows), largest_bytes)) as reader:
        yield reader


def cell(path: Path, message_id: int) -> range:
    """The range of a message's row in a file whose messages are all on one page (SQLite's "B-tree Pages")."""
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
    """The place in the file of one byte of a field of the message ``DAMAGED``."""
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


@pytest.mark.parametrize("field", FIELDS)
def test_the_check_names_the_message(three: Path, field: str) -> None:
    """If a byte changes in any field of a message, the check names the message and says what to do."""
    assert check(three) == []
    flip(three, place_of(three, field), change=0x04)
    found = check(three)
    told = f"message {DAMAGED} is not what was written: its checksum is wrong. Restore"
    expected = {"id": "SQLite: ", "route": "SQLite: "}.get(
        field, told
    )  # they are in an index, or an order, too
    assert found[0].startswith(expected), found


def test_a_topic_that_is_no_text_any_more_is_damage(three: Path) -> None:
    """A topic that is no UTF-8 fails a read of topics only, as damage, and the check names its message."""
    flip(three, place_of(three, "topic"), change=0x80)
    with reading(three) as reader:
        with pytest.raises(ReadFailed, match="no longer a text"):
            reader.last_matching(lambda topic: False)
        assert reader.damage is not None
        with pytest.raises(DamagedMessage, match=f"message {DAMAGED} is not"):
            reader.log_page(DAMAGED, 4, ())
    assert check(three)[0].startswith(f"message {DAMAGED} is not")


@pytest.mark.parametrize("change", [0x01, 0x80, 0xFF])
def test_whichever_byte_of_a_row_changes(three: Path, tmp_path: Path, change: int) -> None:
    """The check finds a change of any byte, and no read returns a row that was not written."""
    damaged = tmp_path / "damaged.db"
    reads: list[Callable[[SqliteReader], list[Row]]] = [
        lambda reader: reader.log_page(1, 100, ()).rows,
        lambda reader: reader.log_page(1, 100, (), held=True).rows,
        lambda reader: reader.routed_page([route(1).number], 0).rows,
        lambda reader: reader.messages([1, 2, 3]),
    ]
    for place in cell(three, DAMAGED):
        damaged.write_bytes(three.read_bytes())
        flip(damaged, place, change)
        assert check(damaged), place
        with reading(damaged) as reader:
            for read in reads:
                try:
                    rows = read(reader)
                except ReadFailed:
                    assert reader.damage is not None
                else:
                    assert [row for row in rows if row not in ROWS] == [], place
        damaged.unlink()


@settings(max_examples=times(15, 2_000))
@given(history=histories())
def test_pages_are_compared_as_a_whole(fresh: Callable[[], Path], history: list[list[Effect]]) -> None:
    """After any history, the sum of a page's checksums is right, whatever bound on the contents is given."""
    path = fresh()
    written(path, history)
    with closing(connect_reader(path)) as connection:
        found = fetch_sound(connection, MESSAGE, "from message order by id", [], 1)
        assert found == fetch_sound(connection, MESSAGE, "from message order by id", [], 1 << 20)
        assert found is not None
        rows, columns = found
        assert columns is None or columns == Columns.of(rows)._replace(topics=columns.topics)
        assert columns is None or set(columns.topics) == {row[TOPIC] for row in rows}
        assert [row[ID] for row in rows] == [i for (i,) in query(path, "select id from message order by id")]


def test_a_message_that_changes_its_route_stays_what_it_is(three: Path) -> None:
    """When a queue begins to deliver by priority, sound messages stay sound, and damaged ones damaged."""
    with closing(connect_writer(three, synchronous="OFF")) as connection, connection:
        connection.execute("update message set content = cast(replace(content, 'second', 'Second') as blob)")
        before = [number for (number,) in connection.execute("select route from message order by id")]
        apply_priorities(SqliteShortTables(connection), {"q": True})
        after = [number for (number,) in connection.execute("select route from message order by id")]
    assert before != after
    assert [sentence.partition(":")[0] for sentence in check(three)] == [
        f"message {DAMAGED} is not what was written"
    ]


# --- The check of a file --------------------------------------------------------------------------------------------

BOTH = route(1, 2).number


@pytest.fixture
def sound(path: Path) -> Path:
    """A sound file with a queue and messages."""
    written(path, [[*queue(1, "q"), publication(1, [b"12345"] * 4, endpoints=(1,), time_ms=MADE_MS)]])
    return path


def test_a_damaged_page_is_found(sound: Path) -> None:
    """The check reports a page that SQLite cannot read, in SQLite's words."""
    open_file(sound, MADE_MS, synchronous="OFF").close()  # leaves no WAL
    content = bytearray(sound.read_bytes())
    content[4096:8192] = b"\x5a" * 4096
    sound.write_bytes(content)
    (first, *_) = check(sound)
    assert "SQLite" in first or "malformed" in first


@pytest.mark.parametrize("content", [b"this is no database" * 100, b""], ids=["text", "empty"])
def test_what_is_no_gateways_file_is_told_so(tmp_path: Path, content: bytes) -> None:
    """The check reports a file that is no gateway's in one sentence, and leaves it as it was."""
    path = tmp_path / "x.db"
    path.write_bytes(content)
    (found,) = check(path)
    assert "not a database" in found or "not a gateway's file" in found
    assert path.read_bytes() == content


def test_a_missing_file_is_told_so_and_not_made(tmp_path: Path) -> None:
    """The check of a missing file creates none."""
    path = tmp_path / "x.db"
    assert check(path) == [f"there is no file {path}"]
    assert check(tmp_path) == ["it is a folder; name a file in it"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_use_is_checked_as_it_is_at_one_moment(sound: Path) -> None:
    """The check sees the last commit: an open transaction of a writer does not block it or cause a false alarm."""
    with closing(writing_to(sound)) as connection:
        connection.execute("begin immediate")
        connection.execute("update log set size_bytes = 0")
        assert check(sound) == []
        connection.execute("rollback")


# --- Pages, probes and their bounds, on real files --------------------------------------------------------------------

LARGEST = 1 << 20
"""A largest content that makes a reader look at lengths before it reads contents; no content here is so large."""


def test_a_merge_reads_no_more_than_its_page(path: Path) -> None:
    """A page of several routes reads the index only as far as the page goes, and only the rows of the page."""
    contents = [bytes(2_000)] * 1_000
    both = [publication(1 + 1_000 * k, contents, endpoints=(1 + k,), time_ms=MADE_MS) for k in (0, 1)]
    written(path, [[*queue(1, "q"), *queue(2, "r")], both])
    with reading(path, rows=10) as reader:
        connection = reader._connection
        connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS, True)
        found = reader.routed_page([route(1).number, route(2).number], 500)
        assert [row[0] for row in found.rows] == list(range(501, 511))
        misses, _ = connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS)
    assert misses < 60


def test_small_contents_are_not_measured_first(path: Path) -> None:
    """One statement reads a page if even a page of the largest contents stays within the bound."""
    written(path, [[publication(1, [b"x"] * 20, time_ms=MADE_MS)]])
    for largest, statements in ((64, 1), (LARGEST, 4)):
        seen: list[str] = []
        with reading(path, largest_bytes=largest) as reader:
            reader._connection.exec_trace = lambda cursor, sql, values, seen=seen: seen.append(sql) is None
            assert len(reader.log_page(1, 21, ()).rows) == 20
        assert len(seen) == statements


def test_a_reader_leaves_no_snapshot_behind(path: Path) -> None:
    """No read leaves a statement or transaction open: after each the WAL can be restarted."""
    written(path, [queue(1, "q"),
                   [publication(1, [b"x"] * 25, endpoints=(1,), time_ms=MADE_MS)]])  # fmt: skip
    reads: list[Callable[[SqliteReader], object]] = [
        lambda reader: reader.log_page(1, 26, ()),
        lambda reader: reader.routed_page([route(1).number], 0),
        lambda reader: reader.routed_page(range(1, 90), 0),
        lambda reader: reader.messages([1, 2]),
        lambda reader: reader.attempts(1),
        lambda reader: reader.first_since(MADE_MS),
        lambda reader: reader.positions_since([MADE_MS]),
        lambda reader: reader.time_of(1),
        lambda reader: reader.last_matching(None),
    ]
    with closing(writing_to(path)) as connection:
        for largest in (1, LARGEST):
            with reading(path, largest_bytes=largest, rows=7) as reader:
                for read in reads:
                    connection.execute("update log set largest_bytes = largest_bytes")
                    read(reader)
                    ((busy, _, _),) = connection.execute("pragma wal_checkpoint(restart)").fetchall()
                    assert not busy


def test_a_reader_cannot_write(path: Path) -> None:
    """Its connection refuses: the writer alone changes the file."""
    with reading(path) as reader, pytest.raises(apsw.ReadOnlyError, match="readonly"):
        reader._connection.execute("delete from message")


@pytest.mark.parametrize("largest_bytes", [64, LARGEST])
def test_damage_is_known_after_it_was_met(path: Path, largest_bytes: int) -> None:
    """A page that SQLite cannot read fails with SQLite's reason, and the reader reports the damage from then on."""
    written(path, [[publication(1, [b"x" * 300] * 200, time_ms=MADE_MS)]])
    with closing(writing_to(path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    content = bytearray(path.read_bytes())
    leaf = content.index(b"xxx") // PAGE_BYTES * PAGE_BYTES
    content[leaf] = 0x5A
    path.write_bytes(content)
    with reading(path, largest_bytes=largest_bytes) as reader:
        assert reader.damage is None
        with pytest.raises(ReadFailed, match="malformed"):
            reader.log_page(1, 201, ())
        assert reader.damage is not None
        assert "malformed" in reader.damage
