"""
Local transactions of one connection (AMQP 1.0 part 4): messages and outcomes are kept until their transaction is
discharged.

Invariants: nothing of a transaction reaches the Message VPN before its discharge, and then all of it in one batch. A
transaction that can no longer be committed holds nothing, and only waits for its discharge. The bytes that open
transactions hold are bounded.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from amqp_ext.codec import Symbol
from amqp_ext.transactions import (
    ACCEPTED,
    REJECTED,
    Outcome,
    TransactionalState,
    TransactionError,
    error,
    read_state,
    transactional,
)
from gateway.amqp.connection_log import ConnectionLog
from gateway.amqp.engine.conditions import fitted, reason_keys
from gateway.amqp.engine.link_table import AttachedLink
from gateway.config import Limits
from gateway.core.endpoint.endpoint import Flow
from gateway.core.errors import ErrorCode, Refused
from gateway.ledger import Account, Kind
from gateway.vpn.publishing import Publishing, Staged
from store.errors import WriteFailed

OVERHEAD_BYTES: Final = 256
"""What a staged message takes in memory in addition to its content."""


_AROUND_OUTCOME: Final = 48
"""Upper bound of the bytes that a transactional-state has around an outcome."""


class TransactedPublisher(Protocol):
    """A link that messages of a transaction come in on."""

    def stage(self, content: bytes) -> Staged:
        """
        Prepare a message to be kept until its transaction commits.

        Raises:
            Refused: It is no message, or may not be sent to its destination.
        """

    def reject_in(self, txn_id: bytes, delivery: Any, refused: Refused) -> None:
        """Reject a message that its failed transaction does not take; ``delivery`` is None where it came settled."""

    def set_provisional_outcome(self, delivery: Any, state: bytes) -> None:
        """Tell the peer which outcome a delivery gets if its transaction commits; does nothing for None."""

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None:
        """Tell the peer that these deliveries were not taken."""

    def refuse(self, refused: Refused) -> None:
        """Detach with an error."""


class TransactedConsumer(Protocol):
    """A link whose deliveries a transaction acknowledges."""

    flow: Flow | None
    """Its place at its endpoint; None once it is detached."""
    in_transaction: dict[int, LocalTransaction | None]
    """By id: the transaction that acknowledges an unsettled delivery; None once that was rolled back."""

    def acknowledged_in(self, transaction: LocalTransaction, message_id: int) -> None:
        """A transaction is to settle a delivery."""

    def committed(self, outcomes: list[tuple[int, Outcome, Any]]) -> None:
        """A transaction has committed these outcomes."""

    def revert(self, message_id: int, delivery: Any) -> None:
        """Undo the outcome that a transaction gave to a delivery."""

    def refuse(self, refused: Refused) -> None:
        """Detach with an error."""


@dataclass(slots=True)
class _Acknowledged:
    """A delivery, and the outcome that its transaction gives it."""

    outcome: Outcome
    delivery: Any | None
    """Settled with the commit; None where the peer has settled it."""
    cursor_number: int
    """The endpoint's cursor at that time: once the endpoint has another one, the delivery is void."""


@dataclass(slots=True, eq=False)
class LocalTransaction:
    """A transaction that a client has declared."""

    txn_id: bytes
    controller: AttachedLink
    """The link to the coordinator that declared it."""
    staged: list[Staged] = field(default_factory=list)
    acknowledged: dict[tuple[TransactedConsumer, int], _Acknowledged] = field(default_factory=dict)
    size_bytes: int = 0
    failure: Refused | None = None
    """Why it was rolled back, where the client did not ask for that."""
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class LocalTransactions:
    """
    The transactions of one connection.

    Args:
        _origin: The origin of their messages.
        _account: Where the bytes of their messages are entered.
        _schedule_flush: Has the engine's output written at the end of this turn of the loop.
    """

    _publishing: Publishing
    _origin: str
    _limits: Limits
    _account: Account
    _log: ConnectionLog
    _schedule_flush: Callable[[], None]
    _open: dict[bytes, LocalTransaction] = field(default_factory=dict)
    _size_bytes: int = 0
    _number: int = 0
    has_lost_any: bool = False
    """Whether a link of the connection has lost unsettled deliveries: it was closed, or their locks ended."""

    # --- what the coordinator is asked for ----------------------------------------------------------------------

    def declare(self, controller: AttachedLink) -> bytes:
        """
        Begin a transaction.

        Returns:
            Its txn-id, which no other of this connection ever has.

        Raises:
            Refused: RESOURCE_LIMIT, too many are open.
        """
        most = self._limits.max_transactions
        if len(self._open) >= most:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"{most} transactions are open on this connection (max_transactions); discharge one first",
            )
        self._number += 1
        txn_id = self._number.to_bytes(8, "big")
        self._open[txn_id] = LocalTransaction(txn_id, controller)
        return txn_id

    def roll_back(self, txn_id: bytes) -> None:
        """
        Roll a transaction back, as its client asks.

        Raises:
            Refused: UNKNOWN_TRANSACTION
        """
        transaction = self._find(txn_id)
        del self._open[txn_id]
        self._drop(transaction)

    def commit(self, txn_id: bytes, told: Callable[[Refused | None], None]) -> None:
        """
        Commit a transaction: make all of it durable.

        Args:
            told: Called with None once it is durable, or with why it was not committed: ROLLED_BACK or
                TRANSACTION_TIMEOUT, it was rolled back before; ROLLED_BACK, the store could not write it.

        Raises:
            Refused: UNKNOWN_TRANSACTION; ROLLED_BACK, it cannot be committed and has ended.
        """
        transaction = self._find(txn_id)
        del self._open[txn_id]
        if transaction.failure is not None:
            # Told, not raised: an exception that is raised again keeps more frames in its traceback each time.
            told(transaction.failure)
            return
        if not transaction.staged and not transaction.acknowledged:
            told(None)
            return
        try:
            settled = self._to_settle(transaction)
            self._publishing.commit_transaction(
                transaction.staged,
                [(consumer.flow, ids) for consumer, ids in settled.items() if consumer.flow is not None],
                self._origin,
                lambda problem: self._committed(transaction, problem, told),
            )
        except Refused:
            self._drop(transaction)
            raise
        self._stop_clock(transaction)

    def _to_settle(self, transaction: LocalTransaction) -> dict[TransactedConsumer, list[int]]:
        """The ids that the commit itself settles, by consumer."""
        found: dict[TransactedConsumer, list[int]] = defaultdict(list)
        for (consumer, message_id), one in transaction.acknowledged.items():
            flow = consumer.flow
            if (
                flow is None
                or flow.endpoint.cursor_number != one.cursor_number
                or message_id not in flow.unsettled
            ):
                raise Refused(
                    ErrorCode.ROLLED_BACK,
                    "rolled back: the consumer no longer has a delivery that was settled in it: its link was "
                    "detached, it was settled outside of the transaction, or a replay of its queue began",
                )
            has_other_place = bool(flow.endpoint.settings.dead_message_queue)
            if one.outcome.code == ACCEPTED or (one.outcome.code == REJECTED and not has_other_place):
                found[consumer].append(message_id)
        return found

    def _committed(
        self,
        transaction: LocalTransaction,
        problem: WriteFailed | None,
        told: Callable[[Refused | None], None],
    ) -> None:
        if problem is not None:
            self._drop(transaction)
            told(Refused(ErrorCode.ROLLED_BACK, f"rolled back: the store could not write: {problem}"))
            return
        self._free(transaction)
        # By consumer: all of its deliveries are settled before it is sent more.
        by_consumer: dict[TransactedConsumer, list[tuple[int, Outcome, Any | None]]] = defaultdict(list)
        for (consumer, message_id), one in transaction.acknowledged.items():
            by_consumer[consumer].append((message_id, one.outcome, one.delivery))
        told(None)
        for consumer, outcomes in by_consumer.items():
            consumer.committed(outcomes)

    def lost(self, controller: AttachedLink) -> None:
        """Roll back the transactions of a link that is gone (section 4.3)."""
        for transaction in [t for t in self._open.values() if t.controller is controller]:
            del self._open[transaction.txn_id]
            self._drop(transaction)

    def has_any_of(self, controller: AttachedLink) -> bool:
        """Whether a link has open transactions."""
        return any(transaction.controller is controller for transaction in self._open.values())

    def hand_over(self, controller: AttachedLink, successor: AttachedLink) -> None:
        """Give a link's transactions to the link that takes its place."""
        for transaction in self._open.values():
            if transaction.controller is controller:
                transaction.controller = successor

    def abandon(self) -> None:
        """The connection is gone: drop its transactions. Its consumers return their deliveries by themselves."""
        for transaction in self._open.values():
            self._free(transaction)
            transaction.acknowledged = {}
        self._open.clear()

    # --- what belongs to one ------------------------------------------------------------------------------------

    def publish(self, link: TransactedPublisher, content: bytes, delivery: Any | None, fields: Any) -> None:
        """A message came in a transaction; ``delivery`` is None where it came settled."""
        try:
            state = _state(fields)
            transaction = self._find(state.txn_id)
        except Refused as refused:
            # A settled message gets no outcome: only a detach tells its publisher that it is lost.
            if delivery is None:
                link.refuse(refused)
            else:
                link.not_stored([delivery], refused)
            return
        if transaction.failure is not None:
            link.reject_in(state.txn_id, delivery, transaction.failure)
            return
        try:
            self._stage(transaction, link.stage(content))
        except Refused as refused:
            self._fail(transaction, _because_of(refused))
            link.reject_in(state.txn_id, delivery, refused)
            return
        link.set_provisional_outcome(delivery, transactional(state.txn_id, ACCEPTED))

    def not_taken(self, fields: Any, refused: Refused) -> None:
        """A message of a transaction was not taken: the transaction must not be committed without it."""
        try:
            self._fail(self._find(_state(fields).txn_id), _because_of(refused))
        except Refused:
            return

    def acknowledge(
        self, consumer: TransactedConsumer, message_id: int, fields: Any, delivery: Any | None
    ) -> None:
        """A delivery is to be settled with a transaction; ``delivery`` is None where the peer has settled it."""
        flow = consumer.flow
        if flow is None:
            return
        try:
            state = _state(fields)
            transaction = self._find(state.txn_id)
        except Refused as refused:
            if delivery is None and message_id in consumer.in_transaction:
                # The outcome that it got in a transaction is void, as that was rolled back; the peer gives no other.
                consumer.revert(message_id, None)
            else:
                consumer.refuse(refused)
            return
        if transaction.failure is not None:
            consumer.revert(message_id, delivery)
            return
        other = consumer.in_transaction.get(message_id)
        if other is not None and other is not transaction:
            self._fail(other, _twice())
            self._fail(transaction, _twice())
            consumer.revert(message_id, delivery)
            return
        consumer.acknowledged_in(transaction, message_id)
        outcome = state.outcome or Outcome(ACCEPTED)
        transaction.acknowledged[consumer, message_id] = _Acknowledged(
            outcome, delivery, flow.endpoint.cursor_number
        )
        self._start_clock(transaction)

    def retired(self, txn_id: bytes, count: int, found: int) -> None:
        """
        A disposition has given deliveries an outcome in a transaction. If the gateway no longer holds some of them,
        because their link was closed, the transaction cannot be committed: their outcomes would be missing.

        Args:
            count: How many deliveries the disposition's range has.
            found: How many of these the connection's links hold; the rest were settled before, or are lost.
        """
        transaction = self._open.get(txn_id)
        if transaction is not None and (not found or (found < count and self.has_lost_any)):
            self._fail(
                transaction,
                Refused(
                    ErrorCode.ROLLED_BACK,
                    "rolled back: the consumer no longer has a delivery that it was to settle: its link was "
                    "closed or attached again, or it was settled before",
                ),
            )

    def settled_outside(self, transaction: LocalTransaction) -> None:
        """A delivery that a transaction acknowledges was settled outside of it."""
        self._fail(transaction, _twice())

    def taken_back(self, transaction: LocalTransaction) -> None:
        """The lock of a delivery that a transaction acknowledges has ended."""
        self._fail(
            transaction,
            Refused(
                ErrorCode.ROLLED_BACK,
                "rolled back: other consumers may get a delivery that was settled in it, because its lock "
                "ended (lock_timeout_ms)",
            ),
        )

    def _stage(self, transaction: LocalTransaction, message: Staged) -> None:
        limits = self._limits
        size = len(message.content) + OVERHEAD_BYTES
        for used, limit, name in (
            (self._size_bytes, limits.transaction_bytes, "transaction_bytes"),
            (self._account.held_by_all(Kind.TRANSACTIONS), limits.transactions_bytes, "transactions_bytes"),
        ):
            if used + size > limit:
                raise Refused(
                    ErrorCode.RESOURCE_LIMIT,
                    f"open transactions hold at most {limit} bytes of messages ({name}); commit more often",
                )
        transaction.staged.append(message)
        transaction.size_bytes += size
        self._size_bytes += size
        self._account.hold(Kind.TRANSACTIONS, size)
        self._start_clock(transaction)

    # --- the end ------------------------------------------------------------------------------------------------

    def _find(self, txn_id: bytes) -> LocalTransaction:
        transaction = self._open.get(txn_id)
        if transaction is None:
            raise Refused(
                ErrorCode.UNKNOWN_TRANSACTION,
                f"there is no transaction {txn_id.hex()[:40]!r} on this connection; it may have ended",
            )
        return transaction

    def _fail(self, transaction: LocalTransaction, refused: Refused) -> None:
        """
        Roll a transaction back that cannot be committed any more; the answer to its discharge says why. One that is
        being committed is left as it is.
        """
        if transaction.failure is not None or transaction.txn_id not in self._open:
            return
        transaction.failure = refused
        self._log.warning("transaction_rolled_back", **reason_keys(refused))
        self._drop(transaction)

    def _drop(self, transaction: LocalTransaction) -> None:
        """Release all that a transaction holds, and undo its outcomes."""
        self._free(transaction)
        acknowledged, transaction.acknowledged = transaction.acknowledged, {}
        for (consumer, message_id), one in acknowledged.items():
            consumer.revert(message_id, one.delivery)

    def _free(self, transaction: LocalTransaction) -> None:
        self._stop_clock(transaction)
        self._size_bytes -= transaction.size_bytes
        self._account.hold(Kind.TRANSACTIONS, -transaction.size_bytes)
        transaction.size_bytes = 0
        transaction.staged = []

    def _start_clock(self, transaction: LocalTransaction) -> None:
        if transaction.timer is None:
            seconds = self._limits.transaction_timeout_ms / 1000
            loop = asyncio.get_running_loop()
            transaction.timer = loop.call_later(seconds, self._timed_out, transaction)

    @staticmethod
    def _stop_clock(transaction: LocalTransaction) -> None:
        if transaction.timer is not None:
            transaction.timer.cancel()
            transaction.timer = None

    def _timed_out(self, transaction: LocalTransaction) -> None:
        limit = self._limits.transaction_timeout_ms
        self._fail(
            transaction,
            Refused(
                ErrorCode.TRANSACTION_TIMEOUT,
                f"rolled back: it was open for {limit} ms since its first message (transaction_timeout_ms)",
            ),
        )
        self._schedule_flush()


def _state(fields: Any) -> TransactionalState:
    try:
        return read_state(fields)
    except TransactionError as problem:
        raise Refused(ErrorCode.INVALID_FIELD, str(problem)) from problem


def rejected_in(txn_id: bytes, refused: Refused, room: int) -> bytes:
    """The outcome of a message that its transaction does not take, encoded for a frame of so many bytes at most."""
    info = {Symbol(key): value for key, value in refused.info.items()}
    text = fitted(refused, room - _AROUND_OUTCOME)
    return transactional(txn_id, REJECTED, error(refused.code.condition, text, info))


def _because_of(refused: Refused) -> Refused:
    return Refused(ErrorCode.ROLLED_BACK, f"rolled back: a message in it was rejected: {refused.text}")


def _twice() -> Refused:
    return Refused(
        ErrorCode.ROLLED_BACK, "rolled back: a delivery that was settled in it was also settled outside of it"
    )
