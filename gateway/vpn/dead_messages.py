"""
Copies for a dead message queue: the bare message as it was, and annotations that say why it is there.

=============================  =========  ========================================================
``x-opt-dead-reason``          string     ``expired``, ``max-redelivery`` or ``rejected``
``x-opt-dead-endpoint``        string     where it lay
``x-opt-dead-time``            timestamp  when it left
``x-opt-dead-sequence-number`` long       the id it had there
=============================  =========  ========================================================
"""

from __future__ import annotations

from typing import Any

from amqp_ext.annotations import annotated
from amqp_ext.codec import Long, Timestamp
from gateway.core.effects import Row
from gateway.core.errors import Refused


class _Nobody:
    """The publisher of what the gateway publishes itself: there is nobody to be told."""

    def accepted(self, deliveries: Any) -> None:
        pass

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None:
        pass


NOBODY = _Nobody()


def dead_copy(row: Row, endpoint: str, reason: str, now_ms: int) -> tuple[bytes, int]:
    """The content of the copy, and where its bare message begins."""
    return annotated(
        row[5],
        {
            "x-opt-dead-reason": reason,
            "x-opt-dead-endpoint": endpoint,
            "x-opt-dead-time": Timestamp(now_ms),
            "x-opt-dead-sequence-number": Long(row[0]),
        },
    )
