"""RabbitMQ's filter values."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_ext import codec
from amqp_ext.codec import Described, Symbol, ULong
from amqp_ext.message import sections
from amqp_ext.message.sections import MessageView, bare_offset
from amqp_ext.rabbitmq.forms import StreamFilter

NOTHING = object()


def view(value: Any = NOTHING) -> MessageView:
    """A message with this filter value, or without one."""
    content = codec.encode(Described(ULong(sections.DATA), b"x"))
    if value is not NOTHING:
        annotations = {Symbol("x-stream-filter-value"): value}
        content = codec.encode(Described(ULong(sections.MESSAGE_ANNOTATIONS), annotations)) + content
    return MessageView(content, bare_offset(content))


@pytest.mark.parametrize(
    ("value", "passes", "passes_unfiltered"),
    [
        ("eu", True, True),
        (Symbol("eu"), True, True),
        ("us", False, False),
        (5, False, False),
        (None, False, True),
        (NOTHING, False, True),
    ],
)
def test_messages_pass_by_their_filter_value(value: Any, passes: bool, passes_unfiltered: bool) -> None:
    """One of the values asked for passes; no value passes where that is asked for."""
    values = ("eu", "asia")
    assert StreamFilter(values, match_unfiltered=False).compile()(view(value)) is passes
    assert StreamFilter(values, match_unfiltered=True).compile()(view(value)) is passes_unfiltered
