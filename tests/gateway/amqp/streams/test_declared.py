"""Streams in the configuration, and what becomes of a queue whose kind is changed there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.config import Queue, Vpn
from store.errors import StoreError
from tests.gateway.amqp.conftest import Connect
from tests.support.client import texts
from tests.support.messages import data
from tests.support.running import RunningGateway, settings_for

BEGINNING = {"rewind:replay-start": "beginning"}


@pytest.fixture
def gateway(tmp_path: Path) -> RunningGateway:
    """A gateway that is not running yet; `declare` says with what."""
    return RunningGateway(settings_for(tmp_path / "data"))


def declare(gateway: RunningGateway, tmp_path: Path, **queues: Queue) -> None:
    """Configure a gateway that is not running."""
    gateway.settings = settings_for(tmp_path / "data", Vpn(queues=dict(queues)))


def stream(**more: Any) -> Queue:
    return Queue(kind="stream", **more)


def test_a_declared_stream_survives_and_follows_the_configuration(
    gateway: RunningGateway, connect: Connect, tmp_path: Path
) -> None:
    """A stream is there after restarts with what was sent to it, and its subscriptions are those now configured."""
    declare(gateway, tmp_path, audit=stream(subscriptions=("a/>",)))
    with gateway:
        client = connect(gateway)
        for topic in ("a/1", "b/1", "#queue/audit"):
            client.sender(f"topic://{topic}").send_all([data(topic)])
        assert texts(client.receiver("audit", filters=BEGINNING).drain()) == ["a/1", "#queue/audit"]
        client.close()
        gateway.stop()
        declare(gateway, tmp_path, audit=stream(subscriptions=("b/>",), default_start="beginning"))
        gateway.start()
        client = connect(gateway)
        assert texts(client.receiver("audit").drain()) == ["b/1", "#queue/audit"]
        client.close()
        gateway.stop()
        declare(gateway, tmp_path)
        gateway.start()
        client = connect(gateway)
        assert texts(client.receiver("audit").drain()) == ["b/1", "#queue/audit"], "it is kept, as queues are"
        client.close()


def test_a_queue_with_messages_does_not_become_a_stream(
    gateway: RunningGateway, connect: Connect, tmp_path: Path
) -> None:
    """The gateway does not start, says how many messages are at stake, and nothing has changed."""
    declare(gateway, tmp_path, orders=Queue(subscriptions=("a",)))
    with gateway:
        client = connect(gateway)
        client.sender("topic://a").send_all([data(i) for i in range(3)])
        client.close()
    declare(gateway, tmp_path, other=Queue(), orders=stream())
    with pytest.raises(StoreError, match=r"'orders' as a queue with messages on it \(3\)"):
        gateway.start()
    declare(gateway, tmp_path, orders=Queue(subscriptions=("a",)))
    with gateway:
        assert gateway.endpoints() == {"orders"}, "not even what is declared in front of it was made"
        client = connect(gateway)
        assert texts(client.receiver("orders").drain()) == ["0", "1", "2"]
        client.close()


def test_an_empty_queue_becomes_a_stream(gateway: RunningGateway, connect: Connect, tmp_path: Path) -> None:
    """With nothing on it there is nothing to lose: the stream shows what was sent to the queue, as it is in the log."""
    declare(gateway, tmp_path, orders=Queue(exclusive="wait"))
    with gateway:
        client = connect(gateway)
        client.sender("orders").send_all([data(i) for i in range(3)])
        client.receiver("orders", credit=3).take_and_accept(3)
        client.close()
        client = connect(gateway)
        client.wait(lambda: gateway.depth("orders") == 0, "the queue is empty")
        client.close()
    declare(gateway, tmp_path, orders=stream())
    for _ in range(2):
        with gateway:
            client = connect(gateway)
            assert texts(client.receiver("orders", filters=BEGINNING).drain()) == ["0", "1", "2"]
            assert gateway.depth("orders") == 0
            client.close()


def test_a_stream_becomes_a_queue(gateway: RunningGateway, connect: Connect, tmp_path: Path) -> None:
    """It begins empty and live; what the stream had is in the log, and a replay puts it on the queue."""
    declare(gateway, tmp_path, audit=stream())
    with gateway:
        client = connect(gateway)
        client.sender("audit").send_all([data(i) for i in range(3)])
        client.close()
    declare(gateway, tmp_path, audit=Queue())
    with gateway:
        client = connect(gateway)
        client.sender("audit").send_all([data("live")])
        assert gateway.depth("audit") == 1
        rewound = client.receiver("audit", filters=BEGINNING, credit=10)
        assert texts(rewound.take(4)) == ["0", "1", "2", "live"]
        client.close()


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_a_durable_subscription_becomes_neither(
    gateway: RunningGateway, connect: Connect, tmp_path: Path, kind: Any
) -> None:
    """A durable topic endpoint of the name is somebody's: the gateway does not start, and it keeps what it has."""
    with gateway:
        client = connect(gateway)
        client.receiver("topic://a", name="mine", durable=True).detach()
        client.sender("topic://a").send_all([data("x")])
        client.close()
    declare(gateway, tmp_path, mine=Queue(kind=kind))
    with pytest.raises(StoreError, match="'mine' as a durable topic endpoint"):
        gateway.start()
    declare(gateway, tmp_path)
    with gateway:
        client = connect(gateway)
        again = client.receiver("topic://a", name="mine", durable=True, credit=1)
        assert texts(again.take(1)) == ["x"]
        client.close()
