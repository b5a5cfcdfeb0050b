"""
A log without a gateway: the file as a gateway leaves it, filled and trimmed by effects within milliseconds.

Another process writes it, as a gateway would: readers have their own copy of SQLite, and two copies of SQLite in one
process break each other's locks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from amqp_ext.codec import Described, Symbol, encode
from gateway.core.effects import EraseMessages, Publication, SaveArchived, TrimLog, TrimTopics
from gateway.core.erasing import erased_row
from gateway.core.model import Row
from store.sqlite.store import recover
from tests.store.effects import publication
from tests.store.vpn_file import MADE_MS, commit, new_file, writing_to

DAY_MS = 86_400_000
T = TypeVar("T")


@cache
def _writer() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"))


def _elsewhere(call: Callable[..., T], *arguments: Any) -> T:
    """Call a function in the writing process, and return its result."""
    return _writer().submit(call, *arguments).result()


def _commit(file: Path, effects: list[Any]) -> None:
    with closing(writing_to(file)) as connection:
        commit(connection, effects)


def _log_of(file: Path) -> tuple[int, int, int]:
    log = recover(file).log
    return log.first_id, log.generation, log.archived_id


def body(number: int) -> bytes:
    """An encoded message with one data section, properties and an application property."""
    return b"".join(
        encode(Described(code, value))
        for code, value in (
            (0x73, [f"id-{number}", None, "topic://t"]),
            (0x74, {"k": "é" * (number % 3), Symbol("n"): number}),
            (0x75, b"%d" % number * (number % 5)),
        )
    )


class StoredLog:
    """The log of the VPN ``default`` in a data folder. Every tenth message is not logged."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = str(folder)
        self._file = _elsewhere(new_file, folder / "default.db")
        self.last = 0
        self.logged: list[int] = []
        self._rows: dict[int, Row] = {}

    @property
    def generation(self) -> int:
        _, generation, _ = _elsewhere(_log_of, self._file)
        return generation

    def publish(self, count: int, day: int = 0) -> None:
        """Publish more messages, all with the same time."""
        _elsewhere(_commit, self._file, [self._publication(number, day) for number in self._next(count)])

    def trim(self, below: int) -> None:
        """Trim the ids below this one."""
        first, _, _ = _elsewhere(_log_of, self._file)
        _elsewhere(_commit, self._file, [TrimLog(first, below)])

    def take_out(self, *ids: int) -> None:
        """Remove these messages by a rule of retention for n/1."""
        effect = TrimTopics(ids[0], ids[-1] + 1, counts_topics=True, ids=ids, rule='[["n/1"]]')
        _elsewhere(_commit, self._file, [effect])

    def erase(self, ids: Sequence[int], time_ms: int, reason: str) -> None:
        """Write what a gateway writes when these messages are erased."""
        markers = [erased_row(self._rows[i], time_ms, reason) for i in ids]
        _elsewhere(_commit, self._file, [EraseMessages(markers)])

    def note_archived(self, last: int, generation: int) -> None:
        """Record how far the log is archived, as a gateway does when an archiver reports it."""
        assert generation == self.generation
        _elsewhere(_commit, self._file, [SaveArchived(last)])

    @property
    def archived(self) -> int:
        _, _, archived = _elsewhere(_log_of, self._file)
        return archived

    def _next(self, count: int) -> range:
        numbers = range(self.last + 1, self.last + count + 1)
        self.last += count
        return numbers

    def _publication(self, number: int, day: int) -> Publication:
        content = body(number)
        is_logged = number % 10 != 0
        if is_logged:
            self.logged.append(number)
        made = publication(
            number,
            [content],
            topic=f"n/{number % 3}",
            endpoints=() if is_logged else (1,),
            logged=is_logged,
            time_ms=MADE_MS + day * DAY_MS,
        )
        (self._rows[number],) = made.rows
        return made
