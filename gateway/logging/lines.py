"""
Log lines: how structlog makes them, what of a peer's text they show, how many a peer may cause, who writes them.

``configure`` is called once, by ``gateway.app``, before anything logs: loggers keep what they find at their first use.
Lines of libraries that use the standard library's logging come out in the same form. A thread of its own writes the
lines, so that a full pipe or a slow terminal blocks nobody who logs; lines that find too many waiting are dropped and
counted. Lines that one peer causes too often are held back and counted, too.
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
    """Write log lines of ``settings.level`` and above to ``stream`` (stderr if None); times are ISO 8601 in
    UTC."""
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
        # Without local variables: there are passwords, and messages, among them.
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
    # What Python itself would write to stderr, and wait for it.
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
"""Of a text in a line. Names are shorter, as a rule; a peer may give us one of 64 kB that stands in every line."""

MOST_SENTENCE: Final = 1_000
"""Of a sentence of ours, in which a peer's text may stand, and of an error's."""

MOST_TRACEBACK: Final = 20_000
"""Of a traceback that is one text."""

_SENTENCES: Final = frozenset({"event", "reason", "exc_value"})
_MOST_ITEMS: Final = 100


def cut(value: Any, most: int = MOST_CHARACTERS) -> Any:
    """A text that is no longer than that, and says so where it was; anything else as it is."""
    if isinstance(value, str) and len(value) > most:
        return f"{value[:most]}... ({len(value)} characters)"
    return value


def shown(value: Any, most: int = MOST_CHARACTERS) -> Any:
    """
    A value as it may stand in a line: texts cut, and their control characters written out. A terminal obeys some of
    those, and others make one character six in JSON.
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
    """A processor of structlog: every value of a line as it may stand there."""
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
"""Lines of one kind at once: a client with many links, each refused, is still seen whole."""

PER_SECOND: Final = 1.0
"""Lines of one kind after those."""


class LineRate:
    """
    Args:
        seconds: A clock that only goes forward.
        burst: Lines of one kind at once.
        per_second: Lines of one kind after those.
    """

    def __init__(
        self, seconds: Callable[[], float], burst: float = BURST, per_second: float = PER_SECOND
    ) -> None:
        self._seconds = seconds
        self._burst = burst
        self._per_second = per_second
        self._kinds: dict[str, tuple[float, float, int]] = {}
        """By kind: what may still be said, as of when; and how many lines were held back since one was said."""

    def admit(self, kind: str, carried: int = 0) -> int | None:
        """
        One more line of this kind.

        Args:
            carried: Lines that it stands for, as they were left out before.

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
        """Lines of all kinds that were held back and nobody has been told of."""
        return sum(held_back for _, _, held_back in self._kinds.values())


ADDRESS_BURST: Final = 200
"""Lines of one kind at once: as many clients that come again after a restart are seen one by one."""

ADDRESS_PER_SECOND: Final = 5.0
"""Lines of one kind after those."""

MOST_ADDRESSES: Final = 1_024
"""Addresses that are remembered; with one more, the one that was quiet the longest is forgotten."""

QUIET_SECONDS: Final = 10.0
"""Without a line for so long, an address is forgotten, and what was held back is told. Its next burst is said whole
only then when it would have been anyway."""


class PeerLines:
    """
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
        """By address, and since when it is quiet; that which is the longest comes first."""
        self._forgotten = 0

    def admit(self, address: str, kind: str, held_back: int = 0) -> int | None:
        """
        One more line of this kind.

        Args:
            held_back: Lines that it stands for, as they were left out before.

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
        Addresses from which nothing more comes, with how many lines of theirs were left out that no later line has
        told of; the address is empty for those that were forgotten before.

        Args:
            all_of_them: Of every address: nothing more is said.
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
"""Characters of lines that wait for their stream: some ten thousand lines."""

STOP_SECONDS: Final = 1.0
"""How long an end waits for the last lines to be written."""


class LineCounts:
    """What did not come out, of all this process has logged."""

    def __init__(self) -> None:
        self.dropped = 0
        """Lines that nobody took in time, or that could not be written."""
        self.held_back = 0
        """Lines that one connection, or one address, had too many of."""


COUNTS: Final = LineCounts()
"""This process's; shown as metrics."""


class LineWriter:
    """
    A stream whose ``write`` never waits.

    Args:
        descriptor: Of the file, pipe or terminal they go to. It is written to past Python's own streams: those have a
            lock, which everybody would wait for.
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
            told: The line that says how many were dropped.
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
        """Whether a person looks at the stream."""
        return os.isatty(self._descriptor)

    def close(self) -> None:
        """Write what waits, for a moment at most."""
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
                # Lines that were dropped are told of though no other follows them, unless that failed just now.
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
                # A full disk, or a pipe that was closed: whoever logs has more to do than that.
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
                # Whoever started us set it to not wait.
                select.select((), (self._descriptor,), ())
