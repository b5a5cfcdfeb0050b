"""
The meaning of selectors: a tree becomes one function, which is called once for each message.

A tree is compiled to closures, so nothing is looked up by name or walked per message, and what does not depend on the
message is computed once. What takes longer the longer a value is asks the message first whether that may be spent on
it, and is unknown where it may not (Jakarta Messaging 3.1 section 3.8.1.2 with its tables 3-4 to 3-6, repeated beside
the code that obeys them).

Values are those that the AMQP codec gives: int and its subclasses are exact numbers, float approximate ones; None is
NULL and, as the value of a condition, unknown (section 3.8.1). Invariant: evaluation raises nothing, whatever values
the message holds. What has no answer (a missing property, a sum of texts, division by zero, an exact result beyond 64
bits, anything with NULL) is NULL, and NULL does not match.

LIKE patterns: ``_`` is any one character, ``%`` any number of them (Jakarta Messaging 3.1 section 3.8.1.1).

No regular expressions: a pattern comes from a stranger, and a backtracking matcher can be made to run for
hours. Invariant: a match takes time linear in the subject, whatever the pattern, and a matcher says beforehand how
much that is. Patterns without ``_`` are searched piece by piece with str's own methods. In others, what stands before
the first ``%`` and behind the last one is compared where it must be, and what is between them runs as a bit-parallel
automaton, a few integer operations a character.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from amqp_ext.codec import Described
from amqp_ext.message.sections import QUICK_BYTES
from amqp_ext.selector.fields import SelectorMessage, reader
from amqp_ext.selector.lexer import MAX_EXACT, MIN_EXACT, SelectorError, Syntax
from amqp_ext.selector.parser import (
    And,
    Arithmetic,
    Between,
    Comparison,
    Identifier,
    In,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Or,
    Sign,
    identifiers,
)

Matcher = Callable[[str], bool]

QUICK_CHARACTERS: Final = 32
"""Characters that str's own methods look through in the time of one step: at least a few times that many."""

WIDE: Final = 1_000
"""Characters of a pattern by which a step of the automaton takes as long again: its state is one long integer."""


@dataclass(frozen=True, slots=True)
class LikePattern:
    """
    A compiled pattern.

    Attributes:
        matches: Whether a whole text matches.
        steps_per_character: What ``matches`` takes for each character of a long text at most, in steps of the
            automaton, of some 100 ns each.
        fixed_characters: What of any text has its place before it is asked for: it costs no more than that.
    """

    matches: Matcher
    steps_per_character: float
    fixed_characters: int = 0

    def steps(self, text: str) -> int:
        """The most that ``matches`` takes for this text."""
        return int(len(text) * self.steps_per_character) + self.fixed_characters


class _Wild(Enum):
    ONE = "_"
    MANY = "%"


def compile_like(pattern: str, escape: str | None = None) -> LikePattern:
    """
    What a pattern matches, and what asking costs.

    Args:
        escape: One character that takes the meaning of wildcard from the character after it.

    Raises:
        ValueError: Nothing follows the last escape, or ``escape`` is not one character.
    """
    if escape is not None and len(escape) != 1:
        raise ValueError(f"expected one character after ESCAPE, found '{escape}'")
    elements = _elements(pattern, escape)
    if _Wild.ONE in elements:
        return _around(elements)
    return LikePattern(_search(_pieces(elements)), 1 / QUICK_CHARACTERS)


def _elements(pattern: str, escape: str | None) -> list[str | _Wild]:
    elements: list[str | _Wild] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None:
                raise ValueError(
                    f"expected a character after the escape {escape} that ends the pattern '{pattern}'"
                )
            elements.append(following)
        else:
            elements.append(_Wild(character) if character in ("_", "%") else character)
    return elements


def _search(pieces: list[str]) -> Matcher:
    """Plain pieces with anything between them: first at the start, last at the end, others in order."""
    first, *middle, last = pieces if len(pieces) > 1 else (pieces[0], "")
    middle = [piece for piece in middle if piece]
    if len(pieces) == 1:
        return lambda text: text == first
    if not middle:
        shortest = len(first) + len(last)
        return lambda text: len(text) >= shortest and text.startswith(first) and text.endswith(last)

    def matches(text: str) -> bool:
        if not text.startswith(first) or not text.endswith(last):
            return False
        position, end = len(first), len(text) - len(last)
        for piece in middle:
            position = text.find(piece, position, end)
            if position < 0:
                return False
            position += len(piece)
        return position <= end

    return matches


def _around(elements: list[str | _Wild]) -> LikePattern:
    """A pattern with ``_``: its head and its tail have their places, and only what is between them is searched for."""
    if _Wild.MANY not in elements:
        size = len(elements)
        equals = _automaton(elements)
        return LikePattern(lambda text: len(text) == size and equals(text), 0, size)
    first = elements.index(_Wild.MANY)
    last = len(elements) - 1 - elements[::-1].index(_Wild.MANY)
    head, middle, tail = elements[:first], elements[first : last + 1], elements[last + 1 :]
    begins, contains, ends = _automaton(head), _middle(middle), _automaton(tail)
    before, behind = len(head), len(tail)

    def matches(text: str) -> bool:
        end = len(text) - behind
        return (
            end >= before
            and begins(text[:before])
            and ends(text[end:])
            and contains.matches(text[before:end] if before or behind else text)
        )

    return LikePattern(matches, contains.steps_per_character, before + behind)


def _middle(elements: list[str | _Wild]) -> LikePattern:
    """From the first ``%`` to the last one."""
    if set(elements) == {_Wild.MANY}:
        return LikePattern(lambda text: True, 0)
    if _Wild.ONE in elements:
        return LikePattern(_automaton(elements), 1 + len(elements) / WIDE)
    return LikePattern(_search(_pieces(elements)), 1 / QUICK_CHARACTERS)


def _pieces(elements: list[str | _Wild]) -> list[str]:
    """The plain texts between one ``%`` and the next."""
    pieces = [""]
    for element in elements:
        if isinstance(element, str):
            pieces[-1] += element
        else:
            pieces.append("")
    return pieces


def _automaton(elements: list[str | _Wild]) -> Matcher:
    """
    Bit n of the state is set while the text so far matches the first n characters of the pattern.

    One step: the bits whose next character fits move up by one; bits that stand before a % may also stay.
    """
    fits: dict[str, int] = {}  # character of the pattern: the bits it moves
    always = stays = width = 0
    for element in elements:
        if element is _Wild.MANY:
            stays |= 1 << width
            continue
        if element is _Wild.ONE:
            always |= 1 << width
        else:
            fits[element] = fits.get(element, 0) | 1 << width
        width += 1
    moves = {character: bits | always for character, bits in fits.items()}
    accepted = 1 << width

    def matches(text: str) -> bool:
        state = 1
        for character in text:
            state = (state & moves.get(character, always)) << 1 | state & stays
            if not state:
                return False
        return bool(state & accepted)

    return matches


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


_KINDS: Final = ((bool, BOOLEAN), (int, EXACT), (float, APPROXIMATE), (str, STRING))
"""What a type is like; of several, the first."""


class _KindOf(dict[type, Any]):
    """
    The kind of a value by its type: a look-up per message instead of a row of isinstance calls.

    A type no selector has a literal for (uuid, decimal, list) is a kind of its own, like itself alone.
    """

    def __missing__(self, type_: type) -> Any:
        kind: Any = next((kind for base, kind in _KINDS if issubclass(type_, base)), type_)
        if type_ is bytes:  # not its subclasses: an AMQP decimal is no binary
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


def _are_alike(one: Any, other: Any) -> bool:
    """Whether values can be compared: they are of one kind, or both are numbers."""
    kind, their = kind_of[type(one)], kind_of[type(other)]
    return kind is their or (kind in NUMBERS and their in NUMBERS)


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

Evaluator = Callable[[SelectorMessage], Any]

FREE_SIZE = 64
"""Characters of a value that LIKE looks through without asking: a thousand tokens of a selector are 250 such terms."""


def compile_condition(node: Node, syntax: Syntax) -> Evaluator:
    """
    The function of a condition: True, False, or anything else for unknown.

    A selector that could never match is refused when it is written, and not wondered at when nothing arrives.

    Raises:
        SelectorError: The types cannot fit whatever the message holds.
    """
    return _Compiler(syntax).compile(node, _CONDITION)


class _Place(NamedTuple):
    """What may stand somewhere: the kinds of values, and their name in an error."""

    kinds: frozenset[str]
    what: str


_ANYTHING = _Place(frozenset((EXACT, APPROXIMATE, STRING, BOOLEAN, BINARY)), "a value")
_CONDITION = _Place(frozenset((BOOLEAN,)), "a condition")
_NUMBER = _Place(NUMBERS, "a number")
_LIKABLE = _Place(frozenset((STRING,)), "a name or a string before LIKE")

# "String and Boolean comparison is restricted to = and <>" (section 3.8.1.1); SQL filters order strings and binary.
_ORDERED = {
    Syntax.JMS: _Place(NUMBERS, "a number (only = and <> compare others)"),
    Syntax.SQL: _Place(NUMBERS | {STRING, BINARY}, "a number, a string or a binary"),
}


@dataclass(frozen=True, slots=True)
class _Constant:
    """The function of an expression that does not look at the message."""

    value: Any

    def __call__(self, message: SelectorMessage | None) -> Any:
        return self.value


class _Compiler:
    def __init__(self, syntax: Syntax) -> None:
        self._syntax = syntax
        self._arithmetic = SQL_ARITHMETIC if syntax is Syntax.SQL else JMS_ARITHMETIC
        self._ordered = _ORDERED[syntax]

    def compile(self, node: Node, place: _Place) -> Evaluator:
        """The function of a node that stands in such a place."""
        kind = _static_kind(node)
        if kind is not None and kind not in place.kinds:
            found = "number" if kind in NUMBERS else kind
            raise SelectorError(f"expected {place.what}, found a {found}", node.start)
        evaluate = self._build(node)
        if not isinstance(evaluate, _Constant) and next(identifiers(node), None) is None:
            return _Constant(evaluate(_NO_MESSAGE))
        return evaluate

    def _build(self, node: Node) -> Evaluator:
        match node:
            case Literal(value=value):
                return _Constant(value)
            case Identifier(reference=reference):
                return reader(reference)
            case Sign(operator=sign, operand=operand):
                return _signed(sign, self.compile(operand, _NUMBER))
            case Arithmetic(first=first, rest=rest):
                steps = [(self._arithmetic[sign], self.compile(operand, _NUMBER)) for sign, operand in rest]
                return _arithmetic(self.compile(first, _NUMBER), steps)
            case Comparison():
                return self._comparison(node)
            case Between(operand=operand, low=low, high=high, negated=negated):
                operands = [self.compile(each, self._ordered) for each in (operand, low, high)]
                return self._between(*operands, negated=negated)
            case In(operand=operand, choices=choices):
                values = [self.compile(choice, _ANYTHING) for choice in choices]
                return self._membership(self.compile(operand, _ANYTHING), values)
            case Like():
                return self._likeness(node)
            case IsNull(operand=operand):
                return _null_test(reader(operand.reference))
            case Not(operand=operand):
                return _negation(self.compile(operand, _CONDITION))
            case And(terms=terms):
                return _junction([self.compile(term, _CONDITION) for term in terms], False)
            case Or(terms=terms):
                return _junction([self.compile(term, _CONDITION) for term in terms], True)

    def _comparison(self, node: Comparison) -> Evaluator:
        place = _ANYTHING if node.operator in ("=", "<>") else self._ordered
        left, right = self.compile(node.left, place), self.compile(node.right, place)
        if node.operator == "=":
            for one, other in ((left, right), (right, left)):
                if isinstance(other, _Constant) and isinstance(other.value, str):
                    return _equals_string(one, other.value)
        relate = self._relation(node.operator)
        if isinstance(left, _Constant) or isinstance(right, _Constant):
            # What a literal can be compared with character by character is no longer than a selector.
            return lambda message: relate(left(message), right(message))
        return _charged(relate, left, right)

    def _relation(self, sign: str) -> Relation:
        return relation(COMPARISONS[sign], None if sign in ("=", "<>") else self._ordered.kinds)

    def _between(self, operand: Evaluator, low: Evaluator, high: Evaluator, *, negated: bool) -> Evaluator:
        """
        ``a BETWEEN b AND c`` is ``a >= b AND a <= c``, and ``a NOT BETWEEN b AND c`` is ``a < b OR a > c``, so another
        type gives false (section 3.8.1.1).
        """
        to_low, to_high = map(self._relation, ("<", ">") if negated else (">=", "<="))

        def evaluate(message: SelectorMessage) -> bool | None:
            value = operand(message)
            if (cost := comparing_steps(value)) and not message.spend(cost):
                return None
            below, above = to_low(value, low(message)), to_high(value, high(message))
            if below is negated or above is negated:
                return negated
            return None if below is None or above is None else not negated

        return evaluate

    def _likeness(self, node: Like) -> Evaluator:
        operand = self.compile(node.operand, _LIKABLE)
        try:
            pattern = compile_like(node.pattern, node.escape)
        except ValueError as error:
            raise SelectorError(str(error), node.start) from None
        matches, steps = pattern.matches, pattern.steps

        def evaluate(message: SelectorMessage) -> bool | None:
            value = operand(message)
            # "identifier has a String value" (section 3.8.1.1): of any other neither LIKE nor NOT LIKE is true.
            if not isinstance(value, str):
                return None
            if len(value) > FREE_SIZE and not message.spend(steps(value)):
                return None
            return matches(value)

        return evaluate

    def _membership(self, operand: Evaluator, choices: list[Evaluator]) -> Evaluator:
        """
        ``a IN (b, c)`` is ``a = b OR a = c`` (section 3.8.1.1).

        JMS has IN for strings alone, and of a value that is like none of the choices neither IN nor NOT IN is true.
        """
        texts: set[str] = set()
        others: list[Evaluator] = []
        for choice in choices:
            if isinstance(choice, _Constant) and isinstance(choice.value, str):
                texts.add(choice.value)
            else:
                others.append(choice)
        needs_like = self._syntax is Syntax.JMS

        def evaluate(message: SelectorMessage) -> bool | None:
            value = operand(message)
            if value is None:
                return None
            is_string = isinstance(value, str)
            if is_string and value in texts:
                return True
            is_like = (is_string and bool(texts)) or not needs_like
            result: bool | None = False
            for choice in others:
                other = choice(message)
                if (cost := comparing_steps(value)) and not message.spend(min(cost, comparing_steps(other))):
                    result = None
                    continue
                equal = _equal(value, other)
                if equal:
                    return True
                if equal is None:
                    result = None
                is_like = is_like or _are_alike(value, other)
            return result if is_like else None

        return evaluate


_NO_MESSAGE: Any = None
"""What constant expressions are evaluated against: they never look."""


def _static_kind(node: Node) -> str | None:
    """The kind a node's value has whatever the message, None where that depends on the message."""
    match node:
        case Literal(value=value):
            kind: str = kind_of[type(value)]
            return kind
        case Identifier():
            return None
        case Sign() | Arithmetic():
            return EXACT  # or APPROXIMATE: a number in any case
        case _:
            return BOOLEAN


# Logic
def _junction(terms: list[Evaluator], decides: bool) -> Evaluator:
    """
    AND | T F U   OR | T F U
    ----+------   ---+------     Tables 3-4 and 3-5: one term that ``decides``, false for AND and true for OR, does so
     T  | T F U   T  | T T T     for all. A value that is no boolean counts as unknown, as in Qpid Broker-J and Artemis.
     F  | F F F   F  | T F U     Constant terms need no evaluation: one decides, or changes nothing.
     U  | U F U   U  | T U U
    """
    constants = [term.value for term in terms if isinstance(term, _Constant)]
    if any(value is decides for value in constants):
        return _Constant(decides)
    otherwise = not decides
    terms = [term for term in terms if not (isinstance(term, _Constant) and term.value is otherwise)]

    def evaluate(message: SelectorMessage) -> bool | None:
        result: bool | None = otherwise
        for term in terms:
            value: object = term(message)
            if value is decides:
                return decides
            if value is not otherwise:
                result = None
        return result

    return evaluate if terms else _Constant(otherwise)


def _negation(operand: Evaluator) -> Evaluator:
    """NOT T = F, NOT F = T, NOT U = U (table 3-6)."""

    def evaluate(message: SelectorMessage) -> bool | None:
        value = operand(message)
        return not value if value is True or value is False else None

    return evaluate


def _null_test(operand: Evaluator) -> Evaluator:
    return lambda message: operand(message) is None


# Comparison
def _charged(relate: Relation, left: Evaluator, right: Evaluator) -> Evaluator:
    """A comparison of two values of the message, each as long as its sender liked."""

    def evaluate(message: SelectorMessage) -> bool | None:
        one, other = left(message), right(message)
        if (cost := comparing_steps(one)) and not message.spend(min(cost, comparing_steps(other))):
            return None
        return relate(one, other)

    return evaluate


_equal = relation(COMPARISONS["="], None)


def _equals_string(operand: Evaluator, text: str) -> Evaluator:
    """``name = 'text'``, the selector nearly everybody writes."""

    def evaluate(message: SelectorMessage) -> bool | None:
        value = operand(message)
        return None if value is None else bool(value == text)

    return evaluate


# Arithmetic
def _arithmetic(first: Evaluator, steps: list[tuple[Operation, Evaluator]]) -> Evaluator:
    """Left to right; anything that is no number makes the whole NULL."""

    def evaluate(message: SelectorMessage) -> int | float | None:
        result = first(message)
        if kind_of[type(result)] not in NUMBERS:
            return None
        for operate, operand in steps:
            value = operand(message)
            if kind_of[type(value)] not in NUMBERS:
                return None
            result = operate(result, value)
            if result is None:
                return None
        return result  # type: ignore[no-any-return]  # a number, by the checks above

    return evaluate


def _signed(sign: str, operand: Evaluator) -> Evaluator:
    negative = sign == "-"

    def evaluate(message: SelectorMessage) -> int | float | None:
        value = operand(message)
        if kind_of[type(value)] not in NUMBERS:
            return None
        return in_range(-value if negative else value)

    return evaluate
