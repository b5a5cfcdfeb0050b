"""
Whose turn it is among the consumers of an endpoint, and how many messages a turn is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar


class TakesTurns(Protocol):
    """A consumer, as far as turns go."""

    priority: int
    """It has its turns before those of a lower one, while it can take messages."""
    demand: int
    """How many messages it can take."""

    @property
    def is_hungry(self) -> bool:
        """It can take messages, and there may be some for it."""


F = TypeVar("F", bound=TakesTurns)


class Turns(Generic[F]):
    """
    Args:
        flows: The consumers, in the order of their binding; looked at, and changed elsewhere.
    """

    __slots__ = ("_flows", "_has_preferred", "_turn")

    def __init__(self, flows: Mapping[F, None]) -> None:
        self._flows = flows
        self._turn: deque[F] = deque()
        self._has_preferred = False
        """Some consumer has had a priority of its own since there were none."""

    def joined(self, flow: F) -> None:
        """One more consumer."""
        self._has_preferred |= flow.priority != 0

    def left(self) -> None:
        """One consumer fewer."""
        self._has_preferred &= bool(self._flows)

    def next(self, *, is_exclusive: bool) -> F | None:
        """
        The consumer whose turn it is among those that can take messages; None when none can.

        Args:
            is_exclusive: The first one has all the turns.
        """
        flows = self._flows
        if is_exclusive or len(flows) == 1:
            first = next(iter(flows), None)
            return first if first is not None and first.is_hungry else None
        turn, highest = self._turn, self._highest_hungry()
        for _ in range(2):
            while turn:
                flow = turn.popleft()
                if flow.is_hungry and flow in flows and (highest is None or flow.priority == highest):
                    return flow
            turn.extend(f for f in flows if f.is_hungry)
        return None

    def _highest_hungry(self) -> int | None:
        """The priority of the consumers whose turn it is; None where they are all alike."""
        if not self._has_preferred:
            return None
        return max((f.priority for f in self._flows if f.is_hungry), default=None)

    def share(self, flow: F, quantum: int, ready: int, *, is_exclusive: bool) -> int:
        """
        How many messages a consumer is given in this turn.

        Args:
            quantum: The most; where nobody else has a turn, twice of it.
            ready: Messages that are ready, about: hungry consumers share them.
        """
        if is_exclusive or len(self._flows) == 1:
            return min(flow.demand, 2 * quantum)
        hungry = sum(
            1 for f in self._flows if f.is_hungry and (not self._has_preferred or f.priority == flow.priority)
        )
        return min(flow.demand, quantum, max(1, -(-ready // hungry)))
