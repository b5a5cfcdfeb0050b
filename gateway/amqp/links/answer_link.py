"""
The link that answers of a request node go out on (see ``request_link``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from proton import Link

from gateway.amqp.engine.attached_link import Sending
from gateway.amqp.engine.carrier import Carrier
from gateway.amqp.engine.loops import LOOPS
from gateway.amqp.links.base_link import BaseLink
from gateway.core.errors import ErrorCode, Refused


class AnswerLink(BaseLink):
    """
    A link that answers go out on. They go settled, as there is credit and room for them.

    Args:
        paired: It is one of a pair of links: requests come in on the other.
    """

    kind = "answers"

    def __init__(self, link: Link, carrier: Carrier, *, paired: bool) -> None:
        super().__init__(link, carrier)
        self._is_paired = paired
        self._waiting: deque[tuple[bytes, Callable[[], None]]] = deque()
        self._is_closed = False
        self._sent = 0

    @property
    def outgoing(self) -> Sending:
        return self

    @property
    def _sent_count(self) -> int:
        return self._sent

    @property
    def node_address(self) -> str:
        """The node, as the peer spells it."""
        return str(self.link.remote_source.address)

    def is_paired_with(self, requests: Link) -> bool:
        """Whether it is the other link of a pair (HTTP over AMQP 1.0, link pairing)."""
        if not self._is_paired or self.link.session != requests.session:
            return False
        return self._links.name_of(self.link) == self._links.name_of(requests)

    def is_for(self, reply_to: str | None) -> bool:
        """Whether answers to requests with this reply-to are for it: by its target, or by its name without one."""
        return (
            reply_to is not None
            and (self.link.remote_target.address or self._links.name_of(self.link)) == reply_to
        )

    def send(self, answer: bytes, sent: Callable[[], None]) -> None:
        """Send an answer when that is possible, then call ``sent``; also when it never will be."""
        self._waiting.append((answer, sent))
        self._send_waiting()

    def _send_waiting(self) -> None:
        link, waiting, output = self.link, self._waiting, self._output
        while waiting and not self._is_closed and link.credit > 0:
            if output.free_bytes <= 0:
                self._links.wait_for_output(self)
                break
            answer, sent = waiting.popleft()
            self._sent += 1
            delivery = link.delivery(str(self._sent))
            link.send(answer)
            link.advance()
            delivery.settle()
            sent()
        if not self._is_closed and not waiting and link.drain_mode:
            link.drained()
        output.schedule_flush()

    def ready(self) -> None:
        """The attach is answered: the peer gives credit."""

    def writable(self) -> None:
        """The connection has room for output again."""
        self._send_waiting()

    # --- what the engine says of it -----------------------------------------------------------------------------

    def updated(self, collector: Any) -> None:
        """Nothing is unsettled here: the peer has nothing to say of a delivery."""
        if not self._is_closed and self.link.current is not None:
            raise Refused(ErrorCode.NOT_ALLOWED, "a transfer came on a link that its sender receives on")
        LOOPS.drop(collector)

    def report(self) -> None:
        """There is nothing to report."""

    def on_flow(self) -> None:
        """There may be credit."""
        self._send_waiting()

    # --- the link -------------------------------------------------------------------------------------------------

    def detached(self, *, closed: bool) -> None:
        self._is_closed = True
        self._links.stop_waiting(self)
        while self._waiting:
            self._waiting.popleft()[1]()
