"""What a Message VPN does where something outside it fails, or something ends otherwise than it was to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.config import AlarmThresholds
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings
from gateway.core.errors import Refused
from gateway.core.model import ID, Row
from gateway.vpn.clients import OwnClient
from gateway.vpn.replay_records import DELETED, REPLACED
from gateway.vpn.replays import TRY_AGAIN_S
from gateway.vpn.role import ArchivedSource
from gateway.vpn.tracing import MessageTracing, Span
from gateway.vpn.upkeep import archiving
from gateway.vpn.upkeep.archiving import Archiving
from gateway.vpn.upkeep.trimming import TRIM_AT
from store.errors import ReadFailed
from tests.gateway.core.machines.model import message
from tests.gateway.core.machines.world import Sizes, World


@pytest.fixture
def world() -> Iterator[World]:
    """A Message VPN that moves only when the test says so, with a small cache."""
    world = World(Sizes(page_rows=10, quantum=10, tail_bytes=1))
    world.settle_down()
    yield world
    world.loop.close()


# --- The archiver -----------------------------------------------------------------------------------------------------


class _Process:
    """A process that writes a line, and nothing more."""

    returncode = None

    def __init__(self, line: bytes) -> None:
        self.stdin = SimpleNamespace(write=lambda data: None)
        self.stdout = self._lines(line)
        self.stderr = asyncio.StreamReader()
        self.is_terminated = False

    @staticmethod
    async def _lines(line: bytes) -> AsyncIterator[bytes]:
        yield line

    def terminate(self) -> None:
        self.is_terminated = True


@pytest.mark.parametrize("line", [None, b"a warning\n", b"7\n"], ids=["no process", "no JSON", "no report"])
def test_another_archiver_runs_after_one_that_failed(
    world: World, monkeypatch: pytest.MonkeyPatch, line: bytes | None
) -> None:
    """The reason is known meanwhile, for the alarm."""
    begun: list[_Process | None] = []

    async def create(*_: Any, **__: Any) -> _Process:
        begun.append(None if line is None else _Process(line))
        if begun[-1] is None:
            raise BlockingIOError("the system is out of processes")
        return begun[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
    source = ArchivedSource({}, "there", 60.0)
    archiver = Archiving(world.vpn.state, world.vpn.archive_watch, world.vpn.trimmer, source)
    world.on_loop(archiver.start)
    world.loop.run()
    assert len(begun) == 1 and archiver.problem
    assert all(process is None or process.is_terminated for process in begun)
    world.loop.advance(archiving.FIRST_SECONDS)
    assert len(begun) == 2


# --- Reads that fail --------------------------------------------------------------------------------------------------


class _Reads:
    """Counts the reads of a Message VPN's store, which fail at first."""

    def __init__(self, world: World) -> None:
        self.count = 0
        self.fail = True
        self._submit = world.reader.submit
        world.reader.submit = self._counted  # type: ignore[method-assign]

    def _counted(self, work: Any) -> Future[Any]:
        self.count += 1
        if not self.fail:
            return self._submit(work)
        failed: Future[Any] = Future()
        failed.set_exception(ReadFailed("the disk is gone"))
        return failed


def commit(world: World) -> None:
    """Commit what waits, while no time passes."""
    world.loop.run()
    while world.writer.waiting:
        world.writer.commit(len(world.writer.waiting))
        world.loop.run()


def publish(world: World, topic: str, count: int) -> None:
    """Publish messages, each in a commit of its own."""
    for _ in range(count):
        content, bare = message(len(world.store.published), 0, 0)
        world.publisher.waiting.add(content)
        publish = world.vpn.publishing.publish
        world.on_loop(partial(publish, world.publisher, topic, [content], [bare], [content]))
        commit(world)


def queue_with_messages(world: World) -> Endpoint:
    """A queue that attracts the topic ``a``, and has five messages in the store."""
    queue = world.vpn.endpoints.create("q", EndpointKind.QUEUE, EndpointSettings(), ["a"])
    world.new_content(queue, None)
    commit(world)
    publish(world, "a", 5)
    return queue


class _Link:
    """A consumer's link, which takes everything."""

    client: Any = OwnClient("ann")

    def __init__(self) -> None:
        self.received: list[int] = []

    def room(self) -> int:
        return 100

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        self.received += [row[ID] for row in rows]

    def nothing_to_send(self) -> None: ...

    def finish(self) -> None: ...

    def refuse(self, refused: Refused) -> None:
        raise AssertionError(refused)


def test_a_consumer_is_read_for_once_a_second_while_reads_fail(world: World) -> None:
    """However much is published meanwhile: each commit would otherwise cause a read, and a line in the log."""
    queue, reads, link = queue_with_messages(world), _Reads(world), _Link()
    flow = world.vpn.consumers.bind(queue, link)
    world.on_loop(lambda: world.vpn.consumers.set_demand(flow, 100))
    publish(world, "a", 20)
    assert reads.count == 1
    reads.fail = False
    world.loop.advance(1.0)
    world.settle_down()
    assert len(link.received) == 25


def test_a_replay_reads_once_a_second_while_reads_fail(world: World) -> None:
    """As a consumer does."""
    queue, reads = queue_with_messages(world), _Reads(world)
    world.on_loop(lambda: world.vpn.replays.start(queue, 1, None))
    publish(world, "a", 20)
    assert reads.count == 1
    reads.fail = False
    world.loop.advance(TRY_AGAIN_S)
    world.settle_down()
    assert queue.replay is not None
    assert queue.replay.put == world.tuning.replay_ahead_without_consumer


# --- Replays that are not told to end ---------------------------------------------------------------------------------


def test_a_replay_that_another_one_replaces_has_its_span(world: World) -> None:
    """So has one whose endpoint is deleted. Otherwise its links stay in memory, and count for the next replay."""
    queue, spans = queue_with_messages(world), list[Span]()
    replays = world.vpn.replays
    replays._tracing = MessageTracing(spans.append, "v", lambda: 0, 0.0)
    for _ in range(2):
        world.on_loop(lambda: replays.start(queue, 1, None))
        world.settle_down()
    world.on_loop(lambda: world.vpn.endpoints.delete(queue))
    assert [(span.name, span.error) for span in spans] == [("replay q", REPLACED), ("replay q", DELETED)]


# --- Writes that fail -------------------------------------------------------------------------------------------------


def test_an_erasure_that_is_durable_is_told_although_the_next_write_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the erasure it waits for the commits that are under way, whatever becomes of them."""

    async def drained() -> None: ...

    publish(world, "a", 3)
    scrubbed: list[float] = []
    monkeypatch.setattr(world.vpn.history, "drained", drained)
    monkeypatch.setattr(world.vpn.state.store, "scrub", scrubbed.append, raising=False)
    monkeypatch.setattr(world.loop, "run_in_executor", _on_the_spot, raising=False)
    with world.loop.running():
        erasing = world.loop.create_task(world.vpn.erasing.erase([2], "asked to"))
    world.loop.run()
    while not scrubbed:
        world.reader.read(len(world.reader.waiting))
        world.writer.commit(len(world.writer.waiting))
        world.loop.run()
    world.writer.fail(len(world.writer.waiting))
    world.loop.run()
    assert erasing.result().ids == [2]


def test_room_in_the_log_is_made_as_soon_as_the_store_works_again() -> None:
    """Although nobody publishes: the publishers wait for that room, and the first of them would be refused."""
    world = World(Sizes(page_rows=10, log_quota=2_000))
    queue_with_messages(world)
    size_bytes = world.broker.log.size_bytes // 5
    publish(world, "a", int(2_000 * TRIM_AT) // size_bytes - 5)
    first_id = world.broker.log.first_id
    world.on_loop(lambda: world.vpn.trimmer.make_room(8 * size_bytes))
    world.loop.run()
    world.writer.fail(len(world.writer.waiting))
    world.loop.run()
    assert world.broker.log.first_id == first_id
    world.on_loop(world.vpn.committer.try_store)
    commit(world)
    assert world.broker.log.first_id > first_id
    world.loop.close()


async def _on_the_spot(executor: None, work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


# --- Many endpoints ---------------------------------------------------------------------------------------------------


class _Watched(dict[str, Endpoint]):
    """The endpoints, which count how often somebody looks at all of them."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def test_a_look_for_alarms_looks_at_each_endpoint_once(world: World) -> None:
    """Also to know which of them are dead message queues: a look at all of them for each would be quadratic."""
    world.vpn.alarms.thresholds = AlarmThresholds(lag_messages=1)
    for number in range(10):
        settings = EndpointSettings(dead_message_queue=f"dead {number}")
        world.vpn.endpoints.create(f"q{number}", EndpointKind.QUEUE, settings)
    endpoints = world.broker.endpoints = _Watched(world.broker.endpoints)
    world.vpn.alarms.check()
    assert endpoints.looks == 1
