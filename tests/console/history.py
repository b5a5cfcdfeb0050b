"""
A gateway whose log holds three days of orders, stock and payments, for the tests and for the pictures of the guide.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from amqp_ext.codec import Symbol
from gateway.config import AdminListener, Vpn
from gateway.vpn.runtime import SystemClock
from tests.support.client import Client
from tests.support.messages import APPLICATION_PROPERTIES, PROPERTIES, data, section
from tests.support.ports import free_port
from tests.support.running import RunningGateway, settings_for

HOUR_MS: Final = 3_600_000
BEGAN_MS: Final = 1_794_528_000_000
"""Midnight in UTC."""
HOURS: Final = 72
NOW_MS: Final = BEGAN_MS + HOURS * HOUR_MS + 9 * 60_000

TOPICS: Final = (
    "orders/eu/created",
    "orders/eu/paid",
    "orders/us/created",
    "stock/eu/level",
    "payments/failed",
)

QUEUE: Final = "billing"
"""This queue gets what is published to ``orders/>``."""


class Clock(SystemClock):
    """The gateway's wall clock: the test sets it until ``go_on``, then it runs."""

    ms = BEGAN_MS
    began: float | None = None

    def now_ms(self) -> int:  # type: ignore[override]
        if self.began is None:
            return self.ms
        return self.ms + int((time.monotonic() - self.began) * 1_000)

    def go_on(self) -> None:
        """Run from the present time on."""
        self.began = time.monotonic()


class Logged(NamedTuple):
    """A message of the log."""

    id: int
    time_ms: int
    topic: str


class History(NamedTuple):
    """The gateway and the messages of its log."""

    gateway: RunningGateway
    clock: Clock
    messages: list[Logged]
    """From the oldest to the newest."""


def order(number: int, topic: str) -> bytes:
    """A message as a shop might publish it."""
    body = {
        "order": 40_000 + number // 3,
        "customer": ("ann", "ben", "cy")[number % 3],
        "total": number % 97 + 0.5,
    }
    properties = [f"m-{number}", None, f"topic://{topic}", None, None, f"order-{40_000 + number // 3}"]
    return (
        section(PROPERTIES, [*properties, Symbol("application/json")])
        + section(APPLICATION_PROPERTIES, {"region": topic.split("/")[1], "attempt": number % 2})
        + data(json.dumps(body))
    )


def times() -> list[int]:
    """The arrival times: more by day than by night."""
    found = []
    for hour in range(HOURS):
        many = 2 + int(14 * max(0.0, math.sin((hour % 24 - 6) / 12 * math.pi)))
        found += [BEGAN_MS + hour * HOUR_MS + HOUR_MS * i // many for i in range(many)]
    return found


@contextmanager
def three_days(folder: Path) -> Iterator[History]:
    """The gateway, whose clock stands at ``NOW_MS``."""
    clock = Clock()
    settings = settings_for(folder, Vpn(), admin=AdminListener(port=free_port()))
    with RunningGateway(settings, clock=clock) as gateway:
        messages = []
        with Client(gateway.url) as client:
            client.receiver(QUEUE).close()  # creates the queue
            gateway.subscribe(QUEUE, ["orders/>"])
            senders = [client.sender(f"topic://{topic}") for topic in TOPICS]
            for number, time_ms in enumerate(times()):
                clock.ms = time_ms
                turn = number * number % len(TOPICS)
                senders[turn].send_all([order(number, TOPICS[turn])])
                messages.append(Logged(number + 1, time_ms, TOPICS[turn]))
            client.close()
        clock.ms = NOW_MS
        clock.go_on()
        yield History(gateway, clock, messages)
