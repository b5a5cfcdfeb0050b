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
from typing import Any, Final

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
    """What a declaration says of a queue; None where it says nothing. Sizes in bytes, times in milliseconds."""

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
        for name, value in (
            ("x-message-ttl", self.max_ttl_ms),
            ("x-max-length", self.quota_messages),
            ("x-max-length-bytes", self.quota_bytes),
            ("x-dead-letter-routing-key", self.dead_message_queue),
            ("x-delivery-limit", self.max_redelivery),
            ("x-single-active-consumer", self.single_active_consumer),
        ):
            if value:
                found[name] = value
        if self.dead_message_queue:
            found["x-dead-letter-exchange"] = ""
        if self.priorities:
            found["x-max-priority"] = 9
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
        read = _READERS.get(name)
        if read is None:
            raise ArgumentError(f"the argument {name!r:.80} has no meaning here; leave it out")
        if is_stream:
            raise ArgumentError(
                f"the argument {name} is of queues, and a stream has none of it; leave it out"
            )
        fields |= read(value)
    if "dead_message_queue" not in fields and "x-dead-letter-exchange" in arguments:
        raise ArgumentError(
            "x-dead-letter-exchange without an x-dead-letter-routing-key would send dead letters back to their queue; "
            "name the queue that they go to"
        )
    return QueueArguments(is_stream=is_stream, **fields)


def _whole(name: str, field: str, least: int = 0) -> Callable[[Any], dict[str, Any]]:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ArgumentError(f"{name} is a whole number of at least {least}, not {value!r:.80}")
        return {field: int(value)}

    return read


def _overflow(value: Any) -> dict[str, Any]:
    if value != "reject-publish":
        raise ArgumentError(
            f"x-overflow {value!r:.80} is not there: a full queue rejects what comes, which is 'reject-publish'"
        )
    return {}


def _dead_letter_exchange(value: Any) -> dict[str, Any]:
    if value != "":
        raise ArgumentError(
            f"dead letters go to a queue: x-dead-letter-exchange is '' and x-dead-letter-routing-key the queue's name, "
            f"not the exchange {value!r:.80}"
        )
    return {}


def _dead_letter_queue(value: Any) -> dict[str, Any]:
    if not isinstance(value, str) or not value:
        raise ArgumentError(f"x-dead-letter-routing-key is the name of a queue, not {value!r:.80}")
    return {"dead_message_queue": str(value)}


def _single_active_consumer(value: Any) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise ArgumentError(f"x-single-active-consumer is a boolean, not {value!r:.80}")
    return {"single_active_consumer": value}


def _max_priority(value: Any) -> dict[str, Any]:
    return {"priorities": _whole("x-max-priority", "most")(value)["most"] > 0}


_READERS: Final[Mapping[str, Callable[[Any], dict[str, Any]]]] = {
    "x-message-ttl": _whole("x-message-ttl", "max_ttl_ms", 1),
    "x-max-length": _whole("x-max-length", "quota_messages", 1),
    "x-max-length-bytes": _whole("x-max-length-bytes", "quota_bytes", 1),
    "x-overflow": _overflow,
    "x-dead-letter-exchange": _dead_letter_exchange,
    "x-dead-letter-routing-key": _dead_letter_queue,
    "x-delivery-limit": _whole("x-delivery-limit", "max_redelivery", 1),
    "x-deliver-limit": _whole("x-deliver-limit", "max_redelivery", 1),  # as the Python client spells it
    "x-single-active-consumer": _single_active_consumer,
    "x-max-priority": _max_priority,
}
