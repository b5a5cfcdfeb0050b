"""A durable subscription is its user's, whatever topics others may receive."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Link, Terminus

from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity
from tests.gateway.permissions.conftest import Login, Start
from tests.support.client import Client, Receiver, Refused, texts
from tests.support.messages import data
from tests.support.running import RunningGateway

UNAUTHORIZED = "amqp:unauthorized-access"


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
