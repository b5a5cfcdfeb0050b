"""SQLite's stores as a gateway uses them: files are opened, migrated, and changed to deliver by priority."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest
import sqlite_utils
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp_ext.message.fields import priorities_of
from gateway.core.effects import Effect
from gateway.core.model import BARE, CONTENT, ID, ROUTE, WHOLE
from store.errors import StoreError, StoreTooNew
from store.ports import Batch, Store, StoreOptions
from store.sqlite import checkpointer
from store.sqlite.check import check
from store.sqlite.database import connect_reader, connect_writer, open_file
from store.sqlite.schema import PAGE_BYTES, migrations
from store.sqlite.store import SqliteStores, message_file, recover
from tests.store.earlier import FILES
from tests.store.effects import BY_PRIORITY, publication, queue, settled, trimming
from tests.store.histories import histories
from tests.store.sqlite.test_transaction import QUEUE
from tests.store.vpn_file import MADE_MS, commit, execute, query, state_of, tables, writing_to, written
from tests.support.chance import times
from tests.support.naive_store import NaiveStore

# --- Stores are opened, written, read, closed, opened again and removed -----------------------------------------------

OPTIONS = StoreOptions(
    page_rows=10, page_bytes=1 << 16, read_threads=1, checkpoint_bytes=1 << 20, synchronous="OFF"
)


def test_what_is_written_is_told_of_by_another_thread(tmp_path: Path) -> None:
    """The store is the data folder's file with the Message VPN's name; its commits are reported by another thread."""
    store: Store = SqliteStores(tmp_path).open("orders", MADE_MS, OPTIONS)
    assert store.place == str(message_file(tmp_path, "orders")) == str(tmp_path / "orders.db")
    assert store.engine == f"SQLite {apsw.sqlite_lib_version()}"
    told: list[threading.Thread] = []
    writer = store.start_writer(lambda batches, error: told.append(threading.current_thread()))
    writer.submit(Batch([publication(1, [b"content"], time_ms=MADE_MS)], 7))
    store.close()
    assert len(told) == 1
    assert threading.current_thread() not in told


def test_a_store_whose_checkpoints_cannot_be_made_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its write-ahead log would grow for ever. That is known before the first message is accepted."""

    def no_descriptor_left(path: Path, flags: int) -> apsw.Connection:
        raise apsw.CantOpenError("unable to open database file")

    monkeypatch.setattr(checkpointer, "connect", no_descriptor_left)
    with closing(SqliteStores(tmp_path).open("orders", MADE_MS, OPTIONS)) as store:
        with pytest.raises(StoreError, match=r"cannot open .*orders.db.*unable to open database file"):
            store.start_writer(lambda batches, error: None)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpointer")]


def test_a_start_after_a_crash_makes_no_checkpoint(tmp_path: Path) -> None:
    """A start reads what a crash left in the WAL, and leaves the WAL as it was."""
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    stores = SqliteStores(tmp_path)
    store = stores.open("orders", MADE_MS, OPTIONS)
    done = threading.Event()
    writer = store.start_writer(lambda batches, error: done.set())
    writer.submit(Batch([publication(1, [bytes(100_000)], time_ms=MADE_MS)], 100_000))
    assert done.wait(10)
    for suffix in ("", "-wal"):
        shutil.copy(f"{store.place}{suffix}", crashed)
    store.close()
    wal = crashed / "orders.db-wal"
    left = wal.read_bytes()
    again = SqliteStores(crashed).open("orders", MADE_MS, OPTIONS)
    try:
        assert again.recovered.log.next_id == 2
        again.start_writer(lambda batches, error: None)
        assert len(left) > 100_000
        assert wal.read_bytes() == left
    finally:
        again.close()


def test_pages_stay_in_their_bounds_as_contents_grow(tmp_path: Path) -> None:
    """The reader learns of a larger content before it can read it, so pages stay within their bytes."""
    store = SqliteStores(tmp_path).open("orders", MADE_MS, OPTIONS)
    writer = store.start_writer(lambda batches, error: None)
    large = publication(1, [bytes(40_000)] * 4, time_ms=MADE_MS)
    assert writer.commit_now(Batch([large], 160_000)) == (True, None)
    assert len(store.reader.log_page(1, 5, ()).rows) == 1
    assert writer.commit_seconds.total > 0
    store.close()


def test_removing(tmp_path: Path) -> None:
    """Removing a store deletes its file and WAL, and no other store; removing a missing store is no error."""
    stores = SqliteStores(tmp_path)
    for name in ("orders", "trades"):
        stores.open(name, MADE_MS, OPTIONS).close()
    Path(f"{message_file(tmp_path, 'orders')}-wal").touch()
    stores.remove("orders")
    stores.remove("orders")
    assert [path.name for path in tmp_path.iterdir()] == ["trades.db"]


def test_a_store_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while the start reads the state becomes a StoreError with the reason and advice."""

    def recover(path: Path) -> None:
        raise apsw.CorruptError("database disk image is malformed")

    monkeypatch.setattr("store.sqlite.store.recover", recover)
    with pytest.raises(StoreError, match=r"cannot read .*malformed. Restore it from a backup"):
        SqliteStores(tmp_path).open("orders", MADE_MS, OPTIONS)


# --- Files that cannot be opened, and connections to those that can ---------------------------------------------------


@pytest.mark.parametrize(
    ("content", "cause"),
    [(b"not SQLite at all\n" * 100, "not a database"), (b"SQLite format 3\0" + b"\xff" * 4_080, "")],
    ids=["text", "header"],
)
def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes, cause: str) -> None:
    """The error names the file and what to do; the file is not changed."""
    path = tmp_path / "default.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=rf"cannot open {path}: .*{cause}.*Restore it from a backup"):
        open_file(path, MADE_MS, synchronous="FULL").close()
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A folder in place of the file, or a missing parent folder, is an error."""
    (tmp_path / "folder.db").mkdir()
    for path in (tmp_path / "folder.db", tmp_path / "missing" / "default.db"):
        with pytest.raises(StoreError, match=f"cannot open {path}: unable to open database file"):
            open_file(path, MADE_MS, synchronous="FULL").close()


def test_a_new_log_has_a_generation_of_its_own(tmp_path: Path) -> None:
    """Generations are random and not negative, so a recreated log is never taken for the old one."""
    generations = set()
    for name in "abc":
        path = tmp_path / f"{name}.db"
        open_file(path, MADE_MS, synchronous="FULL").close()
        log = recover(path).log
        assert (log.first_id, log.next_id, log.last_time_ms, log.floor_ms) == (1, 1, MADE_MS, MADE_MS)
        generations.add(log.generation)
    assert len(generations) == 3
    assert all(0 <= generation < 1 << 63 for generation in generations)


def test_what_migrates_files_is_not_loaded_for_one_that_is_migrated(path: Path) -> None:
    """Opening a migrated file does not import sqlite_utils, which saves time and memory."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom store.sqlite.database import open_file\n"
        f"open_file(Path({str(path)!r}), 1, synchronous='OFF').close()\n"
        "assert 'apsw' in sys.modules and 'sqlite_utils' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_any_path_will_do(tmp_path: Path) -> None:
    """Characters with a meaning in URIs belong to the file's name: readers and the writer open the same file."""
    path = tmp_path / "a b%20?mode=rw#ä.db"
    open_file(path, MADE_MS, synchronous="FULL").close()
    with closing(writing_to(path)) as connection:
        commit(connection, QUEUE)
        assert [name for name in os.listdir(tmp_path) if name.endswith(".db")] == [path.name]
        assert list(state_of(path).endpoints) == [1]


def test_readers_do_not_wait_for_the_writer(path: Path) -> None:
    """While a transaction is open, a reader immediately sees the state before it."""
    with closing(writing_to(path)) as writer, closing(connect_reader(path)) as reader:
        writer.execute("begin immediate")
        writer.execute("update log set last_id = 99")
        assert reader.execute("select last_id from log").fetchall() == [(0,)]
        writer.execute("commit")
        assert reader.execute("select last_id from log").fetchall() == [(99,)]


# --- Migrations: files of unreleased and of later versions are refused ------------------------------------------------


@pytest.mark.parametrize("name", ["m001_messages_references_log", "m002_points_and_indexed_properties",
                                  "m003_priorities", "m004_archived"])  # fmt: skip
def test_a_file_that_no_release_wrote_is_refused(name: str, tmp_path: Path) -> None:
    """The error says what the file is and what to do, the check says the same, and the file is not changed."""
    path = tmp_path / "old.db"
    shutil.copy(FILES / f"{name}.db", path)
    before = tables(path), path.read_bytes()
    with pytest.raises(StoreError) as caught:
        open_file(path, 1, synchronous="FULL").close()
    assert str(caught.value) == (
        f"cannot open {path}: it was written by a version that was never released. "
        "Move it away to start with an empty store"
    )
    assert (tables(path), path.read_bytes()) == before
    assert check(path) == ["it was written by a version that was never released"]


def test_a_file_of_a_later_version_is_refused(path: Path) -> None:
    """
    The error names the file, its unknown migrations and what to do; the file is not changed. The check reports only the
    version, as a later one may have other promises.
    """
    for name in ("m998_bar", "m999_foo"):
        execute(
            path,
            f"insert into _sqlite_migrations (migration_set, name, applied_at) values ('rewind', '{name}', '')",
        )
    before = tables(path), state_of(path)
    with pytest.raises(StoreTooNew) as caught:
        open_file(path, 1, synchronous="FULL").close()
    assert str(caught.value) == (
        f"cannot open {path}: it has migration m998_bar, m999_foo of a later version. Use that version"
    )
    assert check(path) == ["it has migration m998_bar, m999_foo of a later version"]
    assert (tables(path), state_of(path)) == before


def test_a_migration_of_somebody_else_is_no_later_version(path: Path) -> None:
    """Only the gateway's own set of migrations counts: an operator may add tables of their own."""
    execute(
        path, "insert into _sqlite_migrations (migration_set, name, applied_at) values ('other', 'm999', '')"
    )
    open_file(path, 1, synchronous="FULL").close()


def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    """A migration that fails is rolled back, and the next start can open the file."""
    before = tables(path)
    later = migrations()

    @later()
    def m999_fails(db: sqlite_utils.Database) -> None:
        db.execute("create table half (x)")
        raise sqlite3.OperationalError("disk full")

    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.OperationalError):
        later.apply(sqlite_utils.Database(connection))
    assert tables(path) == before
    open_file(path, 1, synchronous="FULL").close()
    assert check(path) == []


@pytest.mark.parametrize(("synchronous", "level"), [("FULL", 2), ("NORMAL", 1)])
def test_a_writing_connection_is_set_up(path: Path, synchronous: str, level: int) -> None:
    """A writing connection uses the WAL, syncs as configured, and makes no checkpoints inside commits."""
    with closing(connect_writer(path, synchronous=synchronous)) as connection:

        def pragma(name: str) -> object:
            return connection.execute(f"pragma {name}").get

        assert pragma("journal_mode") == "wal"
        assert pragma("synchronous") == level
        assert pragma("wal_autocheckpoint") == 0
        assert pragma("page_size") == PAGE_BYTES


# --- Queues that begin or stop to deliver by priority -----------------------------------------------------------------

CONTENTS = [
    *(bytes.fromhex("005370c004024050") + bytes((n % 12,)) + b"body" for n in range(36)),
    b"bare",
]
"""Three messages of each priority from 0 to 11, and one without a header."""


def filled(path: Path) -> NaiveStore:
    """A plain queue and one by priority; some messages are on both, others on the plain one; some are settled."""
    bares = [9] * 36 + [0]
    return written(
        path,
        [
            [*queue(1, "q"), *queue(2, "r", settings=BY_PRIORITY)],
            [publication(1, CONTENTS, endpoints=(1,), time_ms=MADE_MS, bares=bares)],
            [publication(38, CONTENTS, endpoints=(1, 2), time_ms=MADE_MS, bares=bares, ranked=True)],
            lambda model: settled(model, 1, [1, 2, 3, 10, 11, 30, 40, 41]),
            lambda model: settled(model, 2, [38, 39, 50, 60, 74]),
            lambda model: [trimming(model, 20)],
        ],
    )


def lying(path: Path, number: int) -> dict[int, int]:
    """The unsettled messages of an endpoint's routes: the cursor's part that each is in, by id."""
    found = {}
    for endpoint in recover(path).endpoints:
        if endpoint.definition.number != number:
            continue
        rows = query(
            path,
            "select message.id, priority from route join message on message.route = route.number "
            "where exists (select 1 from json_each(endpoints) where value = ?) order by message.id",
            (number,),
        )
        for message_id, priority in rows:
            part = WHOLE if WHOLE in endpoint.parts else priority
            cursor = endpoint.parts.get(part)
            if cursor is None or message_id <= cursor.floor:
                continue
            if not any(first <= message_id <= last for first, last in cursor.ranges):
                found[message_id] = part
    return found


def depth(path: Path, number: int) -> tuple[int, int]:
    """The number and size of messages that a start finds on an endpoint by its routes."""
    (endpoint,) = (e for e in recover(path).endpoints if e.definition.number == number)
    parts = endpoint.parts.values()
    return (
        sum(part.messages + part.later_messages for part in parts),
        sum(part.size_bytes + part.later_bytes for part in parts),
    )


@pytest.mark.parametrize("priorities", [{"q": False, "r": True}, {}], ids=["unchanged", "not configured"])
def test_opening_a_file_again_changes_nothing(path: Path, priorities: dict[str, bool]) -> None:
    """
    Each migration is applied once; generation, times and contents stay as they were. Nothing is written for a queue
    whose setting has not changed, or that is no longer configured.
    """
    filled(path)
    before = state_of(path), tables(path), recover(path)
    open_file(path, 2, synchronous="FULL", priorities=priorities).close()
    assert (state_of(path), tables(path), recover(path)) == before


@settings(max_examples=times(10, 2_000))
@given(history=histories(), changes=st.lists(st.booleans(), min_size=1, max_size=3))
def test_whatever_lies_there_stays_there(
    fresh: Callable[[], Path], history: list[list[Effect]], changes: list[bool]
) -> None:
    """
    After any history, all queues change to priorities or back when the file is opened. Each time the same messages are
    unsettled, each in its part, with the same counts and sizes.
    """
    path = fresh()
    model = written(path, history)
    routed = {number: list(model.routed(number)) for number in model.endpoints}
    depths = {number: depth(path, number) for number in model.endpoints}
    for by_priority in changes:
        names = [endpoint.definition.name for endpoint in model.endpoints.values()]
        open_file(path, MADE_MS, synchronous="OFF", priorities=dict.fromkeys(names, by_priority)).close()
        assert check(path) == []
        for number, rows in routed.items():
            ranked = priorities_of([row[CONTENT] for row in rows], [row[BARE] for row in rows])
            parts = ranked if by_priority else [WHOLE] * len(rows)
            assert lying(path, number) == dict(zip((row[ID] for row in rows), parts, strict=True))
        texts = [e.definition.settings for e in recover(path).endpoints if e.definition.kind == "queue"]
        assert {json.loads(text).get("priorities", False) for text in texts} <= {by_priority}
        assert {number: depth(path, number) for number in model.endpoints} == depths


def test_messages_that_were_settled_keep_their_routes(path: Path) -> None:
    """Only unsettled messages get a route with a priority; settled ones are not read."""
    model = filled(path)
    open_file(path, MADE_MS, synchronous="FULL", priorities={"q": True}).close()
    routes = dict(query(path, "select id, route from message where id < 38"))
    settled_ids = [i for i in routes if i not in model.on(1)]
    assert settled_ids
    assert all(routes[i] == model.messages[i][ROUTE] for i in settled_ids)
