"""structlog's configuration: one line per event on stderr, JSON for machines or columns for people.

Called from ``gateway.app`` alone, once, before anything logs: loggers keep what they find at their first use.
Libraries that use the standard library's logging (asyncio, uvicorn) come out in the same form.
"""

import logging
import sys
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog
from structlog.typing import Processor

from gateway.config import Logging


def configure(settings: Logging, stream: TextIO | None = None) -> None:
    """Write log lines of ``settings.level`` and above to ``stream`` (stderr if None); times are ISO 8601 in
    UTC."""
    stream = cast(TextIO, _Lossy(sys.stderr if stream is None else stream))
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    for_people = settings.format == "console" or (settings.format == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[Processor]
    if for_people:
        rendering = [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    else:
        rendering = [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    _adopt_standard_logging(stream, level, shared, rendering)


class _Lossy:
    """A stream that leaves out what cannot be written: whoever logs on a full disk has more to do than that."""

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
