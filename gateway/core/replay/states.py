"""
How an endpoint replay proceeds: its states, and its progress.

``TRANSITIONS`` is the only definition of states and transitions; the diagram in docs/explanation/replay-states.md is
made from it (Solace, "Message Replay", section "Replay States").

Theory of operation. A replay reads the log from ``position`` on, and puts the messages that match the endpoint's
subscriptions on it again. It does so only in memory; the store gets a cursor over the log that says which messages are
settled. Meanwhile the endpoint is left out of routing: live messages only go to the log. Once all committed messages
have been read, messages are routed to the endpoint again from ``live_from`` on, which is the next id to be given out.
The few messages below ``live_from`` that are not committed yet are read as they are committed. So ids below
``live_from`` come from the log and all others from routing: without gap and without duplicate, whatever is published
meanwhile.

After a restart, the replay reads the log again from its cursor on. By the subscriptions of that time
(``subscriptions``), it finds the messages that it had put and that are not settled.
"""

from __future__ import annotations

import enum
import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple


class ReplayState(enum.Enum):
    """
    The state of an endpoint's replay. Solace shows ``failed`` until the consumers of a failed replay are notified; here
    it is shown, with the reason, until the next replay.
    """

    NONE = "n/a"
    INITIALIZING = "initializing"
    ACTIVE = "active"
    PENDING_COMPLETE = "pending-complete"
    COMPLETE = "complete"
    FAILED = "failed"


class ReplayEvent(enum.Enum):
    """The events that move a replay from one state to another."""

    REQUESTED = "a replay is requested"
    CLEARED = "the endpoint's earlier messages are dropped"
    CAUGHT_UP = "the end of the log is reached"
    ACKNOWLEDGED = "every replayed message is acknowledged"
    FORCED = "force-completed"
    FAILED = "it fails or is cancelled"


_ANEW: Final = {ReplayEvent.REQUESTED: ReplayState.INITIALIZING}
"""A replay may be requested in every state: it cancels the running one."""

TRANSITIONS: Final[dict[ReplayState, dict[ReplayEvent, ReplayState]]] = {
    ReplayState.NONE: _ANEW,
    ReplayState.INITIALIZING: _ANEW
    | {ReplayEvent.CLEARED: ReplayState.ACTIVE, ReplayEvent.FAILED: ReplayState.FAILED},
    ReplayState.ACTIVE: _ANEW
    | {ReplayEvent.CAUGHT_UP: ReplayState.PENDING_COMPLETE, ReplayEvent.FAILED: ReplayState.FAILED},
    ReplayState.PENDING_COMPLETE: _ANEW
    | {
        ReplayEvent.ACKNOWLEDGED: ReplayState.COMPLETE,
        ReplayEvent.FORCED: ReplayState.COMPLETE,
        ReplayEvent.FAILED: ReplayState.FAILED,
    },
    ReplayState.COMPLETE: _ANEW,
    ReplayState.FAILED: _ANEW,
}


_READING: Final = (ReplayState.ACTIVE, ReplayState.INITIALIZING)
_UNDER_WAY: Final = (*_READING, ReplayState.PENDING_COMPLETE)


def state_diagram() -> str:
    """The table as a Mermaid state diagram, as the documentation shows it."""
    lines = ["stateDiagram-v2"]
    names = {state: state.name.lower() for state in ReplayState}
    lines += [f"    state {json.dumps(state.value)} as {names[state]}" for state in ReplayState]
    lines.append(f"    [*] --> {names[ReplayState.NONE]}")
    lines += [
        f"    {names[state]} --> {names[after]}: {event.value}"
        for state, transitions in TRANSITIONS.items()
        for event, after in transitions.items()
    ]
    return "\n".join(lines)


@dataclass(slots=True)
class ReplayTotals:
    """Totals of all replays of an endpoint; times in ms since the epoch, 0 for never."""

    started: int = 0
    succeeded: int = 0
    failed: int = 0
    transmitted: int = 0
    """Deliveries of replayed messages to consumers; redeliveries count again."""
    acknowledged: int = 0
    last_started_ms: int = 0
    last_completed_ms: int = 0
    last_failed_ms: int = 0
    last_failure: str = ""
    last_transmitted_ms: int = 0


class Progress(NamedTuple):
    """The progress of a replay, for an administrator."""

    position: int
    """The next id of the log to be read."""
    remaining: int
    """Ids of the log that are still to be read; how many of them match is not known before."""
    outstanding: int
    """Unsettled replayed messages on the endpoint."""
    eta_ms: int | None
    """The time until the end of the log is reached, at the pace so far; None when nothing or everything was read."""


@dataclass(slots=True)
class Replay:
    """One endpoint's replay."""

    position: int
    """The next id of the log to read."""
    first: int = 0
    """The id where it began."""
    name: str = ""
    """The name of its record; empty if an earlier version began the replay."""
    marked_below: int = 0
    """Messages below this id were published before the request: they are marked as replayed for consumers. The replay
    delivers later ones for the first time."""
    kept_up_to: int = 0
    """The newest message that was on the endpoint when it began and stayed: such messages are not replayed ones. 0 for
    none."""
    size_bytes: int = 0
    """The content of the messages that it has put."""
    cursor: int = 0
    """The number of its cursor; 0 once that is dropped."""
    subscriptions: list[tuple[int, list[str]]] = field(default_factory=list)
    """(first id, subscriptions): from this id on the log was read by these subscriptions of the endpoint; rising."""
    state: ReplayState = ReplayState.NONE
    started_ms: int = 0
    live_from: int | None = None
    """From this id on, messages are routed to the endpoint again; None while the replay is behind."""
    put: int = 0
    """Messages put on the endpoint so far, including those that came meanwhile and are not in the log. After a restart,
    messages that are put again count once."""
    acknowledged: int = 0
    end_id: int | None = None
    """The last message before live; None until it is known."""
    is_forced: bool = False
    """It is to end at its position, and all messages on the endpoint stay."""
    is_blocked: bool = False
    """No consumer's selector matches the messages that it has put: it cannot complete."""
    is_archived: bool = False
    """It has put messages that only the log's archive has: after a restart it reads them again, from its cursor on."""
    totals: ReplayTotals = field(default_factory=ReplayTotals)

    def move(self, event: ReplayEvent) -> None:
        """Change the state by an event. Apart from this, only ``resume`` sets it."""
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise AssertionError(f"a replay that is {self.state.value} has no place for: {event.value}")
        self.state = after

    @property
    def is_reading(self) -> bool:
        """Whether it has more to read from the log."""
        return self.state in _READING

    @property
    def is_under_way(self) -> bool:
        """Whether it can still fail or be cancelled."""
        return self.state in _UNDER_WAY

    @property
    def is_over(self) -> bool:
        """Whether it has failed, or is complete and that was noted: it does not change any more."""
        return self.state is ReplayState.FAILED or (
            self.state is ReplayState.COMPLETE and self.totals.last_completed_ms >= self.started_ms
        )

    @property
    def is_behind(self) -> bool:
        """Whether the endpoint is left out of routing."""
        return self.is_reading and self.live_from is None

    @property
    def boundary(self) -> int | None:
        """The endpoint's messages below this id are the replay's; None when it has none on the endpoint any more."""
        if self.is_reading:
            return self.position
        return self.live_from if self.state is ReplayState.PENDING_COMPLETE else None

    @property
    def fresh_from(self) -> int | None:
        """Messages from this id on are live, and can expire; None while all are history."""
        return 0 if self.state is ReplayState.FAILED else self.live_from

    @property
    def is_marking(self) -> bool:
        """Whether its messages may be on the endpoint, to be delivered with its name."""
        return self.name != "" and (
            self.is_under_way or (self.is_forced and self.state is ReplayState.COMPLETE)
        )

    @property
    def outstanding(self) -> int:
        """How many replayed messages are unsettled on the endpoint."""
        return self.put - self.acknowledged

    def progress(self, next_id: int, now_ms: int) -> Progress:
        """
        Its progress.

        Args:
            next_id: One past the last committed id of the log.
        """
        end = self.live_from if self.live_from is not None else next_id
        remaining = max(end - self.position, 0) if self.is_reading else 0
        done = self.position - self.first
        eta = (now_ms - self.started_ms) * remaining // done if remaining and done > 0 else None
        return Progress(self.position, remaining, self.outstanding if self.is_under_way else 0, eta)

    @classmethod
    def request(
        cls,
        position: int,
        now_ms: int,
        before: Replay | None,
        cursor: int,
        subscriptions: Iterable[str],
        name: str = "",
    ) -> Replay:
        """
        A new replay of the log from an id on.

        Args:
            cursor: The number of its cursor.
            subscriptions: The endpoint's subscriptions.
            name: The name of its record.
            before: The endpoint's last replay, whose totals continue. If it is running, it is cancelled.
        """
        totals = before.totals if before is not None else ReplayTotals()
        if before is not None and before.is_under_way:
            before.fail("a new replay took its place", now_ms)
        totals.started += 1
        totals.last_started_ms = now_ms
        replay = cls(
            position,
            first=position,
            name=name,
            cursor=cursor,
            subscriptions=[(position, list(subscriptions))],
            started_ms=now_ms,
            totals=totals,
        )
        replay.move(ReplayEvent.REQUESTED)
        return replay

    def subscribe(self, position: int, subscriptions: Iterable[str]) -> None:
        """From this id on, the log is read by these subscriptions."""
        self.subscriptions = [one for one in self.subscriptions if one[0] < position]
        self.subscriptions.append((position, list(subscriptions)))

    def put_up_to(self, position: int, count: int, size_bytes: int = 0) -> None:
        """Count messages that were put, and their content from the log; ``position`` is the next id to read."""
        self.position = position
        self.put += count
        self.size_bytes += size_bytes

    def found_end(self, message_id: int) -> None:
        """Note the last message before live."""
        self.end_id = message_id

    def blocked(self) -> None:
        """Note that no consumer wants the messages that it has put."""
        self.is_blocked = True

    def completed(self, now_ms: int) -> bool:
        """Note when it became complete. Return whether this was not noted before."""
        if self.state is not ReplayState.COMPLETE or self.is_over:
            return False
        self.totals.last_completed_ms = max(now_ms, self.started_ms)
        return True

    def transmit(self, ids: Sequence[int], now_ms: int) -> None:
        """Count messages (rising) that are handed to a consumer."""
        bound = self.boundary
        if bound is None or not ids or ids[0] >= bound:
            return
        self.totals.transmitted += len(ids) if ids[-1] < bound else sum(1 for i in ids if i < bound)
        self.totals.last_transmitted_ms = now_ms
        self.is_blocked = False

    def is_live(self, message_id: int) -> bool:
        """Whether a message comes to the endpoint by routing, and not from the log."""
        return self.live_from is not None and message_id >= self.live_from

    def acknowledges(self, ids: Sequence[int]) -> int:
        """How many of these messages, rising, count as replayed."""
        if self.state not in (ReplayState.ACTIVE, ReplayState.PENDING_COMPLETE):
            return 0
        bound = self.live_from
        return len(ids) if bound is None else bisect_left(ids, bound)

    def acknowledge(self, ids: Sequence[int]) -> int:
        """Count settled messages (rising). Return how many of them count as replayed."""
        count = self.acknowledges(ids)
        self.acknowledged += count
        self.totals.acknowledged += count
        self.settle_state()
        return count

    def take_back(self, ids: Sequence[int]) -> None:
        """Messages (rising) that were counted as settled when they were delayed for retry are on the endpoint again."""
        self.put += self.acknowledges(ids)

    def settle_state(self) -> None:
        """Move from pending-complete to complete if all replayed messages are settled."""
        if self.state is ReplayState.PENDING_COMPLETE and self.outstanding <= 0:
            self.move(ReplayEvent.ACKNOWLEDGED)
            self.totals.succeeded += 1

    def fail(self, reason: str, now_ms: int) -> None:
        """The replay fails or is cancelled."""
        self.move(ReplayEvent.FAILED)
        self.totals.failed += 1
        self.totals.last_failed_ms = now_ms
        self.totals.last_failure = reason
        self.live_from = None

    def resume(self, next_id: int, position: int, acknowledged: int, kept: int) -> None:
        """
        Go on after a restart. Ids from ``next_id`` on were lost in a crash, and will be given to other messages.

        Args:
            position: The next id of the log to read: unsettled messages are read again.
            acknowledged: How many messages are settled, by its cursor.
            kept: How many unsettled messages have references, because the log has dropped them.
        """
        if self.live_from is not None:
            self.live_from = min(self.live_from, next_id)
        if not self.is_under_way:
            return
        self.position = min(position, next_id)
        if self.state is ReplayState.INITIALIZING:
            # The emptying was committed together with this state, else the store would not have the state.
            self.move(ReplayEvent.CLEARED)
        # A replay that had put all messages has to put the unsettled ones again.
        self.state = ReplayState.ACTIVE
        self.is_forced = False
        self.totals.acknowledged += max(acknowledged - self.acknowledged, 0)
        self.acknowledged = acknowledged
        self.put = acknowledged + kept

    def to_json(self) -> str:
        kept: dict[str, Any] = {name: getattr(self, name) for name in _FIELDS}
        kept["state"] = self.state.value
        kept["totals"] = {name: getattr(self.totals, name) for name in _TOTALS}
        return json.dumps(kept)

    @classmethod
    def from_json(cls, text: str) -> Replay:
        fields = json.loads(text)
        fields["state"] = ReplayState(fields["state"])
        fields["subscriptions"] = [(first, texts) for first, texts in fields.get("subscriptions", ())]
        # Stored as ``record`` by the first versions.
        fields["totals"] = ReplayTotals(**(fields.pop("record", None) or fields.get("totals", {})))
        return cls(**fields)


# ``asdict`` copies the values, which takes several times as long, and a replay is saved often.
_FIELDS: Final = tuple(one.name for one in fields(Replay))
_TOTALS: Final = tuple(one.name for one in fields(ReplayTotals))
