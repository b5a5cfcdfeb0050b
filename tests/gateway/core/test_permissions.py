"""What the rules of a user permit, and which rule it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.addresses.address import AddressKind, queue_of_topic
from amqp_ext.addresses.forms import AddressError
from amqp_ext.topics import TopicFilter, TopicPattern
from gateway.core.permissions import NOTHING, OPEN, Action, Permissions

QUEUE, TOPIC, LOG = AddressKind.QUEUE, AddressKind.TOPIC, AddressKind.LOG
PUBLISH, CONSUME, BROWSE, REPLAY, ADMINISTER = Action


FLIGHTS = {CONSUME: ["log://flights/>", "log://a", "log://b", "!log://flights/*/secret"]}
EITHER = {CONSUME: ["queue://a"], BROWSE: ["queue://b"]}
BOTH = {CONSUME: ["queue://>"], REPLAY: ["queue://a", "queue://b", "!queue://b"]}


@pytest.mark.parametrize(
    ("lists", "action", "address", "is_allowed", "rule"),
    [
        # Who has no lists may use everything in the Message VPNs open to them; to administer has to be said.
        ({}, CONSUME, "log://>", True, "the user has no rules"),
        ({}, ADMINISTER, "log://>", False, "no administer list"),
        # As soon as one thing is said of a user, what is not said is not permitted.
        ({PUBLISH: ["queue://orders"]}, PUBLISH, "queue://orders", True, "publish queue://orders"),
        ({PUBLISH: ["queue://orders"]}, PUBLISH, "queue://others", False, "no pattern of publish"),
        ({PUBLISH: ["queue://orders"]}, CONSUME, "queue://orders", False, "no consume list"),
        # The order of a list says nothing: what an exception matches is not permitted.
        ({PUBLISH: ["!topic://a/b", "topic://a/>"]}, PUBLISH, "topic://a/b", False, "publish !topic://a/b"),
        ({PUBLISH: ["topic://a/>", "!topic://a/b"]}, PUBLISH, "topic://a/b", False, "publish !topic://a/b"),
        # Who asks for more than one pattern of the list covers, or for something excepted, is refused.
        (FLIGHTS, CONSUME, "log://flights/*", True, "consume log://flights/>"),
        (FLIGHTS, CONSUME, "log://*", False, "no pattern of consume"),
        (FLIGHTS, CONSUME, "log://flights/>", False, "consume !log://flights/*/secret"),
        # A log reader of an exception alone, which means all but that, needs a right to everything.
        ({CONSUME: ["log://a/>"]}, CONSUME, "log://!a/b", False, "no pattern of consume"),
        # In a topic that is published to `*` and `>` are plain characters, and need no wider right.
        ({PUBLISH: ["topic://a/*"]}, PUBLISH, "topic://a/>", True, "publish topic://a/*"),
        # Publishing to `#queue/NAME` is sending to the queue, and needs the right to do so, not one on topics.
        ({PUBLISH: ["topic://#queue/>"]}, PUBLISH, "topic://#queue/orders", False, "no pattern of publish"),
        ({PUBLISH: ["queue://orders"]}, PUBLISH, "topic://#queue/orders", True, "publish queue://orders"),
        # `topic://>` does not reach what is sent to queues by name, as a subscription of it does not; `log://>` does.
        ({CONSUME: ["topic://>"]}, CONSUME, "topic://#queue/>", False, "no pattern of consume"),
        ({CONSUME: ["log://>"]}, CONSUME, "log://#queue/orders", True, "consume log://>"),
        # To look at a queue needs less than to take from it: either list permits it.
        (EITHER, BROWSE, "queue://a", True, "consume queue://a"),
        (EITHER, BROWSE, "queue://b", True, "browse queue://b"),
        (EITHER, CONSUME, "queue://b", False, "no pattern of consume"),
        # Without a `replay` list who may consume may replay; with one, both have to permit it; alone it is nothing.
        ({CONSUME: ["queue://a"]}, REPLAY, "queue://a", True, "consume queue://a"),
        (BOTH, REPLAY, "queue://a", True, "replay queue://a"),
        (BOTH, REPLAY, "queue://b", False, "replay !queue://b"),
        ({REPLAY: ["queue://a"]}, REPLAY, "queue://a", False, "no consume list"),
    ],
)  # fmt: skip
def test_what_is_permitted_and_by_which_rule(
    lists: dict[Action, list[str]], action: Action, address: str, is_allowed: bool, rule: str
) -> None:
    kind, _, name = address.partition("://")
    assert Permissions(lists).decide(action, AddressKind(kind), name)[:2] == (is_allowed, rule)


@pytest.mark.parametrize("action", Action)
def test_without_users_everything_is_open_and_of_who_is_none_nothing(action: Action) -> None:
    """Where no users are configured, administration is permitted, too; empty lists permit nothing."""
    assert OPEN.decide(action, LOG, ">")[:2] == (True, "no users are configured")
    assert NOTHING.decide(action, QUEUE, "orders").is_allowed is False


def test_a_text_that_is_no_pattern_is_refused() -> None:
    """Permissions are made of patterns or not at all."""
    with pytest.raises(AddressError, match="does not say of what"):
        Permissions({PUBLISH: ["queue://a", "b"]})


# --- against a naive reading of the rules -----------------------------------------------------------------------

_PIECES = ["a", "az", "b", "z", "", ">"]  # all that tells the patterns below apart
_TOPICS = ["/".join(p) for n in (1, 2, 3) for p in product(_PIECES, repeat=n)] + [
    "#queue/a",
    "#queue/b",
    "#z",
]
_names = st.lists(st.sampled_from(["*", "a*", "a", "b", ">"]), min_size=1, max_size=2).map("/".join)
_rules = st.builds(
    "{}{}://{}".format, st.sampled_from(["", "", "!"]), st.sampled_from(["queue", "topic", "log"]), _names
)
_lists = st.dictionaries(st.sampled_from(Action), st.lists(_rules, max_size=4))


@cache
def taken(kind: AddressKind, names: str) -> frozenset[str]:
    """The topics that a subscription, or a log reader, of these names gets."""
    wanted = TopicFilter([TopicPattern.parse(names)], reserved=kind is LOG)
    return frozenset(topic for topic in _TOPICS if topic and wanted.matches(topic))


def naive_list(texts: Sequence[str], kind: AddressKind, asked: frozenset[str]) -> bool:
    """All that is asked for is in one of the patterns, and nothing of it in an exception."""
    mine = [text.split("://") for text in texts]
    wanted = [taken(kind, names) for scheme, names in mine if scheme == kind.value]
    excepted = [taken(kind, names) for scheme, names in mine if scheme == f"!{kind.value}"]
    return any(asked <= topics for topics in wanted) and not any(asked & topics for topics in excepted)


def naive(lists: Mapping[Action, Sequence[str]], action: Action, kind: AddressKind, name: str) -> bool:
    """The table of the module, word by word."""
    if not lists:
        return action is not ADMINISTER
    if action is PUBLISH and kind is TOPIC and (queue := queue_of_topic(name)):
        kind, name = QUEUE, queue
    is_one = kind is QUEUE or action is PUBLISH
    asked = frozenset([name]) if is_one else taken(kind, name)
    by_list = {each: naive_list(lists.get(each, ()), kind, asked) for each in Action}
    if action is BROWSE:
        return by_list[BROWSE] or by_list[CONSUME]
    if action is REPLAY:
        return by_list[CONSUME] and (REPLAY not in lists or by_list[REPLAY])
    return by_list[action]


@given(_lists, st.sampled_from(Action), st.sampled_from([QUEUE, TOPIC, LOG]), st.data())
def test_decisions_are_those_of_a_naive_reading(
    lists: dict[Action, list[str]], action: Action, kind: AddressKind, data: st.DataObject
) -> None:
    """Every decision is what going through all topics, one by one, comes to."""
    one = st.sampled_from([topic for topic in _TOPICS if topic])
    name = data.draw(one if kind is QUEUE or action is PUBLISH else _names)
    assert Permissions(lists).decide(action, kind, name).is_allowed == naive(lists, action, kind, name)
