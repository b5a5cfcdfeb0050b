"""What a start finds in a file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from hypothesis import HealthCheck, given, settings

from gateway.core.effects import Effect, RemoveReferences, SaveEndpoint, SavePoint, TrimLog
from gateway.core.log.point import Point
from store.sqlite.recovery import RecoveredFile, recover
from tests.store.histories import histories, publication
from tests.store.vpn_file import MADE_MS, commit, empty_model, writing_to
from tests.support.naive_store import NaiveStore


def expected(model: NaiveStore, generation: int, garbage: list[int]) -> RecoveredFile:
    found = model.recover(generation)
    return RecoveredFile(
        found.log, found.endpoints, found.next_number, found.points, garbage, model.largest_bytes, []
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(history=histories())
def test_after_any_prefix_recovery_finds_what_was_committed(
    fresh: Callable[[], Path], history: list[list[Effect]]
) -> None:
    """The log, endpoints and how far their replays are, subscriptions, points, and what is to be collected."""
    path, model, garbage = fresh(), empty_model(), list[int]()
    generation = recover(path).log.generation
    with closing(writing_to(path)) as connection:
        for effects in history:
            garbage += commit(connection, effects)
            for effect in effects:
                model.apply(effect)
            assert recover(path) == expected(model, generation, sorted(garbage))


def test_an_id_is_never_given_out_twice(path: Path) -> None:
    """The next id stays above all there ever were, when their messages were settled, trimmed, or never came to be."""
    with closing(writing_to(path)) as connection:
        commit(connection, [SaveEndpoint(1, "q", "queue", "{}", None)])
        commit(connection, [publication(1, [b"x"] * 9, endpoints=(1,), logged=False, time_ms=MADE_MS)])
        commit(connection, [RemoveReferences(1, range(1, 10), 9)])
        assert connection.execute("select count(*) from message").fetchone() == (0,)
        assert recover(path).log.next_id == 10
        commit(connection, [publication(10, [b"x"] * 9, time_ms=MADE_MS)])
        commit(connection, [TrimLog(1, 19)])
        assert connection.execute("select count(*) from message").fetchone() == (0,)
        assert recover(path).log.next_id == 19
        # A point behind ids that were given out to a commit that failed.
        commit(connection, [SavePoint(Point("p", 30, MADE_MS, MADE_MS))])
        assert recover(path).log.next_id == 30


def test_a_new_file_is_an_empty_log(path: Path) -> None:
    """Ids and numbers begin with 1, and nothing is missing from the time it was made."""
    found = recover(path)
    assert (found.log.first_id, found.log.next_id, found.log.floor_ms) == (1, 1, MADE_MS)
    assert (found.endpoints, found.next_number, found.garbage, found.largest_bytes) == ([], 1, [], 0)
