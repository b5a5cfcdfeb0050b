"""Selectors: their tokens, their grammar, their terms, and what names refer to."""

from __future__ import annotations

import inspect
import sys
from dataclasses import fields, is_dataclass
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Symbol, Timestamp, UByte, ULong
from amqp_ext.message.sections import MessageView, bare_offset
from amqp_ext.selector.fields import PROPERTIES_FIELDS, Reference, reader, resolve
from amqp_ext.selector.lexer import MAX_CHARACTERS, MAX_TOKENS, Kind, SelectorError, Syntax, tokenize
from amqp_ext.selector.parser import MAX_DEPTH, And, Comparison, Or, parse
from amqp_ext.selector.selector import compile_selector, compile_sql_filter, extract_equal, split_conjunction
from tests.amqp_ext.selector.examples import message
from tests.support.messages import data, section

# --- Tokens ---------------------------------------------------------------------------------------------------------


def only(text: str, syntax: Syntax = Syntax.JMS) -> tuple[Kind, object]:
    """The kind and value of the only token in the text."""
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
    """A number that Java would refuse, or that exceeds double or 64 bits, is an error at its start."""
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
    """Every error says what was found, what was expected, and where; it also has the reason and position apart."""
    with pytest.raises(SelectorError) as refused:
        tokenize(text, syntax)
    error = refused.value
    assert sentence in str(error) == f"{error.reason}, at character {error.position + 1} of the selector"


def test_the_limits_are_the_documented_ones() -> None:
    """The longest text and the most tokens are accepted; one more is refused."""
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
    """In any text, there is only white space between and around the tokens."""
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


def tree(part: object) -> object:
    """A part of a parsed selector, without its places in the text."""
    if isinstance(part, tuple):
        return [tree(each) for each in part]
    if not is_dataclass(part):
        return part
    names = [field.name for field in fields(part) if field.name not in ("start", "end")]
    return type(part), [tree(getattr(part, name)) for name in names]


@pytest.mark.parametrize(
    ("text", "grouped"),
    [
        ("a OR b AND NOT c", "a OR (b AND (NOT c))"),
        ("NOT a = 1", "NOT (a = 1)"),
        ("NOT NOT a", "NOT (NOT a)"),
        ("a + 2 * b = c - 1 - d", "(a + (2 * b)) = (c - 1 - d)"),
        ("a / b * c > -d", "(a / b * c) > (-d)"),
        ("- - a = + b", "(-(-a)) = (+b)"),
        ("a BETWEEN 1 AND 2 AND b", "(a BETWEEN 1 AND 2) AND b"),
        ("a NOT BETWEEN b + 1 AND c", "(a NOT BETWEEN (b + 1) AND c)"),
        ("a NOT IN ('x')", "NOT (a IN ('x'))"),
        ("a NOT LIKE 'x%' ESCAPE '\\'", "NOT (a LIKE 'x%' ESCAPE '\\')"),
        ("a IS NULL OR b IS NOT NULL", "(a IS NULL) OR (NOT (b IS NULL))"),
        ("a not in ('x') and Not b Is nULL", "(NOT (a IN ('x'))) AND (NOT (b IS NULL))"),
        ("((((a))))", "a"),
        ("a\t=\r\n1\f", "a = 1"),
        ("a = 1 AND.5 < b", "(a = 1) AND (0.5 < b)"),
        ("x-opt > 1", "(x - opt) > 1"),
    ],
)
def test_precedence_is_that_of_the_specification(text: str, grouped: str) -> None:
    """
    Signs bind tightest, then * /, + -, comparisons, NOT, AND, OR; equal precedence goes left to right. Tests of
    evaluation show that parentheses mean what they should.
    """
    assert tree(parse(text)) == tree(parse(grouped))


def test_sql_filters_add_remainder_and_another_inequality() -> None:
    """``%`` binds like ``*`` and ``!=`` is ``<>``."""
    assert tree(parse("a % 2 * b != 1", Syntax.SQL)) == tree(parse("(a % 2 * b) <> 1", Syntax.SQL))


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
    """The deepest allowed selector compiles within 670 frames of Python's usual 1,000; one level more is refused."""
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


# --- The top-level AND terms of a selector, and the term that asks for a replay ---------------------------------------

START = "m.x-opt-replay-start"


def test_terms_are_split_at_the_top_level_only() -> None:
    """Top-level ANDs split terms, also within parentheses; ANDs inside OR, NOT and BETWEEN do not. Texts stay."""
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
    """A term that compares a name with a literal gives both, with the name on the left."""
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
    """Any other term has no comparison."""
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
    """The result is the literal, and a selector of the other terms, as they were written."""
    assert extract_equal(text, START) == (value, rest)


def test_what_is_left_selects_as_before() -> None:
    """The remaining selector evaluates the other terms only."""
    _, rest = extract_equal("(a = 1 OR b = 2) AND \"m.x-opt-replay-start\" = 'last' AND c > 3", START)
    assert rest is not None
    selector = compile_selector(rest)
    assert selector(message(b=2, c=4))
    assert not selector(message(b=2, c=3))
    assert not selector(message(a=2, c=4))


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
            "expected a number (only = and <> compare others), found a string, at character 38",
        ),
    ],
)
def test_a_term_that_cannot_be_honoured_is_refused(text: str, sentence: str) -> None:
    """
    A start under OR or NOT, compared otherwise or given twice is an error, as are other terms' errors: those point into
    the text that the client sent.
    """
    with pytest.raises(SelectorError) as refused:
        extract_equal(text, START)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("text", ["", "  \t\n"])
def test_an_empty_jms_selector_matches_everything(text: str) -> None:
    """An empty selector is the same as none in JMS; an empty SQL filter is an error."""
    assert compile_selector(text)(message())
    with pytest.raises(SelectorError, match="found the end of the selector"):
        compile_sql_filter(text)


# --- What names refer to: JMS headers, AMQP fields, annotations, application properties -------------------------------


@pytest.mark.parametrize(
    ("header", "field", "value", "shown"),
    [
        ("JMSMessageID", "message_id", "ID:1", "ID:1"),
        ("JMSMessageID", "message_id", ULong(42), "ID:AMQP_ULONG:42"),
        ("JMSMessageID", "message_id", b"\x0a\xff", "ID:AMQP_BINARY:0AFF"),
        ("JMSCorrelationID", "correlation_id", "order 7", "order 7"),
        ("JMSCorrelationID", "correlation_id", UUID(int=7), f"ID:AMQP_UUID:{UUID(int=7)}"),
        ("JMSType", "subject", "car", "car"),
        ("JMSDestination", "to", "queue://a", "queue://a"),
        ("JMSReplyTo", "reply_to", "queue://b", "queue://b"),
        ("JMSTimestamp", "creation_time", Timestamp(1_735_689_600_000), 1_735_689_600_000),
        ("JMSExpiration", "absolute_expiry_time", Timestamp(5), 5),
        ("JMSXGroupID", "group_id", "g", "g"),
        ("JMSXGroupSeq", "group_sequence", 3, 3),
        ("JMSXUserID", "user_id", "josé".encode(), "josé"),
        ("JMSXUserID", "user_id", b"\xff", None),
    ],
)
def test_jms_headers_read_their_amqp_fields(header: str, field: str, value: Any, shown: Any) -> None:
    """Each JMS header has the value that a JMS client would show for its AMQP field, or NULL."""
    read = reader(resolve(header, Syntax.JMS, 0))
    assert read(message(properties={field: value})) == shown
    assert read(message()) is None


@pytest.mark.parametrize(
    ("name", "field", "value", "shown", "default"),
    [
        ("JMSPriority", "priority", 9, 9, 4),
        ("JMSDeliveryMode", "durable", True, "PERSISTENT", "NON_PERSISTENT"),
        ("JMSDeliveryMode", "durable", False, "NON_PERSISTENT", "NON_PERSISTENT"),
        ("JMSRedelivered", "delivery_count", 2, True, False),
        ("JMSXDeliveryCount", "delivery_count", 2, 3, 1),
        ("header.durable", "durable", True, True, False),
        ("header.ttl", "ttl_ms", 100, 100, None),
    ],
)
def test_header_fields_have_their_amqp_defaults(
    name: str, field: str, value: Any, shown: Any, default: Any
) -> None:
    """A header field that is absent has the default of AMQP 1.0."""
    read = reader(resolve(name, Syntax.JMS, 0))
    assert read(message(header={field: value})) == shown
    assert read(message()) == default


@pytest.mark.parametrize("field", PROPERTIES_FIELDS)
def test_every_properties_field_has_its_names(field: str) -> None:
    """properties.x, p.x (SQL filters) and amqp.x (Apache's form) refer to the same field."""
    for syntax, prefixes in {Syntax.SQL: ("properties", "p"), Syntax.JMS: ("properties", "amqp")}.items():
        for prefix in prefixes:
            assert resolve(f"{prefix}.{field}", syntax, 0) == Reference("properties", field)


def test_annotations_are_read_under_any_of_their_names() -> None:
    """Artemis' form, Event Hubs' form quoted and bare, and the SQL form refer to the same annotation."""
    enqueued = message(annotations={Symbol("x-opt-enqueued-time"): Timestamp(1_735_689_600_000)})
    for text in (
        '"m.x-opt-enqueued-time" >= 1735689600000',
        '"amqp.annotation.x-opt-enqueued-time" >= 1735689600000',
        "amqp.annotation.x-opt-enqueued-time >= 1735689600000",
        '"message_annotations.x-opt-enqueued-time" = 1735689600000',
    ):
        assert compile_selector(text)(enqueued)
        assert not compile_selector(text)(message())
    assert compile_sql_filter("m.x IS NOT NULL")(message(annotations={Symbol("x"): 1}))


def test_plain_and_quoted_names_are_application_properties() -> None:
    """Any other name is an application property, with dots and blanks if it is quoted."""
    assert resolve("colour", Syntax.JMS, 0) == Reference("application_properties", "colour")
    assert compile_selector('"order id" = 5 AND "order.id" = 6')(message(**{"order id": 5, "order.id": 6}))
    assert compile_selector("a.b = 1 AND p.to = 2")(message(**{"a.b": 1, "p.to": 2}))
    assert compile_selector('"application_properties.JMSType" = 1')(message(JMSType=1))


def test_sql_filters_know_no_jms_names() -> None:
    """In an SQL filter JMSPriority is an application property, and brackets always name one."""
    assert compile_sql_filter("JMSPriority = 'x'")(message(JMSPriority="x"))
    assert compile_sql_filter("[p.to] = TRUE AND p.to = 'q'")(
        message(properties={"to": "q"}, **{"p.to": True})
    )
    assert compile_sql_filter("a.key = 1 AND application_properties.key = 1 AND [NOT] = 2")(
        message(key=1, NOT=2)
    )


@pytest.mark.parametrize(
    ("name", "syntax"),
    [
        ("header.colour", Syntax.JMS),
        ("properties.message-id", Syntax.JMS),
        ("amqp.annotation.", Syntax.JMS),
        ("amqp.colour", Syntax.JMS),
        ("my.key", Syntax.SQL),
        ("footer.x", Syntax.SQL),
        ("h.invalid", Syntax.SQL),
    ],
)
def test_fields_that_do_not_exist_are_refused(name: str, syntax: Syntax) -> None:
    """The name of a field that its section does not have is an error with its place, rather than always NULL."""
    with pytest.raises(SelectorError, match=f"found {name.split('.', maxsplit=1)[0]}") as refused:
        resolve(name, syntax, 7)
    assert refused.value.position == 7


def test_an_encoded_message_can_be_asked() -> None:
    """A view of an encoded message answers selectors of both syntaxes."""
    content = section(0x70, [True, UByte(7)]) + section(0x72, {Symbol("x-opt-a"): 1})
    content += section(0x73, ["id-1", None, "queue://q"]) + section(0x74, {"colour": "red"}) + data(1)
    view = MessageView(content, bare_offset(content))
    assert compile_selector(
        "JMSDeliveryMode = 'PERSISTENT' AND JMSPriority = 7 AND \"m.x-opt-a\" = 1 AND JMSMessageID = 'id-1' "
        "AND JMSDestination LIKE 'queue:%' AND colour IN ('red', 'blue') AND JMSType IS NULL"
    )(view)
    assert compile_sql_filter("h.priority > 6 AND p.message_id = 'id-1' AND colour > 'blue'")(view)
