"""Shared and durable subscriptions, and giving them up: what JMS clients rely on."""

from __future__ import annotations

import pytest
from proton import Terminus

from amqp_ext.codec import Symbol, UInt
from tests.gateway.amqp.conftest import Connect
from tests.support.client import Client, Received, refusal, texts
from tests.support.frames import ATTACH, DETACH, attach_frame, frame
from tests.support.messages import data
from tests.support.peer import Peer
from tests.support.running import RunningGateway


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
