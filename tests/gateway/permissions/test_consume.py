"""Who may receive what: queues, subscriptions, the log, and replays of them."""

from __future__ import annotations

import pytest
from proton import Link, Terminus

from gateway.config import Queue, Vpn
from tests.gateway.permissions.conftest import Line, Login, Start
from tests.support.client import Refused, texts
from tests.support.messages import data

UNAUTHORIZED = "amqp:unauthorized-access"
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
