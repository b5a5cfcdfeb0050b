"""
Erased messages: the rows of an archive that replace them, and the erasures that are in progress.

The store and the archive are in different places, and one of them has to be first. So an erasure first writes a small
file ``_erased/….begun``, then the store commits, then the archive's files are rewritten without the contents, and at
last the small file is deleted. If a gateway finds such a file when it starts, the last gateway ended during that
erasure. It carries the erasure out, again if the store or the archive has done its part already.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa

from amqp_ext.message.annotations import ERASED_REASON, ERASED_TIME, NO_BODY, erased
from amqp_ext.message.sections import bare_offset
from store.archive.errors import ArchiveError
from store.archive.storage import ArchiveStorage

FOLDER: Final = "_erased"
FORMAT: Final = 1

BEGUN: Final = ".begun"

KEPT: Final = frozenset({"offset", "enqueuedTime", "topic", "partition", "replayId"})
"""Columns that stay as they are."""

OF_HEADER: Final = frozenset({"durable", "priority", "ttl"})
"""System properties that stay, because they are of the header."""


class Erasure(NamedTuple):
    """When a message was erased, and why."""

    time_ms: int
    reason: str


class ErasedList(NamedTuple):
    """One erasure in progress, as its file in ``_erased/`` of the archive has it."""

    name: str
    """The file's name, without its ending."""
    generation: int
    """The log's."""
    erasure: Erasure
    ids: Sequence[int]
    """In rising order."""

    def encoded(self) -> bytes:
        """The file's content."""
        entry = {
            "format": FORMAT,
            "generation": self.generation,
            "time": self.erasure.time_ms,
            "reason": self.erasure.reason,
            "ids": self.ids,
        }
        return (json.dumps(entry, separators=(",", ":")) + "\n").encode()


class Erasures:
    """The erasures in progress at one place."""

    def __init__(self, storage: ArchiveStorage) -> None:
        self._storage = storage

    def begin(self, ids: Collection[int], erasure: Erasure, generation: int) -> ErasedList:
        """
        Record that these messages are about to be erased. Returns when the record is durable.

        Raises:
            ArchiveError: The record cannot be written.
        """
        begun = ErasedList(f"{erasure.time_ms:020}-{secrets.token_hex(8)}", generation, erasure, sorted(ids))
        self._storage.put(f"{FOLDER}/{begun.name}{BEGUN}", begun.encoded())
        return begun

    def end(self, name: str) -> None:
        """
        Delete the record: the messages are erased, or are not to be.

        Raises:
            ArchiveError: It cannot be deleted; the erasure is still begun.
        """
        self._storage.remove(f"{FOLDER}/{name}{BEGUN}")

    def begun(self, ending: str = BEGUN) -> list[ErasedList]:
        """
        Erasures that were begun and have not ended, oldest first.

        Raises:
            ArchiveError: It cannot be read.
        """
        found = []
        for name in self._storage.names(FOLDER):
            text = self._storage.read(f"{FOLDER}/{name}") if name.endswith(ending) else None
            if text is not None:
                place = f"{FOLDER}/{name} of the archive {self._storage.where}"
                found.append(_decoded(name.removesuffix(ending), text, place))
        return found


def blanked(batch: pa.RecordBatch, erased: Mapping[int, Erasure]) -> pa.RecordBatch:
    """A batch with all columns, in which the rows of erased messages are replaced."""
    places = [place for place, i in enumerate(batch.column("offset").to_pylist()) if i in erased]
    if not places:
        return batch
    rows = [_blank(batch.slice(place, 1).to_pylist()[0], erased) for place in places]
    whole = pa.RecordBatch.from_pylist(rows, schema=batch.schema)
    columns = [_with(column, places, whole.column(at)) for at, column in enumerate(batch.columns)]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _with(column: Any, places: Sequence[int], values: Any) -> Any:
    """A column with other values in some places (in rising order)."""
    pieces = []
    start = 0
    for at, place in enumerate(places):
        pieces += [column.slice(start, place - start), values.slice(at, 1)]
        start = place + 1
    return pa.concat_arrays([*pieces, column.slice(start)])


def _blank(row: dict[str, Any], of: Mapping[int, Erasure]) -> dict[str, Any]:
    """The row of an erased message, with the columns that the data source makes of its marker."""
    erasure = of[row["offset"]]
    envelope, at = row["envelope"], row["bodyAt"]
    content = envelope if at is None else envelope[:at] + row["body"] + envelope[at:]
    marker, front = erased(content, bare_offset(content), *erasure)
    told = [(name, value) for name, value in row["systemProperties"] or () if name in OF_HEADER]
    at_time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=erasure.time_ms)
    told += [(ERASED_TIME, at_time.isoformat(timespec="milliseconds")), (ERASED_REASON, erasure.reason)]
    return {name: value if name in KEPT else None for name, value in row.items()} | {
        "envelope": marker[:front],
        "bodyAt": front,
        "systemProperties": told,
        "body": NO_BODY,
        "bodyType": "value",
    }


def _decoded(name: str, text: bytes, place: str) -> ErasedList:
    try:
        entry = json.loads(text)
        if entry["format"] > FORMAT:
            raise ArchiveError(f"{place} was written by a later version: use that version.")
        erasure = Erasure(int(entry["time"]), str(entry["reason"]))
        return ErasedList(name, int(entry["generation"]), erasure, [int(i) for i in entry["ids"]])
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{place} is damaged: {error!r}.") from error
