"""LIKE: the wildcards, the escape, and that no pattern is slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.selector.like import compile_like


@pytest.mark.parametrize(
    ("pattern", "escape", "matching", "others"),
    [
        ("12%3", None, ["123", "12993", "123123"], ["1234", "13", "23"]),
        ("l_se", None, ["lose"], ["loose", "lse", "lose "]),
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


@pytest.mark.parametrize(
    ("pattern", "escape", "sentence"),
    [
        ("abc!", "!", "expected a character after the escape ! that ends the pattern 'abc!'"),
        ("abc", "!!", "expected one character after ESCAPE, found '!!'"),
        ("abc", "", "expected one character after ESCAPE, found ''"),
    ],
)
def test_a_pattern_that_means_nothing_is_refused(pattern: str, escape: str, sentence: str) -> None:
    """A dangling escape and an escape that is not one character are errors."""
    with pytest.raises(ValueError, match="expected") as refused:
        compile_like(pattern, escape)
    assert str(refused.value) == sentence


def naive(pattern: str, text: str) -> bool:
    """LIKE by its definition, trying every length for every %."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(naive(pattern[1:], text[start:]) for start in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and naive(pattern[1:], text[1:])


@given(st.text(alphabet="ab_%", max_size=8), st.text(alphabet="ab", max_size=8))
def test_matching_agrees_with_the_definition(pattern: str, text: str) -> None:
    """Both ways of matching give what trying everything gives."""
    assert compile_like(pattern).matches(text) is naive(pattern, text)


@pytest.mark.parametrize(
    "pattern", ["%a" * 2000 + "b", "%a_" * 1300 + "b", "%" + "_" * 4000 + "b", "%_a%" * 1000 + "b"]
)
def test_hostile_patterns_take_linear_time(pattern: str) -> None:
    """Patterns that make a backtracking matcher try exponentially many ways are answered at once."""
    assert compile_like(pattern).matches("a" * 20_000) is False
