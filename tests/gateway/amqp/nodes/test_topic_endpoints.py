"""Topic endpoints, and the lifetimes of dynamic nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from proton import Described, Link, Terminus, symbol, ulong

from amqp_ext.codec import Symbol, UInt
from amqp_ext.terminus_fields import Lifetime
from gateway.app import Gateway
from gateway.config import Queue, Vpn
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity
from gateway.vpn.runtime import SystemClock
from gateway.vpn.upkeep import expiry
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import (
    BEGINNING,
    NO_LOCAL,
    SELECTOR,
    Client,
    Receiver,
    Sender,
    browsing,
    numbered,
    refusal,
    texts,
)
from tests.support.frames import ATTACH, DETACH, attach_frame, frame
from tests.support.messages import data, selectable
from tests.support.peer import Peer
from tests.support.running import RunningGateway

# --- Topic endpoints: wildcards, exceptions, quotas; durable and shared subscriptions ---------------------------------

SHARED = ("topic", "shared")
GLOBAL = ("topic", "shared", "global")


def subscribed(client: Client, topic: str = "a", name: str = "mine", **options: Any) -> Receiver:
    """A consumer of a durable subscription, with credit."""
    return client.receiver(f"topic://{topic}", name=name, **{"durable": True, "credit": 10, **options})


def publish(client: Client, topic: str, *numbers: int) -> None:
    """Publish a message with each number, by which selectors can choose."""
    client.sender(f"topic://{topic}").send_all(map(selectable, numbers))


# --- temporary topic endpoints ------------------------------------------------------------------------------------


TOPICS = ["a", "a/b", "a/b/c", "a/x/c", "a/b/c/d", "x/b"]
WILDCARDS = {
    "a/b/c": {"a/b/c"},
    "a/*/c": {"a/b/c", "a/x/c"},
    "a/b*/c": {"a/b/c"},
    "a/>": {"a/b", "a/b/c", "a/x/c", "a/b/c/d"},
    "*/b": {"a/b", "x/b"},
    "a*/b": {"a/b"},
    ">": set(TOPICS),
    "a": {"a"},
    "a/b/c/d/e": set(),
}


def test_an_endpoint_gets_what_its_subscriptions_match(start: Start, connect: Connect) -> None:
    """
    Wildcards are Solace's: `*` one level, `x*` a prefix of a level, `>` one or more last levels. `!` excepts topics
    from the endpoint's other subscriptions. What several of them match is there once. What is sent by name needs none.
    """
    queues = {
        "some": Queue(subscriptions=("a/>", "!a/*/c", "x/b")),
        "overlap": Queue(subscriptions=("a/>", "a/*", "*/b")),
    }
    client = connect(start(Vpn(queues=queues)))
    subscribers = {topic: client.receiver(f"topic://{topic}") for topic in WILDCARDS}
    for topic in TOPICS:
        client.sender(f"topic://{topic}").send_all([data(topic)])
    client.sender("some").send_all([data("by name")])
    for subscription, receiver in subscribers.items():
        expected = [topic for topic in TOPICS if topic in WILDCARDS[subscription]]
        assert texts(receiver.drain()) == expected, subscription
    assert texts(client.receiver("some").drain()) == ["a/b", "a/b/c/d", "x/b", "by name"]
    assert texts(client.receiver("overlap").drain()) == ["a/b", "a/b/c", "a/x/c", "a/b/c/d", "x/b"]


def test_bad_subscriptions_are_refused(gateway: RunningGateway, client: Client) -> None:
    """A subscription that cannot match anything is refused, and leaves no endpoint."""
    for topic in ("!a/b", "", "x" * 300):
        assert refusal(client.receiver, f"topic://{topic}").name == "amqp:invalid-field"
    assert gateway.endpoints() == set()


# --- durable topic endpoints --------------------------------------------------------------------------------------


def test_a_durable_endpoint_survives_its_consumer(gateway: RunningGateway, connect: Connect) -> None:
    """
    It keeps what is published while its consumer is detached, and what that had not settled, however it was lost; after
    a restart it has its messages, and attracts more. Its name is its link's, and must not be a queue's. It has one
    consumer: a second one is refused as locked, with the same topic and with another.
    """
    client, other = connect(gateway), connect(gateway)
    receiver = subscribed(client, "a/>", credit=2)
    assert (gateway.endpoints(), gateway.subscriptions("mine")) == ({"mine"}, ["a/>"])
    publish(other, "a/b", 0, 1)
    receiver.settle(receiver.take(2)[:1])
    for topic in ("a/>", "b"):
        assert refusal(subscribed, other, topic).name == "amqp:resource-locked"
    receiver.detach()
    publish(other, "a/b", 2, 3, 4)
    receiver = subscribed(client, "a/>", credit=4)
    taken = receiver.take(4)
    assert texts(taken) == numbered(1, 5)
    receiver.settle(taken[:2])
    client.open_session()
    client.cut()
    publish(other, "a/b", 5)
    other.sender("orders")
    assert refusal(subscribed, other, name="orders").name == "amqp:precondition-failed"
    assert refusal(other.receiver, "mine").name == "amqp:not-found"
    other.close()
    gateway.restart()
    client = connect(gateway)
    publish(client, "a/b", 6)
    assert texts(subscribed(client, "a/>", credit=0).drain()) == numbered(3, 7)


def test_a_changed_subscription_begins_anew(gateway: RunningGateway, client: Client) -> None:
    """A durable endpoint attached with another topic is a new subscription under the old name (JMS 2.0, 8.3.3)."""
    subscribed(client).detach()
    publish(client, "a", 1)
    receiver = subscribed(client, "b", credit=0)
    publish(client, "b", 2)
    publish(client, "a", 3)
    assert texts(receiver.drain()) == ["2"]
    assert gateway.subscriptions("mine") == ["b"]


SELECTORS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "the same": ({SELECTOR: "n > 1"}, {SELECTOR: "n > 1"}, False),
    "another": ({SELECTOR: "n > 1"}, {SELECTOR: "n > 2"}, True),
    "none any more": ({SELECTOR: "n > 1"}, {}, True),
    "one now": ({}, {SELECTOR: "n > 1"}, True),
    "not its own any more": ({}, {NO_LOCAL: []}, True),
    "a long one before": ({SELECTOR: f"n IN ({', '.join(numbered(200))})"}, {SELECTOR: "n > 1"}, True),
}
"""Filters of the first and the second attach, and whether the second is a new subscription."""


@pytest.mark.parametrize("capabilities", [(), GLOBAL], ids=["alone", "shared"])
def test_another_selector_is_another_subscription(
    gateway: RunningGateway, connect: Connect, capabilities: tuple[str, ...]
) -> None:
    """
    The old one's messages are dropped (Jakarta Messaging 3.1, 8.3.3 and 8.3.4), also after a restart. A change of
    no-local does not make a shared subscription new.
    """
    client = connect(gateway)
    for name, (before, _, _) in SELECTORS.items():
        subscribed(client, name=name, filters=before, capabilities=capabilities).detach()
    publish(client, "a", 5)
    client, publisher = connect.again(gateway, client), connect(gateway)
    receivers = {
        name: subscribed(client, name=name, filters=after, capabilities=capabilities)
        for name, (_, after, _) in SELECTORS.items()
    }
    publish(publisher, "a", 6)
    for name, (_, after, is_new) in SELECTORS.items():
        expected = ["6"] if is_new and not (capabilities and NO_LOCAL in after) else ["5", "6"]
        assert texts(receivers[name].take(len(expected))) == expected, name


@pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "not durable"])
def test_nobody_takes_a_subscription_from_its_consumers_by_another_selector(
    client: Client, *, is_durable: bool
) -> None:
    """
    While it has consumers another selector is refused: it would drop what they want. A bad selector changes nothing
    either.
    """
    options: dict[str, Any] = {"durable": is_durable, "capabilities": SHARED, "filters": {SELECTOR: "n > 1"}}
    names = ("mine", "mine|2") if is_durable else ("mine|volatile1", "mine|volatile2")
    there = [subscribed(client, name=name, **options) for name in names]
    refused = refusal(subscribed, client, name="mine|3", **options | {"filters": {SELECTOR: "n > 2"}})
    assert refused.name == "amqp:resource-locked"
    if is_durable:
        for receiver in there:
            receiver.detach()
        publish(client, "a", 5)
        refused = refusal(subscribed, client, **options | {"filters": {SELECTOR: "n >"}})
        assert refused.name == "amqp:invalid-field"
        assert texts(subscribed(client, **options).take(1)) == ["5"]


def test_a_subscription_of_which_no_selector_is_known_keeps_what_it_has(
    gateway: RunningGateway, client: Client
) -> None:
    """A subscription that an administrator made is not made anew for a consumer with a selector."""

    def make(running: Gateway) -> None:
        settings = EndpointSettings(exclusive=Exclusivity.REFUSE)
        running.vpns["default"].endpoints.create("mine", EndpointKind.TOPIC_ENDPOINT, settings, ["a"])

    gateway.call(make)
    publish(client, "a", 5)
    assert texts(subscribed(client, filters={SELECTOR: "n > 1"}).take(1)) == ["5"]


@pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "not durable"])
@pytest.mark.parametrize("capabilities", [("topic",), SHARED], ids=["alone", "shared"])
def test_a_subscription_with_a_selector_keeps_what_matches_and_nothing_else(
    gateway: RunningGateway, client: Client, *, is_durable: bool, capabilities: tuple[str, ...]
) -> None:
    """Once its consumer has read past them, other messages are gone and do not count; on a queue they would stay."""
    options: dict[str, Any] = {"durable": is_durable, "capabilities": capabilities, "credit": 0}
    receiver = subscribed(client, filters={SELECTOR: "n >= 95"}, **options)
    publish(client, "a", *range(100))
    (name,) = gateway.endpoints()
    assert gateway.depth(name) == 100
    receiver.flow(10)
    taken = receiver.take(5)
    assert texts(taken) == numbered(95, 100)
    client.wait(lambda: gateway.depth(name) == 5, "all others have gone")
    receiver.settle(taken)
    client.wait(lambda: gateway.depth(name) == 0, "nothing is left")


def test_what_a_subscription_passed_over_does_not_come_back(
    gateway: RunningGateway, connect: Connect
) -> None:
    """Not after a restart either; a match that its consumer could not use (undeliverable-here) is still there."""
    client, wanted = connect(gateway), {SELECTOR: "n > 2"}
    receiver = subscribed(client, filters=wanted)
    publish(client, "a", 1, 2, 3, 4)
    taken = receiver.take(2)
    receiver.modify([taken[0]], undeliverable=True)
    receiver.settle([taken[1]])
    client.wait(lambda: gateway.depth("mine") == 1, "the others have gone")
    receiver.detach()
    client.close()
    gateway.restart()
    assert gateway.depth("mine") == 1
    assert texts(subscribed(connect(gateway), filters=wanted).take(1)) == ["3"]


def test_the_replay_of_a_subscription_goes_by_its_selector(gateway: RunningGateway, client: Client) -> None:
    """It completes though the selector matches few of the messages, and live ones follow."""
    publish(client, "a", *range(100))
    receiver = subscribed(client, filters={SELECTOR: "n >= 98", **BEGINNING})
    assert texts(receiver.take_and_accept(2)) == numbered(98, 100)
    client.wait(lambda: not gateway.replay("mine").is_under_way, "the replay is complete")
    publish(client, "a", 5, 200)
    assert texts(receiver.take_and_accept(1)) == ["200"]
    client.wait(lambda: gateway.depth("mine") == 0, "nothing is left")


# --- shared subscriptions -----------------------------------------------------------------------------------------


def test_no_local_passes_nothing_over_for_those_who_share(gateway: RunningGateway, connect: Connect) -> None:
    """A consumer of a shared subscription leaves its own connection's messages to the other consumers."""
    client, other = connect(gateway), connect(gateway)
    own = subscribed(client, filters={SELECTOR: "n > 1", NO_LOCAL: []}, capabilities=GLOBAL)
    publish(client, "a", 2)
    publish(other, "a", 3)
    assert texts(own.take_and_accept(1)) == ["3"]
    assert texts(subscribed(other, filters={SELECTOR: "n > 1"}, capabilities=GLOBAL).take(1)) == ["2"]


def test_consumers_of_a_shared_subscription_share_its_messages(client: Client) -> None:
    """
    Two links of a shared subscription share its messages, each delivered once; `name|2` is the second link of `name`.
    What is published after the last consumer left is there for the next.
    """
    links = [subscribed(client, "a/>", name, capabilities=SHARED, credit=100) for name in ("sub", "sub|2")]
    publish(client, "a/b", *range(100))
    client.wait(lambda: sum(len(link.arrived) for link in links) == 100, "all 100 arrive")
    assert all(link.arrived for link in links)
    assert sorted(int(message.text) for link in links for message in link.arrived) == list(range(100))
    for link in links:
        link.settle(link.arrived)
        link.detach()
    publish(client, "a/b", *range(5))
    assert texts(subscribed(client, "a/>", "sub|3", capabilities=SHARED).take(5)) == numbered(5)


def test_a_volatile_shared_subscription_ends_with_its_last_consumer(
    client: Client, gateway: RunningGateway
) -> None:
    """It outlives the first of two consumers, and is gone after the second."""
    first, second = (
        subscribed(client, name=f"sub|volatile{number}", durable=False, capabilities=SHARED)
        for number in (1, 2)
    )
    first.close()
    publish(client, "a", 1)
    assert texts(second.take_and_accept(1)) == ["1"]
    assert len(gateway.endpoints()) == 1
    second.close()
    client.wait(lambda: not gateway.endpoints(), "the endpoint is gone")


def test_a_shared_name_belongs_to_its_client_unless_it_is_global(
    client: Client, gateway: RunningGateway, connect: Connect
) -> None:
    """The same name from two containers is two subscriptions; with capability global it is one."""
    clients = [client, connect(gateway)]
    own = [subscribed(one, name="sub", durable=False, capabilities=SHARED) for one in clients]
    shared = [subscribed(one, name="all|global", durable=False, capabilities=GLOBAL) for one in clients]
    publish(client, "a", 0, 1)
    assert [texts(link.take(2)) for link in own] == [["0", "1"]] * 2
    clients[1].open_session()
    client.open_session()
    assert sorted(text for link in shared for text in texts(link.arrived)) == ["0", "1"]


# --- unsubscribing ------------------------------------------------------------------------------------------------


def give_up(client: Client, name: str, *capabilities: str) -> None:
    """Unsubscribe: attach without a source, and close."""
    link = client.receiver(None, name=name, capabilities=capabilities)
    assert link.link.remote_source.expiry_policy == Terminus.EXPIRE_NEVER
    link.close()


@pytest.mark.parametrize(
    ("made", "given_up", "name"),
    [((), (), "sub"), (GLOBAL, GLOBAL[1:], "sub|global"), (SHARED, (), "sub"), (GLOBAL, (), "sub|global")],
    ids=["alone", "as it was made", "by its link's name", "by its link's name, global"],
)
def test_unsubscribe_deletes_the_durable_subscription(
    client: Client,
    gateway: RunningGateway,
    connect: Connect,
    made: tuple[str, ...],
    given_up: tuple[str, ...],
    name: str,
) -> None:
    """
    An attach without a source, closed, deletes the topic endpoint, and a second one is refused as not found. If the
    link is only detached, nothing changes; while there is a consumer, the attach is refused. Qpid JMS unsubscribes a
    shared subscription by its link's name alone: without a source it has no place for capabilities.
    """
    there = subscribed(client, name=name, capabilities=made)
    before = gateway.endpoints()
    used = name.partition("|")[0] if given_up else name
    if made != SHARED:  # Another container does not know that one.
        assert refusal(give_up, connect(gateway), used, *given_up).name == "amqp:resource-locked"
    there.detach()
    client.receiver(None, name=used, capabilities=given_up).detach()
    assert gateway.endpoints() == before != set()
    give_up(client, used, *given_up)
    client.wait(lambda: not gateway.endpoints(), "the endpoint is gone")
    assert refusal(give_up, client, used, *given_up).name == "amqp:not-found"


def test_a_subscription_is_shared_or_not(client: Client) -> None:
    """Attaching to a shared durable subscription as an unshared one is refused, with a text that says it is shared."""
    subscribed(client, capabilities=GLOBAL).detach()
    assert "shared" in str(refusal(subscribed, client))


@pytest.mark.parametrize("closed", [True, False])
def test_an_unsubscribe_in_one_write_is_one(client: Client, gateway: RunningGateway, closed: bool) -> None:
    """
    Attach and detach arrive before the attach could be answered: only if the detach closes, the subscription is
    deleted.
    """
    with Peer.opened(gateway.host_and_port()) as peer:
        peer.attach_receiver("topic://a/>", name="sub", expiry=Symbol("never"))
        peer.send(frame(DETACH, [UInt(0), False]))
        peer.expect(DETACH)
        assert gateway.endpoints() == {"sub"}
        peer.send(attach_frame(1, receiver=True, address=None, name="sub") + frame(DETACH, [UInt(1), closed]))
        peer.skip_to(ATTACH)
        peer.skip_to(DETACH)
        if closed:
            client.wait(lambda: not gateway.endpoints(), "the endpoint is gone")
        # The connection still works.
        peer.attach_receiver("topic://b/>", name="other", expiry=Symbol("never"))
        assert gateway.endpoints() == ({"other"} if closed else {"sub", "other"})


class FarClock(SystemClock):
    """A clock that can be moved on by hours."""

    hours = 0

    def seconds(self) -> float:  # type: ignore[override]
        return time.perf_counter() + self.hours * 3_600


def test_a_subscription_that_nobody_uses_expires(
    start: Start, connect: Connect, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the configured hours it is deleted with its messages; one that has a consumer stays."""
    monkeypatch.setattr(expiry, "LOOK_SECONDS", 0.01)
    clock = given["clock"] = FarClock()
    gateway = start(vpn=Vpn(subscription_expiry_hours=2))
    client = connect(gateway)
    used = subscribed(client, name="used")
    subscribed(client, name="left").detach()
    publish(client, "a", 1)
    assert gateway.endpoints() == {"used", "left"}

    def seen(gateway: Gateway) -> int:
        """
        How many subscriptions are known as unused. One in use may be known from before its consumer attached: not
        counted.
        """
        services = gateway.vpns["default"]._services
        (unused,) = (one for one in services if isinstance(one, expiry.UnusedSubscriptions))
        return sum(not endpoint.flows for endpoint in unused._unused_since)

    client.wait(lambda: gateway.call(seen) == 1, "it was seen")
    clock.hours = 1
    publish(client, "a", 2)
    assert gateway.endpoints() == {"used", "left"}
    clock.hours = 3
    client.wait(lambda: gateway.endpoints() == {"used"}, "the unused one is gone")
    used.close()


# --- quotas -------------------------------------------------------------------------------------------------------


def test_a_full_queue_rejects(start: Start, connect: Connect) -> None:
    """
    At its quota a queue rejects a message with the reason, and it is stored nowhere; once there is room, the next is
    accepted. After a restart the queue's messages count as before.
    """
    gateway = start(Vpn(queues={"q": Queue(quota_messages=3)}))
    client = connect(gateway)
    sender = client.sender("q")
    sender.send_all(data(i) for i in range(3))
    for delivery in [sender.send(data(i)) for i in range(3)]:
        refused = sender.rejection(delivery)
        assert refused.name == "amqp:resource-limit-exceeded"
        assert refused.info["rewind:reason"]
        assert "'q'" in refused.text
    assert texts(client.read_log()) == ["0", "1", "2"]
    receiver = client.receiver("q", credit=1)
    receiver.take_and_accept(1)
    client.open_session()
    assert sender.outcomes([data("fits"), data("does not")]) == ["ACCEPTED", "REJECTED"]
    receiver.close()
    client.receiver("q", credit=1).take_and_accept(1)
    client.wait(lambda: gateway.depth("q") == 2, "one is gone")
    client = connect.again(gateway, client)
    assert client.sender("q").outcomes([data(3), data(4)]) == ["ACCEPTED", "REJECTED"]
    assert texts(client.receiver("q").drain()) == ["2", "fits", "3"]


def test_a_full_queue_by_size(start: Start, connect: Connect) -> None:
    """A quota in megabytes counts the queue's messages; a smaller message may fit where a larger one does not."""
    sender = connect(start(Vpn(queues={"q": Queue(quota_mb=1)}))).sender("q")
    for size, outcome in ((600_000, "ACCEPTED"), (600_000, "REJECTED"), (300_000, "ACCEPTED")):
        assert sender.outcomes([data(b"\x55" * size)]) == [outcome]


def test_a_message_vpn_has_so_many_endpoints_and_no_more(start: Start, connect: Connect) -> None:
    """A queue on first use, a temporary one and a subscription are all refused once there are `max_endpoints`."""
    gateway = start(vpn=Vpn(max_endpoints=2))
    client = connect(gateway)
    for name in ("one", "two"):
        client.sender(name).send_all([data(1)])
    for attach in (
        lambda: client.sender("three"),
        lambda: client.receiver("topic://a/>"),
        lambda: client.receiver(None, dynamic=True),
    ):
        refused = refusal(attach)
        assert refused.name == "amqp:resource-limit-exceeded"
        assert "max_endpoints" in refused.text
    assert gateway.endpoints() == {"one", "two"}
    client.sender("one").send_all([data(3)])  # An existing queue is not refused.


# --- How long dynamic nodes live: the four lifetime-policies of AMQP 1.0 ----------------------------------------------

CLOSE, NO_LINKS = Lifetime.DELETE_ON_CLOSE, Lifetime.DELETE_ON_NO_LINKS
NO_MESSAGES, NO_LINKS_OR_MESSAGES = Lifetime.DELETE_ON_NO_MESSAGES, Lifetime.DELETE_ON_NO_LINKS_OR_MESSAGES


def living(policy: Any, *, key: str = "lifetime-policy") -> Callable[[Link], None]:
    """Sets up a dynamic node with a lifetime-policy: a `Lifetime`, or any other value."""
    value = Described(ulong(policy.code), []) if isinstance(policy, Lifetime) else policy

    def set_up(link: Link) -> None:
        node = link.target if link.is_sender else link.source
        node.properties.put_object({symbol(key): value})

    return set_up


def in_force(node: Sender | Receiver) -> int:
    """The code of the lifetime-policy in the answer."""
    link = node.link
    properties = (link.remote_target if link.is_sender else link.remote_source).properties
    properties.rewind()
    properties.next()
    said = dict(properties.get_object())["lifetime-policy"]
    assert said.value == []
    return int(said.descriptor)


def is_deleted(gateway: RunningGateway, client: Client, name: str) -> None:
    """Wait until a node is deleted: its name is not found any more, and no state of it is left."""
    client.wait(lambda: name not in gateway.endpoints(), "the temporary queue is deleted")
    assert refusal(client.sender, name).name == "amqp:not-found"
    nodes = gateway.call(lambda running: running._container.shared_by(running.vpns["default"]).nodes)  # type: ignore[union-attr]
    assert (nodes.owners, nodes.temporary) == ({}, {})


def purge(gateway: Gateway, name: str) -> None:
    """Purge a queue as an administrator does."""
    vpn = gateway.vpns["default"]
    vpn.endpoints.purge(vpn.broker.endpoints[name])


# --- the policy in the answer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_the_reply_says_the_policy_in_force(client: Client, end: str) -> None:
    """
    A policy that is asked for by its code or its name holds for queues as source and as target. A topic keeps no
    messages: whatever is asked for, it is delete-on-close.
    """
    attach = partial(getattr(client, end), None, dynamic=True)
    for lifetime in Lifetime:
        for asked in (lifetime, Described(symbol(lifetime.symbol), [])):
            assert in_force(attach(set_up=living(asked))) == lifetime.code
    for set_up in (None, living(symbol("move"), key="supported-dist-modes")):
        assert in_force(attach(set_up=set_up)) == CLOSE.code
    topic = attach(capabilities=("temporary-topic",), set_up=living(NO_LINKS_OR_MESSAGES))
    assert in_force(topic) == CLOSE.code


@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_what_is_no_policy_is_refused(gateway: RunningGateway, client: Client, end: str) -> None:
    """A bad lifetime-policy is `amqp:invalid-field`, and no node is made."""
    for bad in (
        Described(ulong(0x2F), []),
        Described(symbol("amqp:delete-on-friday:list"), []),
        Described(ulong(0x2B), ["now"]),
        symbol("amqp:delete-on-close:list"),
        43,
    ):
        refused = refusal(getattr(client, end), None, dynamic=True, set_up=living(bad))
        assert "lifetime-policy is an empty list described as one of" in refused.text
        assert (refused.name, refused.info["field"]) == ("amqp:invalid-field", "dynamic-node-properties")
    assert gateway.endpoints() == set()


# --- delete-on-no-links -----------------------------------------------------------------------------------------------


def test_on_no_links_any_link_keeps_it(gateway: RunningGateway, connect: Connect) -> None:
    """After the link that made it is gone, a sender, a consumer and a browser each keep the queue; messages do not."""
    client, other = connect(gateway), connect(gateway)
    maker = client.sender(None, dynamic=True, set_up=living(NO_LINKS))
    name = maker.address
    sender = other.sender(name)
    other.sender(name).close()
    maker.close()
    sender.send_all([data(1), data(2)])
    consumer = other.receiver(name, credit=1)
    sender.close()
    assert texts(consumer.take_and_accept(1)) == ["1"]
    other.wait(lambda: gateway.depth(name) == 1, "it is settled")
    browser = client.receiver(name, set_up=browsing, credit=2)
    consumer.close()
    client.wait(lambda: gateway.flows(name) == 0, "no consumer is left")
    assert browser.take(1)
    assert gateway.depth(name) == 1
    browser.close()
    is_deleted(gateway, client, name)


# --- delete-on-no-messages --------------------------------------------------------------------------------------------


def test_on_no_messages_they_keep_it(gateway: RunningGateway, connect: Connect) -> None:
    """
    After the link that made it is gone, a queue lives until its last message is settled; then its consumers are
    detached.
    """
    client = connect(gateway)
    maker = client.sender(None, dynamic=True, set_up=living(NO_MESSAGES))
    name = maker.address
    maker.send_all([data(1), data(2)])
    maker.close()
    consumer = client.receiver(name, credit=5)
    first, second = consumer.take(2)
    consumer.settle([first])
    client.wait(lambda: gateway.depth(name) == 1, "one is left")
    consumer.settle([second])
    assert consumer.detached_by_peer().name == "amqp:resource-deleted"
    is_deleted(gateway, client, name)
    maker = client.sender(None, dynamic=True, set_up=living(NO_MESSAGES))
    consumer = client.receiver(maker.address)
    maker.close()
    assert consumer.detached_by_peer().name == "amqp:resource-deleted", "empty, no other link keeps it"


# --- delete-on-no-links-or-messages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("goes_last", ["link", "message"])
def test_on_no_links_or_messages_either_keeps_it(
    gateway: RunningGateway, connect: Connect, goes_last: str
) -> None:
    """
    After the link that made it is gone, a message keeps the queue without a link, and a link keeps it without a
    message. It is deleted when it has neither, whichever went last.
    """
    client = connect(gateway)
    maker = client.sender(None, dynamic=True, set_up=living(NO_LINKS_OR_MESSAGES))
    name = maker.address
    maker.send_all([data(1)])
    maker.close()
    consumer = client.receiver(name, credit=1)
    consumer.take(1)
    consumer.close()
    client.wait(lambda: gateway.flows(name) == 0, "it has a message alone")
    if goes_last == "link":
        consumer = client.receiver(name, credit=1)
        consumer.take_and_accept(1)
        client.wait(lambda: gateway.depth(name) == 0, "it has a link alone")
        client.sender(name).close()
        client.sender(name).send_all([data(2)])
        consumer.flow(1)
        assert texts(consumer.take_and_accept(1)) == ["2"], "it was there, though empty"
        client.wait(lambda: gateway.depth(name) == 0, "it is empty again")
        consumer.client.close()
        client = connect(gateway)
    else:
        assert gateway.depth(name) == 1
        gateway.call(lambda running: purge(running, name))
    is_deleted(gateway, client, name)


# --- connections that are lost, and the gateway's end -----------------------------------------------------------------


@pytest.mark.parametrize(("lifetime", "is_kept"), [(CLOSE, False), (NO_LINKS, False), (NO_MESSAGES, True)])
def test_a_lost_connection_is_the_end_of_its_links(
    gateway: RunningGateway, connect: Connect, lifetime: Lifetime, is_kept: bool
) -> None:
    """
    A lost connection releases its nodes as a closed one does; messages still keep a node with a policy for messages.
    """
    client, other = connect(gateway), connect(gateway)
    maker = client.sender(None, dynamic=True, set_up=living(lifetime))
    maker.send_all([data("kept")])
    client.cut()
    if is_kept:
        assert texts(other.receiver(maker.address, credit=1).take_and_accept(1)) == ["kept"]
    is_deleted(gateway, other, maker.address)


@pytest.mark.parametrize("lifetime", Lifetime)
def test_none_survives_the_gateway(gateway: RunningGateway, connect: Connect, lifetime: Lifetime) -> None:
    """A temporary queue is gone after a restart, whatever its policy and its messages; the log has the messages."""
    client = connect(gateway)
    maker = client.sender(None, dynamic=True, set_up=living(lifetime))
    maker.send_all([data(1)])
    gateway.restart()
    assert gateway.endpoints() == set()
    client = connect(gateway)
    refusal(client.receiver, maker.address)
    assert texts(client.read_log()) == ["1"]
