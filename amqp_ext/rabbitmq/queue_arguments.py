"""
The arguments of a queue's declaration, and what they mean here.

==========================================  ===========================================================================
argument                                    meaning
==========================================  ===========================================================================
``x-queue-type``                            ``quorum`` and ``classic``: a queue; ``stream``: a stream
``x-message-ttl``                           milliseconds after which messages expire
``x-max-length``, ``x-max-length-bytes``    the queue's quota; a full queue rejects, it drops nothing
``x-overflow``                              ``reject-publish``, which is what a full queue does here
``x-dead-letter-exchange``                  ``""``, the default exchange: dead letters go to a queue
``x-dead-letter-routing-key``               the name of that queue
``x-delivery-limit``, ``x-deliver-limit``   redeliveries after which a message is a dead letter
``x-single-active-consumer``                one consumer at a time, the others wait
``x-max-priority``                          above 0: messages of a higher priority overtake others
of a stream: ``x-max-age``,                 nothing: streams are views of one log, which has its own bounds, and keeps
``x-max-length-bytes``                      messages longer than asked rather than shorter
of a cluster's replicas, of segments        nothing: there is one node and one log
==========================================  ===========================================================================

Everything else would change what happens to messages, and is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

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


class ArgumentError(ValueError):
    """A declaration that cannot be honoured. Its text is a sentence for the one who declares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueArguments:
    """
    What a declaration says of a queue; None where it says nothing. Sizes in bytes, times in milliseconds.

    A field that is a setting of an endpoint is called like it.
    """

    is_stream: bool = False
    max_ttl_ms: int | None = None
    quota_messages: int | None = None
    quota_bytes: int | None = None
    dead_message_queue: str | None = None
    max_redelivery: int | None = None
    single_active_consumer: bool | None = None
    priorities: bool | None = None

    def to_map(self) -> dict[str, Any]:
        """As RabbitMQ says it."""
        found: dict[str, Any] = {"x-queue-type": "stream" if self.is_stream else "quorum"}
        for argument in _ARGUMENTS:
            value = getattr(self, argument.setting)
            if value:
                found[argument.name] = value if argument.told is None else argument.told
        return found


def read_queue_arguments(arguments: Mapping[Any, Any]) -> QueueArguments:
    """
    What the arguments of a declaration mean.

    Raises:
        ArgumentError: One has no meaning here that would keep its promise, or a value that is none.
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
            raise ArgumentError(
                f"the argument {name} is of queues, and a stream has none of it; leave it out"
            )
        if name in _ONLY:
            _check_only(name, value)
        elif argument is not None:
            fields[argument.setting] = argument.read(name, value)
    if "dead_message_queue" not in fields and "x-dead-letter-exchange" in arguments:
        raise ArgumentError(
            "x-dead-letter-exchange without an x-dead-letter-routing-key would send dead letters back to their queue; "
            "name the queue that they go to"
        )
    return QueueArguments(is_stream=is_stream, **fields)


def _positive(name: str, value: Any) -> int:
    return _whole(name, value, 1)


def _whole(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ArgumentError(f"{name} is a whole number of at least {least}, not {value!r:.80}")
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


def _check_only(name: str, value: Any) -> None:
    allowed, sentence = _ONLY[name]
    if value != allowed:
        raise ArgumentError(sentence.format(value=f"{value!r:.80}"))


class _Argument(NamedTuple):
    """An argument that says a setting."""

    name: str
    setting: str
    """Field of ``QueueArguments``."""
    read: Callable[[str, Any], Any]
    """The setting's value, of the argument's name and value; raises ``ArgumentError``."""
    told: Any = None
    """What a description says where the setting is there; None for its value."""


_ONLY: Final[Mapping[str, tuple[str, str]]] = {
    "x-overflow": (
        "reject-publish",
        "x-overflow {value} is not there: a full queue rejects what comes, which is 'reject-publish'",
    ),
    "x-dead-letter-exchange": (
        "",
        "dead letters go to a queue: x-dead-letter-exchange is '' and x-dead-letter-routing-key the queue's name, "
        "not the exchange {value}",
    ),
}
"""Arguments that may have one value, which says what is so anyway, and why not another."""

_ARGUMENTS: Final = (
    _Argument("x-message-ttl", "max_ttl_ms", _positive),
    _Argument("x-max-length", "quota_messages", _positive),
    _Argument("x-max-length-bytes", "quota_bytes", _positive),
    _Argument("x-dead-letter-routing-key", "dead_message_queue", _queue),
    _Argument("x-delivery-limit", "max_redelivery", _positive),
    _Argument("x-single-active-consumer", "single_active_consumer", _boolean),
    _Argument("x-dead-letter-exchange", "dead_message_queue", _queue, told=""),
    _Argument("x-max-priority", "priorities", _is_above_zero, told=9),
)
"""In the order in which a description has them."""

_BY_NAME: Final = {
    **{argument.name: argument for argument in _ARGUMENTS},
    # As the Python client spells it.
    "x-deliver-limit": _Argument("x-deliver-limit", "max_redelivery", _positive),
}
