"""
A log and its archive as one, or an archive alone: ids that the archive has are read from there, all others from the
log.

Nothing here is kept between calls, and partitions are only ranges of ids: whether an id is in the archive is found out
when it is read.

Invariant: each id of a range is yielded once, in order, even if the log is archived and trimmed and its archive is
compacted meanwhile. An id enters the archive before it leaves the log, so an id that the log has lost is looked for in
the archive again. An id that neither has raises DataLoss, or is left out if the selection says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from amqp_ext.replay_id import ReplayId
from amqp_ext.replay_start import ReplayStart, StartKind, parse_text
from spark_bridge.errors import OptionError
from spark_bridge.options import EVERY_TOPIC, WHOLE_LOG, Selection
from spark_bridge.places.log_place import LiveLog, LogPlace, planned, say, topic_filter
from store.archive.columns import Columns
from store.archive.errors import ArchiveError, DataLoss
from store.archive.segments import Chooser, batches
from store.archive.source import IdRange, LogWatch
from store.archive.storage import storage_at
from store.archive.table import ArchiveTable, Segment, State


@dataclass(frozen=True, slots=True)
class ArchivePlace(LogPlace):
    """The place of an archive, and of its log if that is to be read, too."""

    archive: str
    """A folder's name, or a URI."""
    log: LiveLog | None = None

    @property
    def name(self) -> str:
        """The log's name; where there is none, the archive's."""
        return self.archive if self.log is None else self.log.name

    def extent(self, selection: Selection) -> IdRange:
        """See ``LogPlace.extent``: from the first id of either to the last."""
        return ArchiveReader(self.archive, self.log, selection).extent()

    def plan(self, selection: Selection) -> IdRange:
        """See ``LogPlace.plan``."""
        return ArchiveReader(self.archive, self.log, selection).plan()

    def read(self, selection: Selection, columns: Columns, ids: IdRange) -> Iterator[pa.RecordBatch]:
        """See ``LogPlace.read``."""
        return ArchiveReader(self.archive, self.log, selection).read(columns, ids)

    def may_be_behind(self) -> bool:
        """See ``LogPlace.may_be_behind``."""
        return self.log is not None and self.log.may_be_behind()

    def watch(self, selection: Selection = WHOLE_LOG) -> LogWatch:
        """See ``LogPlace.watch``: the log is watched, if there is one."""
        if self.log is not None:
            return self.log.watch(selection)
        return ArchiveReader(self.archive, None, selection)  # asked again, it reads what was added


class ArchiveReader:
    """One read of an archive and its log."""

    def __init__(self, archive: str, log: LiveLog | None, selection: Selection) -> None:
        self._selection = selection
        self._log = log
        self._storage = storage_at(archive)
        self._table = ArchiveTable(self._storage)

    def extent(self) -> IdRange:
        """
        The ids of log and archive together, from the first of either to the last.

        Raises:
            DataLoss: The archive is of another log.
            ArchiveError: There is no archive, or it is damaged.
        """
        state = self._table.refresh()
        if self._log is None:
            if not state.segments:
                raise ArchiveError(f"There is no archive at {self._storage.where}, or nothing in it yet.")
            return IdRange(state.first, state.last, state.generation)
        return self._joined(self._log.extent(self._selection), state)

    def close(self) -> None:
        """Nothing is kept open (``LogWatch``)."""

    def _joined(self, live: IdRange, state: State) -> IdRange:
        if not state.segments:
            if live.first > 1 and self._selection.fail_on_data_loss and self._table.is_missing():
                raise ArchiveError(
                    f"There is no archive at {self._storage.where}, and the log itself begins at "
                    f"{live.first}."
                )
            return live
        if live.generation != state.generation:
            raise DataLoss(
                f"The archive {self._storage.where} is of generation {state.generation} of the log, but the "
                f"log has generation {live.generation}: it was recreated since. Give the archive of this log, "
                "or none."
            )
        return replace(live, first=min(state.first, live.first), last=max(state.last, live.last))

    def plan(self) -> IdRange:
        """The range of ids that a read of the selection means now."""
        whole = self.extent()
        state = self._table.state
        first = self._first(whole, state)
        return planned(self._selection, first, whole, lambda date: self._first_since(date, whole, state))

    def _first(self, whole: IdRange, state: State) -> int:
        selection = self._selection
        if selection.since is not None:
            return self._first_since(selection.since, whole, state)
        text = selection.start
        start = parse_text(text)
        found = self._archived_start(start, text, whole, state)
        if found is not None:
            return found
        if start.kind is StartKind.LAST:
            return self._newest(whole, state, 1)
        if start.kind is StartKind.NEWEST and isinstance(start.value, int):
            return self._newest(whole, state, start.value)
        if self._log is not None:
            return self._start_in(self._log)
        raise OptionError(f"Option replayStart={text!r} has to be resolved by a gateway; give a url, too.")

    def _archived_start(self, start: ReplayStart, text: str, whole: IdRange, state: State) -> int | None:
        """The id of a start, if the archive can tell; None if the log has to be asked."""
        match start.kind, start.value:
            case StartKind.BEGINNING, _:
                return whole.first
            case StartKind.LIVE, _:
                return whole.last + 1
            case StartKind.OFFSET, int() as number:
                return self._checked(number, text, whole, state)
            case StartKind.AFTER, ReplayId(generation=generation, number=number):
                if generation != whole.generation:
                    raise DataLoss(f"The log was recreated after it gave out {text}.")
                return self._checked(number + 1, text, whole, state)
            case StartKind.DATE | StartKind.AGO, int() as value:
                now = time.time_ns() // 1_000_000
                date = value if start.kind is StartKind.DATE else now - value
                if date > now:
                    raise OptionError(f"Option replayStart={text!r} is in the future.")
                if not state.segments:
                    return None
                if (
                    date < state.segments[0].first_ms
                    and state.first > 1
                    and self._selection.fail_on_data_loss
                ):
                    raise DataLoss(f"Neither the log nor its archive reaches back to {text}.")
                return self._first_since(date, whole, state)
        return None

    def _start_in(self, log: LiveLog, since: int | None = None) -> int:
        """The id at which the selection starts in the log alone; with ``since``, the first from that time (ms) on."""
        asked = replace(self._selection, stop=None, before=None)
        return log.plan(asked if since is None else replace(asked, since=since)).first

    def _newest(self, whole: IdRange, state: State, count: int) -> int:
        """
        The first of the last ``count`` ids on the topics that are read, the oldest id if there are fewer. They are
        looked for in the log, and then in the archive's files, the newest first.
        """
        asked = count
        oldest = below = whole.last + 1
        if self._log is not None:
            live = self._log.extent(self._selection)
            found = self._start_in(self._log)
            if found <= live.last:
                oldest = found
                if count > 1:
                    ids = replace(live, first=found)
                    read = self._log.read(self._selection, (("offset", "offset"),), ids)
                    count -= sum(batch.num_rows for batch in read)
                else:
                    count = 0
            below = live.first
        for segment in reversed(state.segments):
            if count <= 0:
                return oldest
            if segment.first >= below:
                continue
            try:
                batches = self._from_segment(
                    segment, (("offset", "offset"),), segment.first, min(segment.last, below - 1)
                )
                offsets = [offset for batch, _ in batches for offset in batch.column(0).to_pylist()]
            except FileNotFoundError:
                return self._newest(whole, self._renewed(state, segment), asked)
            if offsets:
                oldest = int(offsets[-min(count, len(offsets))])
                count -= len(offsets)
        return oldest

    def _checked(self, first: int, text: str, whole: IdRange, state: State) -> int | None:
        if state.at(first) is not None:
            return first
        if self._log is not None and first > state.last:
            return None
        if whole.first <= first <= whole.last + 1:
            return first
        if self._selection.fail_on_data_loss:
            raise DataLoss(f"Log and archive have {whole.first} to {whole.last}; {text} is not in them.")
        return min(max(first, whole.first), whole.last + 1)

    def _first_since(self, date: int, whole: IdRange, state: State) -> int:
        """The first id from a time (ms) on, one past the last if there is none."""
        columns = (("offset", "offset"), ("enqueuedTime", "enqueuedTime"))
        for segment in state.segments:
            if segment.last_ms < date:
                continue
            try:
                for batch, _ in self._from_segment(
                    segment, columns, segment.first, segment.last, is_whole=True
                ):
                    times = batch.column("enqueuedTime").cast("int64").to_pylist()
                    if times[-1] >= date * 1000:
                        place = next(at for at, us in enumerate(times) if us >= date * 1000)
                        return int(batch.column("offset")[place].as_py())
            except FileNotFoundError:
                return self._first_since(date, whole, self._renewed(state, segment))
        if self._log is None:
            return whole.last + 1
        found = self._start_in(self._log, since=date)
        return max(found, state.last + 1)

    def read(self, columns: Columns, ids: IdRange) -> Iterator[pa.RecordBatch]:
        """The rows of one range as Arrow batches, the same each time."""
        position, known = ids.first, ids.taken_below
        tried: tuple[int, int, tuple[int, ...]] | None = None
        """Where the log's part could not be read the last time, and what the log lacked then."""
        while position <= ids.last:
            state = self._table.refresh()
            self._check(state, ids)
            segment = state.at(position)
            if segment is not None:
                try:
                    for batch, behind in self._from_segment(segment, columns, position, ids.last):
                        if batch.num_rows:
                            yield batch
                        position = behind
                    position = segment.last + 1
                except FileNotFoundError:
                    self._renewed(state, segment)  # compacted meanwhile: its rows are in another file
                continue
            stop = min(ids.last, (state.first_from(position) or ids.last + 1) - 1)
            try:
                if self._log is None:
                    raise DataLoss(f"The archive lacks offsets {position} to {stop}.")
                rest = IdRange(position, stop, ids.generation, known)
                for batch, behind in self._log.batches(self._selection, columns, rest):
                    if batch.num_rows:
                        yield batch
                    position = behind
                position = stop + 1
            except DataLoss:
                state = self._table.refresh()
                if state.at(position) is not None:
                    continue  # archived and trimmed meanwhile
                if self._selection.fail_on_data_loss:
                    raise
                live = None if self._log is None else self._log.extent(self._selection)
                if live is not None:
                    known = live.taken_below
                    if replace(ids, first=position, last=stop).lost_since(known):
                        say(
                            f"Of offsets {position} to {stop} a retention rule removed some from the log that "
                            "are not archived; they are left out."
                        )
                    if tried == (position, live.first, known):
                        raise  # as in ``LiveLog.read``: a retry would give the same
                    tried = (position, live.first, known)
                position = self._behind_loss(position, stop, state, ids, live)

    def _behind_loss(self, position: int, stop: int, state: State, ids: IdRange, live: IdRange | None) -> int:
        """The next id that the archive or the ``live`` log has."""
        found = state.first_from(position) or stop + 1
        if live is not None and live.generation == ids.generation:
            if live.first > position:
                found = min(found, live.first)
            elif live.last >= stop:
                return position  # nothing is lost here: the ids are there, and are read again
        found = min(found, ids.last + 1)
        say(f"Offsets {position} to {found - 1} are no longer in the log, nor archived; they are left out.")
        return found

    def _from_segment(
        self, segment: Segment, columns: Columns, first: int, last: int, *, is_whole: bool = False
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """
        The rows of one file, each batch with the id at which to go on after it; with ``is_whole``, on every topic.

        Raises:
            ArchiveError: The file is damaged.
            FileNotFoundError: The file no longer exists.
        """
        patterns = self._selection.patterns
        topics = None if is_whole or patterns == EVERY_TOPIC else topic_filter(patterns)
        chooser = Chooser(columns, topics, self._selection.partition)
        try:
            for batch in batches(
                self._storage,
                segment,
                chooser.needed,
                first,
                min(last, segment.last),
            ):
                yield chooser.chosen(batch), batch.column("offset")[-1].as_py() + 1
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise ArchiveError(f"{segment.file} of the archive {self._storage.where}: {error}") from error

    def _renewed(self, state: State, segment: Segment) -> State:
        """The table as it is now, which must no longer name the missing file."""
        renewed = self._table.refresh()
        if renewed.version == state.version or segment in renewed.segments:
            raise ArchiveError(f"{segment.file} of the archive {self._storage.where} is missing.")
        return renewed

    def _check(self, state: State, ids: IdRange) -> None:
        if state.segments and state.generation != ids.generation:
            raise DataLoss(
                f"The archive {self._storage.where} is of generation {state.generation} of the log; offsets "
                f"{ids.first} to {ids.last} were planned in generation {ids.generation}."
            )
