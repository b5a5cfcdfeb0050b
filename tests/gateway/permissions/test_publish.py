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


def test_a_target_that_is_permitted(start: Start, login: Login) -> None:
    """A user publishes to the queues and topics of the list, in whatever form the address has."""
    client = login(start(ann={"publish": ["queue://orders*", "topic://flights/>"]}), "ann")
    for address in ("orders", "queue://orders-eu", "/queues/orders", "topic://flights/JFK"):
        client.sender(address).send_all([data("x")])
    client.sender("flights/JFK", capabilities=["topic"]).send_all([data("x")])


@pytest.mark.parametrize(
    ("address", "rule"),
    [
        ("others", "no pattern of publish"),
        ("queue://flights/JFK", "no pattern of publish"),
        ("topic://orders", "no pattern of publish"),
        ("topic://flights/secret/x", "publish !topic://flights/secret/>"),
        ("topic://#queue/others", "no pattern of publish"),
    ],
)
def test_a_target_that_is_not_permitted(
    start: Start, login: Login, logged: list[Line], address: str, rule: str
) -> None:
    """A refused target is `amqp:unauthorized-access`, the log names the rule, and no queue is made."""
    gateway = start(ann={"publish": ["queue://orders", "topic://flights/>", "!topic://flights/secret/>"]})
    client = login(gateway, "ann")
    with pytest.raises(Refused) as refused:
        client.sender(address)
    assert refused.value.name == UNAUTHORIZED
    assert refused.value.text.startswith("user 'ann' may not publish to ")
    assert not refused.value.info
    assert refusals(logged, "attach_refused") == [(address, rule)]
    assert gateway.endpoints() == set()
    client.sender("orders").send_all([data("the connection goes on")])


def test_the_rule_is_not_told_to_the_peer(start: Start, login: Login, logged: list[Line]) -> None:
    """What a user may do elsewhere is nobody's business: the rule is in the log alone."""
    client = login(start(ann={"publish": ["topic://a/>", "!topic://a/secret"]}), "ann")
    with pytest.raises(Refused) as refused:
        client.sender("topic://a/secret")
    assert refused.value.text == "user 'ann' may not publish to topic://a/secret"
    (line,) = [line for line in logged if line["event"] == "attach_refused"]
    assert (line["user"], line["condition"]) == ("ann", UNAUTHORIZED)


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


# --- Who may receive what -------------------------------------------------------------------------------------------

START = {"rewind:replay-start": "beginning"}


def rules(logged: list[Line]) -> list[str]:
    """The rules that refused an attach, as logged."""
    return [line["rule"] for line in logged if line["event"] == "attach_refused"]


def test_queues_that_are_permitted_and_not(start: Start, login: Login, logged: list[Line]) -> None:
    """A user consumes from the queues of the list; another one is refused, and is not made."""
    gateway = start(ann={"consume": ["queue://orders", "queue://eu/>", "!queue://eu/secret"]})
    client = login(gateway, "ann")
    client.receiver("orders")
    client.receiver("queue://eu/paris")
    for address in ("others", "eu/secret"):
        with pytest.raises(Refused) as refused:
            client.receiver(address)
        assert refused.value.name == UNAUTHORIZED
        assert refused.value.text == f"user 'ann' may not consume queue://{address}"
    assert gateway.endpoints() == {"orders", "eu/paris"}
    assert rules(logged) == ["no pattern of consume", "consume !queue://eu/secret"]


@pytest.mark.parametrize("durable", [False, True])
def test_subscriptions_that_are_permitted_and_not(start: Start, login: Login, durable: bool) -> None:
    """A subscription is permitted when all it matches is; a wider one is refused and leaves nothing behind."""
    gateway = start(ann={"consume": ["topic://flights/>", "!topic://flights/secret"]})
    client = login(gateway, "ann")
    client.receiver("topic://flights/JFK/*", name="mine", durable=durable)
    before = gateway.endpoints()
    for address in (
        "topic://>",
        "topic://*/JFK",
        "topic://flights/*",
        "topic://#queue/orders",
        "flights/JFK",
    ):
        with pytest.raises(Refused, match=UNAUTHORIZED):
            client.receiver(address, durable=durable)
    assert gateway.endpoints() == before


@pytest.mark.parametrize(
    ("address", "is_permitted"),
    [
        ("log://flights/>", True),
        ("log://flights/JFK/*", True),
        ("log://>", False),
        ("log://*/>", False),
        ("log://!flights/>", False),
        ("log://#queue/hub", True),
        ("hub/ConsumerGroups/$default/Partitions/0", True),
        ("other/ConsumerGroups/$default/Partitions/0", False),
    ],
)
def test_the_log_is_read_as_far_as_permitted(
    start: Start, login: Login, address: str, is_permitted: bool
) -> None:
    """A log reader gets all it asks for or is refused with a sentence; nothing is left out in silence."""
    client = login(start(ann={"consume": ["log://flights/>", "log://#queue/hub"]}), "ann")
    if is_permitted:
        client.receiver(address, filters=START)
    else:
        with pytest.raises(Refused) as refused:
            client.receiver(address, filters=START)
        assert refused.value.name == UNAUTHORIZED
        assert refused.value.text.endswith(": all that it matches has to be permitted")


def test_a_replay_needs_consume(start: Start, login: Login) -> None:
    """Without a `replay` list, who may consume from an endpoint may replay it, and nobody else may."""
    gateway = start(ann={}, bob={"consume": ["queue://mine", "topic://a/>"]})
    login(gateway, "ann").sender("mine").send_all([data(i) for i in range(3)])
    bob = login(gateway, "bob")
    receiver = bob.receiver("mine", filters=START, credit=3)
    assert texts(receiver.take_and_accept(3)) == ["0", "1", "2"]
    bob.receiver("topic://a/b", filters=START)
    with pytest.raises(Refused, match="may not consume queue://others"):
        bob.receiver("others", filters=START)


def test_a_replay_needs_its_own_rule_where_there_is_a_list(
    start: Start, login: Login, logged: list[Line]
) -> None:
    """With a `replay` list a start is refused for what is not on it; consuming live is as permitted as before."""
    gateway = start(ann={"consume": ["queue://>", "topic://>"], "replay": ["queue://mine", "topic://a/>"]})
    client = login(gateway, "ann")
    client.receiver("mine", filters=START).close()
    client.receiver("topic://a/b", filters=START)
    client.receiver("others", filters={"rewind:replay-start": "live"}).close()
    for address in ("others", "others?replay-start=beginning", "topic://*/b"):
        with pytest.raises(Refused, match="may not replay") as refused:
            client.receiver(address, filters=None if "?" in address else START)
        assert refused.value.name == UNAUTHORIZED
    assert rules(logged) == ["no pattern of replay"] * 3


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


def as_browser(link: Link) -> None:
    """Ask for copies."""
    link.source.distribution_mode = Terminus.DIST_MODE_COPY


def test_who_may_browse_may_not_take(start: Start, login: Login) -> None:
    """A queue on the `browse` list is looked at by a browser, and not consumed from."""
    gateway = start(ann={}, bob={"browse": ["queue://orders"]})
    login(gateway, "ann").sender("orders").send_all([data("x")])
    bob = login(gateway, "bob")
    assert texts(bob.receiver("orders", set_up=as_browser, credit=1).take(1)) == ["x"]
    with pytest.raises(Refused, match="may not consume queue://orders"):
        bob.receiver("orders")
    with pytest.raises(Refused, match="may not browse queue://others"):
        bob.receiver("others", set_up=as_browser)
    assert gateway.depth("orders") == 1
    assert gateway.endpoints() == {"orders"}


def test_who_may_consume_may_browse(start: Start, login: Login) -> None:
    """To look is less than to take: the `consume` list permits both. A subscription that asks for copies is one."""
    bob = login(start(bob={"consume": ["queue://orders"], "browse": []}), "bob")
    bob.receiver("orders", set_up=as_browser)
    with pytest.raises(Refused, match="may not consume topic://orders"):
        bob.receiver("topic://orders", set_up=as_browser)


def test_publishing_is_no_consuming(start: Start, login: Login) -> None:
    """Each action has its own list: who may publish to a queue may not consume from it, and the other way round."""
    gateway = start(ann={"publish": ["queue://orders"]}, bob={"consume": ["queue://orders"]})
    ann, bob = login(gateway, "ann"), login(gateway, "bob")
    ann.sender("orders").send_all([data("x")])
    with pytest.raises(Refused, match="may not consume"):
        ann.receiver("orders")
    with pytest.raises(Refused, match="may not publish"):
        bob.sender("orders")
    assert texts(bob.receiver("orders", credit=1).take(1)) == ["x"]


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


# --- Who may read a stream ------------------------------------------------------------------------------------------

BEGINNING = {"rewind:replay-start": "beginning"}
AUDIT = Vpn(queues={"audit": Queue(kind="stream", subscriptions=("flights/>",)), "orders": Queue()})


def copies(link: Link) -> None:
    """Sets up a link with distribution mode copy."""
    link.source.distribution_mode = Terminus.DIST_MODE_COPY


def test_consume_is_all_a_reader_needs(start: Start, login: Login) -> None:
    """With `consume` on the stream a user reads all that it shows, from any start, whatever `replay` and `log` say."""
    gateway = start(
        vpn=AUDIT,
        ann={"consume": ["queue://audit", "queue://orders"], "replay": ["queue://others"]},
        bob={"publish": ["topic://flights/>"]},
    )
    login(gateway, "bob").sender("topic://flights/JFK").send_all([data(1)])
    client = login(gateway, "ann")
    assert texts(client.receiver("audit", filters=BEGINNING).drain()) == ["1"]
    with pytest.raises(Refused, match=UNAUTHORIZED):
        client.receiver("orders", filters=BEGINNING)
    with pytest.raises(Refused, match=UNAUTHORIZED):
        client.receiver("log://flights/>", filters=BEGINNING)


def test_a_stream_that_is_made_needs_no_more(start: Start, login: Login) -> None:
    """The attach that makes a stream brings a start by the same right; one to a queue that is not there does not."""
    gateway = start(ann={"consume": ["queue://audit"], "replay": []})
    client = login(gateway, "ann")
    with pytest.raises(Refused, match=UNAUTHORIZED):
        client.receiver("audit", filters=BEGINNING)
    assert gateway.endpoints() == set()
    client.receiver("audit?kind=stream", filters=BEGINNING)
    client.receiver("audit", filters=BEGINNING)


def test_a_stream_that_is_not_permitted(start: Start, login: Login, logged: list[Line]) -> None:
    """Without `consume` on its address a stream is not read, whatever may be read of the log, and none is made."""
    gateway = start(vpn=AUDIT, ann={"consume": ["log://>", "queue://mine"]})
    client = login(gateway, "ann")
    for address in ("audit", "other?kind=stream"):
        with pytest.raises(Refused) as refused:
            client.receiver(address, filters=BEGINNING)
        assert refused.value.name == UNAUTHORIZED
    assert gateway.endpoints() == {"audit", "orders"}
    assert [line["rule"] for line in logged] == ["no pattern of consume"] * 2


def test_browsing_a_stream_is_reading_it(start: Start, login: Login) -> None:
    """Distribution mode copy needs `browse` and gets any start; without it, `browse` is not enough."""
    gateway = start(vpn=AUDIT, ann={"browse": ["queue://audit"]}, bob={})
    login(gateway, "bob").sender("audit").send_all([data(1)])
    client = login(gateway, "ann")
    assert texts(client.receiver("audit", filters=BEGINNING, set_up=copies).drain()) == ["1"]
    with pytest.raises(Refused, match=UNAUTHORIZED):
        client.receiver("audit", filters=BEGINNING)


def test_sending_to_a_stream_is_publishing(start: Start, login: Login) -> None:
    """A user sends to a stream with `publish` on its address, and makes one by it."""
    client = login(start(vpn=AUDIT, ann={"publish": ["queue://audit", "queue://new"]}), "ann")
    client.sender("audit").send_all([data(1)])
    client.sender("new?kind=stream").send_all([data(1)])
    with pytest.raises(Refused, match=UNAUTHORIZED):
        client.sender("other?kind=stream")
