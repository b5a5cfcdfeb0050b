"""
Settlement of a Message VPN's messages: at once, or as part of a transaction, where it is in doubt until it is known
whether that is durable.

While a transaction is under way a replay may begin, fail or be forced to be complete; what that means for a message
that the transaction has withdrawn from its flow is worked out here, whichever way the transaction ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gateway.core.effects import Effect, SettleInTransaction
from gateway.core.endpoint.endpoint import Flow
from gateway.core.model import LogState


class PendingSettlement:
    """
    Messages of one flow that a transaction is to settle. They have left the flow, and ``effects`` makes the settlement
    durable as a part of the transaction.

    An endpoint that was emptied meanwhile (its cursor's number is another) has forgotten them.
    """

    __slots__ = ("cursor_number", "effects", "endpoint", "flow", "messages", "size_bytes")

    def __init__(self, flow: Flow, ids: Iterable[int], newest_id: int) -> None:
        """
        Args:
            newest_id: The last committed one.
        """
        endpoint = self.endpoint = flow.endpoint
        self.flow = flow
        self.cursor_number = endpoint.cursor_number
        self.messages = {i: flow.unsettled.pop(i) for i in ids}
        """Content sizes in bytes by id."""
        self.size_bytes = sum(self.messages.values())
        self.effects = endpoint.withdraw(self.messages, self.size_bytes, newest_id) if self.messages else []

    @property
    def counts(self) -> list[Effect]:
        """Those of its effects that are to be written whatever becomes of the transaction: what was there before it."""
        return [effect for effect in self.effects if not isinstance(effect, SettleInTransaction)]

    def ended(self) -> bool:
        """Its transaction is over; whether the endpoint still knows the messages."""
        self.endpoint.backlog.reserve(len(self.messages), self.size_bytes)
        return self.endpoint.cursor_number == self.cursor_number


class PendingRetry(PendingSettlement):
    """
    Messages that a consumer gave back, and that are to wait until they are tried again. They are nobody's until that is
    durable, and ready where it fails.
    """

    __slots__ = ("due_ms",)

    def __init__(self, flow: Flow, due_ms: Mapping[int, int], newest_id: int) -> None:
        """
        Args:
            due_ms: When each is to be delivered again, in ms since the epoch, by id; at least one.
        """
        super().__init__(flow, due_ms, newest_id)
        self.flow = Flow(self.endpoint, None)
        self.due_ms = due_ms
        self.endpoint.holding_back += len(self.messages)
        # They stay on the endpoint: nobody is to have their room meanwhile.
        self.endpoint.backlog.reserve(len(self.messages), self.size_bytes)
        self.effects = self.endpoint.begin_hold_back(self.effects, self.messages, due_ms)

    def ended(self) -> bool:
        self.endpoint.holding_back -= len(self.messages)
        self.endpoint.backlog.reserve(-len(self.messages), -self.size_bytes)
        return super().ended()


@dataclass(eq=False)
class Settlements:
    """Commands come from the broker's callers; each returns what must be durable, or what follows from it."""

    _log: LogState
    _pending: dict[PendingSettlement, None] = field(default_factory=dict)
    """Those in transactions of which nobody knows yet what came of them."""

    def oldest_pending(self, otherwise: int) -> int:
        """The oldest message that a transaction is about to settle, if it is older than ``otherwise``."""
        return min([otherwise, *(min(pending.messages, default=otherwise) for pending in self._pending)])

    def settle(self, flow: Flow, ids: Iterable[int]) -> tuple[list[int], list[Effect]]:
        """
        Messages consumed for good.

        Returns:
            The ids that were unsettled on the flow, rising, and the effects.
        """
        return flow.endpoint.settle(flow, ids, self._log.newest_id)

    def begin(self, flow: Flow, ids: Iterable[int]) -> PendingSettlement:
        """
        A transaction is to settle messages that are unsettled on a flow: ``committed``, ``failed`` or
        ``kept`` says what came of it.
        """
        pending = PendingSettlement(flow, ids, self._log.newest_id)
        self._pending[pending] = None
        return pending

    def hold_back(self, flow: Flow, due_ms: Mapping[int, int]) -> PendingRetry:
        """
        Messages that a flow has unsettled are to wait, as ``Endpoint.retry_times`` said: ``held_back`` or ``failed``
        says what came of it.
        """
        pending = PendingRetry(flow, due_ms, self._log.newest_id)
        self._pending[pending] = None
        return pending

    def held_back(self, pending: PendingRetry) -> list[Effect]:
        """They wait, durably; what is to be written because of what happened meanwhile."""
        del self._pending[pending]
        if not pending.ended():
            return []
        endpoint = pending.endpoint
        effects = endpoint.settle_withdrawn(pending.messages, pending.effects)
        endpoint.end_hold_back(pending.due_ms, pending.size_bytes)
        return effects

    def committed(self, pending: PendingSettlement) -> list[Effect]:
        """They are gone for good; what is to be written because of what happened meanwhile."""
        del self._pending[pending]
        return pending.endpoint.settle_withdrawn(pending.messages, pending.effects) if pending.ended() else []

    def failed(self, pending: PendingSettlement) -> list[Effect]:
        """
        They were not settled: the flow has them as before, or they are ready where it is gone.

        Returns:
            What is to be written because of what happened meanwhile.
        """
        del self._pending[pending]
        return pending.endpoint.restore_withdrawn(pending.flow, pending.messages) if pending.ended() else []

    def kept(self, pending: PendingSettlement) -> list[Effect] | None:
        """
        They were not settled, and whoever withdrew them has them; None where the endpoint has forgotten them.

        Returns:
            What is to be written because of what happened meanwhile.
        """
        del self._pending[pending]
        return pending.endpoint.keep_withdrawn(pending.messages) if pending.ended() else None
