"""Who may send what: by the link's target, and by each message's `to`."""

from __future__ import annotations

import pytest
from proton import Described, Link, Terminus, symbol, ulong

from gateway.amqp.links.publisher import DENIED_ADDRESSES
from tests.gateway.permissions.conftest import Line, Login, Start
from tests.support.client import Client, Refused, texts
from tests.support.messages import data, message_to

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
