"""A store that is taken from a busy gateway again and again: nothing accepted is lost, and nothing breaks."""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import suppress
from typing import Any

from proton import Delivery, Terminus

from gateway.app import Gateway
from gateway.config import Queue
from tests.gateway.roles.conftest import Start, is_active
from tests.support.client import Client, Received, Refused, texts
from tests.support.messages import data
from tests.support.running import RunningGateway
from tests.support.shared_store import SharedDatabase
from tests.support.waiting import wait_until

ROUNDS = 4
ACCEPTED = 300
"""Messages accepted in a round, at least, before the store is taken."""

ENDED = (AssertionError, AttributeError, OSError, Refused)
"""What becomes of a client whose connection is closed at any moment of what it does."""


class Comer:
    """Something that clients do again and again, each time on a connection of their own, on a thread of its own."""

    def __init__(self, gateway: RunningGateway, does: Any) -> None:
        self._gateway = gateway
        self._does = does
        self.name = does.__name__
        self.times = 0
        """Done to the end."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name)
        self._thread.start()

    def end(self) -> None:
        """And no more."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            with suppress(*ENDED), Client(self._gateway.url) as client:
                self._does(client)
                self.times += 1


def test_a_busy_gateway_loses_its_store(database: SharedDatabase, start: Start) -> None:
    """
    Publishers, consumers that settle, reject and replay, browsers, log readers, temporary nodes, transactions of
    endpoints: whatever is under way ends, the gateway makes no mistake, and each accepted message is there once.
    """
    queues = {
        "orders": Queue(subscriptions=("t/>",), dead_message_queue="dead"),  # type: ignore[call-arg]
        "kept": Queue(subscriptions=("t/>",)),
        "rewound": Queue(subscriptions=("t/>",)),
    }
    gateway = start(vpn={"queues": queues})
    accepted: list[str] = []
    is_over = threading.Event()
    number = 0

    def publish(client: Client) -> None:
        nonlocal number
        sender = client.sender("topic://t/1")
        while not is_over.is_set():
            batch = []
            for _ in range(20):
                number += 1
                batch.append((str(number), sender.send(data(number))))
            for body, delivery in batch:
                if sender.outcome(delivery) == "ACCEPTED":
                    accepted.append(body)

    def consume(client: Client) -> None:
        receiver = client.receiver("orders", credit=100)
        for message in receiver.take(30):
            receiver.settle([message], Delivery.ACCEPTED if message.id % 7 else Delivery.REJECTED)

    def replay(client: Client) -> None:
        client.receiver("rewound?replay-start=beginning", credit=50).take(40)

    def read(client: Client) -> None:
        client.receiver("log://>?replay-start=beginning", credit=500).take(200)
        client.receiver(
            "kept",
            credit=200,
            set_up=lambda link: setattr(link.source, "distribution_mode", Terminus.DIST_MODE_COPY),
        ).take(50)

    def make(client: Client) -> None:
        receiver = client.receiver(None, dynamic=True, credit=5)
        client.sender(receiver.address).send_all([data("x")])
        receiver.take_and_accept(1)

    gone: list[weakref.ref[Any]] = []
    comers = [Comer(gateway, does) for does in (publish, consume, replay, read, make)]
    try:
        for _ in range(ROUNDS):
            wait_until(lambda: is_active(gateway), "it has the store")
            so_far = len(accepted)
            wait_until(lambda so_far=so_far: len(accepted) >= so_far + ACCEPTED, "messages are accepted")
            gone.append(gateway.call(lambda running: weakref.ref(running.vpns["default"])))
            database.take_away(tell=bool(len(gone) % 2))
    finally:
        is_over.set()
        for comer in comers:
            comer.end()
    assert [
        comer.name for comer in comers[1:] if not comer.times
    ] == []  # the publisher may have been cut each time
    wait_until(lambda: is_active(gateway), "it has the store")

    with Client(gateway.url) as client:
        log = client.receiver("log://>?replay-start=beginning&until=now").take_to_end()
        bodies = [message.text for message in log if message.annotations["x-opt-topic"] == "t/1"]
        assert len(bodies) == len(set(bodies)) and set(accepted) <= set(bodies)
        assert bodies == sorted(bodies, key=int)
        kept: list[Received] = []
        receiver = client.receiver("kept")
        receiver.collect(kept, len(bodies))
        assert texts(kept) == bodies

    def are_gone(running: Gateway) -> bool:
        gc.collect()
        return all(found() is None for found in gone)

    wait_until(lambda: gateway.call(are_gone), "nothing of what was deposed is held any more")
    gateway.stop()
