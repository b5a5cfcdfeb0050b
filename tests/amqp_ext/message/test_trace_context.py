"""The trace that a message belongs to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Symbol
from amqp_ext.message.fields import TraceContext, context_of, may_have_context, parse_context
from amqp_ext.message.sections import bare_offset
from tests.support.messages import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, data, section

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
CONTEXT = TraceContext(int(TRACE, 16), int(SPAN, 16), True)


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        (PARENT, CONTEXT),
        (f"00-{TRACE}-{SPAN}-00", CONTEXT._replace(is_sampled=False)),
        (f"00-{TRACE}-{SPAN}-03", CONTEXT),
        (f"01-{TRACE}-{SPAN}-01-more", CONTEXT),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (PARENT.upper(), None),
        (PARENT[:-1], None),
        (f"{PARENT}\n", None),
        (f"01-{TRACE}-{SPAN}-01-{'x' * 1_000}", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_a_traceparent_is_read_as_the_recommendation_says(
    parent: object, expected: TraceContext | None
) -> None:
    """Ids, the sampled flag, versions to come; anything else is no context."""
    assert parse_context(parent) == expected


@pytest.mark.parametrize(
    ("state", "expected"), [("a=1,b=2", "a=1,b=2"), ("x" * 513, ""), ("a=\n", ""), (5, "")]
)
def test_a_tracestate_is_passed_on_within_bounds(state: object, expected: str) -> None:
    """What is too long, or no text for a header, is left out; the context stays."""
    assert parse_context(PARENT, state) == CONTEXT._replace(state=expected)


@pytest.mark.parametrize("code", [APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS])
def test_it_stands_in_properties_or_annotations(code: int) -> None:
    """In either section, with its state, in front of a body."""
    is_front = code == MESSAGE_ANNOTATIONS
    key = Symbol if is_front else str
    content = section(code, {key("traceparent"): PARENT, key("tracestate"): "a=1"}) + data("x")
    assert may_have_context(content)
    assert context_of(content, bare_offset(content)) == CONTEXT._replace(state="a=1")


def test_most_messages_have_none() -> None:
    """A message without one is told so by its bytes; one whose body speaks of it has none either."""
    assert not may_have_context(data("x" * 10_000 + "traceparent"))
    assert context_of(data("traceparent"), 0) is None


@given(st.binary(max_size=60), st.integers(0, 60))
def test_nothing_that_is_sent_is_an_error(junk: bytes, bare: int) -> None:
    """Whatever bytes stand around the name: a context, or none."""
    content = junk + b"traceparent" + junk
    context_of(content, min(bare, len(content)))
