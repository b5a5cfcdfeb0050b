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


def allowed(permissions: Permissions, action: Action, address: str) -> bool:
    """Whether an action is permitted on an address written as `queue://orders`."""
    kind, _, name = address.partition("://")
    return permissions.decide(action, AddressKind(kind), name).is_allowed


@pytest.mark.parametrize("action", Action)
def test_without_users_everything_is_open(action: Action) -> None:
    """Where no users are configured, everything is permitted, administration too."""
    assert OPEN.decide(action, LOG, ">")[:2] == (True, "no users are configured")


def test_a_user_without_rules_may_do_all_but_administer() -> None:
    """Who has no lists may use everything in the Message VPNs open to them; to administer has to be said."""
    permissions = Permissions({})
    assert [action for action in Action if allowed(permissions, action, "queue://orders")] == [
        PUBLISH,
        CONSUME,
        BROWSE,
        REPLAY,
    ]
    assert permissions.decide(CONSUME, LOG, ">").rule == "the user has no rules"
    assert permissions.decide(ADMINISTER, LOG, ">")[:2] == (False, "no administer list")


@pytest.mark.parametrize("action", Action)
def test_nothing_is_nothing(action: Action) -> None:
    """Lists that are there and empty permit nothing."""
    assert NOTHING.decide(action, QUEUE, "orders").is_allowed is False


def test_one_list_closes_the_others() -> None:
    """As soon as one thing is said of a user, what is not said is not permitted."""
    permissions = Permissions({PUBLISH: ["queue://orders"]})
    assert permissions.decide(PUBLISH, QUEUE, "orders")[:2] == (True, "publish queue://orders")
    assert permissions.decide(PUBLISH, QUEUE, "others")[:2] == (False, "no pattern of publish")
    assert permissions.decide(CONSUME, QUEUE, "orders")[:2] == (False, "no consume list")


def test_an_exception_wins_wherever_it_stands() -> None:
    """The order of a list says nothing: what an exception matches is not permitted."""
    for texts in (["!topic://a/secret", "topic://a/>"], ["topic://a/>", "!topic://a/secret"]):
        permissions = Permissions({PUBLISH: texts})
        assert permissions.decide(PUBLISH, TOPIC, "a/b")[:2] == (True, "publish topic://a/>")
        assert permissions.decide(PUBLISH, TOPIC, "a/secret")[:2] == (False, "publish !topic://a/secret")


def test_a_pattern_is_permitted_whole_or_not_at_all() -> None:
    """Who asks for more than one pattern of the list covers, or for something excepted, is refused."""
    permissions = Permissions({CONSUME: ["log://flights/>", "log://a", "log://b", "!log://flights/*/secret"]})
    assert allowed(permissions, CONSUME, "log://flights/JFK/AA")
    assert permissions.decide(CONSUME, LOG, ">")[:2] == (False, "consume !log://flights/*/secret")
    assert permissions.decide(CONSUME, LOG, "*")[:2] == (False, "no pattern of consume")
    assert permissions.decide(CONSUME, LOG, "flights/>")[:2] == (False, "consume !log://flights/*/secret")
    assert not allowed(permissions, CONSUME, "log://flights/*/*")
    assert allowed(permissions, CONSUME, "log://flights/*")


def test_all_but_something_is_asked_for_as_all() -> None:
    """A log reader of an exception alone, which means all but that, needs a right to everything."""
    assert not allowed(Permissions({CONSUME: ["log://a/>"]}), CONSUME, "log://!a/b")
    assert allowed(Permissions({CONSUME: ["log://>"]}), CONSUME, "log://!a/b")


def test_a_published_topic_has_no_wildcards() -> None:
    """`*` and `>` in a topic that is published to are plain characters, and need no wider right."""
    assert allowed(Permissions({PUBLISH: ["topic://a/*"]}), PUBLISH, "topic://a/>")


def test_a_queue_s_topic_is_the_queue() -> None:
    """Publishing to `#queue/NAME` is sending to the queue, and needs the right to do so, not one on topics."""
    topics = Permissions({PUBLISH: ["topic://>", "topic://#queue/>"]})
    assert topics.decide(PUBLISH, TOPIC, "#queue/orders")[:2] == (False, "no pattern of publish")
    queue = Permissions({PUBLISH: ["queue://orders"]})
    assert queue.decide(PUBLISH, TOPIC, "#queue/orders")[:2] == (True, "publish queue://orders")


def test_all_topics_are_not_the_gateway_s_own() -> None:
    """`topic://>` does not reach what is sent to queues by name, as a subscription of it does not; `log://>` does."""
    permissions = Permissions({CONSUME: ["topic://>", "log://>"]})
    assert allowed(permissions, CONSUME, "topic://>")
    assert not allowed(permissions, CONSUME, "topic://#queue/>")
    assert allowed(permissions, CONSUME, "log://#queue/orders")


def test_who_may_consume_may_browse() -> None:
    """To look at a queue needs less than to take from it: either list permits it."""
    permissions = Permissions({CONSUME: ["queue://a", "!queue://c"], BROWSE: ["queue://b", "queue://c"]})
    for name in "abc":
        assert allowed(permissions, BROWSE, f"queue://{name}")
    assert not allowed(permissions, CONSUME, "queue://b")
    assert permissions.decide(BROWSE, QUEUE, "d")[:2] == (False, "no pattern of browse")
    assert not allowed(Permissions({CONSUME: ["queue://a"]}), BROWSE, "queue://b")


def test_a_replay_needs_consume_and_its_own_list_where_there_is_one() -> None:
    """Without a `replay` list who may consume may replay; with one, both have to permit it; alone it is nothing."""
    assert allowed(Permissions({CONSUME: ["queue://a"]}), REPLAY, "queue://a")
    both = Permissions({CONSUME: ["queue://>"], REPLAY: ["queue://a", "queue://b", "!queue://b"]})
    assert both.decide(REPLAY, QUEUE, "a")[:2] == (True, "replay queue://a")
    assert both.decide(REPLAY, QUEUE, "b")[:2] == (False, "replay !queue://b")
    assert both.decide(REPLAY, QUEUE, "c")[:2] == (False, "no pattern of replay")
    assert Permissions({REPLAY: ["queue://a"]}).decide(REPLAY, QUEUE, "a")[:2] == (False, "no consume list")
    assert not allowed(Permissions({CONSUME: ["queue://>"], REPLAY: []}), REPLAY, "queue://a")


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
