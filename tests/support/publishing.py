"""A publisher that runs at full speed on a thread of its own while the test does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from tests.support.client import Client
from tests.support.messages import data


class Publishing:
    """
    Publishes numbered messages from the beginning of a ``with`` block until its end, and waits until all are accepted.

    Args:
        url: Where to connect.
        addresses: Targets, used in turn.
        first: The first message's number; numbers rise by one.
        limit: The most messages to send.
    """

    def __init__(self, url: str, *addresses: str, first: int = 0, limit: int = 1_000_000) -> None:
        self._url = url
        self._addresses = addresses
        self._limit = limit
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publishing")
        self._error: BaseException | None = None
        self._may_end = False
        self.next = first
        """The last number sent, plus 1."""
        self.accepted = first
        """The first number that is not accepted: all below it are."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop sending, and wait for the outcomes of what was sent; raises the error of the thread, if any."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def expect_an_end(self) -> None:
        """From now on the gateway may go away: that ends the publishing and is no error."""
        self._may_end = True

    def wait_for(self, count: int) -> None:
        """Wait until this many are accepted."""
        while self.accepted < count and self._thread.is_alive():
            self._thread.join(0.01)
        assert self.accepted >= count, f"only {self.accepted} were accepted ({self._error})"

    def _run(self) -> None:
        try:
            with Client(self._url) as client:
                self._publish(client)
                client.close()
        except BaseException as error:
            if not self._may_end:
                self._error = error

    def _publish(self, client: Client) -> None:
        senders = [client.sender(address) for address in self._addresses]
        under_way: list[tuple[Callable[[], bool], int]] = []
        while not self._stop.is_set() and self.next < self._limit:
            batch = []
            for _ in range(min(100, self._limit - self.next)):
                sender = senders[self.next % len(senders)]
                batch.append((sender, sender.send(data(self.next))))
                self.next += 1
            # A hundred messages are sent while the previous hundred await their outcomes.
            for was_accepted, number in under_way:
                assert was_accepted()
                self.accepted = number + 1
            under_way = [
                (lambda s=s, d=d: s.outcome(d) == "ACCEPTED", self.next - len(batch) + i)
                for i, (s, d) in enumerate(batch)
            ]
            client.wait(lambda: True, "written")
        for was_accepted, number in under_way:
            assert was_accepted()
            self.accepted = number + 1
