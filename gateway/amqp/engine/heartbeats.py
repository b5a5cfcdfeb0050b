"""
When a peer is to hear of us at the latest (AMQP 1.0 section 2.4.5): the engine writes heartbeats when it is asked to.
"""

from __future__ import annotations

from typing import Final

from proton import Transport

from gateway.core.errors import ErrorCode, Refused

LEAST_IDLE_TIMEOUT_MS: Final = 100
"""Shortest idle-time-out that is honoured."""

_LEAST_WAIT_SECONDS: Final = 0.05


def check_idle_timeout(transport: Transport) -> None:
    """
    Look at the idle-time-out in the peer's open.

    Raises:
        Refused: NOT_ALLOWED, the peer wants to hear of us more often than it will; it would take us for dead.
    """
    idle_timeout_ms = round(transport.remote_idle_timeout * 1000)
    if 0 < idle_timeout_ms < LEAST_IDLE_TIMEOUT_MS:
        raise Refused(
            ErrorCode.NOT_ALLOWED,
            f"an idle-time-out of {idle_timeout_ms} ms: at least {LEAST_IDLE_TIMEOUT_MS} ms, or none, can be kept to",
        )


def seconds_to_tick(transport: Transport, left: float, own_idle_ms: int) -> float:
    """
    How long to wait until the engine is asked again.

    Args:
        left: Seconds until the engine wants to be asked.
        own_idle_ms: Silence of the peer's that we tolerate.
    """
    # The engine counts silence from when it is asked, so it is asked four times as often as the peer wants to hear of
    # us: a heartbeat is due at half its time-out, and goes at three quarters of it at the latest.
    idle = transport.remote_idle_timeout or own_idle_ms / 1000
    return max(min(left, idle / 4), _LEAST_WAIT_SECONDS)
