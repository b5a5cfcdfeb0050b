"""
The filters of RabbitMQ's stream clients: where to start, and which messages.

RabbitMQ looks at the value that a publisher put in the annotation ``x-stream-filter-value`` by chunks of messages, with
a Bloom filter, and has its clients look at each message again. Here each message is looked at, so that none comes that
was not asked for.

Source: RabbitMQ documentation, "Streams", "Stream Filtering" and "AMQP 1.0 Filter Expressions".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from amqp_ext.codec import Symbol
from amqp_ext.filters.forms import FilterError, FilterForms, FilterValues, MessageTest
from amqp_ext.message.sections import MessageView
from amqp_ext.rabbitmq.stream_offset import from_stream_offset_spec
from amqp_ext.replay_start import ReplayStart
from amqp_ext.replay_start.fields import is_text, shown

STREAM_OFFSET_SPEC: Final = Symbol("rabbitmq:stream-offset-spec")
STREAM_FILTER: Final = Symbol("rabbitmq:stream-filter")
STREAM_MATCH_UNFILTERED: Final = Symbol("rabbitmq:stream-match-unfiltered")

FILTER_VALUE: Final = Symbol("x-stream-filter-value")
"""The annotation that a message's filter value is in."""


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """
    Messages with one of some filter values.

    Attributes:
        values: Those that pass.
        match_unfiltered: Whether messages without a filter value pass, too.
    """

    values: tuple[str, ...]
    match_unfiltered: bool = False

    def compile(self) -> MessageTest:
        """Whether a message passes."""
        wanted, match_unfiltered = frozenset(self.values), self.match_unfiltered

        def matches(view: MessageView) -> bool:
            value = view.message_annotations.get(FILTER_VALUE)
            return match_unfiltered if value is None else isinstance(value, str) and str(value) in wanted

        return matches


def _read_start(values: FilterValues) -> ReplayStart | None:
    return from_stream_offset_spec(values[STREAM_OFFSET_SPEC]) if STREAM_OFFSET_SPEC in values else None


def _read_filter(values: FilterValues) -> StreamFilter | None:
    wanted = _read_values(values)
    match_unfiltered = values.get(STREAM_MATCH_UNFILTERED)
    if STREAM_MATCH_UNFILTERED in values and not isinstance(match_unfiltered, bool):
        raise FilterError(STREAM_MATCH_UNFILTERED, f"is a boolean, not {shown(match_unfiltered)}.")
    return None if wanted is None else StreamFilter(wanted, bool(match_unfiltered))


def _read_values(values: FilterValues) -> tuple[str, ...] | None:
    if STREAM_FILTER not in values:
        return None
    value = values[STREAM_FILTER]
    if is_text(value):
        return (str(value),)
    if isinstance(value, list) and all(map(is_text, value)):
        return tuple(map(str, value))
    raise FilterError(STREAM_FILTER, f"is a string or a list of strings, not {shown(value)}.")


STREAM_FILTERS: Final = FilterForms(
    names=frozenset({STREAM_OFFSET_SPEC, STREAM_FILTER, STREAM_MATCH_UNFILTERED}),
    start_names=frozenset({STREAM_OFFSET_SPEC}),
    read_start=_read_start,
    read_filter=_read_filter,
    want_stream_offset=True,
)
