"""Medians, ratios and verdicts of the table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.report import disturbances, judge, table
from tests.bench.rows import ROWS, chosen

PUBLISH = next(row for row in ROWS if row.name == "publish")
ROUNDS = [
    {"publish": 60_000.0, "sqlite_write": 100_000.0, "container_publish": 10_000.0},
    {"publish": 30_000.0, "sqlite_write": 60_000.0, "container_publish": 5_000.0},
    {"publish": 90_000.0, "sqlite_write": 300_000.0, "container_publish": 10_000.0},
]


def test_ratios_are_medians_of_each_rounds_own() -> None:
    """A slow round compares with its own limit: the ratio is no quotient of medians."""
    line = judge(PUBLISH, ROUNDS)

    assert (line.figure, line.limit) == (60_000, 100_000)
    assert line.ratio == pytest.approx(0.5)
    assert line.container_ratio == pytest.approx(6)
    assert line.verdict == "ok"


def test_one_requirement_missed_is_short() -> None:
    """All bounds of a row must hold."""
    slower = [figures | {"publish": figures["publish"] * 0.8} for figures in ROUNDS]

    assert judge(PUBLISH, slower).verdict == "short"


def test_a_requirement_without_its_measurement_is_short() -> None:
    """Nothing is ok because its baseline failed to run."""
    unmatched = [{"publish": 60_000.0, "sqlite_write": 100_000.0}]

    assert judge(PUBLISH, unmatched).verdict == "short"


def test_a_row_without_requirements_has_no_verdict() -> None:
    """A figure for information is neither ok nor short."""
    assert judge(replace(PUBLISH, bounds=()), ROUNDS).verdict == ""


def test_the_table_has_a_line_for_each_row() -> None:
    """Header, rule, rows."""
    text = table([judge(PUBLISH, ROUNDS)]).splitlines()

    assert [line.split()[0] for line in text] == ["row", "-" * len(text[1]), "publish"]
    assert "60,000 msg/s" in text[2]


def test_rows_are_chosen_by_the_beginning_of_their_name() -> None:
    """``replay`` means both replays; a name that fits nothing is an error that lists the rows."""
    assert [row.name for row in chosen(["replay"])] == ["replay-log", "replay-endpoint"]
    with pytest.raises(ValueError, match=r"no row swim; there are .*publish"):
        chosen(["publish", "swim"])


def test_measurements_beside_a_busy_neighbour_are_named() -> None:
    """Quiet ones are not."""
    rounds = [{"others_cores_queue": 0.1}, {"others_cores_queue": 1.24, "publish": 60_000.0}]

    assert disturbances(rounds) == ["queue in round 2 (1.2 cores)"]
