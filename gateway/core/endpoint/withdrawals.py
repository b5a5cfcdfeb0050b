"""
Messages of an endpoint that transactions are about to settle: withdrawn from their flow until it is known what came of
the transaction.

While one is under way a replay may begin, fail or be forced to be complete; what that means for a message that was
withdrawn is worked out here, whichever way the transaction ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Protocol

from gateway.core.effects import Effect
from gateway.core.endpoint.backlog import Backlog
from gateway.core.endpoint.endpoint_replay import EndpointReplay
from gateway.core.endpoint.priority_ready_queues import PriorityReadyQueues
from gateway.core.endpoint.ready_queue import ReadyQueue
from gateway.core.replay.states import Replay


class Holding(Protocol):
    """A flow, as far as it holds messages."""

    @property
    def unsettled(self) -> MutableMapping[int, int]:
        """Content sizes in bytes by id."""


class WithdrawnFrom(Protocol):
    """An endpoint, as far as withdrawals go."""

    backlog: Backlog
    attempts: dict[int, int]
    replay: Replay | None

    @property
    def ready(self) -> ReadyQueue | PriorityReadyQueues:
        """What is ready."""

    def by_way(self, ids: list[int]) -> tuple[dict[int, list[int]], set[int]]:
        """Which of rising ids came by routes, by part, and which were put here."""

    @property
    def replaying(self) -> EndpointReplay:
        """What a replay onto it does."""


class Withdrawals:
    __slots__ = ("_endpoint", "ids")

    def __init__(self, endpoint: WithdrawnFrom) -> None:
        self._endpoint = endpoint
        self.ids: set[int] = set()
        """What is withdrawn now."""

    def forget(self) -> None:
        """The endpoint was emptied."""
        self.ids.clear()

    def begin(
        self, flow: Holding, ids: Iterable[int], newest_id: int
    ) -> tuple[dict[int, int], int, list[Effect]]:
        """
        Messages leave a flow for a transaction that is to settle them: ``settled``, ``kept`` or ``restored`` says what
        came of it.

        Args:
            newest_id: The last committed one.

        Returns:
            Their content sizes in bytes by id, the sum, and the effects of the transaction.
        """
        endpoint = self._endpoint
        messages = {i: flow.unsettled.pop(i) for i in ids}
        size = sum(messages.values())
        endpoint.backlog.reserve(-len(messages), -size)
        self.ids.update(messages)
        if not messages:
            return messages, size, []
        gone = sorted(messages)
        routed, put = endpoint.by_way(gone)
        acknowledged = endpoint.replay.acknowledges(gone) if endpoint.replay is not None else 0
        effects = endpoint.backlog.settle_in_transaction(
            routed, messages, put, acknowledged, newest_id, endpoint.attempts
        )
        return messages, size, effects

    def settled(self, messages: Mapping[int, int], transaction: Sequence[Effect]) -> list[Effect]:
        """
        Messages that were withdrawn are gone for good.

        Args:
            transaction: The effects by which they are.

        Returns:
            What is to be written because of what happened meanwhile.
        """
        endpoint, backlog = self._endpoint, self._endpoint.backlog
        self.ids.difference_update(messages)
        gone = sorted(messages)
        if not gone:
            return []
        # A replay may have ended meanwhile, and taken what it had put with it, or left references.
        routed, put = endpoint.by_way(gone)
        backlog.settled_by_transaction(backlog.open_among(routed), messages, transaction)
        effects = backlog.put.orphans_settled(gone, is_committed=True)
        if put:
            effects += backlog.put.settled_by_transaction({i: messages[i] for i in put}, transaction)
        endpoint.ready.settled(gone)
        for i in gone:
            endpoint.attempts.pop(i, None)
        replay = endpoint.replay
        if replay is None or not replay.acknowledge(gone) or backlog.put.replayed is None:
            return effects
        return effects if replay.is_under_way else [*effects, *endpoint.replaying.end()]

    def kept(self, messages: Mapping[int, int]) -> list[Effect]:
        """They were not settled, and stay with whoever withdrew them; what is to be written because of it."""
        self.ids.difference_update(messages)
        return self._endpoint.backlog.put.orphans_settled(messages, is_committed=False)

    def restored(self, messages: Mapping[int, int]) -> tuple[dict[int, int], list[Effect]]:
        """
        They were not settled.

        Returns:
            Those that lie here still, with their sizes, and what is to be written because of what happened meanwhile.
        """
        effects = self.kept(messages)
        routed, put = self._endpoint.by_way(sorted(messages))
        there = put.union(*self._endpoint.backlog.open_among(routed).values())
        return {i: size for i, size in messages.items() if i in there}, effects
