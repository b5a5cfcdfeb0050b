"""What the gateway in a test's process logs, each line as a mapping of keys to values."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog

Line = MutableMapping[str, Any]


@contextmanager
def kept_lines(level: int, *events: str) -> Iterator[list[Line]]:
    """Collects the lines from a level on, or only those of the given events; nothing is written anywhere."""
    lines: list[Line] = []

    def keep(_: Any, method: str, line: Line) -> Line:
        if not events or line["event"] in events:
            lines.append({**line, "level": method})
        raise structlog.DropEvent

    structlog.configure(processors=[keep], wrapper_class=structlog.make_filtering_bound_logger(level))
    yield lines
    structlog.reset_defaults()
