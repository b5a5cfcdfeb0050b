"""structlog's configuration: one line per event on stderr, JSON for machines or columns for people.

Called from ``gateway.app`` alone, once, before anything logs: loggers keep what they find at their first use.
Libraries that use the standard library's logging (asyncio, uvicorn) come out in the same form.
"""

import atexit
import logging
import sys
import threading
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog
from structlog.typing import Processor

from gateway import log_keys
from gateway.config import Logging
from gateway.log_lines import LineWriter
from gateway.log_values import shown_values


def configure(settings: Logging, stream: TextIO | None = None) -> None:
    """Write log lines of ``settings.level`` and above to ``stream`` (stderr if None); times are ISO 8601 in
    UTC."""
    writer = LineWriter(sys.stderr.fileno()) if stream is None else None
    stream = cast(TextIO, writer or _Lossy(cast(TextIO, stream)))
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


class _Lossy:
    """A stream that leaves out what cannot be written, for a stream that is given: it is written to at once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


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
