"""No message and no selector together cost more than a bound, whatever each of them holds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import encode
from amqp_ext.message.sections import (
    MOST_STEPS,
    MalformedMessage,
    MessageView,
    TooMuchWork,
    bare_offset,
    read_header,
)
from amqp_ext.selector.evaluation import compile_like
from amqp_ext.selector.selector import compile_selector, compile_sql_filter
from tests.amqp_ext.selector.examples import like
from tests.support.messages import annotated, data, section, trade

# --- No message and no selector together cost more than a bound, whatever each of them holds ------------------------

MOST_LINES = 300_000
"""Lines of Python."""


def view(content: bytes) -> MessageView:
    return MessageView(content, bare_offset(content))


def lines_of(ask: Callable[[], object]) -> int:
    """Lines of Python that a call takes, at most a little more than ``MOST_LINES``."""
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
    """What would take seconds is not done: the answer is unknown, so the message does not pass, and that is told."""
    text, make = HOSTILE[name]
    asked = view(make())
    selector = compile_selector(text)

    def ask() -> None:
        with suppress(TooMuchWork):
            assert not selector.matches(asked)

    lines_of(ask)
    assert asked.is_exhausted


def test_what_takes_too_long_is_unknown() -> None:
    """Neither the condition nor its negation holds, a NULL it is not, and what does not need it is decided."""
    asked = lambda: view(trade(properties={"x": LONG, "n": 1}))  # noqa: E731
    assert not compile_selector("x LIKE '%a_c%'").matches(asked())
    assert not compile_selector("NOT x LIKE '%a_c%'").matches(asked())
    assert not compile_selector("x NOT LIKE '%a_c%'").matches(asked())
    assert compile_selector("x LIKE '%a_c%' OR n = 1").matches(asked())
    assert not compile_selector("x LIKE '%a_c%' AND n = 1").matches(asked())
    assert compile_sql_filter("x LIKE '%a_c%' OR n = 1").matches(asked())


@pytest.mark.parametrize("name", ["JMSMessageID", "JMSXUserID"])
def test_a_long_id_as_a_text_is_counted(name: str) -> None:
    """A binary id is written out for each term that names it: a few times, and not 120 times."""
    field = {"JMSMessageID": "message_id", "JMSXUserID": "user_id"}[name]
    content = trade(**{field: b"\x41" * 4_000_000})
    text = " OR ".join([f"{name} = 'a{i}'" for i in range(120)])
    with pytest.raises(TooMuchWork):
        compile_selector(text).matches(view(content))
    with pytest.raises(TooMuchWork):
        compile_selector(f"{name} IS NULL").matches(view(content))


@pytest.mark.parametrize("one", ["x = y", "NOT x <> y", "x BETWEEN y AND y"])
def test_comparing_two_long_values_is_counted(one: str) -> None:
    """Two values of a message may both be long and alike; that is asked a few times, and not 150 times."""
    asked = view(trade(properties={"x": "a" * 400_000, "y": "a" * 400_000}))
    assert not compile_sql_filter(" AND ".join([one] * 150)).matches(asked)
    assert asked.is_exhausted


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
    """A long text beside what is asked, a wildcard in its place, a thousand properties: no reason to give up."""
    asked = view(trade(properties=values))
    assert compile_selector(text).matches(asked)
    assert not asked.is_exhausted


def test_the_same_message_gives_the_same_answer_twice() -> None:
    """Work is counted and not timed: a log that is read twice gives the same twice."""
    selector = compile_selector(" OR ".join(["x LIKE '%a_c%'"] * 3 + ["n = 1"]))
    content = trade(properties={"x": "ab" * 10_000, "n": 1})
    assert {selector.matches(view(content)) for _ in range(20)} == {True}


def test_a_header_of_many_fields_is_not_built() -> None:
    """Every consumer's delivery reads the header: one with a million fields costs nobody a second."""
    content = b"\x00\x53\x70" + encode([None] * 300_000) + data(1)

    def ask() -> None:
        with pytest.raises((MalformedMessage, TooMuchWork)):
            read_header(content)

    lines_of(ask)


def test_a_list_in_the_place_of_an_id_is_not_built() -> None:
    """Properties whose first field is a list of a million are not decoded to find that it should be an id."""
    content = section(0x73, [[None] * 300_000]) + data(1)

    def ask() -> None:
        with pytest.raises(TooMuchWork):
            _ = view(content).properties

    lines_of(ask)


# --- LIKE -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "escape", "matching", "others"),
    [
        ("12%3", None, ["123", "12993", "123123"], ["1234", "13", "23"]),
        ("l_se", None, ["lose", "l\nse"], ["loose", "lse", "lose "]),
        ("%_a", None, ["\na", "xa\na"], ["a", "\n"]),
        ("\\_%", "\\", ["_foo", "_"], ["bar", "foo_"]),
        ("", None, [""], ["x"]),
        ("%", None, ["", "x", "a\nb"], []),
        ("%%%", None, ["", "x"], []),
        ("a%a", None, ["aa", "aba"], ["a", "ab"]),
        ("%ab%bc%", None, ["abbc", "xabybcz"], ["abc", "bcab"]),
        ("%aba", None, ["aba", "xaba"], ["abab"]),
        ("a%b%b", None, ["abb", "axbxb"], ["ab"]),
        ("_%_", None, ["ab", "abc"], ["a", ""]),
        ("%_b%", None, ["ab", "bb", "xxbx"], ["b", "ba"]),
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
    """``_`` is one character, ``%`` any number, anything else is itself, and the whole text must match."""
    matches = compile_like(pattern, escape).matches
    assert [text for text in matching + others if matches(text)] == matching


@pytest.mark.parametrize("escape", ["!!", ""])
def test_an_escape_is_one_character(escape: str) -> None:
    with pytest.raises(ValueError, match=f"expected one character after ESCAPE, found '{escape}'$"):
        compile_like("abc", escape)


@given(st.text(alphabet="ab_%", max_size=8), st.text(alphabet="ab", max_size=8))
def test_matching_agrees_with_the_definition(pattern: str, text: str) -> None:
    """Both ways of matching give what trying everything gives."""
    assert compile_like(pattern).matches(text) is like(pattern, text)


@pytest.mark.parametrize(
    "pattern", ["%a" * 2000 + "b", "%a_" * 1300 + "b", "%" + "_" * 4000 + "b", "%_a%" * 1000 + "b"]
)
def test_hostile_patterns_take_linear_time(pattern: str) -> None:
    """Patterns that make a backtracking matcher try exponentially many ways are answered at once."""
    assert compile_like(pattern).matches("a" * 20_000) is False


def test_what_asking_costs_is_told_beforehand() -> None:
    """What has its place costs its own length; what is searched for, as much for each character as it is long."""
    text = "a" * 20_000
    assert compile_like("ab_b%cd").steps(text) == 6
    assert compile_like("%abc%").steps(text) == len(text) // 32
    assert compile_like("%a_b%").steps(text) == len(text)
    assert compile_like("%" + "a_" * 500 + "b%").steps(text) > MOST_STEPS
