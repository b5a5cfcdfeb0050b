"""A Message VPN in SQLite for the tests of the port."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from gateway.core.effects import Effect
from gateway.core.model import Row
from store import reading
from store.promises import Promise
from store.property_index import IndexedSpan
from store.sqlite import check, reader
from store.sqlite.cursors import SqliteShortTables
from store.sqlite.reader import SqliteReader
from tests.store.port.vpns import model_of
from tests.store.vpn_file import COLUMNS, bounds, commit, execute, query, writing_to
from tests.support.naive_store import NaiveStore


class SqliteFile:
    """A file of its own, without a writer."""

    reader_module = reader
    search_module = reading
    promises: tuple[Promise, ...] = check.PROMISES

    def __init__(self, path: Path) -> None:
        """
        Args:
            path: An empty file of a Message VPN.
        """
        self._path = path
        self._readers: list[SqliteReader] = []
        self._spans: list[IndexedSpan] = []

    def write(self, batches: Iterable[Sequence[Effect]]) -> NaiveStore:
        """See ``StoredVpn``."""
        written = list(batches)
        with closing(writing_to(self._path)) as connection:
            for effects in written:
                commit(connection, effects)
        return model_of(written)

    def commit(self, effects: Sequence[Effect], index: Sequence[str] | None = None) -> None:
        """See ``StoredVpn``."""
        with closing(writing_to(self._path)) as connection:
            if index is not None:
                SqliteShortTables(connection).update_spans(index)
            self._spans = SqliteShortTables(connection).indexed_spans()
            commit(connection, effects, indexed=[span for span in self._spans if span.end_id is None])

    def stored(self) -> list[Row]:
        """See ``StoredVpn``."""
        return query(self._path, f"select {COLUMNS} from message order by id")

    def open_reader(
        self,
        *,
        rows: int = 1_000,
        page_bytes: int = 1 << 22,
        largest_bytes: int = 64,
    ) -> SqliteReader:
        """See ``StoredVpn``."""
        found = SqliteReader(self._path, bounds(rows, page_bytes), largest_bytes, self._spans)
        self._readers.append(found)
        return found

    def check(self) -> list[str]:
        """See ``StoredVpn``."""
        return check.check(self._path)

    def execute(self, *statements: str) -> None:
        """See ``StoredVpn``."""
        execute(self._path, *statements)

    def save(self) -> None:
        """See ``StoredVpn``."""
        shutil.copy(self._path, self._path.with_suffix(".saved"))

    def restore(self) -> None:
        """See ``StoredVpn``."""
        shutil.copy(self._path.with_suffix(".saved"), self._path)

    def count(self, table: str) -> int:
        """See ``StoredVpn``."""
        ((found,),) = query(self._path, f"select count(*) from {table}")
        return int(found)

    def close(self) -> None:
        """See ``StoredVpn``."""
        for found in self._readers:
            found.close()
