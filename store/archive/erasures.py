"""
Messages whose content is no more: the rows of an archive that stand in their place, and what is begun of it.

The log's store is another place than the archive, and one of the two has to be first. So an erasure is a small file
``_erased/….begun`` before the store's commit; after it the archive's files are written anew without the contents, and
that file goes last. One that is found by a gateway that starts tells what the last one was at when it ended: it carries
that out, once more where the store or the archive had it already.
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
"""System properties that stay: they are the header's."""


class Erasure(NamedTuple):
    """When a message was erased, and why."""

    time_ms: int
    reason: str


class ErasedList(NamedTuple):
    """One erasure, as a file has it, in ``_erased/`` of the archive."""

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
    """What is begun at one place, and has not ended."""

    def __init__(self, storage: ArchiveStorage) -> None:
        self._storage = storage

    def begin(self, ids: Collection[int], erasure: Erasure, generation: int) -> ErasedList:
        """
        These are about to be erased; returns when it is durable that they are.

        Raises:
            ArchiveError: It cannot be written.
        """
        begun = ErasedList(f"{erasure.time_ms:020}-{secrets.token_hex(8)}", generation, erasure, sorted(ids))
        self._storage.put(f"{FOLDER}/{begun.name}{BEGUN}", begun.encoded())
        return begun

    def end(self, name: str) -> None:
        """
        They are erased, or are not to be.

        Raises:
            ArchiveError: It cannot be written; it is begun still.
        """
        self._storage.remove(f"{FOLDER}/{name}{BEGUN}")

    def begun(self, ending: str = BEGUN) -> list[ErasedList]:
        """
        What was begun, and did not end; the oldest first.

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
    """Rows with all columns; in the place of what is erased is what it is now."""
    places = [place for place, i in enumerate(batch.column("offset").to_pylist()) if i in erased]
    if not places:
        return batch
    rows = [_blank(batch.slice(place, 1).to_pylist()[0], erased) for place in places]
    whole = pa.RecordBatch.from_pylist(rows, schema=batch.schema)
    columns = [_with(column, places, whole.column(at)) for at, column in enumerate(batch.columns)]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _with(column: Any, places: Sequence[int], values: Any) -> Any:
    """A column with other values in some places (rising)."""
    pieces = []
    start = 0
    for at, place in enumerate(places):
        pieces += [column.slice(start, place - start), values.slice(at, 1)]
        start = place + 1
    return pa.concat_arrays([*pieces, column.slice(start)])


def _blank(row: dict[str, Any], of: Mapping[int, Erasure]) -> dict[str, Any]:
    """What a row is once its message is erased: as the data source has the marker."""
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
            raise ArchiveError(f"{place} was written by a later version: use that.")
        erasure = Erasure(int(entry["time"]), str(entry["reason"]))
        return ErasedList(name, int(entry["generation"]), erasure, [int(i) for i in entry["ids"]])
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{place} is damaged: {error!r}.") from error
