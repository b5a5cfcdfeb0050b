"""Spans sent by OTLP, to a collector that accepts them and to one that does not; messages are not affected."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from amqp_ext.message.fields import TraceContext
from gateway.config import Telemetry
from gateway.otlp import OtlpExport, read_headers
from gateway.vpn.tracing import Span, SpanKind
from tests.support.client import Client, texts
from tests.support.messages import trade
from tests.support.running import RunningGateway, settings_for

WAIT_SECONDS = 30
TRACE, PARENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACED = {"traceparent": f"00-{TRACE}-{PARENT_SPAN}-01", "tracestate": "a=1"}


class Collector:
    """Accepts OTLP over HTTP, and keeps the spans."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.headers: list[Any] = []
        self._came = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with collector._came:
                    collector.headers.append(self.headers)
                    if status == 200:
                        collector.take(body)
                    collector._came.notify_all()
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            self.services |= {
                a.value.string_value for a in resource.resource.attributes if a.key == "service.name"
            }
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def wait_for(self, *names: str) -> dict[str, Any]:
        """Wait until there is a span of each of these names; return the spans by name."""
        with self._came:
            assert self._came.wait_for(
                lambda: set(names) <= {span.name for span in self.spans}, WAIT_SECONDS
            ), [span.name for span in self.spans]
            return {span.name: span for span in self.spans}

    def wait_for_request(self) -> None:
        with self._came:
            assert self._came.wait_for(lambda: self.headers, WAIT_SECONDS)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


def test_a_message_is_followed_from_publisher_to_outcome(tmp_path: Path, collector: Collector) -> None:
    """The publisher's trace has all four steps; a replay has a trace of its own, with links both ways."""
    (tmp_path / "headers").write_text("# the key\nX-Key: secret\n")
    telemetry = Telemetry(
        endpoint=collector.url, sample_ratio=0.0, headers_file=tmp_path / "headers", service_name="mine"
    )
    with RunningGateway(settings_for(tmp_path / "data", telemetry=telemetry)) as gateway:
        with Client(gateway.url) as client:
            client.sender("orders").send_all([trade("one", TRACED), trade("none")])
            consumer = client.receiver("orders", credit=2)
            assert texts(consumer.take_and_accept(2)) == ["one", "none"]
            consumer.close()
            found = collector.wait_for(
                "receive #queue/orders", "enqueue #queue/orders", "deliver orders", "settle orders"
            )
            assert len(collector.spans) == 4, "the message without a context is not traced"
            assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
            assert {span.trace_state for span in collector.spans} == {"a=1"}
            assert found["receive #queue/orders"].parent_span_id.hex() == PARENT_SPAN
            assert found["settle orders"].parent_span_id == found["deliver orders"].span_id
            assert found["deliver orders"].start_time_unix_nano <= found["deliver orders"].end_time_unix_nano
            assert collector.services == {"mine"}
            assert collector.headers[0]["X-Key"] == "secret"
            again = client.receiver("orders?replay-start=beginning", credit=2)
            assert texts(again.take_and_accept(2)) == ["one", "none"]
            again.close()
            replay = collector.wait_for("replay orders")["replay orders"]
            assert [link.trace_id.hex() for link in replay.links] == [TRACE]
            assert replay.trace_id.hex() != TRACE
            delivered = [span for span in collector.spans if span.name == "deliver orders"][-1]
            assert [link.span_id for link in delivered.links] == [replay.span_id]
        counts = gateway.call(lambda g: g.span_counts)
        assert counts["exported"] >= 4
        assert (counts["dropped"], counts["failed"]) == (0, 0)


def test_a_collector_that_takes_nothing_is_not_waited_for(tmp_path: Path) -> None:
    """Messages are delivered as usual; the spans are counted as failed."""
    collector = Collector(status=400)
    try:
        telemetry = Telemetry(endpoint=collector.url, sample_ratio=1.0)
        with RunningGateway(settings_for(tmp_path, telemetry=telemetry)) as gateway:
            with Client(gateway.url) as client:
                client.sender("orders").send_all([trade(n) for n in range(100)])
                assert len(client.receiver("orders", credit=100).take_and_accept(100)) == 100
                collector.wait_for_request()
            spans = gateway.call(lambda g: g._spans)
        assert spans.failed > 0
        assert spans.exported == 0
    finally:
        collector.close()


SPAN = Span("s", SpanKind.INTERNAL, 1, 2, TraceContext(1, 3, True), 10, 20, {"a": 1}, (), "broken")


def test_spans_are_made_as_opentelemetry_has_them() -> None:
    """Name, ids, times, attributes and status; queued spans are sent at the end."""
    memory = InMemorySpanExporter()
    export = OtlpExport("", "mine", {}, exporter=memory)
    export.add(SPAN)
    export.close()
    (found,) = memory.get_finished_spans()
    assert found.context is not None
    assert found.parent is not None
    assert (found.name, found.context.trace_id, found.context.span_id, found.parent.span_id) == ("s", 1, 2, 3)
    assert (found.start_time, found.end_time, dict(found.attributes or {})) == (10, 20, {"a": 1})
    assert found.status.description == "broken"
    assert found.resource.attributes["service.name"] == "mine"
    export.add(SPAN)
    assert (export.exported, export.dropped) == (1, 1), "nothing is taken after the end"


def test_a_full_queue_drops_and_counts() -> None:
    """While the collector hangs, no more spans are held than the limit."""
    hangs, goes_on = threading.Event(), threading.Event()

    class Hanging(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            hangs.set()
            goes_on.wait(WAIT_SECONDS)
            return SpanExportResult.SUCCESS

    export = OtlpExport("", "mine", {}, exporter=Hanging(), most_queued=5)
    export.add(SPAN)
    assert hangs.wait(WAIT_SECONDS)
    for _ in range(8):
        export.add(SPAN)
    assert export.dropped == 3
    goes_on.set()
    export.close()
    assert export.exported == 6


def test_headers_are_read_from_a_file(tmp_path: Path) -> None:
    """One header a line; a malformed line is named by its number, without its text."""
    assert read_headers(None) == {}
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer a:b\n\n# no\nX-Tenant:  one \n")
    assert read_headers(file) == {"Authorization": "Bearer a:b", "X-Tenant": "one"}
    file.write_text("X: 1\nsecret\n")
    with pytest.raises(ValueError, match="line 2 of") as caught:
        read_headers(file)
    assert "secret" not in str(caught.value)


def test_without_a_collector_nothing_of_it_is_loaded() -> None:
    """A gateway with default settings imports nothing of OpenTelemetry."""
    code = "import sys, gateway.app; sys.exit(any(n.startswith('opentelemetry') for n in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
