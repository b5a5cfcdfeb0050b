"""
The records of a Message VPN's running and ended replays, up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from amqp_ext.replay_start import NAME_CHARACTERS, date_text
from gateway.core.effects import DropReplayRecords, Effect, SaveReplayRecord
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ReplayRecord, check_name

MOST_RECORDS: Final = 1_000
"""The default limit of records."""


class ReplayRecords:
    """Records by name. Records of running replays are never dropped: running replays have their own limit."""

    def __init__(self, most: int = MOST_RECORDS) -> None:
        self.most = most
        """The most records to keep. Beyond it, the oldest records of ended replays are dropped."""
        self.by_name: dict[str, ReplayRecord] = {}
        """In the order of their numbers."""
        self._next_number = 1

    def restore(self, records: Iterable[ReplayRecord]) -> None:
        """Take over the stored records."""
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
            Refused: NOT_FOUND, there is no such record, or it was dropped.
        """
        record = self.by_name.get(name)
        if record is None:
            raise Refused(ErrorCode.NOT_FOUND, f"there is no replay named {name!r}, or its record is gone")
        return record

    def name_for(self, name: str, requester: str, now_ms: int) -> str:
        """
        The name of a replay that is to begin: the given one, or one made from the requester and the time.

        Raises:
            Refused: INVALID_FIELD for a bad name, ALREADY_EXISTS for a name that is taken.
        """
        if name:
            if check_name("a replay", name) in self.by_name:
                raise Refused(
                    ErrorCode.ALREADY_EXISTS,
                    f"a replay named {name!r} is on record already; use another name",
                )
            return name
        when = date_text(now_ms)
        who = "".join(c if c.isprintable() else "?" for c in requester)[: NAME_CHARACTERS - 40] or "replay"
        made = f"{who} {when}"
        others = 1
        while made in self.by_name:
            others += 1
            made = f"{who} {when} {others}"
        return made

    def begin(self, record: ReplayRecord) -> tuple[ReplayRecord, list[Effect]]:
        """
        A replay begins: its record gets a number and a name (``name_for``). The effects are committed with those that
        begin the replay.

        Args:
            record: The record without a number.

        Raises:
            Refused: As in ``name_for``.
        """
        name = self.name_for(record.name, record.requester, record.started_ms)
        record = replace(record, number=self._next_number, name=name)
        self._next_number += 1
        self.by_name[name] = record
        return record, [SaveReplayRecord(record), *self._drop()]

    def put(self, record: ReplayRecord) -> list[Effect]:
        """Replace the record of a replay that has progressed or ended. Does nothing if its record was dropped."""
        found = self.by_name.get(record.name)
        if found is None or found.number != record.number:
            return []
        self.by_name[record.name] = record
        effects: list[Effect] = [SaveReplayRecord(record)]
        return [*effects, *self._drop()] if record.is_ended else effects

    def withdraw(self, record: ReplayRecord) -> None:
        """Remove the record of a replay whose begin failed: nothing was stored."""
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
