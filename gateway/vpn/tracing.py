"""
Spans of messages, for a tracing backend: received, enqueued, delivered, settled, replayed.

A message is traced if its own trace context says that it is sampled; its spans then belong to that trace. Of the
messages without a context, a random share is traced. The work that a peer can cause is bounded: the contexts read, and
so the messages traced, per second; the messages known at a time; the links of a replay's span. Nothing of this is
durable: after a restart, earlier messages are delivered without spans, unless they are replayed.
"""

from __future__ import annotations

import enum
import math
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from amqp_ext.message.fields import LOOKED_AT, NEEDLE, TraceContext, context_of, may_have_context
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.model import BARE, CONTENT, ID, TOPIC, Row
from gateway.core.replay.states import Replay
from gateway.vpn.clients import LogLink

MOST_A_SECOND: Final = 1_000
"""Messages of a Message VPN whose context is read in a second: some milliseconds of the loop's time."""

MOST_KNOWN: Final = 10_000
"""Traced messages in memory at a time, the newest ones: some megabytes."""

MOST_DELIVERIES: Final = 16
"""Endpoints on which a traced message's delivery is followed."""

MOST_LINKS: Final = 32
"""Messages that the span of a replay names."""

SECOND_NS: Final = 1_000_000_000
MOST_CHARACTERS: Final = 200
"""The longest destination in the name of a span."""


class SpanKind(enum.Enum):
    """The kind of a span in OpenTelemetry: who is on the other side."""

    INTERNAL = "internal"
    CONSUMER = "consumer"
    PRODUCER = "producer"


OPERATIONS: Final[Mapping[str, tuple[SpanKind, str]]] = {
    "receive": (SpanKind.CONSUMER, "receive"),
    "enqueue": (SpanKind.INTERNAL, ""),
    "deliver": (SpanKind.PRODUCER, "send"),
    "read": (SpanKind.PRODUCER, "send"),
    "browse": (SpanKind.PRODUCER, "send"),
    "settle": (SpanKind.CONSUMER, "settle"),
}
"""The steps of a message, each with its span kind and its operation type in OpenTelemetry; empty for no type."""


class Span(NamedTuple):
    """A span that has ended. Times in ns since the epoch."""

    name: str
    kind: SpanKind
    trace_id: int
    span_id: int
    parent: TraceContext | None
    """The parent span; None for the root of a trace."""
    start_ns: int
    end_ns: int
    attributes: Mapping[str, str | int]
    links: tuple[TraceContext, ...] = ()
    error: str = ""
    """Why the operation failed; empty if it succeeded."""


@dataclass(slots=True)
class _Traced:
    """What is known of a traced message."""

    parent: TraceContext
    """The parent of the message's next spans."""
    own: TraceContext | None
    """The context that the publisher sent; None if it sent none."""
    since_ns: int
    """When it was received; after the commit, since when it waits for a delivery; 0 if that is not known."""
    topic: str
    size_bytes: int
    deliveries: dict[str, tuple[TraceContext, int]] = field(default_factory=dict)
    """By endpoint: the span of the unsettled delivery, and when it was sent."""


@dataclass(slots=True)
class _Replayed:
    """A replay under way."""

    context: TraceContext
    links: list[TraceContext] = field(default_factory=list)


class MessageTracing:
    """
    Args:
        add: Takes spans that have ended, and never blocks.
        next_id: One past the last durable id.
        sample_ratio: The share of the messages without a context that is traced, 0 to 1.
    """

    def __init__(
        self,
        add: Callable[[Span], None],
        vpn: str,
        next_id: Callable[[], int],
        sample_ratio: float,
        *,
        now_ns: Callable[[], int] = time.time_ns,
        dice: random.Random | None = None,
    ) -> None:
        self._add_span = add
        self._vpn = vpn
        self._next_id = next_id
        self._ratio = sample_ratio
        self._now_ns = now_ns
        self._dice = dice or random.Random()
        self._known: dict[int, _Traced] = {}
        self._pending: deque[int] = deque()
        """Ids of traced messages that are received and not durable yet."""
        self._replays: dict[str, _Replayed] = {}
        self._skip = self._drawn()
        self._second = 0
        self._left = 0

    # --- the way of a message -----------------------------------------------------------------------------------

    def received(self, rows: Sequence[Row]) -> None:
        """Messages were accepted and are being committed."""
        # Most messages have no context: one scan of the batch shows whether any needs a closer look.
        if any(row[CONTENT].find(NEEDLE, 0, LOOKED_AT) >= 0 for row in rows):
            rows = self._without_context(rows)
        place = self._skip
        while place < len(rows):
            if self._may():
                self._begin(rows[place], None)
            place += 1 + self._drawn()
        self._skip = place - len(rows)

    def committed(self, endpoints: Collection[str], news: Mapping[str, int]) -> None:
        """A commit is durable: add the spans ``receive`` and ``enqueue`` of the traced messages in it."""
        pending = self._pending
        if not pending:
            return
        now, next_id = self._now_ns(), self._next_id()
        while pending and pending[0] < next_id:
            number = pending.popleft()
            traced = self._known.get(number)
            if traced is None:
                continue
            about = self._about(number, traced.topic, traced.size_bytes)
            receive, began = traced.parent, traced.since_ns
            self._add("receive", receive, traced.own, began, now, about)
            traced.parent, traced.since_ns = self._child(receive), now
            self._add("enqueue", traced.parent, receive, began, now, about)

    def not_committed(self) -> None:
        """A commit failed. Which messages it had is not known here, so all that are not durable are forgotten."""
        for number in self._pending:
            self._known.pop(number, None)
        self._pending.clear()

    def delivered(self, endpoint: Endpoint, rows: Iterable[Row]) -> None:
        """Messages of an endpoint were given to a consumer."""
        replay = endpoint.replay if endpoint.replay is not None and endpoint.replay.is_under_way else None
        known = self._known
        if not known and replay is None:
            return
        now = 0
        if replay is None:
            rows = [row for row in rows if row[ID] in known]
        for row in rows:
            traced = known.get(row[ID])
            if traced is None and replay is not None:
                traced = self._replayed(row)
            if traced is None:
                continue
            now = now or self._now_ns()
            links: tuple[TraceContext, ...] = ()
            if replay is not None:
                replayed = self._replay_of(endpoint)
                links = (replayed.context,)
                if len(replayed.links) < MOST_LINKS:
                    replayed.links.append(traced.own or traced.parent)
            context = self._child(traced.parent)
            about = self._about(row[ID], endpoint.name, traced.size_bytes)
            began = traced.since_ns or now
            self._add("deliver", context, traced.parent, began, now, about, links)
            if len(traced.deliveries) < MOST_DELIVERIES:
                traced.deliveries[endpoint.name] = context, now

    def read(self, operation: str, destination: str, rows: Iterable[Row]) -> None:
        """
        Messages were sent to a reader or browser, which consumes none.

        Args:
            operation: ``read`` or ``browse``.
            destination: What is read or browsed.
        """
        known = self._known
        now = 0
        for row in rows:
            traced = known.get(row[ID])
            if traced is not None:
                parent, since_ns = traced.parent, traced.since_ns
            else:
                # Half of the second's limit is reserved for publications and replays.
                context = self._context(row, keep=MOST_A_SECOND // 2)
                if context is None or not context.is_sampled:
                    continue
                parent, since_ns = context, 0
            now = now or self._now_ns()
            about = self._about(row[ID], destination, len(row[CONTENT]))
            self._add(operation, self._child(parent), parent, since_ns or now, now, about)

    def settled(self, endpoint: str, ids: Iterable[int], outcome: str) -> None:
        """
        A consumer's deliveries of an endpoint's messages have an outcome.

        Args:
            outcome: That of AMQP: accepted, released, modified, rejected.
        """
        known = self._known
        if not known:
            return
        now = 0
        for number in filter(known.__contains__, ids):
            traced = known[number]
            delivery = traced.deliveries.pop(endpoint, None)
            if delivery is None:
                continue
            now = now or self._now_ns()
            parent, began = delivery
            about = {**self._about(number, endpoint, traced.size_bytes), "rewind.outcome": outcome}
            self._add("settle", self._child(parent), parent, began, now, about)
            # If it is delivered again, it waits from now on.
            traced.since_ns = now

    def replay_ended(self, endpoint: str, replay: Replay, error: str = "") -> None:
        """A replay onto an endpoint is complete, or failed for a reason."""
        replayed = self._replays.pop(endpoint, None) or _Replayed(self._root())
        context, now = replayed.context, self._now_ns()
        attributes: dict[str, str | int] = {
            "messaging.system": "rewind",
            "messaging.operation.name": "replay",
            "messaging.destination.name": endpoint,
            "messaging.batch.message_count": replay.put,
            "rewind.vpn": self._vpn,
        }
        began, links = min(replay.started_ms * 1_000_000, now), tuple(replayed.links)
        ids = context.trace_id, context.span_id
        self._add_span(
            Span(f"replay {endpoint}", SpanKind.INTERNAL, *ids, None, began, now, attributes, links, error)
        )

    # --- what is traced -----------------------------------------------------------------------------------------

    def _without_context(self, rows: Sequence[Row]) -> list[Row]:
        """Trace the messages whose context is sampled; return those without a context."""
        others: list[Row] = []
        for row in rows:
            context = self._context(row)
            if context is None:
                others.append(row)
            elif context.is_sampled:
                self._begin(row, context)
        return others

    def _context(self, row: Row, keep: int = 0) -> TraceContext | None:
        is_looked_at = may_have_context(row[CONTENT]) and self._may(keep)
        return context_of(row[CONTENT], row[BARE]) if is_looked_at else None

    def _may(self, keep: int = 0) -> bool:
        """Whether this second's limit allows one more message, if ``keep`` of the limit are reserved for others."""
        second = self._now_ns() // SECOND_NS
        if second != self._second:
            self._second, self._left = second, MOST_A_SECOND
        if self._left <= keep:
            return False
        self._left -= 1
        return True

    def _drawn(self) -> int:
        """How many messages without a context to pass over before the next one that is traced."""
        if self._ratio >= 1:
            return 0
        if self._ratio <= 0:
            return 1 << 62
        return int(math.log(1 - self._dice.random()) / math.log1p(-self._ratio))

    def _begin(self, row: Row, own: TraceContext | None) -> None:
        context = self._root() if own is None else self._child(own)
        self._know(row, _Traced(context, own, self._now_ns(), row[TOPIC], len(row[CONTENT])))
        self._pending.append(row[ID])

    def _replayed(self, row: Row) -> _Traced | None:
        """What is to be known of a replayed message whose context is sampled; None for any other message."""
        context = self._context(row)
        if context is None or not context.is_sampled:
            return None
        return self._know(row, _Traced(context, context, 0, row[TOPIC], len(row[CONTENT])))

    def _know(self, row: Row, traced: _Traced) -> _Traced:
        known = self._known
        known[row[ID]] = traced
        if len(known) > MOST_KNOWN:
            del known[next(iter(known))]
        return traced

    def _replay_of(self, endpoint: Endpoint) -> _Replayed:
        found = self._replays.get(endpoint.name)
        if found is None:
            found = self._replays[endpoint.name] = _Replayed(self._root())
        return found

    # --- spans --------------------------------------------------------------------------------------------------

    def _root(self) -> TraceContext:
        return TraceContext(self._dice.getrandbits(128) or 1, self._dice.getrandbits(64) or 1, True)

    def _child(self, parent: TraceContext) -> TraceContext:
        return parent._replace(span_id=self._dice.getrandbits(64) or 1)

    def _about(self, number: int, destination: str, size_bytes: int) -> dict[str, str | int]:
        return {
            "messaging.system": "rewind",
            "messaging.destination.name": destination,
            "messaging.message.envelope.size": size_bytes,
            "rewind.vpn": self._vpn,
            "rewind.offset": number,
        }

    def _add(
        self,
        operation: str,
        context: TraceContext,
        parent: TraceContext | None,
        start_ns: int,
        end_ns: int,
        about: Mapping[str, str | int],
        links: tuple[TraceContext, ...] = (),
    ) -> None:
        kind, operation_type = OPERATIONS[operation]
        named = {**about, "messaging.operation.name": operation}
        if operation_type:
            named["messaging.operation.type"] = operation_type
        name = f"{operation} {about['messaging.destination.name']}"
        self._add_span(
            Span(name, kind, context.trace_id, context.span_id, parent, start_ns, end_ns, named, links)
        )


class TracedLink:
    """
    Args:
        link: The link that the messages are sent to.
        operation: ``read`` or ``browse``.
        destination: What is read or browsed.
    """

    def __init__(self, link: LogLink, tracing: MessageTracing, operation: str, destination: str) -> None:
        self._link = link
        self.client, self.account = link.client, link.account
        self._read = tracing.read
        self._operation = operation
        self._destination = destination[:MOST_CHARACTERS]
        self.room = link.room
        self.nothing_to_send = link.nothing_to_send
        self.finish = link.finish
        self.refuse = link.refuse

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        self._read(self._operation, self._destination, rows)
        self._link.send(rows, attempts, end_id)
