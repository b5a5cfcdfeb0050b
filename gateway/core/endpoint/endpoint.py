"""
An endpoint: a queue or topic endpoint, the references on it, and the flows bound to it.

What is ready is kept in a ``lane``, of which only a window is in memory, or in ``priority_lanes``; what was handed out
is at the flows.

Invariants: ``depth`` counts every reference, committed or under way; a committed reference is in the lane (in memory or
in the store), or in one flow's unsettled, or awaits a replay, or is retired by a transaction that is being committed,
or by one that brings it to a dead message queue, which may have to wait for the disk.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from gateway.core.effects import Retirement, SaveEndpoint, SaveReplay
from gateway.core.endpoint.priorities import PriorityLanes
from gateway.core.endpoint.ready_queue import Candidates, Lane
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import Row
from gateway.core.replay.states import Replay

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
        "link",
        "matches",
        "priority",
        "selector",
        "shunned",
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
        self.shunned: set[int] = set()
        self.candidates: Candidates | None = None
        self.endpoint = endpoint
        self.link = link
        self.epoch = epoch
        self.demand = 0
        self.unsettled: dict[int, int] = {}
        """id -> content size in bytes, of what was handed out and not settled."""

    @property
    def is_hungry(self) -> bool:
        """It can take messages, and there may be some for it."""
        return self.demand > 0 and (self.candidates is None or bool(self.candidates))


@dataclass(frozen=True, slots=True)
class Retired:
    """
    What a transaction took off an endpoint, until it is known whether that is durable. An endpoint that was emptied
    or whose replay began meanwhile (its number or era is another) has forgotten them.
    """

    endpoint: Endpoint
    flow: Flow
    held: dict[int, int]
    """id -> content size in bytes."""
    size_bytes: int
    number: int
    era: int

    def effect(self) -> Retirement:
        """What makes it durable."""
        return Retirement(self.number, sorted(self.held), self.size_bytes)

    def done(self) -> None:
        """They are gone for good."""
        endpoint = self.endpoint
        if endpoint.number != self.number or endpoint.era != self.era:
            return
        ids = list(self.held)
        endpoint.ready.settled(ids)
        for i in ids:
            endpoint.attempts.pop(i, None)
        if endpoint.replay is not None:
            endpoint.replay.acknowledge(ids)

    def undone(self) -> None:
        """They were not settled after all: the flow has them as before, or they are ready where it is gone."""
        if not self.counts_again():
            return
        if self.flow in self.endpoint.flows:
            self.flow.unsettled.update(self.held)
        else:
            self.endpoint.give_back(self.held)

    def counts_again(self) -> bool:
        """
        They were not settled after all, and whoever retired them has them: unless the endpoint has forgotten them, or
        knows them from the store alone (False).
        """
        endpoint = self.endpoint
        if endpoint.number != self.number:
            return False
        endpoint.depth += len(self.held)
        endpoint.size_bytes += self.size_bytes
        return endpoint.era == self.era


@dataclass(slots=True)
class Endpoint:
    number: int
    name: str
    kind: EndpointKind
    settings: EndpointSettings
    window: int
    flow_quantum: int = FLOW_QUANTUM
    depth: int = 0
    size_bytes: int = 0
    beyond: InitVar[int] = 0
    """The newest committed id, when only the store knows what lies on it."""
    subscriptions: dict[str, None] = field(default_factory=dict)
    replay: Replay | None = None
    flows: OrderedDict[Flow, None] = field(default_factory=OrderedDict)
    """Bound flows, in the order of their binding."""
    awaiting_replay: list[int] = field(default_factory=list)
    """Committed live references that come after the last replayed ones, while those are still being added."""
    ready: Lane | PriorityLanes = field(init=False)
    attempts: dict[int, int] = field(default_factory=dict)
    """Failed deliveries so far, for the few messages that have any."""
    is_dropping: bool = False
    """Some of what the store has of it is about to be dropped: no page is read before that is done."""
    era: int = 0
    """Rises whenever what is known here of the store is forgotten: a page that was asked for before is void."""
    _turn: deque[Flow] = field(default_factory=deque)
    _has_preferred: bool = False
    """Some flow has had a priority of its own since there were none."""

    def __post_init__(self, beyond: int) -> None:
        lanes = PriorityLanes if self.settings.priorities else Lane
        self.ready = lanes(self.window, beyond)

    # What is ready as far as it is in memory, for those who look at it.

    @property
    def front(self) -> Iterable[int]:
        return self.ready.front

    @property
    def recent(self) -> Iterable[int]:
        return self.ready.recent

    @property
    def returned(self) -> Iterable[int]:
        return self.ready.returned

    @property
    def members(self) -> set[int] | None:
        """What of it is ready, while a flow with a selector is bound."""
        return self.ready.members

    # --- what the store is told -------------------------------------------------------------------------------

    def definition(self) -> SaveEndpoint:
        return SaveEndpoint(
            self.number,
            self.name,
            self.kind.value,
            self.settings.to_json(),
            self.replay.to_json() if self.replay else None,
        )

    def replay_definition(self) -> SaveReplay:
        return SaveReplay(self.number, self.replay.to_json() if self.replay else None)

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

    # --- references come ------------------------------------------------------------------------------------

    def add_committed(self, ids: Sequence[int]) -> None:
        """References of these ids (rising, newer than all before) are durable."""
        self.ready.add_committed(ids)

    def short_lane(self, page_rows: int) -> Lane | None:
        """The lane that runs low while older references of it wait in the store, if there is one."""
        ready = self.ready
        if self.is_dropping or not ready.has_more:
            return None
        searching = [
            flow.candidates for flow in self.flows if flow.candidates is not None and flow.demand > 0
        ]
        return ready.short_lane(page_rows, searching)

    def take_awaiting(self, below: int) -> list[int]:
        """Those that await the replay and come before what it puts next: it has passed them."""
        count = bisect_left(self.awaiting_replay, below)
        passed, self.awaiting_replay = self.awaiting_replay[:count], self.awaiting_replay[count:]
        return passed

    def give_back(self, ids: Iterable[int]) -> None:
        """Messages handed out that come back ready; each keeps its place in the order."""
        self.ready.give_back(ids)

    def forget_all(self, number: int) -> None:
        """Nothing lies here any more: the endpoint goes on, empty, under a new number."""
        self.number = number
        self.depth = 0
        self.size_bytes = 0
        self.forget_memory(0)
        self.is_dropping = False

    def forget_memory(self, newest: int) -> None:
        """
        What is known of the endpoint's references is void: until ``is_dropping`` is unset, nothing is handed out, and
        then it is read from the store, where ``newest`` is the last that can be.
        """
        self.era += 1
        self.is_dropping = True
        self.awaiting_replay.clear()
        self.attempts.clear()
        self.ready.forget(newest)
        for flow in self.flows:
            flow.unsettled.clear()

    # --- references go --------------------------------------------------------------------------------------

    def peek(self, limit: int) -> list[int]:
        """The next ready ids in order, at most ``limit``, rising."""
        return self.ready.peek(limit)

    def take(self, flow: Flow, rows: Sequence[Row]) -> None:
        """Hand ready messages to a flow: unsettled from now on. The next ones, as ``peek`` named them, or selected."""
        flow.unsettled.update([(row[0], len(row[5])) for row in rows])
        flow.demand -= len(rows)
        self.ready.take(rows)

    def end_among(self, rows: Sequence[Row]) -> int | None:
        """The last message before live, if it is one of these (rising ids)."""
        end_id = self.replay.end_id if self.replay is not None else None
        return end_id if end_id is not None and rows[0][0] <= end_id <= rows[-1][0] else None

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

    def retire(self, flow: Flow, ids: Iterable[int]) -> Retired:
        """Messages consumed for good by a transaction: no longer the flow's, and gone once it is ``done``."""
        held = {i: flow.unsettled.pop(i) for i in ids}
        size = sum(held.values())
        self.depth -= len(held)
        self.size_bytes -= size
        return Retired(self, flow, held, size, self.number, self.era)

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
        found: dict[int, str] = {}
        fresh = self.fresh_from
        longest = self.settings.max_ttl_ms
        for row in rows:
            if (row[3] or longest) and row[0] >= fresh:
                ttl_ms = ttl_of(row[5]) if row[3] else None
                if longest and (ttl_ms is None or longest < ttl_ms):
                    ttl_ms = longest
                if ttl_ms is not None and row[1] + ttl_ms < now_ms:
                    found[row[0]] = "expired"
        if self.attempts and self.settings.max_redelivery:
            for row in rows:
                if self.attempts.get(row[0], 0) > self.settings.max_redelivery:
                    found[row[0]] = "max-redelivery"
        return found

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
            Refused: RESOURCE_LOCKED, the endpoint has its one consumer; RESOURCE_LIMIT, it has as many as it takes.
        """
        settings = self.settings
        displaced: Flow | None = None
        holder = self.active_flow
        if holder is not None and settings.exclusive is Exclusivity.REFUSE:
            raise Refused(
                ErrorCode.RESOURCE_LOCKED,
                f"{self.name!r} is exclusive and has a consumer; detach it first, or make the queue exclusive=wait",
            )
        if holder is not None and settings.exclusive is Exclusivity.STEAL:
            if (flow.epoch or 0) < (holder.epoch or 0):
                raise Refused(
                    ErrorCode.STOLEN,
                    f"{self.name!r} is held by a consumer of epoch {holder.epoch}; attach with that or a higher one",
                )
            displaced = holder
        if settings.max_flows and len(self.flows) - (displaced is not None) >= settings.max_flows:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"{self.name!r} has {len(self.flows)} consumers, as many as it takes (max_flows); "
                "detach one first, or raise the limit",
                **{"rewind:reason": "endpoint-flows", "rewind:endpoint": self.name},
            )
        self.flows[flow] = None
        self._has_preferred |= flow.priority != 0
        if flow.matches is not None:
            self.select(flow, flow.matches)
        return displaced

    def unbind(self, flow: Flow) -> None:
        """The flow is gone; what it had not settled is ready again, in its place."""
        if flow in self.flows:
            del self.flows[flow]
            self._has_preferred &= bool(self.flows)
            self.give_back(flow.unsettled)
            flow.unsettled.clear()
            flow.demand = 0
            if flow.candidates is not None:
                self.ready.end_search(flow.candidates)
                flow.candidates = None
                self.ready.stop_searching()

    def next_flow(self) -> Flow | None:
        """The flow whose turn it is among those that can take messages; None when none can."""
        if self.settings.exclusive is not Exclusivity.NONE:
            flow = self.active_flow
            return flow if flow is not None and flow.is_hungry else None
        if len(self.flows) == 1:
            (flow,) = self.flows
            return flow if flow.is_hungry else None
        turn, highest = self._turn, self._highest_hungry()
        for _ in range(2):
            while turn:
                flow = turn.popleft()
                if flow.is_hungry and flow in self.flows and (highest is None or flow.priority == highest):
                    return flow
            turn.extend(f for f in self.flows if f.is_hungry)
        return None

    def _highest_hungry(self) -> int | None:
        """The priority of the flows whose turn it is; None where they are all alike."""
        if not self._has_preferred:
            return None
        return max((f.priority for f in self.flows if f.is_hungry), default=None)

    def share(self, flow: Flow) -> int:
        """How many messages ``flow`` is given in this turn."""
        if len(self.flows) == 1 or self.settings.exclusive is not Exclusivity.NONE:
            return min(flow.demand, self.flow_quantum)
        hungry = sum(
            1 for f in self.flows if f.is_hungry and (not self._has_preferred or f.priority == flow.priority)
        )
        return min(flow.demand, self.flow_quantum, max(1, -(-self.ready.ready // hungry)))
