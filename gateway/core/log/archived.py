"""
What an archive holds of the log, and what that keeps from being trimmed.

Invariant: where the log keeps what is not archived, nothing is trimmed that an archiver has not reported. It reports
what its own manifest holds durably, so that at any moment each id is in the log, in the archive, or in both.
"""

from __future__ import annotations

from gateway.core.effects import SaveArchived
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log.policy import LogPolicy
from gateway.core.model import LogState


def check_trimmable(log: LogState, policy: LogPolicy, before_id: int) -> None:
    """
    Whether an administrator may have everything below an id trimmed.

    Raises:
        Refused: PRECONDITION_FAILED, not all of it is archived, and the log keeps that.
    """
    if policy.keep_until_archived and before_id > max(log.archived_id + 1, log.first_id):
        raise Refused(
            ErrorCode.PRECONDITION_FAILED,
            f"the log keeps what is not archived, and is archived up to message {log.archived_id}: trim to "
            f"message {log.archived_id + 1} at most, run `rewind archive`, or turn keep_until_archived off",
        )


def report_archived(log: LogState, last_id: int, generation: int) -> SaveArchived | None:
    """
    An archive holds the log up to an id; None when that was known. Once it is committed, tell ``Broker.archive_saved``.

    Raises:
        Refused: LOG_MODIFIED, the archive is of another log; PRECONDITION_FAILED, the log has no such id.
    """
    if generation != log.generation:
        raise Refused(
            ErrorCode.LOG_MODIFIED,
            f"the archive is of generation {generation} of the log, and this one is {log.generation}",
        )
    if last_id >= log.next_id:
        raise Refused(
            ErrorCode.PRECONDITION_FAILED,
            f"the log ends at message {log.next_id - 1}: nobody can have archived it up to {last_id}",
        )
    return SaveArchived(last_id) if last_id > log.archived_id else None
