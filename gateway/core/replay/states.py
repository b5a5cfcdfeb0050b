"""
How a replay onto an endpoint proceeds: its states, what it has done so far, and what is left.

States and transitions stand in ``TRANSITIONS`` and nowhere else; the diagram in docs/explanation/replay-states.md is
made from it (Solace, "Message Replay", section "Replay States").

Theory of operation. A replay reads the log from ``position`` on and puts what matches the endpoint's subscriptions on
it again, in memory alone: what is written is a cursor over the log, of what was acknowledged. Meanwhile the endpoint is
left out of routing: live messages go to the log alone. Once everything committed has been read, the endpoint is routed
to again from ``live_from`` on, the next id to be given out; the few messages below it that are still on their way into
the store are read as they arrive. Ids below ``live_from`` come from the log, all others from routing: no gap and no
duplicate, whatever is published meanwhile.

A start after a stop reads the log again from the replay's cursor on: what had been put and was not acknowledged is
found by the subscriptions that were in force then (``subscriptions``).
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
    Where an endpoint's replay stands. While a failed one waits for its consumers to hear of it, Solace shows
    ``failed``; here it is shown until the next replay, with the reason.
    """

    NONE = "n/a"
    INITIALIZING = "initializing"
    ACTIVE = "active"
    PENDING_COMPLETE = "pending-complete"
    COMPLETE = "complete"
    FAILED = "failed"


class ReplayEvent(enum.Enum):
    """What makes a replay go from one state to another."""

    REQUESTED = "a replay is requested"
    CLEARED = "what lay on the endpoint is removed"
    CAUGHT_UP = "the end of the log is reached"
    ACKNOWLEDGED = "every replayed message is acknowledged"
    FORCED = "force-completed"
    FAILED = "it fails or is cancelled"


_ANEW: Final = {ReplayEvent.REQUESTED: ReplayState.INITIALIZING}
"""A replay may be asked for in every state: it cancels the one under way."""

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
    """What became of all replays of an endpoint; times in ms since the epoch, 0 for never."""

    started: int = 0
    succeeded: int = 0
    failed: int = 0
    transmitted: int = 0
    """Replayed messages handed to consumers, each time one was."""
    acknowledged: int = 0
    last_started_ms: int = 0
    last_completed_ms: int = 0
    last_failed_ms: int = 0
    last_failure: str = ""
    last_transmitted_ms: int = 0


class Progress(NamedTuple):
    """How far a replay is, as an administrator is shown it."""

    position: int
    """The next id of the log to be read."""
    remaining: int
    """Ids of the log that are still to be looked at; how many of them match is not known before."""
    outstanding: int
    """Replayed messages that lie on the endpoint unacknowledged."""
    eta_ms: int | None
    """Until the end of the log is reached, at the pace so far; None when nothing was read yet, or all was."""


@dataclass(slots=True)
class Replay:
    """One endpoint's replay."""

    position: int
    """The next id of the log to read."""
    first: int = 0
    """Where it began."""
    name: str = ""
    """Of its record; empty for one that was begun by an earlier version."""
    marked_below: int = 0
    """Messages below this id were published before it was asked for: its consumers are told that they are replayed.
    Later ones come by it for the first time."""
    kept_up_to: int = 0
    """The newest message that lay on the endpoint when it began, and stayed: it is not a replayed one. 0 for none."""
    size_bytes: int = 0
    """Content of what it has put."""
    cursor: int = 0
    """The number of its cursor; 0 once that is gone."""
    subscriptions: list[tuple[int, list[str]]] = field(default_factory=list)
    """What the endpoint subscribes to, and from which id on the log was read by it; rising."""
    state: ReplayState = ReplayState.NONE
    started_ms: int = 0
    live_from: int | None = None
    """From this id on the endpoint is routed to again; None while the replay is behind."""
    put: int = 0
    """Messages put on the endpoint so far; with them those that came meanwhile and are not in the log. What a stop took
    away before it was acknowledged is not counted: it is put again."""
    acknowledged: int = 0
    end_id: int | None = None
    """The last message before live, once it is known."""
    is_forced: bool = False
    """It is to end where it is, and everything on the endpoint stays."""
    is_blocked: bool = False
    """What it has put is not what the selectors of the endpoint's consumers want: it would not complete."""
    is_archived: bool = False
    """Some of what it has put was in the log's archive alone: a start reads that again, from its cursor on."""
    totals: ReplayTotals = field(default_factory=ReplayTotals)

    def move(self, event: ReplayEvent) -> None:
        """The one place where a replay changes state."""
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise AssertionError(f"a replay that is {self.state.value} has no place for: {event.value}")
        self.state = after

    @property
    def is_reading(self) -> bool:
        """There is more to be read from the log."""
        return self.state in _READING

    @property
    def is_under_way(self) -> bool:
        """It can still fail, or be cancelled."""
        return self.state in _UNDER_WAY

    @property
    def is_behind(self) -> bool:
        """The endpoint is left out of routing."""
        return self.is_reading and self.live_from is None

    @property
    def boundary(self) -> int | None:
        """What lies below this id is the replay's own; None when it has nothing on the endpoint any more."""
        if self.is_reading:
            return self.position
        return self.live_from if self.state is ReplayState.PENDING_COMPLETE else None

    @property
    def fresh_from(self) -> int | None:
        """Messages from this id on are live ones, which can expire; None while all are history."""
        return 0 if self.state is ReplayState.FAILED else self.live_from

    @property
    def is_marking(self) -> bool:
        """What it has put may be on the endpoint, to be handed out with its name."""
        return self.name != "" and (
            self.is_under_way or (self.is_forced and self.state is ReplayState.COMPLETE)
        )

    @property
    def outstanding(self) -> int:
        """Replayed messages on the endpoint that were not acknowledged yet."""
        return self.put - self.acknowledged

    def progress(self, next_id: int, now_ms: int) -> Progress:
        """
        How far it is.

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
            subscriptions: The endpoint's.
            name: Of its record.
            before: The endpoint's last one, whose totals go on; one that is under way is cancelled by this.
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
        """From this id on the log is read by other subscriptions."""
        self.subscriptions = [one for one in self.subscriptions if one[0] < position]
        self.subscriptions.append((position, list(subscriptions)))

    def put_up_to(self, position: int, count: int, size_bytes: int = 0) -> None:
        """So many messages below ``position``, the next id to read, are put, with so much content of the log."""
        self.position = position
        self.put += count
        self.size_bytes += size_bytes

    def found_end(self, message_id: int) -> None:
        """This is the last message before live."""
        self.end_id = message_id

    def force_complete(self) -> None:
        """It is complete, whatever was acknowledged."""
        self.is_forced = True
        self.move(ReplayEvent.FORCED)
        self.totals.succeeded += 1

    def blocked(self) -> None:
        """What it has put is not what any consumer wants."""
        self.is_blocked = True

    def completed(self, now_ms: int) -> bool:
        """Note when it became complete; whether that was news."""
        if self.state is not ReplayState.COMPLETE or self.totals.last_completed_ms >= self.started_ms:
            return False
        self.totals.last_completed_ms = max(now_ms, self.started_ms)
        return True

    def transmit(self, ids: Sequence[int], now_ms: int) -> None:
        """These, rising, are handed to a consumer."""
        bound = self.boundary
        if bound is None or not ids or ids[0] >= bound:
            return
        self.totals.transmitted += len(ids) if ids[-1] < bound else sum(1 for i in ids if i < bound)
        self.totals.last_transmitted_ms = now_ms
        self.is_blocked = False

    def acknowledges(self, ids: Sequence[int]) -> int:
        """How many of these messages, rising, count as replayed."""
        if self.state not in (ReplayState.ACTIVE, ReplayState.PENDING_COMPLETE):
            return 0
        bound = self.live_from
        return len(ids) if bound is None else bisect_left(ids, bound)

    def acknowledge(self, ids: Sequence[int]) -> int:
        """These messages, rising, left the endpoint for good; how many of them count as replayed."""
        count = self.acknowledges(ids)
        self.acknowledged += count
        self.totals.acknowledged += count
        self.settle_state()
        return count

    def take_back(self, ids: Sequence[int]) -> None:
        """Messages, rising, that were acknowledged to be tried again later are on the endpoint once more."""
        self.put += self.acknowledges(ids)

    def settle_state(self) -> None:
        """Pending-complete becomes complete with the last acknowledgement."""
        if self.state is ReplayState.PENDING_COMPLETE and self.outstanding <= 0:
            self.move(ReplayEvent.ACKNOWLEDGED)
            self.totals.succeeded += 1

    def fail(self, reason: str, now_ms: int) -> None:
        """It cannot go on, or is not to."""
        self.move(ReplayEvent.FAILED)
        self.totals.failed += 1
        self.totals.last_failed_ms = now_ms
        self.totals.last_failure = reason
        self.live_from = None

    def resume(self, next_id: int, position: int, acknowledged: int, kept: int) -> None:
        """
        Go on after a restart. Ids from ``next_id`` on that a crash took back will be given to other messages.

        Args:
            position: The next id of the log to read: what was not acknowledged is read again.
            acknowledged: How many messages were, by its cursor.
            kept: How many that were not lie on the endpoint, though the log has dropped them.
        """
        if self.live_from is not None:
            self.live_from = min(self.live_from, next_id)
        if not self.is_under_way:
            return
        self.position = min(position, next_id)
        if self.state is ReplayState.INITIALIZING:
            # The removal was committed with this state, or it would not be known here.
            self.move(ReplayEvent.CLEARED)
        # One that had put everything has to put again what was not acknowledged.
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


# ``asdict`` copies all that is in them: it takes several times as long, and a replay is written again and again.
_FIELDS: Final = tuple(one.name for one in fields(Replay))
_TOTALS: Final = tuple(one.name for one in fields(ReplayTotals))
