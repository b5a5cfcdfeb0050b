"""Which messages are traced, and that peers can cause only bounded work and memory."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.model import Row
from gateway.vpn import tracing
from gateway.vpn.tracing import MOST_A_SECOND, MOST_KNOWN, MOST_LINKS, SECOND_NS, MessageTracing, Span
from tests.support.messages import APPLICATION_PROPERTIES, data, section

SAMPLED = section(APPLICATION_PROPERTIES, {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}) + data("x")
NOT_SAMPLED = section(APPLICATION_PROPERTIES, {"traceparent": f"00-{'a' * 32}-{'b' * 16}-00"}) + data("x")
PLAIN = data("x")
QUEUE = cast("Endpoint", SimpleNamespace(name="q", replay=None))


class Sink:
    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(self, span: Span) -> None:
        self.spans.append(span)

    def names(self) -> list[str]:
        return [span.name for span in self.spans]


class World:
    """A tracing whose clock and commits the test controls."""

    def __init__(self, ratio: float = 0.0) -> None:
        self.sink = Sink()
        self.now_ns = SECOND_NS * 1_000
        self.next_id = 1
        self.tracing = MessageTracing(
            self.sink.add, "v", lambda: self.next_id, ratio, now_ns=lambda: self.now_ns, dice=random.Random(1)
        )

    def publish(self, content: bytes, first: int = 1, count: int = 1) -> list[Row]:
        rows: list[Row] = [(first + k, 0, "t", 0, 1, None, content) for k in range(count)]
        self.tracing.received(rows)
        self.now_ns += 5
        return rows

    def commit(self, next_id: int) -> None:
        self.next_id = next_id
        self.tracing.committed((), {})


def test_the_way_of_a_message_is_in_its_publishers_trace() -> None:
    """The parent of each step is the step before; times are those of commit, delivery and outcome."""
    world = World()
    rows = world.publish(SAMPLED)
    assert world.sink.spans == [], "nothing is told before it is durable"
    world.commit(2)
    committed = world.now_ns
    world.now_ns += 100
    world.tracing.delivered(QUEUE, rows)
    world.now_ns += 10
    world.tracing.settled("q", [1], "accepted")
    receive, enqueue, deliver, settle = world.sink.spans
    assert world.sink.names() == ["receive t", "enqueue t", "deliver q", "settle q"]
    assert {span.trace_id for span in world.sink.spans} == {int("a" * 32, 16)}
    assert [span.parent and span.parent.span_id for span in world.sink.spans] == [
        int("b" * 16, 16),
        receive.span_id,
        enqueue.span_id,
        deliver.span_id,
    ]
    assert (deliver.start_ns, deliver.end_ns) == (committed, committed + 100)
    assert settle.end_ns - settle.start_ns == 10
    assert settle.attributes["rewind.outcome"] == "accepted"
    assert settle.attributes["rewind.offset"] == 1


def test_what_its_publisher_does_not_sample_is_not_traced() -> None:
    """The publisher's decision applies, whatever the sample ratio is."""
    world = World(1.0)
    world.publish(NOT_SAMPLED, 1, 100)
    world.commit(101)
    assert world.sink.spans == []


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.3, 1.0])
def test_a_share_of_the_others_is_traced(ratio: float) -> None:
    """About this share of 20,000 messages, each with a new trace."""
    world = World(ratio)
    for first in range(1, 20_001, 500):
        world.publish(PLAIN, first, 500)
        world.now_ns += SECOND_NS
    world.commit(20_001)
    received = [span for span in world.sink.spans if span.name == "receive t"]
    expected = min(20_000 * ratio, MOST_KNOWN)
    assert abs(len(received) - expected) <= 4 * expected**0.5
    assert len({span.trace_id for span in received}) == len(received)
    assert all(span.parent is None for span in received)


def test_a_publisher_cannot_make_the_gateway_read_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many messages claim to be sampled, only so many are read in a second."""
    read: list[Any] = []
    context_of = tracing.context_of

    def counted(content: bytes, bare: int) -> Any:
        read.append(content)
        return context_of(content, bare)

    monkeypatch.setattr(tracing, "context_of", counted)
    world = World()
    world.publish(SAMPLED, 1, 5 * MOST_A_SECOND)
    assert len(read) == MOST_A_SECOND
    world.now_ns += SECOND_NS
    world.publish(SAMPLED, 10_000, 1)
    assert len(read) == MOST_A_SECOND + 1


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of messages that nobody consumes, the newest are remembered; the oldest are forgotten without an error."""
    monkeypatch.setattr(tracing, "MOST_KNOWN", 10)
    world = World()
    rows = world.publish(SAMPLED, 1, 100)
    world.commit(101)
    assert world.sink.names() == ["receive t", "enqueue t"] * 10
    world.tracing.delivered(QUEUE, rows)
    assert world.sink.names()[20:] == ["deliver q"] * 10


def test_what_was_not_written_has_no_spans() -> None:
    """A commit that failed has no spans."""
    world = World()
    rows = world.publish(SAMPLED)
    world.tracing.not_committed()
    world.commit(2)
    world.tracing.delivered(QUEUE, rows)
    assert world.sink.spans == []


def test_a_replay_is_a_span_with_links() -> None:
    """It links to the first traced messages that it delivers, up to a limit; each delivery links to it."""
    world = World()
    rows: list[Row] = [(k, 0, "t", 0, 1, None, SAMPLED) for k in range(1, 101)]
    replay: Any = SimpleNamespace(is_under_way=True, put=100, started_ms=5)
    world.tracing.delivered(cast("Endpoint", SimpleNamespace(name="q", replay=replay)), rows)
    world.tracing.replay_ended("q", replay, "it was cancelled")
    *deliveries, ended = world.sink.spans
    assert ended.name == "replay q"
    assert ended.error == "it was cancelled"
    assert len(ended.links) == MOST_LINKS
    assert {link.trace_id for link in ended.links} == {int("a" * 32, 16)}
    assert len(deliveries) == 100
    assert all(
        [(link.trace_id, link.span_id) for link in span.links] == [(ended.trace_id, ended.span_id)]
        for span in deliveries
    )
    world.tracing.replay_ended("other", replay)
    assert world.sink.spans[-1].links == ()
