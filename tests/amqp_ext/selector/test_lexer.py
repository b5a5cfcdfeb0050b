"""Words of selectors: literals as Java writes them, names, and what is refused with a sentence."""

from __future__ import annotations

import inspect
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.selector.lexer import MAX_CHARACTERS, MAX_TOKENS, Kind, SelectorError, Syntax, tokenize
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

# --- Words of selectors ---------------------------------------------------------------------------------------------


def only(text: str, syntax: Syntax = Syntax.JMS) -> tuple[Kind, object]:
    """The one word in the text."""
    word, end = tokenize(text, syntax)
    assert end.kind is Kind.END
    return word.kind, word.value


# All four bases of integers, underscores and suffixes; points, exponents and hexadecimal floats; f rounds to 32 bits.
NUMBERS = {
    "57": 57, "0": 0, "9223372036854775807": 2**63 - 1, "9223372036854775807L": 2**63 - 1, "5l": 5,
    "18446744073709551615": 2**64 - 1, "1_000_000": 1_000_000, "0x1F": 31, "0XffL": 255, "017": 15, "0_17": 15,
    "00": 0, "0b101": 5, "0B1_1L": 3,
    "7.": 7.0, "95.7": 95.7, ".5": 0.5, "7E3": 7000.0, "57.9E2": 5790.0, "1.e1": 10.0, "2e-2": 0.02, "09.5": 9.5,
    "7d": 7.0, "7.5D": 7.5, "0.1f": 0.10000000149011612, "0x1.8p1": 3.0, "0x.8p0": 0.5, "1_0.2_5": 10.25,
}  # fmt: skip


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_are_those_of_java(text: str) -> None:
    """Each literal has the value, and the kind of number, that it has in Java."""
    kind, value = only(text)
    assert (kind, value, type(value)) == (Kind.NUMBER, NUMBERS[text], type(NUMBERS[text]))


@pytest.mark.parametrize(
    "text",
    [
        "089",
        "0x",
        "0b2",
        "12abc",
        "1.2.3",
        "5LL",
        "1__",
        "1_",
        "0x1_",
        "1e",
        "1e999",
        "1e39f",
        "18446744073709551616",
    ],
)
def test_malformed_numbers_are_refused_where_they_begin(text: str) -> None:
    """What Java would not take, or no double or 64-bit integer can hold, is an error at its start."""
    with pytest.raises(SelectorError) as refused:
        tokenize("a = " + text)
    assert refused.value.position == 4


# Letters of any script, underscores and currency signs start a name; digits and marks continue it.
NAMES = ["colour", "_x", "$price", "a1", "größe", "été", "価格", "€uro", "नमस्ते", "JMSType", "ANDY"]


@pytest.mark.parametrize(
    ("text", "syntax", "kind", "value"),
    [
        *[(name, Syntax.JMS, Kind.NAME, name) for name in NAMES],
        # A dot joins names; after amqp.annotation. hyphens do too, as Event Hubs clients write them.
        ("properties.message_id", Syntax.JMS, Kind.NAME, "properties.message_id"),
        ("amqp.annotation.x-opt-offset", Syntax.JMS, Kind.NAME, "amqp.annotation.x-opt-offset"),
        # Keywords ignore case.
        *[(word, Syntax.JMS, Kind.KEYWORD, word.upper()) for word in ("between", "Like", "nULL")],
        # A quote inside a string is written twice.
        ("'it''s'", Syntax.JMS, Kind.STRING, "it's"),
        ("''", Syntax.JMS, Kind.STRING, ""),
        ("''''", Syntax.JMS, Kind.STRING, "'"),
        # Double quotes, brackets, 0x and leading zeros mean different things in JMS and in SQL filters.
        ('"m.x-opt-y"', Syntax.JMS, Kind.QUOTED_NAME, "m.x-opt-y"),
        ('"a""b"', Syntax.JMS, Kind.QUOTED_NAME, 'a"b'),
        ('"text"', Syntax.SQL, Kind.STRING, "text"),
        ("[[[ key ]]]", Syntax.SQL, Kind.QUOTED_NAME, "[ key ]"),
        ("[]", Syntax.SQL, Kind.QUOTED_NAME, ""),
        ("0x0A0b", Syntax.SQL, Kind.BINARY, b"\x0a\x0b"),
        ("010", Syntax.SQL, Kind.NUMBER, 10),
    ],
)
def test_a_word_is_what_its_syntax_makes_of_it(text: str, syntax: Syntax, kind: Kind, value: object) -> None:
    """Names follow Java; quotes and brackets enclose strings and names."""
    assert only(text, syntax) == (kind, value)


@pytest.mark.parametrize(
    ("text", "syntax", "words"),
    [
        ("a = 1 AND.5 < b", Syntax.JMS, ["a", "=", 1, "AND", 0.5, "<", "b"]),
        ("m.x-opt", Syntax.JMS, ["m.x", "-", "opt"]),
        ("a != b % 2", Syntax.SQL, ["a", "!=", "b", "%", 2]),
    ],
)
def test_words_part_where_they_should(text: str, syntax: Syntax, words: list[object]) -> None:
    """A keyword and a number that begins with a point; a hyphen that is a minus; signs of SQL alone."""
    assert [word.value for word in tokenize(text, syntax)] == [*words, ""]


@pytest.mark.parametrize(
    ("text", "syntax", "sentence"),
    [
        (
            "a = 'red",
            Syntax.JMS,
            "expected a closing ' for the string that begins here, found none, at character 5",
        ),
        ('"m.x = 1', Syntax.JMS, 'expected a closing " for the quoted name that begins here'),
        ('"" = 1', Syntax.JMS, "expected a name between the quotes, found none"),
        ("a != 1", Syntax.JMS, "expected <> for 'not equal', found !=, at character 3 of the selector"),
        (
            "a = #",
            Syntax.JMS,
            "expected a name, a literal or an operator, found the character #, at character 5",
        ),
        ("a\u00a0= 1", Syntax.JMS, "found the character U+00A0"),
        ("a = 089", Syntax.JMS, "expected octal digits after the leading 0, found 089"),
        ("a = 1.2.3", Syntax.JMS, "expected a number, found 1.2.3"),
        ("[a = 1", Syntax.SQL, "expected a closing ] for the name that begins here"),
        ("a = 0xABC", Syntax.SQL, "expected an even number of hexadecimal digits after 0x"),
        ("UTC() > 1", Syntax.SQL, "UTC is reserved for a function this gateway does not have"),
    ],
)
def test_errors_are_sentences_with_a_place(text: str, syntax: Syntax, sentence: str) -> None:
    """Every refusal says what was found, what would be right, and where; it has the sentence and the index, too."""
    with pytest.raises(SelectorError) as refused:
        tokenize(text, syntax)
    error = refused.value
    assert sentence in str(error) == f"{error.reason}, at character {error.position + 1} of the selector"


def test_the_limits_are_the_documented_ones() -> None:
    """The longest text and the most words are taken; one more is refused."""
    assert len(tokenize("+" * MAX_TOKENS)) == MAX_TOKENS + 1
    assert len(tokenize("a" * MAX_CHARACTERS)) == 2
    with pytest.raises(SelectorError, match="more than 1000 words"):
        tokenize("+" * (MAX_TOKENS + 1))
    with pytest.raises(SelectorError, match="4097 characters, 4096 are allowed"):
        tokenize("a" * (MAX_CHARACTERS + 1))


@given(
    st.text(alphabet=st.sampled_from("aE_.019x'\"[]<>=!-+/*%(), \té#\x00") | st.characters()),
    st.sampled_from(Syntax),
)
def test_tokens_cover_the_text_in_order(text: str, syntax: Syntax) -> None:
    """Whatever the text, between and around the tokens lies white space and nothing else."""
    try:
        tokens = tokenize(text, syntax)
    except SelectorError as refused:
        assert 0 <= refused.position <= len(text)
        return
    position = 0
    for token in tokens:
        assert text[position : token.start].strip(" \t\f\r\n") == ""
        assert token.start < token.end or token.kind is Kind.END
        position = token.end
    assert position == len(text)


# --- The grammar ----------------------------------------------------------------------------------------------------


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


DEEPEST = [
    "(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH,
    "NOT " * MAX_DEPTH + "a",
    "-" * MAX_DEPTH + "1 = a",
    "(x OR x AND TRUE = " * MAX_DEPTH + "a" + ")" * MAX_DEPTH,
    "a = " + "(1 + 1 * " * MAX_DEPTH + "b" + ")" * MAX_DEPTH,
]


@pytest.mark.parametrize("text", DEEPEST)
def test_the_deepest_selector_leaves_the_stack_room(text: str) -> None:
    """It parses and compiles with a third of Python's usual stack to spare; one level more is refused."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 670)
    try:
        compile_selector(text)
        split_conjunction(text)
    finally:
        sys.setrecursionlimit(limit)
    with pytest.raises(SelectorError, match="nests more than 64 deep"):
        parse(f"NOT ({text})")


def test_long_chains_are_not_deep() -> None:
    """Hundreds of terms joined by one operator count as one level."""
    assert isinstance(parse(" OR ".join(["a"] * 400)), Or)
    assert isinstance(parse(" AND ".join(["a"] * 400)), And)
    assert isinstance(parse("+".join(["1"] * 400) + "= a"), Comparison)
