"""Exchanges, keys and bindings as topics and subscriptions."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.rabbitmq.forms import ExchangeError, ExchangeKind, subscriptions_of, topic_of
from amqp_ext.topics import TopicPattern, check_topic

WORDS = st.sampled_from(["a", "b", "", "a/b", "*x", ">", "x*", "%41", "!", "ü"])
KEYS = st.lists(WORDS, max_size=4).map(".".join)


def is_bound(kind: ExchangeKind, binding_key: str, key: str) -> bool:
    """Whether a message with this key comes to a queue bound with that key."""
    topic = topic_of("e", key)
    return any(TopicPattern.parse(s).matches(topic) for s in subscriptions_of(kind, "e", binding_key))


def amqp_091(binding_key: str, key: str) -> bool:
    """A topic exchange as AMQP 0-9-1 describes it: ``*`` is one word, ``#`` zero or more."""
    patterns = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}
    words = binding_key.split(".") if binding_key else []
    expression = "".join(patterns.get(word, re.escape(f".{word}")) for word in words)
    return re.fullmatch(expression, f".{key}" if key else "") is not None


@given(KEYS, st.lists(st.one_of(WORDS, st.just("*")), max_size=4), st.booleans())
def test_a_topic_exchange_matches_as_in_amqp_091(key: str, words: list[str], rest: bool) -> None:
    """A binding's subscriptions match a key's topic where a topic exchange would route it."""
    binding_key = ".".join([*words, "#"] if rest else words)
    assert is_bound(ExchangeKind.TOPIC, binding_key, key) == amqp_091(binding_key, key)


@given(KEYS, KEYS)
def test_a_direct_exchange_compares_keys(binding_key: str, key: str) -> None:
    """Two keys have one topic only if they are one key, whatever characters are in them."""
    assert is_bound(ExchangeKind.DIRECT, binding_key, key) == (binding_key == key)


@given(KEYS, KEYS)
def test_a_fanout_exchange_takes_every_key(binding_key: str, key: str) -> None:
    """Every message of a fanout exchange comes, whatever its key and that of the binding."""
    assert is_bound(ExchangeKind.FANOUT, binding_key, key)


@given(st.text(min_size=1, max_size=20).filter(lambda name: "\0" not in name), KEYS)
def test_exchanges_stay_apart(exchange: str, key: str) -> None:
    """A name of an exchange is one level: none is another's with a key, and none begins with a ``#`` or ``!``."""
    topic = check_topic(topic_of(exchange, key))
    assert topic.split("/")[0] == topic_of(exchange, "")
    assert topic[0] not in "#!"


@pytest.mark.parametrize("key", ["#.new", "a.#.b", "#.#"])
def test_a_rest_before_the_end_is_refused(key: str) -> None:
    """No subscription says what a ``#`` before the last word says."""
    with pytest.raises(ExchangeError, match="before its end"):
        subscriptions_of(ExchangeKind.TOPIC, "e", key)


@pytest.mark.parametrize("kind", ["headers", "x-random", 5, None])
def test_kinds_that_are_not_there_are_refused(kind: object) -> None:
    """A headers exchange, or one of a plugin, is named in the refusal."""
    with pytest.raises(ExchangeError, match="direct, topic or fanout") as refused:
        ExchangeKind.parse(kind)
    assert refused.value.condition == "amqp:not-implemented"


def test_a_key_that_is_no_topic_is_refused() -> None:
    """A key that is longer than a topic may be has no subscription."""
    with pytest.raises(ExchangeError, match="at most"):
        subscriptions_of(ExchangeKind.DIRECT, "e", ".".join("x" * 200))
