"""
Spans sent to an OpenTelemetry collector: OTLP over HTTP in protobuf, by OpenTelemetry's own library.

The loop's thread puts spans into a bounded queue, and drops them if it is full; another thread sends them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, TraceFlags, TraceState
from opentelemetry.trace import SpanKind as TheirKind
from opentelemetry.trace.status import Status, StatusCode

from amqp_ext.message.fields import TraceContext
from gateway import version
from gateway.logging import log_keys
from gateway.vpn.tracing import Span, SpanKind

MOST_QUEUED: Final = 10_000
"""Spans that wait to be sent: some megabytes."""

BATCH: Final = 512
"""Spans sent at once."""

LINGER_SECONDS: Final = 1.0
"""How long the first span of a batch waits for others."""

ANSWER_SECONDS: Final = 5.0
"""How long a collector may take to answer, and how long a stop waits for that."""

_KINDS: Final = {
    SpanKind.INTERNAL: TheirKind.INTERNAL,
    SpanKind.CONSUMER: TheirKind.CONSUMER,
    SpanKind.PRODUCER: TheirKind.PRODUCER,
}

log = structlog.get_logger()


def read_headers(path: Path | None) -> dict[str, str]:
    """
    The HTTP headers in a file, one a line: ``Name: value``. Empty lines and lines that begin with ``#`` are ignored.

    Raises:
        OSError: It cannot be read.
        ValueError: A line is no header; it is not repeated, for it may be a secret.
    """
    found: dict[str, str] = {}
    if path is None:
        return found
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"line {number} of {path} is no header; write Name: value")
        found[name.strip()] = value.strip()
    return found


class OtlpExport:
    """
    The queue of spans and the thread that sends them.

    Args:
        exporter: Sends a batch; by OTLP, if none is given.
    """

    def __init__(
        self,
        endpoint: str,
        service_name: str,
        headers: Mapping[str, str],
        *,
        exporter: SpanExporter | None = None,
        most_queued: int = MOST_QUEUED,
    ) -> None:
        # Errors are logged here, in the gateway's own log.
        theirs = logging.getLogger("opentelemetry")
        theirs.addHandler(logging.NullHandler())
        theirs.propagate = False
        self._exporter = exporter or OTLPSpanExporter(
            endpoint=endpoint, headers=dict(headers), timeout=ANSWER_SECONDS
        )
        self._resource = Resource({"service.name": service_name, "service.version": version() or "unknown"})
        self._scope = InstrumentationScope("rewind", version() or "unknown")
        self._queue: deque[Span] = deque()
        self._most_queued = most_queued
        self._wakes = threading.Event()
        self._is_closed = threading.Event()
        self._is_failing = False
        self.exported = 0
        """Spans that the collector has accepted."""
        self.dropped = 0
        """Spans that were dropped because the queue was full."""
        self.failed = 0
        """Spans that the collector did not accept."""
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def add(self, span: Span) -> None:
        """Put a span into the queue, or drop it if the queue is full (``SpanSink``)."""
        if len(self._queue) >= self._most_queued or self._is_closed.is_set():
            self.dropped += 1
            return
        self._queue.append(span)
        if len(self._queue) >= BATCH:
            self._wakes.set()

    def close(self) -> None:
        """Send the queued spans, if that takes only a moment. Blocks."""
        self._is_closed.set()
        self._wakes.set()
        self._thread.join(ANSWER_SECONDS)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not (self._is_closed.is_set() and not self._queue):
            self._wakes.wait(LINGER_SECONDS)
            self._wakes.clear()
            while self._queue:
                self._send([self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))])

    def _send(self, batch: Sequence[Span]) -> None:
        reason = "the collector did not take them"
        try:
            is_taken = self._exporter.export([self._made(span) for span in batch]) is SpanExportResult.SUCCESS
        except Exception as error:
            # Whatever is wrong with the collector or the network, messages must not be affected.
            is_taken, reason = False, f"{type(error).__name__}: {error}"
        if is_taken:
            self.exported += len(batch)
            self._is_failing = False
            return
        self.failed += len(batch)
        if not self._is_failing:
            self._is_failing = True
            log.warning("spans_not_exported", **{log_keys.MESSAGES: len(batch), log_keys.REASON: reason})

    def _made(self, span: Span) -> ReadableSpan:
        state = span.parent.state if span.parent is not None else ""
        return ReadableSpan(
            span.name,
            _context(TraceContext(span.trace_id, span.span_id, True, state), is_remote=False),
            None if span.parent is None else _context(span.parent, is_remote=True),
            self._resource,
            dict(span.attributes),
            (),
            [Link(_context(link, is_remote=True)) for link in span.links],
            _KINDS[span.kind],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


def _context(context: TraceContext, *, is_remote: bool) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT)
    state: Any = TraceState.from_header([context.state]) if context.state else None
    return SpanContext(context.trace_id, context.span_id, is_remote, flags, state)
