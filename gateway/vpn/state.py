"""
The state of a running Message VPN, restored from its store: what all of its parts work on.

Each part (``gateway.vpn.message_vpn``) gets the state as one value, and knows only those other parts that it gets as
well. Everything runs on the event loop's thread, and on what the VPN was given: store, loop, clock, logger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from gateway.config import Limits, Vpn
from gateway.core.broker import Broker
from gateway.core.message_cache import CacheBudget, MessageCache
from gateway.vpn.committer import Committer
from gateway.vpn.history import LogHistory, off_loop
from gateway.vpn.role import Lease, OpenedStore
from gateway.vpn.runtime import Counters, CurrentSettings, Runtime, Service, log_policy
from gateway.vpn.tracing import MessageTracing
from gateway.vpn.turns import ADMINISTRATION, HistoryPace, SelectionTurns, UserTurns

T = TypeVar("T")


class VpnState:
    """
    Args:
        opened: Its store; it is closed with the Message VPN.
        runtime: Its logger is bound to ``name``.
    """

    def __init__(
        self, name: str, settings: Vpn, limits: Limits, opened: OpenedStore, runtime: Runtime
    ) -> None:
        self.name = name
        self.runtime = runtime
        self.settings = CurrentSettings(settings, limits)
        self.store = store = opened.store
        self.reader = store.reader
        self.counters = Counters()
        found = store.recovered
        self.broker = broker = Broker(
            found.log,
            log_policy(settings.replay_log),
            window=limits.endpoint_window,
            create_queues=settings.create_queues,
            flow_quantum=runtime.tuning.flow_quantum,
        )
        broker.restore(
            found.endpoints,
            found.routes,
            found.replays,
            found.next_number,
            found.points,
            found.records,
            found.retention,
        )
        broker.replay_records.most = limits.replay_records
        self.cache = MessageCache(runtime.cache_budget or CacheBudget(limits.tail_bytes), found.log.next_id)
        """The newest messages."""
        self.history = LogHistory(broker, self.cache, self.reader, opened.archive, runtime)
        self.committer = Committer(store, broker, self.cache, self.counters, runtime)
        """Makes all changes durable, in order; await ``committed`` before you tell anybody."""
        self.lease = self._lease()
        """How long after a commit it delivers; None if no other gateway can take the store over."""
        self.search_turns = UserTurns()
        """The turns of users at long reads of the log: one user at a time, for a page."""
        self.selection = SelectionTurns(runtime)
        self.pace = HistoryPace(self.counters, runtime.clock, runtime.tuning.longest_pause)
        self.told_anew: Callable[[], Awaitable[None]] | None = None
        """Waits until this gateway knows what has left the log by now; None if no other gateway writes the log."""
        self.tracing: MessageTracing | None = None
        """Is told of messages; None where nothing is traced."""
        if runtime.add_span is not None:
            self.tracing = MessageTracing(
                runtime.add_span, name, lambda: broker.log.next_id, runtime.sample_ratio
            )

    def read(self, work: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run something on one of the store's reader threads."""
        return off_loop(self.reader, work, *args)

    async def read_in_turn(self, work: Callable[..., T], *args: Any) -> T:
        """The same for a long read of an administrator, which takes turns with searches, a page each."""
        async with self.search_turns.turn(ADMINISTRATION):
            return await self.read(work, *args)

    def _lease(self) -> Lease | None:
        committer, settings = self.committer, self.settings
        first = committer.confirmed_at
        if first is None:
            return None
        return Lease(
            lambda: committer.confirmed_at or first, lambda: settings.lease_seconds, self.runtime.loop
        )


class VpnPart:
    """A part of a running Message VPN, with what most parts work on."""

    def __init__(self, state: VpnState) -> None:
        self._state = state
        self._broker = state.broker
        self._committer = state.committer
        self._settings = state.settings
        self._reader = state.reader
        self._history = state.history
        self._cache = state.cache
        self._counters = state.counters
        self._tracing = state.tracing
        self._runtime = state.runtime
        self._loop = state.runtime.loop
        self._now_ms = state.runtime.clock.now_ms


class VpnService(VpnPart, Service):
    """A part that also works by itself."""

    def __init__(self, state: VpnState) -> None:
        VpnPart.__init__(self, state)
        Service.__init__(self, state.runtime)
