"""
Settlement of a Message VPN's messages: at once, or as part of transactions that are being committed.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.effects import Effect
from gateway.core.endpoint.endpoint import Flow
from gateway.core.endpoint.settlement import PendingSettlement
from gateway.core.model import LogState


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
