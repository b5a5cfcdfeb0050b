"""
A Message VPN in a world that moves only when a test says so, with checks of what it does.

Real are ``MessageVpn`` with its broker, feeds, replay pumps, trimmer and log sources; replaced are the loop, the clock,
the store's threads and the links.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from amqp_ext.addresses.address import queue_topic
from gateway.config import Limits, ReplayLog, Vpn
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.settings import EndpointKind, Exclusivity
from gateway.core.errors import ErrorCode
from gateway.core.log import RetentionRule
from gateway.core.model import (
    CONTENT,
    HELD,
    NO_REQUEST,
    TIME_MS,
    TOPIC,
    WHOLE,
    ReplayRequest,
    Row,
    stored_bytes,
)
from gateway.core.replay.commands import KeptMessage
from gateway.core.replay.states import ReplayState
from gateway.core.settlements import PendingSettlement
from gateway.vpn.committer import LINGER_SECONDS
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.role import OpenedStore
from gateway.vpn.runtime import Runtime, Tuning
from gateway.vpn.upkeep.dead_letters import DeadLetters
from gateway.vpn.upkeep.trimming import HOUR_MS
from store.errors import WriteFailed
from store.ports import MAX_ID, Durability, OnCommit
from tests.gateway.core.machines.model import Content, Publisher, is_expired, matches
from tests.gateway.core.machines.naive_links import Consumer, LogConsumer, takes
from tests.gateway.core.machines.naive_threads import NaiveReader, NaiveWriter, WatchedStore
from tests.gateway.core.machines.step_loop import StepLoop

if TYPE_CHECKING:
    from tests.gateway.core.machines.naive_transactions import NaiveTransaction

UNLOGGED = "c/x"
"""The one topic that the log does not take."""

VPN = Vpn(replay_log=ReplayLog(topics=(f"!{UNLOGGED}",), wait_for_room_seconds=0))
"""Publishers are refused at the log's quota and do not wait: the model has no publishers that wait for room."""


def is_clearing(endpoint: Endpoint) -> bool:
    """Whether all messages are about to be removed: until that is durable, nothing is read or handed out."""
    return endpoint.replay is not None and endpoint.replay.state is ReplayState.INITIALIZING


def reserved_on(endpoint: Endpoint) -> tuple[int, int]:
    """Messages and bytes that are about to come to an endpoint; negative if they are about to go."""
    backlog = endpoint.backlog
    return backlog._reserved_messages, backlog._reserved_bytes


class Clock:
    """Milliseconds since the epoch; the clock may be set back."""

    now = 1_000


class _Silent:
    """A logger whose lines are dropped."""

    def bind(self, **more: object) -> _Silent:
        return self

    def info(self, event: str, **more: object) -> None:
        pass

    warning = info

    def error(self, event: str, **more: object) -> None:
        # An assertion of the model, raised when it is told of a commit, must not pass for a client's error.
        assert event != "commit_not_told"


class _Clock:
    """The world's clocks. Each look at the loop's clock takes a millisecond, so that turns take time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._looks = 0

    def now_ms(self) -> int:
        return self._world.clock.now

    @staticmethod
    def problem() -> None:
        """These clocks are never wrong."""

    def seconds(self) -> float:
        self._looks += 1
        return self._world.loop.time() + self._looks / 1_000

    processor_seconds = seconds


class _Store:
    """The store as a Message VPN gets it."""

    place = "here"
    engine = "dictionaries"

    def __init__(self, store: WatchedStore, reader: NaiveReader, *, is_quick: bool) -> None:
        self._store = store
        self._is_quick = is_quick
        self.recovered = store.recover()
        self.reader: Any = reader

    def start_writer(self, on_commit: OnCommit) -> Any:
        self.writer = NaiveWriter(self._store, on_commit, is_quick=self._is_quick)
        return self.writer

    def durability(self) -> Durability:
        return Durability.DISK

    def close(self) -> None:
        """Nothing runs by itself, so nothing has to be ended."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Small sizes, so that few messages are many. ``log_quota`` is in bytes; ``rules`` are for retention."""

    window: int = 4
    page_rows: int = 2
    tail_bytes: int = 1_000
    ahead_bytes: int = 1_000_000
    ahead: int = 3
    quantum: int = 2
    is_quick: bool = False
    log_quota: int = 0
    rules: tuple[RetentionRule, ...] = ()


class World:
    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.clock = Clock()
        self._clock = _Clock(self)
        self.store = WatchedStore()
        self.store.on_row = self._committed
        self.publisher = Publisher(self.store)
        self.limits = Limits(
            endpoint_window=sizes.window,
            read_page_rows=sizes.page_rows,
            tail_bytes=sizes.tail_bytes,
            max_unsettled_per_flow=sizes.ahead,
        )
        quantum = sizes.quantum
        self.tuning = Tuning(
            flow_quantum=quantum,
            endpoint_turn_rows=quantum,
            log_slice_rows=quantum,
            log_turn_rows=quantum,
            log_turn_rows_beside_live=quantum,
            longest_pause=quantum,
            replay_ahead_without_consumer=sizes.ahead + 1,
            dead_letters_under_way=quantum,
            replay_ahead_bytes=sizes.ahead_bytes,
            ageing_seconds=0.9,
        )
        self.contents: dict[int, Content] = {}
        """By cursor number of the endpoint; durable, or about to be."""
        self.consumers: list[Consumer] = []
        self.departed: list[Consumer] = []
        self.committing: list[NaiveTransaction] = []
        self.log_consumers: list[LogConsumer] = []
        self.dead_letters: dict[object, tuple[list[int], list[int], list[bytes]]] = {}
        """Being moved: the endpoint's cursors, the ids there, and the contents for the dead message queue."""
        self.unlogged: set[bytes] = set()
        """Contents that the log did not take."""
        self.published_last: list[bytes] = []
        self.has_failed_to_write = False
        self.rules = sizes.rules
        self.left: set[int] = set()
        """Messages that rules were about to remove from the log, or have removed."""
        self.open()

    # --- begun and ended --------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.loop = StepLoop()
        self.reader = NaiveReader(self.store, self.sizes.page_rows)
        store = _Store(self.store, self.reader, is_quick=self.sizes.is_quick)
        runtime = Runtime(self.loop, _Silent(), self._clock, self.tuning)
        with self.loop.running():
            self.vpn = MessageVpn("default", VPN, self.limits, OpenedStore(store), runtime)
            self.broker = self.vpn.broker
            self.broker.policy.quota_bytes = self.sizes.log_quota
            self._configure()
            self.writer = store.writer
            self._listen()
            for endpoint in self.broker.endpoints.values():
                self.contents[endpoint.cursor_number].restarted(endpoint.replay)
            self.vpn.start()

    def crash(self) -> None:
        """Everything in progress ends; what was durable is recovered."""
        for consumer in self.consumers:
            consumer.content = None
        self.consumers.clear()
        self.departed.clear()
        for transaction in self.committing:
            transaction.what_is_durable()
        self.committing.clear()
        self.log_consumers.clear()
        self.publisher.waiting.clear()
        owned = [endpoint.definition.cursor for endpoint in self.store.endpoints.values()]
        self.contents = {number: self.contents[number] for number in owned}
        self.check_dead_letters()
        self.dead_letters.clear()
        self.loop.close()
        self.open()

    def set_rules(self, rules: tuple[RetentionRule, ...]) -> None:
        """Change the rules of retention, as a reload does."""
        self.rules = rules
        if self._configure():
            self.vpn.cache.skip(self.vpn.cache.next_id)
            self.on_loop(self.vpn.topic_retention.run)

    def _configure(self) -> bool:
        policy = replace(self.broker.policy, retention=self.rules)
        return self.broker.reconfigure(policy, create_queues=self.broker.create_queues)

    def _leaving(self, found: Sequence[tuple[int, str]]) -> None:
        assert all(self.store.is_logged(i) for i, _ in found), "what leaves is there"
        self.left.update(i for i, _ in found)

    def _listen(self) -> None:
        """Report to the model what the gateway does by itself."""
        broker, vpn = self.broker, self.vpn
        dead_letters = vpn.dead_letters
        publish, remove = broker.publications.publish, dead_letters.remove
        put, written = dead_letters._put, dead_letters._written
        start, fail = vpn.replays.start, vpn.replays.fail
        finish_reading = broker.replay_commands.finish_reading

        def published(now: int, topic: str, contents: list[bytes], *args: Any, **options: Any) -> Any:
            logged = broker.policy.takes(topic) and not options.get("is_direct")
            endpoints = [e for e in broker.endpoints.values() if self.takes(e)(topic)]
            expected = self._room_for(topic, contents, endpoints, is_logged=logged)
            for content in self.contents.values():
                content.note_hand_over()
            behind = [e for e in endpoints if e.replay is not None and e.replay.is_behind]
            found = publish(now, topic, contents, *args, **options)
            assert found[1] == expected, f"{found[1]} messages were taken, there was room for {expected}"
            taken = contents[:expected]
            self.published_last = taken
            if not logged:
                self.unlogged.update(taken)
            for endpoint in endpoints:
                if not (logged and endpoint in behind):
                    self.contents[endpoint.cursor_number].routed.update(taken)
            return found

        def removed(flow: Flow, rows: Sequence[Row], reason: str) -> None:
            endpoint = flow.endpoint
            content = self.contents[endpoint.cursor_number]
            is_discarded = endpoint.settings.dead_message_queue in ("", endpoint.name)
            for row in rows:
                self._check_dead(content, endpoint, row, reason)
                content.unsettled.pop(row[0], None)
                if is_discarded:
                    content.removed(row[0])
                else:
                    content.taken_to_remove(row[0])
            remove(flow, rows, reason)

        def being_put(letters: DeadLetters, flow: Flow, rows: Sequence[Row]) -> None:
            self.published_last = []
            put(letters, flow, rows)
            replay = letters.endpoint.replay
            cursors = [letters.cursor_number, *([replay.cursor] if replay is not None else [])]
            self.dead_letters[letters] = cursors, letters.ids, self.published_last

        def written_at_last(
            letters: DeadLetters, settlement: PendingSettlement, error: WriteFailed | None
        ) -> None:
            assert error is None or self.has_failed_to_write
            content = self.contents.get(letters.cursor_number)
            if error is not None:
                del self.dead_letters[letters]
            if content is not None and error is None:
                for i in letters.ids:
                    content.committed(i)
            written(letters, settlement, error)

        def started(
            endpoint: Endpoint,
            first: int,
            requester: Flow | None,
            request: ReplayRequest = NO_REQUEST,
            kept: Sequence[KeptMessage] | None = None,
        ) -> None:
            before = self.contents[endpoint.cursor_number]
            before.note_hand_over()
            staying: set[bytes] = set()
            if kept is not None:
                below = broker.log.unused_id if self.has_failed_to_write else broker.trimming.below
                staying = before.kept(self.unlogged, [one.message_id for one in kept], below)
            start(endpoint, first, requester, request, kept)
            self.new_content(endpoint, first).keep(staying, before.failures)

        def failed(endpoint: Endpoint, reason: str, code: ErrorCode = ErrorCode.REPLAY_FAILED) -> None:
            if code is ErrorCode.REPLAY_MESSAGE_UNAVAILABLE:
                assert endpoint.replay is not None
                assert endpoint.replay.position < max(broker.trimming.below, self.store.first_id), (
                    "nothing was trimmed under it"
                )
            elif code is ErrorCode.REPLAY_FAILED:
                assert self.has_failed_to_write
            self.contents[endpoint.cursor_number].failed()
            fail(endpoint, reason, code)

        def finished(endpoint: Endpoint, position: int) -> Any:
            assert endpoint.replay is not None
            if endpoint.replay.is_forced:
                self.contents[endpoint.cursor_number].forced(position)
            return finish_reading(endpoint, position)

        topic_retention = vpn.topic_retention
        topic_retention._leaving = (self._leaving, *topic_retention._leaving)
        broker.publications.publish = published  # type: ignore[method-assign]
        dead_letters.remove = removed  # type: ignore[method-assign]
        dead_letters._put = being_put  # type: ignore[method-assign]
        dead_letters._written = written_at_last  # type: ignore[method-assign]
        vpn.replays.start = started  # type: ignore[method-assign]
        vpn.replays.fail = failed  # type: ignore[method-assign]
        broker.replay_commands.finish_reading = finished  # type: ignore[method-assign]

    def _committed(self, row: Row) -> None:
        for content in self.contents.values():
            content.offer(row)
        for consumer in self.log_consumers:
            consumer.offer(row)

    # --- endpoints --------------------------------------------------------------------------------------------------

    def new_content(self, endpoint: Endpoint, replay_from: int | None) -> Content:
        content = Content(self.store, endpoint, replay_from, self.takes(endpoint))
        self.contents[endpoint.cursor_number] = content
        return content

    @staticmethod
    def takes(endpoint: Endpoint) -> Callable[[str], bool]:
        """Whether the endpoint takes a topic, by its name or by its present subscriptions."""
        patterns = [*endpoint.subscriptions]
        if endpoint.kind is EndpointKind.QUEUE:
            patterns.append(queue_topic(endpoint.name))
        return lambda topic: any(matches(pattern, topic) for pattern in patterns)

    def is_dead_message_queue(self, endpoint: Endpoint) -> bool:
        return any(e.settings.dead_message_queue == endpoint.name for e in self.broker.endpoints.values())

    def _room_for(
        self, topic: str, contents: list[bytes], endpoints: list[Endpoint], *, is_logged: bool
    ) -> int:
        """How many of these messages, counted from the first, have room everywhere."""
        if not endpoints and not is_logged:
            return 0
        room = 0
        for room in range(len(contents), 0, -1):
            size = sum(map(len, contents[:room]))
            quota = self.broker.policy.quota_bytes
            weight = stored_bytes(topic, [len(content) for content in contents[:room]])
            fits = not (is_logged and quota) or self.broker.log.size_bytes + weight <= quota
            for endpoint in endpoints:
                most, most_bytes = endpoint.settings.quota_messages, endpoint.settings.quota_bytes
                fits = fits and not (most and endpoint.depth + reserved_on(endpoint)[0] + room > most)
                fits = fits and not (
                    most_bytes and endpoint.size_bytes + reserved_on(endpoint)[1] + size > most_bytes
                )
            if fits:
                return room
        return 0

    def _check_dead(self, content: Content, endpoint: Endpoint, row: Row, reason: str) -> None:
        message_id, settings = row[0], endpoint.settings
        if reason == "rejected":
            assert message_id in content.unsettled, "removed although it went back"
            assert message_id in content.rejected
            return
        assert message_id in content.ready
        if reason == "expired":
            assert content.is_fresh(message_id), "history does not expire"
            assert is_expired(row, self.clock.now)
            assert not self.is_dead_message_queue(endpoint), "what is dead does not expire"
        else:
            assert content.failures.get(message_id, 0) > settings.max_redelivery > 0

    # --- what the world does ----------------------------------------------------------------------------------------

    def settle_down(self) -> None:
        """Every thread does all of its work."""
        timers = 3
        while True:
            self.loop.run()
            if self.writer.waiting:
                self.writer.commit(len(self.writer.waiting))
            elif self.reader.waiting:
                self.reader.read(len(self.reader.waiting))
            elif self.vpn.committer._lingering is not None:
                self.loop.advance(LINGER_SECONDS)
            elif self.vpn.topic_retention._task is not None:
                # Counting rests between two pages.
                self.loop.advance(1.0)
            elif timers > 0 or any(feed._turn is not None for feed in self.vpn.readers.log_feeds):
                # What failed is tried again after a second; the sweep for expired messages never ends.
                timers -= 1
                self.loop.advance(1.0)
            elif self.writer.owed:
                self.writer.commit_owed()
            else:
                break
        self.look_after_links()

    def on_loop(self, call: Callable[[], object]) -> None:
        with self.loop.running():
            call()
        self.look_after_links()

    def look_after_links(self) -> None:
        """Forget links that the gateway has detached."""
        if any(consumer.content is None for consumer in self.consumers):
            self.departed += [c for c in self.consumers if c.content is None]
            self.consumers = [c for c in self.consumers if c.content is not None]
        if not all(consumer.is_open for consumer in self.log_consumers):
            self.log_consumers = [c for c in self.log_consumers if c.is_open]

    # --- checks -----------------------------------------------------------------------------------------------------

    def check_places(self) -> None:
        """Each message of an endpoint is in one place, and in the right one."""
        for endpoint in self.broker.endpoints.values():
            unsettled = [i for flow in endpoint.flows for i in flow.unsettled]
            ready: list[int] = []
            for queue in endpoint.ready.queues:
                ready += [*queue.given_back, *queue.oldest] if queue.selectable is None else queue.selectable
                ready += queue.newest
            here = {*unsettled, *ready}
            assert len(here) == len(unsettled) + len(ready), "in one place"
            content = self.contents[endpoint.cursor_number]
            assert content.unsettled.keys() == set(unsettled)
            assert content.ready.issuperset(ready), "and nowhere else"
            assert endpoint.depth >= len(here) or is_clearing(endpoint)
            settings = endpoint.settings
            if endpoint.replay is None and settings.quota_messages and not self.has_failed_to_write:
                # A failed write gives a transaction's messages back, after others may have taken their room.
                assert endpoint.depth <= settings.quota_messages

    def check_at_rest(self) -> None:
        """Everything is committed, read and reported."""
        store, broker = self.store, self.broker
        assert not self.publisher.waiting and not self.committing, "publishers were told"
        self.publisher.check()
        self.check_dead_letters()
        assert broker.log.first_id == store.first_id
        assert broker.log.size_bytes == store.size_bytes
        assert broker.points == store.points
        store.check()
        for endpoint in broker.endpoints.values():
            self._check_endpoint(endpoint)
        self._check_retention()
        for consumer in self.log_consumers:
            consumer.check_at_rest()

    def _check_retention(self) -> None:
        """Each rule keeps its bounds; the counts are exact; the marks are those of the store."""
        store, retention = self.store, self.broker.retention
        assert {
            mark.rule: (mark.below, mark.whole_ms) for mark in retention.marks.values()
        } == store.retention
        if not self.rules:
            return
        assert retention.is_counted
        logged = [row for row in store.messages.values() if row[HELD] is None]
        for place, kept in enumerate(retention.rules):
            rule = kept.rule
            rows = [row for row in logged if self._rule_for(row[TOPIC]) == place]
            assert kept.messages == len(rows)
            assert kept.size_bytes == sum(stored_bytes(row[TOPIC], [len(row[CONTENT])]) for row in rows)
            assert not rule.quota_bytes or kept.size_bytes <= rule.quota_bytes
            oldest_ms = self.clock.now - rule.max_age_hours * HOUR_MS
            assert not rule.max_age_hours or all(row[TIME_MS] >= oldest_ms for row in rows)

    def _rule_for(self, topic: str) -> int | None:
        """The place of the rule that applies to a topic."""
        for place, rule in enumerate(self.rules):
            if any(takes(pattern, topic) for pattern in rule.topics):
                return place
        return None

    def _check_endpoint(self, endpoint: Endpoint) -> None:
        content, durable = self.contents[endpoint.cursor_number], self._durable(endpoint)
        assert not is_clearing(endpoint)
        replay = endpoint.replay
        position = replay.position if replay is not None and replay.is_reading else MAX_ID
        stored = {i for i in durable if i < position or self.store.published[i][CONTENT] in content.routed}
        assert endpoint.depth == len(stored), f"{endpoint.depth} are counted, {sorted(stored)} are there"
        assert endpoint.size_bytes == sum(len(self.store.published[i][CONTENT]) for i in stored)
        is_reading = replay is not None and replay.is_reading
        if not is_reading:
            assert stored == content.ids - content.gone
        if replay is not None:
            self._check_counters(endpoint, content)
        if is_reading and replay is not None:
            assert replay.state is ReplayState.ACTIVE
            ahead = endpoint.settings.max_unsettled or self.limits.max_unsettled_per_flow
            full = min(ahead, self.tuning.replay_ahead_without_consumer)
            pump = self.vpn.replays._pumps[endpoint.name]
            assert replay.outstanding >= full or pump.waits_for_hunger, "it goes on as long as there is room"
            assert replay.outstanding > 0
        is_exclusive = endpoint.settings.exclusive is not Exclusivity.NONE
        for consumer in self.consumers:
            flow = consumer.flow
            if flow is None or flow.endpoint is not endpoint or consumer.room() <= 0:
                continue
            if is_exclusive and flow is not next(iter(endpoint.flows)):
                continue
            due = content.next_for(consumer)
            # A message by its route waits until a replay that is reading has passed it.
            assert due is None or (is_reading and due >= position), f"{due} is due, and a consumer waits"

    def _durable(self, endpoint: Endpoint) -> set[int]:
        """The ids that are on an endpoint in the store, or that its replay would put there again after a restart."""
        store, content, replay = self.store, self.contents[endpoint.cursor_number], endpoint.replay
        found = set(store.on(endpoint.number))
        cursor = store.cursors.get(replay.cursor) if replay is not None else None
        if cursor is not None:
            part = cursor.parts[WHOLE]
            replayed = {i for i in content.ids if content.is_replayed(store.published[i])}
            found |= {i for i in replayed if store.is_logged(i) and not part.is_done(i)}
        return found

    def _check_counters(self, endpoint: Endpoint, content: Content) -> None:
        replay = endpoint.replay
        assert replay is not None
        if replay.state is ReplayState.FAILED or content.was_forced:
            return
        live_from = replay.live_from
        bound = replay.position if replay.is_reading or live_from is None else live_from
        lying = sum(1 for i in self._durable(endpoint) if i < bound)
        if replay.is_under_way:
            assert replay.outstanding == lying, "put, and not acknowledged"
        if replay.state is ReplayState.PENDING_COMPLETE:
            assert lying, "with the last acknowledgement it is complete"
        if not replay.is_reading:
            replayed = [i for i in content.ids if content.is_replayed(self.store.published[i])]
            if replay.end_id is not None or (replayed and not content.was_interrupted):
                assert replay.end_id == max(replayed), "the last message before live is known"
            if not content.was_interrupted:
                before_live = [i for i in content.ids if i < bound]
                assert replay.put == len(before_live)

    def check_dead_letters(self) -> None:
        """Messages that have left an endpoint are on the dead message queue, and those that have not are not there."""
        for cursors, ids, contents in self.dead_letters.values():
            if cursors[0] not in self.store.cursors:
                continue
            gone = set[int]().union(*[self.store.removed[number] for number in cursors])
            assert gone.issuperset(ids) or gone.isdisjoint(ids)
            durable = [content for content in contents if content in self.store.contents]
            assert len(durable) == (len(contents) if gone.issuperset(ids) else 0)
