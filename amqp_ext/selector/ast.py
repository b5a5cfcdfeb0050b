"""
The shapes a parsed selector is made of.

Every node knows where it stands: ``text[start:end]`` of the selector it came from, without enclosing
parentheses. Invariant: conjunctions and disjunctions are flat and chains of one arithmetic precedence are
flat, so the tree is only as deep as the parentheses, NOTs and signs the author wrote, and those are bounded
by the parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from amqp_ext.selector.fields import Reference

Value = str | int | float | bool | bytes


@dataclass(frozen=True, slots=True)
class Literal:
    """``'red'``, ``5``, ``7.5``, ``TRUE``."""

    value: Value
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Identifier:
    """A name, and the part of the message it reads."""

    name: str
    reference: Reference
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Sign:
    """``- x`` or ``+ x``."""

    operator: str
    operand: Node
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``first (operator operand)…``, left to right: operators of one precedence, + and - or * / and %."""

    first: Node
    rest: tuple[tuple[str, Node], ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """``left operator right``; the operator is one of = <> < <= > >=."""

    operator: str
    left: Node
    right: Node
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Between:
    """``operand [NOT] BETWEEN low AND high``."""

    operand: Node
    low: Node
    high: Node
    negated: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class In:
    """``operand IN (choices)``; NOT IN is a Not around it."""

    operand: Node
    choices: tuple[Node, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Like:
    """``operand LIKE pattern [ESCAPE escape]``; NOT LIKE is a Not around it."""

    operand: Node
    pattern: str
    escape: str | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class IsNull:
    """``identifier IS NULL``; IS NOT NULL is a Not around it."""

    operand: Identifier
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Not:
    """``NOT operand``."""

    operand: Node
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class And:
    """``terms[0] AND terms[1] …``: two or more."""

    terms: tuple[Node, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Or:
    """``terms[0] OR terms[1] …``: two or more."""

    terms: tuple[Node, ...]
    start: int
    end: int


Node = Literal | Identifier | Sign | Arithmetic | Comparison | Between | In | Like | IsNull | Not | And | Or


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below this one, in the order they were written."""
    match node:
        case Literal() | Identifier():
            return ()
        case Sign(operand=operand) | Like(operand=operand) | IsNull(operand=operand) | Not(operand=operand):
            return (operand,)
        case Arithmetic(first=first, rest=rest):
            return (first, *(operand for _, operand in rest))
        case Comparison(left=left, right=right):
            return (left, right)
        case Between(operand=operand, low=low, high=high):
            return (operand, low, high)
        case In(operand=operand, choices=choices):
            return (operand, *choices)
        case And(terms=terms) | Or(terms=terms):
            return terms


def identifiers(node: Node) -> Iterator[Identifier]:
    """Every identifier at or below this node, in the order they were written."""
    if isinstance(node, Identifier):
        yield node
    for child in children(node):
        yield from identifiers(child)
