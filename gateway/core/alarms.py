"""
Alarms of one Message VPN: which conditions hold that an administrator should know of.

Invariant: an alarm is raised once and cleared once. One about a use has a threshold, and is cleared only when the use
has fallen some points below it, so that a use that goes up and down around the threshold is told of once.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

HOUR_MS: Final = 3_600_000

SLACK: Final = 0.25
"""Share of its hours that the time left has to rise above them until an alarm is cleared: rates go up and down."""


class AlarmKind(enum.Enum):
    """What an alarm is about. The value is its name outside."""

    LOG_USE = "replay-log-use"
    ENDPOINT_USE = "endpoint-use"
    STORE = "store"
    UNCONFIRMED = "store-unconfirmed"
    ONE_MACHINE = "one-machine"
    DAMAGE = "store-damage"
    ARCHIVE = "archive"
    CLOCK = "clock"
    DISK_TIME = "disk-time-left"
    LOG_TIME = "replay-log-time-kept"
    RETENTION_USE = "replay-log-retention-use"
    DISCARDED = "dead-messages-discarded"
    LAG = "endpoint-lag"
    LAG_TIME = "endpoint-lag-time"


@dataclass(frozen=True, slots=True)
class Alarm:
    """A condition that holds since ``raised_ms`` (ms since the epoch)."""

    kind: AlarmKind
    subject: str
    """The endpoint's name; empty for what there is one of."""
    threshold_percent: int
    """Of the quota; 0 where the alarm is about no use."""
    raised_ms: int
    text: str
    """One sentence for a person, as it was when the alarm was raised."""


Tell: TypeAlias = Callable[[Alarm, bool], None]
"""Called once for each alarm that is raised (True) and once when it is cleared (False)."""


class Alarms:
    """
    Args:
        tell: Is told of each change.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._active: dict[tuple[AlarmKind, str, int], Alarm] = {}
        self._said: set[tuple[AlarmKind, str, int]] = set()
        """What was said to hold since ``clear_unsaid`` was called last."""

    def active(self) -> list[Alarm]:
        """What holds now, the oldest first."""
        return list(self._active.values())

    def note(self, kind: AlarmKind, subject: str, text: str | None, now_ms: int, threshold: int = 0) -> None:
        """A condition holds, as ``text`` says; or, with None, it does not. What is known is not told again."""
        key = (kind, subject, threshold)
        found = self._active.get(key)
        if text is not None:
            self._said.add(key)
        if text is None and found is not None:
            del self._active[key]
            self._tell(found, False)
        elif text is not None and found is None:
            raised = self._active[key] = Alarm(kind, subject, threshold, now_ms, text)
            self._tell(raised, True)

    def note_use(
        self,
        kind: AlarmKind,
        subject: str,
        used: float,
        thresholds: Sequence[int],
        hysteresis: int,
        now_ms: int,
    ) -> None:
        """
        So much of a quota is in use.

        Args:
            used: 1 is all of it.
            thresholds: In percent; each has an alarm of its own.
            hysteresis: Points that the use has to fall below a threshold until that is cleared.
        """
        for threshold in thresholds:
            is_raised = (kind, subject, threshold) in self._active
            if used * 100 >= threshold - (hysteresis if is_raised else 0):
                what = f"{subject!r}" if subject else "the replay log"
                self.note(kind, subject, f"{what} uses {used:.0%} of its quota", now_ms, threshold)
            elif is_raised:
                self.note(kind, subject, None, now_ms, threshold)

    def note_lag(
        self,
        kind: AlarmKind,
        subject: str,
        lag: float | None,
        bound: int,
        hysteresis: int,
        text: str,
        now_ms: int,
    ) -> None:
        """
        Consumers of an endpoint are so far behind.

        Args:
            lag: None where it is not known: it is as it was.
            bound: From which on that is an alarm; 0: never.
            hysteresis: Percent of the bound that the lag has to fall below it until the alarm is cleared.
            text: What that is, as a sentence.
        """
        is_raised = (kind, subject, 0) in self._active
        least = bound * (1 - hysteresis / 100 if is_raised else 1)
        holds = bound > 0 and (is_raised if lag is None else lag >= least)
        self.note(kind, subject, text if holds else None, now_ms)

    def note_time(self, kind: AlarmKind, left_ms: int | None, hours: int, text: str, now_ms: int) -> None:
        """
        So much time is left.

        Args:
            left_ms: None where it is unknown, or without end.
            hours: Below which an alarm is raised, until it is a quarter more; 0: never.
            text: What is left, as a sentence that the hours end.
        """
        is_raised = (kind, "", 0) in self._active
        bound_ms = hours * HOUR_MS * (1 + SLACK if is_raised else 1)
        holds = left_ms is not None and left_ms < bound_ms
        said = f"{text} {(left_ms or 0) / HOUR_MS:,.1f} hours" if holds else None
        self.note(kind, "", said, now_ms)

    def clear_unsaid(self, kinds: Collection[AlarmKind]) -> None:
        """
        All that these alarms may be about was looked at: those that were not said to hold meanwhile are about something
        that is gone, or about a threshold that is none any more.
        """
        said, self._said = self._said, set()
        for key, alarm in list(self._active.items()):
            if alarm.kind in kinds and key not in said:
                del self._active[key]
                self._tell(alarm, False)
