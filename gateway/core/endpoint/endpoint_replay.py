"""
A replay onto an endpoint, as far as that is the endpoint's matter: what lay there goes, what the replay reads is put
there, and what came by routes meanwhile is ready behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Protocol

from gateway.core.effects import Effect, SaveReplay
from gateway.core.endpoint.backlog import Backlog
from gateway.core.endpoint.priority_ready_queues import PriorityReadyQueues
from gateway.core.endpoint.ready_queue import ReadyQueue
from gateway.core.replay.states import Replay, ReplayEvent


class Withdrawn(Protocol):
    """Messages that transactions are about to settle."""

    @property
    def ids(self) -> set[int]:
        """Theirs."""


class ReplayedEndpoint(Protocol):
    """An endpoint, as far as its replay goes."""

    backlog: Backlog
    attempts: dict[int, int]
    replay: Replay | None

    @property
    def ready(self) -> ReadyQueue | PriorityReadyQueues:
        """What is ready."""

    @property
    def withdrawals(self) -> Withdrawn:
        """What transactions have."""

    def replay_definition(self) -> SaveReplay:
        """What the store is told of the replay."""

    def forget(self, ids: Collection[int]) -> None:
        """These do not lie here any more, whoever has them."""


class EndpointReplay:
    """The steps of the replay that the endpoint has; which one that is, is the endpoint's to say."""

    __slots__ = ("_endpoint", "is_clearing", "waiting")

    def __init__(self, endpoint: ReplayedEndpoint) -> None:
        self._endpoint = endpoint
        self.is_clearing = False
        """What lay here is about to be gone, durably: nothing is read or handed out before."""
        self.waiting: deque[int] = deque()
        """Put before a stop, rising, with references that lead to them since: ready, in their places, once what came by
        routes before them is."""

    @property
    def _replay(self) -> Replay:
        replay = self._endpoint.replay
        assert replay is not None
        return replay

    def begin(self, cursor_number: int) -> list[Effect]:
        """It is the endpoint's from now on: until ``cleared``, nothing is read or handed out."""
        self.is_clearing = True
        self.waiting.clear()
        return self._endpoint.backlog.put.begin_replay(cursor_number, self._replay.first)

    def cleared(self) -> None:
        """What lay here before the replay is gone, durably."""
        self._replay.move(ReplayEvent.CLEARED)
        self.is_clearing = False

    def put(
        self,
        ids: Sequence[int],
        priorities: Sequence[int] | None,
        size_bytes: int,
        routed: Sequence[int],
        position: int,
        archived: Sequence[int] = (),
    ) -> None:
        """
        Messages read from the log are put here.

        Args:
            ids: All of them, rising.
            priorities: Theirs, where the endpoint delivers by them.
            size_bytes: Content of those that are not among ``routed``.
            routed: Those that the log did not take, and that lie here by their routes.
            position: The next id of the log to read.
            archived: Those that the log's archive alone has.
        """
        ready = self._endpoint.ready
        if priorities is not None:
            ready.note_priorities(ids, priorities)
        among = set(routed)
        put = [i for i in ids if i not in among] if among else ids
        self._endpoint.backlog.put.add(put, size_bytes, archived)
        self._replay.put_up_to(position, len(ids), size_bytes)
        ready.add_put(ids, routed)

    def put_again(self, routed: Sequence[int], priorities: Sequence[int] | None, below: int) -> bool:
        """
        What was put before a stop is here again, below an id: what came by routes, and what references lead to.

        Args:
            routed: Those that the log did not take, rising; all of them between the last call's id and this one's.
            priorities: Theirs, where the endpoint delivers by them.

        Returns:
            Whether there is any.
        """
        ready, references = self._endpoint.ready, self._endpoint.backlog.put.references
        if priorities is not None:
            ready.note_priorities(routed, priorities)
        found: list[int] = []
        while self.waiting and self.waiting[0] < below:
            waited = self.waiting.popleft()
            if waited in references:
                found.append(waited)
        if not routed and not found:
            return False
        self._replay.put_up_to(self._replay.position, len(routed))
        ready.add_put(sorted([*routed, *found]), routed)
        return True

    def end_reading(self, position: int) -> None:
        """The replay has put all it had to, up to ``position``; what came meanwhile is ready behind it."""
        self._replay.read_all()
        self._go_on_from(position)

    def _go_on_from(self, position: int) -> None:
        """What came by routes is ready, from here on: what was before it was put here, or is not wanted."""
        backlog, ready = self._endpoint.backlog, self._endpoint.ready
        for part in backlog.parts:
            ready.of(part).read_from(position, backlog.newest_id(part))

    def acknowledge(self, gone: Sequence[int]) -> list[Effect]:
        """Messages left for good, by which the replay, if there is one, may be complete."""
        replay, put = self._endpoint.replay, self._endpoint.backlog.put
        if replay is None:
            return []
        count = replay.acknowledge(gone)
        if not count or put.replayed is None:
            return []
        effects: list[Effect] = [put.acknowledged(count)]
        return effects if replay.is_under_way else [*effects, *self.end()]

    def end(self) -> list[Effect]:
        """All that the replay had put is settled."""
        return [*self._endpoint.backlog.put.end_replay(), self._endpoint.replay_definition()]

    def force_complete(self) -> list[Effect]:
        """The replay is complete, and what it has put stays."""
        endpoint = self._endpoint
        self._replay.force_complete()
        return [*endpoint.backlog.put.keep(endpoint.withdrawals.ids), endpoint.replay_definition()]

    def fail(self, reason: str, now_ms: int, position: int) -> list[Effect]:
        """
        The replay goes on no more: what it had put and was not acknowledged is dropped, whoever has it.

        Args:
            position: Everything before it was put here, or is not wanted.
        """
        endpoint, replay = self._endpoint, self._replay
        was_reading = replay.is_reading
        replay.fail(reason, now_ms)
        self.is_clearing = False
        self.waiting.clear()
        dropped, effects = endpoint.backlog.put.drop(endpoint.attempts, endpoint.withdrawals.ids)
        endpoint.forget(dropped)
        if was_reading:
            self._go_on_from(position)
        return [*effects, endpoint.replay_definition()]
