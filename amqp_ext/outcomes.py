"""
Outcomes of deliveries (AMQP 1.0 section 3.4), and which of them a source says that it knows (section 3.5.3).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from amqp_ext.codec import Symbol

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
