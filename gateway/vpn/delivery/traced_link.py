"""
A reader's or browser's link whose messages are traced: put in its place where tracing is on, so that it costs nothing
where it is off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gateway.core.model import Row
from gateway.vpn.clients import ClientIdentity, ConsumerLink
from gateway.vpn.telemetry.message_tracing import MessageTracing

MOST_CHARACTERS: Final = 200
"""Of what is looked at, in the names of spans."""


class TracedLink:
    """
    Args:
        link: Is sent the messages.
        operation: ``read`` or ``browse``.
        destination: What is looked at.
    """

    def __init__(self, link: ConsumerLink, tracing: MessageTracing, operation: str, destination: str) -> None:
        self._link = link
        self._read = tracing.read
        self._operation = operation
        self._destination = destination[:MOST_CHARACTERS]
        self.room = link.room
        self.nothing_to_send = link.nothing_to_send
        self.finish = link.finish
        self.refuse = link.refuse

    @property
    def client(self) -> ClientIdentity:
        return self._link.client

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        self._read(self._operation, self._destination, rows)
        self._link.send(rows, attempts, end_id)
