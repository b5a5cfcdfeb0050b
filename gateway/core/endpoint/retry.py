"""
Delayed retry: how long a message that its consumer gave back waits before it is delivered again, and what of its
endpoint waits for it meanwhile.

A message waits as one that is published with a delivery time does (``gateway.vpn.upkeep.delayed``): in the store alone,
in any number. Only where an endpoint keeps strict order are ids of what waits in memory (``HeldUp``). They are few:
while one waits, nothing behind it is given out that could come to wait, too.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from gateway.core.endpoint.ready_queue import PriorityReadyQueues, ReadyQueue
from gateway.core.endpoint.settings import EndpointSettings

LATEST_MS: Final = 1 << 53
"""No message waits for a later time, in ms since the epoch: some 285,000 years."""

MOST_DOUBLINGS: Final = 64
"""Of the delay: with more, the sum is beyond ``LATEST_MS`` anyhow."""

MOST_HELD_UP: Final = 10_000
"""Messages for which an endpoint that keeps strict order waits; as long as there are so many it gives out none."""


def retry_time(
    settings: EndpointSettings, *, failed: bool, attempts: int, now_ms: int, asked_ms: int = 0
) -> int | None:
    """
    When a message that its consumer gave back is to be delivered again, in ms since the epoch; None for at once.

    Args:
        failed: Its delivery failed.
        attempts: How often it has, this one included.
        asked_ms: The time that the consumer asks for; one that has passed says nothing, and 0 is none. It goes before
            what the settings say (RabbitMQ 4.3, "Delayed Retry", "Explicit Delivery Time").
    """
    if asked_ms > now_ms:
        return min(asked_ms, LATEST_MS)
    if not settings.retry_type.takes(failed=failed):
        return None
    tries, factor = max(attempts, 1), settings.retry_factor
    delay_ms = settings.retry_delay_ms * (factor ** min(tries - 1, MOST_DOUBLINGS) if factor else tries)
    if settings.retry_max_ms:
        delay_ms = min(delay_ms, settings.retry_max_ms)
    return min(now_ms + delay_ms, LATEST_MS) if delay_ms else None


class HeldUp:
    """The messages that wait to be tried again, and before which nothing behind them is to be given out."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: dict[int, int] = {}
        """Of the endpoint's cursor, by id."""

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, ready: ReadyQueue | PriorityReadyQueues, by_part: Mapping[int, Collection[int]]) -> None:
        """
        These wait from now on.

        Args:
            ready: The endpoint's ready messages.
            by_part: Their ids, by part of its cursor.
        """
        for part, ids in by_part.items():
            self._parts.update(dict.fromkeys(ids, part))
            queue = ready.of(part)
            queue.held_at = min(queue.held_at, *ids)
        if len(self._parts) >= MOST_HELD_UP:
            for queue in ready.queues:
                queue.held_at = 0

    def remove(self, ready: ReadyQueue | PriorityReadyQueues, ids: Iterable[int]) -> None:
        """These wait no longer, if they did."""
        if not self._parts:
            return
        for i in ids:
            self._parts.pop(i, None)
        firsts: dict[int, int] = {}
        for i, part in self._parts.items():
            firsts[part] = min(i, firsts.get(part, i))
        is_full = len(self._parts) >= MOST_HELD_UP
        for queue in ready.queues:
            queue.held_at = 0 if is_full else firsts.get(queue.part, sys.maxsize)

    def clear(self, ready: ReadyQueue | PriorityReadyQueues) -> None:
        """None of them is here any more."""
        self.remove(ready, list(self._parts))
