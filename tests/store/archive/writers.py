"""Endless writers of an archive, each in a process of its own, for a test to kill."""

from __future__ import annotations

from store.archive import maintenance
from store.archive.archiver import Archiver, Limits
from store.archive.erasures import Erasure
from store.archive.storage import storage_at
from tests.store.archive.archives import log_of
from tests.support.forked_gateway import preload

preload(__name__)

WHEN = Erasure(1_700_000_000_123, "asked to")


def archive_on(data: str, to: str) -> None:
    """Follow the log and archive it, without an end."""
    run = Archiver(log_of({"path": data}), storage_at(to), Limits(rows=3, age_seconds=0))
    run.run(follow=True)


def maintain(to: str) -> None:
    """Compact and erase in turns, without an end."""
    while True:
        maintenance.compact(storage_at(to), is_all=True)
        maintenance.erase(storage_at(to), {7: WHEN})
