"""
Flows whose consumers have detached and not closed their links (AMQP 1.0 section 2.6.3): what they had not settled is
theirs until the link ceases to exist, and nothing more is given to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from typing import Generic, Protocol, TypeVar


class Holding(Protocol):
    """A flow, as far as it holds messages."""

    @property
    def unsettled(self) -> MutableMapping[int, int]:
        """Content sizes in bytes by id."""


F = TypeVar("F", bound=Holding)
G_contra = TypeVar("G_contra", bound=Holding, contravariant=True)


class BoundTo(Protocol[G_contra]):
    """An endpoint, as far as its flows go."""

    def unbind(self, flow: G_contra) -> None:
        """The flow is gone; what it had not settled is ready again, in its place."""

    def give_back(self, ids: Iterable[int]) -> None:
        """Messages handed out that come back ready."""


class SuspendedFlows(Generic[F]):
    """Those of one endpoint. They are not bound: nobody waits for them, and they stand in nobody's way."""

    __slots__ = ("_endpoint", "_flows")

    def __init__(self, endpoint: BoundTo[F]) -> None:
        self._endpoint = endpoint
        self._flows: dict[F, None] = {}

    def __iter__(self) -> Iterator[F]:
        return iter(self._flows)

    def __contains__(self, flow: F) -> bool:
        return flow in self._flows

    def suspend(self, flow: F) -> None:
        """A bound flow is bound no more, and keeps what it has unsettled."""
        kept = dict(flow.unsettled)
        flow.unsettled.clear()
        self._endpoint.unbind(flow)
        flow.unsettled.update(kept)
        self._flows[flow] = None

    def end(self, flow: F) -> None:
        """Its link has ceased to exist: what it had not settled is ready again. One that is not suspended stays."""
        if flow in self._flows:
            del self._flows[flow]
            self._endpoint.give_back(flow.unsettled)
            flow.unsettled.clear()
