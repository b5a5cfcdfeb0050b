"""How long a gateway delivers after a commit, on a clock and a loop of the test's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gateway.vpn.role import LOOK_SECONDS, Lease


class World:
    """A clock, a writer's newest commit, and timers that the test fires."""

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
        """The timer fires."""
        (timer,) = self.timers
        self.timers.clear()
        timer.call()


def test_it_holds_as_long_as_it_lasts() -> None:
    """It goes by the beginning of the newest commit, and a newer one renews it."""
    world = World()
    world.now = 104.9
    assert world.lease.holds()
    world.now = 105.0
    assert not world.lease.holds() and world.lease.age_seconds == 5.0
    world.confirmed_at = 104.0
    assert world.lease.holds()


def test_whoever_waits_goes_on_once() -> None:
    """However often it said that it waits, and only when the lease holds again; nobody looks while nobody waits."""
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
    """One that finds the lease run out again while it goes on waits for the next time."""
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
    """Another gateway has the store: no commit of this one's says anything any more."""
    world = World()
    world.lease.wait(world.first)
    world.lease.end()
    world.confirmed_at = world.now = 200.0
    assert not world.lease.holds() and not world.timers
    world.lease.wait(world.second)
    assert not world.timers and world.resumed == []
