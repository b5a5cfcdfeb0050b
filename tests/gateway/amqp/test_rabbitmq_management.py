"""RabbitMQ's `/management` over real sockets, by a client that pairs its links as RabbitMQ's do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import Link, Message, symbol

from gateway.config import Listener
from tests.support.client import Client
from tests.support.running import RunningGateway, settings_for

RABBITMQ = (Listener(port=0, rabbitmq_mode=True),)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[RunningGateway]:
    with RunningGateway(settings_for(tmp_path, listeners=RABBITMQ)) as running:
        yield running


class Pair:
    """The two links of a management client, named alike."""

    def __init__(self, client: Client, *, paired: bool = True, settled: bool = True) -> None:
        self._client = client
        self._settled = settled
        self._ids = 0

        def set_up(link: Link) -> None:
            link.properties = {symbol("paired"): True} if paired else None
            link.source.address = link.target.address = "/management"

        self.sender = client.sender("/management", name="pair", set_up=set_up)
        self.receiver = client.receiver("/management", name="pair", set_up=set_up, credit=100)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request; the status and body of its answer."""
        self._ids += 1
        request = Message(id=f"request-{self._ids}", reply_to="$me", address=path, subject=method, body=body)
        self.sender.send(request.encode(), settled=self._settled)
        answer = Message()
        answer.decode(self.receiver.take(1)[0].raw)
        assert answer.correlation_id == request.id
        assert answer.properties == {"http:response": "1.1"}
        return int(answer.subject), answer.body


def declaration(**arguments: Any) -> dict[str, Any]:
    """The body of a declaration with these arguments; `_` stands for `-`."""
    return {
        "durable": True,
        "arguments": {name.replace("_", "-"): value for name, value in arguments.items()},
    }


def test_the_open_frame_is_one_that_clients_of_rabbitmq_take(gateway: RunningGateway) -> None:
    """A listener in RabbitMQ mode says product, version and node, and offers link pairing."""
    with Client(gateway.address) as client:
        said = client.connection.remote_properties
        assert (said["product"], said["version"], said["node"]) == ("RabbitMQ", "4.2.0", "rewind")
        assert "LINK_PAIR_V1_0" in list(client.connection.remote_offered_capabilities)


def test_a_stream_is_declared_described_and_deleted(gateway: RunningGateway) -> None:
    """A stream is made once (201), found as it is (200), described, and gone after its deletion (404)."""
    with Client(gateway.address) as client:
        pair = Pair(client)
        status, made = pair.ask(
            "PUT", "/queues/a%20stream", declaration(x_queue_type="stream", x_max_age="1h")
        )
        assert (status, made["name"], made["type"]) == (201, "a stream", "stream")
        assert pair.ask("PUT", "/queues/a%20stream", declaration(x_queue_type="stream"))[0] == 200
        status, found = pair.ask("GET", "/queues/a%20stream")
        assert status == 200
        assert list(found["replicas"].elements) == ["rewind"]
        assert pair.ask("DELETE", "/queues/a%20stream") == (200, {"message_count": 0})
        assert pair.ask("GET", "/queues/a%20stream")[0] == 404
