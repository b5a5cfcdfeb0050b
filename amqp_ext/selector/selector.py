"""
Message selectors: which messages a consumer wants, in SQL-like words.

    lexer -> parser -> evaluation      text -> tokens -> tree -> function
             fields                    what a name reads

A selector is compiled when a link attaches, and then evaluated once for each message:

    is_wanted = compile_selector("colour = 'red' AND JMSPriority > 5")
    is_wanted(message)

A JMS client cannot send our filters. So a selector may also carry a replay start, as one of the terms that it joins
with AND at its top level: ``extract_equal`` takes such a term out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from amqp_ext.message.sections import MessageView
from amqp_ext.selector import parser
from amqp_ext.selector.evaluation import NUMBERS, compile_condition, kind_of
from amqp_ext.selector.fields import Reference, resolve
from amqp_ext.selector.lexer import SelectorError, Syntax

MessageTest = Callable[[MessageView], bool]
"""Whether a message passes; raises ``CodecError`` if a section that it reads cannot be decoded."""


def compile_selector(text: str) -> MessageTest:
    """
    Compile a JMS selector (JMS 2.0 section 3.8.1): whether it is true for a message, neither false nor unknown.

    An empty text is no selector: it matches every message (section 3.8.1.1, "null or an empty string").

    Raises:
        SelectorError: The text is not a selector.
    """
    if not text.strip():
        return lambda message: True
    evaluate = compile_condition(parser.parse(text), Syntax.JMS)
    return lambda message: evaluate(message) is True


def compile_sql_filter(text: str) -> MessageTest:
    """
    Compile an ``amqp:sql-filter`` (0x120, OASIS "AMQP Filter Expressions" section 6), as ``compile_selector`` does.

    The language is RabbitMQ's, except that UTC() is refused: a log read twice should give the same messages twice.

    Raises:
        SelectorError: The text is not a filter.
    """
    evaluate = compile_condition(parser.parse(text, Syntax.SQL), Syntax.SQL)
    return lambda message: evaluate(message) is True


@dataclass(frozen=True, slots=True)
class Equation:
    """``identifier operator literal``, turned so that the identifier is on the left."""

    reference: Reference
    operator: str
    value: parser.Value
    position: int


@dataclass(frozen=True, slots=True)
class Term:
    """One of the conditions a selector joins with AND at its top level. Its types are not checked yet."""

    text: str
    node: parser.Node = field(repr=False)

    @property
    def comparison(self) -> Equation | None:
        """The term as a comparison of one identifier with one literal, or None if it is anything else."""
        if not isinstance(self.node, parser.Comparison):
            return None
        for operator, one, other in (
            (self.node.operator, self.node.left, self.node.right),
            (_MIRRORED[self.node.operator], self.node.right, self.node.left),
        ):
            value = _literal(other)
            if isinstance(one, parser.Identifier) and value is not None:
                return Equation(one.reference, operator, value, self.node.start)
        return None

    def reads(self, reference: Reference) -> bool:
        """Whether the term reads this part of the message anywhere."""
        return any(identifier.reference == reference for identifier in parser.identifiers(self.node))


_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _literal(node: parser.Node) -> parser.Value | None:
    if isinstance(node, parser.Literal):
        return node.value
    if isinstance(node, parser.Sign) and isinstance(node.operand, parser.Literal):
        value = node.operand.value
        if kind_of[type(value)] in NUMBERS:
            return -value if node.operator == "-" else value  # type: ignore[operator]  # a number
    return None


def split_conjunction(text: str) -> list[Term]:
    """
    The terms that a JMS selector joins with AND at its top level; the whole selector if it joins none.

    Parentheses around conjunctions are ignored: ``(a AND b) AND c`` has three terms.

    Raises:
        SelectorError: The text is not a selector.
    """
    terms: list[Term] = []
    waiting = [parser.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, parser.And):
            waiting.extend(reversed(node.terms))
            continue
        part = text[node.start : node.end]
        terms.append(Term(f"({part})" if isinstance(node, parser.Or) else part, node))
    return terms


class TermError(SelectorError):
    """A selector has the term that ``extract_equal`` takes out of it, but not where it can be taken out."""


def extract_equal(text: str, identifier: str) -> tuple[str | int | None, str | None]:
    """
    Take the term ``identifier = literal`` out of a JMS selector that is not empty.

    Returns:
        The literal, and the rest of the selector: ``(None, whole selector)`` if the identifier does not occur,
        ``(literal, None)`` if there is no other term.

    Raises:
        SelectorError: The text is not a selector.
        TermError: The identifier occurs twice, or elsewhere than in one top-level AND term with = and a string or an
            integer. Such a term cannot be honoured, and leaving it out would change the meaning of the selector.
    """
    wanted = resolve(identifier, Syntax.JMS, 0)
    found: list[Term] = []
    rest: list[Term] = []
    for term in split_conjunction(text):
        (found if term.reads(wanted) else rest).append(term)
    if len(found) > 1:
        raise TermError(f"expected {identifier} once, found it again", found[1].node.start)
    for term in rest:
        compile_condition(term.node, Syntax.JMS)
    if not found:
        return None, text
    equation = found[0].comparison
    if (
        equation is None
        or equation.operator != "="
        or isinstance(equation.value, bool)  # an int to Python
        or not isinstance(equation.value, str | int)
    ):
        raise TermError(
            f"expected {identifier} in one term of the form \"{identifier}\" = 'text', "
            f"joined to the others with AND, found {found[0].text}",
            found[0].node.start,
        )
    return equation.value, " AND ".join(term.text for term in rest) or None
