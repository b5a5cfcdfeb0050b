"""
The link to the transaction coordinator (AMQP 1.0 section 4.3): declares and discharges come in on it.

Control messages are taken one at a time, in their place among all that the peer sent: what was published and
acknowledged before a discharge is part of its transaction. The answer to a discharge goes out once it is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from proton import UNDESCRIBED, Array, Data, Delivery, Disposition, Link, Terminus, symbol

from amqp_ext.transactions import (
    LOCAL_TRANSACTIONS,
    MULTIPLE_PER_SESSION,
    MULTIPLE_SESSIONS,
    Declare,
    TransactionError,
    read_control,
)
from gateway import log_keys
from gateway.amqp.engine.conditions import condition_of
from gateway.amqp.links.outgoing import detach
from gateway.core.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection

WINDOW: Final = 32
"""Control messages that may be on their way: a session has one, seldom two."""

MAX_CONTROL_BYTES: Final = 4096
"""Largest control message: a txn-id and a boolean, with room for what a client adds."""

DECLARED: Final = 0x33


def attach_to_coordinator(connection: Connection, link: Link) -> None:
    """Answer an attach whose target is the coordinator."""
    link.source.copy(link.remote_source)
    link.target.type = Terminus.COORDINATOR
    link.target.capabilities.put_object(
        # An array, as multiple values are (section 1.4): Qpid JMS takes no list.
        Array(
            cast("Any", UNDESCRIBED),
            Data.SYMBOL,
            *map(symbol, (LOCAL_TRANSACTIONS, MULTIPLE_PER_SESSION, MULTIPLE_SESSIONS)),
        )
    )
    link.snd_settle_mode = link.remote_snd_settle_mode
    link.rcv_settle_mode = Link.RCV_FIRST
    link.max_message_size = MAX_CONTROL_BYTES
    coordinator = CoordinatorLink(connection, link)
    # Where the engine's events are handled one by one.
    connection.links.outgoing[coordinator.key] = coordinator
    connection.attached[link] = coordinator
    link.open()
    link.flow(WINDOW)
    connection.log_event("link_attached", **{log_keys.LINK: link.name, log_keys.ADDRESS: "the coordinator"})


class CoordinatorLink:
    """A link to the coordinator, and whose transactions they are."""

    def __init__(self, connection: Connection, link: Link) -> None:
        self._connection = connection
        self._link = link
        self._is_closed = False

    @property
    def key(self) -> Any:
        return self._link._impl

    # --- control messages ---------------------------------------------------------------------------------------

    def updated(self, delivery: Any) -> None:
        """Take the control message that has come."""
        link = self._link
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
        # What the peer sent before it is in the engine, and perhaps not taken yet.
        links = self._connection.links
        for receiving in list(links.incoming.values()):
            receiving.receive()
        for sending in list(links.outgoing.values()):
            sending.report()
        try:
            self._do(content, current)
        except Refused as refused:
            self._answer(current, refused)

    def _do(self, content: bytes, delivery: Delivery) -> None:
        transactions = self._connection.transactions
        try:
            asked = read_control(content)
        except TransactionError as error:
            raise Refused(ErrorCode.INVALID_FIELD, str(error)) from error
        if isinstance(asked, Declare):
            fields: list[Any] = [transactions.declare(self)]
            delivery.local.data = fields
            delivery.update(DECLARED)
            delivery.settle()
            self._link.flow(1)
        elif asked.fail:
            transactions.roll_back(asked.txn_id)
            self._answer(delivery, None)
        else:
            transactions.commit(asked.txn_id, lambda refused: self._answer(delivery, refused))

    def _answer(self, delivery: Delivery, refused: Refused | None) -> None:
        if self._is_closed:
            return
        if refused is None:
            delivery.update(Disposition.ACCEPTED)
        else:
            self._connection.warn(
                "transaction_refused",
                **{log_keys.CONDITION: refused.code.condition, log_keys.REASON: refused.text},
            )
            delivery.local.condition = condition_of(refused)
            delivery.update(Disposition.REJECTED)
        delivery.settle()
        self._link.flow(1)
        self._connection.schedule_flush()

    def report(self) -> None:
        """There is nothing to report."""

    def on_flow(self) -> None:
        """Nothing goes out on it."""

    # --- the link -----------------------------------------------------------------------------------------------

    def detached(self, *, closed: bool) -> None:
        self._is_closed = True
        self._connection.transactions.lost(self)

    def lost(self) -> None:
        self.detached(closed=True)

    def refuse(self, refused: Refused) -> None:
        detach(self._connection, self._link, refused)
