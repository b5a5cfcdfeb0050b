"""
The history of a Message VPN: its replay log, and before that what the log's archive has, as one run of ids.

Invariant: the history has no gap. Of an archive it takes the ids without a gap up to the archive's end, and takes them
only while they reach to where the log begins: as long as every id is archived before it is trimmed, that is always so.
What lies before a gap is no part of it, and whoever asks for that is told so.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.model import LogState


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """The ids that an archive has without a gap, up to its end; it is empty where ``last_id`` is below ``first_id``."""

    generation: int | None
    """Of the log that was archived; None when nothing was yet."""
    first_id: int
    last_id: int
    first_ms: int
    """When the first of its messages arrived, ms since the epoch."""
    last_before: int = 0
    """The last id that the archive has before the gap in front of the run; 0 when there is none."""


class History:
    """
    Which ids lie in the log, and which in its archive alone.

    Args:
        log: As the store has it.
    """

    def __init__(self, log: LogState) -> None:
        self.log = log
        self.has_archive = False
        """The log has an archive that is read; it may be empty."""
        self.archived: ArchivedRun | None = None
        """As it was looked at last; None when it never was, or cannot be read."""

    @property
    def is_joined(self) -> bool:
        """The archive has what the log no longer has, up to where the log begins."""
        archived, log = self.archived, self.log
        return (
            archived is not None
            and archived.generation == log.generation
            and archived.first_id < log.first_id <= archived.last_id + 1
            and archived.last_id < log.next_id
        )

    @property
    def first_id(self) -> int:
        """The oldest id that may be read."""
        return self.archived.first_id if self.is_joined and self.archived else self.log.first_id

    @property
    def floor_ms(self) -> int:
        """From this time on nothing is missing, ms since the epoch."""
        if not self.is_joined or self.archived is None:
            return self.log.floor_ms
        # Others of that millisecond may have been trimmed before the archive began.
        return self.archived.first_ms + (self.archived.first_id > 1)

    @property
    def archived_below(self) -> int:
        """Ids below this are in the log's archive, as far as is known; all that are given out, where it has none."""
        if not self.has_archive:
            return self.log.next_id
        archived, log = self.archived, self.log
        is_of_log = archived is not None and archived.generation == log.generation
        return max(log.archived_id, archived.last_id if archived is not None and is_of_log else 0) + 1

    def is_archived(self, message_id: int) -> bool:
        """Whether the archive is known to have an id."""
        archived = self.archived
        return (
            archived is not None
            and archived.generation == self.log.generation
            and archived.first_id <= message_id <= archived.last_id
        )

    @property
    def says(self) -> str:
        """What the archive has, as a refusal says it behind what the log holds; empty where there is none."""
        if not self.has_archive:
            return ""
        archived, log = self.archived, self.log
        if archived is None:
            return "; its archive cannot be read"
        if archived.generation is None:
            return "; its archive is empty"
        if archived.generation != log.generation:
            return f"; its archive is of generation {archived.generation}, another log"
        before = f", and up to {archived.last_before} before a gap" if archived.last_before else ""
        has = f"its archive has ids {archived.first_id} to {archived.last_id}{before}"
        if archived.last_id >= log.next_id:
            return f"; {has}, more than the log ever had"
        if archived.last_id + 1 < log.first_id:
            return f"; {has}, and what lies between is in neither"
        return f"; {has}"
