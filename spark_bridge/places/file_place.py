"""A log straight from a gateway's file: the place of a data folder on this host, whether its gateway runs or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_bridge.places.addresses import Folder
from spark_bridge.places.log_file import LogFile
from spark_bridge.places.log_place import read_live
from spark_bridge.places.selection import WHOLE_LOG, Selection
from spark_bridge.places.stored_log import stored_batches, stored_messages
from store.archive.columns import Columns
from store.archive.id_range import IdRange


@dataclass(frozen=True, slots=True)
class FilePlace:
    """The replay log in a Message VPN's file."""

    folder: Folder

    @property
    def name(self) -> str:
        """The file."""
        return self.folder.url

    def extent(self, selection: Selection) -> IdRange:
        """See ``LogPlace.extent``."""
        with LogFile(self.folder) as file:
            return file.extent_for(selection.patterns)

    def plan(self, selection: Selection) -> IdRange:
        """See ``LogPlace.plan``."""
        with LogFile(self.folder) as file:
            return file.plan(selection)

    def read(self, selection: Selection, columns: Columns, ids: IdRange) -> Iterator[pa.RecordBatch]:
        """See ``LogPlace.read``."""
        return read_live(self, selection, columns, ids)

    def batches(
        self, selection: Selection, columns: Columns, ids: IdRange
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """See ``LiveLog.batches``."""
        with LogFile(self.folder) as file:
            yield from stored_batches(file, selection, columns, ids)

    def with_messages(self, ids: IdRange) -> Iterator[tuple[pa.RecordBatch, Sequence[bytes]]]:
        """See ``store.archive.source.ArchivableLog``: messages as the publisher sent them."""
        with LogFile(self.folder) as file:
            yield from stored_messages(file, ids)

    def may_be_behind(self) -> bool:
        """See ``LogPlace.may_be_behind``: it is the only one."""
        return False

    def watch(self, selection: Selection = WHOLE_LOG) -> FileWatch:
        """See ``LogPlace.watch``."""
        return FileWatch(self.folder)


class FileWatch:
    """Asking a file again and again, over one connection."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._file: LogFile | None = None
        self._identity: tuple[int, int] | None = None

    def extent(self) -> IdRange:
        """
        The ids the log holds.

        Raises:
            ConnectionFailed: There is no file that can be read.
        """
        return self._opened().extent()

    def _opened(self) -> LogFile:
        """The file, opened anew when another one has taken its place: the old one would never change again."""
        path = self._folder.file
        found = path.stat() if path.exists() else None
        identity = found and (found.st_dev, found.st_ino)
        if self._file is not None and self._identity != identity:
            self._file.close()
            self._file = None
        self._identity = identity
        self._file = self._file or LogFile(self._folder)
        return self._file

    def close(self) -> None:
        """Let go of the file; the next question opens it anew."""
        if self._file is not None:
            self._file.close()
        self._file = None
