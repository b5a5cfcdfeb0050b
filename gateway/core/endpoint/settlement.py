"""
Settlement in doubt: messages that a transaction consumes for good, until it is known whether that is durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.core.effects import Effect, SettleInTransaction
from gateway.core.endpoint.endpoint import Endpoint, Flow


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
