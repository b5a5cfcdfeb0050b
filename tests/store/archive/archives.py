"""Logs and archives of theirs, for whoever tests with them."""

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
    """The log that options name."""
    (address,) = parse(given).addresses
    assert not isinstance(address, Archived)
    return live_log(address)


def archiver(
    log: StoredLog, to: str, step: Callable[[str], None] = lambda _: None, rows: int = 10
) -> Archiver:
    """An archiver of a log in segments of ten messages."""
    return Archiver(
        log_of({"path": log.path}),
        FolderStorage(Path(to), step),
        Limits(rows=rows),
        told=log.note_archived,
    )


def state_of(to: str) -> State:
    """The archive there, as of now."""
    return ArchiveTable(storage_at(to)).refresh()


def ids(**options: str) -> list[int]:
    """The offsets that a read with these options gives, in its order."""
    found: list[int] = table(IDS, **options).column(0).to_pylist()
    return found
