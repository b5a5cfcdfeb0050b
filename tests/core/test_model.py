"""
A whole Message VPN against a naive model of it, through whatever order of events Hypothesis comes up with.

What is real: ``MessageVpn`` with its broker, feeds, replay pumps and log sources. What is not: the loop, the clock, the
store's threads and the links, so that a test decides when a commit, a page or a callback comes, and what fails.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import structlog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp_ext.addresses import queue_topic
from amqp_ext.replay_id import ReplayId
from amqp_ext.replay_start import Missing, ReplayStart, StartKind, Until, UntilKind
from gateway.config import Limits, ReplayLog, Store, Vpn
from gateway.core import endpoint as endpoint_module
from gateway.core.endpoint import Endpoint, EndpointKind, EndpointSettings, Exclusivity
from gateway.core.errors import Refused
from gateway.vpn import log_feed, message_vpn, replay_pump
from gateway.vpn.message_vpn import MessageVpn
from tests.core.model import Consumer, Content, LogConsumer, Publisher, matches
from tests.core.naive_store import GENERATION, NaiveReader, NaiveStore, NaiveWriter
from tests.core.step_loop import StepLoop

EXAMPLES = {"dev": 25, "ci": 40, "nightly": 20_000}

NAMES = ("q1", "q2", "t1")
UNLOGGED = "c/x"
TOPICS = ("a/x", "a/y", "b/x", UNLOGGED, queue_topic("q1"), queue_topic("q2"))
SUBSCRIPTIONS = ((), ("a/>",), ("a/x", "b/x"), (">",), ("c/>", "a/y"))
LOG_PATTERNS = ((">",), ("a/>",), (queue_topic("q1"),), ("b/x", UNLOGGED))
NOTHING_ASKED = ReplayStart(StartKind.LIVE)

picks = st.integers(0, 20)
few = st.integers(1, 4)


@st.composite
def starts(draw: st.DrawFn, *, until: bool = False) -> ReplayStart:
    """Any start that can be found in a log; numbers are near the beginning, and clamped where they are not there."""
    kind = draw(
        st.sampled_from(
            [
                StartKind.BEGINNING,
                StartKind.LAST,
                StartKind.DATE,
                StartKind.OFFSET,
                StartKind.AFTER,
                StartKind.AT,
            ]
        )
    )
    number = draw(st.integers(1, 12))
    value: int | ReplayId | None = None
    if kind in (StartKind.AFTER, StartKind.AT):
        value = ReplayId(GENERATION, number)
    elif kind in (StartKind.DATE, StartKind.OFFSET):
        value = number
    end = None
    if until:
        end = draw(
            st.none()
            | st.just(Until(UntilKind.NOW))
            | st.integers(1, 20).map(lambda i: Until(UntilKind.OFFSET, i))
        )
    return ReplayStart(kind, value, until=end, missing=Missing.CLAMP)


class ObservedVpn(MessageVpn):
    """Tells the model when a replay fails, which nobody asks for."""

    on_failed: Callable[[Endpoint], None]

    def fail_replay(self, endpoint: Endpoint, reason: str) -> None:
        super().fail_replay(endpoint, reason)
        self.on_failed(endpoint)


class VpnMachine(RuleBasedStateMachine):
    """Rules are what clients, administrators, threads and disks do; the checks are below them."""

    def __init__(self) -> None:
        super().__init__()
        self.store = NaiveStore()
        self.publisher = Publisher(self.store)
        self.contents: dict[int, Content] = {}
        self.consumers: list[Consumer] = []
        self.departed: list[Consumer] = []
        self.log_consumers: list[LogConsumer] = []
        self.clock = 1
        self.serial = 0
        self._patches = contextlib.ExitStack()

    @initialize(
        window=st.integers(1, 6),
        page_rows=st.integers(1, 4),
        tail_bytes=st.sampled_from([1, 1_000, 100_000]),
        ahead=st.integers(1, 5),
        quantum=st.integers(1, 4),
    )
    def start(self, window: int, page_rows: int, tail_bytes: int, ahead: int, quantum: int) -> None:
        self.page_rows = page_rows
        self.limits = Limits(
            endpoint_window=window,
            read_page_rows=page_rows,
            tail_bytes=tail_bytes,
            max_unsettled_per_flow=ahead,
        )
        stack = self._patches
        stack.enter_context(patch.object(endpoint_module, "FLOW_QUANTUM", quantum))
        stack.enter_context(patch.object(log_feed, "SLICE_ROWS", quantum))
        stack.enter_context(patch.object(replay_pump, "AHEAD_WITHOUT_CONSUMER", ahead + 1))
        stack.enter_context(
            patch.multiple(
                message_vpn,
                open_file=lambda *args, **kwargs: None,
                recover=lambda path: self.store.recover(),
                Reader=lambda *args, **kwargs: self.reader,
                Writer=lambda path, on_commit, **kwargs: NaiveWriter(self.store, on_commit),
                now_ms=lambda: self.clock,
                log=structlog.wrap_logger(structlog.ReturnLogger(), processors=[]),
            )
        )
        self.open()

    def open(self) -> None:
        self.loop = StepLoop()
        self.reader = NaiveReader(self.store, self.page_rows)
        with self.loop.running():
            self.vpn = ObservedVpn(
                "default",
                Vpn(replay_log=ReplayLog(topics=(f"!{UNLOGGED}",))),
                self.limits,
                Store(),
                SimpleNamespace(file_of=Path),  # type: ignore[arg-type]
            )
            self.vpn.on_failed = lambda endpoint: self.new_content(endpoint, None)
            self.vpn.start()
        self.broker = self.vpn.broker
        self.writer: NaiveWriter = self.vpn._writer  # type: ignore[assignment]

    def teardown(self) -> None:
        try:
            if hasattr(self, "vpn"):
                self.everybody_reads_on()
                self.publisher.check()
        finally:
            self.loop.close()
            self._patches.close()

    # --- endpoints --------------------------------------------------------------------------------------------------

    def new_content(self, endpoint: Endpoint, replay_from: int | None) -> Content:
        content = self.contents[endpoint.number] = Content(
            self.store, endpoint.number, replay_from, self.takes(endpoint)
        )
        return content

    @staticmethod
    def takes(endpoint: Endpoint) -> Callable[[str], bool]:
        """Whether a topic goes to the endpoint, by its name or by what it subscribes to now."""
        patterns = [*endpoint.subscriptions]
        if endpoint.kind is EndpointKind.QUEUE:
            patterns.append(queue_topic(endpoint.name))
        return lambda topic: any(matches(pattern, topic) for pattern in patterns)

    @rule(
        name=st.sampled_from(NAMES),
        exclusive=st.sampled_from(Exclusivity),
        subscriptions=st.sampled_from(SUBSCRIPTIONS),
        temporary=st.booleans(),
    )
    def create(
        self, name: str, exclusive: Exclusivity, subscriptions: tuple[str, ...], temporary: bool
    ) -> None:
        if name in self.broker.endpoints:
            return
        kind = EndpointKind.TOPIC_ENDPOINT if name == "t1" else EndpointKind.QUEUE
        options = EndpointSettings(exclusive=exclusive, temporary=temporary and name == "t1")
        endpoint, effects = self.broker.create(name, kind, options, subscriptions)
        self.new_content(endpoint, None)
        self.on_loop(lambda: self.vpn.commit(effects))

    @precondition(lambda self: len(self.broker.endpoints) > 1)
    @rule(pick=picks)
    def delete(self, pick: int) -> None:
        endpoint = self.endpoint(pick)
        for consumer in [c for c in self.consumers if c.flow is not None and c.flow.endpoint is endpoint]:
            # Gone as far as anybody can see, although its link may yet say what became of its messages.
            consumer.left()
            self.consumers.remove(consumer)
            self.departed.append(consumer)
        self.on_loop(lambda: self.vpn.commit(self.broker.delete(endpoint)))

    @precondition(lambda self: self.broker.endpoints)
    @rule(pick=picks, subscriptions=st.sampled_from(SUBSCRIPTIONS))
    def subscribe(self, pick: int, subscriptions: tuple[str, ...]) -> None:
        endpoint = self.endpoint(pick)
        if endpoint.replay is None or not endpoint.replay.is_reading:
            self.on_loop(lambda: self.vpn.commit(self.broker.set_subscriptions(endpoint, subscriptions)))

    def endpoint(self, pick: int) -> Endpoint:
        names = sorted(self.broker.endpoints)
        return self.broker.endpoints[names[pick % len(names)]]

    # --- publishing -------------------------------------------------------------------------------------------------

    @rule(
        topic=st.sampled_from(TOPICS),
        count=st.integers(1, 5),
        is_direct=st.booleans(),
        padding=st.integers(0, 3),
    )
    def publish(self, topic: str, count: int, is_direct: bool, padding: int) -> None:
        contents = [b"%d %*s" % (self.serial + k, padding, b"") for k in range(count)]
        self.serial += count
        for endpoint in self.broker.endpoints.values():
            if self.takes(endpoint)(topic):
                self.contents[endpoint.number].routed.update(contents)
        self.on_loop(
            lambda: self.vpn.publish(
                self.publisher,
                topic,
                contents,
                [0] * count,
                [] if is_direct else list(contents),
                is_direct=is_direct,
            )
        )

    # --- consuming --------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.broker.endpoints)
    @rule(
        pick=picks,
        start=st.none() | starts(),
        credit=st.integers(0, 12),
        epoch=st.none() | few,
        is_pre_settled=st.sampled_from([False, False, False, True]),
    )
    def attach(
        self, pick: int, start: ReplayStart | None, credit: int, epoch: int | None, is_pre_settled: bool
    ) -> None:
        endpoint = self.endpoint(pick)
        consumer = Consumer(self.vpn, self.limits.max_unsettled_per_flow, is_pre_settled=is_pre_settled)
        consumer.credit = credit
        self.spawn(self._attach, endpoint, consumer, start, epoch)

    async def _attach(
        self, endpoint: Endpoint, consumer: Consumer, start: ReplayStart | None, epoch: int | None
    ) -> None:
        """As the wire side does it."""
        vpn, broker = self.vpn, self.broker
        resolved = await vpn.resolve_start(start or NOTHING_ASKED, broker.topic_patterns(endpoint))
        if broker.find(endpoint.name) is not endpoint:
            return
        if start is not None:
            broker.check_replay(endpoint, by_client=True)
        flow = vpn.bind(endpoint, consumer, epoch)
        if start is not None:
            effects = vpn.start_replay(endpoint, resolved.first, flow)
            self.new_content(endpoint, resolved.first)
            consumer.content = self.contents[endpoint.number]
            try:
                await vpn.committed(effects)
            except Refused:
                consumer.left()
                vpn.unbind(flow)
                raise
        if flow not in endpoint.flows or broker.find(endpoint.name) is not endpoint:
            return
        consumer.flow = flow
        consumer.content = self.contents[endpoint.number]
        self.consumers.append(consumer)
        consumer.ask()

    @precondition(lambda self: self.broker.endpoints)
    @rule(pick=picks, start=starts())
    def administrator_replays(self, pick: int, start: ReplayStart) -> None:
        self.spawn(self._replay, self.endpoint(pick), start)

    async def _replay(self, endpoint: Endpoint, start: ReplayStart) -> None:
        resolved = await self.vpn.resolve_start(start, self.broker.topic_patterns(endpoint))
        if self.broker.find(endpoint.name) is endpoint:
            self.broker.check_replay(endpoint, by_client=False)
            effects = self.vpn.start_replay(endpoint, resolved.first, None)
            self.new_content(endpoint, resolved.first)
            await self.vpn.committed(effects)

    @precondition(lambda self: self.consumers)
    @rule(pick=picks, credit=st.integers(1, 12))
    def credit(self, pick: int, credit: int) -> None:
        consumer = self.consumer(pick)
        consumer.credit += credit
        self.on_loop(consumer.ask)

    @precondition(lambda self: self.consumers)
    @rule(pick=picks, data=st.data())
    def settle(self, pick: int, data: st.DataObject) -> None:
        consumer = self.consumer(pick)
        ids = self.some_unsettled(consumer, data)
        self.on_loop(lambda: (consumer.settle(ids), consumer.ask()))

    @precondition(lambda self: self.consumers)
    @rule(pick=picks)
    def settle_all(self, pick: int) -> None:
        consumer = self.consumer(pick)
        assert consumer.content is not None
        ids = [i for i, holder in consumer.content.unsettled.items() if holder is consumer]
        self.on_loop(lambda: (consumer.settle(ids), consumer.ask()))

    @precondition(lambda self: self.consumers)
    @rule(pick=picks, data=st.data(), failed=st.booleans())
    def release(self, pick: int, data: st.DataObject, failed: bool) -> None:
        consumer = self.consumer(pick)
        ids = self.some_unsettled(consumer, data)
        self.on_loop(lambda: (consumer.release(ids, failed=failed), consumer.ask()))

    def some_unsettled(self, consumer: Consumer, data: st.DataObject) -> list[int]:
        assert consumer.content is not None
        ids = [i for i, holder in consumer.content.unsettled.items() if holder is consumer]
        return data.draw(st.lists(st.sampled_from(ids), unique=True)) if ids else []

    @precondition(lambda self: self.consumers or self.departed)
    @rule(pick=picks, data=st.data())
    def settle_late(self, pick: int, data: st.DataObject) -> None:
        """What is not unsettled on a link any more can be settled as often as its peer likes."""
        consumer = (self.consumers + self.departed)[pick % len(self.consumers + self.departed)]
        own = consumer.content.unsettled if consumer.content is not None else {}
        ids = [i for i in consumer.history if own.get(i) is not consumer]
        flow = consumer.flow
        if ids and flow is not None:
            late = data.draw(st.lists(st.sampled_from(ids), unique=True))
            self.on_loop(lambda: self.vpn.settle(flow, late))

    @precondition(lambda self: self.consumers)
    @rule(which=st.sets(picks, min_size=1, max_size=3))
    def drop_connection(self, which: set[int]) -> None:
        for consumer in {id(c): c for c in map(self.consumer, which)}.values():
            consumer.left()
            self.consumers.remove(consumer)
            self.departed.append(consumer)
            flow = consumer.flow
            assert flow is not None
            self.on_loop(lambda flow=flow: self.vpn.unbind(flow))

    def consumer(self, pick: int) -> Consumer:
        return self.consumers[pick % len(self.consumers)]

    # --- the log ----------------------------------------------------------------------------------------------------

    @rule(
        patterns=st.sampled_from(LOG_PATTERNS),
        start=st.just(NOTHING_ASKED) | starts(until=True),
        credit=st.integers(0, 12),
    )
    def read_log(self, patterns: tuple[str, ...], start: ReplayStart, credit: int) -> None:
        self.spawn(self._read_log, patterns, start, credit)

    async def _read_log(self, patterns: tuple[str, ...], start: ReplayStart, credit: int) -> None:
        resolved = await self.vpn.resolve_start(start, patterns)
        consumer = LogConsumer(self.store, patterns, resolved.first, resolved.last)
        consumer.has_history = any(i < self.broker.log.next_id for i in consumer.due)
        consumer.feed = self.vpn.read_log(resolved, patterns, consumer)
        consumer.credit = credit
        self.log_consumers.append(consumer)
        consumer.feed.run()

    @precondition(lambda self: self.log_consumers)
    @rule(pick=picks, credit=st.integers(1, 12))
    def log_credit(self, pick: int, credit: int) -> None:
        consumer = self.log_consumers[pick % len(self.log_consumers)]
        consumer.credit += credit
        assert consumer.feed is not None
        self.on_loop(consumer.feed.run)

    @precondition(lambda self: self.log_consumers)
    @rule(pick=picks)
    def leave_log(self, pick: int) -> None:
        consumer = self.log_consumers.pop(pick % len(self.log_consumers))
        assert consumer.feed is not None
        self.on_loop(consumer.feed.close)

    # --- threads, disks, time ---------------------------------------------------------------------------------------

    @rule()
    def turn(self) -> None:
        self.loop.run()

    @rule(count=few)
    def commit(self, count: int) -> None:
        self.loop.run()
        self.writer.commit(count)

    @rule(count=few)
    def fail_to_commit(self, count: int) -> None:
        self.loop.run()
        self.writer.fail(count)

    @rule(count=few)
    def read(self, count: int) -> None:
        self.loop.run()
        self.reader.read(count)

    @rule(count=few)
    def fail_to_read(self, count: int) -> None:
        self.loop.run()
        self.reader.fail(count)

    @rule(milliseconds=st.integers(-3, 5))
    def time_passes(self, milliseconds: int) -> None:
        """Clocks are set back, too."""
        self.clock += milliseconds
        self.loop.advance(max(milliseconds, 0) / 1_000)

    @rule()
    def settle_down(self) -> None:
        """Every thread does what it has to do."""
        while True:
            self.loop.run()
            if self.writer.waiting:
                self.writer.commit(len(self.writer.waiting))
            elif self.reader.waiting:
                self.reader.read(len(self.reader.waiting))
            elif self.loop.has_timers:
                self.loop.advance(1.0)
            elif self.loop.is_idle:
                break
        self.check_at_rest()

    @rule(is_clean=st.booleans())
    def restart(self, is_clean: bool) -> None:
        """A stop that commits what is under way, or a crash that does not."""
        if is_clean:
            self.settle_down()
        for consumer in self.consumers:
            consumer.content = None
        self.consumers.clear()
        self.departed.clear()
        self.log_consumers.clear()
        self.contents = {number: self.contents[number] for number in self.store.endpoints}
        for content in self.contents.values():
            content.restarted()
        self.loop.close()
        self.open()

    def everybody_reads_on(self) -> None:
        for _ in range(3):
            for consumer in self.consumers:
                consumer.credit += 1_000
                self.on_loop(consumer.ask)
            for reader in self.log_consumers:
                reader.credit += 1_000
                if reader.feed is not None:
                    self.on_loop(reader.feed.run)
            self.settle_down()

    def on_loop(self, call: Callable[[], object]) -> None:
        with self.loop.running():
            call()
        self.look_after_links()

    def spawn(self, order: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        async def guarded() -> None:
            with contextlib.suppress(Refused, sqlite3.Error):
                await order(*args)

        self.loop.create_task(guarded())

    def look_after_links(self) -> None:
        """Links that were detached by the gateway are links no more."""
        self.departed += [c for c in self.consumers if c.content is None]
        self.consumers = [c for c in self.consumers if c.content is not None]
        self.log_consumers = [c for c in self.log_consumers if c.is_open]

    # --- checks -----------------------------------------------------------------------------------------------------

    @invariant()
    def each_message_is_in_one_place(self) -> None:
        if not hasattr(self, "vpn"):
            return
        self.look_after_links()
        for endpoint in self.broker.endpoints.values():
            here = [
                *endpoint.returned,
                *endpoint.front,
                *endpoint.recent,
                *endpoint.awaiting_replay,
                *(i for flow in endpoint.flows for i in flow.unsettled),
            ]
            assert len(here) == len(set(here)), "in one place"
            content = self.contents[endpoint.number]
            assert content.ids.issuperset(here), "and nowhere else"
            assert content.gone.isdisjoint(here)

    @invariant()
    def log_readers_miss_nothing(self) -> None:
        for consumer in self.log_consumers:
            consumer.check()

    def check_at_rest(self) -> None:
        """Everything was committed, read and told."""
        self.look_after_links()
        for endpoint in self.broker.endpoints.values():
            content = self.contents[endpoint.number]
            stored = self.store.references[endpoint.number]
            assert endpoint.depth == len(stored)
            assert endpoint.size_bytes == sum(len(self.store.published[i][5]) for i in stored)
            beyond = {i for i in stored if endpoint.horizon < i <= endpoint.beyond}
            here = [
                *endpoint.returned,
                *endpoint.front,
                *endpoint.recent,
                *endpoint.awaiting_replay,
                *content.unsettled,
            ]
            assert sorted([*here, *beyond]) == sorted(stored)
            replay = endpoint.replay
            is_reading = replay is not None and replay.is_reading
            if not is_reading:
                assert stored == content.ids - content.gone
            is_held_up = is_reading and len(content.unsettled) >= self.limits.max_unsettled_per_flow
            flow = endpoint.next_flow()
            if flow is not None and not is_held_up:
                assert content.next_due is None, f"{content.next_due} is due, and a consumer waits"
        for consumer in self.log_consumers:
            consumer.check()
            consumer.check_end()


# Minutes of a core: HYPOTHESIS_PROFILE=nightly pytest tests/core/test_model.py
TestVpn = pytest.mark.skipif(
    settings.get_current_profile_name() != "nightly", reason="the model machine runs in the nightly profile"
)(VpnMachine.TestCase)
TestVpn.settings = settings(
    max_examples=EXAMPLES.get(settings.get_current_profile_name(), 100), stateful_step_count=50
)
