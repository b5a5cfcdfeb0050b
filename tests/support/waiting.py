"""How tests wait for what tells nobody that it has happened, and a clock that stands until a test moves it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tests.support.client import WAIT_SECONDS

T = TypeVar("T")

FIRST_PAUSE: Final = 0.001
LONGEST_PAUSE: Final = 0.03
"""Seconds. A question over HTTP takes two processors some milliseconds, which what is waited for may need."""


def wait_until(condition: Callable[[], T], what: str, seconds: float = WAIT_SECONDS) -> T:
    """
    Ask again and again, more seldom the longer it takes, until it holds; what it said.

    Raises:
        AssertionError: It does not in time.
    """
    deadline = time.monotonic() + seconds
    pause = FIRST_PAUSE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(pause)
        pause = min(1.5 * pause, LONGEST_PAUSE)
    return found


class Clock:
    """Seconds, as the test says."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds
