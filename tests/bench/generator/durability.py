"""Whether what is received is durable, as its header section says; one like the last is known by its bytes."""

from __future__ import annotations

from amqp_ext.codec import Described, decode
from amqp_ext.message.sections import HEADER
from tests.support.frames import parse

from .connection import Refused

NEAR = 96
"""Octets from the start of a transfer's frame within which its message's header ends."""


class DurableHeaders:
    """Looks at the header of each delivery of a link."""

    def __init__(self) -> None:
        self._known = b""

    def check(self, buffer: bytearray, start: int, stop: int) -> None:
        """Raise ``Refused`` where the message in a transfer's frame is not durable (section 3.2.1)."""
        if self._known and buffer.find(self._known, start, min(start + NEAR, stop)) >= 0:
            return
        transfer = parse(buffer, start, stop)
        assert transfer is not None
        header, end = decode(transfer.payload)
        is_header = isinstance(header, Described) and header.descriptor == HEADER
        if not is_header or not header.value or header.value[0] is not True:
            raise Refused("a message was received that is not durable")
        self._known = transfer.payload[:end]
