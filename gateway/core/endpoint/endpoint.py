"""
An endpoint: a queue, a topic endpoint or a stream, the messages on it, and the flows bound to it.

Its ``Backlog`` knows which messages are on it, and which of them are durably settled. Messages that wait for a consumer
are in a ``ReadyQueue`` or in ``PriorityReadyQueues``, of which only a window is in memory. Flows have the messages that
were handed out.

Invariant: a committed message on the endpoint is in the ready queue (in memory or in the store); or unsettled on one
flow, bound or suspended; or waits for a replay; or is withdrawn, by a running commit or until a dead message queue has
it.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from gateway.core.effects import (
    AddReferences,
    CountAttempts,
    DelayedMessage,
    DeleteSubscription,
    Effect,
    HoldBack,
    ReleaseDelayed,
    SaveEndpoint,
    SaveReplay,
    SaveSubscription,
    SettleInTransaction,
)
from gateway.core.endpoint.backlog import Backlog, RoutedMessages
from gateway.core.endpoint.by_key import ByKey, by_key_of
from gateway.core.endpoint.expiry import expiries
from gateway.core.endpoint.flow import BoundFlow, Sizes, Unsettled, admit
from gateway.core.endpoint.last_values import LastValues
from gateway.core.endpoint.ready_queue import Candidates, PriorityReadyQueues, ReadyQueue
from gateway.core.endpoint.retry import HeldUp, retry_time
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, EndpointTopics, Exclusivity
from gateway.core.model import CONTENT, ID, WHOLE, Row
from gateway.core.replay.states import Replay

FLOW_QUANTUM = 256
"""Messages that a flow gets before the next flow's turn: large enough that batches stay batches, small enough that two
consumers share a burst."""

MOST_RELEASED: Final = 10_000
"""The most released messages that an endpoint has in memory, not counting those that are handed out."""

DELAYED_ID: Final = attrgetter("id")

NEVER_MS: Final = sys.maxsize
"""The expiry of a message that never expires."""


@dataclass(eq=False, slots=True)
class Endpoint:
    """Its methods change its state and return the effects of the change, which the caller commits."""

    number: int
    """Its number in the store and in routes."""
    name: str
    kind: EndpointKind
    settings: EndpointSettings
    window: int
    backlog: Backlog
    flow_quantum: int = FLOW_QUANTUM
    subscriptions: dict[str, None] = field(default_factory=dict)
    replay: Replay | None = None
    flows: OrderedDict[Flow, None] = field(default_factory=OrderedDict)
    """Bound flows, in the order of binding."""
    suspended: dict[Flow, None] = field(default_factory=dict)
    """Flows whose consumers have detached without closing their links (AMQP 1.0 section 2.6.3). They keep their
    unsettled messages until the link ceases to exist, and get no more."""
    ready: ReadyQueue | PriorityReadyQueues = field(init=False)
    by_key: ByKey | None = field(init=False)
    """Which consumer gets the messages of which key; None where any consumer may get any message."""
    withdrawn: set[int] = field(default_factory=set)
    """Ids of messages that transactions are about to settle."""
    attempts: dict[int, int] = field(default_factory=dict)
    """Failed deliveries by message id, for the few messages that have any."""
    settled: int = 0
    """How many messages were consumed, or moved as dead messages, since the endpoint was loaded or made."""
    topics: EndpointTopics = field(init=False)
    held_up: HeldUp = field(default_factory=HeldUp)
    """Messages that wait for redelivery, and that all later messages wait for (strict order)."""
    holding_back: int = 0
    """How many messages are to be delayed, but not durably yet."""
    values: LastValues | None = None
    """The values of a last-value queue; None for other kinds."""
    _watchers: int = 0
    _awaits_emptied: bool = False
    """Publications may have been uncommitted when the endpoint was emptied: they are dropped when they are committed,
    although their route leads here."""
    _turn: deque[Flow] = field(default_factory=deque)
    """The flows whose turns come next."""
    _keyed_by: tuple[object, ...] = ()
    """The settings that ``by_key`` was made from."""
    _has_preferred: bool = False
    """Whether a flow has had a priority other than 0 since the endpoint last had no flows."""

    def __post_init__(self) -> None:
        parts = self.backlog.parts
        if self.settings.priorities:
            self.ready = PriorityReadyQueues(self.window, parts)
        else:
            self.ready = ReadyQueue(self.window, parts[WHOLE])
        self.topics = EndpointTopics(self.name, self.kind, self.subscriptions)
        self.by_key = by_key_of(self.settings, self.ready)
        self._keyed_by = self.settings.keyed_by

    @property
    def cursor_number(self) -> int:
        """The number of its cursor. It gets a new one when it is emptied."""
        return self.backlog.cursor_number

    @property
    def depth(self) -> int:
        """How many messages are durably on it, unsettled deliveries included. Of a last-value queue: its keys."""
        return self.backlog.messages if self.values is None else self.values.messages

    @property
    def size_bytes(self) -> int:
        """The size of their content."""
        return self.backlog.size_bytes if self.values is None else self.values.size_bytes

    # --- awake and asleep ------------------------------------------------------------------------------

    @property
    def is_awake(self) -> bool:
        """Whether it counts each message as it comes. An endpoint that is asleep asks its routes when needed."""
        return self.backlog.is_awake

    def wake(self) -> None:
        """Wake up if there is a reason to count each message; else fall asleep."""
        settings = self.settings
        is_awake = bool(
            self.flows
            or self._watchers
            or settings.has_quota
            or (self.replay is not None and self.replay.is_under_way)
            or self._awaits_emptied
        )
        if self.backlog.wake(is_awake) and is_awake:
            self.catch_up()
        if not self.flows and (self.replay is None or not self.replay.is_reading):
            self.ready.fall_asleep(set(self.backlog.put.ids))

    def watch(self) -> None:
        """A watcher needs to see each message that comes, until ``unwatch``."""
        self._watchers += 1
        self.wake()

    def unwatch(self) -> None:
        """A watcher is gone."""
        self._watchers -= 1
        self.wake()

    @property
    def _waits_for_replay(self) -> bool:
        """Whether routed messages become ready only after those of the replay."""
        return self.replay is not None and self.replay.is_reading

    def catch_up(self) -> None:
        """Ask the routes which messages came while the endpoint was asleep."""
        if self._waits_for_replay:
            return
        for part in self.backlog.parts:
            self.ready.of(part).stored(self.backlog.newest_id(part))

    # --- what is written --------------------------------------------------------------------------------------

    def definition(self) -> SaveEndpoint:
        return SaveEndpoint(
            self.number,
            self.cursor_number,
            self.name,
            self.kind.value,
            self.settings.to_json(),
            self.replay.to_json() if self.replay else None,
        )

    def replay_definition(self) -> SaveReplay:
        return SaveReplay(self.number, self.replay.to_json() if self.replay else None)

    # --- messages come ----------------------------------------------------------------------------------------

    def add_published(
        self,
        ids: Sequence[int],
        priorities: Sequence[int] | None,
        parts: Sequence[tuple[RoutedMessages, int, int]],
    ) -> bool:
        """
        Add durable published messages (rising ids, newer than all before); called only while the endpoint is awake.

        Args:
            priorities: Their priorities, if an endpoint delivers by priority.
            parts: Their routes, and how many messages and bytes came by each.

        Returns:
            Whether they are ready. While a replay reads, they wait until it has caught up.
        """
        backlog = self.backlog
        if (
            self._awaits_emptied
            and ids[-1] <= backlog.emptied_up_to
            and all(cursor.is_done(ids[0]) for cursor in backlog.parts.values())  # else the replay kept it
        ):
            backlog.drop_on_way(len(ids))
            return False
        for route, messages, size in parts:
            backlog.published(route, messages, size)
        if self._waits_for_replay:
            return False
        if not self.flows:
            for route, _, _ in parts:
                self.ready.of(backlog.part_of(route)).stored(ids[-1])
            return True
        if priorities is not None:
            self.ready.note_priorities(ids, priorities)
        self.ready.add_committed(ids)
        return True

    def committed_up_to(self, message_id: int) -> bool:
        """All up to this id is committed. Return whether no publication from before the emptying is uncommitted."""
        if self._awaits_emptied and self.backlog.emptied_up_to <= message_id:
            self._awaits_emptied = False
            self.wake()
        return not self._awaits_emptied

    def add_page(
        self, queue: ReadyQueue, ids: Sequence[int], position: int, attempts: Iterable[tuple[int, int]]
    ) -> None:
        """
        Add a page that was read from the store.

        Args:
            queue: The queue of the page, from ``queue_to_read``.
            ids: As in ``ReadyQueue.add_page``, like ``position``.
            attempts: (id, failed deliveries) of messages that have any.
        """
        failed = list(attempts)
        if failed:
            # Messages that wait for redelivery, on the page or in between, also have attempts: these are not noted.
            here, is_done = set(ids), queue.cursor.is_done
            self.note_attempts(found for found in failed if found[0] in here and not is_done(found[0]))
        queue.add_page(ids, position)

    def note_attempts(self, attempts: Iterable[tuple[int, int]]) -> None:
        """Take over (id, failed deliveries) from the store, which may have lower numbers than this endpoint."""
        known = self.attempts
        for i, count in attempts:
            known[i] = max(count, known.get(i, 0))

    def queue_to_read(self, page_rows: int) -> ReadyQueue | None:
        """The ready queue to read from the store, because it runs low while the store has more; else None."""
        ready = self.ready
        if self._waits_for_replay or not ready.has_more:
            return None
        searching = [
            flow.candidates for flow in self.flows if flow.candidates is not None and flow.demand > 0
        ]
        return ready.queue_to_read(page_rows, searching)

    def empty(self, cursor_number: int, floor: int) -> list[Effect]:
        """
        Drop everything up to ``floor``: the endpoint continues, empty, with a new cursor.

        Returns:
            The effects, without the endpoint's definition.
        """
        effects = self.backlog.drop_effects(floor)
        self._drop_all(cursor_number, floor)
        return [*self.backlog.open_effects(floor), *effects]

    def _drop_all(self, cursor_number: int, floor: int) -> None:
        self.backlog.reset(cursor_number, floor)
        if self.values is not None:
            self.values.reset(floor + 1)
        if not self._awaits_emptied:
            self.backlog.take_dropped_on_way()
        self._awaits_emptied = True
        self.withdrawn.clear()
        self.wake()
        self.attempts.clear()
        self.held_up.clear(self.ready)
        self.ready.forget_all(self.backlog.parts)
        if self.by_key is not None:
            self.by_key.forget_all()
        for flow in (*self.flows, *self.suspended):
            flow.unsettled.clear()

    def delete(self, up_to: int) -> list[Effect]:
        """Delete the endpoint: it is empty from now on, so that a late settlement or its replay writes nothing."""
        effects = self.backlog.drop_effects(up_to)
        self._drop_all(0, up_to)
        self.replay = None
        return effects

    # --- changes ------------------------------------------------------------------------------------------------

    def change_settings(self, settings: EndpointSettings) -> SaveEndpoint:
        """Take over these settings; the messages stay."""
        self.settings = settings
        for flow in (*self.flows, *self.suspended):
            self._lock(flow)
        self.share_by_key()
        return self.definition()

    def subscribe(self, pattern: str) -> SaveSubscription:
        """Add a subscription."""
        self.subscriptions[pattern] = None
        self.topics.changed()
        return SaveSubscription(self.number, pattern)

    def unsubscribe(self, pattern: str) -> DeleteSubscription:
        """Remove a subscription."""
        del self.subscriptions[pattern]
        self.topics.changed()
        return DeleteSubscription(self.number, pattern)

    # --- replay -------------------------------------------------------------------------------------------------

    def begin_replay(
        self, replay: Replay, cursor_number: int, replay_cursor_number: int, floor: int
    ) -> list[Effect]:
        """Begin this replay and empty the endpoint. Nothing is read or handed out until ``ReplayCommands.cleared``."""
        effects = self.empty(cursor_number, floor)
        self.replay = replay
        put = self.backlog.put
        return [*effects, *put.begin_replay(replay_cursor_number, replay.first), self.definition()]

    def go_on_from(self, position: int) -> None:
        """Routed messages are ready from this id on. Those before it were put here by a replay, or are not wanted."""
        for part in self.backlog.parts:
            self.ready.of(part).read_from(position, self.backlog.newest_id(part))

    def _acknowledge(self, gone: Sequence[int]) -> list[Effect]:
        """Messages were settled: a replay, if there is one, may be complete now."""
        replay, put = self.replay, self.backlog.put
        if replay is None:
            return []
        count = replay.acknowledge(gone)
        if not count or put.replayed is None:
            return []
        effects: list[Effect] = [put.acknowledged(count)]
        return effects if replay.is_under_way else [*effects, *self.end_replay()]

    @property
    def is_replay_in_doubt(self) -> bool:
        """Whether transactions are about to settle messages that the replay has put here."""
        return any(map(self.backlog.put.is_replayed, self.withdrawn))

    def end_replay(self) -> list[Effect]:
        """The replay is complete: all its messages are settled."""
        return [*self.backlog.put.end_replay(), self.replay_definition()]

    def forget(self, ids: Collection[int]) -> None:
        """Drop these messages, whether they are ready or on a flow."""
        self.ready.drop(ids)
        if self.by_key is not None:
            self.by_key.close(ids)
        for flow in (*self.flows, *self.suspended):
            for i in ids:
                flow.unsettled.pop(i, None)
        for i in ids:
            self.attempts.pop(i, None)

    # --- copies -------------------------------------------------------------------------------------------------

    def begin_copy(self, row: Row) -> AddReferences:
        """Begin to put one logged message here, in its place by id."""
        self.backlog.reserve(1, len(row[CONTENT]))
        self.backlog.put.coming.add(row[ID])
        return AddReferences(self.cursor_number, (row[ID],))

    def end_copy(self, effect: AddReferences, row: Row, priority: int, *, is_committed: bool) -> list[Effect]:
        """
        The copy is durable and becomes ready, or its commit failed.

        Args:
            priority: The message's priority; used if the endpoint delivers by priority.

        Returns:
            The effects that delete the reference of a copy that failed: it may have been written.
        """
        size = len(row[CONTENT])
        self.backlog.reserve(-1, -size)
        self.backlog.put.coming.discard(row[ID])
        if self.cursor_number != effect.cursor:
            return []  # a replay or a purge has dropped it with all other messages
        if not is_committed:
            return [self.backlog.put.drop_references(effect.ids)]
        self.refer(effect.ids, (priority,), size)
        return []

    def refer(
        self, ids: Sequence[int], priorities: Sequence[int], size_bytes: int, *, waits: bool = False
    ) -> None:
        """
        Add messages with references: they are ready, each in its place.

        Args:
            waits: They become ready only after the routed messages before them, in a replay that goes on after a
                restart.
        """
        self.backlog.put.refer(ids, size_bytes)
        self.ready.note_priorities(ids, priorities)
        if waits:
            self.backlog.put.waiting.extend(ids)
        else:
            self.ready.give_back(ids)

    # --- delayed messages ---------------------------------------------------------------------------------------

    @property
    def room_for_released(self) -> int:
        """
        How many due messages may be released now; the others stay in the store. While a replay reads, only those of
        ``retries_below`` are released.
        """
        if self._waits_for_replay and not self.backlog.delayed.retries:
            return 0
        put = self.backlog.put
        handed_out = sum(len(flow.unsettled) for flow in (*self.flows, *self.suspended))
        return max(MOST_RELEASED + handed_out - len(put.references) - len(put.coming), 0)

    @property
    def retries_below(self) -> int | None:
        """
        While a replay reads, only delayed messages below this id are released: those that the replay had put here, and
        that wait for redelivery. Others are live, and live messages follow those of the replay. None: all are released.
        """
        if self.replay is None or not self.replay.is_reading:
            return None
        return NEVER_MS if self.replay.live_from is None else self.replay.live_from

    def begin_release(self, messages: Sequence[DelayedMessage]) -> ReleaseDelayed:
        """Begin to release due messages. The caller calls ``end_release`` after the commit."""
        self.backlog.put.coming.update(message.id for message in messages)
        return ReleaseDelayed(self.cursor_number, [(message.due_ms, message.id) for message in messages])

    def end_release(
        self, effect: ReleaseDelayed, messages: Sequence[DelayedMessage], *, is_committed: bool
    ) -> bool:
        """Make the messages ready, each in its place by id, if they were committed. Return whether they are ready."""
        self.backlog.put.coming.difference_update(message.id for message in messages)
        if not is_committed or self.cursor_number != effect.cursor:
            return False  # not committed, or a replay or a purge has dropped them with all others
        self.backlog.delayed.remove(messages)
        released = sorted(messages, key=DELAYED_ID)
        ids = [message.id for message in released]
        self.note_attempts((message.id, message.attempts) for message in released if message.attempts)
        if self.replay is not None:
            self.replay.take_back(ids)
            if self.replay.is_under_way:
                self.backlog.put.live.update(
                    (message.id, message.size_bytes)
                    for message in released
                    if not message.is_retry or self.replay.is_live(message.id)
                )
        self.refer(
            ids,
            [message.priority for message in released],
            sum(message.size_bytes for message in released),
        )
        self.held_up.remove(self.ready, ids)
        return True

    def cancelled(self, message: DelayedMessage) -> None:
        """A delayed message was cancelled: it is not delivered."""
        self.backlog.delayed.remove([message])
        self.held_up.remove(self.ready, [message.id])

    # --- delayed retry --------------------------------------------------------------------------------------------

    def retry_times(
        self, flow: Flow, ids: Iterable[int], asked_ms: Mapping[int, int], now_ms: int, *, failed: bool
    ) -> dict[int, int]:
        """
        By id, when messages that a flow returns are to be delivered again, in ms since the epoch. Messages without a
        delay, and those that are to go to the dead message queue, are left out.

        Args:
            asked_ms: By id, the times that the consumer asks for.
            failed: Whether their deliveries failed; these are counted here.
        """
        settings, archived = self.settings, self.backlog.put.archived
        found: dict[int, int] = {}
        for i in ids:
            # The store does not have messages that only the log's archive has, so these cannot wait in it.
            if i in archived or i not in flow.unsettled:
                continue
            attempts = self.attempts.get(i, 0) + failed
            if settings.max_redelivery and attempts > settings.max_redelivery:
                continue
            due_ms = retry_time(
                settings, failed=failed, attempts=attempts, now_ms=now_ms, asked_ms=asked_ms.get(i, 0)
            )
            if due_ms is not None:
                found[i] = due_ms
                if failed:
                    self.attempts[i] = attempts
        return found

    def begin_hold_back(
        self, settling: Sequence[Effect], messages: Mapping[int, int], due_ms: Mapping[int, int]
    ) -> list[Effect]:
        """
        Begin to delay messages that were withdrawn.

        Args:
            settling: The effects of the withdrawal.
            messages: Content sizes in bytes by id.
            due_ms: By id, when each is to be delivered again, in ms since the epoch.

        Returns:
            The effects that delay them, to be committed together.
        """
        for effect in settling:
            if isinstance(effect, SettleInTransaction):
                # The endpoint still needs these messages, and their counts of failed deliveries.
                effect.done = effect.attempts = ()
        in_order = self.settings.strict_order
        if in_order:
            self.held_up.add(self.ready, self.ready.by_part(sorted(messages)))
        attempts = [(i, self.attempts[i]) for i in messages if i in self.attempts]
        entries = [(due_ms[i], i, size) for i, size in messages.items()]
        counted = [CountAttempts(self.cursor_number, attempts)] if attempts else []
        return [*settling, *counted, HoldBack(self.cursor_number, entries, in_order)]

    def end_hold_back(self, due_ms: Mapping[int, int], size_bytes: int) -> None:
        """The messages are durably delayed, so they do not count as consumed."""
        self.settled -= len(due_ms)
        self.backlog.delayed.add(due_ms.values(), size_bytes, are_retries=True)

    # --- messages go ------------------------------------------------------------------------------------------

    def hand_out(
        self, flow: Flow, ids: Sequence[int], rows: Sequence[Row], now_ms: int, sizes: Sizes = None
    ) -> None:
        """Hand ready ``rows``, with these ids, to a flow: the next ones of ``peek``, or selected ones."""
        flow.hold(ids, rows, now_ms, sizes)
        self.ready.hand_out(ids)

    @property
    def oldest_delivery(self) -> tuple[Flow, int, int] | None:
        """
        The oldest unsettled delivery: its flow, the message's id, and when it was handed out, in ms since the epoch;
        None without any. Messages that were handed out together have the same time.
        """
        found = [
            (oldest[1], oldest[0], flow)
            for flow in (*self.flows, *self.suspended)
            if (oldest := flow.unsettled.oldest) is not None
        ]
        if not found:
            return None
        since_ms, message_id, flow = min(found, key=lambda one: one[:2])
        return flow, message_id, since_ms

    # --- locks ------------------------------------------------------------------------------------------------

    def lock_timeout_ms(self, flow: Flow) -> int:
        """How long a flow keeps a message that it does not settle, in ms; 0 is no limit."""
        own = flow.lock_timeout_ms
        return self.settings.lock_timeout_ms if own is None else own

    def _lock(self, flow: Flow) -> None:
        flow.unsettled.lock(are_locked=self.lock_timeout_ms(flow) > 0)

    def overdue(self, flow: Flow, now_ms: int, limit: int) -> list[int]:
        """At most ``limit`` messages of a flow whose locks have ended: the caller releases them."""
        return flow.unsettled.locked_since(now_ms - self.lock_timeout_ms(flow), limit)

    @property
    def next_lock_end_ms(self) -> int | None:
        """When the next lock ends if it is not renewed, in ms since the epoch; None without locks."""
        ends = [
            since_ms + self.lock_timeout_ms(flow)
            for flow in (*self.flows, *self.suspended)
            if (since_ms := flow.unsettled.oldest_lock_ms) is not None
        ]
        return min(ends, default=None)

    def pass_stalled(self) -> bool:
        """
        Move the active flow of an exclusive endpoint behind the waiting flows, if it is stalled and has nothing
        unsettled. Return whether another flow is active now.
        """
        for passed in range(len(self.waiting_flows)):
            flow = next(iter(self.flows))
            if not flow.is_stalled or flow.unsettled:
                return passed > 0
            self.flows.move_to_end(flow)
        return False

    def end_among(self, rows: Sequence[Row]) -> int | None:
        """The last message before live, if it is one of these (rising ids)."""
        end_id = self.replay.end_id if self.replay is not None else None
        return end_id if end_id is not None and rows[0][ID] <= end_id <= rows[-1][ID] else None

    # --- selectors --------------------------------------------------------------------------------------------

    def select(self, flow: Flow, matches: Callable[[Row], bool]) -> None:
        """From now on, a bound flow gets only messages that match."""
        flow.matches = matches
        if self.by_key is not None:
            return
        if flow.candidates is not None:
            flow.candidates.close()
        flow.candidates = Candidates(self.ready.queues)

    # --- settlement -------------------------------------------------------------------------------------------

    def settle(self, flow: Flow, ids: Iterable[int], newest_id: int) -> tuple[list[int], list[Effect]]:
        """
        Settle messages of a flow.

        Args:
            newest_id: The last committed id.

        Returns:
            The ids that were unsettled on this flow, rising (a late settlement is not an error), and the effects.
        """
        taken, sizes = flow.unsettled.take(list(ids))
        if not taken:
            return [], []
        backlog, is_one_way = self.backlog, not (self.backlog.put.references or self.settings.priorities)
        is_replaying = self.replay is not None and self.replay.is_under_way
        is_put = is_replaying and is_one_way and backlog.put.has_all(taken)
        gone = taken if is_put else sorted(taken)
        self.settled += len(gone)
        failed = [i for i in gone if self.attempts.pop(i, None) is not None] if self.attempts else ()
        if is_one_way and not is_replaying:
            effects: list[Effect] = [backlog.settle(WHOLE, gone, sum(sizes), newest_id, failed)]
        elif is_put:
            effects = backlog.put.settle(gone, sum(sizes), failed, is_run=True) + self._acknowledge(gone)
        else:
            # With a replay, references or priorities, more than one cursor may be concerned.
            routed, put = self._by_way(gone)
            by_id = dict(zip(taken, sizes, strict=True))
            effects = backlog.settle_all(routed, put, by_id, newest_id, failed) + self._acknowledge(gone)
        self._settled(gone)
        return gone, effects

    def _settled(self, gone: Sequence[int]) -> None:
        """Forget settled messages of flows or transactions."""
        self.ready.settled(gone)
        if self.by_key is not None:
            self.by_key.close(gone)

    def _give_back(self, ids: Iterable[int]) -> None:
        """Make messages of flows ready again, each in its place."""
        self.ready.give_back(ids)
        if self.by_key is not None:
            self.by_key.close(ids)

    def _by_way(self, ids: list[int]) -> tuple[dict[int, list[int]], set[int]]:
        """Split rising ids: those that came by routes, by part, and those that a replay or references put here."""
        put = self.backlog.put.among(ids)
        routed = [i for i in ids if i not in put] if put else ids
        return (self.ready.by_part(routed) if routed else {}), put

    def withdraw(self, messages: Mapping[int, int], size_bytes: int, newest_id: int) -> list[Effect]:
        """
        Withdraw messages, which have left their flow, for a transaction that is to settle them. The caller calls
        ``settle_withdrawn``, ``keep_withdrawn`` or ``restore_withdrawn`` when it has ended.

        Args:
            messages: Content sizes in bytes by id.
            size_bytes: Their sum.
            newest_id: The last committed id.

        Returns:
            The effects of the transaction.
        """
        self.backlog.reserve(-len(messages), -size_bytes)
        self.withdrawn.update(messages)
        gone = sorted(messages)
        routed, put = self._by_way(gone)
        acknowledged = self.replay.acknowledges(gone) if self.replay is not None else 0
        return self.backlog.settle_in_transaction(
            routed, messages, put, acknowledged, newest_id, self.attempts
        )

    def settle_withdrawn(self, messages: Mapping[int, int], transaction: Sequence[Effect]) -> list[Effect]:
        """
        A transaction has settled withdrawn messages.

        Args:
            transaction: The effects of ``withdraw``.

        Returns:
            The effects of what happened meanwhile.
        """
        backlog = self.backlog
        self.withdrawn.difference_update(messages)
        gone = sorted(messages)
        if not gone:
            return []
        self.settled += len(gone)
        # A replay may have failed meanwhile, and have dropped its messages.
        routed, put = self._by_way(gone)
        backlog.settled_by_transaction(backlog.open_among(routed), messages, transaction)
        effects = backlog.put.orphans_settled(gone, is_committed=True)
        if put:
            backlog.put.settled_by_transaction({i: messages[i] for i in put}, transaction)
        self._settled(gone)
        for i in gone:
            self.attempts.pop(i, None)
        replay = self.replay
        if replay is None or not replay.acknowledge(gone) or backlog.put.replayed is None:
            return effects
        return effects if replay.is_under_way else [*effects, *self.end_replay()]

    def keep_withdrawn(self, messages: Mapping[int, int]) -> list[Effect]:
        """The messages were not settled; the caller keeps them. Return the effects of what happened meanwhile."""
        self.withdrawn.difference_update(messages)
        return self.backlog.put.orphans_settled(messages, is_committed=False)

    def restore_withdrawn(self, flow: Flow, messages: Mapping[int, int]) -> list[Effect]:
        """
        The withdrawn messages were not settled: the flow gets those back that are still on the endpoint, or they become
        ready if the flow is gone.

        Returns:
            The effects of what happened meanwhile.
        """
        effects = self.keep_withdrawn(messages)
        self.held_up.remove(self.ready, messages)
        routed, put = self._by_way(sorted(messages))
        there = put.union(*self.backlog.open_among(routed).values())
        back = {i: size for i, size in messages.items() if i in there}
        if flow in self.flows or flow in self.suspended:
            flow.unsettled.update(back)
        else:
            self._give_back(back)
        return effects

    @property
    def fresh_from(self) -> int:
        """Messages from this id on are live, and can expire."""
        fresh = 0 if self.replay is None else self.replay.fresh_from
        return sys.maxsize if fresh is None else fresh

    def dead(self, rows: Sequence[Row], now_ms: int, ttl_of: Callable[[bytes], int | None]) -> dict[int, str]:
        """
        By id, which of these messages must not be handed out, and why: ``expired`` by the header's ttl or the
        endpoint's, whichever is shorter, or ``max-redelivery``. Replayed history does not expire: a client requested
        it.
        """
        last_ms = expiries(rows, self.fresh_from, self.settings.max_ttl_ms, ttl_of)
        found = {i: "expired" for i, last in last_ms.items() if last < now_ms}
        if self.attempts and self.settings.max_redelivery:
            for row in rows:
                if self.attempts.get(row[ID], 0) > self.settings.max_redelivery:
                    found[row[ID]] = "max-redelivery"
        return found

    def expires_ms(self, row: Row, ttl_of: Callable[[bytes], int | None]) -> int:
        """The last millisecond since the epoch in which a message may be delivered, or ``NEVER_MS``."""
        return expiries((row,), self.fresh_from, self.settings.max_ttl_ms, ttl_of).get(row[ID], NEVER_MS)

    def release(self, flow: Flow, ids: Iterable[int], *, failed: bool = False) -> list[int]:
        """Make messages of a flow ready again; with ``failed``, their delivery-count rises by one."""
        back, _ = flow.unsettled.take(list(ids))
        if failed:
            for i in back:
                self.attempts[i] = self.attempts.get(i, 0) + 1
        self._give_back(back)
        return back

    # --- flows ------------------------------------------------------------------------------------------------

    @property
    def active_flows(self) -> Sequence[Flow]:
        """The flows that get messages: one on an exclusive endpoint, else all."""
        return list(self.flows)[: None if self.settings.exclusive is Exclusivity.NONE else 1]

    @property
    def waiting_flows(self) -> Sequence[Flow]:
        """On an exclusive endpoint, the flows after the active one; else none."""
        if len(self.flows) < 2 or self.settings.exclusive is Exclusivity.NONE:
            return ()
        return list(self.flows)[1:]

    def bind(self, flow: Flow) -> Flow | None:
        """
        Bind a flow, as the endpoint's exclusivity allows.

        Returns:
            The flow that it displaces, if any.

        Raises:
            Refused: As in ``admit``.
        """
        displaced = admit(self.name, self.settings, self.flows, flow)
        if self._keyed_by != self.settings.keyed_by and not (self.flows or self.suspended or self.withdrawn):
            # No flow or transaction has messages whose keys would be unknown.
            self.by_key = by_key_of(self.settings, self.ready)
            self._keyed_by = self.settings.keyed_by
        self.flows[flow] = None
        self._lock(flow)
        self.wake()
        self._has_preferred |= flow.priority != 0
        if self.by_key is not None:
            self.share_by_key()
        elif flow.matches is not None:
            self.select(flow, flow.matches)
        return displaced

    def unbind(self, flow: Flow) -> None:
        """Unbind a flow; its unsettled messages are ready again, each in its place."""
        if flow in self.flows:
            del self.flows[flow]
            self._has_preferred &= bool(self.flows)
            self._give_back(flow.unsettled)
            flow.unsettled.clear()
            flow.demand = 0
            if flow.candidates is not None:
                flow.candidates.close()
                flow.candidates = None
                self.ready.stop_searching()
            self.share_by_key()
            self.wake()

    def share_by_key(self) -> None:
        """Give each active flow a share of the keys, except stalled flows."""
        by_key = self.by_key
        if by_key is not None:
            active = {flow: None for flow in self.active_flows if not flow.is_stalled}
            for share in [share for flow, share in by_key.shares.items() if flow not in active]:
                share.close()
            for flow in active:
                if flow.candidates is None:
                    by_key.join(flow)

    def suspend(self, flow: Flow) -> None:
        """Unbind a flow that keeps its unsettled messages: see ``suspended``."""
        kept, flow.unsettled = flow.unsettled, Unsettled()
        self.unbind(flow)
        flow.unsettled = kept
        self.suspended[flow] = None

    def end_suspended(self, flow: Flow) -> None:
        """The flow's link has ceased to exist: its unsettled messages are ready again. Does nothing for other flows."""
        if flow in self.suspended:
            del self.suspended[flow]
            self._give_back(flow.unsettled)
            flow.unsettled.clear()

    def next_flow(self) -> Flow | None:
        """The flow whose turn it is among those that can take messages; None if no flow can."""
        flows = self.flows
        if len(flows) < 2 or self.settings.exclusive is not Exclusivity.NONE:
            # On an exclusive endpoint, the first flow has all turns.
            first = next(iter(flows), None)
            return first if first is not None and first.is_hungry else None
        turn, highest = self._turn, None
        if self._has_preferred:
            highest = max((f.priority for f in flows if f.is_hungry), default=None)
        for _ in range(2):
            while turn:
                flow = turn.popleft()
                if flow.is_hungry and flow in flows and (highest is None or flow.priority == highest):
                    return flow
            turn.extend(f for f in flows if f.is_hungry)
        return None

    def share(self, flow: Flow) -> int:
        """How many messages ``flow`` gets in this turn: flows with demand share about equally."""
        quantum = self.flow_quantum
        if len(self.flows) < 2 or self.settings.exclusive is not Exclusivity.NONE:
            return min(flow.demand, 2 * quantum)
        hungry = sum(
            1 for f in self.flows if f.is_hungry and (not self._has_preferred or f.priority == flow.priority)
        )
        return min(flow.demand, quantum, max(1, -(-self.ready.ready // hungry)))


Flow = BoundFlow[Endpoint]
