"""
The nodes ``$cbs`` and ``$management`` of Event Hubs: requests read into commands, and answers written.

A request says in application properties what it asks for; an answer's application property ``status-code`` is one of
HTTP's. Where a request has no reply-to, the receiving link whose target is called like the node is meant.

Sources: OASIS, "AMQP Claims-based Security Version 1.0" and "AMQP Management Version 1.0" (drafts); Microsoft, "AMQP
1.0 in Azure Service Bus and Event Hubs protocol guide"; Event Hubs' clients for Python, JavaScript, Go, Java
and Rust.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from amqp_ext.codec import Array, Int, Long, Timestamp
from amqp_ext.event_hubs.addresses import CBS, MANAGEMENT, PARTITION
from amqp_ext.event_hubs.commands import HubState, PartitionState, PutToken, ReadHub, ReadPartition
from amqp_ext.message import sections
from amqp_ext.request_nodes import INVALID, NOT_IMPLEMENTED, Request, RequestError, message, value_of

HUB: Final = "com.microsoft:eventhub"
PARTITION_TYPE: Final = "com.microsoft:partition"

_STATUS: Final[Mapping[str, int]] = {
    "amqp:unauthorized-access": 401,
    "amqp:not-found": 404,
    "amqp:internal-error": 500,
    "amqp:not-implemented": 501,
}
"""HTTP's status for a condition; 400 for any other."""

_STRING: Final = 0xB1


class _BadRequest(ValueError):
    """A request that is none."""

    def __init__(self, text: str, condition: str = INVALID) -> None:
        super().__init__(text)
        self.condition = condition


class _Node:
    """What the two nodes have in common."""

    address: str

    def read(self, content: bytes) -> Request:
        """
        Read one message.

        Raises:
            CodecError: It is no AMQP message.
            RequestError: It is, and no request of this node's.
        """
        sections.validate(content)
        properties = sections.properties(content)
        reply_to = properties.reply_to or self.address
        try:
            asked = sections.application_properties(content)
            command = self.command(asked, content)
        except _BadRequest as bad:
            raise RequestError(
                Request(None, properties.message_id, reply_to), bad.condition, str(bad)
            ) from None
        return Request(command, properties.message_id, reply_to)

    def command(self, asked: Mapping[Any, Any], content: bytes) -> Any:
        """What is asked for, by application properties and body."""
        raise NotImplementedError

    def refuse(self, request: Request, condition: str, text: str) -> bytes:
        """The message that says why a request was not carried out."""
        return _answer(request, _STATUS.get(condition, 400), text, None, condition)


class CbsNode(_Node):
    """Takes tokens."""

    address = CBS

    def command(self, asked: Mapping[Any, Any], content: bytes) -> PutToken:
        """What is asked for, by application properties and body."""
        operation = _text(asked, "operation")
        if operation != "put-token":
            raise _BadRequest(f"the operation at {CBS} is put-token, not {operation!r:.60}", NOT_IMPLEMENTED)
        token = value_of(content)
        if isinstance(token, bytes):
            token = token.decode(errors="replace")
        if not isinstance(token, str) or not token:
            raise _BadRequest("the body of put-token is the token, a string")
        return PutToken(token, _text(asked, "type"))

    def answer(self, request: Request, result: Any) -> bytes:
        """The message that says what came of a request."""
        return _answer(request, 202, "Accepted", None)

    def refuse(self, request: Request, condition: str, text: str) -> bytes:
        """The message that says why a request was not carried out."""
        # Without the condition: where there is one, the Python client looks at neither status nor text.
        return _answer(request, _STATUS.get(condition, 400), text, None)


class ManagementNode(_Node):
    """Tells of event hubs and their partition."""

    address = MANAGEMENT

    def command(self, asked: Mapping[Any, Any], content: bytes) -> ReadHub | ReadPartition:
        """What is asked for, by application properties and body."""
        operation, kind = _text(asked, "operation"), _text(asked, "type")
        if operation != "READ":
            raise _BadRequest(
                f"the operation at {MANAGEMENT} is READ, not {operation!r:.60}", NOT_IMPLEMENTED
            )
        token = asked.get("security_token")
        if token is not None and not isinstance(token, str):
            raise _BadRequest("the application property 'security_token' is a token, a string")
        if kind == HUB:
            return ReadHub(_text(asked, "name"), token)
        if kind == PARTITION_TYPE:
            return ReadPartition(_text(asked, "name"), _text(asked, "partition"), token)
        raise _BadRequest(f"{HUB} and {PARTITION_TYPE} can be read, not {kind!r:.60}", NOT_IMPLEMENTED)

    def answer(self, request: Request, result: Any) -> bytes:
        """The message that says what came of a request."""
        return _answer(request, 200, "OK", _described(result))


def _described(state: HubState | PartitionState) -> dict[str, Any]:
    if isinstance(state, HubState):
        return {
            "type": HUB,
            "name": state.name,
            "created_at": Timestamp(state.created_ms),
            "partition_count": Int(1),
            "partition_ids": Array([PARTITION], _STRING),
            # There is one copy. The Go client takes no answer without it, though nothing is replicated.
            "georeplication_factor": Int(1),
        }
    last = -1 if state.last is None else state.last
    return {
        "type": PARTITION_TYPE,
        "name": state.hub,
        "partition": PARTITION,
        "begin_sequence_number": Long(state.begin),
        # Nothing is replicated, so nothing has an epoch. The Rust client takes no answer without the latter.
        "begin_sequence_number_epoch": Int(-1),
        "last_enqueued_sequence_number_epoch": Int(-1),
        "last_enqueued_sequence_number": Long(last),
        "last_enqueued_offset": str(last),
        "last_enqueued_time_utc": Timestamp(state.last_ms),
        "is_partition_empty": state.last is None,
    }


def _answer(request: Request, status: int, text: str, value: Any, condition: str | None = None) -> bytes:
    # The Python client looks for the description by the name that the draft of AMQP Management has.
    said: dict[str, Any] = {"status-code": Int(status), "status-description": text, "statusDescription": text}
    if condition is not None:
        said["error-condition"] = condition
    return message(correlation_id=request.id, to=request.reply_to, application_properties=said, value=value)


def _text(asked: Mapping[Any, Any], name: str) -> str:
    found = asked.get(name)
    if not isinstance(found, str) or not found:
        raise _BadRequest(f"the request needs the application property {name!r}, a string")
    return str(found)
