"""The check of a file: silent on a sound one, and it finds each thing that can be wrong."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from gateway.core.effects import (
    Effect,
    RenumberEndpoint,
    SaveEndpoint,
    SavePoint,
    SaveSubscription,
    TrimLog,
)
from gateway.core.log.point import Point
from store.sqlite.check import MOST_EXAMPLES, PROMISES, check
from store.sqlite.database import open_file
from tests.store.histories import histories, publication
from tests.store.vpn_file import MADE_MS, commit, writing_to


@pytest.fixture
def sound(path: Path) -> Path:
    """A file with something of everything: two queues, one emptied, messages logged, held and trimmed, a point."""
    q, r = (SaveEndpoint(n, name, "queue", "{}", None) for n, name in ((1, "q"), (2, "r")))
    with closing(writing_to(path)) as connection:
        commit(connection, [q, r, SaveSubscription(1, "a/>")])
        commit(connection, [publication(1, [b"12345"] * 4, endpoints=(1, 2), time_ms=MADE_MS)])
        commit(connection, [publication(5, [b"12"] * 4, endpoints=(1,), logged=False, time_ms=MADE_MS + 5)])
        commit(connection, [publication(9, [b"123"] * 4, time_ms=MADE_MS + 9), TrimLog(1, 3)])
        commit(connection, [SavePoint(Point("p", 13, MADE_MS, MADE_MS)), RenumberEndpoint(2, 3, None)])
        commit(connection, [publication(13, [b"1"] * 2, endpoints=(3,), time_ms=MADE_MS + 9)])
        connection.execute("insert into indexed values (1, 'p', 1, null)")
        connection.execute("insert into property_value values (0, 1, 'x', 3)")
    assert check(path) == []
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(history=histories())
def test_whatever_a_writer_does_leaves_a_sound_file(
    fresh: Callable[[], Path], history: list[list[Effect]]
) -> None:
    """After any history of commands there is nothing to say."""
    path = fresh()
    with closing(writing_to(path)) as connection:
        for effects in history:
            commit(connection, effects)
    assert check(path) == []


DAMAGES = {
    "the log has 0 rows instead of one": "delete from log",
    "message 14 is above the log's last id 12": "update log set last_id = 12; delete from point",
    f"message 14 arrived at {MADE_MS + 8} ms, before message 13 at {MADE_MS + 9} ms": (
        f"update message set time = {MADE_MS + 8} where id = 14"
    ),
    f"the newest message arrived at {MADE_MS + 9} ms, after the log's last time {MADE_MS} ms": (
        f"update log set last_time = {MADE_MS}"
    ),
    "message 14 begins at byte 2 of 1": "update message set bare = 2 where id = 14",
    "message 3 is in the log, which begins at 4": "update log set first_id = 4",
    "message 5 counts 2 references that hold it, and has 1": "update message set held = 2 where id = 5",
    "message 6 counts 1 references that hold it, and has 0": (
        "delete from reference where message = 6; "
        "update endpoint set depth = depth - 1, size_bytes = size_bytes - 2 where number = 1"
    ),
    "endpoint 1 refers to message 77, which does not exist": (
        "insert into reference (endpoint, message) values (1, 77)"
    ),
    "endpoint 2 refers to message 78, which does not exist": (
        "insert into reference (endpoint, message) values (2, 78)"
    ),
    "4 references are of number 2, which is neither an endpoint nor waits for collection": (
        "delete from garbage"
    ),
    "message 13 on endpoint 3 was delivered -1 times": (
        "update reference set attempts = -1 where message = 13"
    ),
    "message 13 on endpoint 3 (r) has the priority None there, and its header says 4": (
        """update endpoint set settings = '{"priorities": true}' where number = 3"""
    ),
    "message 14 has a priority, 4, on endpoint 3 (r), which does not deliver by it": (
        "update reference set priority = 4 where message = 14"
    ),
    "endpoint 3 (r) has a depth of 7 with 2 bytes on record, and 2 messages with 2 bytes lie on it": (
        "update endpoint set depth = 7 where number = 3"
    ),
    "endpoint 1 (q) has a depth of 8 with 1 bytes on record, and 8 messages with 28 bytes lie on it": (
        "update endpoint set size_bytes = 1 where number = 1"
    ),
    "number 3 is in use, and the next one to be given out is 3": "update log set next_number = 3",
    "endpoint 1 waits for collection, and is in use": "insert into garbage values (1)",
    "number 9 is subscribed to b, and is no endpoint": "insert into subscription values (9, 'b')",
    "the log has 1 bytes on record, and holds 24": "update log set size_bytes = 1",
    "the largest content has 5 bytes, above the largest on record of 4": "update log set largest_bytes = 4",
    "the log begins at 16, behind its end: its last id is 14": "update log set first_id = 16",
    "the log is archived up to 15, behind its end: its last id is 14": "update log set archived_id = 15",
    "point p stands at 16, behind the log's last id 14": "update point set position = 16",
    "1 rows of the index are of number 1, which indexes no property": "delete from indexed",
    "message 3 is filed in segment 5 of the index instead of 0": "update property_value set segment = 5",
}


@pytest.mark.parametrize("expected", DAMAGES)
def test_damage_is_found(sound: Path, expected: str) -> None:
    """Each planted damage is named, with the rows it is about."""
    with closing(sqlite3.connect(sound)) as connection:
        connection.executescript(DAMAGES[expected])
    assert any(sentence.startswith(expected) for sentence in check(sound)), check(sound)


def test_every_promise_is_tested(sound: Path, fresh: Callable[[], Path]) -> None:
    """For each promise there is a damage above that breaks it."""
    open_file(sound, MADE_MS, synchronous="OFF")  # leaves no WAL beside it
    told: list[str] = []
    for damage in DAMAGES.values():
        path = fresh()
        shutil.copy(sound, path)
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(damage)
        told += check(path)
    for promise in PROMISES:
        pattern = re.compile(re.escape(promise.broken).replace(re.escape("{}"), ".+"))
        assert any(map(pattern.fullmatch, told)), promise.broken


def test_much_damage_is_counted_rather_than_listed(sound: Path) -> None:
    """A thousand broken rows give a few examples and a number."""
    with closing(sqlite3.connect(sound)) as connection, connection:
        connection.executemany("insert into subscription values (9, ?)", [(f"t/{k}",) for k in range(1_000)])
    found = check(sound)
    assert len(found) == MOST_EXAMPLES + 1
    assert found[-1] == f"… and {1_000 - MOST_EXAMPLES} more like that"


def test_a_damaged_page_is_found(sound: Path) -> None:
    """What SQLite itself cannot make sense of is told in its words."""
    open_file(sound, MADE_MS, synchronous="OFF")  # leaves no WAL beside it
    content = bytearray(sound.read_bytes())
    content[4096:8192] = b"\x5a" * 4096
    sound.write_bytes(content)
    (first, *_) = check(sound)
    assert "SQLite" in first or "malformed" in first


@pytest.mark.parametrize("content", [b"this is no database" * 100, b""], ids=["text", "empty"])
def test_what_is_no_gateways_file_is_told_so(tmp_path: Path, content: bytes) -> None:
    """One sentence, whatever the file is; it is left as it was."""
    path = tmp_path / "x.db"
    path.write_bytes(content)
    (found,) = check(path)
    assert "not a database" in found or "no file of a gateway" in found
    assert path.read_bytes() == content


def test_a_missing_file_is_told_so_and_not_made(tmp_path: Path) -> None:
    """Looking makes nothing."""
    path = tmp_path / "x.db"
    assert check(path) == [f"there is no file {path}"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_a_later_version_is_told_so(sound: Path) -> None:
    """Its promises are others: no guess is made."""
    with closing(sqlite3.connect(sound)) as connection, connection:
        connection.execute(
            "insert into _sqlite_migrations (migration_set, name, applied_at) values ('rewind', 'm999_new', '')"
        )
    assert check(sound) == ["it knows m999_new: it was written by a later version"]


def test_a_file_in_use_is_checked_as_it_is_at_one_moment(sound: Path) -> None:
    """A writer that is at work meanwhile neither waits nor causes a false alarm."""
    with closing(writing_to(sound)) as connection:
        connection.execute("begin immediate")
        connection.execute("update log set size_bytes = 0")
        assert check(sound) == []
        connection.execute("rollback")
