"""The port in SQLite, as a gateway uses it: opened, written, read, closed, opened again and removed."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import apsw
import pytest

from store.errors import StoreError
from store.ports import Batch, Store, StoreOptions
from store.sqlite.store import SqliteStores, message_file
from tests.store.effects import publication
from tests.store.vpn_file import MADE_MS

OPTIONS = StoreOptions(
    page_rows=10, page_bytes=1 << 16, read_threads=1, checkpoint_bytes=1 << 20, synchronous="OFF"
)


def test_what_is_written_is_told_of_by_another_thread(tmp_path: Path) -> None:
    """In the data folder's file of that name; the loop goes on meanwhile."""
    store: Store = SqliteStores(tmp_path).open("orders", MADE_MS, OPTIONS)
    assert store.place == str(message_file(tmp_path, "orders")) == str(tmp_path / "orders.db")
    assert store.engine == f"SQLite {apsw.sqlite_lib_version()}"
    told: list[threading.Thread] = []
    writer = store.start_writer(lambda batches, error: told.append(threading.current_thread()))
    writer.submit(Batch([publication(1, [b"content"], time_ms=MADE_MS)], 7))
    store.close()
    assert len(told) == 1
    assert threading.current_thread() not in told


def test_a_start_after_a_crash_makes_no_checkpoint(tmp_path: Path) -> None:
    """What is in the WAL is found and stays there, however often the file is opened on the way to a writer."""
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
    """The reader knows the largest content there may be before anybody can read it, however it was written."""
    store = SqliteStores(tmp_path).open("orders", MADE_MS, OPTIONS)
    writer = store.start_writer(lambda batches, error: None)
    large = publication(1, [bytes(40_000)] * 4, time_ms=MADE_MS)
    assert writer.commit_now(Batch([large], 160_000)) == (True, None)
    assert len(store.reader.log_page(1, 5, ()).rows) == 1
    assert writer.commit_seconds.total > 0
    store.close()


def test_removing(tmp_path: Path) -> None:
    """Nothing of a removed store is left, its write-ahead log included; the others stay, and no store is no error."""
    stores = SqliteStores(tmp_path)
    for name in ("orders", "trades"):
        stores.open(name, MADE_MS, OPTIONS).close()
    Path(f"{message_file(tmp_path, 'orders')}-wal").touch()
    stores.remove("orders")
    stores.remove("orders")
    assert [path.name for path in tmp_path.iterdir()] == ["trades.db"]


def test_a_store_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while its state is read is told as one while it is opened."""

    def recover(path: Path) -> None:
        raise apsw.CorruptError("database disk image is malformed")

    monkeypatch.setattr("store.sqlite.store.recover", recover)
    with pytest.raises(StoreError, match=r"cannot read .*malformed. Restore it from a backup"):
        SqliteStores(tmp_path).open("orders", MADE_MS, OPTIONS)
