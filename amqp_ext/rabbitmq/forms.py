"""
What RabbitMQ's clients say on links: addresses (version 2), exchanges as names in front of topics, the filters of
streams, and how a server introduces itself.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, unquote

from amqp_ext.addresses.forms import AddressError, percent_decoded, quoted
from amqp_ext.codec import Symbol, Timestamp
from amqp_ext.filters.forms import FilterError, FilterValues
from amqp_ext.message.sections import MessageView
from amqp_ext.replay_start import (
    MS_PER_DAY,
    UNITS_AGO,
    Missing,
    ReplayStart,
    ReplayStartError,
    StartKind,
    check_ago,
    check_date,
    check_offset,
    is_integer,
    is_text,
    shown,
)
from amqp_ext.request_nodes import NOT_IMPLEMENTED, BadRequest
from amqp_ext.selector.selector import MessageTest
from amqp_ext.topics import TopicPattern, TopicSyntaxError

MANAGEMENT: Final = "/management"
"""The node where queues, exchanges and bindings are declared."""

_QUEUES: Final = "/queues/"
_EXCHANGES: Final = "/exchanges/"


def address_of_queue(name: str) -> str:
    """The address of a queue: its name percent-encoded."""
    return f"{_QUEUES}{quote(name, safe='')}"


def queue_of(path: str) -> str | None:
    """
    The queue that a path stands for; None for any other path.

    Raises:
        AddressError: The encoded name is no text; or the path names an exchange, and there are none here.
    """
    if path.startswith(_QUEUES):
        return percent_decoded(path.removeprefix(_QUEUES), path)
    if path.startswith(_EXCHANGES):
        raise AddressError(
            f"Exchanges are not supported, so {quoted(path)} names nothing; use 'topic://…' instead."
        )
    return None


def topic_of_address(address: str) -> str | None:
    """
    The topic of an address ``/exchanges/EXCHANGE/KEY`` or ``/exchanges/EXCHANGE``; None for any other.

    Raises:
        AddressError: The address begins like one, but is invalid.
    """
    if not address.startswith(_EXCHANGES):
        return None
    parts = address.removeprefix(_EXCHANGES).split("/")
    if len(parts) > 2:
        raise AddressError(
            f"{address!r:.200} has too many parts: write '/exchanges/', the exchange, '/' and the routing "
            "key, each percent-encoded"
        )
    try:
        exchange, *key = (unquote(part, errors="strict") for part in parts)
        return topic_of(exchange, key[0] if key else "")
    except UnicodeDecodeError:
        raise AddressError(f"the percent-encoded bytes in {address!r:.200} are not UTF-8") from None
    except ExchangeError as error:
        raise AddressError(str(error)) from None


_MEANINGFUL: Final = re.compile(r"[%/*>]|^[!#]")
_EMPTY_WORD: Final = "%"


class ExchangeError(BadRequest):
    """An exchange, key or binding that has no meaning here."""


class ExchangeKind(enum.Enum):
    """How an exchange uses routing keys."""

    DIRECT = "direct"
    TOPIC = "topic"
    FANOUT = "fanout"

    @classmethod
    def parse(cls, text: object) -> ExchangeKind:
        """
        Raises:
            ExchangeError: The text is not a kind, or a kind that is not supported.
        """
        try:
            return cls(text)
        except ValueError:
            raise ExchangeError(
                f"an exchange is direct, topic or fanout here, not {text!r:.80}", NOT_IMPLEMENTED
            ) from None


PREDECLARED: Final = {f"amq.{kind.value}": kind for kind in ExchangeKind}
"""Exchanges that always exist."""


def topic_of(exchange: str, key: str) -> str:
    """
    The topic of a message that is sent to an exchange with a routing key.

    Raises:
        ExchangeError: It is the default exchange, which has no name.
    """
    if not exchange:
        raise ExchangeError("the default exchange has no address: send to '/queues/' and the queue's name")
    return "/".join([_word(exchange), *(map(_word, key.split(".")) if key else ())])


def subscriptions_of(kind: ExchangeKind, exchange: str, key: str) -> tuple[str, ...]:
    """
    The subscriptions that stand for a binding.

    Raises:
        ExchangeError: No subscriptions match the same messages.
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
            f"the binding key {key!r:.200} has a '#' before its end, which no subscription can express; bind "
            "with '*' for each word, or with '#' at the end"
        )
    pattern = "/".join([own, *(word if word == "*" else _word(word) for word in words)])
    return (pattern, f"{pattern}/>") if takes_rest else (pattern,)


def _word(word: str) -> str:
    return _MEANINGFUL.sub(lambda found: f"%{ord(found[0]):02X}", word) or _EMPTY_WORD


STREAM_OFFSET_SPEC: Final = Symbol("rabbitmq:stream-offset-spec")
STREAM_FILTER: Final = Symbol("rabbitmq:stream-filter")
STREAM_MATCH_UNFILTERED: Final = Symbol("rabbitmq:stream-match-unfiltered")
FILTERS: Final = (STREAM_OFFSET_SPEC, STREAM_FILTER, STREAM_MATCH_UNFILTERED)

FILTER_VALUE: Final = Symbol("x-stream-filter-value")
"""The annotation that holds a message's filter value."""


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """
    The filter for messages with one of several filter values.

    Attributes:
        values: The filter values that pass.
        match_unfiltered: Whether messages without a filter value pass, too.
    """

    values: tuple[str, ...]
    match_unfiltered: bool = False

    def compile(self) -> MessageTest:
        """The filter's test of a message."""
        wanted, match_unfiltered = frozenset(self.values), self.match_unfiltered

        def matches(view: MessageView) -> bool:
            value = view.message_annotations.get(FILTER_VALUE)
            return match_unfiltered if value is None else isinstance(value, str) and str(value) in wanted

        return matches


def start_of(values: FilterValues) -> ReplayStart | None:
    """The start that the values of a filter-set ask for, or None; raises ``ReplayStartError``."""
    return from_stream_offset_spec(values[STREAM_OFFSET_SPEC]) if STREAM_OFFSET_SPEC in values else None


def stream_filter_of(values: FilterValues) -> StreamFilter | None:
    """The condition on messages in the values of a filter-set, or None; raises ``FilterError``."""
    match_unfiltered = values.get(STREAM_MATCH_UNFILTERED, False)
    if not isinstance(match_unfiltered, bool):
        raise FilterError(STREAM_MATCH_UNFILTERED, f"is a boolean, not {shown(match_unfiltered)}.")
    if STREAM_FILTER not in values:
        return None
    wanted = values[STREAM_FILTER]
    texts = wanted if isinstance(wanted, list) else [wanted]
    if not all(map(is_text, texts)):
        raise FilterError(STREAM_FILTER, f"is a string or a list of strings, not {shown(wanted)}.")
    return StreamFilter(tuple(map(str, texts)), match_unfiltered)


STREAM_OFFSET: Final = "rabbitmq"
"""The name of this form of a start."""

_UNITS: Final = UNITS_AGO | {"M": 30 * MS_PER_DAY, "Y": 365 * MS_PER_DAY}
_INTERVAL: Final = re.compile(r"([0-9]{1,19})([YMDhms])")
_WORDS: Final = {"first": StartKind.BEGINNING, "last": StartKind.LAST, "next": StartKind.LIVE}


def from_stream_offset_spec(value: Any) -> ReplayStart:
    """
    Read the value of the filter ``rabbitmq:stream-offset-spec``.

    ``first``, ``last``, ``next``, an interval ago (``10m``; Y M D h m s, a month has 30 days), an offset, or a
    timestamp. A place that the log does not have is clamped, as at RabbitMQ. An invalid value is refused; RabbitMQ
    silently starts at ``next``.

    Raises:
        ReplayStartError: The value is not a stream offset.
    """
    kind, place = _read_stream_offset(value)
    return ReplayStart(kind, place, missing=Missing.CLAMP, form=STREAM_OFFSET)


def _read_stream_offset(value: Any) -> tuple[StartKind, int | None]:
    if isinstance(value, Timestamp):
        return StartKind.DATE, check_date(value)
    if is_integer(value):
        return StartKind.OFFSET, check_offset(value)
    if is_text(value):
        if value in _WORDS:
            return _WORDS[value], None
        if found := _INTERVAL.fullmatch(value):
            return StartKind.AGO, check_ago(int(found[1]) * _UNITS[found[2]])
    raise ReplayStartError(
        f"{shown(value)} is not a stream offset: one is first, last, next, an interval such as 10m (Y M D h m "
        "s), an integer from 0 or a timestamp."
    )


VERSION: Final = "4.2.0"
"""The version that we announce: the clients ask for 4.0 at least, and for 4.2 where a filter is SQL."""

NODE_NAME: Final = "rewind"
"""The node of a cluster that we announce; the Java client requires one."""

OPEN_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType(
    {"product": "RabbitMQ", "version": VERSION, "node": NODE_NAME}
)
"""Properties of the open frame."""

OFFERED_CAPABILITIES: Final = ("LINK_PAIR_V1_0",)
"""Capabilities of the open frame."""

CONSUMER_PRIORITY: Final = "rabbitmq:priority"
"""The link property that gives a consumer's priority, a whole number; 0 without the property."""

CONSUMER_TIMEOUT: Final = "rabbitmq:consumer-timeout"
"""The link property with the time, in ms, for which a consumer may leave a delivery unsettled: it replaces the queue's.

Source: RabbitMQ 4.3, "Consumer Timeouts"."""

DEFAULT_VHOST: Final = "/"
"""The virtual host that the clients open when their user names none."""
