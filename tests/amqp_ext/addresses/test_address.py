"""Source and target addresses, and patterns of addresses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import product
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.addresses.address import (
    FORBIDDEN_IN_QUEUE_NAMES,
    MAX_QUEUE_NAME,
    OPTIONS,
    Address,
    AddressKind,
    check_queue_name,
    parse_source,
    parse_target,
    queue_of_topic,
    queue_topic,
)
from amqp_ext.addresses.forms import AddressError, PartitionPosition
from amqp_ext.addresses.patterns import AddressPattern
from amqp_ext.topics import TopicFilter, TopicPattern

# --- The grammar of source and target addresses -----------------------------------------------------------------------

QUEUE, TOPIC, LOG = AddressKind.QUEUE, AddressKind.TOPIC, AddressKind.LOG


@pytest.mark.parametrize(
    ("address", "capabilities", "kind", "name"),
    [
        ("orders", [], QUEUE, "orders"),
        ("a/b", [], QUEUE, "a/b"),
        ("queue://orders", [], QUEUE, "orders"),
        ("QUEUE://Orders", [], QUEUE, "Orders"),
        ("/queues/orders", [], QUEUE, "orders"),
        ("/queues/a%2Fb%20c+d", [], QUEUE, "a/b c+d"),
        ("/queues/orders", ["queue"], QUEUE, "orders"),
        ("topic://a/b/c", [], TOPIC, "a/b/c"),
        ("dsub://a/b/c", [], TOPIC, "a/b/c"),
        ("Topic://A/*", [], TOPIC, "A/*"),
        ("a/b", ["topic"], TOPIC, "a/b"),
        ("a/b", ["shared", "topic", "global"], TOPIC, "a/b"),
        ("topic://a/b", ["queue"], QUEUE, "a/b"),
        ("queue://a/b", ["topic"], TOPIC, "a/b"),
        ("log://a/>", [], LOG, "a/>"),
        ("log://!a/>", [], LOG, "!a/>"),
        ("log://a/>", ["queue"], LOG, "a/>"),
        ("log://#queue/orders", [], LOG, "#queue/orders"),
        ("#P2P/QTMP/v:host/5f3c-1", [], QUEUE, "#P2P/QTMP/v:host/5f3c-1"),
        ("#P2P/TTMP/v:host/5f3c-1", [], TOPIC, "#P2P/TTMP/v:host/5f3c-1"),
        ("#P2P/TTMP/v:host/5f3c-1", ["temporary-topic"], TOPIC, "#P2P/TTMP/v:host/5f3c-1"),
        ("x", ["temporary-queue"], QUEUE, "x"),
        ("amqp://localhost:5672/orders", [], QUEUE, "orders"),
        ("amqps://host/topic://a/b", [], TOPIC, "a/b"),
        ("$management", [], AddressKind.REQUEST_NODE, "$management"),
        ("$cbs", [], AddressKind.REQUEST_NODE, "$cbs"),
        ("/management", [], AddressKind.REQUEST_NODE, "/management"),
        ("amqps://host/$management", ["queue"], AddressKind.REQUEST_NODE, "$management"),
    ],
)
def test_each_form_names_its_node(
    address: str, capabilities: list[str], kind: AddressKind, name: str
) -> None:
    """Prefixes, capabilities and bare names mean what users of Solace and RabbitMQ expect."""
    assert parse_source(address, capabilities) == Address(kind, name)


@pytest.mark.parametrize("prefix", ["", "amqps://host/", "amqp://user@host:5672/"])
def test_the_form_of_event_hubs_gives_hub_group_and_partition(prefix: str) -> None:
    """The Python client puts a URL in front and the JavaScript client does not; both read the same."""
    read = parse_source(f"{prefix}flights/ConsumerGroups/$Default/Partitions/0")
    assert read == Address(AddressKind.PARTITION, "flights", {}, PartitionPosition("$Default", "0"))


def test_an_event_hub_is_sent_to_by_name_or_by_its_only_partition() -> None:
    """A producer's address means the queue with the hub's name; partition 0 is the only one."""
    assert parse_target("amqps://host/flights") == Address(QUEUE, "flights")
    assert parse_target("amqps://host/flights/Partitions/0") == Address(QUEUE, "flights")
    with pytest.raises(AddressError, match="one partition here, 0"):
        parse_target("flights/Partitions/1")
    with pytest.raises(AddressError, match="only for receiving"):
        parse_target("flights/ConsumerGroups/$Default/Partitions/0")


def test_a_prefix_or_a_topic_capability_keeps_a_name_from_being_an_event_hub() -> None:
    """Topics and queues may have levels with the words of an event hub's address."""
    name = "plant/ConsumerGroups/a/Partitions/3"
    for parse in (parse_source, parse_target):
        assert parse(f"topic://{name}") == parse(name, ["topic"]) == Address(TOPIC, name)
        assert parse(f"queue://{name}") == Address(QUEUE, name)
    assert parse_target("topic://plant/Partitions/3") == Address(TOPIC, "plant/Partitions/3")
    assert parse_target("queue://plant/Partitions/3") == Address(QUEUE, "plant/Partitions/3")


def test_options_are_decoded_and_a_plus_stays_a_plus() -> None:
    """Values are percent-decoded as in RFC 3986, not as in HTML forms, and may contain ``=``."""
    read = parse_source(
        "orders?replay-start=2026-01-02T03:04:05+02:00&exclusive=wait&until=match:a%3D'b%20%26=c'"
    )
    assert read.name == "orders"
    assert read.options == {
        "replay-start": "2026-01-02T03:04:05+02:00",
        "exclusive": "wait",
        "until": "match:a='b &=c'",
    }


@pytest.mark.parametrize("parse", [parse_source, parse_target])
def test_a_stream_is_a_queue_by_its_kind(parse: Callable[..., Address]) -> None:
    """The capability ``stream`` and the option ``kind=stream`` both make a queue a stream; a log ignores the former."""
    stream = Address(QUEUE, "a", {"kind": "stream"})
    assert (
        parse("a?kind=stream") == parse("a", ["stream"]) == parse("queue://a", ["queue", "stream"]) == stream
    )
    assert parse("topic://a", ["stream"]) == stream, "the capability wins over the prefix"
    assert parse("log://a", ["stream"]) == Address(LOG, "a")
    assert parse("a?kind=queue", ["queue"]).options == {"kind": "queue"}
    for address, capabilities in (
        ("a?kind=queue", ["stream"]),
        ("a?kind=heap", []),
        ("a", ["topic", "stream"]),
    ):
        with pytest.raises(AddressError):
            parse(address, capabilities)


@pytest.mark.parametrize(
    "address",
    ["queue://a?create=never", "log://a/>?create=never", "/queues/a?create=never", "topic://a?create=never"],
)
def test_every_form_takes_options(address: str) -> None:
    """Options belong to the attach, so any form of address may carry them, on a target too."""
    assert parse_source(address).options == {"create": "never"}
    assert parse_target(address).options == {"create": "never"}
    hub = parse_source("h/ConsumerGroups/c/Partitions/0?replay-start=beginning")
    assert hub.options == {"replay-start": "beginning"}


@pytest.mark.parametrize("option", ["exclusive=wait", "epoch=3", "kind=stream"])
@pytest.mark.parametrize(
    ("scheme", "parse"), [("topic", parse_source), ("topic", parse_target), ("log", parse_source)]
)
def test_what_makes_a_queue_special_is_refused_elsewhere(
    scheme: str, parse: Callable[[str], Address], option: str
) -> None:
    """The options of queues are refused on topics and logs, where they would have no effect."""
    with pytest.raises(AddressError, match=f"for queues, and this address names a {scheme}"):
        parse(f"{scheme}://a/b?{option}")


def test_a_target_topic_may_hold_what_a_subscription_may_not() -> None:
    """A publisher's topic may have empty levels and begin with ``!``; a subscription with them is refused."""
    assert parse_target("topic:///a//b").name == "/a//b"
    assert parse_target("topic://!a").name == "!a"
    with pytest.raises(AddressError, match="empty level"):
        parse_source("topic:///a//b")
    with pytest.raises(AddressError, match="matches nothing"):
        parse_source("topic://!a")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("", "names no node"),
        ("?create=never", "names no node"),
        ("amqp://host", "names no node"),
        ("amqp://host/", "names no node"),
        ("queue://", "name is empty"),
        ("topic://", "at least one character"),
        ("log://", "at least one character"),
        ("/queues/", "name is empty"),
        ("qeue://orders", "unknown 'qeue://'.*'queue://', 'topic://', 'dsub://' or 'log://'"),
        ("/orders", "empty level"),
        ("orders/", "empty level"),
        ("a//b", "empty level"),
        ("queue://a*", r"has \* in it; names may not contain .* ' < > \* \? & ;"),
        ("a\tb", "a control character"),
        ("a;b'c", "has ' ; in it"),
        ("a\ud800", "valid Unicode"),
        ("x" * (MAX_QUEUE_NAME + 1), "at most 200 characters; this one has 201"),
        ("é" * 122, "at most 243 bytes in UTF-8; this one has 244"),
        ("topic://" + "x" * 251, "at most 250 bytes"),
        ("#queue/orders", "is the topic of the queue 'orders', not a name; use 'queue://orders'"),
        ("/exchanges/amq.topic/key", "Exchanges are not supported"),
        ("/queues/a%2", "'%2' in the address .* '%25'"),
        ("/queues/a%zz", "'%zz'"),
        ("/queues/a%ff", "not UTF-8"),
        ("orders?", "'' in the address 'orders\\?' is not an option"),
        ("orders?foo=1", "'foo' .* the options are create, epoch, exclusive, .* replay-start, speed, until"),
        ("orders?Create=never", "'Create'"),
        ("orders?create", "has no value"),
        ("orders?create=", "has no value"),
        ("orders?create=never&", "'' in the address"),
        ("orders?create=never&create=never", "'create' is in the address .* twice"),
        ("orders?exclusive=yes", "'exclusive' may be wait or refuse or steal, not 'yes'"),
        ("orders?until=%", "'%' in the address"),
        ("orders?until=\ud800", "not UTF-8"),
    ],
)
def test_a_bad_address_is_refused_with_a_sentence(address: str, words: str) -> None:
    """Each refusal says what is wrong with the address and, where it can, what would be right."""
    with pytest.raises(AddressError, match=words):
        parse_source(address)


def test_an_exchange_is_refused_as_a_target_too() -> None:
    """RabbitMQ's way of publishing through an exchange is answered with where to publish instead."""
    with pytest.raises(AddressError, match="'topic://…' instead"):
        parse_target("/exchanges/amq.topic/key")


def test_a_queue_and_a_topic_at_once_is_refused() -> None:
    """Capabilities that contradict each other are an error; none of them wins."""
    with pytest.raises(AddressError, match="both a queue and a topic"):
        parse_source("a", ["queue", "topic"])


def test_a_topic_capability_makes_the_whole_name_a_topic() -> None:
    """With a topic's capability, RabbitMQ's form of a queue's address is not decoded: it is the topic ``/queues/…``."""
    assert parse_target("/queues/x%20y", ["topic"]) == Address(TOPIC, "/queues/x%20y")


def test_an_address_cannot_be_changed_through_its_options() -> None:
    """An address is a value: the options it hands out are read-only."""
    read = parse_source("a?create=never")
    with pytest.raises(TypeError):
        read.options["create"] = "always"  # type: ignore[index]


@given(name=st.text(min_size=1, max_size=30))
def test_a_valid_queue_name_survives_rabbitmqs_encoding(name: str) -> None:
    """Any valid queue name is read from its percent-encoded path, and from the queue's topic."""
    with suppress(AddressError):
        check_queue_name(name)
        assert parse_source("/queues/" + quote(name, safe="")) == Address(QUEUE, name)
        assert parse_target("/queues/" + quote(name, safe="")).name == name
        assert not set(name) & set(FORBIDDEN_IN_QUEUE_NAMES)
    assert queue_of_topic(queue_topic(name)) == name


def test_only_the_topic_of_a_queue_has_a_queue() -> None:
    """Other topics, and the bare prefix, belong to no queue."""
    assert queue_topic("a/b") == "#queue/a/b"
    assert [queue_of_topic(topic) for topic in ("#queue/", "a", "#queue", "a/#queue/b")] == [None] * 4


@given(address=st.one_of(st.text(), st.text(alphabet="/?&=%#$a:queuetopiclog")), topic=st.booleans())
def test_any_text_is_read_or_refused(address: str, topic: bool) -> None:
    """Whatever a peer writes, the answer is an address with known options or an AddressError."""
    capabilities = ["topic"] if topic else []
    for parse in (parse_source, parse_target):
        with suppress(AddressError):
            read = parse(address, capabilities)
            assert read.name
            assert read.options.keys() <= OPTIONS.keys()


# --- Patterns of addresses: what they match, cover and touch ----------------------------------------------------------

# Enough pieces for every way in which levels of the patterns below can differ: each literal, each prefix alone and
# with more text, and a piece that no pattern names.
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


@given(_kinds, _names, _names)
def test_a_pattern_takes_covers_and_touches_what_a_subscription_of_it_gets(
    kind: AddressKind, names: str, asked: str
) -> None:
    """
    ``matches`` agrees with routing, where wildcards do not match reserved topics (``#…``). ``covers`` holds exactly if
    the pattern matches every topic of the other, ``touches`` exactly if some topic is in both.
    """
    rule, other = pattern(f"{kind.value}://{names}"), TopicPattern.parse(asked)
    gets, wanted = taken(kind, names), taken(kind, asked)
    assert {topic for topic in _TOPICS if topic and rule.matches(kind, topic)} == gets
    assert rule.covers(kind, other) == (wanted <= gets)
    assert rule.touches(kind, other) == bool(wanted & gets)


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
    """A pattern of topics matches neither queues nor the log."""
    rule, asked = pattern("topic://>"), TopicPattern.parse("a/b")
    assert rule.matches(TOPIC, "a/b") and rule.covers(TOPIC, asked) and rule.touches(TOPIC, asked)
    for kind in (QUEUE, LOG):
        assert not (rule.matches(kind, "a/b") or rule.covers(kind, asked) or rule.touches(kind, asked))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "orders",
            "'orders' does not say what kind of node it is for; write it as one of `queue://…`, `topic://…`",
        ),
        ("flights/>", "'flights/>' does not say"),
        ("dsub://a", "'dsub://a' does not say"),
        ("", "'' does not say"),
        ("queue://", "'queue://' is not a valid pattern: '': a subscription needs at least one character"),
        (
            "topic://a//b",
            "'topic://a//b' is not a valid pattern: 'a//b': a subscription cannot have an empty level",
        ),
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
    """The ``!`` is no part of the pattern's names, but it is part of the text that the gateway's log shows."""
    rule = pattern("!log://a/>")
    assert rule.is_exception and rule.names.text == "a/>" and str(rule) == "!log://a/>"
    assert not pattern("log://a/>").is_exception
