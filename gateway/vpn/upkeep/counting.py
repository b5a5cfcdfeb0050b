"""
Has the store know, once a second, how much lies on endpoints that messages came to.

Nothing is written of an endpoint when a message is put on it. Its cursor says how much that was at some id, and a start
counts what came after: at most what this leaves out.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.core.broker import Broker
from gateway.vpn.committer import Committer
from gateway.vpn.runtime import Runtime

COUNT_SECONDS: Final = 1.0
"""From one count to the next: what came within is counted by a start, some hundred thousand messages at most."""

SWEEP_COUNTS: Final = 10
"""Counts from one sweep for routes that nobody needs to the next."""


class Counting:
    def __init__(self, broker: Broker, committer: Committer, runtime: Runtime) -> None:
        self._broker = broker
        self._committer = committer
        self._loop = runtime.loop
        self._counts = 0
        self._timer: asyncio.Handle | None = None

    def start(self) -> None:
        self._timer = self._loop.call_later(COUNT_SECONDS, self._count)

    def close(self) -> None:
        """Count what there is, as the last thing that is written."""
        if self._timer is not None:
            self._timer.cancel()
        self._save()

    def _count(self) -> None:
        self._save()
        self._counts += 1
        if self._counts % SWEEP_COUNTS == 0:
            self._broker.publications.sweep_routes()
        self.start()

    def _save(self) -> None:
        for effect in self._broker.counts.effects():
            self._committer.commit_when_convenient(effect)
