"""
The Delta table of an archive: its state, and its commits. ``store.archive.segments`` reads and writes its files.

A commit to the table's log is one atomic step, however many files it adds and removes, and its number belongs to one
writer, in a folder and in a bucket. Two of the format's transaction identifiers decide between writers that began from
the same state. Every commit that archives carries ``rewind:GENERATION`` with the last id; every commit that replaces
files carries ``rewind-rewrite:GENERATION`` with a number. Of two commits with the same identifier the later is refused,
and its writer looks again. An erasure carries both, so that no archiver commits what it read of the log before. It also
carries ``rewind-erase:GENERATION``, by which an archiver that has looked at the table meanwhile sees that there was an
erasure.

Two properties of the table are the gateway's: ``rewind.generation`` is the log's generation; ``rewind.missing`` has the
ranges of ids that the log had lost before they were archived. Every other id up to the last one is archived, or was
never logged.

Source: Delta transaction log protocol, "Transaction Identifiers".
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from amqp_ext.replay_start import date_text
from store.archive.errors import ArchiveError, DataLoss
from store.archive.storage import ArchiveStorage

GENERATION: Final = "rewind.generation"
MISSING: Final = "rewind.missing"
OLD_FORM: Final = "_manifest"
"""A folder that only an archive of the old form has, which is no Delta table yet."""
_SETTINGS: Final = {"delta.dataSkippingStatsColumns": "offset,enqueuedTime"}
_OF_FILES: Final = [
    "path",
    "size_bytes",
    "num_records",
    "min.offset",
    "max.offset",
    "min.enqueuedTime",
    "max.enqueuedTime",
]
UNSYNCED: Final = 200
"""Commits that killed writers may have left without a sync: more than writers leave in practice."""

_TRIES: Final = 20  # of a commit, each after commits of others that do not conflict with it


class CommitConflict(ArchiveError):
    """Another writer was first: the commit was based on a state that is no longer the newest."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One file: ids ``first`` to ``last``, both included, with every logged message of them. Times in ms."""

    file: str
    first: int
    last: int
    low: int
    """The id of its first message."""
    high: int
    """The id of its last message."""
    rows: int
    bytes: int
    first_ms: int
    last_ms: int

    @property
    def footer(self) -> int | None:
        """
        CRC-32 of the file's footer, from the file's name: the footer says where everything else is, and has no checksum
        of its own. None for a file of another program, which has optimized the table, for instance.
        """
        parts = self.file.removesuffix(".parquet").split("-")
        try:
            return int(parts[1], 16) if len(parts) == 3 and len(parts[0]) == 20 else None
        except ValueError:
            return None


def segment_name(first: int, footer: int, token: str) -> str:
    """The name of a file. Names sort in the order of ids, and no name is used twice."""
    return f"{first:020}-{footer:08x}-{token}.parquet"


@dataclass(frozen=True, slots=True)
class State:
    """The archive as of one commit. Without segments it is empty."""

    version: int = -1
    generation: int | None = None
    segments: tuple[Segment, ...] = ()
    missing: tuple[tuple[int, int], ...] = ()
    """Ranges of ids, both ends included, in rising order."""
    erasures: int = 0
    """How many erasures there were."""

    @property
    def first(self) -> int:
        """The first id; 1 if there is none."""
        return self.segments[0].first if self.segments else 1

    @property
    def last(self) -> int:
        """The last id; 0 if there is none."""
        return self.segments[-1].last if self.segments else 0

    def at(self, message_id: int) -> Segment | None:
        """The file that contains an id, or would contain it if it had been logged."""
        place = bisect_right(self.segments, message_id, key=lambda segment: segment.first) - 1
        found = self.segments[place] if place >= 0 else None
        return found if found is not None and message_id <= found.last else None

    def first_from(self, message_id: int) -> int | None:
        """The first archived id that is not below this one."""
        if self.at(message_id) is not None:
            return message_id
        place = bisect_right(self.segments, message_id, key=lambda segment: segment.first)
        return self.segments[place].first if place < len(self.segments) else None


class ArchiveTable:
    """
    The table at one place, and the newest state that was read of it. For one thread.

    Args:
        is_converting: Do not refuse an archive of the old form.
    """

    def __init__(self, storage: ArchiveStorage, *, is_converting: bool = False) -> None:
        self._storage = storage
        self._is_converting = is_converting
        self._table: DeltaTable | None = None
        self._synced = -1
        self.state = State()

    def refresh(self) -> State:
        """
        Read what was committed since the last time.

        Raises:
            ArchiveError: The table cannot be read, or the archive is of the old form.
        """
        with self._told():
            if self._table is None:
                if not self._is_converting and self._storage.names(OLD_FORM):
                    raise ArchiveError(
                        f"The archive {self._storage.where} has the form of an earlier version: run `rewind archive "
                        f"convert --to {self._storage.where}` once."
                    )
                with suppress(TableNotFoundError):
                    self._table = DeltaTable(self._storage.uri, storage_options=self._storage.options)
            else:
                self._table.update_incremental()
            if self._table is not None and self._table.version() != self.state.version:
                self.state = _state_of(self._table, self._storage.where)
        return self.state

    def is_missing(self) -> bool:
        """Whether no archiver has ever written here."""
        return self._table is None

    def create(self, generation: int, schema: Any) -> State:
        """
        Create the table of a log, unless there is one.

        Raises:
            DataLoss: The archive is of another generation of the log.
            ArchiveError: The table cannot be written.
        """
        if self.refresh().generation is None:
            with self._told(), suppress(CommitFailedError):  # another archiver may have made it meanwhile
                DeltaTable.create(
                    self._storage.uri,
                    Schema.from_arrow(schema),
                    mode="ignore",
                    configuration={**_SETTINGS, GENERATION: str(generation)},
                    storage_options=self._storage.options,
                    raise_if_key_not_exists=False,
                )
            self.refresh()
        if self.state.generation != generation:
            raise DataLoss(
                f"The archive is of generation {self.state.generation} of the log, and this one is {generation}: the "
                "log was recreated since. Archive it to another place."
            )
        return self.state

    def fill(self, segments: Sequence[Segment]) -> State:
        """
        Add the first files to a new table. Raises as ``append``.

        Raises:
            CommitConflict: The table has files already.
        """
        generation = self.state.generation
        assert generation is not None
        position = 1
        for segment in segments:
            if segment.first > position:
                self._note_missing(position, segment.first - 1)
            position = segment.last + 1
        return self._commit(
            [_added(segment, is_new=True) for segment in segments],
            {_archived(generation): segments[-1].last},
            {},
        )

    def append(self, segment: Segment, erasures: int) -> State:
        """
        Add a file with ids after the last one. Returns when that is durable.

        Args:
            erasures: How many there had been when the log was read.

        Raises:
            CommitConflict: Another archiver added these ids, or a message was erased meanwhile: read the log again.
            ArchiveError: It cannot be written.
        """
        if segment.first > self.state.last + 1:
            self._note_missing(self.state.last + 1, segment.first - 1)
        state = self.state
        assert state.generation is not None
        if state.erasures != erasures or segment.first <= state.last:
            raise CommitConflict(f"Another writer changed the archive {self._storage.where}.")
        told = {"rewind.first": str(segment.first), "rewind.last": str(segment.last)}
        return self._commit([_added(segment, is_new=True)], {_archived(state.generation): segment.last}, told)

    def exchange(self, added: Sequence[Segment], removed: Sequence[Segment], *, is_erasing: bool) -> State:
        """
        Replace files. Returns when that is durable.

        Args:
            is_erasing: Archivers must not commit what they read of the log before this.

        Raises:
            CommitConflict: Another writer replaced files meanwhile.
            ArchiveError: It cannot be written.
        """
        state = self.state
        assert self._table is not None and state.generation is not None
        rewrite = f"rewind-rewrite:{state.generation}"
        numbers = {rewrite: (self._table.transaction_version(rewrite) or 0) + 1}
        if is_erasing:
            numbers |= {
                _archived(state.generation): state.last,
                _erased(state.generation): state.erasures + 1,
            }
        if not {old.file for old in removed} <= {one.file for one in state.segments}:
            raise CommitConflict(f"Another writer replaced files of the archive {self._storage.where}.")
        actions: list[AddAction | RemoveAction] = [_added(segment, is_new=is_erasing) for segment in added]
        now_ms = time.time_ns() // 1_000_000
        actions += [
            RemoveAction(
                path=old.file,
                data_change=is_erasing,
                deletion_timestamp=now_ms,
                size=old.bytes,
                partition_values={},
            )
            for old in removed
        ]
        return self._commit(actions, numbers, {"rewind.rewrite": "erase" if is_erasing else "compact"})

    def vacuum(self, hours: int) -> list[str]:
        """Remove files that no commit of the last hours names. Returns the names of the removed files."""
        with self._told():
            if self._table is None:
                return []
            self._table.update_incremental()
            gone: list[str] = self._table.vacuum(
                retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True
            )
            return gone

    def sync(self) -> None:
        """Return when every commit that was read here survives a power cut."""
        version = self.state.version
        self._storage.sync_commits(max(self._synced + 1, version - UNSYNCED, 0), version)
        self._synced = version

    def _note_missing(self, first: int, last: int) -> None:
        """Note that ids were lost before they were archived."""
        assert self._table is not None
        ranges = " ".join(f"{begin}-{end}" for begin, end in [*self.state.missing, (first, last)])
        with self._told():
            self._table.alter.set_table_properties({MISSING: ranges}, raise_if_not_exists=False)
        self.refresh()

    def _commit(
        self,
        actions: Sequence[AddAction | RemoveAction],
        numbers: Mapping[str, int],
        told: Mapping[str, str],
    ) -> State:
        assert self._table is not None
        properties = CommitProperties(
            custom_metadata=dict(told),
            max_commit_retries=_TRIES,
            app_transactions=[Transaction(name, number) for name, number in numbers.items()],
        )
        try:
            with self._told():
                self._table.create_write_transaction(
                    list(actions), "append", self._table.schema(), commit_properties=properties
                )
            state = self.refresh()
        except CommitConflict:
            # An object store may have lost the answer to this very commit, and refused its repetition. No other writer
            # names these files.
            added = {action.path for action in actions if isinstance(action, AddAction)}
            state = self.refresh()
            if not added or not added <= {segment.file for segment in state.segments}:
                raise
        self.sync()
        return state

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except CommitFailedError as error:
            raise CommitConflict(f"Another writer changed the archive {self._storage.where}.") from error
        except (DeltaError, OSError, ValueError) as error:
            self._table = None  # an update may have been left incomplete
            self.state = State()
            raise ArchiveError(f"The archive {self._storage.where} cannot be used: {error}") from error


def _archived(generation: int) -> str:
    """The transaction identifier of commits that archive a log."""
    return f"rewind:{generation}"


def _erased(generation: int) -> str:
    """The transaction identifier of erasures."""
    return f"rewind-erase:{generation}"


def _added(segment: Segment, *, is_new: bool) -> AddAction:
    stats = {
        "numRecords": segment.rows,
        "minValues": {"offset": segment.low, "enqueuedTime": date_text(segment.first_ms)},
        "maxValues": {"offset": segment.high, "enqueuedTime": date_text(segment.last_ms)},
        "nullCount": {"offset": 0, "enqueuedTime": 0},
    }
    now_ms = time.time_ns() // 1_000_000
    return AddAction(segment.file, segment.bytes, {}, now_ms, is_new, json.dumps(stats))


def _state_of(table: DeltaTable, where: str) -> State:
    configuration = table.metadata().configuration
    try:
        generation = int(configuration[GENERATION])
        ranges = (part.split("-") for part in configuration.get(MISSING, "").split())
        missing = tuple((int(first), int(last)) for first, last in ranges)
    except (KeyError, ValueError) as error:
        raise ArchiveError(
            f"The Delta table {where} is not an archive of a replay log: its property {error} is missing or wrong."
        ) from error
    files = pa.table(table.get_add_actions(flatten=True)).select(_OF_FILES).sort_by("min.offset")
    if any(column.null_count for column in files.columns):
        raise ArchiveError(f"A file of the archive {where} is without statistics of ids and times.")
    last = table.transaction_version(_archived(generation)) or 0
    erasures = table.transaction_version(_erased(generation)) or 0
    return State(
        table.version(), generation, tuple(_segments(files, missing, last, where)), missing, erasures
    )


def _segments(files: Any, missing: Sequence[tuple[int, int]], last: int, where: str) -> Iterator[Segment]:
    """
    Each file with its range of ids: from the end of the file before it to its own last message. The last file before a
    missing range also covers the ids up to that range.
    """
    position = 1
    columns = [_in_ms(column).to_pylist() for column in files.columns]
    # For each file the first id of the next file.
    for (path, size, rows, low, high, first_ms, last_ms), behind in zip(
        zip(*columns, strict=True), [*columns[_OF_FILES.index("min.offset")][1:], last + 1], strict=False
    ):
        if low < position or high > last:
            raise ArchiveError(f"{path} of the archive {where} has ids that it should not have.")
        position = max([position, *(end + 1 for start, end in missing if position <= end < low)])
        gaps = [start - 1 for start, _ in missing if high < start <= behind]
        end = min([*gaps, last]) if gaps or behind > last else high
        yield Segment(path, position, end, low, high, rows, size, first_ms, last_ms)
        position = end + 1


def _in_ms(column: Any) -> Any:
    """Times as numbers in ms, and all other columns unchanged."""
    is_time = pa.types.is_timestamp(column.type)
    return column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()) if is_time else column
