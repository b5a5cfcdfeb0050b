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
        # Without lists a user may use everything in the Message VPNs open to him, except to administer.
        ({}, CONSUME, "log://>", True, "the user has no rules"),
        ({}, ADMINISTER, "log://>", False, "no administer list"),
        # With any list, an action without a list is not permitted.
        ({PUBLISH: ["queue://orders"]}, PUBLISH, "queue://orders", True, "publish queue://orders"),
        ({PUBLISH: ["queue://orders"]}, PUBLISH, "queue://others", False, "no pattern of publish"),
        ({PUBLISH: ["queue://orders"]}, CONSUME, "queue://orders", False, "no consume list"),
        # The order of a list has no meaning: an exception always forbids.
        ({PUBLISH: ["!topic://a/b", "topic://a/>"]}, PUBLISH, "topic://a/b", False, "publish !topic://a/b"),
        ({PUBLISH: ["topic://a/>", "!topic://a/b"]}, PUBLISH, "topic://a/b", False, "publish !topic://a/b"),
        # A request that no single pattern covers, or that overlaps an exception, is refused.
        (FLIGHTS, CONSUME, "log://flights/*", True, "consume log://flights/>"),
        (FLIGHTS, CONSUME, "log://*", False, "no pattern of consume"),
        (FLIGHTS, CONSUME, "log://flights/>", False, "consume !log://flights/*/secret"),
        # A log reader of an exception only reads everything else, and needs a right to everything.
        ({CONSUME: ["log://a/>"]}, CONSUME, "log://!a/b", False, "no pattern of consume"),
        # In a topic that is published to, `*` and `>` are plain characters, and need no wider right.
        ({PUBLISH: ["topic://a/*"]}, PUBLISH, "topic://a/>", True, "publish topic://a/*"),
        # Publishing to `#queue/NAME` is sending to the queue, and needs that right, not one for topics.
        ({PUBLISH: ["topic://#queue/>"]}, PUBLISH, "topic://#queue/orders", False, "no pattern of publish"),
        ({PUBLISH: ["queue://orders"]}, PUBLISH, "topic://#queue/orders", True, "publish queue://orders"),
        # `topic://>` does not cover messages sent to queues by name, as in a subscription; `log://>` does.
        ({CONSUME: ["topic://>"]}, CONSUME, "topic://#queue/>", False, "no pattern of consume"),
        ({CONSUME: ["log://>"]}, CONSUME, "log://#queue/orders", True, "consume log://>"),
        # To browse a queue needs less than to consume from it: either list permits it.
        (EITHER, BROWSE, "queue://a", True, "consume queue://a"),
        (EITHER, BROWSE, "queue://b", True, "browse queue://b"),
        (EITHER, CONSUME, "queue://b", False, "no pattern of consume"),
        # Without a `replay` list, `consume` includes replay; with one, both must permit it; alone it is nothing.
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
    """Without configured users everything is permitted, also to administer; empty lists permit nothing."""
    assert OPEN.decide(action, LOG, ">")[:2] == (True, "no users are configured")
    assert NOTHING.decide(action, QUEUE, "orders").is_allowed is False


def test_a_text_that_is_no_pattern_is_refused() -> None:
    """A list with an invalid pattern is refused as a whole."""
    with pytest.raises(AddressError, match="does not say what kind of node"):
        Permissions({PUBLISH: ["queue://a", "b"]})


# --- against a naive reading of the rules -----------------------------------------------------------------------

_PIECES = ["a", "az", "b", "z", "", ">"]  # all that distinguishes the patterns below
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
    """The topics that a subscription, or a log reader, with this pattern gets."""
    wanted = TopicFilter([TopicPattern.parse(names)], reserved=kind is LOG)
    return frozenset(topic for topic in _TOPICS if topic and wanted.matches(topic))


def naive_list(texts: Sequence[str], kind: AddressKind, asked: frozenset[str]) -> bool:
    """Whether one pattern covers all topics asked for, and no exception matches any of them."""
    mine = [text.split("://") for text in texts]
    wanted = [taken(kind, names) for scheme, names in mine if scheme == kind.value]
    excepted = [taken(kind, names) for scheme, names in mine if scheme == f"!{kind.value}"]
    return any(asked <= topics for topics in wanted) and not any(asked & topics for topics in excepted)


def naive(lists: Mapping[Action, Sequence[str]], action: Action, kind: AddressKind, name: str) -> bool:
    """Decides as the table in the module's documentation says, literally."""
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
    """Every decision equals that of trying all topics, one by one."""
    one = st.sampled_from([topic for topic in _TOPICS if topic])
    name = data.draw(one if kind is QUEUE or action is PUBLISH else _names)
    assert Permissions(lists).decide(action, kind, name).is_allowed == naive(lists, action, kind, name)
