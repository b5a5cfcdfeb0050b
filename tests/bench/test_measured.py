"""Every measurement of a gateway works, in small: the figures of its rows are there, and are none of nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.__main__ import measure
from tests.bench.measured import company, connections, depths, fans, memory, postgresql, rates
from tests.bench.measured.sizes import QUICK
from tests.bench.rows import ROWS, Measurement, beside_before, chosen
from tests.bench.server_process import ROOT
from tests.support.postgresql import MISSING, NoServer

SMALL = replace(
    QUICK,
    bulk=3_000,
    single=50,
    fanned=600,
    subscribers=20,
    history=1_000,
    spooled=1_000,
    logged=3_000,
    purged=3_000,
    deep=6_000,
    worked=3_000,
    readers=150,
    routes=20,
    minutes=0.05,
    before=ROOT,
)


@pytest.mark.parametrize(
    "measurement",
    [
        rates.queue,
        rates.before,
        rates.many_routes,
        fans.fan_out,
        fans.wide_fan,
        company.purging,
        company.copying,
        company.paced,
        company.consoles,
        depths.recovery,
        depths.deep,
        connections.idle_readers,
        memory.worked,
        memory.endpoints,
        memory.mixed,
        pytest.param(postgresql.postgresql, marks=pytest.mark.postgresql),
    ],
)
def test_a_measurement_brings_the_figures_of_its_rows(measurement: Measurement, tmp_path: Path) -> None:
    """What was published is there in its order, or the measurement fails; each row finds its figure and its limit."""
    found = measurement(tmp_path, SMALL)

    assert {name: value for name, value in found.items() if value <= 0} == {}
    rows = [row for row in map(beside_before, ROWS) if row.needs == (measurement,)]
    for row in rows:
        assert row.figure in found
        assert row.limit is None or row.limit in found
    assert rows or measurement in (rates.queue, rates.before)


def test_a_row_may_be_held_against_another_checkout() -> None:
    """Processor time is compared with what it was; other rows stay as they are."""
    rows = {row.name: beside_before(row) for row in ROWS}

    assert {name for name, row in rows.items() if rates.before in row.needs} == {"publish-cpu", "consume-cpu"}
    assert rows["publish-cpu"].limit == "before_publish_cpu_us"
    assert rows["consume-cpu"].limit == "before_consume_cpu_us"
    assert str(rows["publish-cpu"].bounds[0]) == "<= 0.85x limit"


def test_what_needs_a_server_that_is_not_installed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sentence says what is missing; it is no failure, and the row has no figure."""

    def none() -> Path:
        raise NoServer(MISSING)

    monkeypatch.setattr("tests.support.postgresql.programs", none)

    rounds, failures = measure(chosen(["postgresql-publish"]), SMALL, tmp_path)

    assert (rounds, failures) == ([{}], 0)
    assert f"left out: {MISSING}" in capsys.readouterr().err
