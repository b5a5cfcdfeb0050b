"""
A copy of one logged message put on an endpoint, without a replay.

It takes its place by its id, as everything on an endpoint does. A reference leads to it, for no route does, or the
endpoint was done with it.
"""

from __future__ import annotations

from gateway.core.effects import AddReferences
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log.policy import LogPolicy
from gateway.core.model import CONTENT, ID, Row


def check_copy(policy: LogPolicy, endpoint: Endpoint) -> None:
    """
    Whether a message of the log can be put on the endpoint.

    Raises:
        Refused: NOT_ALLOWED for a stream, REPLAY_DISABLED, PRECONDITION_FAILED while a replay is under way.
    """
    if endpoint.kind is EndpointKind.STREAM:
        raise Refused(
            ErrorCode.NOT_ALLOWED, f"{endpoint.name!r} is a stream: it shows the log, and holds no copies"
        )
    policy.check_reads("there is nothing to copy from")
    if endpoint.replay is not None and endpoint.replay.is_under_way:
        raise Refused(
            ErrorCode.PRECONDITION_FAILED,
            f"a replay of {endpoint.name!r} is under way; copy when it is complete, or cancel it first",
        )


def begin_copy(policy: LogPolicy, first_id: int, endpoint: Endpoint, row: Row) -> AddReferences:
    """
    Put a logged message on an endpoint on which it does not lie. Once that is committed, or failed, tell
    ``Endpoint.end_copy``.

    Args:
        first_id: The first id that the log will have once what is ordered is trimmed.

    Raises:
        Refused: As ``check_copy`` has it; START_MESSAGE_UNAVAILABLE, it was trimmed; RESOURCE_LIMIT, over the quota.
    """
    check_copy(policy, endpoint)
    if row[ID] < first_id:
        raise Refused(ErrorCode.START_MESSAGE_UNAVAILABLE, f"message {row[ID]} was trimmed from the log")
    if not endpoint.room_for([row[CONTENT]]):
        raise Refused(
            ErrorCode.RESOURCE_LIMIT, f"{endpoint.name!r} is at its quota; consume from it or raise the quota"
        )
    return endpoint.begin_copy(row)
