"""
When a message expires: by its header's ttl (AMQP 1.0 section 3.2.1), or by what its endpoint allows.

``Endpoint.dead`` asks the same of whole batches that are about to be delivered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.model import Row

NEVER_MS: Final = sys.maxsize


def expires_ms(endpoint: Endpoint, row: Row, ttl_of: Callable[[bytes], int | None]) -> int:
    """
    The last millisecond, since the epoch, in which a message on an endpoint may be delivered; ``NEVER_MS`` where there
    is none.

    Args:
        ttl_of: The time to live that a message's header says, in ms.
    """
    if row[0] < endpoint.fresh_from:
        return NEVER_MS
    lives_ms = ttl_of(row[5]) if row[3] else None
    longest_ms = endpoint.settings.max_ttl_ms
    if longest_ms:
        lives_ms = longest_ms if lives_ms is None else min(lives_ms, longest_ms)
    return NEVER_MS if lives_ms is None else row[1] + lives_ms
