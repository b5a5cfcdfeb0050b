"""Taking a selector apart: its top-level AND terms, and the one that asks for a replay."""

from __future__ import annotations

import pytest

from amqp_ext.selector.fields import Reference
from amqp_ext.selector.lexer import SelectorError
from amqp_ext.selector.selector import compile_selector, compile_sql_filter, extract_equal, split_conjunction
from tests.amqp_ext.selector.examples import message

START = "m.x-opt-replay-start"


def test_terms_are_split_at_the_top_level_only() -> None:
    """ANDs inside OR, NOT and BETWEEN stay, those in parentheses do not; texts stay as written."""
    text = "(a = 1 AND b BETWEEN 2 AND 3) AND (c OR d AND e) AND NOT (f AND g) AND  h = 'x  y'"
    assert [term.text for term in split_conjunction(text)] == [
        "a = 1",
        "b BETWEEN 2 AND 3",
        "(c OR d AND e)",
        "NOT (f AND g)",
        "h = 'x  y'",
    ]
    assert [term.text for term in split_conjunction("a OR b")] == ["(a OR b)"]


@pytest.mark.parametrize(
    ("text", "reference", "operator", "value"),
    [
        ("colour = 'red'", Reference("application_properties", "colour"), "=", "red"),
        ("amqp.annotation.x-opt-offset > '-1'", Reference("message_annotations", "x-opt-offset"), ">", "-1"),
        ("'5' <= \"m.x-opt-offset\"", Reference("message_annotations", "x-opt-offset"), ">=", "5"),
        ("1 > a", Reference("application_properties", "a"), "<", 1),
        ("a = -5", Reference("application_properties", "a"), "=", -5),
        ("a <> TRUE", Reference("application_properties", "a"), "<>", True),
    ],
)
def test_a_simple_comparison_is_readable(
    text: str, reference: Reference, operator: str, value: object
) -> None:
    """A term that compares a name with a literal shows both, the name first, whatever their types."""
    (term,) = split_conjunction(text)
    assert term.comparison is not None
    assert (term.comparison.reference, term.comparison.operator, term.comparison.value) == (
        reference,
        operator,
        value,
    )


@pytest.mark.parametrize(
    "text",
    ["a", "a = b", "a = 1 + 1", "a LIKE 'x'", "NOT a = 1", "a IN ('x')", "a = -b", "a = -TRUE", "1 = 1"],
)
def test_other_terms_are_no_simple_comparisons(text: str) -> None:
    """Anything but a name compared with a literal has no comparison to show."""
    (term,) = split_conjunction(text)
    assert term.comparison is None


@pytest.mark.parametrize(
    ("text", "value", "rest"),
    [
        ("\"m.x-opt-replay-start\" = 'beginning'", "beginning", None),
        ("'beginning' = \"m.x-opt-replay-start\"", "beginning", None),
        ("(\"m.x-opt-replay-start\" = '10m')", "10m", None),
        ("amqp.annotation.x-opt-replay-start = 123", 123, None),
        ("\"m.x-opt-replay-start\" = 'last' AND colour = 'red'", "last", "colour = 'red'"),
        (
            "a = 1 AND (\"m.x-opt-replay-start\" = 'last' AND (b OR c)) AND d = 2",
            "last",
            "a = 1 AND (b OR c) AND d = 2",
        ),
        ("colour = 'red'", None, "colour = 'red'"),
        ("a OR b", None, "a OR b"),
    ],
)
def test_one_equation_can_be_taken_out(text: str, value: str | int | None, rest: str | None) -> None:
    """The literal comes back, and a selector of the other terms in their own words."""
    found, selector = extract_equal(text, START)
    assert found == value
    assert (None if selector is None else selector.text) == rest


def test_what_is_left_selects_as_before() -> None:
    """The rest evaluates without the term, and no longer reads its annotation."""
    _, selector = extract_equal("(a = 1 OR b = 2) AND \"m.x-opt-replay-start\" = 'last' AND c > 3", START)
    assert selector is not None
    assert selector.matches(message(b=2, c=4))
    assert not selector.matches(message(b=2, c=3))
    assert not selector.matches(message(a=2, c=4))
    assert compile_selector(selector.text).matches(message(b=2, c=4))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "\"m.x-opt-replay-start\" = 'a' OR b",
            "joined to the others with AND, found (\"m.x-opt-replay-start\" = 'a' OR b)",
        ),
        (
            "b AND NOT \"m.x-opt-replay-start\" = 'a'",
            "found NOT \"m.x-opt-replay-start\" = 'a', at character 7",
        ),
        ('"m.x-opt-replay-start" > 5', "expected m.x-opt-replay-start in one term of the form"),
        ('"m.x-opt-replay-start" = TRUE', "in one term of the form \"m.x-opt-replay-start\" = 'text'"),
        ('"m.x-opt-replay-start" = 1.5', "in one term of the form"),
        ('"m.x-opt-replay-start" = a', "in one term of the form"),
        (
            "\"m.x-opt-replay-start\" = 'a' AND \"m.x-opt-replay-start\" = 'a'",
            "once, found it again, at character 34",
        ),
        ("\"m.x-opt-replay-start\" = 'a' AND b >", "expected a value"),
        (
            "\"m.x-opt-replay-start\" = 'a' AND b > 'c'",
            "expected a number (only = and <> compare others), found a string",
        ),
    ],
)
def test_a_term_that_cannot_be_honoured_is_refused(text: str, sentence: str) -> None:
    """A start under OR or NOT, compared otherwise or given twice is an error, as are other terms' errors."""
    with pytest.raises(SelectorError) as refused:
        extract_equal(text, START)
    assert sentence in str(refused.value)


def test_positions_in_the_rest_are_those_of_the_whole() -> None:
    """An error in a term that stays points into the text the client sent."""
    text = "\"m.x-opt-replay-start\" = 'a' AND b > 'c'"
    with pytest.raises(SelectorError) as refused:
        extract_equal(text, START)
    assert text[refused.value.position :] == "'c'"


@pytest.mark.parametrize("text", ["", "  \t\n"])
def test_an_empty_jms_selector_matches_everything(text: str) -> None:
    """JMS says that an empty selector is none, and so no start; an empty SQL filter is an error."""
    assert compile_selector(text).matches(message())
    value, selector = extract_equal(text, START)
    assert value is None
    assert selector is not None and selector.matches(message())
    with pytest.raises(SelectorError, match="found the end of the selector"):
        compile_sql_filter(text)
