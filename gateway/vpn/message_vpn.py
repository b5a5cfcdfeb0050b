"""
One running Message VPN: its parts, made in one place on the state that they all work on, and the list of its services.

A client or an administrator asks one of these:

- ``endpoints``: finds, creates, changes and deletes queues, streams and topic endpoints;
- ``publishing``: takes messages, one by one and in transactions;
- ``delayed``: releases, lists and cancels delayed messages;
- ``last_values``: the newest message of each key, for last-value queues;
- ``consumers``: binds consumers to endpoints, and has their demand, settlements and releases; ``streams`` has the
  readers of streams, ``readers`` the readers of the log and the browsers, ``listing`` the lists of endpoints' messages;
- ``erasing``: erases the content of messages wherever they are;
- ``log``: what the replay log holds, where a replay starts, points; ``replays``: replays onto endpoints;
- ``jobs``: copies of the log and returns of dead letters, which continue after a restart;
- ``committer``: makes all changes durable, in order; await ``committed`` before you tell anybody.

Services do what a Message VPN does by itself, from ``start`` to ``close``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gateway.config import AlarmThresholds, Limits, Vpn
from gateway.core.errors import Refused
from gateway.vpn.consumers import Consumers, Streams
from gateway.vpn.endpoints import Endpoints
from gateway.vpn.erasing import Erasing
from gateway.vpn.feeds.browse_feed import EndpointListing
from gateway.vpn.feeds.endpoint_feed import Feeds
from gateway.vpn.feeds.log_feed import Readers
from gateway.vpn.jobs.jobs import JobPorts, Jobs
from gateway.vpn.log import MessageLog
from gateway.vpn.publishing import Publishing
from gateway.vpn.replays import ReplayRunner
from gateway.vpn.role import OpenedStore
from gateway.vpn.runtime import REFUSALS, Runtime, Service, log_policy
from gateway.vpn.state import VpnState
from gateway.vpn.upkeep.alarms import AlarmWatch, ArchiveWatch, DurabilityWatch
from gateway.vpn.upkeep.archiving import Archiving
from gateway.vpn.upkeep.dead_letters import DeadLetterMover
from gateway.vpn.upkeep.delayed import DelayedDelivery
from gateway.vpn.upkeep.expiry import Expiry, UnusedSubscriptions
from gateway.vpn.upkeep.lag import Lag
from gateway.vpn.upkeep.last_values import LastValueQueues
from gateway.vpn.upkeep.locks import DeliveryLocks
from gateway.vpn.upkeep.sizing import Counting, Sizing
from gateway.vpn.upkeep.trends import Depths, Rates
from gateway.vpn.upkeep.trimming import Ageing, TopicRetention, Trimmer

CLOSE_SECONDS: Final = 3.0
"""How long a stop waits for the commits under way, if the store may be unreachable."""


class MessageVpn:
    """
    Restores its state from the store; ``start`` begins its work.

    Args:
        opened: Closed by ``close``.
        runtime: Its logger is bound to ``name``.
        job_ports: Without them, no job publishes at other gateways, and every user may do everything.
        elsewhere: Given if this Message VPN only reads and is never started, as another gateway has the store: the
            error that leads other clients there.
    """

    def __init__(
        self,
        name: str,
        settings: Vpn,
        limits: Limits,
        opened: OpenedStore,
        runtime: Runtime,
        job_ports: JobPorts | None = None,
        elsewhere: Callable[[], Refused] | None = None,
    ) -> None:
        self.name = name
        self.elsewhere = elsewhere
        """The error for clients that want more than to read the log, where this gateway only reads; None where it is
        the active one."""
        self.state = state = VpnState(name, settings, limits, opened, runtime)
        self.runtime, self.clock = runtime, runtime.clock
        self.broker = broker = state.broker
        self.committer = committer = state.committer
        self.reader, self.cache, self.history = state.reader, state.cache, state.history
        self.counters = counters = state.counters
        self.lease, self.tracing = state.lease, state.tracing
        self.engine = state.store.engine
        """The store's database with its version, for people."""

        self.feeds = feeds = Feeds(state)
        self.consumers = consumers = Consumers(state, feeds)
        self.readers = readers = Readers(state)
        self.streams = Streams(state, consumers, readers)
        self.listing = EndpointListing(state)
        self.log = log = MessageLog(state)
        self.replays = replays = ReplayRunner(state, feeds, consumers)
        self.endpoints = Endpoints(state, feeds, consumers, self.streams, replays)
        self.durability = DurabilityWatch(state, opened.durability)
        self.trimmer = trimmer = Trimmer(state)
        self.publishing = publishing = Publishing(
            state, consumers, feeds, trimmer.make_room, self.durability.refusal
        )
        trimmer.when_room.append(publishing.room.go_on)
        self.dead_letters = dead_letters = DeadLetterMover(state, publishing, consumers, feeds)
        locks = DeliveryLocks(state, consumers)
        feeds.connect(dead_letters, replays, locks.locked)
        self.delayed = delayed = DelayedDelivery(state, feeds)
        self.last_values = LastValueQueues(state, readers, trimmer)
        self.jobs = Jobs(state, publishing, consumers, self.endpoints, log, job_ports or JobPorts())
        self.archive_watch = ArchiveWatch(state)
        self.archiving = archiving = Archiving(state, self.archive_watch, trimmer, opened.source)
        self.lag = lag = Lag(state, self.listing)
        self.alarms = AlarmWatch(
            state, self.durability, dead_letters.discarded, lambda: archiving.problem, lag
        )
        self.sizing = Sizing(state, self.alarms)
        self.ageing = Ageing(state, trimmer)
        self.topic_retention = TopicRetention(
            state, trimmer, (readers.leaving, replays.leaving, self.jobs.leaving)
        )
        self.counting = Counting(state)
        self.rates = Rates(
            {
                "publishedMsgs": lambda: counters.published_messages,
                "publishedBytes": lambda: counters.published_bytes,
                "settledMsgs": lambda: counters.settled_messages,
                "refusals": REFUSALS.total,
            },
            runtime,
        )
        self.depths = Depths(broker.endpoints, runtime)
        holders = (feeds, readers, replays, self.jobs, self.topic_retention, self.last_values)
        self.erasing = Erasing(state, log, dead_letters.is_moving, tuple(holder.erased for holder in holders))
        self._services: tuple[Service, ...] = (
            publishing.room,
            delayed,
            self.last_values,
            locks,
            Expiry(state, feeds),
            lag,
            self.alarms,
            self.sizing,
            self.ageing,
            self.topic_retention,
            self.archive_watch,
            self.archiving,
            self.counting,
            UnusedSubscriptions(state, self.endpoints.delete),
            self.rates,
            self.depths,
            self.durability,
            self.jobs,
            self.erasing,
        )
        """Started in this order."""

        committer.when_committed += [
            delayed.committed,
            feeds.committed,
            readers.committed,
            replays.committed,
            trimmer.committed,
            self.topic_retention.committed,
        ]
        committer.when_not_committed += [readers.not_committed, replays.go_on, trimmer.not_committed]
        committer.when_store_changes = self.alarms.store_changed
        if state.tracing is not None:
            committer.when_committed.insert(0, state.tracing.committed)
            committer.when_not_committed.insert(0, state.tracing.not_committed)

    def start(self) -> None:
        """
        Change the endpoints to what the configuration says, and continue what a stop interrupted.

        Raises:
            store.errors.StoreError: The configuration would lose messages.
        """
        for endpoint in list(self.endpoints):
            if endpoint.settings.temporary:
                # Its connection did not outlive the gateway, so neither does it.
                self.committer.commit(self.broker.delete(endpoint))
        self.endpoints.check_declared(self.settings.queues)
        self.endpoints.declare(self.settings.queues)
        for endpoint in self.endpoints:
            self.replays.restarted(endpoint)
        self.replays.records.all_restarted(e.replay.name for e in self.endpoints if e.replay is not None)
        for service in self._services:
            service.start()

    def problem(self) -> str | None:
        """Why it cannot serve clients just now, in one sentence; None if it can."""
        if self.committer.problem is not None:
            return self.committer.problem
        if self.reader.damage is not None:
            return f"the store cannot be read: {self.reader.damage}"
        return self.alarms.unconfirmed()

    def tell_when_deposed(self, deposed: Callable[[], None]) -> None:
        """Call ``deposed``, once, when another gateway has taken the store over: the state here is then outdated."""

        def tell() -> None:
            if self.lease is not None:
                self.lease.end()
            deposed()

        self.committer.when_deposed = tell

    async def close(self) -> None:
        """Commit what is under way and close the store."""
        self._stop()
        with suppress(Refused, TimeoutError):
            # So that the last commits are counted below; a store that is unreachable gives up its batches.
            async with asyncio.timeout(None if self.lease is None else CLOSE_SECONDS):
                await self.committer.committed()
        self.counting.save()
        await self._close_store()

    async def drop(self) -> None:
        """Close the store without writing to it: the Message VPN was deposed, and its clients are gone."""
        self._stop()
        await self._close_store()

    def _stop(self) -> None:
        for service in self._services:
            service.close()

    async def _close_store(self) -> None:
        self.history.close()
        await self.committer.close()
        self.cache.close()

    # --- settings -------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Vpn:
        """The settings in effect."""
        return self.state.settings.vpn

    @property
    def limits(self) -> Limits:
        """The limits in effect."""
        return self.state.settings.limits

    def reconfigure(self, settings: Vpn) -> None:
        """Make these the settings in effect; the caller has applied those of queues and of the log's index."""
        self.state.settings.vpn = settings
        policy = log_policy(settings.replay_log)
        if self.broker.reconfigure(policy, create_queues=settings.create_queues):
            # The cache may still have messages that the rules until now have removed from the log.
            self.cache.skip(self.cache.next_id)
            self.topic_retention.run()
        self.ageing.run()
        self.trimmer.run()
        self.publishing.room.go_on()

    def set_limits(self, limits: Limits, alarms: AlarmThresholds) -> None:
        """Make these the limits of clients and the thresholds of alarms in effect."""
        self.state.settings.limits = limits
        self.broker.replay_records.most = limits.replay_records
        self.alarms.thresholds = alarms
