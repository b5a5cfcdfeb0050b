"""
The values of selectors: their kinds, how they compare, how they add up (Jakarta Messaging 3.1 section 3.8.1).

Values are those the AMQP codec gives: int and its subclasses are exact numbers, float approximate ones; None
is NULL. Invariant: nothing here raises on two values of any types. What has no answer (division by zero, an
exact result beyond 64 bits, anything with NULL) is None.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from amqp_ext.codec import Described
from amqp_ext.message.sections.work import QUICK_BYTES
from amqp_ext.selector.lexer import MAX_EXACT, MIN_EXACT

Relation = Callable[[Any, Any], bool | None]
Operation = Callable[[Any, Any], int | float | None]

# The kinds of values: "only like type values can be compared", and exact with approximate numbers (section 3.8.1.1).
EXACT: Final = "exact"
APPROXIMATE: Final = "approximate"
STRING: Final = "string"
BOOLEAN: Final = "boolean"
BINARY: Final = "binary"

NUMBERS = frozenset((EXACT, APPROXIMATE))

CONTAINER_STEPS: Final = 5_000
"""Comparing two lists or maps: as large as a message may have them and still be decoded."""

_CONTAINERS: Final = (list, dict, Described)


class _KindOf(dict[type, Any]):
    """
    The kind of a value by its type: a look-up per message instead of a row of isinstance calls.

    A type no selector has a literal for (uuid, decimal, list) is a kind of its own, like itself alone.
    """

    def __missing__(self, type_: type) -> Any:
        kind: Any = type_
        if type_ is bool:
            kind = BOOLEAN
        elif issubclass(type_, int):
            kind = EXACT
        elif issubclass(type_, float):
            kind = APPROXIMATE
        elif issubclass(type_, str):
            kind = STRING
        elif type_ is bytes:  # not its subclasses: an AMQP decimal is no binary
            kind = BINARY
        self[type_] = kind
        return kind


kind_of = _KindOf()


# Comparison

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def relation(compare: Callable[[Any, Any], bool], kinds: frozenset[str] | None) -> Relation:
    """
    A comparison that knows types: NULL gives unknown, unlike types give false (section 3.8.1.1), <> included.

    An exact number is made approximate before it meets one: Java's numeric promotion, with its loss of digits
    beyond 2**53. ``kinds`` are those the operator is defined for, None is all.
    """

    def relate(left: Any, right: Any) -> bool | None:
        if left is None or right is None:
            return None
        kind, other = kind_of[type(left)], kind_of[type(right)]
        if kind is other:
            return (kinds is None or kind in kinds) and compare(left, right)
        return kind in NUMBERS and other in NUMBERS and compare(float(left), float(right))

    return relate


def comparing_steps(value: Any) -> int:
    """What comparing a value may take, in steps of some 100 ns; 0 for all that most messages have."""
    if isinstance(value, str | bytes):
        return len(value) // QUICK_BYTES
    return CONTAINER_STEPS if isinstance(value, _CONTAINERS) else 0


# Arithmetic


def in_range(value: int | float) -> int | float | None:
    """Exact results beyond 64 bits are NULL. Java would wrap around, which no author expects."""
    return value if isinstance(value, float) or MIN_EXACT <= value <= MAX_EXACT else None


def _quotient(dividend: int, divisor: int) -> int:
    """Integer division towards zero, as Java has it; Python's goes down."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


def _divide_java(left: Any, right: Any) -> int | float | None:
    if right == 0:
        return None
    if isinstance(left, float) or isinstance(right, float):
        return float(left) / float(right)
    return in_range(_quotient(left, right))


def _divide_real(left: Any, right: Any) -> float | None:
    return None if right == 0 else float(left) / float(right)


def _remainder(left: Any, right: Any) -> int | None:
    """% of the OASIS draft: exact numbers only, the sign is that of the dividend."""
    if right == 0 or isinstance(left, float) or isinstance(right, float):
        return None
    return int(left - right * _quotient(left, right))


JMS_ARITHMETIC: dict[str, Operation] = {
    "+": lambda left, right: in_range(left + right),
    "-": lambda left, right: in_range(left - right),
    "*": lambda left, right: in_range(left * right),
    "/": _divide_java,
}
SQL_ARITHMETIC: dict[str, Operation] = {**JMS_ARITHMETIC, "/": _divide_real, "%": _remainder}
