"""
Copies a store into another, whichever engines keep them: ids, generation, routes, cursors and all else stay.

What is copied is compared first, span by span, so that a run that was ended at any moment goes on where it ended, and
so that it does no harm if the source was used in between. The target is marked as unfinished until all of it was
compared once more and found sound. Then the source is closed, and only after that the target is a store: at no moment
are there two stores that would go on with one generation's ids (``store.copies.mark``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Final, NamedTuple, TypeAlias

from gateway.core.model import CONTENT
from store.copies.log_row import LogRow
from store.copies.mark import CopyMark, MarkState
from store.copies.tables import SMALL, CopiedMessages, StoredMessage, StoreTables
from store.errors import DamagedMessage, StoreError

SPAN_BITS: Final = 12
SPAN_IDS: Final = 1 << SPAN_BITS
"""Ids whose messages are compared at once."""

COMMIT_BYTES: Final = 8 * 1024 * 1024
"""Content that a transaction has; one message is always let through."""

HINT: Final = "Nothing was closed; look at both with `rewind store check`"


class Copied(NamedTuple):
    """How far a copy is."""

    position: int
    """Ids below this one were looked at."""
    last_id: int
    messages: int
    """That were copied by this run."""
    size_bytes: int
    """Content of these."""


class Copy(NamedTuple):
    """A copy that is a store."""

    log: LogRow
    messages: int
    """In all."""
    copied: Copied
    has_closed: bool
    """The source is no store any more."""


Progress: TypeAlias = Callable[[Copied], None]

Step: TypeAlias = Callable[[str], None]
"""Told of what was done, for whoever wants to see it end there."""


class Copying:
    """The copying of one store."""

    def __init__(
        self,
        source: StoreTables,
        target: StoreTables,
        *,
        as_new_log: bool = False,
        progress: Progress = lambda copied: None,
        step: Step = lambda name: None,
    ) -> None:
        """
        Args:
            as_new_log: The copy gets a generation of its own, and the source stays open.
        """
        self._source = source
        self._target = target
        self._as_new_log = as_new_log
        self._progress = progress
        self._step = step
        self._copied = Copied(0, 0, 0, 0)

    def run(self) -> Copy:
        """
        Copy what is missing, compare all of it, and have the target be a store. Blocks.

        Raises:
            StoreError: The source is none, or goes on elsewhere; there is a store already; a message is damaged; the
                copy is not what it is to be; or a store cannot be read or written.
        """
        try:
            return self._run()
        except (*self._source.failures, *self._target.failures) as error:
            raise StoreError(
                "cannot copy", self._source.place, error, f"Run it again when {self._target.place} is well"
            ) from error

    def _run(self) -> Copy:
        source, target = self._source, self._target
        log = source.log()
        if log is None:
            raise StoreError("cannot copy", source.place, "it is no store of a gateway", "Name one")
        if self._is_done(log):
            return Copy(log, self._compare_messages(), self._copied, has_closed=True)
        self._copied = self._copied._replace(last_id=log.last_id)
        target.write_mark(CopyMark(MarkState.UNFINISHED, source.place))
        self._step("marked")
        self._copy_messages()
        self._copy_entries()
        target.replace(log, [(table, source.rows(table)) for table in SMALL])
        self._step("tables")
        count = self._compare()
        self._step("compared")
        if self._as_new_log:
            log = log.renewed(skip_ids=log.ids_since(time.time_ns() // 1_000_000))
            target.write_mark(None, log)
        else:
            source.write_mark(CopyMark(MarkState.MOVED, target.place))
            self._step("closed")
            target.write_mark(None)
        self._step("opened")
        return Copy(log, count, self._copied, not self._as_new_log)

    def _is_done(self, log: LogRow) -> bool:
        """Whether a run before has done all of it; how both stores are marked is looked at."""
        source, target = self._source, self._target
        ours, theirs, there = source.mark(), target.mark(), target.log()
        if ours is not None and ours.state is MarkState.UNFINISHED:
            raise StoreError(
                "cannot copy",
                source.place,
                f"it is an unfinished copy of {ours.other}",
                "Finish that one first",
            )
        if ours is not None and ours.state is MarkState.MOVED:
            if ours.other != target.place:
                raise StoreError(
                    "cannot copy",
                    source.place,
                    f"it was copied to {ours.other}, which goes on with its ids",
                    "Copy that one",
                )
            if theirs is None and there is not None and there.generation == log.generation:
                return True
        if ours is not None and ours.state is MarkState.BACKUP:
            self._as_new_log = True  # the log it was taken of went on
        if theirs == CopyMark(MarkState.UNFINISHED, source.place):
            return False
        if theirs is not None and theirs.state is MarkState.UNFINISHED:
            raise StoreError(
                "cannot copy to",
                target.place,
                f"it is an unfinished copy of {theirs.other}",
                "Name another place",
            )
        if there is not None:
            raise StoreError("cannot copy to", target.place, "there is a store already", "Name another place")
        return False

    # --- copying ----------------------------------------------------------------------------------------------

    def _copy_messages(self) -> None:
        for first in self._spans():
            self._copy_span(first, first + SPAN_IDS)
            self._told(first + SPAN_IDS)

    def _spans(self) -> Iterator[int]:
        """The first ids of spans in which there is a message, here or there."""
        position = 0
        while True:
            found = [
                first
                for messages in (self._source.messages, self._target.messages)
                if (first := messages.next_from(position)) is not None
            ]
            if not found:
                return
            first = min(found) >> SPAN_BITS << SPAN_BITS
            yield first
            position = first + SPAN_IDS

    def _copy_span(self, first: int, stop: int) -> None:
        source, target = self._source.messages, self._target.messages
        there = target.digest(first, stop)
        if there.rows:
            if there == source.digest(first, stop):
                return
            behind = target.last_below(stop) + 1
            if there == source.digest(first, behind):
                first = behind  # it was ended here
            else:
                target.remove(first, stop)
        for rows in self._pieces(source, first, stop):
            target.add(rows)
            size = sum(len(row[CONTENT]) for row in rows)
            copied = self._copied
            self._copied = copied._replace(
                messages=copied.messages + len(rows), size_bytes=copied.size_bytes + size
            )
            self._step("messages")
            self._told(rows[-1][0] + 1)

    def _pieces(self, messages: CopiedMessages, first: int, stop: int) -> Iterator[list[StoredMessage]]:
        """The rows of a span, as many at once as a transaction should have."""
        piece: list[StoredMessage] = []
        size = 0
        try:
            for row in messages.rows(first, stop):
                piece.append(row)
                size += len(row[CONTENT])
                if size >= COMMIT_BYTES:
                    yield piece
                    piece, size = [], 0
        except DamagedMessage as error:
            raise StoreError("cannot copy", self._source.place, error, HINT) from error
        if piece:
            yield piece

    def _told(self, position: int) -> None:
        self._copied = self._copied._replace(position=position)
        self._progress(self._copied)

    def _copy_entries(self) -> None:
        source, target = self._source.entries, self._target.entries
        for segment in sorted({*source.segments(), *target.segments()}):
            if source.digest(segment) != target.digest(segment):
                target.replace(segment, source.rows(segment))
                self._step("entries")

    # --- comparing --------------------------------------------------------------------------------------------

    def _compare(self) -> int:
        """How many messages there are in both, where all is the same and sound."""
        source, target = self._source, self._target
        count = self._compare_messages()
        for segment in {*source.entries.segments(), *target.entries.segments()}:
            if source.entries.digest(segment) != target.entries.digest(segment):
                raise self._differs(f"segment {segment} of the index")
        for table in SMALL:
            if any(mine != other for mine, other in zip_longest(source.rows(table), target.rows(table))):
                raise self._differs(f"table {table.name}")
        if source.log() != target.log():
            raise self._differs("the log's row")
        problems = target.check()
        if problems:
            raise StoreError("cannot copy to", target.place, "; ".join(problems), HINT)
        return count

    def _compare_messages(self) -> int:
        count = 0
        for first in self._spans():
            here = self._source.messages.digest(first, first + SPAN_IDS)
            if here != self._target.messages.digest(first, first + SPAN_IDS):
                raise self._differs(f"messages from {first} on")
            count += here.rows
        return count

    def _differs(self, what: str) -> StoreError:
        return StoreError(
            "cannot copy to",
            self._target.place,
            f"{what}: the copy is not what {self._source.place} has",
            HINT,
        )
