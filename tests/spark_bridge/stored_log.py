"""A log without a gateway: the file as a gateway leaves it, filled and trimmed by effects, in milliseconds."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from amqp_ext.codec import Described, Symbol, encode
from gateway.core.effects import Publication, SaveArchived, TrimLog
from store.sqlite.recovery import recover
from tests.store.vpn_file import MADE_MS, commit, new_file, writing_to

DAY_MS = 86_400_000


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
        self._file = new_file(folder / "default.db")
        self.last = 0
        self.logged: list[int] = []

    @property
    def generation(self) -> int:
        return recover(self._file).log.generation

    def publish(self, count: int, day: int = 0) -> None:
        """More messages, all of one time."""
        with closing(writing_to(self._file)) as connection:
            commit(connection, [self._publication(number, day) for number in self._next(count)])

    def trim(self, below: int) -> None:
        """Take the ids below this one out of the log."""
        first = recover(self._file).log.first_id
        with closing(writing_to(self._file)) as connection:
            commit(connection, [TrimLog(first, below)])

    def note_archived(self, last: int, generation: int) -> None:
        """What a gateway does when an archiver tells it."""
        assert generation == self.generation
        with closing(writing_to(self._file)) as connection:
            commit(connection, [SaveArchived(last)])

    @property
    def archived(self) -> int:
        return recover(self._file).log.archived_id

    def _next(self, count: int) -> range:
        numbers = range(self.last + 1, self.last + count + 1)
        self.last += count
        return numbers

    def _publication(self, number: int, day: int) -> Publication:
        content = body(number)
        is_logged = number % 10 != 0
        if is_logged:
            self.logged.append(number)
        endpoints = () if is_logged else (1,)
        row = (number, MADE_MS + day * DAY_MS, f"n/{number % 3}", 0, None if is_logged else 1, content)
        return Publication([row], row[2], endpoints, is_logged, len(content), None)
