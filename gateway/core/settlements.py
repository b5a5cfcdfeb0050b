"""
Settlement of a Message VPN's messages: at once, or as part of transactions, in doubt until it is known whether they are
durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.core.effects import Effect, SettleInTransaction
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.model import LogState


@dataclass(frozen=True, slots=True, eq=False)
class PendingSettlement:
    """
    Messages of one flow. An endpoint that was emptied meanwhile (its cursor's number is another) has forgotten them.
    """

    endpoint: Endpoint
    flow: Flow
    messages: dict[int, int]
    """id -> content size in bytes."""
    size_bytes: int
    cursor_number: int
    effects: Sequence[Effect]
    """What makes it durable, as a part of its transaction."""

    @classmethod
    def begin(cls, flow: Flow, ids: Iterable[int], newest_id: int) -> PendingSettlement:
        """
        These messages, unsettled on a flow, are no longer the flow's.

        Args:
            newest_id: The last committed one.
        """
        endpoint = flow.endpoint
        messages, size, effects = endpoint.withdrawals.begin(flow, ids, newest_id)
        return cls(endpoint, flow, messages, size, endpoint.cursor_number, effects)

    @property
    def counts(self) -> list[Effect]:
        """Those of its effects that are to be written whatever becomes of the transaction: what was there before it."""
        return [effect for effect in self.effects if not isinstance(effect, SettleInTransaction)]

    @property
    def oldest_id(self) -> int | None:
        """Of its messages; None when there are none."""
        return min(self.messages, default=None)

    def committed(self) -> list[Effect]:
        """
        They are gone for good.

        Returns:
            What is to be written because of what happened meanwhile.
        """
        self.endpoint.reserve(len(self.messages), self.size_bytes)
        if self.endpoint.cursor_number != self.cursor_number:
            return []
        return self.endpoint.withdrawals.settled(self.messages, self.effects)

    def rolled_back(self) -> list[Effect]:
        """
        They were not settled after all: the flow has them as before, or they are ready where it is gone.

        Returns:
            What is to be written because of what happened meanwhile.
        """
        self.endpoint.reserve(len(self.messages), self.size_bytes)
        if self.endpoint.cursor_number != self.cursor_number:
            return []
        messages, effects = self.endpoint.withdrawals.restored(self.messages)
        if self.flow in self.endpoint.flows or self.flow in self.endpoint.suspended:
            self.flow.unsettled.update(messages)
        else:
            self.endpoint.give_back(messages)
        return effects

    def kept(self) -> list[Effect] | None:
        """They were not settled, and whoever withdrew them has them; None: the endpoint has forgotten them."""
        self.endpoint.reserve(len(self.messages), self.size_bytes)
        if self.endpoint.cursor_number != self.cursor_number:
            return None
        return self.endpoint.withdrawals.kept(self.messages)


class Settlements:
    """Commands come from the broker's callers; each returns what must be durable, or what follows from it."""

    def __init__(self, log: LogState) -> None:
        self._log = log
        self._pending: dict[PendingSettlement, None] = {}
        """Those in transactions of which nobody knows yet what came of them."""

    def oldest_pending(self, otherwise: int) -> int:
        """The oldest message that a transaction is about to settle, if it is older than ``otherwise``."""
        return min([otherwise, *(pending.oldest_id or otherwise for pending in self._pending)])

    def settle(self, flow: Flow, ids: Iterable[int]) -> tuple[list[int], list[Effect]]:
        """
        Messages consumed for good.

        Returns:
            The ids that were unsettled on the flow, rising, and the effects.
        """
        return flow.endpoint.settle(flow, ids, self._log.next_id - 1)

    def begin(self, flow: Flow, ids: Iterable[int]) -> PendingSettlement:
        """
        A transaction is to settle messages that are unsettled on a flow: ``committed``, ``failed`` or
        ``kept`` says what came of it.
        """
        pending = PendingSettlement.begin(flow, ids, self._log.next_id - 1)
        self._pending[pending] = None
        return pending

    def committed(self, pending: PendingSettlement) -> list[Effect]:
        """They are gone for good; the effects of that on a replay that is complete by it."""
        del self._pending[pending]
        return pending.committed()

    def failed(self, pending: PendingSettlement) -> list[Effect]:
        """They were not settled: the flow has them as before, or they are ready where it is gone."""
        del self._pending[pending]
        return pending.rolled_back()

    def kept(self, pending: PendingSettlement) -> list[Effect] | None:
        """
        They were not settled, and whoever withdrew them has them; None where the endpoint has forgotten them.

        Returns:
            What is to be written because of what happened meanwhile.
        """
        del self._pending[pending]
        return pending.kept()
