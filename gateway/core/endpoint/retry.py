"""
Delayed retry: how long a message that its consumer returned waits before redelivery, and which messages of its endpoint
wait for it meanwhile.

Such a message waits like a message that is published with a delivery time (``gateway.vpn.upkeep.delayed``): only in the
store, in any number. If an endpoint keeps strict order, the ids of its waiting messages are also in memory
(``HeldUp``). They are few: while a message waits, no later message is delivered, so none of those can be returned.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from gateway.core.endpoint.ready_queue import PriorityReadyQueues, ReadyQueue
from gateway.core.endpoint.settings import EndpointSettings

LATEST_MS: Final = 1 << 53
"""The latest time that a message waits for, in ms since the epoch: some 285,000 years."""

MOST_DOUBLINGS: Final = 64
"""How often the delay is multiplied at most: with more, the time is beyond ``LATEST_MS`` in any case."""

MOST_HELD_UP: Final = 10_000
"""The most waiting messages of an endpoint with strict order. While it has so many, it delivers none."""


def retry_time(
    settings: EndpointSettings, *, failed: bool, attempts: int, now_ms: int, asked_ms: int = 0
) -> int | None:
    """
    When a returned message is to be delivered again, in ms since the epoch; None for immediately.

    Args:
        failed: Whether its delivery failed.
        attempts: How many deliveries have failed, this one included.
        asked_ms: The time that the consumer asks for; 0 for none. A time in the past is ignored. It takes precedence
            over the settings (RabbitMQ 4.3, "Delayed Retry", "Explicit Delivery Time").
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
    """Messages that wait for redelivery, and that must be delivered before all later messages."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: dict[int, int] = {}
        """The part of the endpoint's cursor, by message id."""

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, ready: ReadyQueue | PriorityReadyQueues, by_part: Mapping[int, Collection[int]]) -> None:
        """
        These messages wait from now on.

        Args:
            ready: The endpoint's ready messages.
            by_part: Their ids, by part of the endpoint's cursor.
        """
        for part, ids in by_part.items():
            self._parts.update(dict.fromkeys(ids, part))
            queue = ready.of(part)
            queue.held_at = min(queue.held_at, *ids)
        if len(self._parts) >= MOST_HELD_UP:
            for queue in ready.queues:
                queue.held_at = 0

    def remove(self, ready: ReadyQueue | PriorityReadyQueues, ids: Iterable[int]) -> None:
        """These messages do not wait any more. Ids that did not wait are ignored."""
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
        """Forget all of them."""
        self.remove(ready, list(self._parts))
