"""Patterns of addresses: what they take, and what one pattern says of another."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.addresses.address import AddressKind
from amqp_ext.addresses.forms import AddressError
from amqp_ext.addresses.patterns import AddressPattern
from amqp_ext.topics import TopicFilter, TopicPattern

QUEUE, TOPIC, LOG = AddressKind.QUEUE, AddressKind.TOPIC, AddressKind.LOG

# Enough pieces for every way in which levels of the patterns below can differ: each literal, each prefix alone and
# with something behind it, and a piece that no pattern names.
_TOPIC_PIECES = ["", "a", "ab", "abz", "az", "b", "z", "#", "#a", "#z", ">"]
_TOPICS = ["/".join(pieces) for n in (1, 2, 3) for pieces in product(_TOPIC_PIECES, repeat=n)]
_PATTERN_PIECES = ["*", "a*", "ab*", "#*", "a", "ab", "b", "#a", ">"]
_names = st.lists(st.sampled_from(_PATTERN_PIECES), min_size=1, max_size=2).map("/".join)
_kinds = st.sampled_from([TOPIC, LOG])


def pattern(text: str) -> AddressPattern:
    return AddressPattern.parse(text)


@cache
def taken(kind: AddressKind, names: str) -> frozenset[str]:
    """The topics that a subscription, or a log reader, of these names gets."""
    wanted = TopicFilter([TopicPattern.parse(names)], reserved=kind is LOG)
    return frozenset(topic for topic in _TOPICS if topic and wanted.matches(topic))


@given(_kinds, _names)
def test_a_pattern_takes_what_a_subscription_of_it_gets(kind: AddressKind, names: str) -> None:
    """``matches`` is the routing's own answer, wildcards that do not reach ``#`` names included."""
    rule = pattern(f"{kind.value}://{names}")
    assert {topic for topic in _TOPICS if topic and rule.matches(kind, topic)} == taken(kind, names)


@given(_kinds, _names, _names)
def test_covering_is_to_take_all_that_is_asked_for(kind: AddressKind, names: str, asked: str) -> None:
    """``covers`` holds exactly where no topic of the pattern asked for is left over."""
    rule = pattern(f"{kind.value}://{names}")
    assert rule.covers(kind, TopicPattern.parse(asked)) == (taken(kind, asked) <= taken(kind, names))


@given(_kinds, _names, _names)
def test_touching_is_to_take_some_of_what_is_asked_for(kind: AddressKind, names: str, asked: str) -> None:
    """``touches`` holds exactly where some topic is in both patterns."""
    rule = pattern(f"{kind.value}://{names}")
    assert rule.touches(kind, TopicPattern.parse(asked)) == bool(taken(kind, asked) & taken(kind, names))


@pytest.mark.parametrize(
    ("text", "kind", "yes", "no"),
    [
        ("queue://orders*", QUEUE, ["orders", "orders-eu"], ["orders/eu", "my-orders"]),
        ("queue://eu/>", QUEUE, ["eu/orders", "eu/a/b"], ["eu", "us/orders"]),
        ("queue://>", QUEUE, ["a", "a/b"], ["#P2P/QTMP/x"]),
        ("queue://#P2P/>", QUEUE, ["#P2P/QTMP/x"], ["P2P/QTMP/x"]),
        ("topic://a/*", TOPIC, ["a/b", "a/*", "a/>"], ["a", "a/b/c"]),
        ("!topic://a", TOPIC, ["a"], ["b"]),
    ],
)
def test_names(text: str, kind: AddressKind, yes: list[str], no: list[str]) -> None:
    """Queues and topics are matched by the same wildcards, which are plain characters in the name itself."""
    rule = pattern(text)
    assert [name for name in yes + no if rule.matches(kind, name)] == yes


def test_a_pattern_is_about_one_kind() -> None:
    """What is said of topics says nothing of queues or of the log."""
    rule, asked = pattern("topic://>"), TopicPattern.parse("a/b")
    assert rule.matches(TOPIC, "a/b") and rule.covers(TOPIC, asked) and rule.touches(TOPIC, asked)
    for kind in (QUEUE, LOG):
        assert not (rule.matches(kind, "a/b") or rule.covers(kind, asked) or rule.touches(kind, asked))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "orders",
            "'orders' does not say of what it is a pattern; write it as one of `queue://…`, `topic://…`",
        ),
        ("flights/>", "'flights/>' does not say"),
        ("dsub://a", "'dsub://a' does not say"),
        ("", "'' does not say"),
        ("queue://", "'queue://' is no pattern: '': a subscription needs at least one character"),
        ("topic://a//b", "'topic://a//b' is no pattern: 'a//b': a subscription cannot have an empty level"),
        ("topic://!a/b", "'topic://!a/b' has its '!' inside; an exception is written as `!topic://a/b`"),
        ("!!topic://a", "'!!topic://a' does not say"),
        ("queue://a?create=never", "'queue://a?create=never' has a '?'"),
    ],
)
def test_a_text_that_is_no_pattern_is_explained(text: str, sentence: str) -> None:
    """An error quotes the text and says what would be right."""
    with pytest.raises(AddressError) as error:
        pattern(text)
    assert str(error.value).startswith(sentence)


def test_an_exception_says_that_it_is_one() -> None:
    """The ``!`` is kept apart from what it excepts, and both are in the text that the log shows."""
    rule = pattern("!log://a/>")
    assert rule.is_exception and rule.names.text == "a/>" and str(rule) == "!log://a/>"
    assert not pattern("log://a/>").is_exception
