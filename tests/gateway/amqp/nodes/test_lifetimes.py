"""How long dynamic nodes live: the four policies of AMQP 1.0, with links, messages and connections that go."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from proton import Described, Link, symbol, ulong

from amqp_ext.terminus_fields import Lifetime
from tests.gateway.amqp.conftest import Connect
from tests.support.client import Client, Receiver, Sender, browsing, refusal, texts
from tests.support.messages import data
from tests.support.running import RunningGateway

CLOSE, NO_LINKS = Lifetime.DELETE_ON_CLOSE, Lifetime.DELETE_ON_NO_LINKS
NO_MESSAGES, NO_LINKS_OR_MESSAGES = Lifetime.DELETE_ON_NO_MESSAGES, Lifetime.DELETE_ON_NO_LINKS_OR_MESSAGES


def living(policy: Any, *, key: str = "lifetime-policy") -> Callable[[Link], None]:
    """Sets up a dynamic node with a policy: a `Lifetime`, or whatever the wire takes."""
    value = Described(ulong(policy.code), []) if isinstance(policy, Lifetime) else policy

    def set_up(link: Link) -> None:
        node = link.target if link.is_sender else link.source
        node.properties.put_object({symbol(key): value})

    return set_up


def in_force(node: Sender | Receiver) -> int:
    """The policy that the reply says, by its code."""
    link = node.link
    properties = (link.remote_target if link.is_sender else link.remote_source).properties
    properties.rewind()
    properties.next()
    said = dict(properties.get_object())["lifetime-policy"]
    assert said.value == []
    return int(said.descriptor)


def is_deleted(gateway: RunningGateway, client: Client, name: str) -> None:
    client.wait(lambda: name not in gateway.endpoints(), "the temporary queue is deleted")


# --- what is asked for and what is said -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_the_reply_says_the_policy_in_force(client: Client, end: str) -> None:
    """
    Asked for by its code or by its name, a policy is in force for queues as source and as target. A topic keeps no
    messages and is no more than a name: whatever is asked for, it is delete-on-close.
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
    """A bad lifetime-policy is `amqp:invalid-field` and makes nothing."""
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
    """After the link that made it, a sender, a consumer and a browser each keep the queue; messages do not."""
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
    """With its maker gone, a queue lives until its last message is settled; whoever waits there is told."""
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


def test_on_no_links_or_messages_either_keeps_it(gateway: RunningGateway, connect: Connect) -> None:
    """First messages keep it without links, then a link without messages, and then nothing does."""
    client = connect(gateway)
    maker = client.sender(None, dynamic=True, set_up=living(NO_LINKS_OR_MESSAGES))
    name = maker.address
    maker.send_all([data(1)])
    maker.close()
    consumer = client.receiver(name, credit=1)
    consumer.take_and_accept(1)
    client.wait(lambda: gateway.depth(name) == 0, "it is empty")
    client.sender(name).send_all([data(2)])
    consumer.flow(1)
    assert texts(consumer.take_and_accept(1)) == ["2"]
    client.wait(lambda: gateway.depth(name) == 0, "it is empty again")
    client.cut()
    other = connect(gateway)
    is_deleted(gateway, other, name)


# --- connections that are lost, and the gateway's end -----------------------------------------------------------------


@pytest.mark.parametrize(("lifetime", "is_kept"), [(CLOSE, False), (NO_LINKS, False), (NO_MESSAGES, True)])
def test_a_lost_connection_is_the_end_of_its_links(
    gateway: RunningGateway, connect: Connect, lifetime: Lifetime, is_kept: bool
) -> None:
    """A connection that breaks lets go of its nodes as one that closes does; messages keep those they keep."""
    client, other = connect(gateway), connect(gateway)
    maker = client.sender(None, dynamic=True, set_up=living(lifetime))
    maker.send_all([data("kept")])
    client.cut()
    if is_kept:
        assert texts(other.receiver(maker.address, credit=1).take_and_accept(1)) == ["kept"]
    is_deleted(gateway, other, maker.address)


def test_another_links_connection_that_is_lost(gateway: RunningGateway, connect: Connect) -> None:
    """The last link may be another connection's: when that breaks, the queue is deleted."""
    client, other, watching = connect(gateway), connect(gateway), connect(gateway)
    maker = client.receiver(None, dynamic=True, set_up=living(NO_LINKS))
    other.sender(maker.address)
    client.close()
    assert maker.address in gateway.endpoints()
    other.cut()
    is_deleted(gateway, watching, maker.address)


@pytest.mark.parametrize("lifetime", Lifetime)
def test_none_survives_the_gateway(gateway: RunningGateway, connect: Connect, lifetime: Lifetime) -> None:
    """Whatever its policy, and with messages on it, a temporary queue is gone after a restart; the log has them."""
    client = connect(gateway)
    maker = client.sender(None, dynamic=True, set_up=living(lifetime))
    maker.send_all([data(1)])
    gateway.restart()
    assert gateway.endpoints() == set()
    client = connect(gateway)
    refusal(client.receiver, maker.address)
    assert texts(client.receiver("log://>?replay-start=beginning&until=now").take_to_end()) == ["1"]


def test_a_name_that_lived_on_is_free_afterwards(gateway: RunningGateway, connect: Connect) -> None:
    """A node that is gone is found by nobody, and nothing is remembered of it."""
    client = connect(gateway)
    maker = client.sender(None, dynamic=True, set_up=living(NO_LINKS))
    consumer = client.receiver(maker.address)
    maker.close()
    consumer.close()
    is_deleted(gateway, client, maker.address)
    assert refusal(client.sender, maker.address).name == "amqp:not-found"
    nodes = gateway.call(lambda running: running._container.shared_by(running.vpns["default"]).nodes)  # type: ignore[union-attr]
    assert (nodes.owners, nodes.temporary) == ({}, {})
