"""Topics, replay ids and lifetime policies."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from amqp_ext import codec
from amqp_ext.codec import Described, Symbol, ULong
from amqp_ext.replay_id import MAX_FIELD, ReplayId, ReplayIdError, format_replay_id, parse_replay_id
from amqp_ext.terminus_fields import Lifetime, LifetimeError, read_lifetime
from amqp_ext.topics import (
    MAX_TOPIC_BYTES,
    MAX_TOPIC_LEVELS,
    REMEMBERED_TOPICS,
    SubscriptionTrie,
    TopicFilter,
    TopicPattern,
    TopicSyntaxError,
    check_topic,
    is_reserved,
)

# --- Topic patterns, filters and the subscription trie ----------------------------------------------------------------

# A small alphabet, so that patterns and topics meet often; every special character is in it.
_pieces = st.text(alphabet="ab*>!#", max_size=3)
_topics = st.lists(_pieces, min_size=1, max_size=4).map("/".join).filter(bool)
_pattern_pieces = st.one_of(_pieces.filter(bool), st.sampled_from(["*", "a*", "ab*", ">", "a", "#queue"]))
_pattern_texts = (
    st.tuples(st.sampled_from(["", "", "!"]), st.lists(_pattern_pieces, min_size=1, max_size=4).map("/".join))
    .map("".join)
    .filter(lambda text: not text.startswith("!/") and text != "!")
)
_patterns = _pattern_texts.map(TopicPattern.parse)


def pattern(text: str) -> TopicPattern:
    return TopicPattern.parse(text)


@pytest.mark.parametrize(
    ("text", "matching", "other"),
    [
        ("a/b/c", ["a/b/c"], ["a/b", "a/b/c/d", "A/b/c", "a/b/c/"]),
        (
            "animals/domestic/*",
            ["animals/domestic/cats"],
            ["animals/domestic/dogs/beagles", "animals/domestic"],
        ),
        ("animals/*/cats/*", ["animals/domestic/cats/persian"], ["animals/domestic/cats/persian/grey"]),
        (
            "animals/red*/wild",
            ["animals/red/wild", "animals/reddish/wild"],
            ["animals/re/wild", "animals/red/x/wild"],
        ),
        (
            "animals/domestic/>",
            ["animals/domestic/cats", "animals/domestic/a/b/c"],
            ["animals/domestic", "animals"],
        ),
        (">", ["a", "a/b", "/", "#queue/orders"], []),
        ("*", ["a", "*"], ["a/b"]),
        ("animals/*bro", ["animals/*bro"], ["animals/xbro", "animals/bro"]),
        ("animals/br*wn", ["animals/br*wn"], ["animals/brown"]),
        ("a/>/c", ["a/>/c"], ["a/b/c"]),
        ("a/b>", ["a/b>"], ["a/bc", "a/b/c"]),
        ("a/**", ["a/*", "a/*x"], ["a/x"]),
        ("#queue/orders", ["#queue/orders"], ["#queue/orders2", "queue/orders"]),
        ("a/*/c", ["a//c"], ["a/c"]),
        ("a/>", ["a/"], ["a"]),
        ("a/b*/>", ["a/b/c", "a/bx/c/d"], ["a/b", "a/x/c"]),
        ("a\nb/*", ["a\nb/x\ny"], ["a"]),
    ],
)
def test_matching_follows_the_examples_of_solace(text: str, matching: list[str], other: list[str]) -> None:
    """Each wildcard matches what Solace's pages say it matches, and nothing else."""
    read = pattern(text)
    assert [topic for topic in matching if not read.matches(topic)] == []
    assert [topic for topic in other if read.matches(topic)] == []


def test_a_leading_exclamation_mark_makes_an_exception_of_the_rest() -> None:
    """``!a/*`` is an exception, and it excepts what ``a/*`` matches; elsewhere ``!`` is a character."""
    assert pattern("!a/*").is_exception
    assert pattern("!a/*").matches("a/b")
    assert not pattern("a/!b").is_exception
    assert pattern("!!a").matches("!a")


@pytest.mark.parametrize(
    ("text", "position", "word"),
    [
        ("", 0, "at least one character"),
        ("!", 1, "after the '!'"),
        ("/a", 0, "empty level"),
        ("a//b", 2, "empty level"),
        ("a/", 2, "empty level"),
        ("!a//b", 3, "empty level"),
        ("a//>", 2, "empty level"),
        ("a\0", 1, "NUL"),
        ("a\ud800", 1, "Unicode"),
        ("x" * (MAX_TOPIC_BYTES + 1), MAX_TOPIC_BYTES + 1, "251"),
        ("é" * 126, 126, "252"),
        ("/".join("a" * 126), 251, "251"),
    ],
)
def test_a_bad_pattern_is_refused_where_it_is_bad(text: str, position: int, word: str) -> None:
    """Every refusal says what is wrong and at which character."""
    with pytest.raises(TopicSyntaxError, match=word) as caught:
        TopicPattern.parse(text)
    assert caught.value.position == position


def test_the_limits_themselves_are_allowed() -> None:
    """250 bytes and 128 levels pass; one level more is refused, as is no topic at all."""
    assert pattern("x" * MAX_TOPIC_BYTES).matches("x" * MAX_TOPIC_BYTES)
    assert check_topic("/" * (MAX_TOPIC_LEVELS - 1)).count("/") == MAX_TOPIC_LEVELS - 1
    with pytest.raises(TopicSyntaxError, match="at most 128 levels; this one has 129"):
        check_topic("/" * MAX_TOPIC_LEVELS)
    with pytest.raises(TopicSyntaxError, match="at least one character"):
        check_topic("")


def test_a_published_topic_may_hold_wildcard_characters_and_empty_levels() -> None:
    """In a topic ``*``, ``>``, ``!`` and empty levels are plain characters."""
    for topic in ("a/*/>", "!a", "/a//b/", ">"):
        assert check_topic(topic) == topic
    assert not pattern("a/b").matches("a/*")
    assert pattern("a/*").matches("a/>")


def test_patterns_are_equal_by_their_text() -> None:
    """Patterns parsed from the same text are equal and have the same hash."""
    assert pattern("a/*") == pattern("a/*")
    assert len({pattern("a"), pattern("a"), pattern("!a")}) == 2
    assert str(pattern("!a/>")) == "!a/>"


def test_exceptions_win_and_alone_match_nothing_unless_all_is_implied() -> None:
    """
    Exceptions win in any order of the patterns. With exceptions only, a queue matches nothing, and a log matches
    everything else; without any pattern, a log matches everything.
    """
    taken = TopicFilter([pattern("!ORDERS/SLCE"), pattern("ORDERS/S*")])
    assert [taken.matches(f"ORDERS/{name}") for name in ("SOL", "SLCE", "A")] == [True, False, False]
    assert not TopicFilter([pattern("!a")]).matches("b")
    assert TopicFilter([pattern("!a")], implicit_all=True).matches("b")
    assert not TopicFilter([pattern("!a")], implicit_all=True).matches("a")
    assert TopicFilter([], implicit_all=True).matches("#queue/orders")
    assert not TopicFilter([pattern("a"), pattern("!b")], implicit_all=True).matches("c")
    assert not TopicFilter([]).matches("a")


def test_wildcards_can_be_kept_out_of_reserved_topics() -> None:
    """With ``reserved=False`` only a pattern that spells the first level out reaches ``#queue/…``."""
    assert is_reserved("#queue/orders") and not is_reserved("a/#queue")
    for text, reaches in [(">", False), ("*/orders", False), ("#queue/*", True), ("#q*/orders", True)]:
        assert TopicFilter([pattern(text)], reserved=False).matches("#queue/orders") is reaches
        assert TopicFilter([pattern(text)]).matches("#queue/orders")
    assert TopicFilter([pattern("a/>")], reserved=False).matches("a/#b")


def test_more_topics_than_are_remembered_still_match() -> None:
    """What a trie remembers is bounded, and forgetting changes no answer."""
    trie: SubscriptionTrie[int] = SubscriptionTrie()
    trie.add(pattern("t/*"), 7)
    for number in range(REMEMBERED_TOPICS + 10):
        assert trie.match(f"t/{number}") == (7,)
    assert len(trie._remembered) <= REMEMBERED_TOPICS


def naive_match(subscriptions: dict[int, set[TopicPattern]], topic: str, reserved: bool) -> tuple[int, ...]:
    """The right result of ``SubscriptionTrie.match``, by matching every pattern."""

    def hits(one: TopicPattern) -> bool:
        hidden = not reserved and is_reserved(topic) and one.starts_with_wildcard
        return one.matches(topic) and not hidden

    return tuple(
        key
        for key, patterns in subscriptions.items()
        if any(hits(one) for one in patterns if not one.is_exception)
        and not any(hits(one) for one in patterns if one.is_exception)
    )


class TrieUnderChange(RuleBasedStateMachine):
    """
    Adds, removes and matches in any order, compared with a dictionary. A match gives each key once, in the order of
    first adds, and a key's exceptions apply to that key only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tries = {reserved: SubscriptionTrie[int](reserved=reserved) for reserved in (True, False)}
        self.subscriptions: dict[int, set[TopicPattern]] = {}

    @rule(one=_patterns, key=st.integers(0, 3))
    def add(self, one: TopicPattern, key: int) -> None:
        for trie in self.tries.values():
            trie.add(one, key)
        self.subscriptions.setdefault(key, set()).add(one)

    @rule(one=_patterns, key=st.integers(0, 3), is_there=st.booleans())
    def remove(self, one: TopicPattern, key: int, is_there: bool) -> None:
        patterns = self.subscriptions.get(key, set())
        if is_there and patterns:
            one = min(patterns, key=str)
        for trie in self.tries.values():
            trie.remove(one, key)
        patterns.discard(one)
        if not patterns:
            self.subscriptions.pop(key, None)

    @rule(key=st.integers(0, 3))
    def remove_all(self, key: int) -> None:
        self.subscriptions.pop(key, None)
        for trie in self.tries.values():
            trie.remove_all(key)

    @rule(topic=_topics)
    def match(self, topic: str) -> None:
        for reserved, trie in self.tries.items():
            assert trie.match(topic) == naive_match(self.subscriptions, topic, reserved)

    @invariant()
    def what_is_asked_again_is_not_what_was_remembered(self) -> None:
        for topic in ("a", "a/b", "#queue/a"):
            self.match(topic)

    @invariant()
    def nothing_is_left_behind(self) -> None:
        if not self.subscriptions:
            assert all(trie._wanted.is_empty and trie._excepted.is_empty for trie in self.tries.values())


TestTrieUnderChange = TrieUnderChange.TestCase


# --- The text form of replay ids --------------------------------------------------------------------------------------

_fields = st.integers(0, MAX_FIELD)


def test_the_digits_are_the_generation_and_then_the_number() -> None:
    """Sixteen digits of generation cut 5-11, then sixteen of the number cut 8-8, all in lower case."""
    text = format_replay_id(0x123456789ABCDEF0, 0xFEDCBA9876543210)
    assert text == "rmid1:12345-6789abcdef0-fedcba98-76543210"
    assert str(ReplayId(1, 2)) == "rmid1:00000-00000000001-00000000-00000002"


@given(generation=_fields, number=_fields)
def test_reading_undoes_writing(generation: int, number: int) -> None:
    """Any id that can be written is read back, in either case of letters."""
    text = format_replay_id(generation, number)
    assert re.fullmatch(r"rmid1:[0-9a-f]{5}-[0-9a-f]{11}-[0-9a-f]{8}-[0-9a-f]{8}", text)
    assert parse_replay_id(text) == ReplayId(generation, number) == parse_replay_id(text.upper())


@given(generation=_fields, numbers=st.tuples(_fields, _fields))
def test_texts_of_one_generation_sort_as_their_messages(generation: int, numbers: tuple[int, int]) -> None:
    """The texts of two ids of one log compare as the ids do."""
    first, second = (format_replay_id(generation, number) for number in numbers)
    assert (first < second) is (numbers[0] < numbers[1])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rmid1:",
        "12345-6789abcdef0-fedcba98-76543210",
        "rmid2:12345-6789abcdef0-fedcba98-76543210",
        "rmid1:12345-6789abcdef0-fedcba98-7654321",
        "rmid1:12345-6789abcdef0-fedcba98-765432100",
        "rmid1:123456-789abcdef0-fedcba98-76543210",
        "rmid1:12345-6789abcdefg-fedcba98-76543210",
        "rmid1:12345-6789abcdef0-fedcba98-76543210\n",
        " rmid1:12345-6789abcdef0-fedcba98-76543210",
        "rmid1:12345-6789abcdef0-fedcba98-7654321\u0663",
    ],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    """A text of another form is refused, with an example of the right form."""
    with pytest.raises(ReplayIdError, match=r"5-11-8-8 .* 'rmid1:00000-00000000001-00000000-00000001'"):
        parse_replay_id(text)


@pytest.mark.parametrize(("generation", "number"), [(-1, 0), (MAX_FIELD + 1, 0), (0, -1), (0, MAX_FIELD + 1)])
def test_numbers_beyond_64_bits_have_no_text(generation: int, number: int) -> None:
    """A part that is negative or too large is refused rather than truncated."""
    with pytest.raises(ReplayIdError, match="unsigned 64-bit integer"):
        format_replay_id(generation, number)


# --- Lifetime policies: how a peer names them, and when each deletes its node -----------------------------------------

KEY = Symbol("lifetime-policy")


@pytest.mark.parametrize("lifetime", Lifetime)
def test_a_policy_is_named_by_code_or_by_symbol(lifetime: Lifetime) -> None:
    """Both descriptors of AMQP 1.0 are understood, in encoded properties with other entries."""
    for descriptor in (ULong(lifetime.code), Symbol(lifetime.symbol)):
        properties = {Symbol("x"): 1, KEY: Described(descriptor, [])}
        assert read_lifetime(codec.decode(codec.encode(properties))[0]) is lifetime


@pytest.mark.parametrize(
    "properties", [None, {}, {Symbol("supported-dist-modes"): Symbol("move")}, {KEY: None}]
)
def test_who_names_none_gets_delete_on_close(properties: Any) -> None:
    """Without a policy a node is deleted with the link that created it."""
    assert read_lifetime(properties) is Lifetime.DELETE_ON_CLOSE


@pytest.mark.parametrize(
    "properties",
    [
        [],
        "amqp:delete-on-close:list",
        {KEY: Symbol("amqp:delete-on-close:list")},
        {KEY: 0x2B},
        {KEY: Described(ULong(0x2A), [])},
        {KEY: Described(ULong(0x2F), [])},
        {KEY: Described(Symbol("delete-on-close"), [])},
        {KEY: Described(Symbol("amqp:delete-on-close:list"), [1])},
        {KEY: Described(ULong(0x2B), "x")},
        {KEY: Described([], [])},
    ],
)
def test_what_is_no_policy_is_an_error(properties: Any) -> None:
    """A wrong type, an unknown descriptor and a list that is not empty are refused, with what would be right."""
    with pytest.raises(
        LifetimeError, match=r"are a map|is an empty list described as one of amqp:delete-on-close"
    ):
        read_lifetime(properties)


@pytest.mark.parametrize(
    ("lifetime", "ends"),
    [
        (Lifetime.DELETE_ON_CLOSE, lambda maker, links, messages: not maker),
        (Lifetime.DELETE_ON_NO_LINKS, lambda maker, links, messages: not links),
        (Lifetime.DELETE_ON_NO_MESSAGES, lambda maker, links, messages: not maker and not messages),
        (Lifetime.DELETE_ON_NO_LINKS_OR_MESSAGES, lambda maker, links, messages: not links and not messages),
    ],
)
def test_when_a_life_is_over(lifetime: Lifetime, ends: Any) -> None:
    """In every combination of links and messages, a node is deleted exactly as sections 3.5.10 to 3.5.13 say."""
    for maker, others, messages in product((False, True), repeat=3):
        links = maker or others
        over = lifetime.is_over(has_maker=maker, has_links=links, has_messages=messages)
        assert over == ends(maker, links, messages)
