"""
The records of a Message VPN's replays, those under way and those of the past, within a bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from amqp_ext.replay_start import NAME_CHARACTERS
from gateway.core.effects import DropReplayRecords, Effect, SaveReplayRecord
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ReplayRecord, check_name

MOST_RECORDS: Final = 1_000
"""The default bound on how many are kept."""


class ReplayRecords:
    """Records by name. What is under way is never dropped: those who begin replays bound it."""

    def __init__(self, most: int = MOST_RECORDS) -> None:
        self.most = most
        """How many are kept; past it the oldest of those that ended go."""
        self.by_name: dict[str, ReplayRecord] = {}
        """In the order of their numbers."""
        self._next_number = 1

    def restore(self, records: Iterable[ReplayRecord]) -> None:
        """Take over what the store kept."""
        for record in sorted(records, key=lambda found: found.number):
            self.by_name[record.name] = record
            self._next_number = record.number + 1

    def __iter__(self) -> Iterator[ReplayRecord]:
        """The oldest first."""
        return iter(self.by_name.values())

    def get(self, name: str) -> ReplayRecord:
        """
        The record of this name.

        Raises:
            Refused: NOT_FOUND, there is none, or none any more.
        """
        record = self.by_name.get(name)
        if record is None:
            raise Refused(ErrorCode.NOT_FOUND, f"there is no replay named {name!r}, or its record is gone")
        return record

    def name_for(self, name: str, requester: str, now_ms: int) -> str:
        """
        What a replay about to begin is called: as it is said, or else by who asked and when.

        Raises:
            Refused: INVALID_FIELD for a bad name, ALREADY_EXISTS for one that is taken.
        """
        if name:
            if check_name("a replay", name) in self.by_name:
                raise Refused(
                    ErrorCode.ALREADY_EXISTS,
                    f"a replay named {name!r} is on record already; name it otherwise",
                )
            return name
        moment = datetime.fromtimestamp(now_ms / 1_000, UTC).isoformat(timespec="milliseconds")
        when = moment.replace("+00:00", "Z")
        who = "".join(c if c.isprintable() else "?" for c in requester)[: NAME_CHARACTERS - 40] or "replay"
        made = f"{who} {when}"
        others = 1
        while made in self.by_name:
            others += 1
            made = f"{who} {when} {others}"
        return made

    def begin(self, record: ReplayRecord) -> tuple[ReplayRecord, list[Effect]]:
        """
        A replay begins: it gets a number and a name (``name_for``). Its record is ordered with what else begins it.

        Args:
            record: With no number yet.

        Raises:
            Refused: As ``name_for`` has it.
        """
        name = self.name_for(record.name, record.requester, record.started_ms)
        record = replace(record, number=self._next_number, name=name)
        self._next_number += 1
        self.by_name[name] = record
        return record, [SaveReplayRecord(record), *self._drop()]

    def put(self, record: ReplayRecord) -> list[Effect]:
        """A replay has got on, or has ended; nothing happens to one whose record is gone."""
        found = self.by_name.get(record.name)
        if found is None or found.number != record.number:
            return []
        self.by_name[record.name] = record
        effects: list[Effect] = [SaveReplayRecord(record)]
        return [*effects, *self._drop()] if record.is_ended else effects

    def withdraw(self, record: ReplayRecord) -> None:
        """It did not begin after all: nothing of it was stored."""
        found = self.by_name.get(record.name)
        if found is not None and found.number == record.number:
            del self.by_name[record.name]

    def _drop(self) -> list[Effect]:
        over = len(self.by_name) - self.most
        if over <= 0:
            return []
        oldest = [record for record in self.by_name.values() if record.is_ended][:over]
        for record in oldest:
            del self.by_name[record.name]
        return [DropReplayRecords(tuple(record.number for record in oldest))] if oldest else []
