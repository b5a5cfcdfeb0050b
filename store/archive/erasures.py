"""
Messages of an archive whose content was erased: a list beside the manifest, which every reader goes by at once, until
compaction has written the files anew, without the contents.

``_erased/`` holds small files that are written once, each with the ids of one erasure, when that was, and why. Names
are nobody else's, so that whoever may write to the archive can add one beside an archiver, on a store, too. A list is
removed once every file that has one of its ids was written by a compaction that knew it. Readers look at the lists
before they look at the manifest: a list that is gone by then was obeyed by the files that the manifest names.

The log's store is another place, and one of the two has to be first. So a list is ``….begun`` before the store's
commit, and nobody goes by it; it is a list, ``….json``, after that. One that is found ``….begun`` by a gateway that
starts tells what the last one was at when it ended: it carries that out, once more where the store had it already.
"""

from __future__ import annotations

import json
import secrets
from bisect import bisect_left
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa

from amqp_ext.message.annotations import ERASED_REASON, ERASED_TIME, NO_BODY, erased
from amqp_ext.message.sections import bare_offset
from store.archive.errors import ArchiveError
from store.archive.storage import ArchiveStorage

FOLDER: Final = "_erased"
FORMAT: Final = 1

LIST: Final = ".json"
BEGUN: Final = ".begun"

KEPT: Final = frozenset({"offset", "enqueuedTime", "topic", "partition", "replayId"})
"""Columns that stay as they are."""

OF_HEADER: Final = frozenset({"durable", "priority", "ttl"})
"""System properties that stay: they are the header's."""


class Erasure(NamedTuple):
    """When a message was erased, and why."""

    time_ms: int
    reason: str


class ErasedList(NamedTuple):
    """One erasure, as a file has it."""

    name: str
    """Of the file, without its ending."""
    generation: int
    """Of the log."""
    erasure: Erasure
    ids: Sequence[int]
    """Rising."""

    def encoded(self) -> bytes:
        """The file."""
        entry = {
            "format": FORMAT,
            "generation": self.generation,
            "time": self.erasure.time_ms,
            "reason": self.erasure.reason,
            "ids": self.ids,
        }
        return (json.dumps(entry, separators=(",", ":")) + "\n").encode()


class Erasures:
    """The lists at one place, as they were read last."""

    def __init__(self, storage: ArchiveStorage) -> None:
        self._storage = storage
        self._lists: dict[str, tuple[int, dict[int, Erasure]]] = {}
        """By name: the log's generation, and what was erased."""
        self.found: dict[int, Erasure] = {}
        """When and why a message was erased, by its id; changed here alone."""
        self._ids: list[int] = []

    def refresh(self) -> None:
        """
        Read what was added since; what was read stays known.

        Raises:
            ArchiveError: A list cannot be read: what is erased is not known.
        """
        names = [name.removesuffix(LIST) for name in self._storage.names(FOLDER) if name.endswith(LIST)]
        new = [name for name in names if name not in self._lists]
        for name in new:
            found = self._read(name, LIST)
            if found is not None:
                self._lists[name] = found.generation, dict.fromkeys(found.ids, found.erasure)
        if new:
            self._sum_up()

    def begin(self, ids: Collection[int], erasure: Erasure, generation: int) -> ErasedList:
        """
        These are about to be erased; returns when it is durable that they are. Readers do not go by it yet.

        Raises:
            ArchiveError: It cannot be written.
        """
        name = f"{erasure.time_ms:020}-{secrets.token_hex(8)}"
        begun = ErasedList(name, generation, erasure, sorted(ids))
        self._publish(begun, BEGUN)
        return begun

    def finish(self, begun: ErasedList) -> None:
        """
        They are erased, whether they are archived already or not; returns when that is durable.

        Raises:
            ArchiveError: It cannot be written; it is begun still.
        """
        self._publish(begun, LIST)
        self._lists[begun.name] = begun.generation, dict.fromkeys(begun.ids, begun.erasure)
        self._sum_up()
        self._storage.remove(f"{FOLDER}/{begun.name}{BEGUN}")

    def abandon(self, begun: ErasedList) -> None:
        """
        They are not erased after all.

        Raises:
            ArchiveError: It cannot be written; it is begun still.
        """
        self._storage.remove(f"{FOLDER}/{begun.name}{BEGUN}")

    def begun(self) -> list[ErasedList]:
        """
        What was begun, and neither finished nor abandoned; the oldest first.

        Raises:
            ArchiveError: It cannot be read.
        """
        names = [name.removesuffix(BEGUN) for name in self._storage.names(FOLDER) if name.endswith(BEGUN)]
        return [found for name in names if (found := self._read(name, BEGUN)) is not None]

    def lists(self) -> dict[str, tuple[int, Collection[int]]]:
        """(Generation, ids) of each, by name."""
        return {name: (generation, found.keys()) for name, (generation, found) in self._lists.items()}

    def remove(self, name: str) -> None:
        """Every file that has one of a list's ids is without the contents; they stay known here."""
        self._storage.remove(f"{FOLDER}/{name}{LIST}")

    def between(self, first: int, last: int) -> Sequence[int]:
        """The ids that are erased, from ``first`` to ``last``."""
        ids = self._ids
        start = bisect_left(ids, first)
        return ids[start : bisect_left(ids, last + 1, start)]

    def blanked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with rising offsets, one of the columns; in the place of what is erased is what it is now."""
        if not self._ids or not batch.num_rows:
            return batch
        offsets = batch.column("offset")
        if not self.between(offsets[0].as_py(), offsets[-1].as_py()):
            return batch
        erased_at = {
            place: erasure
            for place, i in enumerate(offsets.to_pylist())
            if (erasure := self.found.get(i)) is not None
        }
        if not erased_at:
            return batch
        rows = [_blank(batch.slice(place, 1).to_pylist()[0], erasure) for place, erasure in erased_at.items()]
        whole = pa.RecordBatch.from_pylist(rows, schema=batch.schema)
        columns = [
            _with(column, list(erased_at), whole.column(at))
            for at, column in enumerate(batch.columns)
        ]  # fmt: skip
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def _publish(self, what: ErasedList, ending: str) -> None:
        text = what.encoded()
        self._storage.publish(f"{FOLDER}/{what.name}{ending}", lambda file: file.write(text))

    def _read(self, name: str, ending: str) -> ErasedList | None:
        """What a file says, if it is there."""
        text = self._storage.read(f"{FOLDER}/{name}{ending}")
        if text is None:
            return None
        return _decoded(name, text, f"{FOLDER}/{name}{ending} of the archive {self._storage.where}")

    def _sum_up(self) -> None:
        every: dict[int, Erasure] = {}
        for name in sorted(self._lists):
            every |= self._lists[name][1]
        self._ids = sorted(every)
        self.found = every


def _with(column: Any, places: Sequence[int], values: Any) -> Any:
    """A column with other values in some places (rising)."""
    pieces = []
    start = 0
    for at, place in enumerate(places):
        pieces += [column.slice(start, place - start), values.slice(at, 1)]
        start = place + 1
    return pa.concat_arrays([*pieces, column.slice(start)])


def _blank(row: dict[str, Any], erasure: Erasure) -> dict[str, Any]:
    """What a row is once its message is erased: as the data source has the marker."""
    found = {name: value if name in KEPT else None for name, value in row.items()}
    if "envelope" in row:
        envelope, at, body = row["envelope"], row["bodyAt"], row["body"]
        content = envelope if at is None else envelope[:at] + body + envelope[at:]
        marker, front = erased(content, bare_offset(content), *erasure)
        found |= {"envelope": marker[:front], "bodyAt": front}
    if "systemProperties" in row:
        told = [(name, value) for name, value in row["systemProperties"] or () if name in OF_HEADER]
        at_time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=erasure.time_ms)
        told += [
            (ERASED_TIME, at_time.isoformat(timespec="milliseconds")),
            (ERASED_REASON, erasure.reason),
        ]
        found["systemProperties"] = told
    return found | {name: value for name, value in (("body", NO_BODY), ("bodyType", "value")) if name in row}


def _decoded(name: str, text: bytes, place: str) -> ErasedList:
    try:
        entry = json.loads(text)
        if entry["format"] > FORMAT:
            raise ArchiveError(f"{place} was written by a later version: use that.")
        erasure = Erasure(int(entry["time"]), str(entry["reason"]))
        return ErasedList(name, int(entry["generation"]), erasure, [int(i) for i in entry["ids"]])
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{place} is damaged: {error!r}.") from error
