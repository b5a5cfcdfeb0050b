"""A well-behaved client, to tell whether anything that happens elsewhere harms it."""

from __future__ import annotations

import threading
import time
from typing import Final

from tests.support.peer import Peer
from tests.support.waiting import wait_until
from tests.system.gateway_process import GatewayProcess

PAUSE_S: Final = 0.005
"""Seconds between its messages: without them it takes as much of the processor as there is. What harms it for less than
that may be missed; nobody asks for so little."""


class Bystander:
    """
    A well-behaved client, busy with its own queue while a block runs; what harms it fails the block.

    Args:
        peer: Its connection, with a session; without one it makes its own.
        pause_s: Seconds between its messages.

    Attributes:
        count: Messages that it has published and received back.
        longest_s: The longest that one of them took; whoever looks at it may set it to 0.
    """

    def __init__(
        self, gateway: GatewayProcess, peer: Peer | None = None, *, pause_s: float = PAUSE_S
    ) -> None:
        self._peer = Peer.opened(gateway.address) if peer is None else peer
        self._peer.attach_sender("queue://bystander")
        self._peer.attach_receiver("queue://bystander", credit=2**31 - 1)
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self.count = 0
        self.longest_s = 0.0

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                body = b"%d" % self.count
                began = time.monotonic()
                self._peer.publish(body)
                assert self._peer.receive() == body
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.count += 1
                self._stop.wait(self._pause_s)
            self._peer.close()
        except BaseException as error:
            self._errors.append(error)

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        before = self.count
        try:
            wait_until(lambda: self.count > before or self._errors, "a message of the bystander's")
        finally:
            self._stop.set()
            self._thread.join()
            self._peer.sock.close()
        assert not self._errors, self._errors
