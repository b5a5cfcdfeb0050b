"""
Settlement of a Message VPN's messages: immediately, or as part of a transaction. In a transaction, a settlement is in
doubt until the transaction is committed or has failed.

While a transaction runs, a replay may begin, fail or be forced to complete. This module handles the effect of that on
the messages that the transaction has withdrawn from their flow, however the transaction ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gateway.core.effects import Effect, SettleInTransaction
from gateway.core.endpoint.endpoint import Flow
from gateway.core.model import LogState


class PendingSettlement:
    """
    Messages of one flow that a transaction is to settle. They have left the flow. ``effects`` makes the settlement
    durable as part of the transaction.

    An endpoint that was emptied meanwhile (it then has another cursor number) has forgotten the messages.
    """

    __slots__ = ("cursor_number", "effects", "endpoint", "flow", "messages", "size_bytes")

    def __init__(self, flow: Flow, ids: Iterable[int], newest_id: int) -> None:
        """
        Args:
            newest_id: The last committed id.
        """
        endpoint = self.endpoint = flow.endpoint
        self.flow = flow
        self.cursor_number = endpoint.cursor_number
        self.messages = {i: flow.unsettled.pop(i) for i in ids}
        """By id, the size of the content in bytes."""
        self.size_bytes = sum(self.messages.values())
        self.effects = endpoint.withdraw(self.messages, self.size_bytes, newest_id) if self.messages else []

    @property
    def counts(self) -> list[Effect]:
        """The effects to write even if the transaction fails: they count messages that came before it."""
        return [effect for effect in self.effects if not isinstance(effect, SettleInTransaction)]

    def ended(self) -> bool:
        """The transaction has ended. Return whether the endpoint still knows the messages."""
        self.endpoint.backlog.reserve(len(self.messages), self.size_bytes)
        return self.endpoint.cursor_number == self.cursor_number


class PendingRetry(PendingSettlement):
    """
    Messages that a consumer returned, and that are to be delayed before redelivery. Until the delay is durable, no flow
    has them. If the commit fails, they are ready.
    """

    __slots__ = ("due_ms",)

    def __init__(self, flow: Flow, due_ms: Mapping[int, int], newest_id: int) -> None:
        """
        Args:
            due_ms: By id, when each message is to be delivered again, in ms since the epoch; at least one message.
        """
        super().__init__(flow, due_ms, newest_id)
        self.flow = Flow(self.endpoint, None)
        self.due_ms = due_ms
        self.endpoint.holding_back += len(self.messages)
        # The messages stay on the endpoint: publishers must not use their room in the quota meanwhile.
        self.endpoint.backlog.reserve(len(self.messages), self.size_bytes)
        self.effects = self.endpoint.begin_hold_back(self.effects, self.messages, due_ms)

    def ended(self) -> bool:
        self.endpoint.holding_back -= len(self.messages)
        self.endpoint.backlog.reserve(-len(self.messages), -self.size_bytes)
        return super().ended()


@dataclass(eq=False)
class Settlements:
    """Settlement commands of the broker's callers. Each returns the effects to commit."""

    _log: LogState
    _pending: dict[PendingSettlement, None] = field(default_factory=dict)
    """Settlements in doubt."""

    def oldest_pending(self, otherwise: int) -> int:
        """The oldest message in doubt, if it is older than ``otherwise``; else ``otherwise``."""
        return min([otherwise, *(min(pending.messages, default=otherwise) for pending in self._pending)])

    def settle(self, flow: Flow, ids: Iterable[int]) -> tuple[list[int], list[Effect]]:
        """
        Settle messages of a flow outside a transaction.

        Returns:
            The ids that were unsettled on the flow, rising, and the effects.
        """
        return flow.endpoint.settle(flow, ids, self._log.newest_id)

    def begin(self, flow: Flow, ids: Iterable[int]) -> PendingSettlement:
        """
        A transaction is to settle messages that are unsettled on a flow. The caller calls ``committed``, ``failed`` or
        ``kept`` when it has ended.
        """
        pending = PendingSettlement(flow, ids, self._log.newest_id)
        self._pending[pending] = None
        return pending

    def hold_back(self, flow: Flow, due_ms: Mapping[int, int]) -> PendingRetry:
        """
        Delay messages that are unsettled on a flow, until the times that ``Endpoint.retry_times`` returned. The caller
        calls ``held_back`` or ``failed`` after the commit.
        """
        pending = PendingRetry(flow, due_ms, self._log.newest_id)
        self._pending[pending] = None
        return pending

    def held_back(self, pending: PendingRetry) -> list[Effect]:
        """The delay is durable. Return the effects of what happened meanwhile."""
        del self._pending[pending]
        if not pending.ended():
            return []
        endpoint = pending.endpoint
        effects = endpoint.settle_withdrawn(pending.messages, pending.effects)
        endpoint.end_hold_back(pending.due_ms, pending.size_bytes)
        return effects

    def committed(self, pending: PendingSettlement) -> list[Effect]:
        """The settlement is durable. Return the effects of what happened meanwhile."""
        del self._pending[pending]
        return pending.endpoint.settle_withdrawn(pending.messages, pending.effects) if pending.ended() else []

    def failed(self, pending: PendingSettlement) -> list[Effect]:
        """
        The messages were not settled: the flow gets them back, or they become ready if the flow is gone.

        Returns:
            The effects of what happened meanwhile.
        """
        del self._pending[pending]
        return pending.endpoint.restore_withdrawn(pending.flow, pending.messages) if pending.ended() else []

    def kept(self, pending: PendingSettlement) -> list[Effect] | None:
        """
        The messages were not settled, and the caller that withdrew them keeps them.

        Returns:
            The effects of what happened meanwhile; None if the endpoint has forgotten the messages.
        """
        del self._pending[pending]
        return pending.endpoint.keep_withdrawn(pending.messages) if pending.ended() else None
