"""
What an archive is: the list of its files, as a row of small numbered entries that are only ever added to.

``_manifest/00000000000000000007.json`` is one entry: files added, files taken out, the log's generation. An entry is
one atomic step, however many files it exchanges; its number belongs to one writer. Every ``SNAPSHOT``-th also lists
all files, so that a reader who comes new need not read from the first; compaction prunes what lies well before it.

Invariant: at any entry each id of the archive is in exactly one file, and files are in the order of their ids. A file
that no entry names is not part of the archive.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from store.archive.erasures import Erasures
from store.archive.errors import ArchiveError
from store.archive.storage import ArchiveStorage

FOLDER = "_manifest"  # Spark and pyarrow take names that begin with _ for no data
FORMAT = 2
"""Of an entry. Entries of format 1 have no checksums of footers, and are read, too."""
SNAPSHOT = 64  # entries: a new reader reads no more than this, and their list is short


@dataclass(frozen=True, slots=True)
class Segment:
    """One file: ids ``first`` to ``last``, both included, with every logged message of them. Times in ms."""

    file: str
    first: int
    last: int
    rows: int
    bytes: int
    first_ms: int
    last_ms: int
    footer: int | None = None
    """CRC-32 of the file's footer (``store.archive.segments.footer_checksum``); None as earlier versions wrote it."""


@dataclass(frozen=True, slots=True)
class State:
    """The archive as of one entry. Without segments nothing is in it yet, and it belongs to no log."""

    number: int = 0
    generation: int | None = None
    segments: tuple[Segment, ...] = ()

    @property
    def first(self) -> int:
        """The first id, 1 when there is none."""
        return self.segments[0].first if self.segments else 1

    @property
    def last(self) -> int:
        """The last id, 0 when there is none."""
        return self.segments[-1].last if self.segments else 0

    def at(self, message_id: int) -> Segment | None:
        """The file that has an id, or would, had it been logged."""
        place = bisect_right(self.segments, message_id, key=lambda segment: segment.first) - 1
        found = self.segments[place] if place >= 0 else None
        return found if found is not None and message_id <= found.last else None

    def first_from(self, message_id: int) -> int | None:
        """The first archived id that is not below this one."""
        if self.at(message_id) is not None:
            return message_id
        place = bisect_right(self.segments, message_id, key=lambda segment: segment.first)
        return self.segments[place].first if place < len(self.segments) else None

    def exchanged(self, added: Sequence[Segment], removed: Sequence[str], generation: int) -> State:
        """
        With some files taken out and others put in.

        Raises:
            ArchiveError: An id would be there twice, or the generation is another.
        """
        if self.generation not in {None, generation}:
            raise ArchiveError(
                f"The archive is of generation {self.generation} of the log, and this one is {generation}: the log "
                "was made anew since. Archive it to another place."
            )
        names = set(removed)
        if not names <= {segment.file for segment in self.segments}:
            raise ArchiveError("Files to be replaced are not in the archive any more.")
        kept = [segment for segment in self.segments if segment.file not in names]
        segments = sorted([*kept, *added], key=lambda segment: segment.first)
        for left, right in pairwise(segments):
            if right.first <= left.last:
                raise ArchiveError(
                    f"{right.file} would archive ids again that {left.file} has; is another archiver at work?"
                )
        return State(self.number + 1, generation, tuple(segments))


class Manifest:
    """The manifest at one place, and the newest state that was read of it."""

    def __init__(self, storage: ArchiveStorage) -> None:
        self._storage = storage
        self.erasures = Erasures(storage)
        """What was erased, as of ``refresh``."""
        self.state = State()

    def refresh(self) -> State:
        """Read what was added since."""
        # First: see there.
        self.erasures.refresh()
        number = newest = self.state.number
        if (
            number == 0 or self._storage.read(_name(number)) is None
        ):  # new here, or away until what we knew was pruned
            newest = self._begin()
        while (text := self._storage.read(_name(self.state.number + 1))) is not None:
            self._apply(text, _name(self.state.number + 1))
        if self.state.number < newest:
            # Without this, files that later entries name would be missing, and the archive look shorter than it is.
            raise ArchiveError(
                f"{_name(self.state.number + 1)} of the archive {self._storage.where} is missing, and later ones are "
                "there."
            )
        return self.state

    def is_missing(self) -> bool:
        """Whether no archiver has ever written here."""
        return not self._numbers()

    def exchange(self, added: Sequence[Segment], removed: Sequence[str], generation: int) -> State:
        """
        Add an entry; returns when it is durable. Others who add at the same time go before or after.

        Raises:
            ArchiveError: It does not fit what is there.
        """
        while True:
            state = self.refresh().exchanged(added, removed, generation)
            entry: dict[str, object] = {
                "format": FORMAT,
                "number": state.number,
                "generation": generation,
                "added": [asdict(segment) for segment in added],
                "removed": list(removed),
            }
            if state.number % SNAPSHOT == 0:
                entry["segments"] = [asdict(segment) for segment in state.segments]
            text = json.dumps(entry, separators=(",", ":")) + "\n"
            if self._storage.create(_name(state.number), text.encode()):
                self.state = state
                return state

    def prune(self) -> None:
        """Let entries go that two later ones replace by listing all files."""
        keep = (self.refresh().number // SNAPSHOT - 1) * SNAPSHOT
        for number in self._numbers():
            if number < keep:
                self._storage.remove(_name(number))

    def strays(self, is_mine: Callable[[int], bool]) -> list[str]:
        """Files that no entry names and whose first id ``is_mine`` takes: left by a run that was killed."""
        names = self._storage.names()
        named = {
            segment.file for segment in self.refresh().segments
        }  # after the listing: it may name them by now
        return [
            name for name in names if name not in named and name[:20].isdigit() and is_mine(int(name[:20]))
        ]

    def _begin(self) -> int:
        """Go to the newest entry that lists all files, if there is one; the number of the newest entry of all."""
        last = max(self._numbers(), default=0)
        newest = last // SNAPSHOT * SNAPSHOT
        self.state = State()
        if newest:
            self._apply(self._storage.read(_name(newest)) or b"", _name(newest))
        return last

    def _numbers(self) -> list[int]:
        return [int(name[:20]) for name in self._storage.names(FOLDER) if name[20:] == ".json"]

    def _apply(self, text: bytes, name: str) -> None:
        try:
            entry = json.loads(text)
            if entry["format"] > FORMAT:
                raise ArchiveError(f"{name} was written by a later version: use that.")
            added = [Segment(**segment) for segment in entry["added"]]
            if "segments" in entry:
                segments = tuple(Segment(**segment) for segment in entry["segments"])
                self.state = State(entry["number"], entry["generation"], segments)
            else:
                self.state = self.state.exchanged(added, entry["removed"], entry["generation"])
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveError(
                f"{name} of the archive {self._storage.where} is damaged: {error!r}."
            ) from error


def segment_name(first: int, number: int) -> str:
    """
    The file of ids from ``first`` on, made for entry ``number`` or one behind it: names sort as ids do, and none
    is used twice.
    """
    return f"{first:020}-{number:08}.parquet"


def _name(number: int) -> str:
    return f"{FOLDER}/{number:020}.json"
