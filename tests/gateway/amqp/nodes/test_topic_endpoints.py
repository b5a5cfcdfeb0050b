"""
Topic endpoints: wildcards, exceptions, quotas; durable and shared subscriptions, how they are given up and expire.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from proton import Terminus

from amqp_ext.codec import Symbol, UInt
from gateway.app import Gateway
from gateway.config import Queue, ReplayLog, Vpn
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity
from gateway.vpn.runtime import SystemClock
from gateway.vpn.upkeep import expiry
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Client, Received, numbered, refusal, texts
from tests.support.frames import ATTACH, DETACH, attach_frame, frame
from tests.support.messages import APPLICATION_PROPERTIES, data, section
from tests.support.peer import Peer
from tests.support.running import RunningGateway

SELECTOR = "apache.org:selector-filter:string"
NO_LOCAL = "apache.org:no-local-filter:list"

# --- temporary topic endpoints ------------------------------------------------------------------------------------


def test_every_subscriber_gets_every_message_from_then_on(gateway: RunningGateway, connect: Connect) -> None:
    """Each topic endpoint gets its own copy, in the order of publishing; what was published before is not for it."""
    sender = connect(gateway).sender("topic://news")
    sender.send_all([data("before")])
    receivers = [connect(gateway).receiver("topic://news", credit=100) for _ in range(4)]
    sender.send_all([data(i) for i in range(100)])
    for receiver in receivers:
        assert texts(receiver.take_and_accept(100)) == numbered(100)


def test_a_temporary_endpoint_ends_with_its_link(gateway: RunningGateway, connect: Connect) -> None:
    """A temporary topic endpoint is deleted when its link is closed, and when its connection is lost."""
    client, lost = connect(gateway), connect(gateway)
    receiver = client.receiver("topic://news")
    lost.receiver("topic://news")
    assert len(gateway.endpoints()) == 2
    receiver.close()
    lost.cut()
    client.wait(lambda: gateway.endpoints() == set(), "both are deleted")


WILDCARDS = [
    ("a/b/c", {"a/b/c"}),
    ("a/*/c", {"a/b/c", "a/x/c"}),
    ("a/b*/c", {"a/b/c"}),
    ("a/>", {"a/b", "a/b/c", "a/x/c", "a/b/c/d"}),
    ("*/b", {"a/b", "x/b"}),
    ("a*/b", {"a/b"}),
    (">", {"a", "a/b", "a/b/c", "a/x/c", "a/b/c/d", "x/b"}),
    ("a", {"a"}),
    ("a/b/c/d/e", set()),
]


@pytest.mark.parametrize(("subscription", "expected"), WILDCARDS)
def test_wildcards(client: Client, subscription: str, expected: set[str]) -> None:
    """Wildcards are Solace's: `*` one level, `x*` a prefix of a level, `>` one or more last levels."""
    topics = ["a", "a/b", "a/b/c", "a/x/c", "a/b/c/d", "x/b"]
    receiver = client.receiver(f"topic://{subscription}")
    for topic in topics:
        client.sender(f"topic://{topic}").send_all([data(topic)])
    client.sender("queue-of-its-own").send_all([data("to a queue by name")])
    assert texts(receiver.drain()) == [topic for topic in topics if topic in expected]


def test_exceptions(start: Start, connect: Connect) -> None:
    """A subscription with `!` takes topics out of what the endpoint's others attract."""
    vpn = Vpn(queues={"q": Queue(subscriptions=("a/>", "!a/b/*", "x"))})
    client = connect(start(vpn))
    for topic in ("a/b", "a/b/c", "a/b/d", "a/b/c/d", "a/c", "x", "y"):
        client.sender(f"topic://{topic}").send_all([data(topic)])
    client.sender("q").send_all([data("by name")])
    assert texts(client.receiver("q").drain()) == ["a/b", "a/b/c/d", "a/c", "x", "by name"]


@pytest.mark.parametrize("address", ["topic://!a/b", "topic://", "topic://" + "x" * 300])
def test_bad_subscriptions_are_refused(gateway: RunningGateway, client: Client, address: str) -> None:
    """A subscription that cannot match anything is refused, and leaves no endpoint."""
    assert refusal(client.receiver, address).name == "amqp:invalid-field"
    assert gateway.endpoints() == set()


def test_queues_and_topic_endpoints_get_one_copy_each(start: Start, connect: Connect) -> None:
    """A message that several subscriptions of one endpoint match lies on it once; each endpoint has its own."""
    vpn = Vpn(queues={"q1": Queue(subscriptions=("a/>", "a/*", "*/b")), "q2": Queue(subscriptions=("a/b",))})
    client = connect(start(vpn))
    subscriber = client.receiver("topic://a/b", credit=5)
    client.sender("topic://a/b").send_all([data("x")])
    assert texts(client.receiver("q1").drain()) == ["x"]
    assert texts(client.receiver("q2").drain()) == ["x"]
    assert texts(subscriber.drain(0)) == ["x"]


# --- durable topic endpoints --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["detach", "cut"])
def test_a_durable_endpoint_survives_its_consumer(
    gateway: RunningGateway, connect: Connect, end: str
) -> None:
    """A durable topic endpoint keeps what is published while its consumer is away, and what it had not settled."""
    client, other = connect(gateway), connect(gateway)
    sender = other.sender("topic://a/b")
    receiver = client.receiver("topic://a/>", name="mine", durable=True, credit=2)
    sender.send_all([data(i) for i in range(2)])
    receiver.settle(receiver.take(2)[:1])
    if end == "detach":
        receiver.detach()
    else:
        client.open_session()
        client.cut()
    sender.send_all([data(i) for i in range(2, 5)])
    again = other.receiver("topic://a/>", name="mine", durable=True)
    assert texts(again.drain()) == ["1", "2", "3", "4"]


def test_a_durable_endpoint_survives_a_restart(gateway: RunningGateway, connect: Connect) -> None:
    """It has the name of its link, which no queue has; after a restart it has its messages, and goes on to attract."""
    client = connect(gateway)
    client.receiver("topic://a/>", name="mine", durable=True).detach()
    assert (gateway.endpoints(), gateway.subscriptions("mine")) == ({"mine"}, ["a/>"])
    client.sender("topic://a/b").send_all([data("before")])
    client.sender("orders")
    refused = refusal(client.receiver, "topic://a", name="orders", durable=True)
    assert refused.name == "amqp:precondition-failed"
    assert refusal(client.receiver, "mine").name == "amqp:not-found"
    client.close()
    gateway.restart()
    client = connect(gateway)
    client.sender("topic://a/b").send_all([data("after")])
    receiver = client.receiver("topic://a/>", name="mine", durable=True)
    assert texts(receiver.drain()) == ["before", "after"]


def test_a_changed_subscription_begins_anew(gateway: RunningGateway, client: Client) -> None:
    """A durable endpoint attached with another topic is a new subscription under the old name (JMS 2.0, 8.3.3)."""
    client.receiver("topic://a", name="mine", durable=True).detach()
    client.sender("topic://a").send_all([data("old")])
    receiver = client.receiver("topic://b", name="mine", durable=True)
    client.sender("topic://b").send_all([data("new")])
    client.sender("topic://a").send_all([data("old")])
    assert texts(receiver.drain()) == ["new"]
    assert gateway.subscriptions("mine") == ["b"]


@pytest.mark.parametrize(
    ("first", "second", "is_new"),
    [
        ({SELECTOR: "n > 1"}, {SELECTOR: "n > 1"}, False),
        ({SELECTOR: "n > 1"}, {SELECTOR: "n > 2"}, True),
        ({SELECTOR: "n > 1"}, {}, True),
        ({}, {SELECTOR: "n > 1"}, True),
        ({}, {NO_LOCAL: []}, True),
        ({SELECTOR: f"n IN ({', '.join(map(str, range(200)))})"}, {SELECTOR: "n > 1"}, True),
    ],
    ids=["the same", "another", "none any more", "one now", "not its own any more", "a long one before"],
)
@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "shared"])
def test_another_selector_is_another_subscription(
    gateway: RunningGateway,
    connect: Connect,
    first: dict[str, Any],
    second: dict[str, Any],
    *,
    is_new: bool,
    is_shared: bool,
) -> None:
    """
    What the old one had kept is dropped (Jakarta Messaging 3.1, 8.3.3 and 8.3.4), also after a restart. No-local says
    nothing of a shared one.
    """
    options: dict[str, Any] = {"name": "mine", "durable": True, "credit": 10}
    if is_shared:
        options["capabilities"] = ["topic", "shared", "global"]
    client = connect(gateway)
    client.receiver("topic://a", filters=first, **options).detach()
    client.sender("topic://a").send_all([section(APPLICATION_PROPERTIES, {"n": 5}) + data("kept")])
    client.close()
    gateway.restart()
    receiver = connect(gateway).receiver("topic://a", filters=second, **options)
    connect(gateway).sender("topic://a").send_all([section(APPLICATION_PROPERTIES, {"n": 5}) + data("new")])
    is_new = is_new and not (is_shared and NO_LOCAL in second)
    expected = ["new"] if is_new else ["kept", "new"]
    assert texts(receiver.take(len(expected))) == expected


def test_nobody_takes_a_subscription_from_its_consumers_by_another_selector(client: Client) -> None:
    """While one of its consumers is there, another selector is refused; a bad one changes nothing either."""
    options: dict[str, Any] = {"durable": True, "capabilities": ["topic", "shared"], "credit": 10}
    there = client.receiver("topic://a", name="mine", filters={SELECTOR: "n > 1"}, **options)
    refused = refusal(client.receiver, "topic://a", name="mine|2", filters={SELECTOR: "n > 2"}, **options)
    assert refused.name == "amqp:resource-locked"
    there.detach()
    client.sender("topic://a").send_all([section(APPLICATION_PROPERTIES, {"n": 5}) + data("kept")])
    refused = refusal(client.receiver, "topic://a", name="mine", filters={SELECTOR: "n >"}, **options)
    assert refused.name == "amqp:invalid-field"
    again = client.receiver("topic://a", name="mine", filters={SELECTOR: "n > 1"}, **options)
    assert texts(again.take(1)) == ["kept"]


def test_a_subscription_of_which_no_selector_is_known_keeps_what_it_has(
    gateway: RunningGateway, client: Client
) -> None:
    """One that an administrator made is not made anew for who comes with a selector."""

    def make(running: Gateway) -> None:
        settings = EndpointSettings(exclusive=Exclusivity.REFUSE)
        running.vpns["default"].endpoints.create("mine", EndpointKind.TOPIC_ENDPOINT, settings, ["a"])

    gateway.call(make)
    client.sender("topic://a").send_all([section(APPLICATION_PROPERTIES, {"n": 5}) + data("kept")])
    receiver = client.receiver("topic://a", name="mine", durable=True, filters={SELECTOR: "n > 1"}, credit=10)
    assert texts(receiver.take(1)) == ["kept"]


def selectable(*numbers: int) -> list[bytes]:
    """Messages with the application property `n`, whose texts say it, too."""
    return [section(APPLICATION_PROPERTIES, {"n": n}) + data(n) for n in numbers]


@pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "not durable"])
@pytest.mark.parametrize("capabilities", [["topic"], ["topic", "shared"]], ids=["alone", "shared"])
def test_a_subscription_with_a_selector_keeps_what_matches_and_nothing_else(
    gateway: RunningGateway, client: Client, *, is_durable: bool, capabilities: list[str]
) -> None:
    """Once its consumer has looked, nothing else lies there, or counts; a queue's consumer leaves it in place."""
    options: dict[str, Any] = {"name": "mine", "durable": is_durable, "capabilities": capabilities}
    receiver = client.receiver("topic://a", filters={SELECTOR: "n >= 95"}, **options)
    client.sender("topic://a").send_all(selectable(*range(100)))
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
    """Nor does a restart bring it; what its consumer could not use is still its own, as that matches."""
    options: dict[str, Any] = {"name": "mine", "durable": True, "filters": {SELECTOR: "n > 2"}, "credit": 10}
    client = connect(gateway)
    receiver = client.receiver("topic://a", **options)
    client.sender("topic://a").send_all(selectable(1, 2, 3, 4))
    taken = receiver.take(2)
    receiver.modify([taken[0]], undeliverable=True)
    receiver.settle([taken[1]])
    client.wait(lambda: gateway.depth("mine") == 1, "the others have gone")
    receiver.detach()
    client.close()
    gateway.restart()
    assert gateway.depth("mine") == 1
    assert texts(connect(gateway).receiver("topic://a", **options).take(1)) == ["3"]


def test_the_replay_of_a_subscription_goes_by_its_selector(gateway: RunningGateway, client: Client) -> None:
    """It is complete though its consumer wants few of the messages, and live ones come behind."""
    options: dict[str, Any] = {"name": "mine", "durable": True, "credit": 10}
    sender = client.sender("topic://a")
    sender.send_all(selectable(*range(100)))
    filters = {SELECTOR: "n >= 98", "rewind:replay-start": "beginning"}
    receiver = client.receiver("topic://a", filters=filters, **options)
    assert texts(receiver.take_and_accept(2)) == numbered(98, 100)
    client.wait(lambda: not gateway.replay("mine").is_under_way, "the replay is complete")
    sender.send_all(selectable(5, 200))
    assert texts(receiver.take_and_accept(1)) == ["200"]
    client.wait(lambda: gateway.depth("mine") == 0, "nothing is left")


def test_who_shares_a_subscription_wants_what_the_others_want(
    gateway: RunningGateway, client: Client
) -> None:
    """Also where it is not durable: what one would pass over, another would want."""
    options: dict[str, Any] = {"capabilities": ["topic", "shared"]}
    client.receiver("topic://a", name="mine|volatile1", filters={SELECTOR: "n > 1"}, **options)
    client.receiver("topic://a", name="mine|volatile2", filters={SELECTOR: "n > 1"}, **options)
    refused = refusal(client.receiver, "topic://a", name="mine|3", filters={SELECTOR: "n > 2"}, **options)
    assert refused.name == "amqp:resource-locked"


def test_no_local_passes_nothing_over_for_those_who_share(gateway: RunningGateway, connect: Connect) -> None:
    """A consumer of a shared subscription leaves its own connection's messages to the others."""
    options: dict[str, Any] = {"name": "mine", "durable": True, "capabilities": ["topic", "shared", "global"]}
    client, other = connect(gateway), connect(gateway)
    own = client.receiver("topic://a", filters={SELECTOR: "n > 1", NO_LOCAL: []}, credit=10, **options)
    client.sender("topic://a").send_all(selectable(2))
    other.sender("topic://a").send_all(selectable(3))
    assert texts(own.take_and_accept(1)) == ["3"]
    assert texts(other.receiver("topic://a", filters={SELECTOR: "n > 1"}, credit=10, **options).take(1)) == [
        "2"
    ]


def test_a_durable_endpoint_has_one_consumer(gateway: RunningGateway, connect: Connect) -> None:
    """A second consumer of a durable topic endpoint is refused as locked, with the same topic and with another."""
    connect(gateway).receiver("topic://a", name="mine", durable=True)
    for address in ("topic://a", "topic://b"):
        assert (
            refusal(connect(gateway).receiver, address, name="mine", durable=True).name
            == "amqp:resource-locked"
        )


# --- nobody takes it, or nobody has room --------------------------------------------------------------------------


def test_a_log_for_some_topics(start: Start, connect: Connect) -> None:
    """A log with topics takes those alone; others are delivered where they match, or released."""
    log = ReplayLog(topics=("a/>", "!a/secret"))
    client = connect(start(Vpn(replay_log=log)))
    receiver = client.receiver("topic://a/secret", credit=1)
    outcomes = {}
    for topic in ("a/b", "a/secret", "other"):
        sender = client.sender(f"topic://{topic}")
        outcomes[topic] = sender.outcome(sender.send(data(topic)))
    assert outcomes == {"a/b": "ACCEPTED", "a/secret": "ACCEPTED", "other": "RELEASED"}
    assert texts(receiver.take(1)) == ["a/secret"]
    assert texts(client.receiver("log://>?replay-start=beginning").drain()) == ["a/b"]


def test_a_full_queue_rejects(start: Start, connect: Connect) -> None:
    """At its quota a queue's message is rejected with the reason, is stored nowhere, and fits once there is room."""
    client = connect(start(Vpn(queues={"q": Queue(quota_messages=3)})))
    sender = client.sender("q")
    deliveries = [sender.send(data(i)) for i in range(6)]
    assert [sender.outcome(delivery) for delivery in deliveries[:3]] == ["ACCEPTED"] * 3
    for delivery in deliveries[3:]:
        refused = sender.rejection(delivery)
        assert refused.name == "amqp:resource-limit-exceeded"
        assert refused.info["rewind:reason"]
        assert "'q'" in refused.text
    assert texts(client.receiver("log://>?replay-start=beginning").drain()) == ["0", "1", "2"]
    receiver = client.receiver("q", credit=1)
    receiver.take_and_accept(1)
    client.open_session()
    sender.send_all([data("fits")])
    assert sender.outcome(sender.send(data("does not"))) == "REJECTED"
    receiver.close()
    assert texts(client.receiver("q").drain()) == ["1", "2", "fits"]


def test_a_full_queue_by_size(start: Start, connect: Connect) -> None:
    """A quota in megabytes counts what lies on the queue, and a smaller message may fit where a larger does not."""
    client = connect(start(Vpn(queues={"q": Queue(quota_mb=1)})))
    sender = client.sender("q")
    sender.send_all([data(b"\x55" * 600_000)])
    assert sender.outcome(sender.send(data(b"\x55" * 600_000))) == "REJECTED"
    sender.send_all([data(b"\x55" * 300_000)])


def test_one_full_endpoint_rejects_for_all(start: Start, connect: Connect, tmp_path: Path) -> None:
    """A message that one of its endpoints has no room for is rejected, and lies on none of the others."""
    queues = {"full": Queue(subscriptions=("a",), quota_messages=1), "free": Queue(subscriptions=("a",))}
    client = connect(start(Vpn(queues=queues)))
    sender = client.sender("topic://a")
    deliveries = [sender.send(data(i)) for i in range(4)]
    assert [sender.outcome(d) for d in deliveries] == ["ACCEPTED", "REJECTED", "REJECTED", "REJECTED"]
    assert texts(client.receiver("free").drain()) == ["0"]
    assert texts(client.receiver("full").drain()) == ["0"]


def test_a_quota_counts_on_after_a_restart(start: Start, connect: Connect) -> None:
    """What lies on a queue counts against its quota after a restart as before."""
    gateway = start(Vpn(queues={"q": Queue(quota_messages=3)}))
    client = connect(gateway)
    client.sender("q").send_all([data(i) for i in range(2)])
    client.close()
    gateway.restart()
    client = connect(gateway)
    sender = client.sender("q")
    assert [sender.outcome(sender.send(data(i))) for i in range(2)] == ["ACCEPTED", "REJECTED"]


def give_up(client: Client, name: str, *capabilities: str) -> None:
    """Attach without a source and close: an unsubscribe."""
    link = client.receiver(None, name=name, capabilities=capabilities)
    assert link.link.remote_source.expiry_policy == Terminus.EXPIRE_NEVER
    link.close()


def numbers(messages: list[Received]) -> set[int]:
    return {int(text) for text in texts(messages)}


def test_consumers_of_a_shared_subscription_share_its_messages(client: Client) -> None:
    """Two links of a shared subscription get each message once between them; `name|2` is the second of `name`."""
    first = client.receiver(
        "topic://a/>", name="sub", durable=True, capabilities=["topic", "shared"], credit=100
    )
    second = client.receiver(
        "topic://a/>", name="sub|2", durable=True, capabilities=["topic", "shared"], credit=100
    )
    client.sender("topic://a/b").send_all(data(i) for i in range(100))
    client.wait(lambda: len(first.arrived) + len(second.arrived) == 100, "all 100 arrive")
    assert len(first.arrived) and len(second.arrived)
    assert numbers(list(first.arrived)) | numbers(list(second.arrived)) == set(range(100))


def test_a_durable_shared_subscription_keeps_messages_while_nobody_is_there(client: Client) -> None:
    """What is published after the last consumer went is there for the next."""
    options = {"durable": True, "capabilities": ["topic", "shared"]}
    client.receiver("topic://a/>", name="sub", **options).detach()  # type: ignore[arg-type]
    client.sender("topic://a/b").send_all(data(i) for i in range(5))
    again = client.receiver("topic://a/>", name="sub|3", **options)  # type: ignore[arg-type]
    assert texts(again.drain()) == [str(i) for i in range(5)]


def test_a_volatile_shared_subscription_ends_with_its_last_consumer(
    client: Client, gateway: RunningGateway
) -> None:
    """It outlives the first of two consumers, and is gone after the second."""
    first = client.receiver("topic://a/>", name="sub|volatile1", capabilities=["topic", "shared"])
    second = client.receiver("topic://a/>", name="sub|volatile2", capabilities=["topic", "shared"], credit=10)
    first.close()
    client.sender("topic://a/b").send_all([data("still there")])
    assert texts(second.take_and_accept(1)) == ["still there"]
    assert len(gateway.endpoints()) == 1
    second.close()
    client.wait(lambda: not gateway.endpoints(), "the endpoint is gone")


def test_a_shared_name_belongs_to_its_client_unless_it_is_global(
    client: Client, gateway: RunningGateway, connect: Connect
) -> None:
    """The same name from two containers is two subscriptions; with capability global it is one."""
    other = connect(gateway)
    mine = client.receiver("topic://a/>", name="sub", capabilities=["topic", "shared"], credit=10)
    theirs = other.receiver("topic://a/>", name="sub", capabilities=["topic", "shared"], credit=10)
    both = ["topic", "shared", "global"]
    one = client.receiver("topic://a/>", name="all|global", capabilities=both, credit=10)
    two = other.receiver("topic://a/>", name="all|global", capabilities=both, credit=10)
    client.sender("topic://a/b").send_all(data(i) for i in range(2))
    assert texts(mine.take(2)) == texts(theirs.take(2)) == ["0", "1"]
    client.wait(
        lambda: one.arrived or (two.client.wait(lambda: True, "a turn") and two.arrived), "somebody gets them"
    )


def test_unsubscribe_deletes_the_durable_subscription(client: Client, gateway: RunningGateway) -> None:
    """An attach without a source, closed, deletes the topic endpoint; a second one is refused as not found."""
    client.receiver("topic://a/>", name="sub", durable=True).detach()
    assert gateway.endpoints() == {"sub"}
    give_up(client, "sub")
    client.wait(lambda: not gateway.endpoints(), "the endpoint is gone")
    assert refusal(give_up, client, "sub").name == "amqp:not-found"


def test_unsubscribe_waits_for_no_consumer(client: Client, gateway: RunningGateway, connect: Connect) -> None:
    """While a consumer is attached, giving the subscription up is refused and changes nothing."""
    client.receiver("topic://a/>", name="sub", durable=True)
    assert refusal(give_up, connect(gateway), "sub").name == "amqp:resource-locked"
    assert gateway.endpoints() == {"sub"}


def test_unsubscribe_reaches_a_shared_subscription_by_its_name(
    client: Client, gateway: RunningGateway
) -> None:
    """With the capabilities it was made with, a shared one is given up, too."""
    client.receiver(
        "topic://a/>", name="sub|global", durable=True, capabilities=["topic", "shared", "global"]
    ).detach()
    give_up(client, "sub", "shared", "global")
    client.wait(lambda: not gateway.endpoints(), "the endpoint is gone")


@pytest.mark.parametrize("reach", [(), ("global",)])
def test_unsubscribe_needs_no_capabilities(
    client: Client, gateway: RunningGateway, reach: tuple[str, ...]
) -> None:
    """Qpid JMS gives up a shared subscription by its link name alone: it has no source to put capabilities on."""
    name = "sub|global" if reach else "sub"
    client.receiver("topic://a/>", name=name, durable=True, capabilities=["topic", "shared", *reach]).detach()
    give_up(client, name)
    client.wait(lambda: not gateway.endpoints(), "the endpoint is gone")


def test_detaching_without_closing_changes_nothing(client: Client, gateway: RunningGateway) -> None:
    """An attach without a source that is only detached leaves the subscription as it is."""
    client.receiver("topic://a/>", name="sub", durable=True).detach()
    client.receiver(None, name="sub").detach()
    assert gateway.endpoints() == {"sub"}


def test_a_subscription_is_shared_or_not(client: Client) -> None:
    """Attaching to a shared durable subscription as an unshared one of that name is refused, naming what it is."""

    client.receiver(
        "topic://a/>", name="sub", durable=True, capabilities=["topic", "shared", "global"]
    ).detach()
    assert "shared" in str(refusal(client.receiver, "topic://a/>", name="sub", durable=True))


@pytest.mark.parametrize("closed", [True, False])
def test_an_unsubscribe_in_one_write_is_one(client: Client, gateway: RunningGateway, closed: bool) -> None:
    """Attach and closing detach come before the attach could be answered: the subscription goes, if it is closed."""
    host, _, port = gateway.urls[0].rpartition("://")[2].rpartition(":")
    with Peer.opened((host, int(port))) as peer:
        peer.attach_receiver("topic://a/>", name="sub", expiry=Symbol("never"))
        peer.send(frame(DETACH, [UInt(0), False]))
        peer.expect(DETACH)
        assert gateway.endpoints() == {"sub"}
        peer.send(attach_frame(1, receiver=True, address=None, name="sub") + frame(DETACH, [UInt(1), closed]))
        peer.skip_to(ATTACH)
        peer.skip_to(DETACH)
        if closed:
            client.wait(lambda: not gateway.endpoints(), "the endpoint is gone")
        # The connection is as good as before.
        peer.attach_receiver("topic://b/>", name="other", expiry=Symbol("never"))
        assert gateway.endpoints() == ({"other"} if closed else {"sub", "other"})


def test_a_message_vpn_has_so_many_endpoints_and_no_more(start: Start, connect: Connect) -> None:
    """A queue on first use, a temporary one and a subscription are refused alike once the Message VPN is full."""
    gateway = start(vpn=Vpn(max_endpoints=2))
    client = connect(gateway)
    client.sender("one").send_all([data(1)])
    client.sender("two").send_all([data(2)])
    for attach in (
        lambda: client.sender("three"),
        lambda: client.receiver("topic://a/>"),
        lambda: client.receiver(None, dynamic=True),
    ):
        refused = refusal(attach)
        assert refused.name == "amqp:resource-limit-exceeded"
        assert "max_endpoints" in refused.text
    assert gateway.endpoints() == {"one", "two"}
    client.sender("one").send_all([data(3)])  # what is there is not refused


class FarClock(SystemClock):
    """A clock that can be moved on by hours."""

    def __init__(self) -> None:
        self.hours = 0

    def seconds(self) -> float:  # type: ignore[override]
        return time.perf_counter() + self.hours * 3_600


def test_a_subscription_that_nobody_uses_expires(
    start: Start, connect: Connect, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the hours that the settings say it is gone with what lies on it; one that has a consumer stays."""
    monkeypatch.setattr(expiry, "LOOK_SECONDS", 0.01)
    clock = given["clock"] = FarClock()
    gateway = start(vpn=Vpn(subscription_expiry_hours=2))
    client = connect(gateway)
    used = client.receiver("topic://a/>", name="used", durable=True)
    client.receiver("topic://a/>", name="left", durable=True).detach()
    client.sender("topic://a/b").send_all([data(1)])
    assert len(gateway.endpoints()) == 2

    def seen(gateway: Gateway) -> int:
        """One that is used can have been seen, too: in the moment before its consumer came."""
        services = gateway.vpns["default"]._services
        (unused,) = (one for one in services if isinstance(one, expiry.UnusedSubscriptions))
        return sum(not endpoint.flows for endpoint in unused._unused_since)

    client.wait(lambda: gateway.call(seen) == 1, "it was seen")
    clock.hours = 1
    client.sender("topic://a/b").send_all([data(2)])
    assert len(gateway.endpoints()) == 2
    clock.hours = 3
    client.wait(lambda: len(gateway.endpoints()) == 1, "the unused one is gone")
    used.close()
