"""
The link to the transaction coordinator (AMQP 1.0 section 4.3): clients declare and discharge transactions on it.

Control messages are handled one at a time, in order with all else that the peer sent: what was published and
acknowledged before a discharge is part of its transaction. The answer to a discharge goes out once it is durable.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from proton import Delivery, Disposition, Link

from amqp_ext.terminus_fields import REJECTED
from amqp_ext.transactions import Declare, TransactionError, read_control
from gateway.amqp.client import Client
from gateway.amqp.engine.conditions import reason_keys
from gateway.amqp.engine.link_table import AttachedLink, Sending
from gateway.amqp.engine.loops import LOOPS
from gateway.amqp.links.base_link import ControlLink
from gateway.core.errors import ErrorCode, Refused, refusing

WINDOW: Final = 32
"""Control messages that may be on their way: a session has one, seldom two."""

MAX_CONTROL_BYTES: Final = 4096
"""Largest control message: a txn-id and a boolean, with room for what a client adds."""

DECLARED: Final = 0x33
"""A delivery's state that tells its sender the txn-id (section 4.5.5)."""


class CoordinatorLink(ControlLink):
    """
    A link to the coordinator.

    Args:
        outcomes: The outcomes that its source supports.
    """

    kind = "transactions"

    window = WINDOW
    most_bytes = MAX_CONTROL_BYTES

    def __init__(self, link: Link, client: Client, outcomes: Collection[str]) -> None:
        super().__init__(link, client)
        self._transactions = client.transactions
        self._can_reject = REJECTED in outcomes
        self._unanswered = 0
        """Control messages without an answer: among them commits until they are durable."""

    @property
    def outgoing(self) -> Sending:
        # Its events are handled one by one.
        return self

    # --- control messages ---------------------------------------------------------------------------------------

    def updated(self, collector: Any) -> None:
        """A control message has come."""
        self._take()
        LOOPS.drop(collector)

    def _came(self, content: bytes, delivery: Delivery | None) -> None:
        if delivery is None:
            # Nobody could be told the txn-id, or whether it was committed (section 4.2).
            self.refuse(
                Refused(ErrorCode.NOT_ALLOWED, "a message to the coordinator has to be sent unsettled")
            )
            return
        self._links.deal_with_arrived()
        self._unanswered += 1
        try:
            self._do(content, delivery)
        except Refused as refused:
            self._answer(delivery, refused)

    def _do(self, content: bytes, delivery: Delivery) -> None:
        transactions = self._transactions
        with refusing(TransactionError):
            control = read_control(content)
        if isinstance(control, Declare):
            fields: list[Any] = [transactions.declare(self)]
            delivery.local.data = fields
            self._unanswered -= 1
            self._tell(delivery, DECLARED)
        elif control.fail:
            transactions.roll_back(control.txn_id)
            self._answer(delivery, None)
        else:
            transactions.commit(control.txn_id, lambda refused: self._answer(delivery, refused))

    def _answer(self, delivery: Delivery, refused: Refused | None) -> None:
        if self._is_closed:
            return
        if refused is not None:
            self._log.warning("transaction_refused", **reason_keys(refused))
            if not self._can_reject:
                # Section 4.3: then the link is detached, with the transaction's error.
                self.refuse(refused)
                return
        self._unanswered -= 1
        self._tell(delivery, Disposition.ACCEPTED if refused is None else Disposition.REJECTED, refused)
        self._end_if_idle()

    def report(self) -> None:
        """There is nothing to report."""

    def on_flow(self) -> None:
        """Nothing goes out on it."""

    # --- the link -----------------------------------------------------------------------------------------------

    @property
    def _stands_for_something(self) -> bool:
        """Whether it has unanswered messages or open transactions: it keeps them detached, until it is closed (4.3)."""
        return self._unanswered > 0 or self._transactions.has_any_of(self)

    def resume(self, older: AttachedLink) -> None:
        if isinstance(older, CoordinatorLink):
            self._transactions.hand_over(older, self)

    def detached(self, *, closed: bool) -> None:
        super().detached(closed=closed)
        self._transactions.lost(self)
