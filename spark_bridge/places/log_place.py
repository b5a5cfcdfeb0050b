"""
What every place of a replay log has in common: it tells which ids the log holds, plans the read of a selection (topics,
start and end, what to do about lost messages), and reads ranges of ids.

A place is a plain value, which Spark pickles into its workers: connections live inside one call, except in ``watch``.
Invariant: a range of ids, once planned, has the same rows whenever it is read, or the read raises DataLoss (if the
selection says so, it leaves out lost messages instead, and says so on stderr).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from amqp_ext.topics import TopicFilter, TopicPattern
from spark_bridge.errors import OptionError
from spark_bridge.options import WHOLE_LOG, Selection
from store.archive.columns import Columns
from store.archive.errors import DataLoss
from store.archive.source import IdRange, LogWatch


def topic_filter(patterns: Sequence[str]) -> TopicFilter:
    """Which topics these patterns take, as a log reader understands them."""
    return TopicFilter([TopicPattern.parse(pattern) for pattern in patterns], implicit_all=True)


def planned(selection: Selection, first: int, whole: IdRange, first_since: Callable[[int], int]) -> IdRange:
    """
    The range of ids that a selection means, which starts at the id ``first``.

    Args:
        first_since: The first id from a time (ms) on, one past the last if there is none.

    Raises:
        OptionError: The end of the selection is beyond the log or before the start.
    """
    last, stop = whole.last, selection.stop
    if selection.before is not None:
        last = min(last, first_since(selection.before) - 1)
    elif stop is not None:
        if stop > whole.last + 1:
            raise OptionError(
                f"Option endingOffsets={stop} is beyond the log, whose last offset is {whole.last}."
            )
        if stop < first:
            raise OptionError(f"Option endingOffsets={stop} is before the start of the read, offset {first}.")
        last = stop - 1
    return replace(whole, first=first, last=last)


def check_end(ids: IdRange, last: int) -> None:
    """
    Check the end of a planned range against the log's last id now.

    Raises:
        DataLoss: The log ends before it.
    """
    if last < ids.last:
        raise DataLoss(
            f"Offsets {ids.first} to {ids.last} were planned, but the log ends at {last} now, as if it was "
            "restored from an older copy."
        )


PIECE_IDS = 2_000  # ids read at a time when the log may be trimmed under the read without failing it


class LogPlace(Protocol):
    """The place of one log."""

    @property
    def name(self) -> str:
        """What checkpoints and messages call it: a url, a file, an archive."""

    def extent(self, selection: Selection) -> IdRange:
        """
        The ids the log holds now; last < first when there are none.

        Raises:
            LogUnavailable: The log cannot be asked.
        """

    def plan(self, selection: Selection) -> IdRange:
        """
        The range of ids that this selection means now.

        Raises:
            DataLoss: The log does not have its start.
            OptionError: The selection makes no sense for this log.
            LogUnavailable: The log cannot be asked, or refuses.
        """

    def read(self, selection: Selection, columns: Columns, ids: IdRange) -> Iterator[pa.RecordBatch]:
        """
        The rows of a range as Arrow batches, the same each time.

        Raises:
            DataLoss: The log no longer has the whole range.
            LogUnavailable: The log cannot be read now.
        """

    def watch(self, selection: Selection = WHOLE_LOG) -> LogWatch:
        """Begin to ask repeatedly which ids the log holds."""

    def may_be_behind(self) -> bool:
        """
        Whether the log is read from a copy, which may lack ids that another copy has told of.

        Raises:
            LogUnavailable: The log cannot be asked.
        """
        return False


class LiveLog(LogPlace, Protocol):
    """The place of a gateway's own log, as opposed to an archive of it. A range may be read in several pieces."""

    def batches(
        self, selection: Selection, columns: Columns, ids: IdRange
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """
        The rows of a range, each batch (it may be empty) with the id at which to go on after it.

        Raises:
            DataLoss: The log no longer has the whole range, whatever the selection says.
        """

    def read(self, selection: Selection, columns: Columns, ids: IdRange) -> Iterator[pa.RecordBatch]:
        """
        Every row of the range exactly once, or DataLoss.

        If the selection has ``fail_on_data_loss`` false, messages that the log no longer has are left out.
        """
        if ids.last < ids.first:
            return
        if selection.fail_on_data_loss:
            yield from (batch for batch, _ in self.batches(selection, columns, ids) if batch.num_rows)
            return
        while ids.first <= ids.last:
            now = self.extent(selection)
            if now.generation != ids.generation or now.first > ids.last or now.last < ids.first:
                _say_gone(ids.first, ids.last)
                return
            _say_gone(ids.first, now.first - 1)
            _say_gone(now.last + 1, ids.last)
            ids = replace(ids, first=max(ids.first, now.first), last=min(ids.last, now.last))
            if ids.lost_since(now.taken_below):
                say(
                    f"Of offsets {ids.first} to {ids.last} a retention rule removed some from the log; they "
                    "are left out."
                )
                ids = replace(ids, taken_below=now.taken_below)
            stop = min(ids.last, ids.first + PIECE_IDS - 1)
            reached = ids.first
            try:
                for batch, following in self.batches(selection, columns, replace(ids, last=stop)):
                    reached = following
                    if batch.num_rows:
                        yield batch
            except DataLoss:
                later = self.extent(selection)
                if replace(later, last=min(later.last, now.last)) == now:
                    raise
                ids = replace(ids, first=reached)  # rows that were yielded cannot be taken back
                continue
            ids = replace(ids, first=stop + 1)


def _say_gone(first: int, last: int) -> None:
    if first <= last:
        say(f"Offsets {first} to {last} are no longer in the log; they are left out.")


def say(sentence: str) -> None:
    """Print a sentence on the worker's stderr."""
    print(f"rewind: {sentence}", file=sys.stderr, flush=True)
