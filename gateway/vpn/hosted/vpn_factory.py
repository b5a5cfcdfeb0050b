"""
How a Message VPN is put together from its settings: its store is opened, its archive, and the loop that it runs on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, cast

import structlog

from gateway import log_keys
from gateway.config import Settings, Vpn, VpnStore
from gateway.core.errors import Refused
from gateway.core.message_cache import CacheBudget
from gateway.vpn.clock import Clock, SteadyClock, SystemClock
from gateway.vpn.jobs.ports import JobPorts
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.role.endable_loop import EndableLoop
from gateway.vpn.role.waiting_vpn import OpenedStore, WaitingVpn
from gateway.vpn.runtime import Runtime
from gateway.vpn.settings import MEGABYTE
from gateway.vpn.telemetry.span import SpanSink
from gateway.vpn.tuning import Tuning
from store.errors import ReadFailed
from store.following import FollowedStore
from store.ports import Archive, StoreOptions, Stores

OpenArchive: TypeAlias = "Callable[[str, int, StoreOptions], Archive]"
"""Called with a place, the generation of the log, and the bounds of a page."""

StoresOf: TypeAlias = "Callable[[VpnStore | None], Stores]"
"""The stores of an engine: of the one that keeps files in the data folder, or of the one that a URL names."""


class VpnFactory:
    def __init__(
        self,
        settings: Settings,
        stores_of: StoresOf,
        advertised: str,
        clock: Clock | None,
        tuning: Tuning | None,
        open_archive: OpenArchive | None,
        spans: SpanSink | None,
        job_ports: JobPorts | None,
    ) -> None:
        """
        Args:
            settings: The gateway's; others are given to ``configure``. The rest is as ``MessageVpns`` has it.
        """
        self.stores_of = stores_of
        """Where messages are kept."""
        self._settings = settings
        self._advertised = advertised
        self._clock = clock
        self._tuning = tuning or Tuning()
        self._open_archive = open_archive
        self._spans = spans
        self._job_ports = job_ports
        self._loop = asyncio.get_running_loop()
        self._cache_budget = CacheBudget(settings.limits.tail_bytes)

    def configure(self, settings: Settings) -> None:
        """The gateway's settings are these from now on."""
        self._settings = settings

    def store_options(self, vpn: Vpn) -> StoreOptions:
        """How a store is opened."""
        limits, store = self._settings.limits, self._settings.store
        return StoreOptions(
            page_rows=limits.read_page_rows,
            page_bytes=limits.read_page_bytes,
            read_threads=store.read_threads,
            checkpoint_bytes=store.checkpoint_mb * MEGABYTE,
            wal_limit_bytes=store.wal_limit_mb * MEGABYTE,
            synchronous=store.synchronous,
            index=vpn.replay_log.index,
            priorities={name: queue.settings.priorities for name, queue in vpn.queues.items()},
            advertise=(vpn.store.advertise if vpn.store is not None else None) or self._advertised,
        )

    def open(self, name: str, vpn: Vpn) -> OpenedStore:
        """Open the store, and ask what its commits survive. Blocks; from any thread."""
        now_ms = (self._clock or SystemClock()).now_ms()
        store = self.stores_of(vpn.store).open(name, now_ms, self.store_options(vpn))
        durability = None
        with suppress(ReadFailed):
            durability = store.durability()
        return OpenedStore(store, durability)

    def archive(self, vpn: Vpn, generation: int) -> Archive | None:
        """The archive of a log, if it has one."""
        if vpn.archive is None:
            return None
        assert self._open_archive is not None
        return self._open_archive(vpn.archive.place, generation, self.store_options(vpn))

    def make(
        self, name: str, vpn: Vpn, opened: OpenedStore, deposed: Callable[[MessageVpn, EndableLoop], None]
    ) -> MessageVpn:
        """
        The Message VPN of a store.

        Args:
            deposed: Called once another gateway has taken the store.
        """
        settings, store = self._settings, opened.store
        endable = None if vpn.store is None else EndableLoop(self._loop)
        loop = self._loop if endable is None else cast("asyncio.AbstractEventLoop", endable)
        made = MessageVpn(
            name,
            vpn,
            settings.limits,
            store,
            self._runtime(name, loop, store.recovered.log.last_time_ms),
            self._cache_budget,
            opened.durability,
            self.archive(vpn, store.recovered.log.generation),
            self._spans,
            0.0 if settings.telemetry is None else settings.telemetry.sample_ratio,
            job_ports=self._job_ports,
        )
        made.set_limits(settings.limits, settings.alarms)
        if endable is not None:
            made.tell_when_deposed(partial(deposed, made, endable))
        return made

    def make_reading(
        self, name: str, vpn: Vpn, store: FollowedStore, elsewhere: Callable[[], Refused]
    ) -> tuple[MessageVpn, EndableLoop]:
        """
        One that only reads, on a standby of its store, and the loop that it is ended by.

        Args:
            elsewhere: What a client is told that wants more than that.
        """
        endable, log = EndableLoop(self._loop), store.recovered.log
        made = MessageVpn(
            name,
            vpn,
            self._settings.limits,
            store,
            self._runtime(name, cast("asyncio.AbstractEventLoop", endable), log.last_time_ms),
            self._cache_budget,
            archive=self.archive(vpn, log.generation),
            elsewhere=elsewhere,
        )
        return made, endable

    def candidate(
        self,
        name: str,
        vpn: Vpn,
        active: str | None,
        taken_over: Callable[[str, OpenedStore], None],
        problem: str | None = None,
    ) -> WaitingVpn:
        """One that waits for its store; see ``WaitingVpn``."""
        return WaitingVpn(
            name,
            vpn,
            active,
            problem,
            partial(self.open, name),
            partial(taken_over, name),
            self._loop,
            logger_of(name),
        )

    def _runtime(self, name: str, loop: asyncio.AbstractEventLoop, last_time_ms: int) -> Runtime:
        clock = self._clock or SteadyClock(last_time_ms)
        return Runtime(loop, logger_of(name), clock, self._tuning)


def logger_of(name: str) -> Any:
    """A logger whose lines name the Message VPN."""
    return structlog.get_logger(**{log_keys.VPN: name})
