"""Proton's own clients, and the lines about connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import structlog
from proton import Described, Endpoint, Message, symbol, ulong
from proton.handlers import MessagingHandler
from proton.reactor import AtLeastOnce, AtMostOnce, Container, DurableSubscription, Filter, ReceiverOption
from proton.utils import (
    BlockingConnection,
    BlockingReceiver,
    LinkDetached,
    SendException,
    SyncRequestResponse,
)
from structlog.testing import capture_logs

from gateway.amqp.connection_log import ConnectionLog
from gateway.config import Queue, Vpn
from gateway.logging.lines import ADDRESS_BURST, BURST, COUNTS
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Refused
from tests.support.running import RunningGateway

# --- What programs written with Qpid Proton see -----------------------------------------------------------------------

SECONDS = 20


class ReplayFrom(Filter):
    """What a proton program writes to ask for a replay."""

    def __init__(self, **value: Any) -> None:
        start = {symbol(key): entry for key, entry in value.items()}
        super().__init__({symbol("replay"): Described(symbol("rewind:replay-start"), start)})


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    """A gateway with a queue for one message."""
    return start(Vpn(queues={"full": Queue(quota_messages=1)}))


@pytest.fixture
def connection(gateway: RunningGateway) -> Iterator[BlockingConnection]:
    """One over SASL ANONYMOUS."""
    connection = BlockingConnection(gateway.url, timeout=SECONDS, allowed_mechs="ANONYMOUS")
    yield connection
    connection.close()


def receive(receiver: BlockingReceiver, count: int) -> list[Any]:
    """The bodies of messages, each of which is accepted."""
    bodies = []
    for _ in range(count):
        bodies.append(receiver.receive().body)
        receiver.accept()
    return bodies


def test_the_blocking_client(connection: BlockingConnection) -> None:
    """
    `BlockingConnection` sends, receives, accepts, rejects and releases. A refused link raises `LinkDetached` with the
    condition, a rejected message `SendException`.
    """
    sender = connection.create_sender("orders")
    for number in range(5):
        sender.send(Message(body={"number": number}, durable=True, properties={"n": number}))
    receiver = connection.create_receiver("orders", credit=10)
    assert receive(receiver, 1) == [{"number": 0}]
    assert receiver.receive().properties == {"n": 1}
    receiver.reject()
    assert receiver.receive().durable
    receiver.release()
    assert sorted(body["number"] for body in receive(receiver, 3)) == [2, 3, 4]
    with pytest.raises(LinkDetached) as detached:
        connection.create_receiver("orders?replay-start=nonsense")
    assert detached.value.condition == "amqp:invalid-field"
    sender = connection.create_sender("full")
    sender.send(Message(body="fits"))
    with pytest.raises(SendException):
        sender.send(Message(body="does not"))


def test_the_blocking_client_replays(connection: BlockingConnection) -> None:
    """A proton program rewinds a queue with a filter, and reads a log up to now."""
    sender = connection.create_sender("orders?exclusive=wait")
    for number in range(10):
        sender.send(Message(body=number))
    receiver = connection.create_receiver("orders", credit=10)
    assert receive(receiver, 10) == list(range(10))
    receiver.close()
    again = connection.create_receiver("orders", credit=10, options=ReplayFrom(offset=ulong(6)))
    assert receive(again, 5) == list(range(5, 10))
    bounded = ReplayFrom(offset=ulong(1), until=symbol("now"))
    log = connection.create_receiver("log://>", credit=3, options=bounded)
    assert receive(log, 9) == list(range(9))
    assert log.receive().annotations["x-opt-replay-end"]
    log.accept()
    connection.wait(lambda: log.link.state & Endpoint.REMOTE_CLOSED, msg="the end of the replay")


def test_at_most_once_and_at_least_once(connection: BlockingConnection) -> None:
    """Proton's delivery options on senders and receivers do what they say."""
    connection.create_sender("orders", name="1", options=AtMostOnce()).send(Message(body="settled"))
    receiver = connection.create_receiver("orders", credit=1, options=AtMostOnce())
    assert receiver.receive().body == "settled"
    receiver.close()
    # Only now: the receiver tops its credit up by itself, and what it is sent then is settled.
    connection.create_sender("orders", name="2", options=AtLeastOnce()).send(Message(body="unsettled"))
    receiver = connection.create_receiver("orders", credit=1, options=AtLeastOnce())
    assert receive(receiver, 1) == ["unsettled"]


def test_a_durable_subscription(gateway: RunningGateway, connection: BlockingConnection) -> None:
    """Proton's `DurableSubscription` keeps what is published while its program is not connected."""

    def subscribe(connection: BlockingConnection) -> BlockingReceiver:
        options = [DurableSubscription()]
        return connection.create_receiver("topic://news/>", credit=1, name="mine", options=options)

    before = BlockingConnection(gateway.url, timeout=SECONDS)
    subscribe(before).detach()
    before.close()
    connection.create_sender("topic://news/today").send(Message(body="kept"))
    assert subscribe(connection).receive().body == "kept"


class Upper(MessagingHandler):
    """Answers requests on a queue in capitals, by the anonymous relay."""

    def __init__(self, url: str, requests: int) -> None:
        super().__init__()
        self._url = url
        self._left = requests
        self.ready = threading.Event()

    def on_start(self, event: Any) -> None:
        connection = event.container.connect(self._url, allowed_mechs="ANONYMOUS")
        event.container.create_receiver(connection, "requests")
        self._sender = event.container.create_sender(connection, None)

    def on_link_opened(self, event: Any) -> None:
        self.ready.set()

    def on_message(self, event: Any) -> None:
        request = event.message
        self._sender.send(
            Message(
                address=request.reply_to, correlation_id=request.correlation_id, body=request.body.upper()
            )
        )
        self._left -= 1

    def on_settled(self, event: Any) -> None:
        if not self._left:
            event.connection.close()


def test_request_and_response(gateway: RunningGateway, connection: BlockingConnection) -> None:
    """`SyncRequestResponse` asks over a dynamic reply queue; a handler program answers by the anonymous relay."""
    upper = Upper(gateway.url, requests=3)
    thread = threading.Thread(target=Container(upper).run)
    thread.start()
    assert upper.ready.wait(SECONDS)
    client = SyncRequestResponse(connection, "requests")
    answers = [client.call(Message(body=text)).body for text in ("one", "two", "three")]
    assert answers == ["ONE", "TWO", "THREE"]
    thread.join(SECONDS)
    assert not thread.is_alive()


class PublishAndReplay(MessagingHandler):
    """Publishes numbers to a topic; when all are accepted, reads them back from the log until now."""

    def __init__(self, url: str, count: int) -> None:
        super().__init__(prefetch=100)
        self._url = url
        self._count = count
        self._sent = 0
        self.accepted = 0
        self.read: list[int] = []

    def on_start(self, event: Any) -> None:
        self._connection = event.container.connect(self._url)
        self._sender = event.container.create_sender(self._connection, "topic://numbers")

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self._sent < self._count:
            event.sender.send(Message(body=self._sent))
            self._sent += 1

    def on_accepted(self, event: Any) -> None:
        self.accepted += 1
        if self.accepted == self._count:
            options: list[ReceiverOption] = [
                ReplayFrom(**{"from": symbol("beginning"), "until": symbol("now")})
            ]
            event.container.create_receiver(self._connection, "log://numbers", options=options)

    def on_message(self, event: Any) -> None:
        self.read.append(event.message.body)

    def on_link_closing(self, event: Any) -> None:
        event.connection.close()


def test_an_event_handler_program(gateway: RunningGateway) -> None:
    """A `MessagingHandler` program publishes with flow control and reads all back from the log to its end."""
    program = PublishAndReplay(gateway.url, 1_000)
    Container(program).run()
    assert program.accepted == 1_000
    assert program.read == list(range(1_000))


# --- What one peer can have the log say -------------------------------------------------------------------------------


@pytest.fixture
def _told() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(20))


@pytest.mark.usefixtures("_told")
def test_a_client_that_is_refused_again_and_again_is_told_of_now_and_then(
    start: Start, connect: Connect
) -> None:
    """Hundreds of refused links are some lines; the last one of the connection says how many were left out."""
    gateway = start()
    with capture_logs() as lines:
        client = connect(gateway)
        for _ in range(200):
            with suppress(Refused):
                client.receiver("queue://no/such/queue?create=never")
        client.close()
        gateway.stop()
    refused = [line for line in lines if line["event"] == "attach_refused"]
    assert BURST <= len(refused) < 100
    (closed,) = [line for line in lines if line["event"] == "connection_closed"]
    assert len(refused) + closed["held_back"] + sum(line.get("held_back", 0) for line in refused) == 200


@pytest.mark.usefixtures("_told")
def test_what_stands_in_every_line_is_cut() -> None:
    """A container-id of 64 kB is not held, and not said, with every line."""
    with capture_logs() as lines:
        log = ConnectionLog(1)
        log.bind(container="\x01" * 64_000)
        log.info("connection_opened")
    assert len(lines[0]["container"]) < 300


@pytest.mark.usefixtures("_told")
def test_who_connects_again_and_again_is_told_of_now_and_then(start: Start) -> None:
    """Each connection has a line or two; hundreds of them have some, and what was left out is told at the end."""
    gateway = start()
    before, count = COUNTS.held_back, ADDRESS_BURST * 2
    with capture_logs() as lines:
        for _ in range(count):
            with socket.create_connection(gateway.host_and_port()) as refused:
                refused.sendall(b"GET / HT")
                while refused.recv(4096):
                    pass
        gateway.stop()
    failed = [line for line in lines if line["event"] == "handshake_failed"]
    (told,) = [line for line in lines if line["event"] == "lines_held_back"]
    assert ADDRESS_BURST <= len(failed) < count
    assert len(failed) + sum(line.get("held_back", 0) for line in failed) + told["held_back"] == count
    assert told["peer"] == "127.0.0.1"
    assert COUNTS.held_back - before == count - len(failed)
