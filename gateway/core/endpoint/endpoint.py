"""
An endpoint: a queue, a topic endpoint or a stream, the messages on it, and the flows bound to it.

Its ``Backlog`` knows which messages are on it, and which of them are durably settled. Those that wait for a consumer
are in a ``ReadyQueue``, of which only a window is in memory, or in ``PriorityReadyQueues``; what was handed out is at
the flows.

Invariant: a committed message on the endpoint is in the ready queue (in memory or in the store), in the unsettled of
one flow, bound or suspended, awaits a replay, or is withdrawn: by a commit under way, or until a dead message queue has
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
"""Messages a flow is given before the next flow's turn: large enough that batches stay batches, small enough that
two consumers share a burst."""

MOST_RELEASED: Final = 10_000
"""Messages whose time has come that an endpoint has in memory, beside as many as are handed out."""

DELAYED_ID: Final = attrgetter("id")

NEVER_MS: Final = sys.maxsize
"""When a message expires that never does."""


@dataclass(eq=False, slots=True)
class Endpoint:
    """Nobody else writes these fields; what has to be durable of a change is what the caller commits."""

    number: int
    """What the store, and routes, know it by."""
    name: str
    kind: EndpointKind
    settings: EndpointSettings
    window: int
    backlog: Backlog
    flow_quantum: int = FLOW_QUANTUM
    subscriptions: dict[str, None] = field(default_factory=dict)
    replay: Replay | None = None
    flows: OrderedDict[Flow, None] = field(default_factory=OrderedDict)
    """Bound flows, in the order of their binding."""
    suspended: dict[Flow, None] = field(default_factory=dict)
    """Flows whose consumers have detached and not closed their links (AMQP 1.0 section 2.6.3): what they had not
    settled is theirs until the link ceases to exist, and nothing more is given to them."""
    ready: ReadyQueue | PriorityReadyQueues = field(init=False)
    by_key: ByKey | None = field(init=False)
    """Which consumer has the messages of which key; None where any may have any."""
    withdrawn: set[int] = field(default_factory=set)
    """Ids of messages that transactions are about to settle."""
    attempts: dict[int, int] = field(default_factory=dict)
    """Failed deliveries so far, for the few messages that have any."""
    settled: int = 0
    """Messages consumed for good since it is in memory, or gone to where the dead go."""
    topics: EndpointTopics = field(init=False)
    held_up: HeldUp = field(default_factory=HeldUp)
    """What waits to be tried again, and has all behind it wait."""
    holding_back: int = 0
    """How many messages are about to wait: not durably yet."""
    values: LastValues | None = None
    """Of a last-value queue."""
    _watchers: int = 0
    _awaits_emptied: bool = False
    """Publications were on their way when it was emptied: they are dropped when they are committed, though their route
    leads here."""
    _turn: deque[Flow] = field(default_factory=deque)
    """Flows that are to have their turns next."""
    _keyed_by: tuple[object, ...] = ()
    """By which settings ``by_key`` was made."""
    _has_preferred: bool = False
    """Some flow has had a priority of its own since there were none."""

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
        """What the store knows its cursor by; another one once it was emptied as a whole."""
        return self.backlog.cursor_number

    @property
    def depth(self) -> int:
        """
        How many messages are on it, durably; those handed out and not settled among them. Of a last-value queue, its
        keys.
        """
        return self.backlog.messages if self.values is None else self.values.messages

    @property
    def size_bytes(self) -> int:
        """Their content."""
        return self.backlog.size_bytes if self.values is None else self.values.size_bytes

    # --- awake and asleep ------------------------------------------------------------------------------

    @property
    def is_awake(self) -> bool:
        """It counts each message as it comes; an endpoint that is asleep asks its routes when somebody wants to
        know."""
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
        """Somebody looks at what comes here, until ``unwatch``."""
        self._watchers += 1
        self.wake()

    def unwatch(self) -> None:
        """One who looked is gone."""
        self._watchers -= 1
        self.wake()

    @property
    def _waits_for_replay(self) -> bool:
        """What comes by routes is ready only behind what the replay puts here."""
        return self.replay is not None and self.replay.is_reading

    def catch_up(self) -> None:
        """Ask the routes what came while it was asleep."""
        if self._waits_for_replay:
            return
        for part in self.backlog.parts:
            self.ready.of(part).stored(self.backlog.newest_id(part))

    # --- what the store is told -------------------------------------------------------------------------------

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
        Published messages (rising ids, newer than all before) are durable here; told while it is awake.

        Args:
            priorities: Theirs, where some endpoint asks for them.
            parts: Their routes, and how many messages and bytes came by each.

        Returns:
            Whether they are ready; while a replay reads, they wait for their turn behind it.
        """
        backlog = self.backlog
        if (
            self._awaits_emptied
            and ids[-1] <= backlog.emptied_up_to
            and all(cursor.is_done(ids[0]) for cursor in backlog.parts.values())  # else it was kept
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
        """All up to this id is committed; whether nothing is on its way any more that was before it was emptied."""
        if self._awaits_emptied and self.backlog.emptied_up_to <= message_id:
            self._awaits_emptied = False
            self.wake()
        return not self._awaits_emptied

    def add_page(
        self, queue: ReadyQueue, ids: Sequence[int], position: int, attempts: Iterable[tuple[int, int]]
    ) -> None:
        """
        A page was read from the store.

        Args:
            queue: What it was read for, as ``queue_to_read`` said.
            ids: See ``ReadyQueue.add_page``; so is ``position``.
            attempts: (id, failed deliveries) of those that have any.
        """
        failed = list(attempts)
        if failed:
            # Others between them wait to be tried again: what is not here is not known here.
            here = set(ids)
            self.note_attempts(found for found in failed if found[0] in here)
        queue.add_page(ids, position)

    def note_attempts(self, attempts: Iterable[tuple[int, int]]) -> None:
        """(id, failed deliveries) as the store has them: it may know less than is known here."""
        known = self.attempts
        for i, count in attempts:
            known[i] = max(count, known.get(i, 0))

    def queue_to_read(self, page_rows: int) -> ReadyQueue | None:
        """The ready queue that runs low while older messages of it wait in the store, if there is one."""
        ready = self.ready
        if self._waits_for_replay or not ready.has_more:
            return None
        searching = [
            flow.candidates for flow in self.flows if flow.candidates is not None and flow.demand > 0
        ]
        return ready.queue_to_read(page_rows, searching)

    def empty(self, cursor_number: int, floor: int) -> list[Effect]:
        """
        Drop everything up to ``floor``: the endpoint goes on, empty, with a new cursor.

        Returns:
            The effects, but for the endpoint's definition.
        """
        effects = self.backlog.drop_effects(floor)
        self._let_go_of_all(cursor_number, floor)
        return [*self.backlog.open_effects(floor), *effects]

    def _let_go_of_all(self, cursor_number: int, floor: int) -> None:
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
        """It is gone. Whoever still has it finds nothing on it: neither a late settlement nor its replay writes."""
        effects = self.backlog.drop_effects(up_to)
        self._let_go_of_all(0, up_to)
        self.replay = None
        return effects

    # --- changes ------------------------------------------------------------------------------------------------

    def change_settings(self, settings: EndpointSettings) -> SaveEndpoint:
        """It is like this from now on; what lies on it stays."""
        self.settings = settings
        for flow in (*self.flows, *self.suspended):
            self._lock(flow)
        self.share_by_key()
        return self.definition()

    def subscribe(self, pattern: str) -> SaveSubscription:
        """It has this subscription, too."""
        self.subscriptions[pattern] = None
        self.topics.changed()
        return SaveSubscription(self.number, pattern)

    def unsubscribe(self, pattern: str) -> DeleteSubscription:
        """It has this subscription no more."""
        del self.subscriptions[pattern]
        self.topics.changed()
        return DeleteSubscription(self.number, pattern)

    # --- replay -------------------------------------------------------------------------------------------------

    def begin_replay(
        self, replay: Replay, cursor_number: int, replay_cursor_number: int, floor: int
    ) -> list[Effect]:
        """
        This replay is the endpoint's from now on, and what lay here is to be gone: until ``ReplayCommands.cleared``,
        nothing is read or handed out.
        """
        effects = self.empty(cursor_number, floor)
        self.replay = replay
        put = self.backlog.put
        return [*effects, *put.begin_replay(replay_cursor_number, replay.first), self.definition()]

    def go_on_from(self, position: int) -> None:
        """What came by routes is ready from an id on; a replay has put what was before it, or nobody wants that."""
        for part in self.backlog.parts:
            self.ready.of(part).read_from(position, self.backlog.newest_id(part))

    def _acknowledge(self, gone: Sequence[int]) -> list[Effect]:
        """Messages left for good, by which the replay, if there is one, may be complete."""
        replay, put = self.replay, self.backlog.put
        if replay is None:
            return []
        count = replay.acknowledge(gone)
        if not count or put.replayed is None:
            return []
        effects: list[Effect] = [put.acknowledged(count)]
        return effects if replay.is_under_way else [*effects, *self.end_replay()]

    def end_replay(self) -> list[Effect]:
        """All that the replay had put is settled."""
        return [*self.backlog.put.end_replay(), self.replay_definition()]

    def forget(self, ids: Collection[int]) -> None:
        """Drop these, whoever has them."""
        self.ready.drop(ids)
        if self.by_key is not None:
            self.by_key.let_go(ids)
        for flow in (*self.flows, *self.suspended):
            for i in ids:
                flow.unsettled.pop(i, None)
        for i in ids:
            self.attempts.pop(i, None)

    # --- copies -------------------------------------------------------------------------------------------------

    def begin_copy(self, row: Row) -> AddReferences:
        """One logged message is about to be put here, in its place by id."""
        self.backlog.reserve(1, len(row[CONTENT]))
        self.backlog.put.coming.add(row[ID])
        return AddReferences(self.cursor_number, (row[ID],))

    def end_copy(self, effect: AddReferences, row: Row, priority: int, *, is_committed: bool) -> list[Effect]:
        """
        The copy is durable and ready, or it is not here after all.

        Args:
            priority: The message's own; looked at where the endpoint delivers by it.

        Returns:
            What takes back a copy that failed: its reference may be written yet.
        """
        size = len(row[CONTENT])
        self.backlog.reserve(-1, -size)
        self.backlog.put.coming.discard(row[ID])
        if self.cursor_number != effect.cursor:
            return []  # A replay, or a purge, has dropped it with all the rest.
        if not is_committed:
            return [self.backlog.put.drop_references(effect.ids)]
        self.refer(effect.ids, (priority,), size)
        return []

    def refer(
        self, ids: Sequence[int], priorities: Sequence[int], size_bytes: int, *, waits: bool = False
    ) -> None:
        """
        References lead to these: they are ready, each in its place.

        Args:
            waits: A replay that goes on after a stop has them be ready, with what came by routes before them.
        """
        self.backlog.put.refer(ids, size_bytes)
        self.ready.note_priorities(ids, priorities)
        if waits:
            self.backlog.put.waiting.extend(ids)
        else:
            self.ready.give_back(ids)

    # --- messages that wait for their time ----------------------------------------------------------------------

    @property
    def room_for_released(self) -> int:
        """
        How many messages whose time has come may be released now: the others are as well off in the store. A replay
        goes before them, but for those of ``retries_below``.
        """
        if self.replay is not None and self.replay.is_under_way and not self.backlog.delayed.retries:
            return 0
        put = self.backlog.put
        handed_out = sum(len(flow.unsettled) for flow in (*self.flows, *self.suspended))
        return max(MOST_RELEASED + handed_out - len(put.references) - len(put.coming), 0)

    @property
    def retries_below(self) -> int | None:
        """
        While a replay is under way, messages are released that it has brought, and that are tried again: those below
        this id. It would take others for its own, and with it they would be dropped. None: all are released.
        """
        if self.replay is None or not self.replay.is_under_way:
            return None
        return NEVER_MS if self.replay.live_from is None else self.replay.live_from

    def begin_release(self, messages: Sequence[DelayedMessage]) -> ReleaseDelayed:
        """The time of these has come. Once it is committed, or failed, tell ``end_release``."""
        self.backlog.put.coming.update(message.id for message in messages)
        return ReleaseDelayed(self.cursor_number, [(message.due_ms, message.id) for message in messages])

    def end_release(
        self, effect: ReleaseDelayed, messages: Sequence[DelayedMessage], *, is_committed: bool
    ) -> bool:
        """They are ready, each in its place by id, or wait still; whether they are ready."""
        self.backlog.put.coming.difference_update(message.id for message in messages)
        if not is_committed or self.cursor_number != effect.cursor:
            return False  # A replay, or a purge, has dropped them with all the rest.
        self.backlog.delayed.remove(messages)
        released = sorted(messages, key=DELAYED_ID)
        ids = [message.id for message in released]
        self.note_attempts((message.id, message.attempts) for message in released if message.attempts)
        if self.replay is not None:
            self.replay.take_back(ids)
        self.refer(
            ids,
            [message.priority for message in released],
            sum(message.size_bytes for message in released),
        )
        self.held_up.remove(self.ready, ids)
        return True

    def cancelled(self, message: DelayedMessage) -> None:
        """A message that waited here is not delivered."""
        self.backlog.delayed.remove([message])
        self.held_up.remove(self.ready, [message.id])

    # --- messages that are to be tried again ----------------------------------------------------------------------

    def retry_times(
        self, flow: Flow, ids: Iterable[int], asked_ms: Mapping[int, int], now_ms: int, *, failed: bool
    ) -> dict[int, int]:
        """
        When messages that a flow gives back are to be delivered again, in ms since the epoch, of those that are not
        ready at once: those to which a delay applies, and that are not to go to the dead.

        Args:
            asked_ms: Times that its consumer asks for.
            failed: Their deliveries failed, and are counted here.
        """
        settings, archived = self.settings, self.backlog.put.archived
        found: dict[int, int] = {}
        for i in ids:
            # Of what the log's archive alone has the store holds nothing: that cannot wait in it.
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
        Messages that were withdrawn are to wait.

        Args:
            settling: The effects of that.
            messages: Content sizes in bytes by id.
            due_ms: When each is to be delivered again.

        Returns:
            What makes them wait, all or none of it.
        """
        for effect in settling:
            if isinstance(effect, SettleInTransaction):
                # The endpoint needs them still, and knows how often they failed.
                effect.done = effect.attempts = ()
        in_order = self.settings.strict_order
        if in_order:
            self.held_up.add(self.ready, self.ready.by_part(sorted(messages)))
        attempts = [(i, self.attempts[i]) for i in messages if i in self.attempts]
        entries = [(due_ms[i], i, size) for i, size in messages.items()]
        counted = [CountAttempts(self.cursor_number, attempts)] if attempts else []
        return [*settling, *counted, HoldBack(self.cursor_number, entries, in_order)]

    def end_hold_back(self, due_ms: Mapping[int, int], size_bytes: int) -> None:
        """They wait, durably: they are not consumed."""
        self.settled -= len(due_ms)
        self.backlog.delayed.add(due_ms.values(), size_bytes, are_retries=True)

    # --- messages go ------------------------------------------------------------------------------------------

    def hand_out(
        self, flow: Flow, ids: Sequence[int], rows: Sequence[Row], now_ms: int, sizes: Sizes = None
    ) -> None:
        """Hand ready ``rows``, with these ids, to a flow: the next ones, as ``peek`` named them, or selected."""
        flow.hold(ids, rows, now_ms, sizes)
        self.ready.hand_out(ids)

    @property
    def oldest_delivery(self) -> tuple[Flow, int, int] | None:
        """
        Of what consumers have unsettled, what one has had longest: that consumer, the message's id, and since when it
        has it, in ms since the epoch. None where nothing is unsettled. All that was handed out at once has one time.
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
        """How long what is handed to a flow is its own while it does not settle it, in ms; 0 is for ever."""
        own = flow.lock_timeout_ms
        return self.settings.lock_timeout_ms if own is None else own

    def _lock(self, flow: Flow) -> None:
        flow.unsettled.lock(are_locked=self.lock_timeout_ms(flow) > 0)

    def overdue(self, flow: Flow, now_ms: int, limit: int) -> list[int]:
        """What a flow has had for longer than it may, at most so many: ``release`` gives it to others."""
        return flow.unsettled.locked_since(now_ms - self.lock_timeout_ms(flow), limit)

    @property
    def next_lock_end_ms(self) -> int | None:
        """When the next lock ends if nobody settles or renews, in ms since the epoch; None while nothing is locked."""
        ends = [
            since_ms + self.lock_timeout_ms(flow)
            for flow in (*self.flows, *self.suspended)
            if (since_ms := flow.unsettled.oldest_lock_ms) is not None
        ]
        return min(ends, default=None)

    def pass_stalled(self) -> bool:
        """
        A stalled flow that an exclusive endpoint is waiting for, and that has nothing unsettled, goes behind those that
        wait for their turn; whether it is another flow's turn now.
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
        """From now on a bound flow is given only messages that match."""
        flow.matches = matches
        if self.by_key is not None:
            return
        if flow.candidates is not None:
            flow.candidates.close()
        flow.candidates = Candidates(self.ready.queues)

    # --- settlement -------------------------------------------------------------------------------------------

    def settle(self, flow: Flow, ids: Iterable[int], newest_id: int) -> tuple[list[int], list[Effect]]:
        """
        Messages consumed for good.

        Args:
            newest_id: The last committed one.

        Returns:
            Those that were unsettled on this flow, rising (a late settlement is not an error), and the effects.
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
            # A replay, references or priorities make it more than one cursor's matter.
            routed, put = self._by_way(gone)
            by_id = dict(zip(taken, sizes, strict=True))
            effects = backlog.settle_all(routed, put, by_id, newest_id, failed) + self._acknowledge(gone)
        self._settled(gone)
        return gone, effects

    def _settled(self, gone: Sequence[int]) -> None:
        """Messages that flows had, or transactions, are gone for good."""
        self.ready.settled(gone)
        if self.by_key is not None:
            self.by_key.let_go(gone)

    def _give_back(self, ids: Iterable[int]) -> None:
        """What flows had is ready again, each in its place."""
        self.ready.give_back(ids)
        if self.by_key is not None:
            self.by_key.let_go(ids)

    def _by_way(self, ids: list[int]) -> tuple[dict[int, list[int]], set[int]]:
        """Which of rising ids came by routes, by part, and which were put here."""
        put = self.backlog.put.among(ids)
        routed = [i for i in ids if i not in put] if put else ids
        return (self.ready.by_part(routed) if routed else {}), put

    def withdraw(self, messages: Mapping[int, int], size_bytes: int, newest_id: int) -> list[Effect]:
        """
        Messages, which have left their flow, are withdrawn for a transaction that is to settle them:
        ``settle_withdrawn``, ``keep_withdrawn`` or ``restore_withdrawn`` says what came of it.

        Args:
            messages: Content sizes in bytes by id.
            size_bytes: Their sum.
            newest_id: The last committed one.

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
        Messages that were withdrawn are gone for good.

        Args:
            transaction: The effects by which they are.

        Returns:
            What is to be written because of what happened meanwhile.
        """
        backlog = self.backlog
        self.withdrawn.difference_update(messages)
        gone = sorted(messages)
        if not gone:
            return []
        self.settled += len(gone)
        # A replay may have ended meanwhile, and taken what it had put with it, or left references.
        routed, put = self._by_way(gone)
        backlog.settled_by_transaction(backlog.open_among(routed), messages, transaction)
        effects = backlog.put.orphans_settled(gone, is_committed=True)
        if put:
            effects += backlog.put.settled_by_transaction({i: messages[i] for i in put}, transaction)
        self._settled(gone)
        for i in gone:
            self.attempts.pop(i, None)
        replay = self.replay
        if replay is None or not replay.acknowledge(gone) or backlog.put.replayed is None:
            return effects
        return effects if replay.is_under_way else [*effects, *self.end_replay()]

    def keep_withdrawn(self, messages: Mapping[int, int]) -> list[Effect]:
        """They were not settled, and stay with whoever withdrew them; what is to be written because of it."""
        self.withdrawn.difference_update(messages)
        return self.backlog.put.orphans_settled(messages, is_committed=False)

    def restore_withdrawn(self, flow: Flow, messages: Mapping[int, int]) -> list[Effect]:
        """
        They were not settled: those that lie here still are the flow's again, or ready where it is gone.

        Returns:
            What is to be written because of what happened meanwhile.
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
        """Messages from this id on are live ones, which can expire."""
        fresh = 0 if self.replay is None else self.replay.fresh_from
        return sys.maxsize if fresh is None else fresh

    def dead(self, rows: Sequence[Row], now_ms: int, ttl_of: Callable[[bytes], int | None]) -> dict[int, str]:
        """
        Which of these messages, about to be handed out, are not to be, and why: ``expired`` by the header's ttl or
        the endpoint's, whichever is shorter, or ``max-redelivery``. Replayed history does not expire: it was asked
        for.
        """
        last_ms = expiries(rows, self.fresh_from, self.settings.max_ttl_ms, ttl_of)
        found = {i: "expired" for i, last in last_ms.items() if last < now_ms}
        if self.attempts and self.settings.max_redelivery:
            for row in rows:
                if self.attempts.get(row[ID], 0) > self.settings.max_redelivery:
                    found[row[ID]] = "max-redelivery"
        return found

    def expires_ms(self, row: Row, ttl_of: Callable[[bytes], int | None]) -> int:
        """The last millisecond, since the epoch, in which a message here may be delivered, or ``NEVER_MS``."""
        return expiries((row,), self.fresh_from, self.settings.max_ttl_ms, ttl_of).get(row[ID], NEVER_MS)

    def release(self, flow: Flow, ids: Iterable[int], *, failed: bool = False) -> list[int]:
        """Messages come back from a flow, ready again; with ``failed`` their delivery-count goes up by one."""
        back, _ = flow.unsettled.take(list(ids))
        if failed:
            for i in back:
                self.attempts[i] = self.attempts.get(i, 0) + 1
        self._give_back(back)
        return back

    # --- flows ------------------------------------------------------------------------------------------------

    @property
    def active_flows(self) -> Sequence[Flow]:
        """The flows that are given messages: of an exclusive endpoint one, else all."""
        return list(self.flows)[: None if self.settings.exclusive is Exclusivity.NONE else 1]

    @property
    def waiting_flows(self) -> Sequence[Flow]:
        """Of an exclusive endpoint: the flows behind the active one."""
        if len(self.flows) < 2 or self.settings.exclusive is Exclusivity.NONE:
            return ()
        return list(self.flows)[1:]

    def bind(self, flow: Flow) -> Flow | None:
        """
        Bind a flow by the endpoint's exclusivity.

        Returns:
            The flow it displaces, if it takes the place of one.

        Raises:
            Refused: As ``admit`` has it.
        """
        displaced = admit(self.name, self.settings, self.flows, flow)
        if self._keyed_by != self.settings.keyed_by and not (self.flows or self.suspended or self.withdrawn):
            # Nobody has anything of which the keys are not known.
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
        """The flow is gone; what it had not settled is ready again, in its place."""
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
        """Who is active has a share of the keys: nobody whose deliveries were taken back, before it knows of that."""
        by_key = self.by_key
        if by_key is not None:
            active = {flow: None for flow in self.active_flows if not flow.is_stalled}
            for share in [share for flow, share in by_key.shares.items() if flow not in active]:
                share.close()
            for flow in active:
                if flow.candidates is None:
                    by_key.join(flow)

    def suspend(self, flow: Flow) -> None:
        """A bound flow is bound no more, and keeps what it has unsettled: see ``suspended``."""
        kept, flow.unsettled = flow.unsettled, Unsettled()
        self.unbind(flow)
        flow.unsettled = kept
        self.suspended[flow] = None

    def end_suspended(self, flow: Flow) -> None:
        """Its link has ceased to exist: what it had not settled is ready again. One that is not suspended stays."""
        if flow in self.suspended:
            del self.suspended[flow]
            self._give_back(flow.unsettled)
            flow.unsettled.clear()

    def next_flow(self) -> Flow | None:
        """The flow whose turn it is among those that can take messages; None when none can."""
        flows = self.flows
        if len(flows) < 2 or self.settings.exclusive is not Exclusivity.NONE:
            # An exclusive endpoint's first one has all the turns.
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
        """How many messages ``flow`` is given in this turn: hungry ones share what is ready, about."""
        quantum = self.flow_quantum
        if len(self.flows) < 2 or self.settings.exclusive is not Exclusivity.NONE:
            return min(flow.demand, 2 * quantum)
        hungry = sum(
            1 for f in self.flows if f.is_hungry and (not self._has_preferred or f.priority == flow.priority)
        )
        return min(flow.demand, quantum, max(1, -(-self.ready.ready // hungry)))


Flow = BoundFlow[Endpoint]
