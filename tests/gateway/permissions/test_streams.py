"""Who may read a stream: consuming from its address is all it takes, and browsing it is reading it."""

from __future__ import annotations

import pytest
from proton import Link, Terminus

from gateway.config import Queue, Vpn
from tests.gateway.permissions.conftest import Line, Login, Start
from tests.support.client import Refused, texts
from tests.support.messages import data

UNAUTHORIZED = "amqp:unauthorized-access"
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
