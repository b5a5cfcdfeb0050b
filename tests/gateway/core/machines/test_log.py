"""
The replay log and its readers against a naive model, with any order of events that Hypothesis generates.

``HYPOTHESIS_PROFILE=nightly`` runs many more examples.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from amqp_ext.addresses.address import queue_topic
from amqp_ext.replay_start import Missing, ReplayStart, StartKind
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings
from gateway.core.errors import Refused
from gateway.core.log import RetentionRule
from gateway.core.model import CONTENT, HELD, Point
from gateway.core.replay.starts import Resolved
from gateway.vpn.upkeep.trimming import HOUR_MS
from tests.gateway.core.machines.naive_links import LogConsumer, takes
from tests.gateway.core.machines.vpn_machine import VpnMachine, bounded_starts, mostly, picks, sizes
from tests.gateway.core.machines.world import UNLOGGED, Sizes
from tests.support.chance import times

PATTERNS = ((">",), ("a/>",), ("a/x",), (queue_topic("q1"),), ("b/x", UNLOGGED))
POINTS = ("one", "two")

OF_WHAT_THERE_IS = (StartKind.BEGINNING, StartKind.LIVE, StartKind.LAST, StartKind.NEWEST)
"""Starts that name neither a place nor a time."""

retention_rules = st.lists(
    st.builds(
        RetentionRule,
        st.sampled_from([("a/>",), ("a/x",), ("a/y", "b/x"), (">",)]),
        max_age_hours=st.sampled_from([0, 1, 2]),
        quota_bytes=st.sampled_from([0, 100, 400]),
    ),
    min_size=1,
    max_size=3,
).map(tuple)


class LogMachine(VpnMachine):
    """Readers and administrators of the log."""

    @initialize(
        sizes=st.builds(replace, sizes, rules=st.one_of(st.just(()), retention_rules, retention_rules)),
        history=st.integers(0, 6),
    )
    def start(self, sizes: Sizes, history: int = 0) -> None:
        super().start(sizes, history)

    def begin(self) -> None:
        world = self.world
        self.points: dict[str, tuple[Point, int]] = {}
        """Points that somebody was told of, each with the number of messages published before."""
        endpoint, effects = world.broker.create(
            "q1", EndpointKind.QUEUE, EndpointSettings(quota_messages=8), ("b/x", UNLOGGED)
        )
        world.new_content(endpoint, None)
        world.on_loop(lambda: world.vpn.committer.commit(effects))

    # --- retention ----------------------------------------------------------------------------------------------

    @rule(hours=st.integers(1, 3))
    def hours_pass(self, hours: int) -> None:
        self.world.clock.now += hours * HOUR_MS
        self.world.loop.advance(1.0)

    @rule(rules=retention_rules)
    def change_rules(self, rules: tuple[RetentionRule, ...]) -> None:
        self.world.set_rules(rules)

    # --- readers ----------------------------------------------------------------------------------------------------

    @rule(
        patterns=st.sampled_from(PATTERNS),
        start=bounded_starts,
        credit=st.integers(0, 12),
        missing=st.sampled_from(Missing),
        is_prompt=mostly,
    )
    def read_log(
        self, patterns: tuple[str, ...], start: ReplayStart, credit: int, missing: Missing, is_prompt: bool
    ) -> None:
        start = replace(start, missing=missing)
        self.spawn(self._read_log, patterns, start, credit, is_prompt=is_prompt)

    @precondition(lambda self: self.points)
    @rule(
        patterns=st.sampled_from(PATTERNS),
        pick=picks,
        missing=st.sampled_from(Missing),
        credit=st.integers(0, 12),
    )
    def read_from_point(self, patterns: tuple[str, ...], pick: int, missing: Missing, credit: int) -> None:
        name = sorted(self.points)[pick % len(self.points)]
        start = ReplayStart(StartKind.POINT, name, missing=missing)
        self.spawn(self._read_log, patterns, start, credit, is_prompt=True)

    async def _read_log(self, patterns: tuple[str, ...], start: ReplayStart, credit: int) -> None:
        world = self.world
        next_id = world.vpn.broker.log.next_id
        resolved = await world.vpn.log.resolve_start(start, patterns)
        self.check_start(start, patterns, resolved, next_id)
        self.check_is_whole(start, patterns, resolved)
        consumer = LogConsumer(world, patterns, resolved.first, resolved.last, is_live=resolved.is_live)
        assert not (resolved.is_live and consumer.is_due_below(next_id)), "there was history to read"
        consumer.feed = world.vpn.readers.read_log(resolved, patterns, consumer)
        consumer.credit = credit
        world.log_consumers.append(consumer)
        consumer.feed.run()

    def check_start(
        self, start: ReplayStart, patterns: tuple[str, ...], resolved: Resolved, asked_id: int
    ) -> None:
        """
        A start skips no requested message that the log has.

        Args:
            asked_id: The next id when the start was requested: `last` and `last:N` count from there.
        """
        store = self.world.store
        logged = [row for i, row in sorted(store.messages.items()) if store.is_logged(i)]
        next_id = self.world.broker.log.next_id
        told = [row for row in logged if row[0] < next_id]
        first = resolved.first
        if start.kind is StartKind.BEGINNING:
            assert all(row[0] >= first for row in told) or store.first_id < first
        elif start.kind is StartKind.DATE and first < next_id:
            assert all(row[1] < start.value for row in told if row[0] < first)  # type: ignore[operator]
        elif start.kind is StartKind.LAST:
            before = (row for row in told if row[0] < asked_id)
            wanted = [row[0] for row in before if any(takes(pattern, row[2]) for pattern in patterns)]
            assert not wanted or first >= wanted[-1]
        elif start.kind is StartKind.NEWEST:
            # No more than requested, of the messages of then; and no fewer, unless they were trimmed meanwhile.
            if start.until is not None and resolved.last is not None:
                told = [row for row in told if row[0] <= resolved.last]
            before = (row for row in told if row[0] < asked_id)
            wanted = [row[0] for row in before if any(takes(pattern, row[2]) for pattern in patterns)]
            newest = wanted[-int(start.value) :]  # type: ignore[call-overload]
            assert len(newest) < int(start.value) or first >= newest[0]  # type: ignore[call-overload]
            if wanted:
                came = [row[0] for row in told if any(takes(pattern, row[2]) for pattern in patterns)]
                assert not came or first <= came[-int(start.value) :][0]  # type: ignore[call-overload]
        elif start.kind is StartKind.POINT and start.value in self.points:
            point, _ = self.points[str(start.value)]
            assert first == point.position or store.first_id > point.position or first == next_id

    def check_is_whole(self, start: ReplayStart, patterns: tuple[str, ...], resolved: Resolved) -> None:
        """A start at a place or a time is granted only if no rule has removed a message after it."""
        kind, world = start.kind, self.world
        if start.missing is Missing.CLAMP or kind in OF_WHAT_THERE_IS:
            return
        for row in world.store.published.values():
            is_behind = row[1] >= start.value if kind is StartKind.DATE else row[0] >= resolved.first  # type: ignore[operator]
            is_of_topics = any(takes(pattern, row[2]) for pattern in patterns)
            if is_behind and is_of_topics and row[HELD] is None and row[0] >= world.store.first_id:
                assert world.store.is_logged(row[0]), f"{row[0]} is missing, and nobody was told"
                is_leaving = row[0] in world.left and not world.has_failed_to_write
                assert not is_leaving and not world.broker.retention.is_gone(row), f"{row[0]} is about to be"

    @precondition(lambda self: self.world.log_consumers)
    @rule(pick=picks, credit=st.integers(1, 12))
    def credit(self, pick: int, credit: int) -> None:
        consumer = self.reader(pick)
        consumer.credit += credit
        assert consumer.feed is not None
        self.world.on_loop(consumer.feed.run)

    @precondition(lambda self: self.world.log_consumers)
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        consumer = self.reader(pick)
        self.world.log_consumers.remove(consumer)
        assert consumer.feed is not None
        self.world.on_loop(consumer.feed.close)

    def reader(self, pick: int) -> LogConsumer:
        return self.world.log_consumers[pick % len(self.world.log_consumers)]

    # --- points -----------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(POINTS), is_prompt=st.booleans())
    def make_point(self, name: str, is_prompt: bool) -> None:
        self.spawn(self._make_point, name, is_prompt=is_prompt)

    async def _make_point(self, name: str) -> None:
        serial = self.serial
        point = await self.world.vpn.log.create_point(name)
        if self.world.broker.points.get(name) is point:
            assert self.world.store.points[name] == point, "told before it was durable"
            self.points[name] = (point, serial)

    @precondition(lambda self: self.points)
    @rule(pick=picks)
    def delete_point(self, pick: int) -> None:
        self.spawn(self._delete_point, sorted(self.points)[pick % len(self.points)])

    async def _delete_point(self, name: str) -> None:
        point = self.points.pop(name, None)
        deleted = self.world.broker.points.get(name)
        try:
            await self.world.vpn.log.delete_point(name)
        except Refused:
            if point is not None and name in self.world.broker.points:
                self.points[name] = point
            raise
        # Of two deletions one may fail and put the point back; the other has deleted it.
        if name in self.points and self.points[name][0] is deleted:
            del self.points[name]

    def check_points(self) -> None:
        """Messages published before a point have lower ids than it; later ones do not, whatever crashed."""
        for name, (point, serial) in self.points.items():
            assert self.world.store.points[name] == point
            for row in self.world.store.published.values():
                number = int(row[CONTENT].rpartition(b"\x75\xa0")[2][1:].split()[0])
                assert (number < serial) == (row[0] < point.position)

    # --- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Every reader that can still read has read everything."""
        world = self.world
        for _ in range(3):
            for consumer in world.log_consumers:
                consumer.credit += 1_000
                if consumer.feed is not None:
                    world.on_loop(consumer.feed.run)
            world.settle_down()
            world.check_at_rest()
            self.check_points()


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=times(500, 50_000, dev=100),
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
)
