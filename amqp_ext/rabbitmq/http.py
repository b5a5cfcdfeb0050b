"""
The node ``/management``: requests of HTTP over AMQP 1.0, read into commands, and answers written.

A request's ``subject`` is the method, its ``to`` the path, percent-encoded in its parts; its body is an amqp-value. An
answer's ``subject`` is the status code; its body is a map, or, where something was wrong, a sentence.

Sources: RabbitMQ documentation, "AMQP 1.0"; RabbitMQ's AMQP 1.0 clients for Python, Java, Go and .NET.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from amqp_ext import sections
from amqp_ext.addresses import AddressError, check_queue_name
from amqp_ext.codec import Array, UInt, ULong
from amqp_ext.dialect import INVALID, NOT_FOUND, Request, RequestError, message, value_of
from amqp_ext.rabbitmq.arguments import ArgumentError, QueueArguments, read_queue_arguments
from amqp_ext.rabbitmq.commands import (
    Command,
    Declared,
    DeclareQueue,
    DeleteQueue,
    DescribeQueue,
    PurgeQueue,
    QueueState,
    Removed,
    RenewToken,
)

_STATUS: Final[Mapping[str, int]] = {
    "amqp:unauthorized-access": 403,
    "amqp:not-found": 404,
    "amqp:precondition-failed": 409,
    "amqp:resource-locked": 409,
    "amqp:internal-error": 500,
}
"""HTTP's status for a condition; 400 for any other."""

_STRING: Final = 0xB1


class _Bad(ValueError):
    """A request that is none, with the condition to refuse it with."""

    def __init__(self, text: str, condition: str = INVALID) -> None:
        super().__init__(text)
        self.condition = condition


class ManagementNode:
    """
    The node.

    Args:
        node_name: Of the one node there is; the clients ask which one leads a queue.
    """

    def __init__(self, node_name: str) -> None:
        self._node_name = node_name

    def read(self, content: bytes) -> Request:
        sections.validate(content)
        properties = sections.properties(content)
        unread = Request(None, properties.message_id, properties.reply_to)
        try:
            command = _command(properties.subject or "", properties.to or "", value_of(content))
        except _Bad as bad:
            raise RequestError(unread, bad.condition, str(bad)) from None
        except (AddressError, ArgumentError) as error:
            raise RequestError(unread, INVALID, str(error)) from None
        return Request(command, properties.message_id, properties.reply_to)

    def answer(self, request: Request, result: Any) -> bytes:
        match result:
            case Declared(queue=queue, is_new=is_new):
                return _response(request, 201 if is_new else 200, self._described(queue))
            case QueueState():
                return _response(request, 200, self._described(result))
            case Removed(messages=messages):
                return _response(request, 200, {"message_count": ULong(messages)})
            case _:
                return _response(request, 204, None)

    def refuse(self, request: Request, condition: str, text: str) -> bytes:
        return _response(request, _STATUS.get(condition, 400), text)

    def _described(self, queue: QueueState) -> dict[str, Any]:
        kind: QueueArguments = queue.arguments
        return {
            "name": queue.name,
            "vhost": queue.vpn,
            "durable": True,
            "auto_delete": False,
            "exclusive": False,
            "type": "stream" if kind.is_stream else "quorum",
            "arguments": kind.to_map(),
            "leader": self._node_name,
            "replicas": Array([self._node_name], _STRING),
            "message_count": ULong(queue.messages),
            "consumer_count": UInt(queue.consumers),
        }


def _response(request: Request, status: int, value: Any) -> bytes:
    return message(
        correlation_id=request.id,
        to=request.reply_to,
        subject=str(status),
        application_properties={"http:response": "1.1"},
        value=value,
    )


def _command(method: str, target: str, body: Any) -> Command:
    path = target.partition("?")[0]
    parts = [_decoded(part, target) for part in path.split("/")]
    match method, parts:
        case "PUT", ["", "queues", name]:
            return DeclareQueue(check_queue_name(name), _declaration(body))
        case "GET", ["", "queues", name]:
            return DescribeQueue(name)
        case "DELETE", ["", "queues", name]:
            return DeleteQueue(name)
        case "DELETE", ["", "queues", name, "messages"]:
            return PurgeQueue(name)
        case "PUT", ["", "auth", "tokens"]:
            if not isinstance(body, bytes) or not body:
                raise _Bad("a token is binary, and it is not empty")
            return RenewToken(body)
    raise _Bad(f"there is no {method!r:.20} of {target!r:.200} at this node", NOT_FOUND)


def _declaration(body: Any) -> QueueArguments:
    fields = {} if body is None else body
    if not isinstance(fields, dict):
        raise _Bad("the body of a declaration is a map")
    if fields.get("durable", True) is not True:
        raise _Bad("a queue is durable here: declare it with durable = true")
    for name in ("exclusive", "auto_delete"):
        if fields.get(name, False) is not False:
            raise _Bad(
                f"a queue with {name} = true is not there; attach to a dynamic source, whose queue goes with it"
            )
    arguments = fields.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise _Bad("the arguments of a declaration are a map")
    return read_queue_arguments(arguments)


def _decoded(part: str, target: str) -> str:
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise _Bad(f"what is percent-encoded in {target!r:.200} is not UTF-8") from None
