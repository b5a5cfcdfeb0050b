"""
The meaning of selectors: a tree becomes one function, which is called once for each message.

A tree is compiled to closures, so nothing is looked up by name or walked per message, and what does not depend on the
message is computed once. An operation that takes longer for a longer value first takes steps from the message's budget
(``MessageView.spend``); if too few are left, its result is unknown. The logic is that of Jakarta Messaging 3.1 section
3.8.1.2; its tables 3-4 to 3-6 are repeated next to the code.

Values are those that the AMQP codec gives: int and its subclasses are exact numbers, float approximate ones; None is
NULL and, as the value of a condition, unknown (section 3.8.1). Invariant: evaluation raises nothing, whatever values
the message holds. A term without a value (a missing property, a sum of texts, division by zero, an exact result beyond
64 bits, anything with NULL) is NULL, and NULL does not match.

LIKE patterns: ``_`` is any one character, ``%`` any number of them (Jakarta Messaging 3.1 section 3.8.1.1).

A pattern comes from a stranger, and a matcher that backtracks can be made to run for hours. So each piece of a pattern
between two ``%``, which has a fixed length, is a regular expression of its own, without repetitions. The first piece is
compared with the beginning of the text and the last with its end; the others are searched for one after the other.
Invariant: a match takes time linear in the text, whatever the pattern; a matcher says beforehand how much that is.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from amqp_ext.codec import Described
from amqp_ext.message.sections import QUICK_BYTES, MessageView
from amqp_ext.selector import parser
from amqp_ext.selector.fields import reader
from amqp_ext.selector.lexer import MAX_EXACT, MIN_EXACT, SelectorError, Syntax

Matcher = Callable[[str], bool]

QUICK_CHARACTERS: Final = 32
"""Characters of a text that count as one step of a search for a plain piece; a real step takes several times more."""

TRIED_CHARACTERS: Final = 30
"""The characters of a piece with ``_`` that are compared in one step, at each place where the piece is searched for."""

_Piece = list[str | None]
"""The characters of a pattern between two ``%``; None for ``_``."""


@dataclass(frozen=True, slots=True)
class LikePattern:
    """
    A compiled pattern.

    Attributes:
        matches: Whether a whole text matches.
        steps_per_character: The most that ``matches`` takes for each character of a text, in steps of some 100 ns.
        fixed_characters: The characters that are compared at the beginning and the end of any text: a step each.
    """

    matches: Matcher
    steps_per_character: float
    fixed_characters: int

    def steps(self, text: str) -> int:
        """The most that ``matches`` takes for this text."""
        return int(len(text) * self.steps_per_character) + self.fixed_characters


def compile_like(pattern: str, escape: str | None = None) -> LikePattern:
    """
    Compile a LIKE pattern.

    Args:
        escape: One character; the character after it is no wildcard.

    Raises:
        ValueError: Nothing follows the last escape, or ``escape`` is not one character.
    """
    if escape is not None and len(escape) != 1:
        raise ValueError(f"expected one character after ESCAPE, found '{escape}'")
    first, *others = _pieces(pattern, escape)
    if not others:
        return LikePattern(_equal_to(first), 0, len(first))
    *between, last = others
    between = list(filter(None, between))
    has_ends, searches = _with_ends(first, last), [_compiled(piece).search for piece in between]
    before, behind = len(first), len(last)

    def matches(text: str) -> bool:
        if not has_ends(text):
            return False
        position, end = before, len(text) - behind
        for search in searches:
            found = search(text, position, end)
            if found is None:
                return False
            position = found.end()
        return True

    steps_per_character = max(map(_steps_per_character, between), default=0)
    return LikePattern(matches if between else has_ends, steps_per_character, before + behind)


def _equal_to(piece: _Piece) -> Matcher:
    if (plain := _plain(piece)) is not None:
        return lambda text: text == plain
    whole = _compiled(piece).fullmatch
    return lambda text: whole(text) is not None


def _with_ends(first: _Piece, last: _Piece) -> Matcher:
    """Whether a text begins and ends with these, without overlap; for plain pieces str's own methods are quicker."""
    begin, end, behind, shortest = _plain(first), _plain(last), len(last), len(first) + len(last)
    if begin is not None and end is not None:
        return lambda text: len(text) >= shortest and text.startswith(begin) and text.endswith(end)
    begins, ends = _compiled(first).match, _compiled(last).match
    return lambda text: len(text) >= shortest and bool(begins(text) and ends(text, len(text) - behind))


def _pieces(pattern: str, escape: str | None) -> list[_Piece]:
    pieces: list[_Piece] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None:
                raise ValueError(
                    f"expected a character after the escape {escape} that ends the pattern '{pattern}'"
                )
            pieces[-1].append(following)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    return pieces


def _plain(piece: _Piece) -> str | None:
    """The text of a piece without ``_``; None for any other piece."""
    return None if None in piece else "".join(filter(None, piece))


def _compiled(piece: _Piece) -> re.Pattern[str]:
    return re.compile("".join("." if one is None else re.escape(one) for one in piece), re.DOTALL)


def _steps_per_character(piece: _Piece) -> float:
    return max(1, len(piece) / TRIED_CHARACTERS) if None in piece else 1 / QUICK_CHARACTERS


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
"""The steps for comparing two lists or maps of the largest size that is decoded."""

_CONTAINERS: Final = (list, dict, Described)


_KINDS: Final = ((bool, BOOLEAN), (int, EXACT), (float, APPROXIMATE), (str, STRING))
"""The kinds of types; the first base that fits counts."""


class _KindOf(dict[type, Any]):
    """
    The kind of a value by its type: a look-up per message instead of a row of isinstance calls.

    A type for which selectors have no literal (uuid, decimal, list) is a kind of its own, comparable only with itself.
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

    An exact number is converted before it is compared with an approximate one: Java's numeric promotion, with its loss
    of digits beyond 2**53. ``kinds`` are the kinds that the operator is defined for, None is all.
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
    """The most steps, of some 100 ns, for comparing a value; 0 for the values of most messages."""
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

Evaluator = Callable[[MessageView], Any]

FREE_SIZE = 64
"""LIKE takes no steps for values of so many characters: a selector of a thousand tokens has at most 250 such terms."""


def compile_condition(node: parser.Node, syntax: Syntax) -> Evaluator:
    """
    The function of a condition: True, False, or anything else for unknown.

    A selector that can never match is refused here, so that its author does not wonder why nothing arrives.

    Raises:
        SelectorError: The types cannot fit, whatever the message holds.
    """
    return _Compiler(syntax).compile(node, _CONDITION)


class _Place(NamedTuple):
    """What is allowed at some place of a selector: the kinds of values, and their name in an error."""

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

    def __call__(self, message: MessageView) -> Any:
        return self.value


class _Compiler:
    def __init__(self, syntax: Syntax) -> None:
        self._syntax = syntax
        self._arithmetic = SQL_ARITHMETIC if syntax is Syntax.SQL else JMS_ARITHMETIC
        self._ordered = _ORDERED[syntax]
        self._reads = 0
        """How many identifiers were compiled so far."""

    def compile(self, node: parser.Node, place: _Place) -> Evaluator:
        """The function of a node at such a place."""
        kind = _static_kind(node)
        if kind is not None and kind not in place.kinds:
            found = "number" if kind in NUMBERS else kind
            raise SelectorError(f"expected {place.what}, found a {found}", node.start)
        before = self._reads
        evaluate = self._build(node)
        if self._reads == before and not isinstance(evaluate, _Constant):
            return _Constant(evaluate(MessageView(b"", 0)))  # it reads nothing, but may take steps
        return evaluate

    def _read(self, node: parser.Identifier) -> Evaluator:
        self._reads += 1
        return reader(node.reference)

    def _build(self, node: parser.Node) -> Evaluator:
        match node:
            case parser.Literal(value=value):
                return _Constant(value)
            case parser.Identifier():
                return self._read(node)
            case parser.Sign(operator=sign, operand=operand):
                return _signed(sign, self.compile(operand, _NUMBER))
            case parser.Arithmetic(first=first, rest=rest):
                steps = [(self._arithmetic[sign], self.compile(operand, _NUMBER)) for sign, operand in rest]
                return _arithmetic(self.compile(first, _NUMBER), steps)
            case parser.Comparison():
                return self._comparison(node)
            case parser.Between(operand=operand, low=low, high=high, negated=negated):
                operands = [self.compile(each, self._ordered) for each in (operand, low, high)]
                return self._between(*operands, negated=negated)
            case parser.In(operand=operand, choices=choices):
                values = [self.compile(choice, _ANYTHING) for choice in choices]
                return self._membership(self.compile(operand, _ANYTHING), values)
            case parser.Like():
                return self._likeness(node)
            case parser.IsNull(operand=operand):
                return _null_test(self._read(operand))
            case parser.Not(operand=operand):
                return _negation(self.compile(operand, _CONDITION))
            case parser.And(terms=terms):
                return _junction([self.compile(term, _CONDITION) for term in terms], False)
            case parser.Or(terms=terms):
                return _junction([self.compile(term, _CONDITION) for term in terms], True)

    def _comparison(self, node: parser.Comparison) -> Evaluator:
        place = _ANYTHING if node.operator in ("=", "<>") else self._ordered
        left, right = self.compile(node.left, place), self.compile(node.right, place)
        if node.operator == "=":
            for one, other in ((left, right), (right, left)):
                if isinstance(other, _Constant) and isinstance(other.value, str):
                    return _equals_string(one, other.value)
        relate = self._relation(node.operator)
        if isinstance(left, _Constant) or isinstance(right, _Constant):
            # A comparison looks at no more characters than the literal has, which is no longer than a selector.
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

        def evaluate(message: MessageView) -> bool | None:
            value = operand(message)
            if (cost := comparing_steps(value)) and not message.spend(cost):
                return None
            below, above = to_low(value, low(message)), to_high(value, high(message))
            if below is negated or above is negated:
                return negated
            return None if below is None or above is None else not negated

        return evaluate

    def _likeness(self, node: parser.Like) -> Evaluator:
        operand = self.compile(node.operand, _LIKABLE)
        try:
            pattern = compile_like(node.pattern, node.escape)
        except ValueError as error:
            raise SelectorError(str(error), node.start) from None
        matches, steps = pattern.matches, pattern.steps

        def evaluate(message: MessageView) -> bool | None:
            value = operand(message)
            # "identifier has a String value" (section 3.8.1.1): for any other neither LIKE nor NOT LIKE is true.
            if not isinstance(value, str):
                return None
            if len(value) > FREE_SIZE and not message.spend(steps(value)):
                return None
            return matches(value)

        return evaluate

    def _membership(self, operand: Evaluator, choices: list[Evaluator]) -> Evaluator:
        """
        ``a IN (b, c)`` is ``a = b OR a = c`` (section 3.8.1.1).

        JMS has IN for strings alone: for a value that is comparable with none of the choices, neither IN nor NOT IN is
        true.
        """
        texts: set[str] = set()
        others: list[Evaluator] = []
        for choice in choices:
            if isinstance(choice, _Constant) and isinstance(choice.value, str):
                texts.add(choice.value)
            else:
                others.append(choice)
        needs_like = self._syntax is Syntax.JMS

        def evaluate(message: MessageView) -> bool | None:
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


def _static_kind(node: parser.Node) -> str | None:
    """The kind that a node's value has for every message; None if the kind depends on the message."""
    match node:
        case parser.Literal(value=value):
            kind: str = kind_of[type(value)]
            return kind
        case parser.Identifier():
            return None
        case parser.Sign() | parser.Arithmetic():
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

    def evaluate(message: MessageView) -> bool | None:
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

    def evaluate(message: MessageView) -> bool | None:
        value = operand(message)
        return not value if value is True or value is False else None

    return evaluate


def _null_test(operand: Evaluator) -> Evaluator:
    return lambda message: operand(message) is None


# Comparison
def _charged(relate: Relation, left: Evaluator, right: Evaluator) -> Evaluator:
    """A comparison of two values of the message, which may be long: it takes steps from the message's budget."""

    def evaluate(message: MessageView) -> bool | None:
        one, other = left(message), right(message)
        if (cost := comparing_steps(one)) and not message.spend(min(cost, comparing_steps(other))):
            return None
        return relate(one, other)

    return evaluate


_equal = relation(COMPARISONS["="], None)


def _equals_string(operand: Evaluator, text: str) -> Evaluator:
    """``name = 'text'``, the selector nearly everybody writes."""

    def evaluate(message: MessageView) -> bool | None:
        value = operand(message)
        return None if value is None else bool(value == text)

    return evaluate


# Arithmetic
def _arithmetic(first: Evaluator, steps: list[tuple[Operation, Evaluator]]) -> Evaluator:
    """Left to right; anything that is no number makes the whole NULL."""

    def evaluate(message: MessageView) -> int | float | None:
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

    def evaluate(message: MessageView) -> int | float | None:
        value = operand(message)
        if kind_of[type(value)] not in NUMBERS:
            return None
        return in_range(-value if negative else value)

    return evaluate
