"""
An endpoint: a queue or topic endpoint, the references on it, and the flows bound to it.

What is ready is kept in a ``ReadyQueue``, of which only a window is in memory, or in ``PriorityReadyQueues``; what was
handed out is at the flows.

Invariants: ``depth`` counts every reference, committed or under way; a committed reference is in the ready queue (in
memory or in the store), or in one flow's unsettled, or awaits a replay, or is withdrawn by a transaction that is being
committed, or by one that brings it to a dead message queue, which may have to wait for the disk.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from gateway.core.effects import (
    AddReferences,
    DeleteSubscription,
    DropReplayed,
    SaveEndpoint,
    SaveReplay,
    SaveSubscription,
)
from gateway.core.endpoint.admission import admit
from gateway.core.endpoint.priority_ready_queues import PriorityReadyQueues
from gateway.core.endpoint.ready_queue import Candidates, ReadyQueue
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity
from gateway.core.endpoint.topics import EndpointTopics
from gateway.core.endpoint.ttl import NEVER_MS, expiries
from gateway.core.endpoint.turns import Turns
from gateway.core.model import CONTENT, ID, Row
from gateway.core.replay.states import Replay, ReplayEvent

FLOW_QUANTUM = 256
"""Messages a flow is given before the next flow's turn: large enough that batches stay batches, small enough that
two consumers share a burst."""


class Flow:
    """
    A consumer bound to an endpoint. ``demand`` is how many messages its link can take right now.

    One with a selector takes messages out of the middle: it has ``candidates``, ready ids it has not looked at yet.
    """

    __slots__ = (
        "candidates",
        "demand",
        "endpoint",
        "epoch",
        "excluded",
        "link",
        "matches",
        "priority",
        "selector",
        "unsettled",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        link: Any,
        epoch: int | None = None,
        matches: Callable[[Row], bool] | None = None,
        priority: int = 0,
    ) -> None:
        self.priority = priority
        """It is given messages before those of a lower one, while it can take any."""
        self.selector = matches
        """What its consumer asked for; ``matches`` also leaves out what it must not see again."""
        self.matches = matches
        self.excluded: set[int] = set()
        self.candidates: Candidates | None = None
        self.endpoint = endpoint
        self.link = link
        self.epoch = epoch
        self.demand = 0
        self.unsettled: dict[int, int] = {}
        """id -> content size in bytes, of what was handed out and not settled."""

    def exclude(self, ids: Iterable[int]) -> Callable[[Row], bool]:
        """
        Messages that this consumer must not be given again.

        Returns:
            What it wants from now on.
        """
        excluded, selector = self.excluded, self.selector
        excluded.update(ids)
        if selector is None:
            return lambda row: row[ID] not in excluded
        return lambda row: row[ID] not in excluded and selector(row)

    @property
    def is_hungry(self) -> bool:
        """It can take messages, and there may be some for it."""
        return self.demand > 0 and (self.candidates is None or bool(self.candidates))


@dataclass(eq=False, slots=True)
class Endpoint:
    """Nobody else writes these fields; what has to be durable of a change is what the caller commits."""

    storage_number: int
    """What the store knows it by; another one once it was emptied as a whole."""
    name: str
    kind: EndpointKind
    settings: EndpointSettings
    window: int
    flow_quantum: int = FLOW_QUANTUM
    depth: int = 0
    size_bytes: int = 0
    stored_up_to: InitVar[int] = 0
    """The newest committed id, when only the store knows what lies on it."""
    subscriptions: dict[str, None] = field(default_factory=dict)
    replay: Replay | None = None
    flows: OrderedDict[Flow, None] = field(default_factory=OrderedDict)
    """Bound flows, in the order of their binding."""
    awaiting_replay: list[int] = field(default_factory=list)
    """Committed live references that come after the last replayed ones, while those are still being added."""
    ready: ReadyQueue | PriorityReadyQueues = field(init=False)
    attempts: dict[int, int] = field(default_factory=dict)
    """Failed deliveries so far, for the few messages that have any."""
    is_dropping: bool = False
    """Some of what the store has of it is about to change: no page is read before that is done."""
    incarnation: int = 0
    """Rises whenever what is known here of the store is forgotten: a page that was asked for before is void."""
    topics: EndpointTopics = field(init=False)
    _turns: Turns[Flow] = field(init=False)

    def __post_init__(self, stored_up_to: int) -> None:
        queues = PriorityReadyQueues if self.settings.priorities else ReadyQueue
        self.ready = queues(self.window, stored_up_to)
        self._turns = Turns(self.flows)
        self.topics = EndpointTopics(self.name, self.kind, self.subscriptions)

    @property
    def selectable(self) -> set[int] | None:
        """What of it is ready, while a flow with a selector is bound."""
        return self.ready.selectable

    # --- what the store is told -------------------------------------------------------------------------------

    def definition(self) -> SaveEndpoint:
        return SaveEndpoint(
            self.storage_number,
            self.name,
            self.kind.value,
            self.settings.to_json(),
            self.replay.to_json() if self.replay else None,
        )

    def replay_definition(self) -> SaveReplay:
        return SaveReplay(self.storage_number, self.replay.to_json() if self.replay else None)

    # --- room ---------------------------------------------------------------------------------------------------

    def room_for(self, contents: Sequence[bytes]) -> int:
        """How many of ``contents``, from the first on, fit the quota."""
        room = len(contents)
        settings = self.settings
        if settings.quota_messages:
            room = min(room, max(settings.quota_messages - self.depth, 0))
        if settings.quota_bytes:
            left = settings.quota_bytes - self.size_bytes
            for count, content in enumerate(contents[:room]):
                left -= len(content)
                if left < 0:
                    return count
        return room

    def reserve(self, count: int, size_bytes: int) -> None:
        """So many messages are about to be put here; they count from now on."""
        self.depth += count
        self.size_bytes += size_bytes

    def unreserve(self, count: int, size_bytes: int) -> None:
        """They come to nothing, or have left by another way than settlement."""
        self.depth -= count
        self.size_bytes -= size_bytes

    # --- references come ------------------------------------------------------------------------------------

    def add_published(self, ids: Sequence[int], priorities: Sequence[int] | None) -> bool:
        """
        Published messages (rising ids, newer than all before) are durable here.

        Args:
            priorities: Theirs, where some endpoint asks for them.

        Returns:
            Whether they are ready; while a replay reads, they wait for their turn behind it.
        """
        if priorities is not None:
            self.ready.note_priorities(ids, priorities)
        replay = self.replay
        if replay is not None and replay.is_reading:
            self.awaiting_replay.extend(ids)
            return False
        self.ready.add_committed(ids)
        return True

    def add_committed(self, ids: Sequence[int]) -> None:
        """References of these ids (rising, newer than all before) are durable."""
        self.ready.add_committed(ids)

    def add_page(
        self, queue: ReadyQueue, ids: Sequence[int], end: int, attempts: Iterable[tuple[int, int]]
    ) -> None:
        """
        A page was read from the store.

        Args:
            queue: What it was read for, as ``queue_to_read`` said.
            ids: See ``ReadyQueue.add_page``; so is ``end``.
            attempts: (id, failed deliveries) of those that have any.
        """
        self.attempts.update(attempts)
        queue.add_page(ids, end)

    def queue_to_read(self, page_rows: int) -> ReadyQueue | None:
        """The ready queue that runs low while older references of it wait in the store, if there is one."""
        ready = self.ready
        if self.is_dropping or not ready.has_more:
            return None
        searching = [
            flow.candidates for flow in self.flows if flow.candidates is not None and flow.demand > 0
        ]
        return ready.queue_to_read(page_rows, searching)

    def pop_awaiting(self, below: int) -> list[int]:
        """Those that await the replay and come before what it puts next: it has passed them."""
        count = bisect_left(self.awaiting_replay, below)
        passed, self.awaiting_replay = self.awaiting_replay[:count], self.awaiting_replay[count:]
        return passed

    def give_back(self, ids: Iterable[int]) -> None:
        """Messages handed out that come back ready; each keeps its place in the order."""
        self.ready.give_back(ids)

    def empty(self, storage_number: int) -> None:
        """Nothing lies here any more: the endpoint goes on, empty, under a new number of the store's."""
        self.storage_number = storage_number
        self.depth = 0
        self.size_bytes = 0
        self._forget(0)
        self.is_dropping = False

    def delete(self) -> None:
        """It is gone. Whoever still has it finds nothing on it: neither a late settlement nor its replay writes."""
        self.empty(self.storage_number)
        self.replay = None

    def _forget(self, last_id: int) -> None:
        """
        What is known of the endpoint's references is void: until ``is_dropping`` is unset, nothing is handed out, and
        then it is read from the store, where ``last_id`` is the last that can be.
        """
        self.incarnation += 1
        self.is_dropping = True
        self.awaiting_replay.clear()
        self.attempts.clear()
        self.ready.forget(last_id)
        for flow in self.flows:
            flow.unsettled.clear()

    # --- changes ------------------------------------------------------------------------------------------------

    def change_settings(self, settings: EndpointSettings) -> SaveEndpoint:
        """It is like this from now on; what lies on it stays."""
        self.settings = settings
        return self.definition()

    def subscribe(self, pattern: str) -> SaveSubscription:
        """It has this subscription, too."""
        self.subscriptions[pattern] = None
        self.topics.changed()
        return SaveSubscription(self.storage_number, pattern)

    def unsubscribe(self, pattern: str) -> DeleteSubscription:
        """It has this subscription no more."""
        del self.subscriptions[pattern]
        self.topics.changed()
        return DeleteSubscription(self.storage_number, pattern)

    # --- replay -------------------------------------------------------------------------------------------------

    def begin_replay(self, replay: Replay) -> None:
        """This replay is the endpoint's from now on."""
        self.replay = replay

    def replay_cleared(self) -> None:
        """What lay here before the replay is gone, durably."""
        assert self.replay is not None
        self.replay.move(ReplayEvent.CLEARED)
        self.is_dropping = False

    def put_replayed(
        self,
        ids: Sequence[int],
        priorities: Sequence[int] | None,
        size_bytes: int,
        position: int,
        passed: int,
    ) -> AddReferences:
        """
        Messages read from the log are about to be put here.

        Args:
            priorities: Theirs, where the endpoint delivers by them.
            position: The next id of the log to read.
            passed: How many that the log did not take lie here between them: they count as replayed.
        """
        replay = self.replay
        assert replay is not None
        if priorities is not None:
            self.ready.note_priorities(ids, priorities)
        replay.put_up_to(position, len(ids) + passed)
        self.reserve(len(ids), size_bytes)
        return AddReferences(self.storage_number, ids, size_bytes, replay.to_json(), priorities)

    def end_reading(self) -> None:
        """The replay has put all it had to; what waited for it is ready behind it."""
        replay = self.replay
        assert replay is not None and replay.live_from is not None
        replay.read_all(bisect_left(self.awaiting_replay, replay.live_from))
        if self.awaiting_replay:
            self.add_committed(self.awaiting_replay)
            self.awaiting_replay = []

    def fail_replay(self, reason: str, now_ms: int, last_id: int) -> DropReplayed:
        """
        The replay goes on no more: what it had put and was not acknowledged is to be dropped; until ``dropped``,
        nothing is handed out.

        Args:
            newest: The last id that the store may have here then.
        """
        replay = self.replay
        assert replay is not None
        boundary = replay.boundary
        assert boundary is not None
        replay.fail(reason, now_ms)
        self._forget(last_id)
        return DropReplayed(self.storage_number, boundary, replay.to_json())

    def dropped(self, effect: DropReplayed) -> None:
        """The replayed messages are gone, durably: what is left is read from the store."""
        if self.storage_number == effect.endpoint:
            self.unreserve(effect.count, effect.size_bytes)
            self.is_dropping = False

    # --- copies -------------------------------------------------------------------------------------------------

    def begin_copy(self, row: Row, priority: int) -> AddReferences:
        """One logged message is about to be put here, in its place by id; until ``end_copy`` no page is read."""
        ids, size = (row[ID],), len(row[CONTENT])
        self.reserve(1, size)
        self.is_dropping = True
        self.incarnation += 1
        self.ready.note_priorities(ids, (priority,))
        return AddReferences(
            self.storage_number,
            ids,
            size,
            self.replay.to_json() if self.replay is not None else None,
            (priority,) if self.settings.priorities else None,
        )

    def end_copy(self, effect: AddReferences, *, is_committed: bool) -> None:
        """The copy is durable and ready, or it is not here after all."""
        if self.storage_number != effect.endpoint:
            return  # A replay, or a purge, has dropped it with all the rest.
        self.is_dropping = False
        (message_id,) = effect.ids
        if not is_committed:
            self.unreserve(1, effect.size_bytes)
            self.ready.settled(effect.ids)
        else:
            self.ready.insert(message_id)

    # --- references go --------------------------------------------------------------------------------------

    def peek(self, limit: int) -> list[int]:
        """The next ready ids in order, at most ``limit``, rising."""
        return self.ready.peek(limit)

    def hand_out(self, flow: Flow, rows: Sequence[Row]) -> None:
        """Hand ready messages to a flow: unsettled from now on. The next ones, as ``peek`` named them, or selected."""
        flow.unsettled.update([(row[ID], len(row[CONTENT])) for row in rows])
        flow.demand -= len(rows)
        self.ready.hand_out(rows)

    def end_among(self, rows: Sequence[Row]) -> int | None:
        """The last message before live, if it is one of these (rising ids)."""
        end_id = self.replay.end_id if self.replay is not None else None
        return end_id if end_id is not None and rows[0][ID] <= end_id <= rows[-1][ID] else None

    # --- selectors --------------------------------------------------------------------------------------------

    def select(self, flow: Flow, matches: Callable[[Row], bool]) -> None:
        """From now on a bound flow is given only messages that match."""
        if flow.candidates is not None:
            self.ready.end_search(flow.candidates)
        flow.matches = matches
        flow.candidates = self.ready.search()

    def candidates_of(self, flow: Flow, limit: int) -> list[int]:
        """The next ready ids that a flow with a selector has not looked at, at most ``limit``, rising."""
        assert flow.candidates is not None
        return self.ready.candidates_of(flow.candidates, limit)

    # --- settlement -------------------------------------------------------------------------------------------

    def settle(self, flow: Flow, ids: Iterable[int]) -> tuple[list[int], int]:
        """
        Messages consumed for good.

        Returns:
            The ids that were unsettled on this flow (others are ignored: a late settlement is not an error) and their
            content bytes.
        """
        unsettled = flow.unsettled
        gone = []
        size = 0
        for i in ids:
            content = unsettled.pop(i, None)
            if content is not None:
                gone.append(i)
                size += content
        self.depth -= len(gone)
        self.size_bytes -= size
        self.ready.settled(gone)
        if self.attempts:
            for i in gone:
                self.attempts.pop(i, None)
        if self.replay is not None:
            self.replay.acknowledge(gone)
        return gone, size

    def withdraw(self, flow: Flow, ids: Iterable[int]) -> tuple[dict[int, int], int]:
        """
        Messages leave a flow for a transaction that is to settle them: ``withdrawn_settled`` or ``withdrawn_restored``
        says what came of it.

        Returns:
            Their content sizes in bytes by id, and the sum.
        """
        messages = {i: flow.unsettled.pop(i) for i in ids}
        size = sum(messages.values())
        self.unreserve(len(messages), size)
        return messages, size

    def withdrawn_settled(self, ids: list[int]) -> None:
        """Messages that were withdrawn are gone for good."""
        self.ready.settled(ids)
        for i in ids:
            self.attempts.pop(i, None)
        if self.replay is not None:
            self.replay.acknowledge(ids)

    def withdrawn_restored(self, flow: Flow, messages: Mapping[int, int]) -> None:
        """Messages that were withdrawn are the flow's again, or ready where it is gone."""
        if flow in self.flows:
            flow.unsettled.update(messages)
        else:
            self.give_back(messages)

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
        found = expiries((row,), self.fresh_from, self.settings.max_ttl_ms, ttl_of)
        return found.get(row[ID], NEVER_MS)

    def release(self, flow: Flow, ids: Iterable[int], *, failed: bool = False) -> list[int]:
        """Messages come back from a flow, ready again; with ``failed`` their delivery-count goes up by one."""
        back = [i for i in ids if flow.unsettled.pop(i, None) is not None]
        if failed:
            for i in back:
                self.attempts[i] = self.attempts.get(i, 0) + 1
        self.give_back(back)
        return back

    # --- flows ------------------------------------------------------------------------------------------------

    @property
    def active_flow(self) -> Flow | None:
        """Of an exclusive endpoint: the one flow that is given messages."""
        return next(iter(self.flows), None)

    @property
    def active_flows(self) -> Sequence[Flow]:
        """The flows that are given messages: of an exclusive endpoint one, else all."""
        if self.settings.exclusive is Exclusivity.NONE:
            return list(self.flows)
        active = self.active_flow
        return () if active is None else (active,)

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
        self.flows[flow] = None
        self._turns.joined(flow)
        if flow.matches is not None:
            self.select(flow, flow.matches)
        return displaced

    def unbind(self, flow: Flow) -> None:
        """The flow is gone; what it had not settled is ready again, in its place."""
        if flow in self.flows:
            del self.flows[flow]
            self._turns.left()
            self.give_back(flow.unsettled)
            flow.unsettled.clear()
            flow.demand = 0
            if flow.candidates is not None:
                self.ready.end_search(flow.candidates)
                flow.candidates = None
                self.ready.stop_searching()

    def next_flow(self) -> Flow | None:
        """The flow whose turn it is among those that can take messages; None when none can."""
        return self._turns.next(is_exclusive=self.settings.exclusive is not Exclusivity.NONE)

    def share(self, flow: Flow) -> int:
        """How many messages ``flow`` is given in this turn."""
        is_exclusive = self.settings.exclusive is not Exclusivity.NONE
        return self._turns.share(flow, self.flow_quantum, self.ready.ready, is_exclusive=is_exclusive)
