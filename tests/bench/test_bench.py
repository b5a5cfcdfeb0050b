"""
Every measurement works at a small size; the table's medians, ratios and verdicts; the contents of filled data folders.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config import ReplayLog, Vpn
from gateway.core.model import CONTENT, WHOLE
from store.sqlite.store import recover
from tests.bench import filled
from tests.bench.__main__ import measure
from tests.bench.crowds import LINKS, subscribe, waiting_readers
from tests.bench.measured import company, postgresql, rates, weights
from tests.bench.measured.sizes import QUICK, Figures
from tests.bench.processes import FROM_BEGINNING, LoadFailed, recv
from tests.bench.report import disturbances, judge, table
from tests.bench.rows import ROWS, Measurement, Row, beside_before, chosen
from tests.support.postgresql import MISSING, NoServer
from tests.support.running import RunningGateway, settings_for

SMALL = replace(
    QUICK,
    bulk=3_000,
    single=50,
    fanned=600,
    history=1_000,
    copied=1_000,
    purged=3_000,
    delayed=1_000,
    windowed=400,
    deep=6_000,
    worked=3_000,
    readers=150,
    routes=20,
    minutes=0.05,
)


@pytest.mark.parametrize(
    "measurement",
    [
        rates.queue,
        rates.many_routes,
        rates.fan_out,
        rates.by_key,
        rates.delayed,
        company.purging,
        company.copying,
        company.consoles,
        weights.deep,
        weights.idle_readers,
        weights.mixed,
        pytest.param(postgresql.postgresql, marks=pytest.mark.postgresql),
    ],
)
def test_a_measurement_brings_the_figures_of_its_rows(measurement: Measurement, tmp_path: Path) -> None:
    """Messages arrive in their order, or the measurement fails; each row finds its figure and its limit."""
    found = measurement(tmp_path, SMALL)

    assert {name: value for name, value in found.items() if value <= 0} == {}
    rows = [row for row in map(beside_before, ROWS) if row.needs == (measurement,)]
    for row in rows:
        assert row.name in found
        assert row.limit is None or row.limit in found
    assert rows or measurement is rates.queue


def test_a_row_may_be_held_against_another_checkout() -> None:
    """Processor time is compared with that of the other checkout; other rows do not change."""
    rows = {row.name: beside_before(row) for row in ROWS}

    assert {name for name, row in rows.items() if rates.before in row.needs} == {"publish-cpu", "consume-cpu"}
    assert rows["publish-cpu"].limit == "before-publish-cpu"
    assert rows["consume-cpu"].limit == "before-consume-cpu"
    assert rows["publish-cpu"].required == "<= 0.85x limit"


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


PUBLISH = next(row for row in ROWS if row.name == "publish")
ROUNDS = [
    {"publish": 60_000.0, "sqlite-write": 100_000.0, "container": 10_000.0},
    {"publish": 30_000.0, "sqlite-write": 60_000.0, "container": 5_000.0},
    {"publish": 90_000.0, "sqlite-write": 300_000.0, "container": 10_000.0},
]


def test_ratios_are_medians_of_each_rounds_own() -> None:
    """
    Each round's figure is divided by its own limit: the ratio is no quotient of medians. The table has a line for it.
    """
    line = judge(PUBLISH, ROUNDS)

    assert "60,000 msg/s" in table([line]).splitlines()[2]

    assert (line.figure, line.limit) == (60_000, 100_000)
    assert line.ratio == pytest.approx(0.5)
    assert line.container_ratio == pytest.approx(6)


@pytest.mark.parametrize(
    ("row", "rounds", "verdict"),
    [
        (PUBLISH, ROUNDS, "ok"),
        # All bounds of a row must hold: five times a Container, and 0.35 of the limit.
        (PUBLISH, [figures | {"publish": figures["publish"] * 0.8} for figures in ROUNDS], "short"),
        (PUBLISH, [figures | {"sqlite-write": 1e6} for figures in ROUNDS], "short"),
        # A row is not ok if its baseline failed to run.
        (PUBLISH, [{"publish": 60_000.0, "sqlite-write": 100_000.0}], "short"),
        (PUBLISH, [{"publish": 60_000.0, "container": 10_000.0}], "short"),
        # A figure for information has no verdict; one without a limit is compared with the bound itself.
        (replace(PUBLISH, least=None, container=None), ROUNDS, ""),
        (replace(PUBLISH, container=None, limit=None, least=50_000), ROUNDS, "ok"),
        (replace(PUBLISH, container=None, limit=None, least=None, most=50_000), ROUNDS, "short"),
    ],
)
def test_a_verdict_says_whether_all_that_is_required_holds(
    row: Row, rounds: list[Figures], verdict: str
) -> None:
    assert judge(row, rounds).verdict == verdict


def test_rows_are_chosen_by_the_beginning_of_their_name() -> None:
    """``replay`` selects both replays; a name that fits nothing is an error that lists the rows."""
    assert [row.name for row in chosen(["replay"])] == ["replay-log", "replay-endpoint"]
    with pytest.raises(ValueError, match=r"no row swim; there are .*publish"):
        chosen(["publish", "swim"])


def test_measurements_beside_a_busy_neighbour_are_named() -> None:
    """A measurement without a busy neighbour is not named."""
    rounds = [{"queue": {"others-cores": 0.1}}, {"queue": {"others-cores": 1.24, "publish": 60_000.0}}]

    assert disturbances(rounds) == ["queue in round 2 (1.2 cores)"]


SPOOLED, ALL = 1_200, 3_000


def test_the_newest_messages_are_on_the_queue_and_all_are_in_the_log(tmp_path: Path) -> None:
    """
    The messages are numbered without a gap. A gateway opens the folder as its own, with nothing to count at its start.
    """
    filled.fill(tmp_path, SPOOLED, ALL)

    (queue,) = recover(filled.message_file(tmp_path)).endpoints
    assert (queue.parts[WHOLE].messages, queue.parts[WHOLE].later_messages) == (SPOOLED, 0)
    with RunningGateway(settings_for(tmp_path)) as gateway:
        assert gateway.depth(filled.QUEUE) == SPOOLED
        recv(gateway.address, f"queue://{filled.QUEUE}", SPOOLED)
        recv(gateway.address, "log://>", ALL, filters=FROM_BEGINNING)
        recv(gateway.address, f"log://{filled.LOGGED}", ALL - SPOOLED, filters=FROM_BEGINNING)


def test_a_log_of_messages_with_properties_has_all_its_topics(tmp_path: Path) -> None:
    """All topics have the same number of messages, and every message has a body of its size."""
    filled.fill_log(tmp_path, 450)

    with RunningGateway(settings_for(tmp_path)) as gateway:
        reader = gateway.call(lambda running: running.vpns["default"].reader)
        rows = reader.log_page(1, 451, ()).rows
    assert {topic: sum(row[2] == topic for row in rows) for topic in filled.TOPICS} == dict.fromkeys(
        filled.TOPICS, 150
    )
    assert all(len(row[CONTENT]) > filled.BODY_BYTES for row in rows)


def test_a_message_that_nobody_takes_is_not_passed_over(tmp_path: Path) -> None:
    """A folder with fewer messages than requested would give a fast figure."""
    with pytest.raises(LoadFailed, match="nobody wanted"):
        filled.publish_into(tmp_path, filled.numbered("a", 0, 10), Vpn(replay_log=ReplayLog(enabled=False)))


COUNT = LINKS + 3


def test_crowds_are_as_large_as_they_say(tmp_path: Path) -> None:
    """Durable subscriptions outlive their client; log readers wait on as few connections as possible."""
    with RunningGateway(settings_for(tmp_path)) as gateway:
        subscribe(gateway.address, "topic://a/b", COUNT)
        assert gateway.endpoints() == {f"durable{n}" for n in range(COUNT)}
        assert gateway.subscriptions("durable7") == ["a/b"]

        with waiting_readers(gateway.address, COUNT):
            assert gateway.log_readers() == COUNT
            assert gateway.connections() == 2
