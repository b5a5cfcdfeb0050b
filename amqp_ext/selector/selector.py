"""
Message selectors: which messages a consumer wants, in SQL-like words.

    lexer -> parser -> evaluation      text -> tokens -> tree -> function
             ast       values          the tree's shapes; comparing and adding values
             fields    like            what a name reads; the LIKE matcher
    terms                              a selector taken apart at its top level

A selector is compiled when a link attaches and then asked once a message:

    wanted = compile_selector("colour = 'red' AND JMSPriority > 5")
    wanted.matches(message)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from amqp_ext.selector.ast import Node, identifiers
from amqp_ext.selector.evaluation import Evaluator, compile_condition
from amqp_ext.selector.fields import SelectorMessage
from amqp_ext.selector.lexer import Syntax
from amqp_ext.selector.parser import parse


@dataclass(frozen=True, slots=True)
class Selector:
    """A compiled selector: immutable, equal to any other of the same text and syntax."""

    text: str
    identifiers: frozenset[str]
    """The names it reads, as written but without quotes."""
    syntax: Syntax = Syntax.JMS
    _evaluate: Evaluator = field(kw_only=True, repr=False, compare=False)

    def matches(self, message: SelectorMessage) -> bool:
        """
        Whether the selector is true for this message; false and unknown both say no.

        Raises:
            CodecError: A section that is asked for cannot be decoded.
        """
        return self._evaluate(message) is True


def compile_selector(text: str) -> Selector:
    """
    Compile a JMS selector (JMS 2.0 section 3.8.1).

    An empty text is no selector: it matches every message (section 3.8.1.1, "null or an empty string").

    Raises:
        SelectorError: It is none.
    """
    if not text.strip():
        return Selector(text, frozenset(), _evaluate=lambda message: True)
    return selector_of(text, parse(text), Syntax.JMS)


def compile_sql_filter(text: str) -> Selector:
    """
    Compile an ``amqp:sql-filter`` (0x120, OASIS "AMQP Filter Expressions" section 6).

    The language is RabbitMQ's, except that UTC() is refused: a log read twice should give the same twice.

    Raises:
        SelectorError: It is none.
    """
    return selector_of(text, parse(text, Syntax.SQL), Syntax.SQL)


def selector_of(text: str, node: Node, syntax: Syntax) -> Selector:
    """
    A selector of a tree.

    Raises:
        SelectorError: The types cannot fit whatever a message holds.
    """
    names = frozenset(identifier.name for identifier in identifiers(node))
    return Selector(text, names, syntax, _evaluate=compile_condition(node, syntax))
