"""Streams in the configuration, and what becomes of a queue whose kind is changed there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Queue, Vpn
from store.errors import StoreError
from tests.support.client import Client, texts
from tests.support.messages import data
from tests.support.running import RunningGateway, settings_for

BEGINNING = {"rewind:replay-start": "beginning"}


class Declared:
    """A gateway that runs now and then, with what is declared in its configuration at the time."""

    def __init__(self, data: Path) -> None:
        self._data = data

    @contextmanager
    def running(self, **queues: Queue) -> Iterator[Client]:
        """A client of it."""
        self.gateway = RunningGateway(settings_for(self._data, Vpn(queues=dict(queues))))
        with self.gateway, Client(self.gateway.url) as client:
            yield client


@pytest.fixture
def declared(tmp_path: Path) -> Declared:
    return Declared(tmp_path / "data")


def stream(**more: Any) -> Queue:
    return Queue(kind="stream", **more)


def test_a_declared_stream_survives_and_follows_the_configuration(declared: Declared) -> None:
    """A stream is there after restarts with what was sent to it, and its subscriptions are those now configured."""
    with declared.running(audit=stream(subscriptions=("a/>",))) as client:
        for topic in ("a/1", "b/1", "#queue/audit"):
            client.sender(f"topic://{topic}").send_all([data(topic)])
        assert texts(client.receiver("audit", filters=BEGINNING).drain()) == ["a/1", "#queue/audit"]
    with declared.running(audit=stream(subscriptions=("b/>",), default_start="beginning")) as client:
        assert texts(client.receiver("audit").drain()) == ["b/1", "#queue/audit"]
    with declared.running() as client:
        assert texts(client.receiver("audit").drain()) == ["b/1", "#queue/audit"], "it is kept, as queues are"


def test_a_queue_with_messages_does_not_become_a_stream(declared: Declared) -> None:
    """The gateway does not start, says how many messages are at stake, and nothing has changed."""
    orders = Queue(subscriptions=("a",))
    with declared.running(orders=orders) as client:
        client.sender("topic://a").send_all([data(i) for i in range(3)])
    at_stake = pytest.raises(StoreError, match=r"'orders' as a queue with messages on it \(3\)")
    with at_stake, declared.running(other=Queue(), orders=stream()):
        pass
    with declared.running(orders=orders) as client:
        assert declared.gateway.endpoints() == {"orders"}, "not even what is declared in front of it was made"
        assert texts(client.receiver("orders").drain()) == ["0", "1", "2"]


def test_an_empty_queue_becomes_a_stream_and_a_stream_a_queue(declared: Declared) -> None:
    """
    With nothing on it there is nothing to lose: the stream shows what was sent to the queue, as it is in the log. Then
    the queue begins empty and live; what the stream had is in the log, and a replay puts it on the queue.
    """
    with declared.running(orders=Queue(exclusive="wait")) as client:
        client.sender("orders").send_all([data(i) for i in range(3)])
        client.receiver("orders", credit=3).take_and_accept(3)
        client.wait(lambda: declared.gateway.depth("orders") == 0, "the queue is empty")
    for _ in range(2):
        with declared.running(orders=stream()) as client:
            assert texts(client.receiver("orders", filters=BEGINNING).drain()) == ["0", "1", "2"]
            assert declared.gateway.depth("orders") == 0
    with declared.running(orders=Queue()) as client:
        client.sender("orders").send_all([data("live")])
        assert declared.gateway.depth("orders") == 1
        rewound = client.receiver("orders", filters=BEGINNING, credit=10)
        assert texts(rewound.take(4)) == ["0", "1", "2", "live"]


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_a_durable_subscription_becomes_neither(declared: Declared, kind: Any) -> None:
    """A durable topic endpoint of the name is somebody's: the gateway does not start, and it keeps what it has."""
    with declared.running() as client:
        client.receiver("topic://a", name="mine", durable=True).detach()
        client.sender("topic://a").send_all([data("x")])
    somebodys = pytest.raises(StoreError, match="'mine' as a durable topic endpoint")
    with somebodys, declared.running(mine=Queue(kind=kind)):
        pass
    with declared.running() as client:
        assert texts(client.receiver("topic://a", name="mine", durable=True, credit=1).take(1)) == ["x"]
