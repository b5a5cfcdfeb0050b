"""Logs, archivers and archives for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spark_bridge.options import Archived, parse
from spark_bridge.places.from_options import live_log
from store.archive.archiver import Archiver, Limits
from store.archive.source import ArchivableLog
from store.archive.storage import FolderStorage, storage_at
from store.archive.table import ArchiveTable, State
from tests.spark_bridge.reading import table
from tests.spark_bridge.stored_log import StoredLog

IDS = "offset bigint"


def two_days(folder: Path) -> StoredLog:
    """A log of 50 ids, 45 of them logged, over two days."""
    log = StoredLog(folder)
    log.publish(20)
    log.publish(30, day=1)
    return log


def log_of(given: dict[str, str]) -> ArchivableLog:
    """The log that the options of the data source name."""
    (address,) = parse(given).addresses
    assert not isinstance(address, Archived)
    return live_log(address)


def archiver(
    log: StoredLog, to: str, step: Callable[[str], None] = lambda _: None, rows: int = 10
) -> Archiver:
    """An archiver that writes the log in segments of ``rows`` messages and notes in the log how far it came."""
    return Archiver(
        log_of({"path": log.path}),
        FolderStorage(Path(to), step),
        Limits(rows=rows),
        told=log.note_archived,
    )


def state_of(to: str) -> State:
    """The current state of the archive at this place."""
    return ArchiveTable(storage_at(to)).refresh()


def ids(**options: str) -> list[int]:
    """The offsets that a read with these options returns, in the order of the read."""
    found: list[int] = table(IDS, **options).column(0).to_pylist()
    return found
