"""
One running Message VPN: its components, brought together on one event loop. Nothing is done here but composing them.

What a client or an administrator asks for goes to one of these:

- ``endpoints``: queues, streams and topic endpoints are found, made, changed, deleted;
- ``publishing``: messages come in, one by one and as transactions;
- ``consumers``: consumers of endpoints are bound, ask for messages, settle and give back; ``streams`` has the readers
  of streams, ``readers`` those of the log and the browsers of queues, ``listing`` what lies on endpoints as lists;
- ``erasing``: the content of messages is no more, wherever they are;
- ``log``: what the replay log holds, where a replay starts, points; ``replays``: replays onto endpoints;
- ``jobs``: copies of the log and returns of dead letters, which go on after a stop;
- ``committer``: all of it becomes durable, in order; await ``committed`` before anybody is told;
- ``trimmer``, ``ageing``, ``topic_retention``, ``archive_watch``, ``expiry``, ``dead_letters``, ``alarms``,
  ``sizing``, ``counting``: what a Message VPN does by itself;
- ``rates``, ``depths``: what it remembers of the last hour;
- ``origins``, ``counters``, ``settings``, ``limits``: what it knows.

Everything runs on the event loop's thread, and on what it was given: a store, a loop, a clock, a logger, a tuning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from gateway.config import AlarmThresholds, Limits, Vpn
from gateway.core.broker import Broker
from gateway.core.errors import Refused
from gateway.core.message_cache import CacheBudget, MessageCache
from gateway.core.publications import Origins
from gateway.vpn.committer import Committer
from gateway.vpn.consumers import Consumers, Streams
from gateway.vpn.endpoints import Endpoints, check_declared, declare
from gateway.vpn.erasing import Erasing
from gateway.vpn.feeds.browse_feed import EndpointListing
from gateway.vpn.feeds.endpoint_feed import Feeds
from gateway.vpn.feeds.log_feed import LogFeedShared, Readers
from gateway.vpn.history import LogHistory
from gateway.vpn.jobs.job import JobShared
from gateway.vpn.jobs.jobs import JobPorts, Jobs
from gateway.vpn.log import MessageLog, SearchShared
from gateway.vpn.publishing import Publishing
from gateway.vpn.replays import PumpShared, ReplayRunner
from gateway.vpn.role import Lease
from gateway.vpn.runtime import REFUSALS, Counters, CurrentSettings, Runtime, log_policy
from gateway.vpn.tracing import MessageTracing, SpanSink
from gateway.vpn.turns import HistoryPace, SelectionTurns, UserTurns
from gateway.vpn.upkeep.alarms import AlarmWatch, ArchiveWatch, DurabilityWatch
from gateway.vpn.upkeep.dead_letters import DeadLetterMover
from gateway.vpn.upkeep.expiry import Expiry, UnusedSubscriptions
from gateway.vpn.upkeep.sizing import Counting, Sizing
from gateway.vpn.upkeep.trends import Depths, Rates
from gateway.vpn.upkeep.trimming import Ageing, TopicRetention, Trimmer
from store.ports import Archive, Durability, Store

CLOSE_SECONDS: Final = 3.0
"""How long a stop waits for what is under way, where the store may be out of reach."""


class MessageVpn:
    def __init__(
        self,
        name: str,
        settings: Vpn,
        limits: Limits,
        store: Store,
        runtime: Runtime,
        cache_budget: CacheBudget | None = None,
        durability: Durability | None = Durability.DISK,
        archive: Archive | None = None,
        spans: SpanSink | None = None,
        sample_ratio: float = 0.0,
        elsewhere: Callable[[], Refused] | None = None,
        job_ports: JobPorts | None = None,
    ) -> None:
        """
        Take up where the store was left; ``start`` goes on.

        Args:
            store: Opened, and closed by ``close``.
            runtime: Its logger is bound to ``name``.
            cache_budget: Shared with other Message VPNs; one of its own, if none is given.
            durability: What the store's commits survived when it was opened; None if that is not known.
            archive: Of its log, where that has one; closed by ``close``.
            spans: Takes spans of messages; None where nothing is traced.
            sample_ratio: Of messages that bring no trace context, those that are traced.
            elsewhere: It only reads, and is never started: another gateway has the store, and serves whoever wants
                anything else. Where that is.
            job_ports: Nobody publishes at other gateways where there are none, and everybody may do everything.
        """
        self.name = name
        self.runtime = runtime
        self.elsewhere = elsewhere
        """What clients are told that want more than to read the log, where this gateway does no more; None where it
        is the active one."""
        self.clock = runtime.clock
        self._settings = current = CurrentSettings(settings, limits)
        self.place = store.place
        """Where its store is, as a person is told."""
        self.engine = store.engine
        """What keeps its data, with the version, as a person is told."""
        found, reader = store.recovered, store.reader
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
        self.cache = cache = MessageCache(cache_budget or CacheBudget(limits.tail_bytes), found.log.next_id)
        self.reader = reader
        self.history = history = LogHistory(
            broker.history,
            lambda: broker.trimming.below,
            reader,
            archive,
            runtime,
            broker.retention,
        )
        self.counters = counters = Counters()
        self.origins = Origins()
        pace = HistoryPace(counters, runtime.clock, runtime.tuning.longest_pause)
        self.search_turns = UserTurns()

        self.tracing = tracing = (
            None if spans is None else MessageTracing(spans, name, lambda: broker.log.next_id, sample_ratio)
        )
        self.committer = committer = Committer(store, broker, cache, counters, runtime)
        self.lease = lease = self._lease()
        """How long it delivers after a commit; None where nobody can take the store over."""
        self.durability = DurabilityWatch(
            store.durability, durability, lambda: current.requires_standby, runtime, name
        )
        """What its commits survive."""
        self.log = MessageLog(
            broker, committer, SearchShared(reader, history, counters, runtime, self.search_turns)
        )
        selection = SelectionTurns(runtime)
        feeds = Feeds(current, reader, history, cache, runtime, selection, lease, tracing)
        self.consumers = consumers = Consumers(broker, feeds, committer, counters, tracing)
        self.readers = readers = Readers(
            LogFeedShared(history, cache, counters, pace, selection, runtime, tracing), reader
        )
        self.listing = EndpointListing(reader, history, self.search_turns, lambda: cache.next_id)
        self.streams = Streams(broker, consumers, readers, committer, runtime.loop)
        self.replays = replays = ReplayRunner(
            PumpShared(broker, committer, reader, history, cache, runtime), feeds, consumers, current, tracing
        )
        self.endpoints = Endpoints(current, broker, committer, feeds, consumers, self.streams, replays)
        self.trimmer = trimmer = Trimmer(broker, committer, runtime)
        self.publishing = Publishing(
            broker,
            committer,
            consumers,
            self.origins,
            counters,
            current,
            runtime.clock,
            self.durability.refusal,
            trimmer,
            runtime.loop,
            tracing,
        )
        self.dead_letters = dead_letters = DeadLetterMover(
            broker, self.publishing, consumers, committer, history, cache, counters, runtime
        )
        feeds.connect(broker.erasing, dead_letters, replays)
        consumers.connect(dead_letters, replays)
        ports = job_ports or JobPorts()
        self.jobs = Jobs(
            JobShared(
                broker,
                committer,
                self.publishing,
                consumers,
                history,
                counters,
                pace,
                selection,
                runtime,
                partial(ports.why_not, name),
            ),
            self.endpoints,
            self.log,
            cache,
            current,
            ports.open_remote,
        )
        self.erasing = Erasing(
            broker,
            self.log,
            committer,
            cache,
            history,
            reader,
            store,
            self.search_turns,
            runtime,
            dead_letters.is_moving,
        )
        self.expiry = Expiry(broker, feeds, runtime)
        self.alarms = AlarmWatch(
            broker, committer, reader, self.durability, lease, runtime, archive, dead_letters.discarded
        )
        self.sizing = Sizing(broker, reader, counters, self.alarms, runtime)
        self.ageing = Ageing(broker, reader, trimmer, runtime)
        self.topic_retention = TopicRetention(
            broker, committer, reader, trimmer, runtime, (readers.leaving, replays.leaving, self.jobs.leaving)
        )
        self.erasing.tell(feeds, readers, replays, self.jobs, self.topic_retention)
        self.archive_watch = ArchiveWatch(history, runtime)
        self.counting = Counting(broker, committer, runtime)
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
        self.unused = UnusedSubscriptions(broker, self.endpoints.delete, current, runtime)
        if tracing is not None:
            committer.tell(tracing)
        committer.tell(feeds, readers, replays, trimmer, self.topic_retention)
        committer.tell_of_store(self.alarms)

    def start(self) -> None:
        """
        Bring endpoints to what the configuration says, and go on with what a stop interrupted.

        Raises:
            store.errors.StoreError: What the configuration says would cost messages.
        """
        broker, committer, queues = self.broker, self.committer, self.settings.queues
        for endpoint in list(self.endpoints):
            if endpoint.settings.temporary:
                # Its connection did not outlive the gateway, so neither does it.
                committer.commit(broker.delete(endpoint))
        check_declared(broker, queues, self.place)
        committer.commit(declare(broker, queues))
        for endpoint in self.endpoints:
            self.replays.restarted(endpoint)
        self.replays.records.all_restarted(e.replay.name for e in self.endpoints if e.replay is not None)
        self.expiry.start()
        self.alarms.start()
        self.sizing.start()
        self.ageing.start()
        self.topic_retention.start()
        self.archive_watch.start()
        self.counting.start()
        self.unused.start()
        self.rates.sampler.start()
        self.depths.start()
        self.durability.start()
        self.jobs.start()
        self.erasing.start()

    def _lease(self) -> Lease | None:
        committer, current = self.committer, self._settings
        first = committer.confirmed_at
        if first is None:
            return None
        return Lease(
            lambda: committer.confirmed_at or first, lambda: current.lease_seconds, self.runtime.loop
        )

    def problem(self) -> str | None:
        """Why it cannot serve clients just now, in one sentence; None if it can."""
        if self.committer.problem is not None:
            return self.committer.problem
        if self.reader.damage is not None:
            return f"the store cannot be read: {self.reader.damage}"
        return self.alarms.unconfirmed()

    def tell_when_deposed(self, deposed: Callable[[], None]) -> None:
        """Call this, once, when another gateway has taken the store over: what is known here is true no more."""

        def tell() -> None:
            if self.lease is not None:
                self.lease.end()
            deposed()

        self.committer.tell_when_deposed(tell)

    async def drop(self) -> None:
        """It was deposed, and its clients are gone: the store is closed, and nothing more is written to it."""
        self._stop()
        self.history.close()
        await self.committer.close()
        self.cache.close()

    async def close(self) -> None:
        """Commit what is under way and close the store."""
        self._stop()
        with suppress(Refused, TimeoutError):
            # What is committed can be counted; a store that cannot be reached gives up what it was given.
            async with asyncio.timeout(None if self.lease is None else CLOSE_SECONDS):
                await self.committer.committed()
        self.counting.close()
        self.history.close()
        await self.committer.close()
        self.cache.close()

    def _stop(self) -> None:
        self.publishing.close()
        self.jobs.close()
        self.erasing.close()
        self.expiry.close()
        self.alarms.close()
        self.sizing.close()
        self.ageing.close()
        self.topic_retention.close()
        self.archive_watch.close()
        self.unused.close()
        self.rates.sampler.close()
        self.depths.close()
        self.durability.close()

    # --- settings -------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Vpn:
        """The settings in effect."""
        return self._settings.vpn

    @property
    def limits(self) -> Limits:
        """The limits in effect."""
        return self._settings.limits

    def reconfigure(self, settings: Vpn) -> None:
        """Make these the settings in effect; what they say of queues and of the log's index was seen to."""
        self._settings.vpn = settings
        policy = log_policy(settings.replay_log)
        if self.broker.reconfigure(policy, create_queues=settings.create_queues):
            # What other rules have taken out of the log may still be there.
            self.cache.skip(self.cache.next_id)
            self.topic_retention.run()
        self.ageing.run()
        self.trimmer.run()
        self.publishing.room_may_have_come()

    def set_limits(self, limits: Limits, alarms: AlarmThresholds) -> None:
        """Make these the limits of clients and the thresholds of alarms in effect."""
        self._settings.limits = limits
        self.broker.replay_records.most = limits.replay_records
        self.alarms.thresholds = alarms
