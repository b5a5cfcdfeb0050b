"""
A span as a Message VPN tells it: a step in the way of a message, or a replay. What sends it on is given.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from amqp_ext.message.trace_context import TraceContext


class SpanKind(enum.Enum):
    """Who is on the other side, as OpenTelemetry has it."""

    INTERNAL = "internal"
    CONSUMER = "consumer"
    PRODUCER = "producer"


class Span(NamedTuple):
    """A span that has ended. Times in ns since the epoch."""

    name: str
    kind: SpanKind
    trace_id: int
    span_id: int
    parent: TraceContext | None
    """What it is a part of; None where a trace begins with it."""
    start_ns: int
    end_ns: int
    attributes: Mapping[str, str | int]
    links: tuple[TraceContext, ...] = ()
    error: str = ""
    """Why it failed; empty where it did not."""


class SpanSink(Protocol):
    """Takes spans, and never blocks."""

    def add(self, span: Span) -> None:
        """Send it on, or drop it where there are too many."""


class SpanExport(SpanSink, Protocol):
    """What sends spans to a collector, and counts them."""

    exported: int
    dropped: int
    failed: int

    def close(self) -> None:
        """Send what is queued, if that takes no longer than a moment. Blocks."""
