"""
Fields of sources and targets: the lifetime policy of a dynamic node (AMQP 1.0 sections 3.5.10 to 3.5.13), and the
outcomes that a source offers (section 3.4).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final

from amqp_ext.codec import Described, Symbol

LIFETIME_POLICY: Final = "lifetime-policy"
"""The key in dynamic-node-properties."""


class LifetimeError(ValueError):
    """An invalid lifetime policy; the text says which ones are valid."""


class Lifetime(enum.Enum):
    """The value of a policy: its descriptor's code and name; whether other links, and messages, keep the node alive."""

    DELETE_ON_CLOSE = (0x2B, "amqp:delete-on-close:list", False, False)
    """The node ends with the link that created it."""
    DELETE_ON_NO_LINKS = (0x2C, "amqp:delete-on-no-links:list", True, False)
    """The node ends when no link has it as its source or target."""
    DELETE_ON_NO_MESSAGES = (0x2D, "amqp:delete-on-no-messages:list", False, True)
    """The node ends when the link that created it is detached, and the node holds no message."""
    DELETE_ON_NO_LINKS_OR_MESSAGES = (0x2E, "amqp:delete-on-no-links-or-messages:list", True, True)
    """The node ends when no link has it as its source or target, and it holds no message."""

    def __init__(self, code: int, symbol: str, by_links: bool, by_messages: bool) -> None:
        self.code = code
        self.symbol = symbol
        self._by_links = by_links
        self._by_messages = by_messages

    def is_over(self, *, has_maker: bool, has_links: bool, has_messages: bool) -> bool:
        """
        Whether a node's life has ended.

        Args:
            has_maker: The link that created the node is attached.
            has_links: A link to the node is attached, the creating one or another.
            has_messages: The node holds messages.
        """
        is_linked = has_links if self._by_links else has_maker
        return not is_linked and not (self._by_messages and has_messages)


_BY_DESCRIPTOR: Final[dict[int | str, Lifetime]] = {
    descriptor: lifetime for lifetime in Lifetime for descriptor in (lifetime.code, lifetime.symbol)
}


def read_lifetime(properties: Any) -> Lifetime:
    """
    The policy that decoded dynamic-node-properties name; delete-on-close if they name none.

    Raises:
        LifetimeError: The properties are not a map, or their lifetime-policy is unknown.
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
"""Every outcome that a message can have, in the order in which we list them."""


class OutcomesError(ValueError):
    """An invalid list of outcomes; the text is a sentence for its sender."""


def read_outcomes(value: Any) -> frozenset[str]:
    """
    The outcomes that a source lists. A source that lists none gets all of them.

    Args:
        value: The decoded field: a symbol, or several.

    Raises:
        OutcomesError: The field has another type, or lists no outcome that a message can have.
    """
    listed = [value] if isinstance(value, Symbol) else value
    if listed is None or listed == []:
        return frozenset(ALL)
    if not isinstance(listed, list) or not all(isinstance(name, Symbol) for name in listed):
        raise OutcomesError("a source's outcomes are symbols")
    known = frozenset(ALL).intersection(listed)
    if not known:
        raise OutcomesError(f"a source's outcomes may be {', '.join(ALL)}; none of these is listed")
    return known


def in_order(outcomes: Iterable[str]) -> list[Symbol]:
    """The outcomes in the order of ``ALL``."""
    there = set(outcomes)
    return [outcome for outcome in ALL if outcome in there]
