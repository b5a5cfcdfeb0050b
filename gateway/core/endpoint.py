"""
An endpoint: a queue or topic endpoint, the references on it, and the flows bound to it.

What lies on an endpoint is, in order: messages given back by a consumer (``returned``), then ``front``, the oldest
ready ids known here, then what only the store knows, then ``recent``, the newest committed ids. Only a window of ids
is in memory, however deep the endpoint is; the rest is paged in from the store as the front is consumed.

Invariants: ``depth`` counts every reference, committed or under way; a committed reference is in exactly one of
returned, front, recent, the store beyond ``horizon``, or one flow's unsettled; ids leave in rising order but for
returned ones, which keep their place.
"""

from __future__ import annotations

import enum
import heapq
import json
import sys
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby, islice
from typing import Any

from gateway.core.effects import Row, SaveEndpoint, SaveReplay
from gateway.core.errors import ErrorCode, Refused
from gateway.core.replay import Replay

SELECTOR_WINDOW = 100_000
"""Ready ids kept in memory in search of what a selector wants: about 10 MB. What lies deeper is seen once others have
taken what is in front of it."""

FLOW_QUANTUM = 256
"""Messages a flow is given before the next flow's turn: large enough that batches stay batches, small enough that
two consumers share a burst."""


class EndpointKind(enum.Enum):
    """A queue and a topic endpoint hold references to messages; a stream is a named view of the log and holds none."""

    QUEUE = "queue"
    TOPIC_ENDPOINT = "topic-endpoint"
    STREAM = "stream"


class Exclusivity(enum.Enum):
    """Who may consume: anyone in turns (NONE), or one flow, the others waiting, refused, or taking over."""

    NONE = "none"
    WAIT = "wait"
    REFUSE = "refuse"
    STEAL = "steal"


@dataclass(slots=True)
class EndpointSettings:
    """What is kept of an endpoint's definition. Limits of 0 mean none; sizes in bytes."""

    exclusive: Exclusivity = Exclusivity.NONE
    temporary: bool = False
    quota_bytes: int = 0
    quota_messages: int = 0
    default_start: str = ""
    max_redelivery: int = 0
    """Redeliveries after which a message goes to the dead message queue; 0 is no bound."""
    dead_message_queue: str = ""
    """Where messages go that expired, were rejected, or failed too often; empty when they are discarded."""
    max_message_bytes: int = 0
    """Largest message that is taken, in bytes of content."""
    max_ttl_ms: int = 0
    """Milliseconds after which a message expires here, whatever its header says; 0 leaves it to the header."""
    max_flows: int = 0
    """Consumers bound at once."""
    max_unsettled: int = 0
    """Deliveries a consumer may leave unsettled; 0 is the gateway's limit."""
    priorities: bool = False
    """Whether messages of a higher priority (0 to 9) overtake others."""
    no_local: str = ""
    """Origin (see ``Origins``) whose messages are not put here; empty takes everybody's."""
    declared: bool = False
    """Named in the configuration: not deleted by a client."""
    purged_below: int = 0
    """Of a stream: the first id that is in its view, since an administrator purged it."""
    purged_ms: int = 0
    """Of a stream that was purged: from this time on its view is whole; ms since the epoch."""

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "exclusive": self.exclusive.value})

    @classmethod
    def from_json(cls, text: str) -> EndpointSettings:
        fields = json.loads(text)
        fields["exclusive"] = Exclusivity(fields["exclusive"])
        return cls(**fields)


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
    ) -> None:
        self.selector = matches
        """What its consumer asked for; ``matches`` also leaves out what it must not see again."""
        self.matches = matches
        self.shunned: set[int] = set()
        self.candidates: deque[int] | None = None
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


@dataclass(slots=True)
class Endpoint:
    number: int
    name: str
    kind: EndpointKind
    settings: EndpointSettings
    window: int
    depth: int = 0
    size_bytes: int = 0
    beyond: int = 0
    """The newest committed id that only the store knows; nothing is out there when ``horizon`` has reached it."""
    horizon: int = 0
    """Every committed reference up to this id is, or was, in memory."""
    subscriptions: dict[str, None] = field(default_factory=dict)
    replay: Replay | None = None
    flows: OrderedDict[Flow, None] = field(default_factory=OrderedDict)
    """Bound flows, in the order of their binding."""
    awaiting_replay: list[int] = field(default_factory=list)
    """Committed live references that come after the last replayed ones, while those are still being added."""
    front: deque[int] = field(default_factory=deque)
    recent: deque[int] = field(default_factory=deque)
    returned: list[int] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)
    """Failed deliveries so far, for the few messages that have any."""
    is_dropping: bool = False
    """Some of what the store has of it is about to be dropped: no page is read before that is done."""
    era: int = 0
    """Rises whenever what is known here of the store is forgotten: a page that was asked for before is void."""
    members: set[int] | None = None
    """The ready ids in memory, while a flow with a selector is bound: others in ``front`` are gone."""
    _turn: deque[Flow] = field(default_factory=deque)

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

    @property
    def is_complete(self) -> bool:
        """Every committed reference is in memory."""
        return self.horizon >= self.beyond and not self.recent

    def add_committed(self, ids: Sequence[int]) -> None:
        """References of these ids (rising, newer than all before) are durable."""
        if self.is_complete and len(self.front) + len(ids) <= self._most_in_front(self.window):
            self._append(ids)
            self.horizon = ids[-1]
            return
        recent = self.recent
        recent.extend(ids)
        excess = len(recent) - self.window
        if excess > 0:
            # The store has them: they come back by pages.
            for _ in range(excess - 1):
                recent.popleft()
            self.beyond = recent.popleft()

    def wants_page(self, page_rows: int) -> bool:
        """The front runs low and older references wait in the store."""
        if self.horizon >= self.beyond or self.is_dropping:
            return False
        if self.members is None:
            return len(self.front) < page_rows
        # What no selector wants stays in front: look past it, within reason.
        is_searching = any(f.demand > 0 and not f.candidates for f in self.flows if f.candidates is not None)
        return len(self.front) < (SELECTOR_WINDOW if is_searching else page_rows)

    def add_page(self, ids: Sequence[int], end: int = sys.maxsize) -> None:
        """
        References read from the store, rising, all those after ``horizon`` as far as the page went; none means that
        the store has no more below ``end``. What was put there while the page was read may lie behind that.
        """
        # What is newer than ``beyond`` is in memory, or we will be told of it: the store may be ahead of us.
        known = bisect_right(ids, self.beyond)
        self._append(ids[:known])
        self.horizon = ids[-1] if ids and known == len(ids) else min(self.beyond, end - 1)
        self._join()

    def _join(self) -> None:
        """Once all older references are in memory, the newest are simply the end of the front."""
        if (
            self.horizon >= self.beyond
            and self.recent
            and len(self.front) + len(self.recent) <= self._most_in_front(2 * self.window)
        ):
            self._append(self.recent)
            self.horizon = max(self.horizon, self.recent[-1])
            self.recent.clear()

    def _most_in_front(self, window: int) -> int:
        """Flows with a selector look at nothing else: what none of them wants must not keep the newest out."""
        return window if self.members is None else max(window, SELECTOR_WINDOW)

    def _append(self, ids: Iterable[int]) -> None:
        self.front.extend(ids)
        if self.members is not None:
            self._offer(ids)

    def _offer(self, ids: Iterable[int]) -> None:
        """Ids that became ready: flows with a selector have yet to look at them."""
        assert self.members is not None
        self.members.update(ids)
        for flow in self.flows:
            if flow.candidates is not None:
                flow.candidates.extend(ids)

    def take_awaiting(self, below: int) -> list[int]:
        """Those that await the replay and come before what it puts next: it has passed them."""
        count = bisect_left(self.awaiting_replay, below)
        passed, self.awaiting_replay = self.awaiting_replay[:count], self.awaiting_replay[count:]
        return passed

    def give_back(self, ids: Iterable[int]) -> None:
        """Messages handed out that come back ready; each keeps its place in the order."""
        back = list(ids)
        self.returned += back
        self.returned.sort()
        if self.members is not None:
            self._offer(back)

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
        self.horizon, self.beyond = 0, newest
        self.front.clear()
        self.recent.clear()
        self.returned.clear()
        self.awaiting_replay.clear()
        self.attempts.clear()
        if self.members is not None:
            self.members.clear()
        for flow in self.flows:
            flow.unsettled.clear()
            if flow.candidates is not None:
                flow.candidates.clear()

    # --- references go --------------------------------------------------------------------------------------

    def peek(self, limit: int) -> list[int]:
        """The next ready ids in order, at most ``limit``. Returned ones come on their own, when it is their turn."""
        if self.members is not None:
            return self._peek_members(limit)
        if self.returned:
            if not self.front:
                return self.returned[:limit]
            # A returned message may belong behind others that were never handed out (two consumers).
            before = bisect_left(self.returned, self.front[0])
            if before:
                return self.returned[: min(before, limit)]
            boundary = self.returned[0]
            return [i for i in islice(self.front, limit) if i < boundary]
        if self.horizon >= self.beyond:
            self._join()
        return list(islice(self.front, limit))

    def _peek_members(self, limit: int) -> list[int]:
        if self.horizon >= self.beyond:
            self._join()
        members = self.members
        assert members is not None
        # One that was taken out of the middle and came back is in both, and no more than once among the ready.
        ready = (i for i, _ in groupby(heapq.merge(self.returned, self.front)))
        return list(islice((i for i in ready if i in members), limit))

    def candidates_of(self, flow: Flow, limit: int) -> list[int]:
        """The next ready ids that a flow with a selector has not looked at, at most ``limit``, rising."""
        assert flow.candidates is not None and self.members is not None
        found: set[int] = set()
        while flow.candidates and len(found) < limit:
            i = flow.candidates.popleft()
            if i in self.members:
                found.add(i)
        return sorted(found)

    def take(self, flow: Flow, rows: Sequence[Row]) -> None:
        """Hand ready messages to a flow: unsettled from now on. The next ones, as ``peek`` named them, or selected."""
        flow.unsettled.update([(row[0], len(row[5])) for row in rows])
        flow.demand -= len(rows)
        if self.members is not None:
            self._take_members([row[0] for row in rows])
        elif self.returned and self.returned[0] == rows[0][0]:
            del self.returned[: len(rows)]
        else:
            popleft = self.front.popleft
            for _ in rows:
                popleft()

    def end_among(self, rows: Sequence[Row]) -> int | None:
        """The last message before live, if it is one of these (rising ids)."""
        end_id = self.replay.end_id if self.replay is not None else None
        return end_id if end_id is not None and rows[0][0] <= end_id <= rows[-1][0] else None

    def _take_members(self, ids: Sequence[int]) -> None:
        members = self.members
        assert members is not None
        members.difference_update(ids)
        if self.returned:
            self.returned = [i for i in self.returned if i in members]
        while self.front and self.front[0] not in members:
            self.front.popleft()
        if len(self.front) > 2 * len(members) + FLOW_QUANTUM:
            self.front = deque(i for i in self.front if i in members)

    # --- selectors --------------------------------------------------------------------------------------------

    def select(self, flow: Flow, matches: Callable[[Row], bool]) -> None:
        """From now on a bound flow is given only messages that match."""
        if self.members is None:
            self.members = {*self.front, *self.returned}
            self._join()
        flow.matches = matches
        flow.candidates = deque(sorted(self.members))

    def _stop_selecting(self) -> None:
        """The last flow with a selector is gone: the front is what it says again."""
        members = self.members
        if members is None or any(flow.candidates is not None for flow in self.flows):
            return
        members.difference_update(self.returned)
        self.front = deque(i for i in self.front if i in members)
        self.members = None

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
        if self.attempts:
            for i in gone:
                self.attempts.pop(i, None)
        if self.replay is not None:
            self.replay.acknowledge(gone)
        return gone, size

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
        if flow.matches is not None:
            self.select(flow, flow.matches)
        return displaced

    def unbind(self, flow: Flow) -> None:
        """The flow is gone; what it had not settled is ready again, in its place."""
        if flow in self.flows:
            del self.flows[flow]
            flow.candidates = None
            self.give_back(flow.unsettled)
            flow.unsettled.clear()
            flow.demand = 0
            self._stop_selecting()

    def next_flow(self) -> Flow | None:
        """The flow whose turn it is among those that can take messages; None when none can."""
        if self.settings.exclusive is not Exclusivity.NONE:
            flow = self.active_flow
            return flow if flow is not None and flow.is_hungry else None
        if len(self.flows) == 1:
            (flow,) = self.flows
            return flow if flow.is_hungry else None
        turn = self._turn
        for _ in range(2):
            while turn:
                flow = turn.popleft()
                if flow.is_hungry and flow in self.flows:
                    return flow
            turn.extend(f for f in self.flows if f.is_hungry)
        return None

    def share(self, flow: Flow) -> int:
        """How many messages ``flow`` is given in this turn."""
        if len(self.flows) == 1 or self.settings.exclusive is not Exclusivity.NONE:
            return min(flow.demand, FLOW_QUANTUM)
        hungry = sum(1 for f in self.flows if f.is_hungry)
        ready = len(self.front) + len(self.returned)
        return min(flow.demand, FLOW_QUANTUM, max(1, -(-ready // hungry)))
