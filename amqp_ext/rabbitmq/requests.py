"""
The node ``/management``: requests of HTTP over AMQP 1.0, read into commands, and answers written.

A request's ``subject`` is the method, its ``to`` the path, percent-encoded in its parts; its body is an amqp-value. An
answer's ``subject`` is the status code; its body is a map, or, where something was wrong, a sentence.

Sources: RabbitMQ documentation, "AMQP 1.0"; RabbitMQ's AMQP 1.0 clients for Python, Java, Go and .NET.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from amqp_ext.addresses.queue_names import check_queue_name
from amqp_ext.addresses.texts import AddressError
from amqp_ext.codec import Array, UInt, ULong
from amqp_ext.message import sections
from amqp_ext.rabbitmq.commands import (
    Bind,
    Binding,
    Command,
    Declared,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DescribeQueue,
    FindBinding,
    PurgeQueue,
    QueueState,
    Removed,
    RenewToken,
    Unbind,
)
from amqp_ext.rabbitmq.exchanges import ExchangeError, ExchangeKind
from amqp_ext.rabbitmq.queue_arguments import ArgumentError, QueueArguments, read_queue_arguments
from amqp_ext.request_nodes import (
    INVALID,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    Request,
    RequestError,
    message,
    value_of,
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

_NULL_BODY: Final = b"\x00\x53\x77\x40"
"""An amqp-value of null. The Python client has it in front of the properties where a request has no body."""


class _BadRequest(ValueError):
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
        """
        Read one message.

        Raises:
            CodecError: It is no AMQP message.
            RequestError: It is, and no request of this node's.
        """
        content = content.removeprefix(_NULL_BODY) or content
        sections.validate(content)
        properties = sections.properties(content)
        unread = Request(None, properties.message_id, properties.reply_to)
        try:
            command = _command(properties.subject or "", properties.to or "", value_of(content))
        except _BadRequest as bad:
            raise RequestError(unread, bad.condition, str(bad)) from None
        except ExchangeError as error:
            raise RequestError(unread, error.condition, str(error)) from None
        except (AddressError, ArgumentError) as error:
            raise RequestError(unread, INVALID, str(error)) from None
        return Request(command, properties.message_id, properties.reply_to)

    def answer(self, request: Request, result: Any) -> bytes:
        """The message that says what came of a request."""
        match result:
            case Declared(queue=queue, is_new=is_new):
                return _response(request, 201 if is_new else 200, self._described(queue))
            case QueueState():
                return _response(request, 200, self._described(result))
            case Removed(messages=messages):
                return _response(request, 200, {"message_count": ULong(messages)})
            case [*bindings]:
                found = [_listed(binding) for binding in bindings]
                return _response(request, 200, found)
            case _:
                return _response(request, 204, None)

    def refuse(self, request: Request, condition: str, text: str) -> bytes:
        """The message that says why a request was not carried out."""
        return _response(request, _STATUS.get(condition, 400), text)

    def _described(self, queue: QueueState) -> dict[str, Any]:
        kind: QueueArguments = queue.arguments
        is_classic = queue.is_exclusive or queue.is_auto_delete
        return {
            "name": queue.name,
            "vhost": queue.vpn,
            "durable": True,
            "auto_delete": queue.is_auto_delete,
            "exclusive": queue.is_exclusive,
            "type": "stream" if kind.is_stream else "classic" if is_classic else "quorum",
            "arguments": kind.to_map() | ({"x-queue-type": "classic"} if is_classic else {}),
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
    path, _, query = target.partition("?")
    parts = [_decoded(part, target) for part in path.split("/")]
    match method, parts:
        case "PUT", ["", "queues", name]:
            return _declaration(check_queue_name(name), body)
        case "GET", ["", "queues", name]:
            return DescribeQueue(name)
        case "DELETE", ["", "queues", name]:
            return DeleteQueue(name)
        case "DELETE", ["", "queues", name, "messages"]:
            return PurgeQueue(name)
        case "PUT", ["", "exchanges", name]:
            return DeclareExchange(_exchange_name(name), _exchange_declaration(body))
        case "DELETE", ["", "exchanges", name]:
            return DeleteExchange(_exchange_name(name))
        case "POST", ["", "bindings"]:
            return Bind(_binding(body))
        case "GET", ["", "bindings"]:
            return FindBinding(_binding_of(query.split("&"), target))
        case "DELETE", ["", "bindings", _]:
            return Unbind(_binding_of(path.rpartition("/")[2].split(";"), target))
        case "PUT", ["", "auth", "tokens"]:
            if not isinstance(body, bytes) or not body:
                raise _BadRequest("a token is binary, and it is not empty")
            return RenewToken(body)
    raise _BadRequest(f"there is no {method!r:.20} of {target!r:.200} at this node", NOT_FOUND)


def _declaration(name: str, body: Any) -> DeclareQueue:
    fields = _fields(body, "a declaration")
    if fields.get("durable", True) is not True:
        raise _BadRequest("a queue is durable here: declare it with durable = true")
    arguments = fields.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise _BadRequest("the arguments of a declaration are a map")
    is_exclusive, is_auto_delete = (fields.get(key, False) for key in ("exclusive", "auto_delete"))
    for key, value in (("exclusive", is_exclusive), ("auto_delete", is_auto_delete)):
        if not isinstance(value, bool):
            raise _BadRequest(f"{key} of a declaration is a boolean, not {value!r:.80}")
        if value and arguments.get("x-queue-type", "classic") != "classic":
            raise _BadRequest(
                f"a queue with {key} = true is a classic one: leave x-queue-type out, or say 'classic'"
            )
    return DeclareQueue(name, read_queue_arguments(arguments), is_exclusive, is_auto_delete)


def _exchange_name(name: str) -> str:
    if not name:
        raise _BadRequest("the default exchange is there without being declared, and stays")
    return name


def _exchange_declaration(body: Any) -> ExchangeKind:
    fields = _fields(body, "a declaration")
    for name, meant in (("durable", True), ("auto_delete", False), ("internal", False)):
        if fields.get(name, meant) is not meant:
            raise _BadRequest(f"an exchange with {name} = {not meant} is not there", NOT_IMPLEMENTED)
    if fields.get("arguments"):
        raise _BadRequest("an exchange has no arguments here; leave them out", NOT_IMPLEMENTED)
    return ExchangeKind.parse(fields.get("type", "direct"))


def _binding(body: Any) -> Binding:
    fields = _fields(body, "a binding")
    if fields.get("arguments"):
        raise _BadRequest("a binding has no arguments here: they are of headers exchanges", NOT_IMPLEMENTED)
    if "destination_queue" not in fields:
        raise _BadRequest("an exchange is bound to queues, not to other exchanges", NOT_IMPLEMENTED)
    found = [fields.get("source"), fields["destination_queue"], fields.get("binding_key", "")]
    if not all(isinstance(part, str) for part in found):
        raise _BadRequest("source, destination_queue and binding_key of a binding are strings")
    return Binding(*found)


def _binding_of(parts: list[str], target: str) -> Binding:
    """A binding as a path or query names it: ``src``, ``dstq`` and ``key``."""
    found = {name: _decoded(value, target) for name, _, value in (part.partition("=") for part in parts)}
    if "dste" in found:
        raise _BadRequest("an exchange is bound to queues, not to other exchanges", NOT_IMPLEMENTED)
    if not found.get("src") or not found.get("dstq"):
        raise _BadRequest(f"{target!r:.200} does not say which binding: it has src, dstq and key")
    if found.get("args"):
        raise _BadRequest("a binding has no arguments here: they are of headers exchanges", NOT_IMPLEMENTED)
    return Binding(found["src"], found["dstq"], found.get("key", ""))


def _fields(body: Any, what: str) -> dict[Any, Any]:
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise _BadRequest(f"the body of {what} is a map")
    return body


def _listed(binding: Binding) -> dict[str, Any]:
    source, queue, key = (quote(part, safe="") for part in (binding.exchange, binding.queue, binding.key))
    return {
        "source": binding.exchange,
        "destination_queue": binding.queue,
        "binding_key": binding.key,
        "arguments": {},
        "location": f"/bindings/src={source};dstq={queue};key={key};args=",
    }


def _decoded(part: str, target: str) -> str:
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise _BadRequest(f"what is percent-encoded in {target!r:.200} is not UTF-8") from None
