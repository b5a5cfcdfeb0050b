"""
One running Message VPN: commands go through the broker, their effects are committed, and only then is anybody told.

Everything here runs on the event loop's thread. ``commit`` hands effects to the writer thread; ``_committed`` comes
back in the same order. Within one turn of the loop all publications of all connections become one batch.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import structlog

from amqp_ext.replay_start import ReplayStart
from amqp_ext.topics import check_topic
from gateway import log_keys
from gateway.config import Limits, Store, Vpn
from gateway.core.broker import Broker, TooLarge
from gateway.core.effects import CountAttempts, Effect, Publication, RemoveReferences, SaveArchived
from gateway.core.endpoint.endpoint import Endpoint, Flow, Retired
from gateway.core.endpoint.settings import EndpointKind, Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log.newest import Tail
from gateway.core.log.point import ListedPoint, Point
from gateway.core.model import Row
from gateway.core.origins import Origins
from gateway.core.replay.starts import Resolved
from gateway.vpn.clock import now_ms
from gateway.vpn.counters import Counters
from gateway.vpn.declared import MEGABYTE, check_declared, declare
from gateway.vpn.delivery.endpoint_feed import EndpointFeed
from gateway.vpn.delivery.history_pace import HistoryPace
from gateway.vpn.delivery.readers import Onlookers, topic_matcher
from gateway.vpn.delivery.streams import Streams
from gateway.vpn.links import ConsumingLink, PublishingLink
from gateway.vpn.replay import starts
from gateway.vpn.replay.replays import Replays
from gateway.vpn.settings import log_policy
from gateway.vpn.upkeep.alarms import AlarmWatch
from gateway.vpn.upkeep.dead_letters import DeadMessages
from gateway.vpn.upkeep.expiry import Expiry
from gateway.vpn.upkeep.trimmer import Trimmer
from store.histogram import Histogram
from store.sqlite.database import DataFolder, open_file
from store.sqlite.reader import Reader
from store.sqlite.recovery import recover
from store.sqlite.writer import Batch, Writer

PENDING_BYTES: Final = 64 * 1024 * 1024
"""Content accepted from sockets and not yet committed, per VPN, past which no more is read from publishers: a slow
disk must not turn into memory."""

log = structlog.get_logger()

Then = Callable[["sqlite3.Error | None"], None]


class MessageVpn:
    def __init__(self, name: str, settings: Vpn, limits: Limits, store: Store, folder: DataFolder) -> None:
        """
        Open the VPN's file and take up where it was left.

        Raises:
            store.errors.StoreError: The file cannot be used.
        """
        self.name = name
        self.settings = settings
        self.limits = limits
        self._loop = asyncio.get_running_loop()
        path = self._path = folder.file_of(name)
        policy = settings.replay_log
        priorities = {name: queue.settings.priorities for name, queue in settings.queues.items()}
        open_file(path, now_ms(), synchronous=store.synchronous, index=policy.index, priorities=priorities)
        found = recover(path)
        self.broker = Broker(
            found.log,
            log_policy(policy),
            window=limits.endpoint_window,
            create_queues=settings.create_queues,
        )
        self.broker.restore(found.endpoints, found.next_number, found.points)
        self.tail = Tail(limits.tail_bytes, found.log.next_id)
        self.reader = Reader(
            path,
            threads=store.read_threads,
            page_rows=limits.read_page_rows,
            page_bytes=limits.read_page_bytes,
            largest_bytes=found.largest_bytes,
            indexed=found.indexed,
        )
        self._writer = Writer(
            path,
            self._on_commit,
            synchronous=store.synchronous,
            garbage=found.garbage,
            indexed=found.indexed,
            checkpoint_bytes=store.checkpoint_mb * MEGABYTE,
            wal_limit_bytes=store.wal_limit_mb * MEGABYTE,
        )
        self.store_problem: str | None = None
        """Why the last write failed; None when it did not."""
        self.pending_bytes = 0
        self.activity = 0
        """Rises with every batch published or settled: whether there is live traffic."""
        self.origins = Origins()
        self.counters = Counters()
        self.history_pace = HistoryPace(self.counters)
        self.direct_dropped = 0
        """Direct messages that nobody took, or that there was no room for: nobody was told."""
        self._effects: list[Effect] = []
        self._then: list[Then] = []
        self._size_bytes = 0
        self._is_lazy = True
        self._scheduled = False
        self._in_flight = 0
        """Batches handed to the writer and not reported yet."""
        self._feeds: dict[str, EndpointFeed] = {}
        self.onlookers = Onlookers(self)
        self.replays = Replays(self)
        self.streams = Streams(self)
        self.trimmer = Trimmer(self)
        self.dead = DeadMessages(self)
        self.expiry = Expiry(self, self._loop)
        self.alarms = AlarmWatch(self, self._loop)
        self.search_turn = asyncio.Semaphore(1)
        """Held by the one search that reads a page of the log."""
        self._waiting_for_room: list[Callable[[], None]] = []
        self._log = log.bind(**{log_keys.VPN: name})

    def start(self) -> None:
        """
        Bring endpoints to what the configuration says, and go on with what a stop interrupted.

        Raises:
            store.errors.StoreError: What the configuration says would cost messages.
        """
        broker = self.broker
        for endpoint in list(broker.endpoints.values()):
            if endpoint.settings.temporary:
                # Its connection did not outlive the gateway, so neither does it.
                self.commit(broker.delete(endpoint))
        check_declared(broker, self.settings.queues, self._path)
        self.commit(declare(broker, self.settings.queues))
        for endpoint in broker.endpoints.values():
            replay = endpoint.replay
            if replay is None:
                continue
            self.replays.completed(endpoint)
            # Before ids that a crash took back are given out again: they would count as replayed at the next start.
            if replay.is_under_way or replay.live_from == broker.next_id:
                self.commit([endpoint.replay_definition()])
            if replay.is_reading:
                self.replays.take_up(endpoint)
        self.expiry.start()
        self.alarms.start()

    def take(self, settings: Vpn) -> None:
        """Make these the settings in effect; what they say of queues and of the log's index was seen to."""
        self.settings = settings
        self.broker.create_queues = settings.create_queues
        self.broker.policy = log_policy(settings.replay_log)
        self.broker.forget_routes()
        self.trimmer.run()

    async def close(self) -> None:
        """Commit what is under way and close the file."""
        self.expiry.close()
        self.alarms.close()
        self._submit()
        await self._loop.run_in_executor(None, self._writer.close)
        await self._loop.run_in_executor(None, self.reader.close)

    @property
    def commit_seconds(self) -> Histogram:
        """How long the store took to make transactions durable."""
        return self._writer.commit_seconds

    # --- commit, then tell ------------------------------------------------------------------------------------

    def commit(self, effects: Iterable[Effect], then: Then | None = None) -> None:
        """Make effects durable, in order with everything else; ``then`` is called afterwards, with the error if any."""
        self._effects += effects
        if then is not None:
            self._then.append(then)
        self._is_lazy = False
        self._schedule()

    async def committed(self, effects: Iterable[Effect]) -> None:
        """
        The same, to be awaited.

        Raises:
            Refused: INTERNAL, the store could not write.
        """
        done: asyncio.Future[None] = self._loop.create_future()

        def then(error: sqlite3.Error | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(Refused(ErrorCode.INTERNAL, f"the store could not write: {error}"))

        self.commit(effects, then)
        await done

    def try_store(self) -> None:
        """
        Write what is so already. A gateway that is not ready may be given no clients, and with them nothing to write
        by which it would find out that it can again.
        """
        self.commit([SaveArchived(self.broker.log.archived_id)])

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._submit)

    def _submit(self) -> None:
        self._scheduled = False
        if not self._effects and not self._then:
            return
        batch = Batch(self._effects, self._size_bytes, self._is_lazy, self._then)
        self._effects, self._then, self._size_bytes, self._is_lazy = [], [], 0, True
        if self._in_flight == 0 and batch.is_small:
            is_done, error = self._writer.commit_now(batch)
            if is_done:
                self._in_flight += 1
                self._committed([batch], error)
                return
        self._in_flight += 1
        self._writer.submit(batch)

    def _on_commit(self, batches: list[Batch], error: sqlite3.Error | None) -> None:
        """From the writer's thread."""
        self._loop.call_soon_threadsafe(self._committed, batches, error)

    def _committed(self, batches: list[Batch], error: sqlite3.Error | None) -> None:
        self._in_flight -= len(batches)
        if error is not None:
            self._not_committed(batches, error)
            return
        if self.store_problem is not None and any(batch.effects for batch in batches):
            self.store_problem = None
            self.alarms.store_works()
        tail, broker, counters = self.tail, self.broker, self.counters
        counters.commits += 1
        counters.batches += len(batches)
        published = counters.published_messages
        touched: dict[str, None] = {}
        has_news = False
        for batch in batches:
            for effect in batch.effects:
                if isinstance(effect, Publication):
                    has_news = True
                    counters.published_messages += len(effect.rows)
                    counters.published_bytes += effect.size_bytes
                    tail.extend(effect.rows, effect.size_bytes)
                    for endpoint in broker.committed(effect):
                        touched[endpoint.name] = None
                    link, deliveries = effect.receipt
                    link.accepted(deliveries)
            self.pending_bytes -= batch.size_bytes
            for then in batch.then:
                then(None)
        counters.commit_messages.add(counters.published_messages - published)
        browsers = self.onlookers.browsers
        for name in touched:
            feed = self._feeds.get(name)
            if feed is not None:
                feed.run()
            for browser in list(browsers.get(name, ())):
                browser.run()
        if has_news:
            for reading in list(self.onlookers.log_feeds):
                reading.run()
            self.replays.run()
            self.trimmer.run()
        self._offer_room()

    def _not_committed(self, batches: list[Batch], error: sqlite3.Error) -> None:
        self.store_problem = f"the last write failed: {error}"
        self.alarms.store_failed(str(error))
        self.counters.failed_commits += 1
        self._log.error("store_write_failed", **{log_keys.REASON: str(error)})
        refused = Refused(ErrorCode.INTERNAL, f"the store could not write: {error}; nothing was stored")
        for batch in batches:
            for effect in batch.effects:
                if isinstance(effect, Publication):
                    self.broker.failed(effect)
                    self.tail.skip(effect.rows[-1][0] + 1)
                    link, deliveries = effect.receipt
                    link.not_stored(deliveries, refused)
            self.pending_bytes -= batch.size_bytes
            for then in batch.then:
                then(error)
        # Whoever waited for these ids waits no longer.
        for reading in list(self.onlookers.log_feeds):
            reading.run()
        self.replays.run()
        self._offer_room()

    def _offer_room(self) -> None:
        if self._waiting_for_room and self.pending_bytes < PENDING_BYTES // 2:
            waiting, self._waiting_for_room = self._waiting_for_room, []
            for resume in waiting:
                resume()

    def wait_for_room(self, resume: Callable[[], None]) -> bool:
        """Whether too much is uncommitted; if so ``resume`` is called once it is less."""
        if self.pending_bytes < PENDING_BYTES:
            return False
        self._waiting_for_room.append(resume)
        return True

    # --- publishing -------------------------------------------------------------------------------------------

    def publish(
        self,
        link: PublishingLink,
        topic: str,
        contents: list[bytes],
        bares: list[int],
        deliveries: list[Any],
        *,
        is_direct: bool = False,
        origin: str = "",
    ) -> None:
        """
        Messages of one topic came in on a link; it is told of each delivery once that is true.

        Args:
            deliveries: One for each of ``contents``; none when they came settled (``is_direct``).
            origin: The publisher's container-id, see ``Origins``.
        """
        while contents:
            publication, taken, refused = self.broker.publish(
                now_ms(), topic, contents, bares, (link, deliveries), is_direct=is_direct, origin=origin
            )
            self.activity += 1
            if publication is not None:
                self.add(publication)
                if self.origins.watchers:
                    rows = publication.rows
                    self.origins.add(rows[0][0], rows[-1][0] + 1, origin)
            if taken == len(contents):
                return
            if publication is not None:
                publication.receipt = (link, deliveries[:taken])
            behind = taken + refused.count if isinstance(refused, TooLarge) else len(contents)
            link.not_stored(deliveries[taken:behind], refused)
            if is_direct:
                self.direct_dropped += behind - taken
            contents, bares, deliveries = contents[behind:], bares[behind:], deliveries[behind:]

    def add(self, publication: Publication) -> None:
        """Have a publication committed, with what else comes in this turn of the loop."""
        self._effects.append(publication)
        self._size_bytes += publication.size_bytes
        self.pending_bytes += publication.size_bytes
        largest = max(len(row[5]) for row in publication.rows)
        self.reader.largest_bytes = max(self.reader.largest_bytes, largest)
        self._is_lazy = False
        self._schedule()

    # --- consuming --------------------------------------------------------------------------------------------

    def feed_of(self, endpoint: Endpoint) -> EndpointFeed:
        feed = self._feeds.get(endpoint.name)
        if feed is None or feed.endpoint is not endpoint:
            feed = self._feeds[endpoint.name] = EndpointFeed(self, endpoint, self.limits.read_page_rows)
        return feed

    def bind(
        self,
        endpoint: Endpoint,
        link: ConsumingLink,
        epoch: int | None = None,
        selects: Callable[[Row], bool] | None = None,
        priority: int = 0,
    ) -> Flow:
        """
        Bind a consumer to an endpoint.

        Args:
            selects: The consumer's selector and filters, if it has any.
            priority: While it can take messages, consumers of a lower one get none.

        Raises:
            Refused: The endpoint's exclusivity says so.
        """
        flow = Flow(endpoint, link, epoch, selects, priority)
        displaced = endpoint.bind(flow)
        self.feed_of(endpoint)
        self.replays.bound(endpoint)
        if displaced is not None:
            who = "a consumer" if epoch is None else f"a consumer of epoch {epoch}"
            self._displace(displaced, Refused(ErrorCode.STOLEN, f"{who} took {endpoint.name!r} over"))
        return flow

    def displace_all(self, endpoint: Endpoint, refused: Refused, *, but: Flow | None = None) -> None:
        """Detach the endpoint's consumers, each told why."""
        for flow in list(endpoint.flows):
            if flow is not but:
                self._displace(flow, refused)

    def _displace(self, flow: Flow, refused: Refused) -> None:
        self._take_back(flow)
        flow.link.refuse(refused)

    def unbind(self, flow: Flow) -> None:
        """The consumer is gone; what it had not settled is ready for others."""
        self._take_back(flow)
        self.look_at(flow.endpoint)

    @staticmethod
    def _take_back(flow: Flow) -> None:
        # The consumer may have seen what it had not settled: the next one is told so by the delivery-count.
        flow.endpoint.release(flow, list(flow.unsettled), failed=True)
        flow.endpoint.unbind(flow)

    def delete(self, endpoint: Endpoint) -> None:
        """The endpoint is gone with what lies on it; those that consume from it are told."""
        self.displace_all(endpoint, Refused(ErrorCode.RESOURCE_DELETED, f"{endpoint.name!r} was deleted"))
        self._feeds.pop(endpoint.name, None)
        self.replays.forget(endpoint)
        self.commit(self.broker.delete(endpoint))

    def set_subscriptions(self, endpoint: Endpoint, subscriptions: Collection[str]) -> None:
        """Make these an endpoint's subscriptions; what lies on it stays, and who reads the log for it goes by them."""
        self.commit(self.broker.set_subscriptions(endpoint, subscriptions))
        self.streams.subscriptions_changed(endpoint)
        self.replays.subscriptions_changed(endpoint)

    def ask(self, flow: Flow, room: int) -> None:
        """The flow's link can take ``room`` messages now."""
        flow.demand = room
        if room > 0:
            self.look_at(flow.endpoint)

    def settle(self, flow: Flow, ids: list[int]) -> None:
        """Messages consumed for good."""
        endpoint = flow.endpoint
        is_replaying = endpoint.replay is not None and endpoint.replay.is_under_way
        gone, size = endpoint.settle(flow, ids)
        self.activity += 1
        self.counters.settled_messages += len(gone)
        if gone:
            self._effects.append(RemoveReferences(endpoint.number, gone, size))
            self._schedule()
        if is_replaying:
            self.replays.acknowledged(endpoint)

    def retired(self, retired: Retired) -> None:
        """Messages that a transaction took off an endpoint are gone for good: it is durable."""
        endpoint = retired.endpoint
        is_replaying = endpoint.replay is not None and endpoint.replay.is_under_way
        retired.done()
        self.counters.settled_messages += len(retired.held)
        if is_replaying:
            self.replays.acknowledged(endpoint)

    def check_topic(self, topic: str) -> str:
        """
        The topic, if it may be published to here.

        Raises:
            amqp_ext.topics.TopicSyntaxError: It is none.
            Refused: INVALID_FIELD, it is longer or deeper than this VPN takes.
        """
        check_topic(topic)
        limits = self.settings
        if len(topic.encode()) > limits.max_topic_bytes:
            raise Refused(ErrorCode.INVALID_FIELD, f"a topic has at most {limits.max_topic_bytes} bytes here")
        if topic.count("/") >= limits.max_topic_levels:
            raise Refused(
                ErrorCode.INVALID_FIELD, f"a topic has at most {limits.max_topic_levels} levels here"
            )
        return topic

    @staticmethod
    def exclusivity_of(options: Mapping[str, str]) -> Exclusivity | None:
        """What an address option says of a queue, if it says anything."""
        text = options.get("exclusive")
        return Exclusivity(text) if text is not None else None

    @staticmethod
    def kind_of(options: Mapping[str, str]) -> EndpointKind | None:
        """Whether an address option says queue or stream."""
        text = options.get("kind")
        return EndpointKind(text) if text is not None else None

    def shun(self, flow: Flow, ids: list[int]) -> None:
        """Messages that this consumer must not be given again (undeliverable here, AMQP 1.0 section 3.4.5)."""
        flow.shunned.update(ids)
        endpoint, matches = flow.endpoint, flow.selector
        endpoint.select(flow, lambda row: row[0] not in flow.shunned and (matches is None or matches(row)))

    def release(self, flow: Flow, ids: list[int], *, failed: bool) -> None:
        """Messages given back by a consumer; ``failed`` counts as a failed delivery."""
        endpoint = flow.endpoint
        back = endpoint.release(flow, ids, failed=failed)
        if not back:
            return
        if failed:
            self._effects.append(CountAttempts(endpoint.number, [(i, endpoint.attempts[i]) for i in back]))
            self._schedule()
        self.look_at(endpoint)

    def look_at(self, endpoint: Endpoint) -> None:
        """Something of the endpoint's changed: perhaps a consumer can be given more."""
        feed = self._feeds.get(endpoint.name)
        if feed is not None:
            feed.run()

    # --- the log ----------------------------------------------------------------------------------------------

    async def resolve_start(self, start: ReplayStart, patterns: Sequence[str]) -> Resolved:
        """
        Where a replay of these topics starts, as it was asked for; looks into the log off the loop.

        Raises:
            Refused: It cannot start there.
        """
        return await starts.resolve_start(self, start, patterns, topic_matcher(patterns), now_ms())

    async def resolve_start_on(self, endpoint: Endpoint, start: ReplayStart) -> Resolved:
        """The same for what an endpoint subscribes to, its exceptions among it."""
        broker = self.broker
        patterns, matches = broker.topic_patterns(endpoint), broker.topic_matcher(endpoint)
        return await starts.resolve_start(self, start, patterns, matches, now_ms(), endpoint)

    async def create_point(self, name: str, start: ReplayStart | None = None) -> Point:
        """See ``starts.create_point``."""
        return await starts.create_point(self, name, start, now_ms())

    async def delete_point(self, name: str) -> None:
        """See ``starts.delete_point``."""
        await starts.delete_point(self, name)

    def points(self) -> list[ListedPoint]:
        """See ``starts.list_points``."""
        return starts.list_points(self)

    # --- reporting --------------------------------------------------------------------------------------------

    def report(self, event: str, error: BaseException) -> None:
        """One line about something that should not happen."""
        self._log.error(event, **{log_keys.REASON: f"{type(error).__name__}: {error}"})

    @staticmethod
    def now_ms() -> int:
        """Milliseconds since the epoch."""
        return now_ms()

    def next_turn(self, call: Callable[[], None]) -> None:
        """Call in the next turn of the loop, after all that is ready now."""
        self._loop.call_soon(call)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._loop.call_later(seconds, call)
