"""Points and indexed properties in a real file: kept, read again, and never another answer than reading it all."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.core.effects import DeletePoint, Effect, Publication, SavePoint
from gateway.core.model import CONTENT, HELD, TOPIC, Point, RouteDefinition, Row
from store.errors import WriteFailed
from store.ports import Batch
from store.property_index import IndexedSpan
from store.reading import PooledReader
from store.recovery import RecoveredStore
from store.sqlite import transaction
from store.sqlite.database import open_file
from store.sqlite.reader import SqliteReader
from store.sqlite.store import recover
from store.sqlite.writer import SqliteWriter
from tests.store.searches import result, search_of
from tests.store.vpn_file import bounds, query
from tests.support.messages import HELD_ROUTE, row, trade

MADE_MS = 1_000


class File:
    """A Message VPN's file: what a gateway does with it from one start to the next is one `run`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "vpn.db"

    def run(self, effects: Iterable[Effect], index: Sequence[str] = ()) -> None:
        """Start with this index, commit each effect on its own, stop."""
        open_file(self.path, MADE_MS, synchronous="NORMAL", index=index).close()
        failures: list[WriteFailed] = []
        writer = SqliteWriter(
            self.path,
            lambda batches, error: failures.append(error) if error else None,
            replace(bounds(), synchronous="NORMAL", checkpoint_bytes=1 << 20),
            recover(self.path),
        )
        for effect in effects:
            writer.submit(Batch([effect], 0))
        writer.close()
        assert not failures

    def publish(self, rows: Sequence[Row], index: Sequence[str] = ()) -> None:
        self.run([publication([one]) for one in rows], index)

    def recover(self) -> RecoveredStore:
        return recover(self.path)

    def count(self, table: str) -> int:
        ((found,),) = query(self.path, f"select count(*) from {table}")
        return int(found)

    @contextmanager
    def reader(self, rows: int = 100, page_bytes: int = 1 << 20, threads: int = 1) -> Iterator[SqliteReader]:
        found = self.recover()
        opened = SqliteReader(
            self.path, bounds(rows, page_bytes, threads), found.largest_bytes, found.indexed
        )
        try:
            yield opened
        finally:
            opened.close()


def publication(rows: list[Row]) -> Publication:
    held = rows[0][HELD]
    routes = [] if held is None else [RouteDefinition(HELD_ROUTE, (1,), None)]
    return Publication(rows, rows[0][TOPIC], routes, held is None, [len(one[CONTENT]) for one in rows], None)


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path)


# --- points -------------------------------------------------------------------------------------------------------


def test_points_are_there_after_a_restart(file: File) -> None:
    """A point is read again as it was written, and a deleted one is not."""
    eod, noon = Point("eod", 3, 20, 30), Point("noon €", 1, 40, 50)
    file.run([SavePoint(eod), SavePoint(noon), SavePoint(Point("gone", 1, 1, 1)), DeletePoint("gone")])
    file.run([])
    assert sorted(file.recover().points, key=lambda point: point.name) == [eod, noon]


def test_ids_below_a_point_are_not_given_out_again(file: File) -> None:
    """After a point at id 9 the next id is at least 9, though the messages in front of it were never stored."""
    file.publish([row(1, trade())])
    file.run([SavePoint(Point("eod", 9, 1, 1))])
    assert file.recover().log.next_id == 9
    file.publish([row(12, trade())])
    file.run([SavePoint(Point("early", 2, 1, 1))])
    assert file.recover().log.next_id == 13


# --- the index ----------------------------------------------------------------------------------------------------


def test_without_an_index_no_message_is_looked_into(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no property is configured nothing more is done for a message than before, and nothing is filed."""

    def forbidden(*args: Any) -> None:
        raise AssertionError("a message was looked into")

    monkeypatch.setattr(transaction, "index_entries", forbidden)
    file.publish([row(1, trade(message_id="m-1"))])
    assert file.count("property_value") == 0


def test_only_configured_properties_of_logged_messages_are_filed(file: File) -> None:
    """One row for each configured property that a logged message has; none for what the log does not hold."""
    file.publish(
        [
            row(1, trade(message_id="m-1", properties={"tradeId": "T", "side": "buy"})),
            row(2, trade(properties={"side": "buy"})),
            row(3, trade(message_id="m-3"), held=1),
        ],
        ["message-id", "tradeId"],
    )
    assert file.count("property_value") == 2


def test_a_span_lasts_while_its_property_is_configured(file: File) -> None:
    """A property is indexed from the start that names it to the start that no longer does, each time anew."""
    file.publish([row(1, trade())])
    file.publish([row(2, trade())], ["a"])
    file.publish([row(3, trade())], ["a", "b"])
    file.publish([row(4, trade())], ["b"])
    file.publish([row(5, trade())], ["b", "a"])
    assert file.recover().indexed == [
        IndexedSpan(1, "a", 2, 4),
        IndexedSpan(2, "b", 3, None),
        IndexedSpan(3, "a", 5, None),
    ]


def test_an_indexed_message_is_found_without_reading_the_log(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a span one page looks the message up; no other way of searching is taken."""
    file.publish([row(i, trade(properties={"tradeId": f"T-{i}"})) for i in range(1, 400)], ["tradeId"])
    monkeypatch.delattr(PooledReader, "_scan")
    monkeypatch.delattr(SqliteReader, "log_page")
    with file.reader(rows=10) as opened:
        assert result(opened, search_of("match:tradeId = 'T-350'"), (">",), 1, 400) == (350, 1)
        assert result(opened, search_of("match:tradeId = 'T-0'"), (">",), 1, 400) == (None, 1)


def test_searching_threads_do_not_share_a_connection(file: File) -> None:
    """Pages of several searches can be read at the same time."""
    file.publish([row(i, trade(message_id=f"m-{i}")) for i in range(1, 101)])
    barrier = threading.Barrier(2, timeout=10)
    with file.reader(threads=2) as opened:

        def read(number: int) -> int | None:
            barrier.wait()
            return opened.search_page(search_of(f"message-id:m-{number}"), (">",), 1, 101).found

        pages = [opened.submit(lambda number=number: read(number)) for number in (40, 60)]
        assert [page.result(10) for page in pages] == [40, 60]
