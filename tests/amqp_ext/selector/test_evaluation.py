"""What selectors mean, and the bound on the cost of evaluating any selector on any message."""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp_ext.codec import Char, Decimal32, Float, Symbol, UInt, ULong, encode
from amqp_ext.message.sections import (
    MOST_STEPS,
    MalformedMessage,
    MessageView,
    TooMuchWork,
    bare_offset,
    read_header,
)
from amqp_ext.selector import evaluation
from amqp_ext.selector.evaluation import QUICK_CHARACTERS, TRIED_CHARACTERS, compile_like
from amqp_ext.selector.lexer import SelectorError
from amqp_ext.selector.selector import compile_selector, compile_sql_filter
from tests.amqp_ext.selector.examples import like, message
from tests.support.chance import times
from tests.support.messages import annotated, data, section, trade

# --- What selectors mean: examples, and a naive interpreter -----------------------------------------------------------


def truth(text: str, **values: Any) -> bool | None:
    """The three-valued result of a condition: None (unknown) if neither it nor its negation matches."""
    if compile_selector(text)(message(**values)):
        return True
    return False if compile_selector(f"NOT ({text})")(message(**values)) else None


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        # absent values are unknown; strings and booleans have no order; wrong types in IN and LIKE are unknown
        ("a = 5", {}, None),
        ("a >= 5.5", {"a": True}, False),
        ("a IN ('5', '6')", {"a": 5}, None),
        ("a LIKE '_'", {"a": 5}, None),
        ("a", {"a": 5}, None),
        # names are case-sensitive; an escape
        ("a = 5", {"A": 5}, None),
        ("a LIKE '\\_%' ESCAPE '\\'", {"a": "_foo"}, True),
        ("a LIKE '\\_%' ESCAPE '\\'", {"a": "bar"}, False),
        # different types and similar ones
        ("a = 'x'", {"a": b"x"}, False),
        ("a = b", {"a": UUID(int=1), "b": UUID(int=1)}, True),
        ("a < b", {"a": UUID(int=1), "b": UUID(int=2)}, False),
        ("a = b", {"a": Decimal32(b"1234"), "b": b"1234"}, False),
        ("a = 'x'", {"a": Symbol("x")}, True),
        ("a LIKE '_'", {"a": Char("x")}, True),
        ("a IN ('x')", {"a": Symbol("x")}, True),
        ("a IN (1, 2.5)", {"a": UInt(1)}, True),
        ("a IN (1, 2.5)", {"a": 2.5}, True),
        # exact and approximate numbers
        ("a = 5", {"a": ULong(5)}, True),
        ("a = 5.0", {"a": UInt(5)}, True),
        ("a = 5", {"a": Float(5.0)}, True),
        ("a BETWEEN 4.5 AND 5", {"a": 5}, True),
        ("a = 9007199254740993.0", {"a": 9007199254740993}, True),
        ("a = 9007199254740992", {"a": 9007199254740993}, False),
        ("a = 18446744073709551615", {"a": ULong(2**64 - 1)}, True),
        ("a = -9223372036854775808", {"a": -(2**63)}, True),
        ("a = 0.1f", {"a": Float(0.10000000149011612)}, True),
        ("a = a", {"a": float("nan")}, False),
        ("a <> a", {"a": float("nan")}, True),
        # arithmetic
        ("+a = -5", {"a": -5}, True),
        ("6 - -a = 11", {"a": 5}, True),
        ("a / 2 = -2", {"a": -5}, True),
        ("a / 2.0 = 2.5", {"a": 5}, True),
        ("a / 0.0 > 0", {"a": 5}, None),
        ("a * a > 0", {"a": 2**40}, None),
        ("a + 1.0 > 0", {"a": 2**64 - 1}, True),
        ("a * 1e308 * 10 > 0", {"a": 1.0}, True),
        # constants
        ("1 / 0 = 1", {}, None),
        ("FALSE OR FALSE", {}, False),
        ("2 BETWEEN 1 AND 3", {}, True),
        ("'lose' LIKE 'l_se'", {}, True),
        ("(a = 1) = b", {"a": 1, "b": True}, True),
    ],
    ids=repr,
)
def test_values_compare_and_add_up_as_specified(
    text: str, values: dict[str, Any], expected: bool | None
) -> None:
    """Examples for Jakarta Messaging 3.1, section 3.8.1: AMQP's types, Java's promotion of numbers, constants."""
    assert truth(text, **values) is expected


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("weight / 2 = 2.5", {"weight": 5}, True),
        ("weight % 2 = 1", {"weight": 5}, True),
        ("-7 % 5 = -2", {}, True),
        ("7 % -5 = 2", {}, True),
        ("7 % zero = 0", {"zero": 0}, False),
        ("7.5 % 2 = 1", {}, False),
        ("country > 'DE'", {"country": Symbol("UK")}, True),
        ('country >= "UK"', {"country": "UK"}, True),
        ("'Zurich' > city", {"city": "London"}, True),
        ("country > 1", {"country": "UK"}, False),
        ("country BETWEEN 'A' AND 'Z'", {"country": "UK"}, True),
        ("data > 0xAA AND data = 0xBB", {"data": b"\xbb"}, True),
        ("data IN (0x00, 0xBB)", {"data": b"\xbb"}, True),
        ("weight != 4", {"weight": 5}, True),
        ("weight NOT LIKE '5'", {"weight": 5}, False),
        ("weight = 010", {"weight": 10}, True),
        ("10.0 IN (TRUE, weight)", {"weight": 10}, True),
        ("price * quantity * (1 - discount) > 500", {"price": 10.5, "quantity": 100, "discount": 0.25}, True),
        ("NOT (absent IN ('v1', 'v2') AND premium)", {"premium": False}, True),
        ("percentage OR active", {"percentage": 75, "active": True}, True),
        ("h.priority = 4", {}, True),
    ],
    ids=repr,
)
def test_sql_filters_mean_what_they_mean_in_rabbitmq(
    text: str, values: dict[str, Any], expected: bool
) -> None:
    """Division is real, % is the remainder, strings and binary have an order, as RabbitMQ's tests say."""
    assert compile_sql_filter(text)(message(**values)) is expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("5", "expected a condition, found a number, at character 1"),
        ("'red'", "expected a condition, found a string"),
        ("a + 1", "expected a condition, found a number"),
        ("a = 1 AND 'x'", "expected a condition, found a string, at character 11"),
        ("NOT 5", "expected a condition"),
        ("a > 'red'", "expected a number (only = and <> compare others), found a string, at character 5"),
        ("a > TRUE", "expected a number (only = and <> compare others), found a boolean"),
        ("a BETWEEN 'a' AND 'z'", "expected a number (only = and <> compare others), found a string"),
        ("a + 'x' = 1", "expected a number, found a string, at character 5"),
        ("-TRUE = a", "expected a number, found a boolean"),
        ("(a = 1) + 1 = 2", "expected a number, found a boolean, at character 2"),
        ("5 LIKE 'x'", "expected a name or a string before LIKE, found a number"),
        ("a LIKE 'x!' ESCAPE '!'", "expected a character after the escape ! that ends the pattern 'x!'"),
        ("a LIKE 'x' ESCAPE '!!'", "expected one character after ESCAPE, found '!!', at character 1"),
    ],
)
def test_what_can_never_match_is_refused(text: str, sentence: str) -> None:
    """Types that cannot match any message are an error when the selector is compiled."""
    with pytest.raises(SelectorError) as refused:
        compile_selector(text)
    assert sentence in str(refused.value)


# A naive interpreter of expressions as nested tuples. It shares nothing with the compiler.

Number = int | float
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def write(node: Any) -> str:
    """The text of an expression, with all its parentheses."""
    match node:
        case ("literal", str(value)):
            return "'" + value.replace("'", "''") + "'"
        case ("literal", value):
            return str(value).upper() if isinstance(value, bool) else repr(value)
        case ("name", name):
            return str(name)
        case ("minus", operand):
            return f"(- {write(operand)})"
        case ("NOT", operand):
            return f"(NOT {write(operand)})"
        case ("between", negated, operand, low, high):
            return f"({write(operand)} {'NOT ' * negated}BETWEEN {write(low)} AND {write(high)})"
        case ("in", negated, operand, choices):
            return (
                f"({write(operand)} {'NOT ' * negated}IN ({', '.join(write(choice) for choice in choices)}))"
            )
        case ("like", negated, operand, pattern):
            return f"({write(operand)} {'NOT ' * negated}LIKE {write(pattern)})"
        case ("null", negated, operand):
            return f"({write(operand)} IS {'NOT ' * negated}NULL)"
        case (sign, left, right):
            return f"({write(left)} {sign} {write(right)})"
    raise AssertionError(node)


def is_number(value: Any) -> bool:
    """Whether a value is a number; booleans are not."""
    return type(value) in (int, float)


def compared(sign: str, left: Any, right: Any) -> bool | None:
    """The rules of comparison, one per line."""
    if left is None or right is None:
        return None
    if is_number(left) and is_number(right):
        if type(left) is not type(right):
            left, right = float(left), float(right)
        return COMPARE[sign](left, right)
    return type(left) is type(right) and sign in ("=", "<>") and COMPARE[sign](left, right)


def comparable(left: Any, right: Any) -> bool:
    """Whether values are of one type, or numbers."""
    return type(left) is type(right) or (is_number(left) and is_number(right))


def computed(sign: str, left: Any, right: Any) -> Number | None:
    """The rules of arithmetic."""
    if not is_number(left) or not is_number(right) or (sign == "/" and right == 0):
        return None
    result: Number
    if sign == "/":
        result = left / right if float in (type(left), type(right)) else abs(left) // abs(right)
        if type(result) is int and (left < 0) != (right < 0):
            result = -result
    else:
        result = {"+": operator.add, "-": operator.sub, "*": operator.mul}[sign](left, right)
    return result if type(result) is float or -(2**63) <= result < 2**64 else None


def negated_if(negate: bool, value: bool | None) -> bool | None:
    """The negation of a value if ``negate`` is true, else the value."""
    return value if value is None or not negate else not value


def joined(sign: str, left: Any, right: Any) -> bool | None:
    """AND or OR in three-valued logic."""
    decisive = sign == "OR"
    values = [value if isinstance(value, bool) else None for value in (left, right)]
    if decisive in values:
        return decisive
    return None if None in values else not decisive


def interpret(node: Any, values: dict[str, Any]) -> Any:
    """The value of an expression, by walking it."""
    match node:
        case ("literal", value):
            return value
        case ("name", name):
            return values.get(name)
        case ("minus", operand):
            return computed("-", 0, interpret(operand, values))
        case ("NOT", operand):
            value = interpret(operand, values)
            return not value if isinstance(value, bool) else None
        case ("between", negated, operand, low, high):
            value, least, most = (interpret(part, values) for part in (operand, low, high))
            if negated:
                return joined("OR", compared("<", value, least), compared(">", value, most))
            return joined("AND", compared(">=", value, least), compared("<=", value, most))
        case ("in", negated, operand, choices):
            result: bool | None = False
            value, among = interpret(operand, values), [interpret(choice, values) for choice in choices]
            if not any(comparable(value, choice) for choice in among):
                return None
            for choice in among:
                result = joined("OR", result, compared("=", value, choice))
            return negated_if(negated, result)
        case ("like", negated, operand, ("literal", pattern)):
            value = interpret(operand, values)
            fits = like(pattern, value) if isinstance(value, str) else None
            return negated_if(negated, fits)
        case ("null", negated, operand):
            return negated_if(negated, interpret(operand, values) is None)
        case (("AND" | "OR") as sign, left, right):
            return joined(sign, interpret(left, values), interpret(right, values))
        case (("+" | "-" | "*" | "/") as sign, left, right):
            return computed(sign, interpret(left, values), interpret(right, values))
        case (sign, left, right):
            return compared(sign, interpret(left, values), interpret(right, values))
    raise AssertionError(node)


def literals(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Literal nodes with these values."""
    return st.tuples(st.just("literal"), values)


integers = st.integers(0, 4) | st.sampled_from([2**53 + 1, 2**63 - 1, 2**64 - 1])
floats = st.sampled_from([0.0, 0.5, 1.0, 2.0, 2.0**53, 1e300])
texts = st.text(alphabet="ab'", max_size=3)
names = st.tuples(st.just("name"), st.sampled_from("pqrs"))
numbers = st.recursive(
    names | literals(integers | floats),
    lambda inner: st.tuples(st.sampled_from("+-*/"), inner, inner) | st.tuples(st.just("minus"), inner),
    max_leaves=5,
)
scalars = names | literals(integers | floats | texts | st.booleans())
comparisons = (
    st.tuples(st.sampled_from(sorted(COMPARE)), numbers, numbers)
    | st.tuples(st.sampled_from(["=", "<>"]), scalars, scalars)
    | st.tuples(st.just("between"), st.booleans(), numbers, numbers, numbers)
    | st.tuples(st.just("in"), st.booleans(), scalars, st.lists(scalars, min_size=1, max_size=4))
    | st.tuples(st.just("like"), st.booleans(), names, literals(st.text(alphabet="ab_%", max_size=4)))
    | st.tuples(st.just("null"), st.booleans(), names)
    | names
    | literals(st.booleans())
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.tuples(st.sampled_from(["AND", "OR"]), inner, inner) | st.tuples(st.just("NOT"), inner),
    max_leaves=6,
)
held = st.none() | integers | integers.map(lambda value: -min(value, 2**63)) | floats | texts | st.booleans()


@settings(max_examples=times(400, 20_000))
@given(conditions, st.dictionaries(st.sampled_from("pqrs"), held))
def test_evaluation_agrees_with_a_naive_interpreter(condition: Any, values: dict[str, Any]) -> None:
    """A compiled selector gives true, false or unknown as a walk over its tree does."""
    expected = interpret(condition, values)
    text = write(condition)
    assert truth(text, **values) is (expected if isinstance(expected, bool) else None)


SIGNS = ["=", "<>", "<", "<=", ">", ">=", "!=", "+", "-", "*", "/", "%", "(", ")", ",", "'", '"']
KEYWORDS = ["NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "NULL", "ESCAPE", "TRUE", "false"]
VALUES = ["a", "b", "[b]", '"m.x"', "JMSPriority", "header.priority", "'x'", "'%a_'", "5", "2.5", "0x0F"]
words = st.sampled_from(SIGNS + KEYWORDS + VALUES)


@settings(max_examples=times(400, 20_000))
@given(
    st.lists(words, max_size=30).map(" ".join) | st.text(max_size=60),
    st.dictionaries(st.sampled_from("ab"), held | st.binary(max_size=2) | st.lists(st.none(), max_size=1)),
    st.sampled_from([compile_selector, compile_sql_filter]),
)
def test_any_text_is_a_selector_or_an_error(
    text: str, values: dict[str, Any], compiler: Callable[[str], Any]
) -> None:
    """Any text gives a SelectorError with a place in the text, or a selector that answers for any message."""
    try:
        selector = compiler(text)
    except SelectorError as refused:
        assert 0 <= refused.position <= len(text)
        return
    assert selector(message(**values)) in (True, False)


# --- The cost of any selector on any message is bounded --------------------------------------------------------------

MOST_LINES = 300_000
"""How many lines of Python an evaluation may execute."""


def view(content: bytes) -> MessageView:
    return MessageView(content, bare_offset(content))


def lines_of(ask: Callable[[], object]) -> int:
    """The number of lines of Python that a call executes; fails above ``MOST_LINES``."""
    lines = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += 1
        if lines > MOST_LINES:
            raise AssertionError("the work has no bound")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        ask()
    finally:
        sys.settrace(before)
    return lines


LONG = "ab" * 150_000

HOSTILE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "many LIKE with _": (" OR ".join(["x LIKE '%a_c%'"] * 200), lambda: trade(properties={"x": LONG})),
    "wide LIKE": (f"x LIKE '%{'a_' * 1_500}c%'", lambda: trade(properties={"x": LONG})),
    "a large map": ("x = 'y'", lambda: trade(properties={f"k{i}": None for i in range(100_000)})),
    "a list in a map": ("x = 'y'", lambda: trade(properties={"z": [None] * 300_000})),
    "large annotations": ("m.x = 'y'", lambda: annotated(data(1), **{f"k{i}": i for i in range(100_000)})),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_evaluation_has_a_bound(name: str) -> None:
    """An evaluation that would take seconds is given up: the message does not pass, and is marked as exhausted."""
    text, make = HOSTILE[name]
    asked = view(make())
    selector = compile_selector(text)

    def ask() -> None:
        with suppress(TooMuchWork):
            assert not selector(asked)

    lines_of(ask)
    assert asked.is_exhausted


def test_compiling_has_a_bound() -> None:
    """Sixty negations of two hundred comparisons of literals take little longer to compile than one."""
    text = " AND ".join(["1 = 1"] * 230)
    alone = lines_of(lambda: compile_selector(text))
    assert lines_of(lambda: compile_selector(f"{'NOT ' * 60}({text})")) < 1.5 * alone


def test_what_takes_too_long_is_unknown() -> None:
    """Neither a condition that was given up nor its negation matches; an OR with a true term still does."""
    asked = lambda: view(trade(properties={"x": LONG, "n": 1}))  # noqa: E731
    assert not compile_selector("x LIKE '%a_c%'")(asked())
    assert not compile_selector("NOT x LIKE '%a_c%'")(asked())
    assert not compile_selector("x NOT LIKE '%a_c%'")(asked())
    assert compile_selector("x LIKE '%a_c%' OR n = 1")(asked())
    assert not compile_selector("x LIKE '%a_c%' AND n = 1")(asked())
    assert compile_sql_filter("x LIKE '%a_c%' OR n = 1")(asked())


@pytest.mark.parametrize("name", ["JMSMessageID", "JMSXUserID"])
def test_a_long_id_as_a_text_is_counted(name: str) -> None:
    """Each term that names a binary id converts it to text, so 120 terms on a long id are too much work."""
    field = {"JMSMessageID": "message_id", "JMSXUserID": "user_id"}[name]
    content = trade(**{field: b"\x41" * 4_000_000})
    text = " OR ".join([f"{name} = 'a{i}'" for i in range(120)])
    with pytest.raises(TooMuchWork):
        compile_selector(text)(view(content))
    with pytest.raises(TooMuchWork):
        compile_selector(f"{name} IS NULL")(view(content))


@pytest.mark.parametrize("one", ["x = y", "NOT x <> y", "x BETWEEN y AND y"])
def test_comparing_two_long_values_is_counted(one: str) -> None:
    """Comparing two long equal values counts as work, so 150 such terms are too much."""
    asked = view(trade(properties={"x": "a" * 400_000, "y": "a" * 400_000}))
    assert not compile_sql_filter(" AND ".join([one] * 150))(asked)
    assert asked.is_exhausted


@pytest.mark.parametrize(
    "text",
    [
        f"'{'a' * 100}' LIKE '%a_a%' AND n = 1",
        f"'{'b' * 100}' BETWEEN 'a' AND 'c' AND n = 1",
        f"0x{'ab' * 100} IN (0xcd, 0x{'ab' * 100}) AND n = 1",
    ],
)
def test_a_term_of_long_literals_alone_is_computed_once(text: str) -> None:
    """A term that reads nothing of the message, and takes steps, is a constant of the selector."""
    compile_ = compile_selector if "LIKE" in text else compile_sql_filter
    assert compile_(text)(view(trade(properties={"n": 1})))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("x LIKE 'ab_b%'", {"x": LONG}),
        ("x LIKE '%_b'", {"x": LONG}),
        ("x LIKE '%bab%'", {"x": LONG}),
        ("x LIKE '%b_b%'", {"x": "ab" * 10_000}),
        ("n = 1", {"x": LONG * 10, "n": 1}),
        ("k700 = 700", {f"k{i}": i for i in range(1_000)}),
    ],
)
def test_what_is_large_and_usual_is_answered(text: str, values: dict[str, Any]) -> None:
    """Usual selectors on a long text or a thousand properties are evaluated, not given up."""
    asked = view(trade(properties=values))
    assert compile_selector(text)(asked)
    assert not asked.is_exhausted


def test_the_same_message_gives_the_same_answer_twice() -> None:
    """Work is counted, not timed, so a log that is read twice gives the same messages."""
    selector = compile_selector(" OR ".join(["x LIKE '%a_c%'"] * 3 + ["n = 1"]))
    content = trade(properties={"x": "ab" * 10_000, "n": 1})
    assert {selector(view(content)) for _ in range(20)} == {True}


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (b"\x00\x53\x70" + encode([None] * 300_000) + data(1), read_header),
        (section(0x73, [[None] * 300_000]) + data(1), lambda content: view(content).properties),
    ],
    ids=["a header of many fields", "a list in the place of an id"],
)
def test_what_nobody_asks_for_is_not_built(content: bytes, read: Callable[[bytes], object]) -> None:
    """A header or an id with hundreds of thousands of values is refused without decoding them all."""

    def ask() -> None:
        with pytest.raises((MalformedMessage, TooMuchWork)):
            read(content)

    lines_of(ask)


# --- LIKE -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "escape", "matching", "others"),
    [
        ("l_se", None, ["lose", "l\nse"], ["loose", "lse", "lose "]),
        ("%_a", None, ["\na", "xa\na"], ["a", "\n"]),
        ("\\_%", "\\", ["_foo", "_"], ["bar", "foo_"]),
        ("%", None, ["", "x", "a\nb"], []),
        ("a%a", None, ["aa", "aba"], ["a", "ab"]),
        ("%ab%bc%", None, ["abbc", "xabybcz"], ["abc", "bcab"]),
        ("%aba", None, ["aba", "xaba"], ["abab"]),
        ("a%b%b", None, ["abb", "axbxb"], ["ab"]),
        ("T_i% a %e_%e_sa%", None, ["This is a test message"], ["This is a tst message"]),
        ("car_rot", None, ["car🥕rot"], ["carrot"]),
        ("x.*[a]$", None, ["x.*[a]$"], ["xyza"]),
        ("z_%", "z", ["_foo"], ["foo"]),
        ("50!%!!", "!", ["50%!"], ["50x!"]),
        ("a%%b", "%", ["a%b"], ["axb"]),
    ],
)
def test_patterns_match_whole_texts(
    pattern: str, escape: str | None, matching: list[str], others: list[str]
) -> None:
    """A line end is a character, and every character but ``_`` and ``%``, or an escaped one, stands for itself."""
    matches = compile_like(pattern, escape).matches
    assert [text for text in matching + others if matches(text)] == matching


@pytest.mark.parametrize("escape", ["!!", ""])
def test_an_escape_is_one_character(escape: str) -> None:
    with pytest.raises(ValueError, match=f"expected one character after ESCAPE, found '{escape}'$"):
        compile_like("abc", escape)


@given(st.text(alphabet="ab_%", max_size=8), st.text(alphabet="ab", max_size=8))
def test_matching_agrees_with_the_definition(pattern: str, text: str) -> None:
    """Both ways of matching agree with the definition of LIKE."""
    assert compile_like(pattern).matches(text) is like(pattern, text)


class CountedPieces:
    """Stands in for ``re``: its patterns count the characters that they compare."""

    DOTALL, escape = re.DOTALL, staticmethod(re.escape)

    def __init__(self) -> None:
        self.steps = 0.0

    def compile(self, pattern: str, flags: int) -> Any:
        """A compiled piece: one that repeats nothing compares each of its characters once at each place."""
        assert not set(re.sub(r"\\.", "", pattern)) & set("*+?{"), "a repetition can backtrack"
        compiled = re.compile(pattern, flags)
        length = len(re.sub(r"\\(.)", r"\1", pattern))
        a_place = max(1, length / TRIED_CHARACTERS) if "." in pattern else 1 / QUICK_CHARACTERS

        def search(text: str, position: int, end: int) -> re.Match[str] | None:
            found = compiled.search(text, position, end)
            self.steps += ((end if found is None else found.end()) - position) * a_place
            return found

        return SimpleNamespace(search=search, match=compiled.match, fullmatch=compiled.fullmatch)


@pytest.mark.parametrize("pattern", ["%a" * 2000, "%a_" * 1300, "%" + "_" * 4000 + "a", "%_a%" * 1000])
@pytest.mark.parametrize("end", ["%b%", "b%"])
def test_hostile_patterns_take_linear_time(pattern: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Patterns that make a backtracking matcher take exponential time take no more steps than they say beforehand, which
    are linear in the text: no part of it is searched twice.
    """
    counted = CountedPieces()
    monkeypatch.setattr(evaluation, "re", counted)
    compiled = compile_like(pattern + end)
    for text in ("a" * 10_000, "a" * 20_000):
        counted.steps = 0
        assert compiled.matches(text) is False
        assert len(text) / QUICK_CHARACTERS <= counted.steps <= compiled.steps(text) + 1
    assert compiled.steps(text) <= 2 * compiled.steps("a" * 10_000) + 1


def test_what_asking_costs_is_told_beforehand() -> None:
    """A text at a fixed place costs its length; one that is searched for costs its length for each character."""
    text = "a" * 20_000
    assert compile_like("ab_b%cd").steps(text) == 6
    assert compile_like("%abc%").steps(text) == len(text) // 32
    assert compile_like("%a_b%").steps(text) == len(text)
    assert compile_like("%" + "a_" * 500 + "b%").steps(text) > MOST_STEPS
