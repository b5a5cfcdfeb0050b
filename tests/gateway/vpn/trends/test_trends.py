"""What is remembered of the last hour, with a clock and a loop that the test advances."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import structlog

from gateway.core.endpoint.endpoint import Endpoint
from gateway.vpn.runtime import Clock, Runtime
from gateway.vpn.upkeep import trends
from gateway.vpn.upkeep.trends import Depths, Rates

BEGAN_MS = 1_800_000_000_000


class Handle:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call, self.is_cancelled = at, call, False

    def cancel(self) -> None:
        self.is_cancelled = True


class Time:
    """A loop and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = 0
        self._handles: list[Handle] = []

    def seconds(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return BEGAN_MS + round(self.now * 1_000)

    def call_later(self, seconds: float, call: Callable[[], None]) -> Handle:
        self._handles.append(Handle(self.now + seconds, call))
        return self._handles[-1]

    def call_soon(self, call: Callable[[], None]) -> Handle:
        return self.call_later(0, call)

    def move(self, seconds: float, *, late: bool = False) -> None:
        """Let time pass; callbacks are called when they are due, or, with ``late``, all at the end."""
        until = self.now + seconds
        if late:
            self.now = until
        while due := sorted((h for h in self._handles if h.at <= until), key=lambda h: h.at):
            self._handles.remove(due[0])
            if not due[0].is_cancelled:
                self.now = max(self.now, due[0].at)
                self.turns += 1
                due[0].call()
        self.now = until


def runtime(time: Time) -> Runtime:
    return Runtime(
        cast("asyncio.AbstractEventLoop", time), structlog.get_logger(), cast("Clock", cast("Any", time))
    )


@dataclass
class Deep:
    depth: int


def test_each_interval_has_what_was_counted_in_it() -> None:
    """The oldest first, as many as have ended; counts from before the start are in none."""
    time, counted = Time(), {"n": 100}
    found = Rates({"n": lambda: counted["n"]}, runtime(time))
    found.start()
    assert found.counts("n") == []
    for more in (3, 0, 7):
        counted["n"] += more
        time.move(5)
    counted["n"] += 50
    time.move(4.9)
    assert found.counts("n") == [3, 0, 7]
    assert found.until_ms == BEGAN_MS + 15_000
    assert found.interval_ms == 5_000


def test_a_loop_that_was_kept_loses_no_interval() -> None:
    """If the loop was blocked for several intervals, the count is divided among them; their ends stay in the grid."""
    time, counted = Time(), {"n": 0}
    found = Rates({"n": lambda: counted["n"]}, runtime(time))
    found.start()
    counted["n"] = 10
    time.move(17, late=True)
    assert found.counts("n") == [3, 3, 4]
    assert found.until_ms == BEGAN_MS + 15_000
    counted["n"] = 11
    time.move(3)
    assert found.counts("n") == [3, 3, 4, 1]


def test_an_hour_is_kept() -> None:
    """An hour is kept and no more, however long the gateway runs or was suspended."""
    time, counted = Time(), {"n": 0}
    found = Rates({"n": lambda: counted["n"]}, runtime(time))
    found.start()
    for _ in range(trends.RATE_SLOTS + 10):
        counted["n"] += 1
        time.move(5)
    assert found.counts("n") == [1] * trends.RATE_SLOTS
    time.move(3 * 3_600, late=True)
    assert len(found.counts("n")) == trends.RATE_SLOTS
    found.close()
    counted["n"] += 1
    before = found.counts("n")
    time.move(60)
    assert found.counts("n") == before


def test_depths_are_those_at_the_end_of_each_minute() -> None:
    """For endpoints from the start, for later ones, and for deleted ones; sixty minutes."""
    time, endpoints = Time(), {"q": Deep(5), "empty": Deep(0)}
    found = Depths(cast("dict[str, Endpoint]", endpoints), runtime(time))
    found.start()
    assert found.counts("q") == [5]
    endpoints["q"].depth = 9
    endpoints["new"] = Deep(1)
    time.move(60)
    endpoints["q"].depth = 0
    time.move(60)
    assert found.counts("q") == [5, 9, 0]
    assert found.counts("new") == [0, 1, 1]
    assert found.counts("empty") == [0, 0, 0]
    assert found.until_ms == BEGAN_MS + 120_000
    del endpoints["new"]
    time.move(60)
    assert found.counts("new") == [0] * 4
    time.move(180, late=True)
    endpoints["q"].depth = 2
    time.move(60)
    assert found.counts("q") == [5, 9, 0, 0, 0, 0, 0, 2]
    for _ in range(70):
        time.move(60)
    assert found.counts("q") == [2] * trends.DEPTH_SLOTS
    found.close()
    time.move(600)
    assert found.counts("q") == [2] * trends.DEPTH_SLOTS


def test_many_endpoints_are_little_memory_and_many_turns() -> None:
    """Of ten thousand endpoints some are looked at in each turn. One takes some hundred bytes; an empty one none."""
    time, count = Time(), 10_000
    endpoints = {f"q{i}": Deep(0) for i in range(count)}
    found = Depths(cast("dict[str, Endpoint]", endpoints), runtime(time))
    found.start()
    time.move(1)
    tracemalloc.start()
    try:
        time.move(60)
        assert tracemalloc.get_traced_memory()[0] < 200_000
        for endpoint in endpoints.values():
            endpoint.depth = 1
        turns = time.turns
        time.move(61)
        assert time.turns - turns >= count / trends.AT_ONCE
        assert tracemalloc.get_traced_memory()[0] < 500 * count
    finally:
        tracemalloc.stop()
    assert found.counts("q0") == found.counts(f"q{count - 1}") == [0, 0, 1]
    for endpoint in endpoints.values():
        endpoint.depth = 0
    for _ in range(trends.DEPTH_SLOTS + 1):
        time.move(60)
    assert found._kept == {}
