"""
Transfers that come in on one link, and what their sender is told of them, straight on proton's C engine.

What happens once a message is in the loops (``python_loops``, ``native_loops``), and is measured by the benchmark; what
happens once a call of them, and for the few messages that go alone, is here. Everything that happens once a link is
elsewhere and uses proton's public objects, which this class takes apart only to reach the C structures inside.

Safety: a C delivery lives as long as its link; once a link is closed here, its deliveries are never touched again.
Deliveries are handles of the loops wherever they are handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cproton_ffi import ffi, lib
from proton import Link

from gateway.amqp.engine.loops import LOOPS, Loops
from gateway.amqp.engine.native import (
    ACCEPTED,
    REJECTED,
    RELEASED,
    TRANSACTIONAL,
    Buffer,
    Stop,
    state_fields,
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
        loops: Loops = LOOPS,
    ) -> None:
        self._loops = loops
        self._link = link._impl
        self._handle = loops.handle_of(link._impl)
        self._max_message_bytes = max_message_bytes
        self._on_messages = on_messages
        self._on_too_large = on_too_large
        self._on_transactional = on_transactional
        self._is_batch: Callable[[bytes], bool] | None = None
        self._on_batch: Callable[[bytes, Any], None]
        self._window = window
        self._used = 0
        self.taken = 0
        """Messages."""
        self.is_closed = False

    def close(self) -> None:
        """
        The link is gone: nothing of the engine's is used here any more, nor held, and nobody is told of anything. What
        comes later, as the news of a commit does, finds it closed.
        """
        self.is_closed = True
        self._link = self._handle = None
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
        take = self._loops.take_messages
        while True:
            contents, deliveries, stop = take(self._handle, self._max_message_bytes, self._is_batch)
            if contents:
                self.taken += len(contents)
                self._on_messages(contents, deliveries)
                # Whoever got them may have closed the link.
                if self._link is None:
                    return
                if deliveries is None:
                    self._replenish(len(contents))
            if stop == Stop.NOTHING:
                break
            if stop != Stop.TURN and not self._take_alone(is_batch=stop == Stop.BATCH):
                return
        if lib.pn_link_credit(self._link) < 0:
            raise Refused(
                ErrorCode.TRANSFER_LIMIT,
                "transfers came beyond the credit of their link (AMQP 1.0 section 2.6.7)",
            )

    def _take_alone(self, *, is_batch: bool) -> bool:
        """Take the current delivery, which goes together with no other. Whether the link can take more."""
        link = self._link
        delivery = lib.pn_link_current(link)
        size = lib.pn_delivery_pending(delivery)
        if size > self._max_message_bytes:
            self._on_too_large(size, state_fields(delivery))
            return False
        if lib.pn_delivery_aborted(delivery):
            lib.pn_link_advance(link)
            lib.pn_delivery_settle(delivery)
            self._replenish(1)
            return True
        content = b""
        if size:
            buffer = _incoming.of(size)
            lib.pn_link_recv(link, buffer, size)
            content = ffi.unpack(buffer, size)
        settled = lib.pn_delivery_settled(delivery)
        # What is part of a transaction is not asked whether it is a batch.
        more = () if is_batch else (state_fields(delivery),)
        lib.pn_link_advance(link)
        if settled:
            lib.pn_delivery_settle(delivery)
        self.taken += 1
        hand_over: Callable[..., None] = self._on_batch if is_batch else self._on_transactional
        hand_over(content, None if settled else self._loops.handle_of(delivery), *more)
        if self.is_closed:
            return False
        if settled:
            self._replenish(1)
        return True

    def set_provisional_outcome(self, delivery: Any, state: bytes) -> None:
        """
        Tell the publisher the outcome that a delivery will have if its transaction commits (AMQP 1.0 section 4.4.1).

        Args:
            state: Fields of a transactional-state, encoded.
        """
        if self.is_closed:
            return
        local = lib.pn_delivery_local(self._loops.delivery_at(delivery))
        lib.pn_data_decode(lib.pn_disposition_data(local), state, len(state))
        self._settle((delivery,), TRANSACTIONAL)

    def accept(self, deliveries: Sequence[Any]) -> None:
        """Tell the publisher that these are accepted, and let it send as many more."""
        self._settle(deliveries, ACCEPTED)

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
            local = lib.pn_delivery_local(self._loops.delivery_at(delivery))
            describe(lib.pn_disposition_condition(local))
        self._settle(deliveries, REJECTED)

    def _settle(self, deliveries: Sequence[Any], outcome: int) -> None:
        if self.is_closed:
            return
        self._loops.settle(deliveries, outcome)
        self._replenish(len(deliveries))

    def _replenish(self, count: int) -> None:
        # Credit goes back in quarters of the window: one flow frame for many transfers.
        self._used += count
        if self._used * 4 >= self._window:
            lib.pn_link_flow(self._link, self._used)
            self._used = 0
