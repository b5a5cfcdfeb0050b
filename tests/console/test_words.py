"""Numbers and times in words: the console says them as the command line does."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.cli import words
from tests.console.conftest import Console

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
TIME_MS = 1_794_528_123_456


@pytest.mark.parametrize(
    ("name", "said", "values"),
    [
        ("number", words.number, [0, 7, 1_234, 1_234_567, 0.5, 1_234.56]),
        (
            "size",
            words.size,
            [0, 1, 999, 1_023, 1_024, 1_536, 1 << 20, (1 << 20) - 1, 1.5 * (1 << 30), 1 << 42],
        ),
        (
            "duration",
            words.duration,
            [
                0,
                5,
                999,
                SECOND,
                61 * SECOND,
                MINUTE,
                2 * HOUR + 5 * MINUTE,
                11 * HOUR,
                DAY,
                9 * DAY + HOUR,
                800 * DAY,
            ],
        ),
        (
            "oneLine",
            words.one_line,
            ["orders/eu", "a\nb", "a\tb", "\u202ereversed", "\u2028", "\U000e0001", "\x07", "ä 漢"],
        ),
    ],
    ids=["number", "size", "duration", "oneLine"],
)
def test_both_say_the_same(console: Console, name: str, said: Any, values: list[Any]) -> None:
    """Of whatever is shown."""
    console.load()
    found = console.page.evaluate(
        """async ([name, values]) => {
            const words = await import("/console/words.js");
            return values.map((value) => words[name](value));
        }""",
        [name, values],
    )
    assert found == [said(value) for value in values]


def test_moments_are_the_same(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the zone of who reads, and how far away they are."""
    console.load()
    found = console.page.evaluate(
        """async (ms) => {
            const words = await import("/console/words.js");
            return [words.moment(ms), words.momentAndAge(ms, ms + 180_000), words.momentAndAge(ms, ms - 90_000)];
        }""",
        TIME_MS,
    )
    monkeypatch.setenv("TZ", "UTC")
    assert found == [
        words.moment(TIME_MS),
        words.moment_and_age(TIME_MS, TIME_MS + 3 * MINUTE),
        words.moment_and_age(TIME_MS, TIME_MS - 90 * SECOND),
    ]
