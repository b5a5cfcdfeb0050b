"""
What a Message VPN runs on: event loop, clock, logger and tuning, given to it by whoever opens it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from gateway import log_keys
from gateway.vpn.clock import Clock, SystemClock
from gateway.vpn.tuning import Tuning


@dataclass(frozen=True, slots=True)
class Runtime:
    """Nothing of a Message VPN fetches any of this from anywhere else."""

    loop: asyncio.AbstractEventLoop
    log: Any
    """A structlog logger, bound to the Message VPN's name."""
    clock: Clock = field(default_factory=SystemClock)
    tuning: Tuning = field(default_factory=Tuning)

    def report(self, event: str, error: BaseException) -> None:
        """One line about something that should not happen."""
        self.log.error(event, **{log_keys.REASON: f"{type(error).__name__}: {error}"})
