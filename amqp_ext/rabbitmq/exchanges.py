"""
Exchanges, as names in front of topics: what RabbitMQ's routing keys and bindings are here.

Sending to the exchange ``orders`` with the key ``eu.new`` is publishing to the topic ``orders/eu/new``; with an empty
key, to ``orders``. A binding of a queue is a subscription of it, or two:

========  ==================  =================================
exchange  binding key         subscriptions of the queue
========  ==================  =================================
direct    ``eu.new``          ``orders/eu/new``
topic     ``eu.*``            ``orders/eu/*``
topic     ``eu.#``            ``orders/eu`` and ``orders/eu/>``
topic     ``#``               ``orders`` and ``orders/>``
fanout    any                 ``orders`` and ``orders/>``
========  ==================  =================================

Words are percent-encoded where a character of theirs means something in a topic; an empty word is a lone ``%``. A ``#``
that is not a key's last word has no subscription that says the same, and is refused, as headers exchanges are.
"""

from __future__ import annotations

import enum
import re
from typing import Final

from amqp_ext.request_nodes import INVALID, NOT_IMPLEMENTED
from amqp_ext.topics import TopicPattern, TopicSyntaxError

_MEANINGFUL: Final = re.compile(r"[%/*>]|^[!#]")
_EMPTY_WORD: Final = "%"


class ExchangeError(ValueError):
    """An exchange, key or binding that has no meaning here: its text is a sentence, ``condition`` AMQP's for it."""

    def __init__(self, text: str, condition: str = INVALID) -> None:
        super().__init__(text)
        self.condition = condition


class ExchangeKind(enum.Enum):
    """How an exchange looks at routing keys."""

    DIRECT = "direct"
    TOPIC = "topic"
    FANOUT = "fanout"

    @classmethod
    def parse(cls, text: object) -> ExchangeKind:
        """
        Raises:
            ExchangeError: It is no kind, or one that is not there.
        """
        try:
            return cls(text)
        except ValueError:
            raise ExchangeError(
                f"an exchange is direct, topic or fanout here, not {text!r:.80}", NOT_IMPLEMENTED
            ) from None


PREDECLARED: Final = {f"amq.{kind.value}": kind for kind in ExchangeKind}
"""Exchanges that are always there."""


def topic_of(exchange: str, key: str) -> str:
    """
    The topic that a message goes to.

    Raises:
        ExchangeError: The default exchange, which is no name.
    """
    if not exchange:
        raise ExchangeError("the default exchange has no address: send to '/queues/' and the queue's name")
    return "/".join([_word(exchange), *(map(_word, key.split(".")) if key else ())])


def subscriptions_of(kind: ExchangeKind, exchange: str, key: str) -> tuple[str, ...]:
    """
    The subscriptions that a binding is.

    Raises:
        ExchangeError: No subscription says the same.
    """
    subscriptions = _subscriptions_of(kind, exchange, key)
    try:
        for subscription in subscriptions:
            TopicPattern.parse(subscription)
    except TopicSyntaxError as error:
        raise ExchangeError(str(error)) from None
    return subscriptions


def _subscriptions_of(kind: ExchangeKind, exchange: str, key: str) -> tuple[str, ...]:
    own = topic_of(exchange, "")
    if kind is ExchangeKind.FANOUT:
        return own, f"{own}/>"
    if kind is ExchangeKind.DIRECT:
        return (topic_of(exchange, key),)
    words = key.split(".") if key else []
    takes_rest = words[-1:] == ["#"]
    if takes_rest:
        words.pop()
    if "#" in words:
        raise ExchangeError(
            f"the binding key {key!r:.200} has a '#' before its end, and no subscription says the same; "
            "bind with '*' for each word, or with '#' at the end"
        )
    pattern = "/".join([own, *(word if word == "*" else _word(word) for word in words)])
    return (pattern, f"{pattern}/>") if takes_rest else (pattern,)


def _word(word: str) -> str:
    return _MEANINGFUL.sub(lambda found: f"%{ord(found[0]):02X}", word) or _EMPTY_WORD
