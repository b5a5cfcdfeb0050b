"""A role: watching the lease, and reading from a standby."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from amqp_ext.replay_start import parse_text
from gateway.app import Gateway
from gateway.config import Vpn, VpnStore
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import RetentionMark
from gateway.core.model import LogState, Row
from gateway.core.replay.starts import Resolved
from gateway.vpn import hosted, standby
from gateway.vpn.role import LOOK_SECONDS, Lease
from gateway.vpn.runtime import Runtime
from gateway.vpn.standby import Following, StandbyReads
from store.errors import LogTrimmed, ReadFailed
from store.following import FollowedStore, ToldDefinitions, ToldLog
from store.ports import LogPage
from tests.support.client import Client
from tests.support.messages import data
from tests.support.running import RunningGateway, settings_for

# --- How long a gateway delivers after a commit, with a clock and a loop of the test's own ----------------------------


class World:
    """A clock, the time of a writer's newest commit, and timers that the test fires."""

    def __init__(self) -> None:
        self.now = 100.0
        self.confirmed_at = 100.0
        self.timers: list[Any] = []
        self.resumed: list[str] = []
        loop: Any = SimpleNamespace(call_later=self._call_later)
        self.lease = Lease(lambda: self.confirmed_at, lambda: 5.0, loop, lambda: self.now)

    def _call_later(self, seconds: float, call: Any) -> Any:
        assert seconds == LOOK_SECONDS
        timer = SimpleNamespace(call=call, cancel=lambda: self.timers.remove(timer))
        self.timers.append(timer)
        return timer

    def first(self) -> None:
        self.resumed.append("first")

    def second(self) -> None:
        self.resumed.append("second")

    def look(self) -> None:
        """Fire the timer."""
        (timer,) = self.timers
        self.timers.clear()
        timer.call()


def test_it_holds_as_long_as_it_lasts() -> None:
    """It counts from the start of the newest commit; a newer commit renews it."""
    world = World()
    world.now = 104.9
    assert world.lease.holds()
    world.now = 105.0
    assert not world.lease.holds() and world.lease.age_seconds == 5.0
    world.confirmed_at = 104.0
    assert world.lease.holds()


def test_whoever_waits_goes_on_once() -> None:
    """However often it asked to wait, and only when the lease holds again; without waiters there is no timer."""
    world = World()
    world.now = 110.0
    assert not world.timers
    for waiting in (world.first, world.second, world.first):
        world.lease.wait(waiting)
    world.lease.forget(world.second)
    world.look()
    assert world.resumed == []
    world.confirmed_at = 109.0
    world.look()
    assert world.resumed == ["first"] and not world.timers


def test_who_has_to_wait_again_is_not_called_at_once() -> None:
    """A waiter that has to wait again while it is resumed is called at the next look."""
    world = World()
    world.now = 110.0

    def again() -> None:
        world.resumed.append("again")
        world.lease.wait(again)

    world.lease.wait(again)
    world.confirmed_at = 109.0
    world.look()
    assert world.resumed == ["again"] and len(world.timers) == 1


def test_one_that_has_ended_never_holds_again() -> None:
    """Another gateway has the store, so commits of this one have no meaning any more."""
    world = World()
    world.lease.wait(world.first)
    world.lease.end()
    world.confirmed_at = world.now = 200.0
    assert not world.lease.holds() and not world.timers
    world.lease.wait(world.second)
    assert not world.timers and world.resumed == []


# --- When readers may stay on a standby, and what they are told otherwise ---------------------------------------------

WAIT_SECONDS = 20.0


def row(message_id: int) -> Row:
    return (message_id, 1_700_000_000_000, "a", 0, 0, None, b"x")


class Standby:
    """A fake standby, whose log grows as the test says."""

    place = engine = "a double"

    def __init__(self, *, commits: bool = True) -> None:
        self.next_id = 1
        self.first_id = 1
        self.generation = 7
        self.commit_no = 1
        self.commits = commits
        self.fails = False
        self.is_closed = threading.Event()
        self.marks: list[RetentionMark] = []
        self.told_marks: list[list[RetentionMark]] = []
        self.reader = SimpleNamespace(log_page=self._page)

    def look(self) -> ToldLog:
        if self.fails:
            raise ReadFailed("it is gone")
        self.commit_no += self.commits
        return ToldLog(
            LogState(self.generation, self.first_id, self.next_id, 0, 0), self.commit_no, list(self.marks)
        )

    def told_taken_out(self, marks: Sequence[RetentionMark]) -> None:
        self.told_marks.append(list(marks))

    def definitions(self) -> ToldDefinitions:
        return ToldDefinitions((), ())

    def _page(self, position: int, end: int, patterns: Sequence[str]) -> LogPage:
        if position < self.first_id:
            raise LogTrimmed(position, self.first_id)
        stop = min(end, position + 10)
        return LogPage([row(found) for found in range(position, stop)], stop)

    def close(self) -> None:
        self.is_closed.set()


class Scene:
    """Follows a standby on a loop; it is opened once only."""

    def __init__(self, standby: Standby) -> None:
        self.standby = standby
        self.begun: list[FollowedStore] = []
        self.positions: list[int] = []
        self.ids: list[int] = []
        self.passed_over_to = 0
        self.taken_out_marks: list[RetentionMark] = []
        self.changed = asyncio.Event()
        self.why: str | None = None
        runtime = Runtime(asyncio.get_running_loop(), structlog.get_logger())
        self.reads = StandbyReads("v", runtime, self._open, self._begin, self._end)

    def _open(self) -> Any:
        if self.begun:
            raise RuntimeError("once is enough")
        return self.standby

    def _begin(self, store: FollowedStore) -> Any:
        self.begun.append(store)
        self.changed.set()
        return self

    def _end(self, why: str) -> None:
        self.why = why
        self.changed.set()

    def told(self, log: LogState, rows: Sequence[Row], now: float) -> None:
        self.positions.append(log.next_id)
        self.ids += [found[0] for found in rows]
        self.changed.set()

    def passed_over(self, log: LogState, now: float) -> None:
        self.passed_over_to = log.next_id
        self.changed.set()

    def taken_out(self, marks: Sequence[RetentionMark]) -> None:
        # The store is told after the readers.
        assert list(marks) not in self.standby.told_marks
        self.taken_out_marks = list(marks)
        self.changed.set()

    def defined(self, definitions: ToldDefinitions) -> None:
        pass

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten all waits."""
    for name in ("LOOK_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(standby, name, 0.002)
    monkeypatch.setattr(standby, "LOST_SECONDS", 0.05)
    monkeypatch.setattr(standby, "STALE_SECONDS", 0.2)


def follow(standby: Standby, play: Any) -> Scene:
    async def run() -> Scene:
        scene = Scene(standby)
        scene.reads.start()
        try:
            await scene.until(lambda: scene.begun)
            await play(scene)
        finally:
            scene.reads.close()
        return scene

    return asyncio.run(run())


def test_what_is_new_is_told_page_by_page() -> None:
    """Every message once, in order, and never beyond what the standby has reported."""

    async def play(scene: Scene) -> None:
        for next_id in (5, 31, 32):
            scene.standby.next_id = next_id
            await scene.until(lambda at=next_id: scene.positions[-1:] == [at])

    scene = follow(Standby(), play)
    assert scene.ids == list(range(1, 32)) and scene.why is None


def test_pages_are_held_against_what_readers_were_told_rules_took_out() -> None:
    """Pages are checked against the marks that readers have been told: at the start, and with each new mark."""
    standby, first = Standby(), RetentionMark("r", 5, 1)
    standby.marks = [first]

    async def play(scene: Scene) -> None:
        scene.standby.marks = [RetentionMark("r", 9, 1)]
        await scene.until(lambda: scene.taken_out_marks)

    scene = follow(standby, play)
    assert standby.told_marks[0] == [first] and scene.why is None
    assert scene.taken_out_marks == standby.told_marks[-1] == [RetentionMark("r", 9, 1)]


def test_what_is_too_much_or_trimmed_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers then read these messages from the store themselves."""
    monkeypatch.setattr(standby, "PAGES_AT_ONCE", 2)

    async def play(scene: Scene) -> None:
        scene.standby.next_id = 1_000
        await scene.until(lambda: scene.passed_over_to == 1_000)
        scene.standby.first_id = 1_500
        scene.standby.next_id = 2_000
        await scene.until(lambda: scene.passed_over_to == 2_000)

    assert follow(Standby(), play).ids == list(range(1, 21))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"generation": 8}, "another log"),
        ({"next_id": 3}, "another log"),
        ({"commit_no": -1_000_000}, "behind"),
        ({"commits": False}, "no commit for"),
        ({"fails": True}, "cannot be read: it is gone"),
    ],
)
def test_readers_do_not_stay_on_one_that_is_not_what_it_was(change: dict[str, Any], why: str) -> None:
    """Another log, one that shrinks, a standby without a primary, or no answer: readers are sent away."""

    async def play(scene: Scene) -> None:
        scene.standby.next_id = 9
        await scene.until(lambda: scene.positions[-1:] == [9])
        for name, value in change.items():
            setattr(scene.standby, name, value)
        await scene.until(lambda: scene.why is not None)

    scene = follow(Standby(), play)
    assert scene.why is not None and why in scene.why


def test_nothing_is_told_once_it_is_closed() -> None:
    """It is closed when this gateway is about to take over the store."""

    async def play(scene: Scene) -> None:
        scene.reads.close()
        told = len(scene.positions)
        scene.standby.next_id = 9
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(scene.positions) == told

    assert follow(Standby(), play).why is None


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[RunningGateway]:
    with RunningGateway(settings_for(tmp_path)) as running:
        yield running


def test_a_start_by_date_is_refused_by_what_was_taken_out_a_moment_before(gateway: RunningGateway) -> None:
    """Messages before the first one since that time may be missing: the start waits for the latest marks."""
    with Client(gateway.url) as client:
        client.sender("topic://a").send_all(data(number) for number in range(3))

        async def order(running: Gateway) -> Resolved:
            vpn = running.vpns["default"]

            async def told_anew() -> None:
                vpn.broker.retention.restore([RetentionMark('[["a"]]', vpn.broker.log.next_id, 2**50)])

            vpn.state.told_anew = told_anew
            return await vpn.log.resolve_start(parse_text("1h"), ("a",))

        with pytest.raises(Refused) as refused:
            gateway.run_coroutine(order)
    assert refused.value.code is ErrorCode.START_TIME_NOT_AVAILABLE


def test_the_second_look_from_now_began_after_now(gateway: RunningGateway) -> None:
    """The first report may have begun before the request."""

    async def order(running: Gateway) -> list[bool]:
        vpn = running.vpns["default"]
        following, told = Following(vpn, ()), []
        waiting = asyncio.create_task(following.told_anew())
        for _ in range(2):
            await asyncio.sleep(0)
            following.told(vpn.broker.log, (), 0.0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            told.append(waiting.done())
        await waiting
        return told

    assert gateway.run_coroutine(order) == [False, True]


def test_what_rules_have_removed_is_known_after_a_look_at_streams(gateway: RunningGateway) -> None:
    """A reader would start in a log with a gap without it, and one that knows of the gap would be refused later."""
    mark = RetentionMark('["a"]', 5, 1)

    async def order(running: Gateway) -> list[RetentionMark]:
        vpn = running.vpns["default"]
        following = Following(vpn, ())
        following.taken_out([mark])
        following.defined(ToldDefinitions((), ()))
        return list(vpn.broker.retention.marks.values())

    assert gateway.run_coroutine(order) == [mark]


def test_reads_that_a_reload_began_are_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    After a departure the reads of the Message VPN begin; a reload in between has begun them already. Those would never
    be ended, as nothing names them any more.
    """
    begun: list[Any] = []

    class Reads:
        def __init__(self, *_: Any) -> None:
            self.is_closed = False

        def start(self) -> None:
            begun.append(self)

        def close(self) -> None:
            self.is_closed = True

    monkeypatch.setattr(hosted, "StandbyReads", Reads)
    factory: Any = SimpleNamespace(
        ports=SimpleNamespace(follow=lambda *_: None),
        runtime=lambda name: None,
        store_options=lambda vpn: None,
    )
    departures: Any = SimpleNamespace(is_closing=False)
    store = VpnStore(url="postgresql://there", standby_reads=True)
    waiting: Any = {"v": SimpleNamespace(settings=Vpn(store=store))}
    readers = hosted.StandbyReaders(factory, departures, waiting)
    readers.start("v")
    readers.start("v")
    readers.stop("v", "the end")
    readers.start("v")
    assert [reads.is_closed for reads in begun] == [True, False]
