"""
Transfers that come in on one link, and what their sender is told of them, straight on proton's C engine.

What happens once a message happens here, and is measured by the benchmark: some C calls, one bytes object. No logging,
no wrapper objects. Everything that happens once a link is elsewhere and uses proton's public objects, which this class
takes apart only to reach the C structures inside.

Safety: a C delivery lives as long as its link; once a link is closed here, its deliveries are never touched again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cproton_ffi import ffi, lib
from proton import Link

from gateway.amqp.engine.native import (
    ACCEPTED,
    NULL,
    REJECTED,
    RELEASED,
    TRANSACTIONAL,
    Buffer,
    state_fields,
    tag_of,
)
from gateway.core.errors import ErrorCode, Refused

_incoming = Buffer()


def _ignore(*_: Any) -> None:
    """Nobody is told of what comes of a closed link."""


class IncomingTransfers:
    """
    Messages coming in on one link.

    Args:
        window: Credit the publisher is kept at: messages it may have on the way or uncommitted.
        max_message_bytes: Past this ``on_too_large`` is called, and nothing more is read.
        on_messages: Called with contents and their unsettled deliveries, or contents that came settled and None.
        on_too_large: Called with bytes, and the fields of the transactional-state if it has one.
        on_transactional: Called with a message of a transaction, its delivery (None where that came settled), and the
            fields of its transactional-state.
    """

    def __init__(
        self,
        link: Link,
        *,
        window: int,
        max_message_bytes: int,
        on_messages: Callable[[list[bytes], list[Any] | None], None],
        on_too_large: Callable[[int, Any], None],
        on_transactional: Callable[[bytes, Any, Any], None],
    ) -> None:
        self._link = link._impl
        self._max_message_bytes = max_message_bytes
        self._on_messages = on_messages
        self._on_too_large = on_too_large
        self._on_transactional = on_transactional
        self._is_batch: Callable[[bytes], bool] | None = None
        self._on_batch: Callable[[bytes, Any], None]
        self._window = window
        self._used = 0
        self.is_closed = False

    def close(self) -> None:
        """
        The link is gone: nothing of the engine's is used here any more, nor held, and nobody is told of anything. What
        comes later, as the news of a commit does, finds it closed.
        """
        self.is_closed = True
        self._link = None
        self._is_batch = None
        self._on_messages = self._on_too_large = self._on_transactional = self._on_batch = _ignore

    def expect_batches(
        self, is_batch: Callable[[bytes], bool], on_batch: Callable[[bytes, Any], None]
    ) -> None:
        """Deliveries with a tag that ``is_batch`` go to ``on_batch``, as messages of a transaction go to theirs."""
        self._is_batch, self._on_batch = is_batch, on_batch

    def open(self) -> None:
        """Grant the first credit."""
        if not self.is_closed:
            lib.pn_link_flow(self._link, self._window)

    def receive(self) -> None:
        """Take every message that is complete."""
        if self.is_closed:
            return
        link = self._link
        current, partial, pending = lib.pn_link_current, lib.pn_delivery_partial, lib.pn_delivery_pending
        advance, receive, is_settled = lib.pn_link_advance, lib.pn_link_recv, lib.pn_delivery_settled
        # Each is asked, with a coordinator or without: a message of an unknown transaction must not exist.
        state_of = lib.pn_delivery_remote_state
        unpack, buffer_of = ffi.unpack, _incoming.of
        limit = self._max_message_bytes
        is_batch = self._is_batch
        contents: list[bytes] = []
        deliveries: list[Any] = []
        direct: list[bytes] = []
        while (delivery := current(link)) != NULL:
            size = pending(delivery)
            if size > limit:
                fields = state_fields(delivery)
                self._hand_over(contents, deliveries, direct)
                self._on_too_large(size, fields)
                return
            # The engine drops what an aborted delivery had brought: only an empty one can be one.
            if not size and lib.pn_delivery_aborted(delivery):
                advance(link)
                lib.pn_delivery_settle(delivery)
                self._replenish(1)
                continue
            if partial(delivery):
                break
            if size:
                buffer = buffer_of(size)
                receive(link, buffer, size)
                content = unpack(buffer, size)
            else:
                content = b""
            settled = is_settled(delivery)
            if state_of(delivery) == TRANSACTIONAL:
                fields = state_fields(delivery)
                advance(link)
                self._hand_over(contents, deliveries, direct)
                contents, deliveries, direct = [], [], []
                if not self._hand_over_alone(content, delivery, settled, self._on_transactional, fields):
                    return
                continue
            if is_batch is not None and is_batch(tag_of(delivery)):
                advance(link)
                self._hand_over(contents, deliveries, direct)
                contents, deliveries, direct = [], [], []
                if not self._hand_over_alone(content, delivery, settled, self._on_batch):
                    return
                continue
            advance(link)
            if settled:
                lib.pn_delivery_settle(delivery)
                if contents:
                    self._hand_over(contents, deliveries, direct)
                    contents, deliveries = [], []
                direct.append(content)
            else:
                if direct:
                    self._hand_over(contents, deliveries, direct)
                    direct = []
                contents.append(content)
                deliveries.append(delivery)
        self._hand_over(contents, deliveries, direct)
        if lib.pn_link_credit(link) < 0 and not self.is_closed:
            raise Refused(
                ErrorCode.TRANSFER_LIMIT,
                "transfers came beyond the credit of their link (AMQP 1.0 section 2.6.7)",
            )

    def _hand_over(self, contents: list[bytes], deliveries: list[Any], direct: list[bytes]) -> None:
        if contents:
            self._on_messages(contents, deliveries)
        if direct:
            self._on_messages(direct, None)
            if not self.is_closed:
                self._replenish(len(direct))

    def _hand_over_alone(
        self, content: bytes, delivery: Any, settled: bool, hand_over: Callable[..., None], *more: Any
    ) -> bool:
        """A delivery that goes together with no other. Whether the link can take more."""
        if self.is_closed:
            return False
        if settled:
            lib.pn_delivery_settle(delivery)
        hand_over(content, None if settled else delivery, *more)
        if settled and not self.is_closed:
            self._replenish(1)
        return not self.is_closed

    def set_provisional_outcome(self, delivery: Any, state: bytes) -> None:
        """
        Tell the publisher the outcome that a delivery will have if its transaction commits (AMQP 1.0 section 4.4.1).

        Args:
            state: Fields of a transactional-state, encoded.
        """
        if self.is_closed:
            return
        data = lib.pn_disposition_data(lib.pn_delivery_local(delivery))
        lib.pn_data_decode(data, state, len(state))
        self._settle((delivery,), TRANSACTIONAL)

    def accept(self, deliveries: Sequence[Any]) -> None:
        """Tell the publisher that these are accepted, and let it send as many more."""
        if self.is_closed:
            return
        update, settle = lib.pn_delivery_update, lib.pn_delivery_settle
        for delivery in deliveries:
            update(delivery, ACCEPTED)
            settle(delivery)
        self._replenish(len(deliveries))

    def release(self, deliveries: Sequence[Any]) -> None:
        """Nobody takes these."""
        self._settle(deliveries, RELEASED)

    def reject(self, deliveries: Sequence[Any], describe: Callable[[Any], None]) -> None:
        """
        These are not taken; ``describe`` is given each delivery's disposition to put the error in.

        A C condition is what it gets: proton's public disposition would need a wrapper object for each.
        """
        if self.is_closed:
            return
        for delivery in deliveries:
            describe(lib.pn_disposition_condition(lib.pn_delivery_local(delivery)))
        self._settle(deliveries, REJECTED)

    def _settle(self, deliveries: Sequence[Any], outcome: int) -> None:
        if self.is_closed:
            return
        for delivery in deliveries:
            lib.pn_delivery_update(delivery, outcome)
            lib.pn_delivery_settle(delivery)
        self._replenish(len(deliveries))

    def _replenish(self, count: int) -> None:
        # Credit goes back in quarters of the window: one flow frame for many transfers.
        self._used += count
        if self._used * 4 >= self._window:
            lib.pn_link_flow(self._link, self._used)
            self._used = 0
