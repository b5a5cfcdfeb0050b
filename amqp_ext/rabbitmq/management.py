"""
The node ``/management`` of RabbitMQ: requests (HTTP over AMQP 1.0) read into commands, the arguments of a queue's
declaration, and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from amqp_ext.addresses.address import check_queue_name
from amqp_ext.addresses.forms import AddressError
from amqp_ext.codec import Array, UInt, ULong
from amqp_ext.message import sections
from amqp_ext.rabbitmq.forms import NODE_NAME, ExchangeKind
from amqp_ext.request_nodes import (
    NOT_FOUND,
    NOT_IMPLEMENTED,
    BadRequest,
    Request,
    RequestNode,
    message,
    value_of,
)


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Create a queue or stream, or find that it exists as it is described. Results in ``Declared``."""

    name: str
    arguments: QueueArguments
    is_exclusive: bool = False
    """The queue belongs to the connection, and is deleted with it."""
    is_auto_delete: bool = False
    """The queue is deleted with its last consumer."""


@dataclass(frozen=True)
class _OfName:
    """A command about the queue or exchange of this name."""

    name: str


class DescribeQueue(_OfName):
    """Describe a queue. Results in ``QueueState``."""


class PurgeQueue(_OfName):
    """Delete the messages of a queue. Results in ``Removed``."""


class DeleteQueue(_OfName):
    """Delete a queue. Results in ``Removed``, also if there is no such queue, as at RabbitMQ."""


class DeleteExchange(_OfName):
    """Delete an exchange and its bindings. Results in None, also if there is no such exchange."""


@dataclass(frozen=True, slots=True)
class DeclareExchange:
    """Create an exchange of a kind, or find that it has this kind. Results in None."""

    name: str
    kind: ExchangeKind


@dataclass(frozen=True, slots=True)
class Binding:
    """A queue's binding to an exchange."""

    exchange: str
    queue: str
    key: str


@dataclass(frozen=True)
class _OfBinding:
    """A command about this binding."""

    binding: Binding


class Bind(_OfBinding):
    """Create a binding. Results in None, also if the binding exists."""


class Unbind(_OfBinding):
    """Delete a binding. Results in None, also if the binding does not exist."""


class FindBinding(_OfBinding):
    """Find a binding. Results in a list with the binding, or an empty list."""


@dataclass(frozen=True, slots=True)
class RenewToken:
    """A new token of the connection's user, before the last one expires. Results in None."""

    token: bytes = field(repr=False)


Command = DeclareQueue | DeclareExchange | RenewToken | _OfName | _OfBinding


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state of a queue."""

    name: str
    vpn: str
    arguments: QueueArguments
    messages: int
    consumers: int
    is_exclusive: bool = False
    is_auto_delete: bool = False


@dataclass(frozen=True, slots=True)
class Declared:
    """The state of a queue, and whether the declaration created it."""

    queue: QueueState
    is_new: bool


@dataclass(frozen=True, slots=True)
class Removed:
    """How many messages were deleted."""

    messages: int


_WITHOUT_MEANING: Final = frozenset(
    {
        "x-dead-letter-strategy",  # ours is at-least-once: a dead letter moves in one commit
        "x-initial-group-size",
        "x-initial-cluster-size",
        "x-max-in-memory-bytes",
        "x-max-in-memory-length",
        "x-queue-leader-locator",
        "x-queue-master-locator",
        "x-queue-mode",
        "x-queue-version",
        "x-quorum-initial-group-size",
        "x-quorum-target-group-size",
        "x-stream-filter-size-bytes",
        "x-stream-initial-cluster-size",  # as the Go client spells it
        "x-stream-max-segment-size-bytes",
    }
)
_BOUNDS_OF_STREAMS: Final = frozenset({"x-max-age", "x-max-length-bytes"})


class ArgumentError(BadRequest):
    """A declaration that cannot be honoured. The text is a sentence for the requester."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueArguments:
    """
    What a declaration says of a queue; None where it says nothing. Sizes are in bytes, times in milliseconds.

    A field that is a setting of an endpoint has the setting's name.
    """

    is_stream: bool = False
    max_ttl_ms: int | None = None
    quota_messages: int | None = None
    quota_bytes: int | None = None
    dead_message_queue: str | None = None
    max_redelivery: int | None = None
    lock_timeout_ms: int | None = None
    single_active_consumer: bool | None = None
    priorities: bool | None = None
    retry_type: str | None = None
    retry_delay_ms: int | None = None
    retry_max_ms: int | None = None
    retry_factor: int | None = None
    """0, which is linear, if messages are to be retried later."""

    def to_map(self) -> dict[str, Any]:
        """The arguments as RabbitMQ describes a queue with them."""
        found: dict[str, Any] = {"x-queue-type": "stream" if self.is_stream else "quorum"}
        tries_again = self.retry_type not in (None, "disabled")
        for argument in _ARGUMENTS:
            value = getattr(self, argument.setting)
            if value and (tries_again or argument.name not in _OF_RETRIES):
                found[argument.name] = value if argument.told is None else argument.told
        return found


def read_queue_arguments(arguments: Mapping[Any, Any]) -> QueueArguments:
    """
    What the arguments of a declaration mean.

    Raises:
        ArgumentError: An argument has no meaning here that would keep its promise, or has an invalid value.
    """
    kind = arguments.get("x-queue-type", "quorum")
    if kind not in ("quorum", "classic", "stream"):
        raise ArgumentError(f"x-queue-type is quorum, classic or stream, not {kind!r:.80}")
    is_stream = kind == "stream"
    fields: dict[str, Any] = {}
    for name, value in arguments.items():
        if name == "x-queue-type" or name in _WITHOUT_MEANING or (is_stream and name in _BOUNDS_OF_STREAMS):
            continue
        argument = _BY_NAME.get(name)
        if argument is None and name not in _ONLY:
            raise ArgumentError(f"the argument {name!r:.80} has no meaning here; leave it out")
        if is_stream:
            raise ArgumentError(f"the argument {name} is for queues, not for streams; leave it out")
        if name in _ONLY:
            _check_only(name, value)
        elif argument is not None:
            fields[argument.setting] = argument.read(name, value)
    if "dead_message_queue" not in fields and "x-dead-letter-exchange" in arguments:
        raise ArgumentError(
            "x-dead-letter-exchange without an x-dead-letter-routing-key would send dead letters back to "
            "their queue; name the queue that is to get them"
        )
    if fields.get("retry_type", "disabled") != "disabled":
        _complete_retries(fields)
    return QueueArguments(is_stream=is_stream, **fields)


def _complete_retries(fields: dict[str, Any]) -> None:
    """Complete the fields as RabbitMQ does for a queue whose messages are to be retried later."""
    least = fields.get("retry_delay_ms")
    if least is None:
        raise ArgumentError(
            "x-delayed-retry-type needs x-delayed-retry-min, the milliseconds of the first delay"
        )
    most = fields.setdefault("retry_max_ms", least)
    if most < least:
        raise ArgumentError(f"x-delayed-retry-max ({most}) is less than x-delayed-retry-min ({least})")
    fields["retry_factor"] = 0


def _positive(name: str, value: Any) -> int:
    return _whole(name, value, 1)


def _whole(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 2**40:
        raise ArgumentError(f"{name} is a whole number from {least} to 2^40, not {value!r:.80}")
    return int(value)


def _is_above_zero(name: str, value: Any) -> bool:
    return _whole(name, value, 0) > 0


def _queue(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ArgumentError(f"{name} is the name of a queue, not {value!r:.80}")
    return str(value)


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} is a boolean, not {value!r:.80}")
    return value


def _retry_type(name: str, value: Any) -> str:
    if value not in ("disabled", "failed", "returned", "all"):
        raise ArgumentError(f"{name} is disabled, failed, returned or all, not {value!r:.80}")
    return str(value)


def _check_only(name: str, value: Any) -> None:
    allowed, sentence = _ONLY[name]
    if value != allowed:
        raise ArgumentError(sentence.format(value=f"{value!r:.80}"))


class _Argument(NamedTuple):
    """An argument that stands for a setting."""

    name: str
    setting: str
    """Field of ``QueueArguments``."""
    read: Callable[[str, Any], Any]
    """Gives the setting's value from the argument's name and value; raises ``ArgumentError``."""
    told: Any = None
    """The argument's value in a description, if the setting has a value; None for the setting's own value."""


_ONLY: Final[Mapping[str, tuple[str, str]]] = {
    "x-overflow": (
        "reject-publish",
        "x-overflow {value} is not supported: a full queue rejects new messages, which is 'reject-publish'",
    ),
    "x-dead-letter-exchange": (
        "",
        "dead letters go to a queue: x-dead-letter-exchange is '' and x-dead-letter-routing-key the queue's name, "
        "not the exchange {value}",
    ),
}
"""Arguments with one allowed value, which says what holds anyway; and the sentence for any other value."""

_ARGUMENTS: Final = (
    _Argument("x-message-ttl", "max_ttl_ms", _positive),
    _Argument("x-max-length", "quota_messages", _positive),
    _Argument("x-max-length-bytes", "quota_bytes", _positive),
    _Argument("x-dead-letter-routing-key", "dead_message_queue", _queue),
    _Argument("x-delivery-limit", "max_redelivery", _positive),
    _Argument("x-consumer-timeout", "lock_timeout_ms", _positive),
    _Argument("x-single-active-consumer", "single_active_consumer", _boolean),
    _Argument("x-dead-letter-exchange", "dead_message_queue", _queue, told=""),
    _Argument("x-max-priority", "priorities", _is_above_zero, told=9),
    _Argument("x-delayed-retry-type", "retry_type", _retry_type),
    _Argument("x-delayed-retry-min", "retry_delay_ms", _positive),
    _Argument("x-delayed-retry-max", "retry_max_ms", _positive),
)
"""The arguments, in the order of a description."""

_OF_RETRIES: Final = frozenset({"x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max"})

_BY_NAME: Final = {
    **{argument.name: argument for argument in _ARGUMENTS},
    # As the Python client spells it.
    "x-deliver-limit": _Argument("x-deliver-limit", "max_redelivery", _positive),
}


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
"""An amqp-value of null. The Python client puts it before the properties of a request without a body."""


class ManagementNode(RequestNode):
    """The node ``/management``."""

    def read(self, content: bytes) -> Request:
        """Read one message, without the null that may precede its properties."""
        return super().read(content.removeprefix(_NULL_BODY) or content)

    def command(self, properties: sections.Properties, content: bytes) -> Command:
        """The command that a message asks for by its subject (HTTP's method), address and body."""
        try:
            return _command(properties.subject or "", properties.to or "", value_of(content))
        except AddressError as error:
            raise BadRequest(str(error)) from None

    def answer(self, request: Request, result: Any) -> bytes:
        """The message with the result of a request."""
        match result:
            case Declared(queue=queue, is_new=is_new):
                return _response(request, 201 if is_new else 200, _described(queue))
            case QueueState():
                return _response(request, 200, _described(result))
            case Removed(messages=messages):
                return _response(request, 200, {"message_count": ULong(messages)})
            case [*bindings]:
                return _response(request, 200, list(map(_listed, bindings)))
            case _:
                return _response(request, 204, None)

    def refuse(self, request: Request, condition: str, text: str) -> bytes:
        """The message that says why a request was not carried out."""
        return _response(request, _STATUS.get(condition, 400), text)


def _described(queue: QueueState) -> dict[str, Any]:
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
        "leader": NODE_NAME,
        "replicas": Array([NODE_NAME], _STRING),
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
                raise BadRequest("a token is binary, and must not be empty")
            return RenewToken(body)
    raise BadRequest(f"this node has no operation {method!r:.20} of {target!r:.200}", NOT_FOUND)


def _declaration(name: str, body: Any) -> DeclareQueue:
    fields = _fields(body, "a declaration")
    if fields.get("durable", True) is not True:
        raise BadRequest("a queue is durable here: declare it with durable = true")
    arguments = fields.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise BadRequest("the arguments of a declaration are a map")
    is_exclusive, is_auto_delete = (fields.get(key, False) for key in ("exclusive", "auto_delete"))
    for key, value in (("exclusive", is_exclusive), ("auto_delete", is_auto_delete)):
        if not isinstance(value, bool):
            raise BadRequest(f"{key} of a declaration is a boolean, not {value!r:.80}")
        if value and arguments.get("x-queue-type", "classic") != "classic":
            raise BadRequest(
                f"a queue with {key} = true is a classic one: leave x-queue-type out, or say 'classic'"
            )
    return DeclareQueue(name, read_queue_arguments(arguments), is_exclusive, is_auto_delete)


def _exchange_name(name: str) -> str:
    if not name:
        raise BadRequest("the default exchange always exists: it is neither declared nor deleted")
    return name


def _exchange_declaration(body: Any) -> ExchangeKind:
    fields = _fields(body, "a declaration")
    for name, meant in (("durable", True), ("auto_delete", False), ("internal", False)):
        if fields.get(name, meant) is not meant:
            raise BadRequest(f"an exchange with {name} = {not meant} is not supported", NOT_IMPLEMENTED)
    if fields.get("arguments"):
        raise BadRequest("an exchange has no arguments here; leave them out", NOT_IMPLEMENTED)
    return ExchangeKind.parse(fields.get("type", "direct"))


def _binding(body: Any) -> Binding:
    fields = _fields(body, "a binding")
    if fields.get("arguments"):
        raise BadRequest("a binding has no arguments here: they are for headers exchanges", NOT_IMPLEMENTED)
    if "destination_queue" not in fields:
        raise BadRequest("an exchange is bound to queues, not to other exchanges", NOT_IMPLEMENTED)
    found = [fields.get("source"), fields["destination_queue"], fields.get("binding_key", "")]
    if not all(isinstance(part, str) for part in found):
        raise BadRequest("source, destination_queue and binding_key of a binding are strings")
    return Binding(*found)


def _binding_of(parts: list[str], target: str) -> Binding:
    """A binding as a path or query names it: ``src``, ``dstq`` and ``key``."""
    found = {name: _decoded(value, target) for name, _, value in (part.partition("=") for part in parts)}
    if "dste" in found:
        raise BadRequest("an exchange is bound to queues, not to other exchanges", NOT_IMPLEMENTED)
    if not found.get("src") or not found.get("dstq"):
        raise BadRequest(f"{target!r:.200} does not say which binding: it needs src, dstq and key")
    if found.get("args"):
        raise BadRequest("a binding has no arguments here: they are for headers exchanges", NOT_IMPLEMENTED)
    return Binding(found["src"], found["dstq"], found.get("key", ""))


def _fields(body: Any, what: str) -> dict[Any, Any]:
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise BadRequest(f"the body of {what} is a map")
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
        raise BadRequest(f"the percent-encoded bytes in {target!r:.200} are not UTF-8") from None
