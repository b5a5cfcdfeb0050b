"""What a start finds in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import apsw
from hypothesis import HealthCheck, given, settings

from gateway.core.effects import CountedUpTo, Effect, SavePoint
from gateway.core.model import WHOLE, Point
from store.ports import Recovered
from store.recovery import RecoveredStore, recovered
from store.sqlite.cursors import SqliteShortTables
from store.sqlite.database import connect_reader
from store.sqlite.log_row import read_log
from store.sqlite.schema import PAGE_BYTES
from store.sqlite.store import recover
from tests.store.effects import counted, publication, queue, settled, trimming
from tests.store.histories import histories
from tests.store.vpn_file import MADE_MS, commit, empty_model, query, writing_to
from tests.support.naive_store import NaiveStore


def expected(model: NaiveStore, found: RecoveredStore) -> RecoveredStore:
    """The same as the naive store says it."""
    known = model.recover(found.log.generation)
    if found.garbage:
        # What waits to be let go of is a route's newest message as well.
        routes = [
            route._replace(newest_id=f.newest_id) for route, f in zip(known.routes, found.routes, strict=True)
        ]
        known = replace(known, routes=routes)
    return replace(found, **{field.name: getattr(known, field.name) for field in fields(Recovered)})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(history=histories())
def test_after_any_prefix_recovery_finds_what_was_committed(
    fresh: Callable[[], Path], history: list[list[Effect]]
) -> None:
    """The log, endpoints and how far their replays are, subscriptions, points, and what is to be worked off."""
    path, model = fresh(), empty_model()
    with closing(writing_to(path)) as connection:
        for effects in history:
            commit(connection, effects)
            for effect in effects:
                model.apply(effect)
            found = recover(path)
            assert found == expected(model, found)
            assert found.largest_bytes == model.largest_bytes
            waiting = connection.execute(
                "select cursor, endpoint, up_to from garbage order by cursor"
            ).fetchall()
            assert [(g.cursor, g.endpoint, g.up_to) for g in found.garbage] == waiting


def test_what_came_since_the_last_count_is_added(path: Path) -> None:
    """Saved counters say nothing of what came after: it is counted, by each cursor from where it left off."""
    model = empty_model()
    with closing(writing_to(path)) as connection:

        def write(effects: Sequence[Effect]) -> None:
            commit(connection, effects)
            for effect in effects:
                model.apply(effect)

        write(
            [*queue(1, "q"), *queue(2, "r"), publication(1, [b"123"] * 10, endpoints=(1, 2), time_ms=MADE_MS)]
        )
        write(settled(model, 1, [1, 2, 3]))
        write([publication(11, [b"1"] * 5, endpoints=(1,), time_ms=MADE_MS)])
        wholes = [endpoint.parts[WHOLE] for endpoint in recover(path).endpoints]
        assert [(whole.messages, whole.size_bytes) for whole in wholes] == [(0, 0), (0, 0)]
        assert [(whole.later_messages, whole.later_bytes) for whole in wholes] == [(12, 26), (10, 30)]
        write([*counted(model, 1, 15), *counted(model, 2, 15), CountedUpTo(15)])
        wholes = [endpoint.parts[WHOLE] for endpoint in recover(path).endpoints]
        assert [(whole.messages, whole.later_messages) for whole in wholes] == [(12, 0), (10, 0)]
    assert query(path, "select counted_id, messages, size_bytes from cursor order by number") == [
        (15, 12, 26), (15, 10, 30)
    ]  # fmt: skip


def test_no_content_is_read_for_it(path: Path) -> None:
    """However large the messages are: a start reads a page or two of each, for what their rows' heads say."""
    with closing(writing_to(path)) as connection:
        commit(connection, queue(1, "q"))
        commit(connection, [publication(1, [bytes(1 << 20)] * 20, endpoints=(1,), time_ms=MADE_MS)])
    with closing(connect_reader(path)) as connection:
        connection.execute("begin")
        log = read_log(connection)
        assert log is not None
        recovered(SqliteShortTables(connection), log)
        misses, _ = connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS)
    assert misses * PAGE_BYTES < 1 << 19


def test_an_id_is_never_given_out_twice(path: Path) -> None:
    """The next id stays above all there ever were, when their messages were settled, trimmed, or never came to be."""
    model = empty_model()
    with closing(writing_to(path)) as connection:

        def write(effects: Sequence[Effect]) -> None:
            commit(connection, effects)
            for effect in effects:
                model.apply(effect)

        write([*queue(1, "q"), publication(1, [b"x"] * 9, endpoints=(1,), logged=False, time_ms=MADE_MS)])
        write(settled(model, 1, range(1, 10)))
        assert connection.execute("select count(*) from message").fetchall() == [(0,)]
        assert recover(path).log.next_id == 10
        write([publication(10, [b"x"] * 9, time_ms=MADE_MS)])
        write([trimming(model, 19)])
        assert connection.execute("select count(*) from message").fetchall() == [(0,)]
        assert recover(path).log.next_id == 19
        # A point behind ids that were given out to a commit that failed.
        commit(connection, [SavePoint(Point("p", 30, MADE_MS, MADE_MS))])
        assert recover(path).log.next_id == 30


def test_a_new_file_is_an_empty_log(path: Path) -> None:
    """Ids and numbers begin with 1, and nothing is missing from the time it was made."""
    found = recover(path)
    assert (found.log.first_id, found.log.next_id, found.log.floor_ms) == (1, 1, MADE_MS)
    assert (found.endpoints, found.next_number, found.garbage, found.largest_bytes) == ([], 1, [], 0)
