"""Polling for conditions that notify nobody, and a clock that only the test moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tests.support.client import WAIT_SECONDS

T = TypeVar("T")

FIRST_PAUSE: Final = 0.001
LONGEST_PAUSE: Final = 0.03
"""Seconds. A request over HTTP costs two processors some milliseconds, which the awaited work may need."""


def wait_until(condition: Callable[[], T], what: str, seconds: float = WAIT_SECONDS) -> T:
    """
    Call ``condition`` until it returns something true, and return that; the pauses grow with time.

    Raises:
        AssertionError: The condition does not become true in time.
    """
    deadline = time.monotonic() + seconds
    pause = FIRST_PAUSE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(pause)
        pause = min(1.5 * pause, LONGEST_PAUSE)
    return found


class Clock:
    """A clock in seconds that the test sets."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds
