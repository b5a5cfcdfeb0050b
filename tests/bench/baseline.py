"""The Container-style queue: a broker written with ``proton.reactor.Container`` and ``MessagingHandler``.

It shows by comparison what the gateway gains by driving proton's engine directly. It has one queue for each
address, in memory and without durability, like the broker among proton's own examples; only its credit is raised
from 10 to 1,000, the generator's window.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict, deque
from contextlib import suppress
from typing import Any

from proton import Delivery, Endpoint
from proton.handlers import MessagingHandler
from proton.reactor import Container

from tests.support.ports import free_port

CREDIT = 1000


class QueueBroker(MessagingHandler):
    """A queue is created when its address is first used; a delivery is forgotten when the consumer settles it."""

    def __init__(self) -> None:
        super().__init__(prefetch=CREDIT)
        self._queues: dict[str, deque[Any]] = defaultdict(deque)
        self._consumers: dict[str, list[Any]] = defaultdict(list)

    def on_start(self, event: Any) -> None:
        """Listen on a free port and say so."""
        port = free_port()
        event.container.listen(f"127.0.0.1:{port}")
        print(
            json.dumps({"event": "ready", "amqp": [f"amqp://127.0.0.1:{port}"], "pid": os.getpid()}),
            flush=True,
        )

    def on_link_opening(self, event: Any) -> None:
        """Serve the address the peer names."""
        link = event.link
        link.source.address = link.remote_source.address
        link.target.address = link.remote_target.address
        if link.is_sender:
            self._consumers[link.source.address].append(link)

    def on_link_closing(self, event: Any) -> None:
        """Forget the consumer."""
        self._forget(event.link)

    def on_disconnected(self, event: Any) -> None:
        """Forget the consumers of a broken connection."""
        link = event.connection.link_head(Endpoint.REMOTE_ACTIVE)
        while link is not None:
            self._forget(link)
            link = link.next(Endpoint.REMOTE_ACTIVE)

    def on_sendable(self, event: Any) -> None:
        """A consumer has granted credit."""
        self._dispatch(event.link.source.address)

    def on_message(self, event: Any) -> None:
        """Queue a message; ``MessagingHandler`` accepts it when this returns."""
        address = event.link.target.address
        self._queues[address].append(event.message)
        self._dispatch(address)

    def on_settled(self, event: Any) -> None:
        """
        Nothing to do: only outcomes other than accepted would need the message back, and the generator accepts all.
        """
        if event.delivery.remote_state not in (Delivery.ACCEPTED, None):
            raise NotImplementedError(f"outcome {event.delivery.remote_state}")

    def _dispatch(self, address: str) -> None:
        queue = self._queues[address]
        for link in self._consumers[address]:
            while queue and link.credit > 0:
                link.send(queue.popleft())

    def _forget(self, link: Any) -> None:
        if link.is_sender:
            with suppress(ValueError):
                self._consumers[link.source.address].remove(link)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        Container(QueueBroker()).run()
