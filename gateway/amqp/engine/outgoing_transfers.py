"""
Transfers that go out on one link, and what their receiver says of them, straight on proton's C engine.

What happens once a message is in the loops (``python_loops``, ``native_loops``), and is measured by the benchmark; what
happens once a call of them, and for outcomes other than "accepted", is here. Everything that happens once a link is
elsewhere and uses proton's public objects, which this class takes apart only to reach the C structures inside.

Safety: a C delivery lives as long as its link; once a link is closed here, its deliveries are never touched again.
Deliveries are handles of the loops wherever they are kept or handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cproton_ffi import lib
from proton import Link

from amqp_ext.message.annotations import Splicer
from amqp_ext.transactions import Outcome
from gateway.amqp.engine.loops import LOOPS, Loops
from gateway.amqp.engine.native import (
    ACCEPTED,
    MODIFIED,
    NULL,
    REJECTED,
    RELEASED,
    TRANSACTIONAL,
    state_fields,
)
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import CONTENT, Row
from gateway.ledger import DELIVERY_BYTES, Account, Kind

BATCH_BYTES: Final = 128 * 1024
"""Content in a delivery that is a batch, about."""


def _ignore(*_: Any) -> None:
    """Nobody is told of what comes of a closed link."""


class OutgoingTransfers:
    """
    Messages going out on one link.

    Args:
        account: Where unsettled deliveries are entered.
        pre_settled: Whether deliveries go out settled: the peer wants no say in them.
        on_outcomes: Called with what the peer said of deliveries: ids accepted, and (id, outcome, failed,
            undeliverable here) of all others; and, to be called when that is durable, how to settle those deliveries
            that the peer waits for (None when it waits for none).
        on_transactional: Called with an id, the fields of the transactional-state that the peer gave its delivery,
            and the delivery, None where the peer has settled it.
    """

    def __init__(
        self,
        link: Link,
        splicer: Splicer,
        account: Account,
        *,
        pre_settled: bool,
        default_outcome: Outcome,
        on_credit: Callable[[], None],
        on_outcomes: Callable[
            [list[int], list[tuple[int, int, bool, bool]], Callable[[], None] | None], None
        ],
        on_transactional: Callable[[int, Any, Any], None],
        loops: Loops = LOOPS,
    ) -> None:
        self._loops = loops
        self._on_transactional = on_transactional
        self._link = link._impl
        self._handle = loops.handle_of(link._impl)
        self._splicer = splicer
        self._marked = splicer
        """What marks the messages of ``_replay_name``; remade when another replay sends."""
        self._replay_name = ""
        self._pre_settled = pre_settled
        self._default_outcome = default_outcome
        self._on_credit = on_credit
        self._on_outcomes = on_outcomes
        self._unsettled: dict[Any, int] = {}
        self._account = account
        self._entered = 0
        """Unsettled deliveries that the account knows of."""
        self._accepted: list[int] = []
        self._others: list[tuple[int, int, bool, bool]] = []
        self._confirm: list[Any] = []
        self._average_bytes = 256
        self.in_batches = False
        """Several messages go in one delivery (``amqp_ext.message.reader_batches``); only where they go out settled."""
        self.sent = 0
        """Messages."""
        self.is_closed = False

    def close(self) -> None:
        """
        The link is gone: nothing of the engine's is used here any more, nor held, and nobody is told of anything. What
        comes later, as the news of a commit does, finds it closed.
        """
        self.is_closed = True
        self._link = self._handle = None
        self._on_credit = _ignore
        self._on_outcomes = self._on_transactional = _ignore
        self._unsettled.clear()
        self._enter()
        self._accepted, self._others, self._confirm = [], [], []

    @property
    def credit(self) -> int:
        return 0 if self.is_closed else int(lib.pn_link_credit(self._link))

    @property
    def unsettled_count(self) -> int:
        return len(self._unsettled)

    def room(self, free_bytes: int) -> int:
        """Messages that can be sent now, by credit and by the bytes that may still be buffered."""
        if self.is_closed or free_bytes <= 0:
            return 0
        room = min(int(lib.pn_link_credit(self._link)), free_bytes // self._average_bytes + 1)
        return room if self._pre_settled else min(room, self._account.room_for_deliveries)

    def _enter(self) -> None:
        more = len(self._unsettled) - self._entered
        if more:
            self._entered += more
            self._account.hold(Kind.UNSETTLED, more * DELIVERY_BYTES)

    def send(
        self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None, replay_name: str = ""
    ) -> None:
        """Send messages; there must be credit for them. ``replay_name``: the mark on them, if it is not empty."""
        if self.is_closed:
            return
        self.sent += len(rows)
        splicer = self._splicer_for(replay_name) if replay_name else self._splicer
        if self.in_batches:
            self._send_batches(rows, splicer, attempts, end_id)
            return
        unsettled = None if self._pre_settled else self._unsettled
        total = self._loops.send(self._handle, rows, splicer, attempts, end_id, unsettled)
        self._average_bytes = max(total // len(rows), 1) + 200
        if not self._pre_settled:
            self._enter()

    def _splicer_for(self, replay_name: str) -> Splicer:
        if replay_name != self._replay_name:
            self._marked, self._replay_name = self._splicer.marked(replay_name), replay_name
        return self._marked

    def _send_batches(
        self, rows: Sequence[Row], splicer: Splicer, attempts: Mapping[int, int], end_id: int | None
    ) -> None:
        """The same in as few deliveries as their size allows: never more than messages, so there is credit for them."""
        total = sum([len(row[CONTENT]) for row in rows])
        count = max(1, min(len(rows), len(rows) * BATCH_BYTES // max(total, 1)))
        for first in range(0, len(rows), count):
            batch = rows[first : first + count]
            self._loops.send_batch(self._handle, batch, splicer, attempts, end_id)
        self._average_bytes = max(total // len(rows), 1) + 200

    def updated(self, collector: Any) -> None:
        """
        The event on top is about one of our deliveries: note what the peer said, there and in those that follow.

        Args:
            collector: Its handle.
        """
        loops = self._loops
        if not loops.take_outcomes(collector, self._unsettled, self._accepted, self._confirm):
            self._updated(loops.delivery_on_top(collector))
            loops.drop(collector)

    def _updated(self, delivery: Any) -> None:
        """The same for whatever the peer may have said of a delivery."""
        if self.is_closed:
            return
        structure = self._loops.delivery_at(delivery)
        is_settled = lib.pn_delivery_settled(structure)
        state = lib.pn_delivery_remote_state(structure)
        if state == ACCEPTED:
            message_id = self._unsettled.pop(delivery, None)
            if message_id is not None:
                self._accepted.append(message_id)
        elif state == TRANSACTIONAL:
            self._updated_in_transaction(delivery, bool(is_settled))
            return
        elif state in (REJECTED, RELEASED, MODIFIED) or is_settled:
            message_id = self._unsettled.pop(delivery, None)
            if message_id is not None:
                self._note(structure, message_id, state)
        else:
            # Received (a partial state), or nothing new.
            message_id = None
        if message_id is None and lib.pn_link_current(self._link) != NULL:
            # Ours are never current here: each is complete when it is made.
            raise Refused(ErrorCode.NOT_ALLOWED, "a transfer came on a link that its sender receives on")
        if is_settled:
            lib.pn_delivery_settle(structure)
        elif message_id is not None:
            lib.pn_delivery_update(structure, state)
            self._confirm.append(delivery)

    def _updated_in_transaction(self, delivery: Any, is_settled: bool) -> None:
        """The delivery stays unsettled here until the transaction is over; its peer may have settled it."""
        message_id = self._unsettled.get(delivery)
        structure = self._loops.delivery_at(delivery)
        fields = state_fields(structure)
        if is_settled:
            self._unsettled.pop(delivery, None)
            lib.pn_delivery_settle(structure)
        if message_id is not None:
            self._on_transactional(message_id, fields, None if is_settled else delivery)

    def settle(self, delivery: Any, outcome: int) -> None:
        """A transaction has committed what the peer said of a delivery."""
        if not self.is_closed and self._unsettled.pop(delivery, None) is not None:
            self._loops.settle((delivery,), outcome)

    def _note(self, structure: Any, message_id: int, state: int) -> None:
        if state not in (REJECTED, RELEASED, MODIFIED):
            # Settled without an outcome: the source's default outcome holds (AMQP 1.0 section 3.5.3).
            default = self._default_outcome
            if default.code == ACCEPTED:
                self._accepted.append(message_id)
            else:
                self._others.append((message_id, default.code, default.failed, default.undeliverable))
            return
        failed = undeliverable = False
        if state == MODIFIED:
            disposition = lib.pn_delivery_remote(structure)
            failed = bool(lib.pn_disposition_is_failed(disposition))
            undeliverable = bool(lib.pn_disposition_is_undeliverable(disposition))
        self._others.append((message_id, state, failed, undeliverable))

    def report(self) -> None:
        """Hand on what was noted since the last time."""
        self._enter()
        accepted, others, confirm = self._accepted, self._others, self._confirm
        if not accepted and not others:
            return
        self._accepted, self._others, self._confirm = [], [], []
        self._on_outcomes(accepted, others, (lambda: self._settle(confirm)) if confirm else None)

    def _settle(self, deliveries: Sequence[Any]) -> None:
        if not self.is_closed:
            self._loops.settle(deliveries, 0)

    def on_flow(self) -> None:
        if not self.is_closed:
            self._on_credit()

    def drained(self) -> bool:
        """
        There is nothing to send: credit the peer wants drained is used up (AMQP 1.0 section 2.6.7). False: not before
        what is queued is written; the engine would not tell it once the session's window opens.
        """
        link, is_drain = self._link, not self.is_closed and lib.pn_link_get_drain(self._link)
        return not is_drain or (not lib.pn_link_queued(link) and lib.pn_link_drained(link) >= 0)
