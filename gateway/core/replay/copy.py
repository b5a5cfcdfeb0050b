"""
A copy of one logged message put on an endpoint, without a replay.

It takes its place by its id, as everything on an endpoint does. Invariant: between the command and its commit no page
of the endpoint is read, so that the reference is found in exactly one place: in memory, or by the next page.
"""

from __future__ import annotations

from gateway.core.broker import Broker
from gateway.core.effects import AddReferences
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import Row


def check_copy(broker: Broker, endpoint: Endpoint) -> None:
    """
    Whether a message of the log can be put on the endpoint.

    Raises:
        Refused: NOT_ALLOWED for a stream, REPLAY_DISABLED, PRECONDITION_FAILED while a replay is under way.
    """
    if endpoint.kind is EndpointKind.STREAM:
        raise Refused(
            ErrorCode.NOT_ALLOWED, f"{endpoint.name!r} is a stream: it shows the log, and holds no copies"
        )
    broker.policy.check_reads("there is nothing to copy from")
    if endpoint.is_dropping or (endpoint.replay is not None and endpoint.replay.is_under_way):
        raise Refused(
            ErrorCode.PRECONDITION_FAILED,
            f"a replay of {endpoint.name!r} is under way; copy when it is complete, or cancel it first",
        )


def begin_copy(broker: Broker, endpoint: Endpoint, row: Row, priority: int) -> AddReferences:
    """
    Put a logged message on an endpoint on which it does not lie. Once that is committed, or failed, tell ``end_copy``.

    Args:
        priority: The message's own; looked at where the endpoint delivers by it.

    Raises:
        Refused: As ``check_copy`` has it; START_MESSAGE_UNAVAILABLE, it was trimmed; RESOURCE_LIMIT, over the quota.
    """
    check_copy(broker, endpoint)
    if row[0] < max(broker.trimming_below, broker.log.first_id):
        raise Refused(ErrorCode.START_MESSAGE_UNAVAILABLE, f"message {row[0]} was trimmed from the log")
    if not endpoint.room_for([row[5]]):
        raise Refused(
            ErrorCode.RESOURCE_LIMIT, f"{endpoint.name!r} is at its quota; consume from it or raise the quota"
        )
    size = len(row[5])
    endpoint.depth += 1
    endpoint.size_bytes += size
    endpoint.is_dropping = True
    endpoint.era += 1
    endpoint.ready.note((row[0],), (priority,))
    return AddReferences(
        endpoint.number,
        (row[0],),
        size,
        endpoint.replay.to_json() if endpoint.replay is not None else None,
        (priority,) if endpoint.settings.priorities else None,
    )


def end_copy(endpoint: Endpoint, effect: AddReferences, *, is_committed: bool) -> None:
    """The copy is durable and ready, or it is not on the endpoint after all."""
    if endpoint.number != effect.endpoint:
        return  # A replay, or a purge, has dropped it with all the rest.
    endpoint.is_dropping = False
    (message_id,) = effect.ids
    if not is_committed:
        endpoint.depth -= 1
        endpoint.size_bytes -= effect.size_bytes
        endpoint.ready.settled(effect.ids)
    else:
        endpoint.ready.place(message_id)
