"""A link is attached again with the source as the gateway answered it, which is how some clients resume."""

from __future__ import annotations

import pytest
from proton import Described, Link, symbol

from tests.support.client import Client, Receiver, browsing, texts
from tests.support.messages import data

START = "rewind:replay-start"


def again(client: Client, receiver: Receiver) -> Receiver:
    """The same link, detached without closing, with all of its source as it was answered (section 2.6.3)."""
    answered = receiver.link.remote_source
    link_name = receiver.link.name
    held = client.session.receiver("to hold what was answered")
    held.source.copy(answered)
    receiver.detach()

    def set_up(link: Link) -> None:
        link.source.copy(held.source)

    return client.receiver(None, name=link_name, set_up=set_up)


def test_a_consumer_goes_on_and_rewinds_nothing(client: Client) -> None:
    """Who consumes from a queue, beside others, asked for no replay, and by attaching again does not ask for one."""
    client.sender("orders").send_all(data(i) for i in range(4))
    client.receiver("orders")
    consumer = client.receiver("orders", filters={"apache.org:selector-filter:string": "TRUE"}, credit=2)
    assert texts(consumer.take_and_accept(2)) == ["0", "1"]
    consumer = again(client, consumer)
    assert texts(consumer.drain()) == ["2", "3"]


def test_a_consumer_that_asked_for_live_stays_live(client: Client) -> None:
    """A start `live` is no replay, whatever offset it was when the link was attached."""
    client.sender("orders").send_all(data(i) for i in range(2))
    consumer = client.receiver("orders", filters={START: "live"})
    client.sender("orders").send_all([data(2)])
    consumer = again(client, consumer)
    assert texts(consumer.drain()) == ["0", "1", "2"]


def test_a_browser_browses_on(client: Client) -> None:
    """A browser cannot ask for a replay; its answer says nothing that it could not ask for."""
    client.sender("orders").send_all(data(i) for i in range(2))
    browser = again(client, client.receiver("orders", set_up=browsing))
    assert texts(browser.drain()) == ["0", "1"]


@pytest.mark.parametrize("key", [START, "some name"])
@pytest.mark.parametrize("address", ["log://>", "orders"])
def test_a_replay_starts_where_it_started(client: Client, address: str, key: str) -> None:
    """The start that was asked for is there again, or the offset that it was resolved to, or both, which is one."""
    client.sender("orders").send_all(data(i) for i in range(4))
    reader = client.receiver(address, filters={key: Described(symbol(START), "#2")})
    assert texts(reader.drain()) == ["1", "2", "3"]
    assert texts(again(client, reader).drain()) == ["1", "2", "3"]


def test_a_bounded_replay_keeps_its_bound(client: Client) -> None:
    """`until` is in the answer, and holds when the link is attached again."""
    client.sender("orders").send_all(data(i) for i in range(4))
    reader = again(client, client.receiver("log://>?replay-start=%232&until=now"))
    client.sender("orders").send_all([data(4)])
    assert texts(reader.take_to_end()) == ["1", "2", "3"]


def test_a_reader_of_a_stream_by_an_interval_of_rabbitmq(client: Client) -> None:
    """A filter of another dialect stays beside the resolved start, and counts."""
    client.sender("audit?kind=stream").send_all(data(i) for i in range(3))
    reader = client.receiver(
        "audit", capabilities=["stream"], filters={"rabbitmq:stream-offset-spec": "first"}
    )
    assert texts(again(client, reader).drain()) == ["0", "1", "2"]


def test_what_its_capabilities_said_is_still_said(client: Client) -> None:
    """A bare address that is a topic, and a subscription that is shared, are so in the answer, too."""
    first = client.receiver("a/>", name="sub|1", capabilities=["topic", "shared"])
    client.sender("topic://a/b").send_all([data(0)])
    second = again(client, client.receiver("a/>", name="sub|2", capabilities=["topic", "shared"]))
    first.close()
    assert texts(second.drain()) == ["0"]
