"""
Settlement in doubt: messages that a transaction consumes for good, until it is known whether that is durable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.core.effects import RemoveInTransaction
from gateway.core.endpoint.endpoint import Endpoint, Flow


@dataclass(frozen=True, slots=True)
class PendingSettlement:
    """
    Messages of one flow. An endpoint that was emptied or whose replay began meanwhile (its number or incarnation is
    another) has forgotten them.
    """

    endpoint: Endpoint
    flow: Flow
    messages: dict[int, int]
    """id -> content size in bytes."""
    size_bytes: int
    storage_number: int
    incarnation: int

    @classmethod
    def begin(cls, flow: Flow, ids: Iterable[int]) -> PendingSettlement:
        """These messages, unsettled on a flow, are no longer the flow's."""
        endpoint = flow.endpoint
        messages, size = endpoint.withdraw(flow, ids)
        return cls(endpoint, flow, messages, size, endpoint.storage_number, endpoint.incarnation)

    def effect(self) -> RemoveInTransaction:
        """What makes it durable."""
        return RemoveInTransaction(self.storage_number, sorted(self.messages), self.size_bytes)

    def committed(self) -> None:
        """They are gone for good."""
        endpoint = self.endpoint
        if endpoint.storage_number == self.storage_number and endpoint.incarnation == self.incarnation:
            endpoint.withdrawn_settled(list(self.messages))

    def rolled_back(self) -> None:
        """They were not settled after all: the flow has them as before, or they are ready where it is gone."""
        if self.counts_again():
            self.endpoint.withdrawn_restored(self.flow, self.messages)

    def counts_again(self) -> bool:
        """
        They were not settled after all, and whoever withdrew them has them: unless the endpoint has forgotten them, or
        knows them from the store alone (False).
        """
        endpoint = self.endpoint
        if endpoint.storage_number != self.storage_number:
            return False
        endpoint.reserve(len(self.messages), self.size_bytes)
        return endpoint.incarnation == self.incarnation
