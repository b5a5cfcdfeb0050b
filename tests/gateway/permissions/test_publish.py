"""Who may send what: by the link's target, and by each message's `to`."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Described, Link, Terminus, symbol, ulong

from gateway.amqp.links.publisher import DENIED_ADDRESSES
from gateway.config import Queue, Vpn
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity
from tests.gateway.permissions.conftest import Line, Login, Start
from tests.support.client import Client, Receiver, Refused, texts
from tests.support.messages import data, message_to
from tests.support.running import RunningGateway

# --- Who may send what ----------------------------------------------------------------------------------------------

UNAUTHORIZED = "amqp:unauthorized-access"


def refusals(logged: list[Line], event: str) -> list[tuple[str, str]]:
    """Address and rule of each refusal logged."""
    return [(line["address"], line["rule"]) for line in logged if line["event"] == event]


AUDIT = Vpn(queues={"audit": Queue(kind="stream", subscriptions=("flights/>",)), "orders": Queue()})
LISTS = {
    "sends": {"publish": ["queue://orders*", "queue://new", "topic://flights/>", "!topic://flights/secret/>"]},
    "takes": {"consume": ["queue://orders", "topic://flights/>", "!topic://flights/secret", "queue://eu/>", "!queue://eu/no"]},
    "reads": {"consume": ["log://flights/>", "log://#queue/hub", "queue://mine"]},
    "rewinds": {"consume": ["queue://>", "topic://>"], "replay": ["queue://mine", "topic://a/>"]},
    "watches": {"consume": ["queue://orders", "queue://audit", "queue://made", "queue://later"], "replay": []},
    "looks": {"browse": ["queue://orders", "queue://audit"]},
    "both": {"consume": ["queue://orders"], "browse": []},
}  # fmt: skip


def copies(link: Link) -> None:
    """Sets up a link with distribution mode copy."""
    link.source.distribution_mode = Terminus.DIST_MODE_COPY


START = {"filters": {"rewind:replay-start": "beginning"}}
LIVE = {"filters": {"rewind:replay-start": "live"}}
COPY = {"set_up": copies}
DURABLE = {"name": "for good", "durable": True}

PERMITTED: list[tuple[str, str, str, dict[str, Any]]] = [
    # The user, what the client makes, its address, and what else it says of the link.
    ("sends", "sender", "orders", {}),
    ("sends", "sender", "queue://orders-eu", {}),
    ("sends", "sender", "/queues/orders", {}),
    ("sends", "sender", "topic://flights/JFK", {}),
    ("sends", "sender", "flights/JFK", {"capabilities": ["topic"]}),
    ("sends", "sender", "new?kind=stream", {}),
    ("takes", "receiver", "orders", {}),
    ("takes", "receiver", "queue://eu/paris", {}),
    ("takes", "receiver", "topic://flights/JFK/*", {}),
    ("takes", "receiver", "topic://flights/JFK/*", DURABLE),
    # Without a `replay` list who may consume may replay.
    ("takes", "receiver", "topic://flights/x", START),
    ("takes", "receiver", "orders", START),
    ("reads", "receiver", "log://flights/>", START),
    ("reads", "receiver", "log://flights/JFK/*", START),
    ("reads", "receiver", "log://#queue/hub", START),
    ("reads", "receiver", "hub/ConsumerGroups/$default/Partitions/0", START),
    # With one, consuming live is as permitted as before.
    ("rewinds", "receiver", "mine", START),
    ("rewinds", "receiver", "topic://a/b", START),
    ("rewinds", "receiver", "others", LIVE),
    # What a stream shows is read with `consume` on it alone, from any start, whatever `replay` and `log` say.
    ("watches", "receiver", "audit", START),
    ("watches", "receiver", "made?kind=stream", START),
    ("looks", "receiver", "orders", COPY),
    ("looks", "receiver", "audit", COPY | START),
    ("both", "receiver", "orders", COPY),
]

ALL = ": all that it matches has to be permitted"
ANOTHER_HUB = "other/ConsumerGroups/$default/Partitions/0"

REFUSED: list[tuple[str, str, str, dict[str, Any], str, str]] = [
    # The same, what the client is told that the user may not, and the rule, which the gateway's log alone has.
    ("sends", "sender", "elsewhere", {}, "publish to queue://elsewhere", "no pattern of publish"),
    ("sends", "sender", "queue://flights/JFK", {}, "publish to queue://flights/JFK", "no pattern of publish"),
    ("sends", "sender", "topic://orders", {}, "publish to topic://orders", "no pattern of publish"),
    ("sends", "sender", "topic://#queue/no", {}, "publish to topic://#queue/no", "no pattern of publish"),
    ("sends", "sender", "other?kind=stream", {}, "publish to queue://other", "no pattern of publish"),
    ("sends", "sender", "topic://flights/secret/x", {}, "publish to topic://flights/secret/x", "publish !topic://flights/secret/>"),
    ("sends", "receiver", "orders", {}, "consume queue://orders", "no consume list"),
    ("takes", "sender", "orders", {}, "publish to queue://orders", "no publish list"),
    ("takes", "receiver", "no", {}, "consume queue://no", "no pattern of consume"),
    ("takes", "receiver", "no", START, "consume queue://no", "no pattern of consume"),
    ("takes", "receiver", "eu/no", {}, "consume queue://eu/no", "consume !queue://eu/no"),
    ("takes", "receiver", "flights/JFK", {}, "consume queue://flights/JFK", "no pattern of consume"),
    ("takes", "receiver", "topic://>", {}, f"consume topic://>{ALL}", "consume !topic://flights/secret"),
    ("takes", "receiver", "topic://>", DURABLE, f"consume topic://>{ALL}", "consume !topic://flights/secret"),
    ("takes", "receiver", "topic://*/JFK", {}, f"consume topic://*/JFK{ALL}", "no pattern of consume"),
    ("takes", "receiver", "topic://flights/*", {}, f"consume topic://flights/*{ALL}", "consume !topic://flights/secret"),
    ("takes", "receiver", "topic://#queue/o", {}, f"consume topic://#queue/o{ALL}", "no pattern of consume"),
    ("reads", "receiver", "log://>", START, f"consume log://>{ALL}", "no pattern of consume"),
    ("reads", "receiver", "log://*/>", START, f"consume log://*/>{ALL}", "no pattern of consume"),
    ("reads", "receiver", "log://!flights/>", START, f"consume log://!flights/>{ALL}", "no pattern of consume"),
    ("reads", "receiver", ANOTHER_HUB, START, f"consume log://#queue/other{ALL}", "no pattern of consume"),
    ("reads", "receiver", "audit", START, "consume queue://audit", "no pattern of consume"),
    ("reads", "receiver", "other?kind=stream", START, "consume queue://other", "no pattern of consume"),
    ("rewinds", "receiver", "others", START, "replay queue://others", "no pattern of replay"),
    ("rewinds", "receiver", "others?replay-start=beginning", {}, "replay queue://others", "no pattern of replay"),
    ("rewinds", "receiver", "topic://*/b", START, f"replay topic://*/b{ALL}", "no pattern of replay"),
    ("watches", "receiver", "orders", START, "replay queue://orders", "no pattern of replay"),
    ("watches", "receiver", "later", START, "replay queue://later", "no pattern of replay"),
    ("watches", "receiver", "log://flights/>", START, f"consume log://flights/>{ALL}", "no pattern of consume"),
    ("looks", "receiver", "orders", {}, "consume queue://orders", "no consume list"),
    ("looks", "receiver", "no", COPY, "browse queue://no", "no pattern of browse"),
    ("looks", "receiver", "audit", START, "consume queue://audit", "no consume list"),
    ("both", "receiver", "topic://orders", COPY, f"consume topic://orders{ALL}", "no pattern of consume"),
]  # fmt: skip


def test_links_are_made_as_lists_permit_and_no_others(start: Start, login: Login, logged: list[Line]) -> None:
    """
    A refusal is `amqp:unauthorized-access` with a sentence; the rule is in the log alone, as what a user may do
    elsewhere is nobody's business. Nothing is made for who is refused, and the connection goes on.
    """
    gateway = start(vpn=AUDIT, all={}, **LISTS)
    clients = {name: login(gateway, name) for name in LISTS}
    login(gateway, "all").sender("orders").send_all([data("x")])
    for user, role, address, more in PERMITTED:
        link = getattr(clients[user], role)(address, **more)
        if role == "sender":
            link.send_all([data("x")])
        link.close()
    assert logged == []
    there = gateway.endpoints()
    for user, role, address, more, what, rule in REFUSED:
        with pytest.raises(Refused) as refused:
            getattr(clients[user], role)(address, **more)
        assert refused.value.name == UNAUTHORIZED
        assert (refused.value.text, refused.value.info) == (f"user {user!r} may not {what}", {}), address
        (line,) = logged
        assert (line["event"], line["user"], line["condition"]) == ("attach_refused", user, UNAUTHORIZED)
        assert (line["address"], line["rule"]) == (address, rule)
        logged.clear()
    assert gateway.endpoints() == there


def test_every_message_of_the_relay_is_decided_on(start: Start, login: Login, logged: list[Line]) -> None:
    """On the anonymous relay a message to a forbidden address is rejected, and those around it are accepted."""
    gateway = start(ann={"publish": ["queue://orders"], "consume": ["queue://orders"]})
    client = login(gateway, "ann")
    sender = client.sender(None)
    for _ in range(2):
        deliveries = [
            sender.send(message_to(to, to)) for to in ("orders", "others", "queue://orders", "topic://orders")
        ]
        assert sender.outcome(deliveries[0]) == sender.outcome(deliveries[2]) == "ACCEPTED"
        for denied in (deliveries[1], deliveries[3]):
            assert sender.rejection(denied).name == UNAUTHORIZED
    assert gateway.endpoints() == {"orders"}
    assert texts(client.receiver("orders").drain()) == ["orders", "queue://orders"] * 2
    nowhere = "no pattern of publish"
    assert refusals(logged, "publish_refused") == [("others", nowhere), ("topic://orders", nowhere)]


def test_what_one_user_may_another_may_not(start: Start, login: Login) -> None:
    """What the relay remembers of an address for one user says nothing for another one."""
    gateway = start(ann={}, bob={"publish": ["queue://bob"]})
    ann, bob = login(gateway, "ann").sender(None), login(gateway, "bob").sender(None)
    assert ann.outcome(ann.send(message_to("orders", "a"))) == "ACCEPTED"
    assert bob.rejection(bob.send(message_to("orders", "b"))).name == UNAUTHORIZED
    assert bob.outcome(bob.send(message_to("bob", "b"))) == "ACCEPTED"
    assert gateway.depth("orders") == 1


def test_a_settled_message_that_is_not_permitted_goes_nowhere(
    start: Start, login: Login, logged: list[Line]
) -> None:
    """A pre-settled message costs its link, there being no other way to tell, and the log has its address and rule."""
    gateway = start(ann={"publish": ["queue://orders"]}, bob={})
    ann = login(gateway, "ann")
    sender = ann.sender(None)
    sender.send(message_to("others", "x"), settled=True)
    assert sender.detached_by_peer().name == UNAUTHORIZED
    ann.sender(None).send_all([message_to("orders", "y")])
    assert gateway.endpoints() == {"orders"}
    assert refusals(logged, "publish_refused") == [("others", "no pattern of publish")]


def test_a_peer_cannot_fill_the_log_with_refusals(start: Start, login: Login, logged: list[Line]) -> None:
    """However many forbidden addresses a link sends to, at most so many of them are logged."""
    sender = login(start(ann={"publish": []}), "ann").sender(None)
    deliveries = [sender.send(message_to(f"q{i}", "x")) for i in range(DENIED_ADDRESSES + 20)]
    assert {sender.rejection(delivery).name for delivery in deliveries} == {UNAUTHORIZED}
    assert 0 < len(refusals(logged, "publish_refused")) <= DENIED_ADDRESSES


def test_a_reply_needs_no_rule(start: Start, login: Login) -> None:
    """Who was given the name of a temporary queue may send to it; nobody but who made it may consume from it."""
    gateway = start(
        asking={"publish": ["queue://requests"]},
        answering={"consume": ["queue://requests", "queue://>"]},
    )
    asking, answering = login(gateway, "asking"), login(gateway, "answering")
    replies = asking.receiver(None, dynamic=True, credit=1)
    asking.sender("requests").send_all([data("?")])
    answering.receiver("requests", credit=1).take_and_accept(1)
    with pytest.raises(Refused, match=UNAUTHORIZED):
        answering.receiver(replies.address)
    answer = answering.sender(None)
    assert answer.outcome(answer.send(message_to(replies.address, "!"))) == "ACCEPTED"
    answering.sender(replies.address)
    assert texts(replies.take(1)) == ["!"]


def test_a_temporary_queue_that_is_gone_needs_one(start: Start, login: Login) -> None:
    """The name of a temporary queue permits nothing once the queue is gone, whatever was remembered of it."""
    gateway = start(asking={"publish": []}, answering={"publish": []})
    asking, answering = login(gateway, "asking"), login(gateway, "answering")
    replies = asking.receiver(None, dynamic=True, credit=1)
    answer = answering.sender(None)
    assert answer.outcome(answer.send(message_to(replies.address, "!"))) == "ACCEPTED"
    replies.close()
    assert answer.rejection(answer.send(message_to(replies.address, "!"))).name == UNAUTHORIZED
    with pytest.raises(Refused, match=UNAUTHORIZED):
        asking.sender(replies.address)
    assert gateway.endpoints() == set()


def test_a_temporary_queue_made_by_a_sender_is_read_by_its_connection(start: Start, login: Login) -> None:
    """JMS clients make a temporary queue with one link and consume from it with another of the same connection."""
    client = login(start(ann={"publish": []}), "ann")
    maker = client.sender(None, dynamic=True)
    receiver = client.receiver(maker.address, credit=1)
    maker.send_all([data("x")])
    assert texts(receiver.take(1)) == ["x"]


@pytest.mark.parametrize("maker", ["sender", "receiver"])
def test_a_temporary_topic_is_open_as_a_temporary_queue_is(start: Start, login: Login, maker: str) -> None:
    """Whoever has a temporary topic's name may send to it; only its maker's connection may subscribe, while it is."""
    gateway = start(ann={"publish": []}, bob={"publish": [], "consume": ["topic://>"]})
    ann, bob = login(gateway, "ann"), login(gateway, "bob")
    made = getattr(ann, maker)(None, dynamic=True, capabilities=["temporary-topic"])
    receiver = ann.receiver(made.address, credit=1)
    bob.sender(made.address).send_all([data("!")])
    assert texts(receiver.take(1)) == ["!"]
    with pytest.raises(Refused, match=UNAUTHORIZED):
        bob.receiver(made.address)
    made.close()
    for refused in (bob.sender, ann.receiver):
        with pytest.raises(Refused, match=UNAUTHORIZED):
            refused(made.address)


def test_nobody_without_users_needs_a_rule(start: Start) -> None:
    """Where no users are configured, everything is open to who is let in."""
    gateway = start()
    with Client(gateway.url) as client:
        client.sender("orders").send_all([data("x")])
        client.sender(None).send_all([message_to("topic://#queue/orders", "y")])
        assert texts(client.receiver("log://>", filters={"rewind:replay-start": "beginning"}).drain()) == [
            "x",
            "y",
        ]
        link = client.receiver("orders").link
        assert link.remote_source.type == Terminus.SOURCE


def test_a_temporary_queue_that_lives_on_is_its_users(start: Start, login: Login) -> None:
    """When the link that made it is gone, any connection of its user may consume from it, and no other user's."""
    gateway = start(ann={"publish": []}, bob={"publish": [], "consume": ["queue://>"]})
    first, second, bob = login(gateway, "ann"), login(gateway, "ann"), login(gateway, "bob")

    def until_empty(link: Link) -> None:
        link.target.properties.put_object({symbol("lifetime-policy"): Described(ulong(0x2D), [])})

    maker = first.sender(None, dynamic=True, set_up=until_empty)
    maker.send_all([data("x")])
    with pytest.raises(Refused, match=UNAUTHORIZED):
        second.receiver(maker.address)
    first.close()
    with pytest.raises(Refused, match=UNAUTHORIZED):
        bob.receiver(maker.address)
    assert texts(second.receiver(maker.address, credit=1).take_and_accept(1)) == ["x"]
    second.wait(lambda: maker.address not in gateway.endpoints(), "the queue is deleted")


def test_a_replay_that_the_queue_asks_for_is_not_the_user_s(start: Start, login: Login) -> None:
    """A queue's `default_start` was decided on by who configured it: consuming is enough."""
    vpn = Vpn(queues={"orders": Queue(default_start="beginning")})
    gateway = start(vpn=vpn, ann={"publish": ["queue://orders"], "consume": ["queue://orders"], "replay": []})
    client = login(gateway, "ann")
    client.sender("orders").send_all([data("x")])
    for _ in range(2):
        receiver = client.receiver("orders", credit=1)
        assert texts(receiver.take_and_accept(1)) == ["x"]
        receiver.close()


def test_somebody_s_durable_subscription_is_not_taken_over(start: Start, login: Login) -> None:
    """A durable topic endpoint is found by its name: with another subscription it would be dropped, so that needs
    a right to what it has."""
    gateway = start(ann={}, bob={"consume": ["topic://b/>"]})
    ann, bob = login(gateway, "ann"), login(gateway, "bob")
    ann.receiver("topic://a/>", name="subscription", durable=True).detach()
    ann.sender("topic://a/x").send_all([data("kept")])
    with pytest.raises(Refused, match="may not consume topic://a/>") as refused:
        bob.receiver("topic://b/>", name="subscription", durable=True)
    assert refused.value.name == UNAUTHORIZED
    again = ann.receiver("topic://a/>", name="subscription", durable=True, credit=1)
    assert texts(again.take_and_accept(1)) == ["kept"]


# --- A durable subscription is its user's, whatever topics others may receive ---------------------------------------


def durable(link: Link) -> None:
    link.source.durability = Terminus.DELIVERIES
    link.source.expiry_policy = Terminus.EXPIRE_NEVER


def subscribe(client: Client, topic: str = "a/>", name: str = "sub", **more: Any) -> Receiver:
    """A durable subscription."""
    return client.receiver(f"topic://{topic}", name=name, set_up=durable, credit=10, **more)


def unsubscribe(client: Client, name: str = "sub", **more: Any) -> None:
    """Give a subscription up."""
    client.receiver(None, name=name, set_up=durable, **more).close()


SHARED = {"capabilities": ["topic", "shared"]}
GLOBAL = {"capabilities": ["topic", "shared", "global"]}


@pytest.mark.parametrize("more", [{}, SHARED], ids=["plain", "shared"])
@pytest.mark.parametrize(
    "rules", [{}, {"consume": ["topic://>"]}, {"consume": ["topic://a/>"]}], ids=["all", "topics", "topic"]
)
def test_nobody_else_has_it(start: Start, login: Login, more: Any, rules: Any) -> None:
    """Another user who may receive its topics, and calls his container alike, neither takes from it nor ends it."""
    gateway = start(ann={}, bob=rules, cid={})
    ann = login(gateway, "ann", container="same")
    subscribe(ann, **more).detach()
    login(gateway, "cid").sender("topic://a/1").send_all([data("kept")])
    bob = login(gateway, "bob", container="same")
    for steal in (
        lambda: subscribe(bob, **more),
        lambda: subscribe(bob, "a/1", **more),
        lambda: unsubscribe(bob, **more),
    ):
        with pytest.raises(Refused) as refused:
            steal()
        assert refused.value.name == UNAUTHORIZED
    assert texts(subscribe(ann, **more).take(1)) == ["kept"]


def test_its_user_has_it_on_any_connection(start: Start, login: Login) -> None:
    """Taken, given another topic, and given up, each on a connection of its own."""
    gateway = start(ann={}, bob={})
    subscribe(login(gateway, "ann")).detach()
    login(gateway, "bob").sender("topic://a/1").send_all([data("kept")])
    other = login(gateway, "ann")
    receiver = subscribe(other)
    assert texts(receiver.take(1)) == ["kept"]
    receiver.detach()
    subscribe(other, "b/>").detach()
    assert gateway.subscriptions("sub") == ["b/>"]
    unsubscribe(login(gateway, "ann"))
    other.wait(lambda: "sub" not in gateway.endpoints(), "it is gone")


def test_what_everybody_shares_is_ended_by_who_made_it(start: Start, login: Login) -> None:
    """Whoever may receive its topics takes from it; its topic is changed, and it is given up, by its user alone."""
    gateway = start(ann={}, bob={"consume": ["topic://a/>"], "publish": ["topic://a/>"]})
    subscribe(login(gateway, "ann"), **GLOBAL).detach()
    bob = login(gateway, "bob")
    receiver = subscribe(bob, **GLOBAL)
    bob.sender("topic://a/1").send_all([data(1)])
    receiver.settle(receiver.take(1))
    receiver.detach()
    for end in (lambda: subscribe(bob, "a/1", **GLOBAL), lambda: unsubscribe(bob, **GLOBAL)):
        with pytest.raises(Refused, match="another user's"):
            end()
    unsubscribe(login(gateway, "ann"), **GLOBAL)


def made_by_administrator(gateway: RunningGateway) -> None:
    """A topic endpoint that is no user's."""

    async def make(running: Any) -> None:
        vpn = running.vpns["default"]
        settings = EndpointSettings(exclusive=Exclusivity.REFUSE)
        vpn.endpoints.create("sub", EndpointKind.TOPIC_ENDPOINT, settings, ["a/>"])
        await vpn.committer.committed()

    gateway.run_coroutine(make)


def test_what_an_administrator_made_is_ended_by_one(start: Start, login: Login) -> None:
    """It is received from by whoever may receive its topics; to end it is to administer them."""
    gateway = start(
        ann={"consume": ["topic://a/>"]}, root={"consume": ["topic://a/>"], "administer": ["topic://a/>"]}
    )
    made_by_administrator(gateway)
    ann = login(gateway, "ann")
    subscribe(ann).detach()
    for end in (lambda: subscribe(ann, "a/1"), lambda: unsubscribe(ann)):
        with pytest.raises(Refused, match="may not administer"):
            end()
    root = login(gateway, "root")
    unsubscribe(root)
    root.wait(lambda: "sub" not in gateway.endpoints(), "it is gone")
