"""
The grammar of selectors (Jakarta Messaging 3.1 section 3.8): the nodes of a selector's tree, and the parser that makes
the tree of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NoReturn

from amqp_ext.selector.fields import Reference, resolve
from amqp_ext.selector.lexer import Kind, SelectorError, Syntax, Token, tokenize

Value = str | int | float | bool | bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A part of a selector, and where its text begins and ends."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Literal(_Node):
    """``'red'``, ``5``, ``7.5``, ``TRUE``."""

    value: Value


@dataclass(frozen=True, slots=True)
class Identifier(_Node):
    """A name, and the part of the message it reads."""

    name: str
    reference: Reference


@dataclass(frozen=True, slots=True)
class Sign(_Node):
    """``- x`` or ``+ x``."""

    operator: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Arithmetic(_Node):
    """``first (operator operand)…``, left to right: operators of one precedence, + and - or * / and %."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class Comparison(_Node):
    """``left operator right``; the operator is one of = <> < <= > >=."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Between(_Node):
    """``operand [NOT] BETWEEN low AND high``."""

    operand: Node
    low: Node
    high: Node
    negated: bool


@dataclass(frozen=True, slots=True)
class In(_Node):
    """``operand IN (choices)``; NOT IN is a Not around it."""

    operand: Node
    choices: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Like(_Node):
    """``operand LIKE pattern [ESCAPE escape]``; NOT LIKE is a Not around it."""

    operand: Node
    pattern: str
    escape: str | None


@dataclass(frozen=True, slots=True)
class IsNull(_Node):
    """``identifier IS NULL``; IS NOT NULL is a Not around it."""

    operand: Identifier


@dataclass(frozen=True, slots=True)
class Not(_Node):
    """``NOT operand``."""

    operand: Node


@dataclass(frozen=True, slots=True)
class And(_Node):
    """``terms[0] AND terms[1] …``: two or more."""

    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or(_Node):
    """``terms[0] OR terms[1] …``: two or more."""

    terms: tuple[Node, ...]


Node = Literal | Identifier | Sign | Arithmetic | Comparison | Between | In | Like | IsNull | Not | And | Or


def identifiers(node: Node) -> Iterator[Identifier]:
    """Every identifier at or below this node, in the order they were written."""
    waiting: list[object] = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Identifier):
            yield part
        elif isinstance(part, tuple):
            waiting.extend(reversed(part))
        elif isinstance(part, _Node):
            waiting.extend(getattr(part, field.name) for field in reversed(fields(part)))


# The most parentheses, NOTs and signs around one value. A person writes three or four; each takes eight frames of
# Python's stack, of which there are a thousand.
MAX_DEPTH = 64

_COMPARISONS = frozenset(("=", "<>", "!=", "<", "<=", ">", ">="))
_VALUE = "a value (a name, a literal or a parenthesis)"


def parse(text: str, syntax: Syntax = Syntax.JMS) -> Node:
    """
    The tree of a selector.

    Raises:
        SelectorError: The text is not a selector; the error says what was found and what would be right.
    """
    return _Parser(text, syntax).selector()


class _Parser:
    def __init__(self, text: str, syntax: Syntax) -> None:
        self._text = text
        self._syntax = syntax
        self._tokens = tokenize(text, syntax)
        self._index = 0
        self._depth = 0

    def selector(self) -> Node:
        node = self._disjunction()
        if self._next.kind is not Kind.END:
            self._expected("AND, OR or the end of the selector")
        return node

    # The next token, and taking it

    @property
    def _next(self) -> Token:
        return self._tokens[self._index]

    @property
    def _end(self) -> int:
        """Where the last token taken ends."""
        return self._tokens[self._index - 1].end

    def _take(self) -> Token:
        token = self._tokens[self._index]
        self._index += 1
        return token

    def _is(self, kind: Kind, *values: str) -> bool:
        return self._next.kind is kind and self._next.value in values

    def _accept(self, kind: Kind, *values: str) -> Token | None:
        return self._take() if self._is(kind, *values) else None

    def _require(self, kind: Kind, value: str, what: str) -> Token:
        return self._accept(kind, value) or self._expected(what)

    def _expected(self, what: str) -> NoReturn:
        token = self._next
        found = "the end of the selector" if token.kind is Kind.END else self._text[token.start : token.end]
        if self._index:
            before = self._tokens[self._index - 1]
            what = f"{what} after {self._text[before.start : before.end]}"
        raise SelectorError(f"expected {what}, found {found}", token.start)

    def _descend(self, opening: Token) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SelectorError(f"the selector nests more than {MAX_DEPTH} deep", opening.start)

    def _ascend(self) -> None:
        self._depth -= 1

    # The grammar

    def _disjunction(self) -> Node:
        start = self._next.start
        terms = [self._conjunction()]
        while self._accept(Kind.KEYWORD, "OR"):
            terms.append(self._conjunction())
        return terms[0] if len(terms) == 1 else Or(tuple(terms), start=start, end=self._end)

    def _conjunction(self) -> Node:
        start = self._next.start
        terms = [self._negation()]
        while self._accept(Kind.KEYWORD, "AND"):
            terms.append(self._negation())
        return terms[0] if len(terms) == 1 else And(tuple(terms), start=start, end=self._end)

    def _negation(self) -> Node:
        if word := self._accept(Kind.KEYWORD, "NOT"):
            self._descend(word)
            operand = self._negation()
            self._ascend()
            return Not(operand, start=word.start, end=self._end)
        return self._comparison()

    def _comparison(self) -> Node:
        start = self._next.start
        left = self._sum()
        if self._is(Kind.SIGN, *_COMPARISONS):
            operator = str(self._take().value)
            right = self._sum()
            if self._is(Kind.SIGN, *_COMPARISONS):
                self._expected("AND or OR (comparisons do not chain)")
            return Comparison("<>" if operator == "!=" else operator, left, right, start=start, end=self._end)
        if self._accept(Kind.KEYWORD, "IS"):
            return self._null_test(left, start)
        negated = self._accept(Kind.KEYWORD, "NOT") is not None
        if self._accept(Kind.KEYWORD, "BETWEEN"):
            return self._between(left, negated, start)
        if self._accept(Kind.KEYWORD, "IN"):
            node: Node = self._membership(left, start)
        elif self._accept(Kind.KEYWORD, "LIKE"):
            node = self._likeness(left, start)
        elif negated:
            self._expected("BETWEEN, IN or LIKE")
        else:
            return left
        return Not(node, start=start, end=self._end) if negated else node

    def _null_test(self, operand: Node, start: int) -> Node:
        if not isinstance(operand, Identifier):
            raise SelectorError(
                f"expected a name before IS, found {self._text[operand.start : operand.end]}", start
            )
        negated = self._accept(Kind.KEYWORD, "NOT")
        self._require(Kind.KEYWORD, "NULL", "NULL" if negated else "NULL or NOT NULL")
        node = IsNull(operand, start=start, end=self._end)
        return Not(node, start=start, end=self._end) if negated else node

    def _between(self, operand: Node, negated: bool, start: int) -> Node:
        low = self._sum()
        self._require(Kind.KEYWORD, "AND", "AND and the upper bound of BETWEEN")
        return Between(operand, low, self._sum(), negated, start=start, end=self._end)

    def _membership(self, operand: Node, start: int) -> Node:
        self._require(Kind.SIGN, "(", "a list in parentheses")
        choices = [self._sum()]
        while self._accept(Kind.SIGN, ","):
            choices.append(self._sum())
        self._require(Kind.SIGN, ")", "a comma or a closing parenthesis")
        return In(operand, tuple(choices), start=start, end=self._end)

    def _likeness(self, operand: Node, start: int) -> Node:
        pattern = self._string("a pattern in quotes")
        escape = self._string("one character in quotes") if self._accept(Kind.KEYWORD, "ESCAPE") else None
        return Like(operand, pattern, escape, start=start, end=self._end)

    def _string(self, what: str) -> str:
        if self._next.kind is not Kind.STRING:
            self._expected(what)
        return str(self._take().value)

    def _sum(self) -> Node:
        start = self._next.start
        first = self._product()
        rest = []
        while operator := self._accept(Kind.SIGN, "+", "-"):
            rest.append((str(operator.value), self._product()))
        return Arithmetic(first, tuple(rest), start=start, end=self._end) if rest else first

    def _product(self) -> Node:
        start = self._next.start
        first = self._signed()
        rest = []
        while operator := self._accept(Kind.SIGN, "*", "/", "%"):
            rest.append((str(operator.value), self._signed()))
        return Arithmetic(first, tuple(rest), start=start, end=self._end) if rest else first

    def _signed(self) -> Node:
        if sign := self._accept(Kind.SIGN, "+", "-"):
            self._descend(sign)
            operand = self._signed()
            self._ascend()
            return Sign(str(sign.value), operand, start=sign.start, end=self._end)
        return self._primary()

    def _primary(self) -> Node:
        if opening := self._accept(Kind.SIGN, "("):
            self._descend(opening)
            node = self._disjunction()
            self._ascend()
            self._require(Kind.SIGN, ")", "a closing parenthesis")
            return node
        if word := self._accept(Kind.KEYWORD, "TRUE", "FALSE"):
            return Literal(word.value == "TRUE", start=word.start, end=word.end)
        token = self._next
        if token.kind in (Kind.STRING, Kind.NUMBER, Kind.BINARY):
            self._take()
            return Literal(token.value, start=token.start, end=token.end)
        if token.kind in (Kind.NAME, Kind.QUOTED_NAME):
            self._take()
            return self._identifier(token)
        return self._expected(_VALUE)

    def _identifier(self, token: Token) -> Node:
        name = str(token.value)
        if self._is(Kind.SIGN, "(") and token.kind is Kind.NAME:
            raise SelectorError(
                f"expected a value, found a call of {name}: selectors have no functions", token.start
            )
        if token.kind is Kind.QUOTED_NAME and self._syntax is Syntax.SQL:
            # [p.to] is a property with a dot in its name.
            reference = Reference("application_properties", name)
        else:
            reference = resolve(name, self._syntax, token.start)
        return Identifier(name, reference, start=token.start, end=token.end)
