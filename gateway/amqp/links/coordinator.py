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
from gateway.amqp.engine.conditions import condition_of
from gateway.amqp.engine.link_table import Sending
from gateway.amqp.engine.loops import LOOPS
from gateway.amqp.links.base_link import BaseLink
from gateway.core.errors import ErrorCode, Refused
from gateway.logging import log_keys

WINDOW: Final = 32
"""Control messages that may be on their way: a session has one, seldom two."""

MAX_CONTROL_BYTES: Final = 4096
"""Largest control message: a txn-id and a boolean, with room for what a client adds."""

DECLARED: Final = 0x33
"""A delivery's state that tells its sender the txn-id (section 4.5.5)."""


class CoordinatorLink(BaseLink):
    """
    A link to the coordinator.

    Args:
        outcomes: Those that its source knows.
    """

    kind = "transactions"

    def __init__(self, link: Link, client: Client, outcomes: Collection[str]) -> None:
        super().__init__(link, client)
        self._transactions = client.transactions
        self._can_reject = REJECTED in outcomes
        self._is_closed = False
        self._unanswered = 0
        """Control messages; of a commit, while it is being made durable."""

    @property
    def outgoing(self) -> Sending:
        # Where the engine's events are handled one by one.
        return self

    def ready(self) -> None:
        """The attach is answered: control messages may come."""
        self.link.flow(WINDOW)

    # --- control messages ---------------------------------------------------------------------------------------

    def updated(self, collector: Any) -> None:
        """A control message has come."""
        self._take()
        LOOPS.drop(collector)

    def _take(self) -> None:
        link = self.link
        current = None if self._is_closed else link.current
        if current is None or current.aborted:
            if current is not None:
                link.advance()
                current.settle()
                link.flow(1)
            return
        if current.pending > MAX_CONTROL_BYTES:
            self.refuse(
                Refused(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a message to the coordinator has at most {MAX_CONTROL_BYTES} bytes",
                )
            )
            return
        if current.partial:
            return
        content = bytes(link.recv(current.pending) or b"") if current.pending else b""
        is_settled = current.settled
        link.advance()
        if is_settled:
            # Nobody could be told the txn-id, or whether it was committed (section 4.2).
            self.refuse(Refused(ErrorCode.NOT_ALLOWED, "a message to the coordinator is sent unsettled"))
            return
        self._links.deal_with_arrived()
        self._unanswered += 1
        try:
            self._do(content, current)
        except Refused as refused:
            self._answer(current, refused)

    def _do(self, content: bytes, delivery: Delivery) -> None:
        transactions = self._transactions
        try:
            control = read_control(content)
        except TransactionError as error:
            raise Refused(ErrorCode.INVALID_FIELD, str(error)) from error
        if isinstance(control, Declare):
            fields: list[Any] = [transactions.declare(self)]
            delivery.local.data = fields
            delivery.update(DECLARED)
            delivery.settle()
            self._unanswered -= 1
            self.link.flow(1)
        elif control.fail:
            transactions.roll_back(control.txn_id)
            self._answer(delivery, None)
        else:
            transactions.commit(control.txn_id, lambda refused: self._answer(delivery, refused))

    def _answer(self, delivery: Delivery, refused: Refused | None) -> None:
        if self._is_closed:
            return
        if refused is None:
            delivery.update(Disposition.ACCEPTED)
        else:
            self._log.warning(
                "transaction_refused",
                **{log_keys.CONDITION: refused.code.condition, log_keys.REASON: refused.text},
            )
            if not self._can_reject:
                # Section 4.3: then the link is detached, with the transaction's error.
                self.refuse(refused)
                return
            delivery.local.condition = condition_of(refused)
            delivery.update(Disposition.REJECTED)
        delivery.settle()
        self._unanswered -= 1
        self.link.flow(1)
        self._output.schedule_flush()
        self._end_if_idle()

    def report(self) -> None:
        """There is nothing to report."""

    def on_flow(self) -> None:
        """Nothing goes out on it."""

    # --- the link -----------------------------------------------------------------------------------------------

    @property
    def _stands_for_something(self) -> bool:
        """Its transactions are rolled back when it is closed (section 4.3): detached, it keeps those that are open."""
        return self._unanswered > 0 or self._transactions.has_any_of(self)

    def resume(self, older: Any) -> None:
        if isinstance(older, CoordinatorLink):
            self._transactions.hand_over(older, self)

    def detached(self, *, closed: bool) -> None:
        self._is_closed = True
        self._transactions.lost(self)
