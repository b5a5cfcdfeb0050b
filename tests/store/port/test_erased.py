"""Erased contents are out of an engine's files, and of what its readers give, once that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from gateway.core.effects import EraseMessages
from gateway.core.erasing import erased_row
from gateway.core.model import CONTENT
from store.errors import WriteFailed
from store.ports import Batch, Store, Stores
from tests.store.effects import publication
from tests.store.port.adapters import Adapter
from tests.store.port.test_port import OPTIONS, VPN
from tests.store.vpn_file import MADE_MS

WAIT_SECONDS = 20
SECRET = b"what nobody is to know any more "


@pytest.fixture
def store(adapter: Adapter, tmp_path: Path) -> Iterator[Store]:
    """An opened store."""
    stores: Stores = adapter.stores(tmp_path)
    opened = stores.open(VPN, MADE_MS, OPTIONS)
    yield opened
    opened.close()


@pytest.mark.parametrize("size", [1, 1_000])
def test_what_was_erased_is_neither_read_nor_in_files(store: Store, tmp_path: Path, size: int) -> None:
    """In one page and in many: the others are as they were, and the markers are sound."""
    committed, errors = Event(), []

    def on_commit(_batches: list[Batch], error: WriteFailed | None) -> None:
        errors.append(error)
        committed.set()

    writer = store.start_writer(on_commit)
    rows = publication(1, [b"before", SECRET * size, b"behind"], time_ms=MADE_MS).rows
    writer.submit(Batch([publication(1, [row[CONTENT] for row in rows], time_ms=MADE_MS)], 0))
    assert committed.wait(WAIT_SECONDS)
    committed.clear()
    effect = EraseMessages([erased_row(row, MADE_MS, "asked to") for row in rows[1:2]])
    writer.submit(Batch([effect], 0))
    assert committed.wait(WAIT_SECONDS)
    assert errors == [None, None]
    assert effect.ids == [2]
    assert store.scrub(WAIT_SECONDS)
    read = store.reader.submit(lambda: store.reader.log_page(1, 4, ())).result(WAIT_SECONDS).rows
    assert read == [rows[0], *effect.rows, rows[2]]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and SECRET in path.read_bytes()]


def test_draining_waits_for_reads_that_began_before(store: Store) -> None:
    """As long as one is under way it does not return; with none it does."""
    store.start_writer(lambda _batches, _error: None)
    go_on, order = Event(), []
    reading = store.reader.submit(lambda: (go_on.wait(WAIT_SECONDS), order.append("read")))
    behind = store.reader.submit(lambda: order.append("behind"))
    go_on.set()
    store.reader.drain()
    assert reading.done()
    assert behind.done()
    assert order == ["read", "behind"]
