"""The grammar: precedence, the shape of trees, and sentences for what does not fit."""

from __future__ import annotations

import inspect
import sys

import pytest

from amqp_ext.selector.lexer import SelectorError, Syntax
from amqp_ext.selector.parser import (
    MAX_DEPTH,
    And,
    Arithmetic,
    Between,
    Comparison,
    In,
    IsNull,
    Like,
    Not,
    Or,
    Sign,
    parse,
)
from amqp_ext.selector.selector import compile_selector, split_conjunction


def shape(text: str, syntax: Syntax = Syntax.JMS) -> str:
    """The tree as text with every parenthesis written out."""
    return _shape(parse(text, syntax))


def _shape(node: object) -> str:
    match node:
        case Or(terms=terms):
            return "(" + " OR ".join(_shape(term) for term in terms) + ")"
        case And(terms=terms):
            return "(" + " AND ".join(_shape(term) for term in terms) + ")"
        case Not(operand=operand):
            return f"NOT[{_shape(operand)}]"
        case Comparison(operator=operator, left=left, right=right):
            return f"{_shape(left)}{operator}{_shape(right)}"
        case Between(operand=operand, low=low, high=high, negated=negated):
            return f"{'NOT-' if negated else ''}BETWEEN[{_shape(operand)};{_shape(low)};{_shape(high)}]"
        case In(operand=operand, choices=choices):
            return f"IN[{_shape(operand)};{','.join(_shape(choice) for choice in choices)}]"
        case Like(operand=operand, pattern=pattern, escape=escape):
            return f"LIKE[{_shape(operand)};{pattern};{escape}]"
        case IsNull(operand=operand):
            return f"NULL[{_shape(operand)}]"
        case Arithmetic(first=first, rest=rest):
            return (
                "(" + _shape(first) + "".join(operator + _shape(operand) for operator, operand in rest) + ")"
            )
        case Sign(operator=operator, operand=operand):
            return f"{operator}{_shape(operand)}"
    return str(getattr(node, "name", None) or repr(getattr(node, "value", None)))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a OR b AND NOT c", "(a OR (b AND NOT[c]))"),
        ("NOT a = 1", "NOT[a=1]"),
        ("NOT NOT a", "NOT[NOT[a]]"),
        ("(a OR b) AND c", "((a OR b) AND c)"),
        ("a + 2 * b = c - 1 - d", "(a+(2*b))=(c-1-d)"),
        ("a / b * c > -d", "(a/b*c)>-d"),
        ("- - a = + b", "--a=+b"),
        ("(a + b) * c = 1", "((a+b)*c)=1"),
        ("a BETWEEN 1 AND 2 AND b", "(BETWEEN[a;1;2] AND b)"),
        ("a NOT BETWEEN b + 1 AND c", "NOT-BETWEEN[a;(b+1);c]"),
        ("a IN ('x', 'y')", "IN[a;'x','y']"),
        ("a NOT IN ('x')", "NOT[IN[a;'x']]"),
        ("a LIKE 'x%'", "LIKE[a;x%;None]"),
        ("a NOT LIKE 'x%' ESCAPE '\\'", "NOT[LIKE[a;x%;\\]]"),
        ("a IS NULL OR b IS NOT NULL", "(NULL[a] OR NOT[NULL[b]])"),
        ("(a = 1) = TRUE", "a=1=True"),
        ("a not in ('x') and Not b Is nULL", "(NOT[IN[a;'x']] AND NOT[NULL[b]])"),
        ("((((a))))", "a"),
        ("a\t=\r\n1\f", "a=1"),
    ],
)
def test_precedence_is_that_of_the_specification(text: str, tree: str) -> None:
    """Signs bind tightest, then * /, + -, comparisons, NOT, AND, OR; equal precedence goes left to right."""
    assert shape(text) == tree


def test_sql_filters_add_remainder_and_another_inequality() -> None:
    """``%`` binds like ``*`` and ``!=`` is ``<>``."""
    assert shape("a % 2 * b != 1", Syntax.SQL) == "(a%2*b)<>1"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "a =",
            "(a name, a literal or a parenthesis) after =, found the end of the selector, at character 4",
        ),
        (
            "= 1",
            "expected a value (a name, a literal or a parenthesis), found =, at character 1 of the selector",
        ),
        ("a = = 1", "after =, found =, at character 5"),
        ("a = 1 b", "expected AND, OR or the end of the selector after 1, found b, at character 7"),
        ("a = 1)", "expected AND, OR or the end of the selector after 1, found )"),
        ("(a = 1", "expected a closing parenthesis after 1, found the end of the selector"),
        ("a = b = c", "expected AND or OR (comparisons do not chain) after b, found ="),
        ("a NOT 5", "expected BETWEEN, IN or LIKE after NOT, found 5"),
        ("a BETWEEN 1 OR 2", "expected AND and the upper bound of BETWEEN after 1, found OR"),
        ("a IN 'x'", "expected a list in parentheses after IN, found 'x'"),
        ("a IN ()", "expected a value (a name, a literal or a parenthesis) after (, found )"),
        ("a IN ('x' 'y')", "expected a comma or a closing parenthesis after 'x', found 'y'"),
        ("a LIKE b", "expected a pattern in quotes after LIKE, found b"),
        ("a LIKE 'x' ESCAPE y", "expected one character in quotes after ESCAPE, found y"),
        ("a IS 5", "expected NULL or NOT NULL after IS, found 5"),
        ("a IS NOT 5", "expected NULL after NOT, found 5"),
        ("a + 1 IS NULL", "expected a name before IS, found a + 1, at character 1"),
        (
            "upper(a) = 'X'",
            "expected a value, found a call of upper: selectors have no functions, at character 1",
        ),
        ("NULL = a", "found NULL"),
        (
            "header.colour = 1",
            "expected a header field (durable, priority, ttl, first_acquirer, delivery_count)",
        ),
        ("a AND properties.id = 1", "found properties.id, at character 7"),
    ],
)
def test_errors_say_what_was_found_and_what_was_expected(text: str, sentence: str) -> None:
    """A selector that does not parse is refused with one sentence that a person can act on."""
    with pytest.raises(SelectorError) as refused:
        parse(text)
    assert sentence in str(refused.value)


def test_the_error_carries_an_index_and_a_reason() -> None:
    """Callers that show the text get the index of the culprit and the sentence without its place."""
    with pytest.raises(SelectorError) as refused:
        parse("a = 1 b")
    assert refused.value.position == 6
    assert refused.value.reason == "expected AND, OR or the end of the selector after 1, found b"


DEEPEST = [
    "(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH,
    "NOT " * MAX_DEPTH + "a",
    "-" * MAX_DEPTH + "1 = a",
    "(x OR x AND TRUE = " * MAX_DEPTH + "a" + ")" * MAX_DEPTH,
    "a = " + "(1 + 1 * " * MAX_DEPTH + "b" + ")" * MAX_DEPTH,
]


@pytest.mark.parametrize("text", DEEPEST)
def test_the_deepest_selector_leaves_the_stack_room(text: str) -> None:
    """A selector of the allowed depth parses and compiles with a third of Python's usual stack to spare."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 670)
    try:
        compile_selector(text)
        split_conjunction(text)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize("text", DEEPEST)
def test_one_level_more_is_refused(text: str) -> None:
    """Beyond the allowed depth a selector is refused, not left to exhaust the stack."""
    deeper = "NOT (" + text + ")"
    with pytest.raises(SelectorError, match="nests more than 64 deep"):
        parse(deeper)


def test_long_chains_are_not_deep() -> None:
    """Hundreds of terms joined by one operator count as one level."""
    assert isinstance(parse(" OR ".join(["a"] * 400)), Or)
    assert isinstance(parse(" AND ".join(["a"] * 400)), And)
    assert isinstance(parse("+".join(["1"] * 400) + "= a"), Comparison)
