"""
Log lines: how structlog makes them, how much of a peer's text they show, how many a peer may cause, what writes them.

``configure`` is called once, by ``gateway.app``, before anything logs: loggers keep the configuration of their first
use. Lines of libraries that use the standard library's logging come out in the same form. A thread of its own writes
the lines, so that a full pipe or a slow terminal does not block the code that logs. While too many lines wait, new ones
are dropped and counted. Lines that one peer causes too often are held back and counted, too.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final, TextIO, cast

import structlog
from structlog.typing import Processor

from gateway.config import Logging
from gateway.logging import log_keys


def configure(settings: Logging, stream: TextIO | None = None) -> None:
    """Write log lines of ``settings.level`` and above to ``stream`` (stderr if None); times are ISO 8601 in UTC."""
    writer = LineWriter(sys.stderr.fileno()) if stream is None else None
    stream = cast(TextIO, writer or stream)
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    for_people = settings.format == "console" or (settings.format == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[Processor]

    if for_people:
        rendering = [
            structlog.processors.format_exc_info,
            shown_values,
            structlog.dev.ConsoleRenderer(colors=stream.isatty()),
        ]
    else:
        # Without local variables: passwords and messages are among them.
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        rendering = [
            structlog.processors.ExceptionRenderer(tracebacks),
            shown_values,
            structlog.processors.JSONRenderer(),
        ]
    if writer is not None:
        lines: Any = structlog.wrap_logger(structlog.ReturnLogger(), [*shared, *rendering])

        def told(count: int) -> str:
            return f"{lines.warning('log_lines_dropped', **{log_keys.LINES: count})}\n"

        writer.start(told)
        atexit.register(writer.close)
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    _adopt_standard_logging(stream, level, shared, rendering)


def _adopt_standard_logging(
    stream: TextIO, level: int, shared: list[Processor], rendering: list[Processor]
) -> None:
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)
    # Python itself would write these to stderr, and wait for that.
    sys.unraisablehook = _log_unraisable
    threading.excepthook = _log_of_thread


def _log_unraisable(found: Any) -> None:
    logging.getLogger("python").error(
        "%s %s",
        found.err_msg or "exception ignored in",
        type(found.object).__name__,
        exc_info=(found.exc_type, found.exc_value, found.exc_traceback),
    )


def _log_of_thread(found: Any) -> None:
    name = found.thread.name if found.thread is not None else ""
    logging.getLogger("python").error(
        "exception in thread %s", name, exc_info=(found.exc_type, found.exc_value, found.exc_traceback)
    )


MOST_CHARACTERS: Final = 200
"""Longest text in a line. Names are shorter, as a rule; a peer may use one of 64 kB, which every line would show."""

MOST_SENTENCE: Final = 1_000
"""Longest sentence of ours, which may quote a peer's text, and longest text of an error."""

MOST_TRACEBACK: Final = 20_000
"""Longest traceback that is one text."""

_SENTENCES: Final = frozenset({"event", "reason", "exc_value"})
_MOST_ITEMS: Final = 100


def cut(value: Any, most: int = MOST_CHARACTERS) -> Any:
    """A text cut to ``most`` characters, which says how long it was; any other value as it is."""
    if isinstance(value, str) and len(value) > most:
        return f"{value[:most]}... ({len(value)} characters)"
    return value


def shown(value: Any, most: int = MOST_CHARACTERS) -> Any:
    """
    A value in the form that a line may show: texts are cut, and their control characters escaped. A terminal obeys some
    control characters, and JSON writes others as six characters.
    """
    match value:
        case str():
            text = cut(value, most)
            return text if text.isprintable() else _escaped(text)
        case None | bool() | int() | float():
            return value
        case dict():
            return {
                shown(key): shown(item, MOST_SENTENCE if key in _SENTENCES else most)
                for key, item in list(value.items())[:_MOST_ITEMS]
            }
        case list() | tuple() | set() | frozenset():
            return [shown(item, most) for item in list(value)[:_MOST_ITEMS]]
    return shown(repr(value), most)


def shown_values(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog: puts every value of a line into the form that the line may show."""
    for key, value in line.items():
        if key.startswith("_"):
            continue  # structlog's own, for its last processor
        if key == "exception" and isinstance(value, str):
            # Lines of a traceback stay lines.
            line[key] = "\n".join(_escaped(text) for text in cut(value, MOST_TRACEBACK).split("\n"))
        else:
            line[key] = shown(
                value, MOST_SENTENCE if key in _SENTENCES or key == "exception" else MOST_CHARACTERS
            )
    return line


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "backslashreplace").decode("ascii")
        for character in text
    )


BURST: Final = 20
"""Lines of one kind in a burst: a client with many links, each refused, still gets a line for each."""

PER_SECOND: Final = 1.0
"""Lines of one kind after a burst, per second."""


class LineRate:
    """
    Limits the rate of lines, each kind by itself.

    Args:
        seconds: A clock that only goes forward.
        burst: Lines of one kind in a burst.
        per_second: Lines of one kind after that.
    """

    def __init__(
        self, seconds: Callable[[], float], burst: float = BURST, per_second: float = PER_SECOND
    ) -> None:
        self._seconds = seconds
        self._burst = burst
        self._per_second = per_second
        self._kinds: dict[str, tuple[float, float, int]] = {}
        """By kind: how many lines may still be written, at what time; how many were held back since the last line."""

    def admit(self, kind: str, carried: int = 0) -> int | None:
        """
        Ask to write one more line of this kind.

        Args:
            carried: Lines of this kind that were held back elsewhere, and that it is to report.

        Returns:
            How many were held back since the last one; None if this one is to be held back, too.
        """
        now = self._seconds()
        left, as_of, held_back = self._kinds.get(kind, (self._burst, now, 0))
        left = min(left + (now - as_of) * self._per_second, self._burst)
        held_back += carried
        if left < 1:
            self._kinds[kind] = left, now, held_back + 1
            return None
        self._kinds[kind] = left - 1, now, 0
        return held_back

    @property
    def held_back(self) -> int:
        """Lines of all kinds that were held back, and that no line has reported."""
        return sum(held_back for _, _, held_back in self._kinds.values())


ADDRESS_BURST: Final = 200
"""Lines of one kind in a burst: so many clients that reconnect after a restart get a line each."""

ADDRESS_PER_SECOND: Final = 5.0
"""Lines of one kind after a burst, per second."""

MOST_ADDRESSES: Final = 1_024
"""Addresses that are remembered; with one more, the one that was quiet the longest is forgotten."""

QUIET_SECONDS: Final = 10.0
"""An address without a line for so long is forgotten, and its held-back lines are reported. ``PeerLines`` waits at
least until the address may have a whole burst again, so that forgetting it changes nothing."""


class PeerLines:
    """
    Limits the rate of the lines about each address.

    Args:
        seconds: A clock that only goes forward.
    """

    def __init__(
        self,
        seconds: Callable[[], float],
        burst: float = ADDRESS_BURST,
        per_second: float = ADDRESS_PER_SECOND,
    ) -> None:
        self._seconds = seconds
        self._burst = burst
        self._per_second = per_second
        self._quiet_seconds = max(QUIET_SECONDS, burst / per_second)
        self._rates: OrderedDict[str, tuple[LineRate, float]] = OrderedDict()
        """By address: its rate, and the time of its last line; the oldest comes first."""
        self._forgotten = 0

    def admit(self, address: str, kind: str, held_back: int = 0) -> int | None:
        """
        Ask to write one more line of this kind.

        Args:
            held_back: Lines of this kind that were held back elsewhere, and that it is to report.

        Returns:
            How many were held back since the last one; None if this one is to be held back, too.
        """
        rate, _ = self._rates.pop(address, (None, 0.0))
        if rate is None:
            rate = LineRate(self._seconds, self._burst, self._per_second)
            if len(self._rates) >= MOST_ADDRESSES:
                _, (oldest, _) = self._rates.popitem(last=False)
                self._forgotten += oldest.held_back
        self._rates[address] = rate, self._seconds()
        found = rate.admit(kind, held_back)
        if found is None:
            COUNTS.held_back += 1
        return found

    def untold(self, *, all_of_them: bool = False) -> list[tuple[str, int]]:
        """
        Addresses without a line for some time, with the number of their lines that were held back and not reported;
        the address is empty for the addresses that were forgotten before.

        Args:
            all_of_them: Return every address: no more lines follow.
        """
        found = [("", self._forgotten)]
        self._forgotten = 0
        until = self._seconds() - self._quiet_seconds
        while self._rates:
            address = next(iter(self._rates))
            rate, since = self._rates[address]
            if since > until and not all_of_them:
                break
            del self._rates[address]
            found.append((address, rate.held_back))
        return [(address, count) for address, count in found if count]


MOST_WAITING: Final = 2 * 1024 * 1024
"""Characters of lines that may wait to be written: some ten thousand lines."""

STOP_SECONDS: Final = 1.0
"""How long an end waits for the last lines to be written."""


class LineCounts:
    """How many lines of this process were not written."""

    def __init__(self) -> None:
        self.dropped = 0
        """Lines for which too many others waited, or that could not be written."""
        self.held_back = 0
        """Lines beyond the rate of a connection or an address."""


COUNTS: Final = LineCounts()
"""This process's; shown as metrics."""


class LineWriter:
    """
    A stream whose ``write`` never waits.

    Args:
        descriptor: Of the file, pipe or terminal. It is written to directly: Python's own streams have a lock, for
            which every thread would wait.
        most: Characters that may wait.
    """

    def __init__(
        self,
        descriptor: int,
        counts: LineCounts = COUNTS,
        most: int = MOST_WAITING,
    ) -> None:
        self._descriptor = descriptor
        self._counts = counts
        self._most = most
        self._waiting: deque[str] = deque()
        self._size = 0
        self._untold = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self, told: Callable[[int], str]) -> None:
        """
        Begin to write.

        Args:
            told: Returns the line that says how many were dropped.
        """
        self._thread = threading.Thread(target=self._run, args=(told,), name="log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Have a line, or several, written; dropped where too much waits."""
        with self._changed:
            if self._size + len(text) > self._most:
                self._drop()
            else:
                self._waiting.append(text)
                self._size += len(text)
            self._changed.notify()
        return len(text)

    def flush(self) -> None:
        """Lines are flushed as they are written."""

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return os.isatty(self._descriptor)

    def close(self) -> None:
        """Write the lines that wait, for ``STOP_SECONDS`` at most."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _drop(self) -> None:
        self._counts.dropped += 1
        self._untold += 1

    def _run(self, told: Callable[[int], str]) -> None:
        has_failed = False
        while True:
            with self._changed:
                # Dropped lines are reported even if no other line follows, unless writing has just failed.
                while not (self._waiting or self._is_closed or (self._untold and not has_failed)):
                    self._changed.wait()
                text = "".join(self._waiting)
                count, size = len(self._waiting), self._size
                self._waiting.clear()
                untold, self._untold = self._untold, 0
                is_last = self._is_closed
            if untold:
                with suppress(Exception):
                    text += told(untold)
            has_failed = False
            try:
                self._put(text.encode(errors="backslashreplace"))
            except OSError:
                has_failed = True
                # A full disk, or a pipe that was closed: the code that logs has to go on.
                with self._changed:
                    self._counts.dropped += count
                    self._untold += untold + count
            with self._changed:
                self._size -= size
                if is_last and not self._waiting:
                    return

    def _put(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                # The process that started us has made it non-blocking.
                select.select((), (self._descriptor,), ())
