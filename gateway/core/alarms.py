"""
Alarms of one Message VPN: the present conditions that an administrator should know about.

Invariant: an alarm is raised once and cleared once. An alarm about use of a quota has a threshold. It is cleared only
when the use has fallen some points below the threshold, so that a use that varies around it raises one alarm.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

HOUR_MS: Final = 3_600_000

SLACK: Final = 0.25
"""An alarm about time left is cleared when the time exceeds the alarm's hours by this share: rates go up and down."""


class AlarmKind(enum.Enum):
    """What an alarm is about. The value is the alarm's public name."""

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
    """A condition that has held since ``raised_ms`` (ms since the epoch)."""

    kind: AlarmKind
    subject: str
    """The endpoint's name; empty where the alarm is about the Message VPN."""
    threshold_percent: int
    """Percent of the quota; 0 where the alarm is not about use."""
    raised_ms: int
    text: str
    """One sentence for a person, as it was when the alarm was raised."""


Tell: TypeAlias = Callable[[Alarm, bool], None]
"""Called once for each alarm that is raised (True) and once when it is cleared (False)."""


class Alarms:
    """
    Args:
        tell: Called for each change.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._active: dict[tuple[AlarmKind, str, int], Alarm] = {}
        self._said: set[tuple[AlarmKind, str, int]] = set()
        """Conditions that were noted to hold since the last ``clear_unsaid``."""

    def active(self) -> list[Alarm]:
        """The present alarms, the oldest first."""
        return list(self._active.values())

    def note(self, kind: AlarmKind, subject: str, text: str | None, now_ms: int, threshold: int = 0) -> None:
        """A condition holds, as ``text`` says; or, with None, it does not hold. Only changes are reported."""
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
        Note the use of a quota: raise or clear the alarm of each threshold.

        Args:
            used: Share of the quota; 1 is all of it.
            thresholds: In percent; each has its own alarm.
            hysteresis: The points that the use has to fall below a threshold before its alarm is cleared.
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
        Note how far the consumers of an endpoint lag.

        Args:
            lag: None where it is not known: then the alarm stays as it was.
            bound: The lag at which the alarm is raised; 0: never.
            hysteresis: The percentage of the bound that the lag has to fall below it before the alarm is cleared.
            text: The lag as a sentence.
        """
        is_raised = (kind, subject, 0) in self._active
        least = bound * (1 - hysteresis / 100 if is_raised else 1)
        holds = bound > 0 and (is_raised if lag is None else lag >= least)
        self.note(kind, subject, text if holds else None, now_ms)

    def note_time(self, kind: AlarmKind, left_ms: int | None, hours: int, text: str, now_ms: int) -> None:
        """
        Note how much time is left.

        Args:
            left_ms: None where it is unknown or unlimited.
            hours: Below this time the alarm is raised. It is cleared at a quarter more (``SLACK``). 0: never.
            text: A sentence that says what is left, to which the hours are added.
        """
        is_raised = (kind, "", 0) in self._active
        bound_ms = hours * HOUR_MS * (1 + SLACK if is_raised else 1)
        holds = left_ms is not None and left_ms < bound_ms
        said = f"{text} {(left_ms or 0) / HOUR_MS:,.1f} hours" if holds else None
        self.note(kind, "", said, now_ms)

    def clear_unsaid(self, kinds: Collection[AlarmKind]) -> None:
        """
        Clear the alarms of these kinds that were not noted to hold since the last call. The caller has looked at all
        their subjects, so these alarms are about a subject or a threshold that no longer exists.
        """
        said, self._said = self._said, set()
        for key, alarm in list(self._active.items()):
            if alarm.kind in kinds and key not in said:
                del self._active[key]
                self._tell(alarm, False)
