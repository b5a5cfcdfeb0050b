"""What both machines share: publishing, threads and disks that succeed or fail, time, and stops."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from amqp_ext.addresses.address import queue_topic
from amqp_ext.replay_id import ReplayId
from amqp_ext.replay_start import Missing, ReplayStart, StartKind, Until, UntilKind
from gateway.core.errors import Refused
from store.errors import ReadFailed
from tests.gateway.core.machines.model import message
from tests.gateway.core.machines.naive_threads import GENERATION
from tests.gateway.core.machines.world import UNLOGGED, Sizes, World

TOPICS = ("a/x", "a/x", "a/x", "a/y", "b/x", UNLOGGED, queue_topic("q1"), queue_topic("q2"))

picks = st.integers(0, 7)
few = st.integers(1, 4)
mostly = st.sampled_from([True, True, True, False])

sizes = st.builds(
    Sizes,
    window=st.integers(1, 6),
    page_rows=st.integers(1, 4),
    tail_bytes=st.sampled_from([1, 1, 1_000, 100_000]),
    ahead_bytes=st.sampled_from([1, 600, 1_000_000]),
    ahead=st.integers(1, 5),
    quantum=st.integers(1, 4),
    is_quick=st.sampled_from([False, False, True]),
    log_quota=st.sampled_from([0, 0, 0, 1_200]),
)


def _start(kind: StartKind, number: int, until: int) -> ReplayStart:
    """Numbers are near the beginning; a place that does not exist is clamped."""
    value: Any = None
    if kind in (StartKind.AFTER, StartKind.AT):
        value = ReplayId(GENERATION, number)
    elif kind is StartKind.DATE:
        value = 1_000 + number
    elif kind in (StartKind.OFFSET, StartKind.NEWEST):
        value = number
    end = None
    if until:
        end = Until(UntilKind.NOW) if until == 1 else Until(UntilKind.OFFSET, until)
    return ReplayStart(kind, value, until=end, missing=Missing.CLAMP)


KINDS = (
    StartKind.BEGINNING,
    StartKind.BEGINNING,
    StartKind.OFFSET,
    StartKind.AFTER,
    StartKind.AT,
    StartKind.LAST,
    StartKind.NEWEST,
    StartKind.DATE,
)

starts = st.builds(_start, st.sampled_from(KINDS), st.integers(1, 12), st.just(0))
bounded_starts = st.builds(
    _start, st.sampled_from((*KINDS, StartKind.LIVE, StartKind.LIVE)), st.integers(1, 12), st.integers(0, 20)
)


class VpnMachine(RuleBasedStateMachine):
    """Rules are what clients, administrators, threads and disks do; the world makes the checks."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.serial = 0

    @initialize(sizes=sizes, history=st.integers(0, 6))
    def start(self, sizes: Sizes, history: int = 0) -> None:
        self.world = World(sizes)
        self.begin()
        if history:
            self.publish("a/x", history, False, 0, 0)
        self.world.settle_down()

    def begin(self) -> None:
        """Create what a machine has from the beginning."""

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.finish()
            finally:
                self.world.loop.close()

    def finish(self) -> None:
        """Check what must be true in the end."""
        raise NotImplementedError

    # --- publishing -------------------------------------------------------------------------------------------------

    @rule(
        topic=st.sampled_from(TOPICS),
        count=st.integers(1, 5),
        is_direct=st.sampled_from([False, False, False, True]),
        padding=st.integers(0, 3),
        ttl_ms=st.sampled_from([0, 0, 0, 1, 5]),
    )
    def publish(self, topic: str, count: int, is_direct: bool, padding: int, ttl_ms: int) -> None:
        world = self.world
        made = [message(self.serial + k, padding, ttl_ms) for k in range(count)]
        contents = [content for content, _ in made]
        self.serial += count
        deliveries = [] if is_direct else list(contents)
        world.publisher.waiting.update(deliveries)
        world.on_loop(
            lambda: world.vpn.publishing.publish(
                world.publisher, topic, contents, [bare for _, bare in made], deliveries, is_direct=is_direct
            )
        )

    # --- threads, disks, time ---------------------------------------------------------------------------------------

    @rule(count=few)
    def commit(self, count: int) -> None:
        self.world.loop.run()
        self.world.writer.commit(count)

    @rule(count=few)
    def read(self, count: int) -> None:
        self.world.loop.run()
        self.world.reader.read(count)

    @rule(count=few, is_write=st.booleans())
    def disk_fails(self, count: int, is_write: bool) -> None:
        self.world.loop.run()
        if is_write:
            self.world.has_failed_to_write = True
            self.world.writer.fail(count)
        else:
            self.world.reader.fail(count)

    @rule(milliseconds=st.integers(-3, 6))
    def time_passes(self, milliseconds: int) -> None:
        """Clocks may be set back, too."""
        self.world.clock.now += milliseconds
        self.world.loop.advance(max(milliseconds, 0) / 5)

    @rule()
    def settle_down(self) -> None:
        """Every thread does all of its work."""
        self.world.settle_down()
        self.world.check_at_rest()

    @rule(is_clean=st.booleans())
    def restart(self, is_clean: bool) -> None:
        """A stop that commits what is pending, or a crash that does not."""
        if is_clean:
            self.settle_down()
        self.world.crash()

    @rule(before=st.integers(1, 30))
    def trim(self, before: int) -> None:
        self.spawn(self._trim, before)

    async def _trim(self, before: int) -> None:
        world = self.world
        first_id = await world.vpn.trimmer.trim_before(before)
        assert first_id == world.store.first_id
        assert first_id >= min(before, world.vpn.broker.history.first_id)

    def spawn(
        self, order: Callable[..., Coroutine[Any, Any, None]], *args: Any, is_prompt: bool = False
    ) -> None:
        """Start a task; with ``is_prompt``, what it reads from the store is read immediately."""

        async def guarded() -> None:
            with contextlib.suppress(Refused, ReadFailed):
                await order(*args)

        world = self.world
        world.loop.create_task(guarded())
        if is_prompt:
            world.loop.run()
            world.reader.read(len(world.reader.waiting))
            world.loop.run()

    # --- checks -----------------------------------------------------------------------------------------------------

    @invariant()
    def each_message_is_in_one_place(self) -> None:
        if hasattr(self, "world"):
            self.world.look_after_links()
            self.world.check_places()
