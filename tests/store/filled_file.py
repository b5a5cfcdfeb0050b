"""A file with rows in most tables, for tests that copy whole files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.core.effects import SavePoint, SaveReplayRecord, SaveSubscription
from gateway.core.model import COPY, Point, ReplayRecord
from store.sqlite.check import check
from tests.store.effects import BY_PRIORITY, publication, queue, settled, trimming, trimming_topics
from tests.store.vpn_file import MADE_MS, execute, query, written


def filled_file(path: Path) -> None:
    """
    Fill an empty file with queues, one of them by priority; messages that are logged, held or trimmed, with gaps in the
    ids; a topic with U+0000; messages removed by a rule of retention; a point; the record of a replay; and an index.
    """
    written(
        path,
        [
            [*queue(1, "q"), *queue(2, "r", settings=BY_PRIORITY), SaveSubscription(1, "a/>")],
            [
                publication(
                    1, [b"12345" * 200] * 40, topic="a\0/\1", endpoints=(1, 2), time_ms=MADE_MS, ranked=True
                )
            ],
            [publication(41, [b"12"] * 40, endpoints=(1,), logged=False, time_ms=MADE_MS + 5)],
            [publication(5_000, [b"12"] * 40, endpoints=(1, 2), time_ms=MADE_MS + 6, ranked=True)],
            lambda model: settled(model, 1, [2, 4, 6], is_joined=False),
            lambda model: [trimming(model, 30)],
            [SavePoint(Point("p", 40, MADE_MS, MADE_MS))],
            [SaveReplayRecord(ReplayRecord(1, "r\u00e9", COPY, "ops", target="#queue/q", position=7))],
            lambda model: [trimming_topics(model, r'[["\u00e9/>"], ["\u0000"]]', [5_001, 5_003])],
            [publication(20_000, [b"1"] * 2, endpoints=(1, 2), time_ms=MADE_MS + 9, ranked=True)],
        ],
    )
    execute(
        path,
        "insert into indexed values (3, 'p', 1, null)",
        "insert into property_value values (0, 3, 'x', 35), (0, 3, 'x', 36), (2, 3, 'y', 20000)",
    )
    assert check(path) == []


def rows_of(path: Path) -> dict[str, list[Any]]:
    tables = [name for (name,) in query(path, "select name from sqlite_schema where type = 'table'")]
    return {
        name: query(path, f"select * from {name}")
        for name in tables
        if name[0] != "_" and name != "copy_mark"
    }
