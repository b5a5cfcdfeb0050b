"""RabbitMQ's addresses of exchanges."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_ext.addresses.forms import AddressError
from amqp_ext.codec import Symbol, Timestamp
from amqp_ext.message.sections import MessageView, bare_offset
from amqp_ext.rabbitmq.forms import STREAM_OFFSET, StreamFilter, from_stream_offset_spec, topic_of_address
from amqp_ext.replay_start import Missing, ReplayStartError, StartKind
from tests.amqp_ext.replay_start.starts import DAY, HOUR, INTEGERS, NEW_YEAR, RMID, start
from tests.support.messages import annotated, data

# --- RabbitMQ's addresses of exchanges ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "topic"),
    [
        ("/exchanges/orders/eu.new", "orders/eu/new"),
        ("/exchanges/orders", "orders"),
        ("/exchanges/orders/", "orders"),
        ("/exchanges/a%2Fb/c%2Fd", "a%2Fb/c%2Fd"),
        ("/exchanges/amq.topic/x", "amq.topic/x"),
        ("/queues/orders", None),
        ("exchanges/orders", None),
    ],
)
def test_an_address_of_an_exchange_is_a_topic(address: str, topic: str | None) -> None:
    """The parts of the address are percent-decoded, and are levels of the topic."""
    assert topic_of_address(address) == topic


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/exchanges/a/b/c", "too many parts"),
        ("/exchanges/", "default exchange"),
        ("/exchanges//key", "default exchange"),
        ("/exchanges/%ff/key", "not UTF-8"),
    ],
)
def test_a_bad_address_of_an_exchange_is_refused_in_words(address: str, words: str) -> None:
    """What begins like an exchange's address and is none says why."""
    with pytest.raises(AddressError, match=words):
        topic_of_address(address)


# --- RabbitMQ's filter values ---------------------------------------------------------------------------------------

NOTHING = object()


def view(value: Any = NOTHING) -> MessageView:
    """A message with this filter value, or without one."""
    content = data("x") if value is NOTHING else annotated(data("x"), **{"x-stream-filter-value": value})
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


# --- RabbitMQ's offset spec as a start ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "place"),
    [
        ("first", StartKind.BEGINNING, None),
        (Symbol("last"), StartKind.LAST, None),
        ("next", StartKind.LIVE, None),
        ("30s", StartKind.AGO, 30_000),
        ("10m", StartKind.AGO, 600_000),
        ("1h", StartKind.AGO, HOUR),
        ("2D", StartKind.AGO, 2 * DAY),
        ("1M", StartKind.AGO, 30 * DAY),
        ("1Y", StartKind.AGO, 365 * DAY),
        (0, StartKind.OFFSET, 0),
        # Clients encode the same number as any of eight types; all of them are an offset, as in our own filter.
        *[(integer(5), StartKind.OFFSET, 5) for integer in INTEGERS],
        (Timestamp(NEW_YEAR), StartKind.DATE, NEW_YEAR),
    ],
)
def test_rabbitmqs_offset_spec_is_read_and_clamps(value: Any, kind: StartKind, place: int | None) -> None:
    """RabbitMQ's words mean our starts, and a place outside the log is clamped, as its streams do."""
    read = from_stream_offset_spec(value)
    assert read == start(kind, place, missing=Missing.CLAMP)
    assert read.form == STREAM_OFFSET


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            ["foo", "beginning", "", "5", "10x", "FIRST", RMID, True, 1.0, [1], None, {}, b"a"],
            "is not a stream offset: one is first, last, next",
        ),
        ([-1, Timestamp(-1), 2**63, "9999999999999Y"], r"from 0 to|between the years"),
    ],
)
def test_what_is_no_offset_spec_is_refused(values: list[Any], words: str) -> None:
    """RabbitMQ would ignore it, and start at ``next``; places out of bounds are refused likewise."""
    for value in values:
        with pytest.raises(ReplayStartError, match=words):
            from_stream_offset_spec(value)
