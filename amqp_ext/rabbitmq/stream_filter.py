"""
RabbitMQ's stream filter: messages by the value that their publisher put in the annotation ``x-stream-filter-value``.

RabbitMQ looks at it by chunks of messages, with a Bloom filter, and has its clients look at each message again. Here
each message is looked at, so that none comes that was not asked for.

Source: RabbitMQ documentation, "Stream Filtering" and "AMQP 1.0 Filter Expressions".
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from amqp_ext.codec import Symbol
from amqp_ext.message.sections import MessageView

FILTER_VALUE: Final = Symbol("x-stream-filter-value")


def compile_stream_filter(
    values: Collection[str], *, match_unfiltered: bool
) -> Callable[[MessageView], bool]:
    """
    Whether a message has one of these filter values.

    Args:
        match_unfiltered: Whether messages without a filter value pass, too.
    """
    wanted = frozenset(values)

    def matches(view: MessageView) -> bool:
        value = view.message_annotations.get(FILTER_VALUE)
        return match_unfiltered if value is None else isinstance(value, str) and str(value) in wanted

    return matches
