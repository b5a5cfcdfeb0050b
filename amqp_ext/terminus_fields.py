"""
Fields of sources and targets that say what becomes of things: the lifetime policy of a dynamic node (AMQP 1.0 sections
3.5.10 to 3.5.13), and the outcomes that a source offers (section 3.4).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final

from amqp_ext.codec import Described, Symbol

LIFETIME_POLICY: Final = "lifetime-policy"
"""The key in dynamic-node-properties."""


class LifetimeError(ValueError):
    """A lifetime policy that is none; the text says what would be one."""


class Lifetime(enum.Enum):
    """Value: descriptor code and name, and what outlives the link that made the node: its other links, its messages."""

    DELETE_ON_CLOSE = (0x2B, "amqp:delete-on-close:list", False, False)
    """With the link that made the node."""
    DELETE_ON_NO_LINKS = (0x2C, "amqp:delete-on-no-links:list", True, False)
    """When no link has the node as its source or target."""
    DELETE_ON_NO_MESSAGES = (0x2D, "amqp:delete-on-no-messages:list", False, True)
    """When the link that made the node is gone, and no message is left."""
    DELETE_ON_NO_LINKS_OR_MESSAGES = (0x2E, "amqp:delete-on-no-links-or-messages:list", True, True)
    """When no link has the node as its source or target, and no message is left."""

    def __init__(self, code: int, symbol: str, by_links: bool, by_messages: bool) -> None:
        self.code = code
        self.symbol = symbol
        self._by_links = by_links
        self._by_messages = by_messages

    def is_over(self, *, has_maker: bool, has_links: bool, has_messages: bool) -> bool:
        """
        Whether a node's life has ended.

        Args:
            has_maker: The link that made it is there.
            has_links: Some link is, that one or another.
            has_messages: Messages lie on it.
        """
        is_linked = has_links if self._by_links else has_maker
        return not is_linked and not (self._by_messages and has_messages)


_BY_DESCRIPTOR: Final[dict[int | str, Lifetime]] = {
    descriptor: lifetime for lifetime in Lifetime for descriptor in (lifetime.code, lifetime.symbol)
}


def read_lifetime(properties: Any) -> Lifetime:
    """
    The policy that decoded dynamic-node-properties name; delete-on-close where there is none.

    Raises:
        LifetimeError: They are no map, or what stands there is no policy.
    """
    if properties is None:
        return Lifetime.DELETE_ON_CLOSE
    if not isinstance(properties, Mapping):
        raise LifetimeError("dynamic-node-properties are a map")
    policy = properties.get(LIFETIME_POLICY)
    if policy is None:
        return Lifetime.DELETE_ON_CLOSE
    descriptor = policy.descriptor if isinstance(policy, Described) else None
    found = _BY_DESCRIPTOR.get(descriptor) if isinstance(descriptor, int | str) else None
    if found is None or policy.value not in (None, []):
        names = ", ".join(lifetime.symbol for lifetime in Lifetime)
        raise LifetimeError(
            f"a lifetime-policy is an empty list described as one of {names}, not {policy!r:.80}"
        )
    return found


ACCEPTED: Final = Symbol("amqp:accepted:list")
REJECTED: Final = Symbol("amqp:rejected:list")
RELEASED: Final = Symbol("amqp:released:list")
MODIFIED: Final = Symbol("amqp:modified:list")

ALL: Final = (ACCEPTED, REJECTED, RELEASED, MODIFIED)
"""Those that there are for messages, in the order in which they are listed."""


class OutcomesError(ValueError):
    """A list of outcomes that is none; the text is a sentence for its sender."""


def read_outcomes(value: Any) -> frozenset[str]:
    """
    The outcomes that a source lists; all, where it lists none: nobody who says nothing is told less for that.

    Args:
        value: The decoded field: a symbol, or several.

    Raises:
        OutcomesError: It is neither, or lists no outcome of messages at all.
    """
    listed = [value] if isinstance(value, Symbol) else value
    if listed is None or listed == []:
        return frozenset(ALL)
    if not isinstance(listed, list) or not all(isinstance(name, Symbol) for name in listed):
        raise OutcomesError("a source's outcomes are symbols")
    known = frozenset(ALL).intersection(listed)
    if not known:
        raise OutcomesError(f"a source's outcomes are of {', '.join(ALL)}; none of these is listed")
    return known


def in_order(outcomes: Iterable[str]) -> list[Symbol]:
    """Outcomes as they are listed."""
    there = set(outcomes)
    return [outcome for outcome in ALL if outcome in there]
