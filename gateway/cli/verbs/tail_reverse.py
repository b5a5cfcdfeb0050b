"""
``rewind tail --reverse``: the log, or a stream, from its newest message back.

AMQP has messages in one order. So each page is a bounded replay of its own, of the newest messages up to where the page
before began, and is printed from its end: a reader's rights are enough, and what is published meanwhile does not
matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from amqp_ext.message.json_object import SEQUENCE_NUMBER
from amqp_ext.message.sections import message_annotations
from amqp_ext.replay_start import MAX_OFFSET
from gateway.cli.amqp_client import AmqpClient, GatewayAddress

PAGE: Final = 500
"""Messages of a page: what is held before any of them is shown."""

REPLAY_START: Final = "rewind:replay-start"


class ReverseTail(AmqpClient):
    """
    Args:
        source: Makes the address with options of an attach behind it.
        start: Where the list ends; None for the log's beginning.
        until: Where it begins; None for now.
        show: Prints a message.
    """

    def __init__(
        self,
        gateway: GatewayAddress,
        address: str,
        source: Callable[[Mapping[str, str | None]], str],
        *,
        start: str | None,
        until: str | None,
        clamp: bool,
        count: int | None,
        show: Callable[[bytes], None],
    ) -> None:
        super().__init__(gateway, address)
        self._source = source
        self._start = start
        self._until = until or "now"
        self._missing = "clamp" if clamp else None
        self._left = MAX_OFFSET if count is None else count
        self._show = show
        self._first = 0
        """The list ends with this id."""
        self._page: list[bytes] = []
        self._asked = 0
        self._link: Any = None

    def attach(self, event: Any) -> None:
        if self._start is None:
            self._next_page(event)
            return
        # What it answers is where the list ends.
        options = {"replay-start": self._start, "until": self._until, "missing": self._missing}
        self._link = event.container.create_receiver(
            self._connection, self._source(options), name="rewind-tail-from"
        )

    def on_link_opened(self, event: Any) -> None:
        if not self._asked and event.link == self._link and event.link.remote_source.address is not None:
            answer = event.link.remote_source.filter
            answer.rewind()
            self._first = _offset(answer.get_object() if answer.next() else {})
            event.link.close()

    def _next_page(self, event: Any) -> None:
        self._asked = min(PAGE, self._left)
        self._page = []
        options = {"replay-start": f"last:{self._asked}", "until": self._until}
        self._link = event.container.create_receiver(
            self._connection, self._source(options), name=f"rewind-tail-{self._until}"
        )
        self._link.flow(self._asked + 1)

    def on_delivery(self, event: Any) -> None:
        delivery, link = event.delivery, event.link
        if not link.is_receiver or not delivery.readable or delivery.partial or self.is_done:
            return
        self._page.append(bytes(link.recv(delivery.pending)))
        link.advance()
        self.accept(delivery)

    def on_link_closed(self, event: Any) -> None:
        if self.is_done or event.link != self._link:
            return
        if not self._asked:
            self._next_page(event)
            return
        event.link.close()
        for content in reversed(self._page[-self._left :]):
            if _id(content) < self._first:
                self.done()
                return
            self._show(content)
            self._left -= 1
        oldest = _id(self._page[0]) if self._page else 0
        if len(self._page) < self._asked or not self._left or oldest <= max(self._first, 1):
            self.done()
            return
        self._until = f"#{oldest - 1}"
        self._next_page(event)


def _id(content: bytes) -> int:
    return int(message_annotations(content)[SEQUENCE_NUMBER])


def _offset(filters: Mapping[Any, Any]) -> int:
    """Where a start is, as the gateway's answer has it; 0 where it does not say."""
    answer = next((value for key, value in filters.items() if str(key) == REPLAY_START), None)
    found = getattr(answer, "value", answer)
    return int(found.get("offset", 0)) if isinstance(found, dict) else 0
