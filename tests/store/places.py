"""Sources and targets of copies: a file, or a new schema in PostgreSQL."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from store.copies import Copy, Copying
from store.errors import StoreHeld
from store.postgresql.copies import PostgresTables
from store.postgresql.database import Database
from store.sqlite.copies import SqliteTables
from tests.support.postgresql import Server, eventually

T = TypeVar("T")

_numbers = count(1)


class Place:
    """A Message VPN in PostgreSQL with a name of its own; its schema need not exist."""

    def __init__(self, server: Server) -> None:
        self.database = Database(server.url())
        self.vpn = f"copied-{next(_numbers)}"

    def opened(self, *, is_target: bool = False) -> PostgresTables:
        return PostgresTables(self.database, self.vpn, is_target=is_target)


def released(run: Callable[[], T]) -> T:
    """Call ``run`` until the store is free: the server notices the end of the last session a moment later."""
    found: list[T] = []

    def is_done() -> bool:
        try:
            found.append(run())
        except StoreHeld:
            return False
        return True

    eventually(is_done, "the end of the session before")
    return found[0]


def opened(place: Path | Place, *, is_target: bool = False) -> SqliteTables | PostgresTables:
    if isinstance(place, Path):
        return SqliteTables(place, is_target=is_target)
    return released(lambda: place.opened(is_target=is_target))


def copied(source: Path | Place, target: Path | Place, **options: Any) -> Copy:
    with ExitStack() as stack:
        ours = stack.enter_context(closing(opened(source)))
        theirs = stack.enter_context(closing(opened(target, is_target=True)))
        return Copying(ours, theirs, **options).run()


@dataclass(frozen=True)
class Pair:
    """The engines of a copy's source and target."""

    source: str
    target: str
    fresh: Callable[[], Path]
    place: Callable[[], Place]

    def source_of(self, path: Path) -> Path | Place:
        """A new source with the contents of this file; the file stays as it is."""
        file = self.fresh()
        shutil.copy(path, file)
        if self.source == "sqlite":
            return file
        there = self.place()
        copied(file, there)
        return there

    def new_target(self) -> Path | Place:
        """A target without a store."""
        return self._nothing() if self.target == "sqlite" else self.place()

    def file_of(self, target: Path | Place) -> Path:
        """A file with the contents of the target."""
        if isinstance(target, Path):
            return target
        file = self._nothing()
        copied(target, file)
        return file

    def _nothing(self) -> Path:
        file = self.fresh()
        file.unlink()
        return file
