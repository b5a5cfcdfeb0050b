"""
Whether one more consumer may be bound to an endpoint, by its exclusivity and its limit of consumers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from gateway.core.endpoint.settings import EndpointSettings, Exclusivity
from gateway.core.errors import ErrorCode, Refused


class Consuming(Protocol):
    """A consumer, as far as admission goes."""

    epoch: int | None
    """Of two consumers of an endpoint that is exclusive=steal, the one with the higher or an equal one has it."""


F = TypeVar("F", bound=Consuming)


def admit(name: str, settings: EndpointSettings, bound: Mapping[F, None], flow: F) -> F | None:
    """
    Admit a consumer beside those that are bound, the active one of an exclusive endpoint first.

    Args:
        name: The endpoint's, for refusals.

    Returns:
        The consumer it displaces, if it takes the place of one.

    Raises:
        Refused: RESOURCE_LOCKED, the endpoint has its one consumer; STOLEN, one with a higher epoch has it;
            RESOURCE_LIMIT, it has as many as it takes.
    """
    displaced: F | None = None
    active = next(iter(bound), None)
    if active is not None and settings.exclusive is Exclusivity.REFUSE:
        raise Refused(
            ErrorCode.RESOURCE_LOCKED,
            f"{name!r} is exclusive and has a consumer; detach it first, or make the queue exclusive=wait",
        )
    if active is not None and settings.exclusive is Exclusivity.STEAL:
        if (flow.epoch or 0) < (active.epoch or 0):
            raise Refused(
                ErrorCode.STOLEN,
                f"{name!r} is held by a consumer of epoch {active.epoch}; attach with that or a higher one",
            )
        displaced = active
    if settings.max_flows and len(bound) - (displaced is not None) >= settings.max_flows:
        raise Refused(
            ErrorCode.RESOURCE_LIMIT,
            f"{name!r} has {len(bound)} consumers, as many as it takes (max_flows); "
            "detach one first, or raise the limit",
            **{"rewind:reason": "endpoint-flows", "rewind:endpoint": name},
        )
    return displaced
