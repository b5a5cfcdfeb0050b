"""Asking a log where it ends, a hundred times a second, without asking the broker each time.

Spark polls an idle stream every 10 ms. A new link each time would fill the broker's own log. So one reader stays
attached at the live end with a credit of one: as long as nothing comes through it, nothing has changed.

Invariant: what ``extent`` tells was true when the last link was attached, and no message that the patterns take
has come since, except those that have not reached us yet.
"""

from __future__ import annotations

from spark_bridge.errors import BridgeError, ConnectionFailed, Refused
from spark_bridge.history import History
from spark_bridge.links import Receiver
from spark_bridge.log_file import LogFile
from spark_bridge.log_link import IdRange, address, extent, live
from spark_bridge.options import Archived, Broker, Folder, Options
from spark_bridge.wire import Wire


class Doorbell:
    """The end of one log. For one thread."""

    def __init__(self, options: Options, place: int) -> None:
        self._options = options
        self._place = options.places[place]
        self._history: History | None = None
        self._where = address(options.patterns)
        self._wire: Wire | None = None
        self._link: Receiver | None = None
        self._file: LogFile | None = None
        self._identity: tuple[int, int] | None = None
        self._extent = IdRange(1, 0, None)

    def extent(self) -> IdRange:
        """The ids the log holds. Raises ConnectionFailed when the broker is away, also after one new try."""
        if isinstance(self._place, Archived):
            self._history = self._history or History(self._options)
            return self._history.extent()
        if not isinstance(self._place, Broker):
            return self._open(self._place).extent()
        try:
            if self._link is not None and not self._link.has_more():
                return self._extent
            if self._link is not None:
                self._link.detach()
            return self._attach(self._place)
        except (ConnectionFailed, Refused):
            self.close()
            return self._attach(self._place)

    def _open(self, folder: Folder) -> LogFile:
        """The file, opened anew when another one has taken its place: the old one would never change again."""
        found = folder.file.stat() if folder.file.exists() else None
        identity = found and (found.st_dev, found.st_ino)
        if self._file is not None and self._identity != identity:
            self._file.close()
            self._file = None
        self._identity = identity
        self._file = self._file or LogFile(folder)
        return self._file

    def _attach(self, broker: Broker) -> IdRange:
        try:
            if self._wire is None:
                self._wire = Wire(broker)
            self._link = None
            self._link = live(self._wire, self._where, credit=1)
            self._extent = extent(self._link, self._where)
        except BridgeError:
            self.close()
            raise
        return self._extent

    def close(self) -> None:
        """Let go of connection and file; the next question opens them anew."""
        if self._wire is not None:
            self._wire.close()
        if self._file is not None:
            self._file.close()
        self._wire = self._link = self._file = None
