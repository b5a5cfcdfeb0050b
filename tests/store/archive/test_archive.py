"""Archiving, the table, compaction and erasures: the archive is complete and exact, wherever a process crashes."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from proton import symbol, timestamp, ulong

from amqp_ext.replay_id import format_replay_id
from gateway.config import Vpn
from gateway.config.vpn import ArchivedLog
from gateway.core.effects import EraseMessages
from spark_bridge.source import DDL
from store.archive import archiver as archivers
from store.archive import maintenance
from store.archive.archiver import Archiver, Limits
from store.archive.erasures import Erasure, Erasures
from store.archive.errors import ArchiveError, ConnectionFailed, DataLoss, LogError
from store.archive.maintenance import DAY_MS, compact, convert
from store.archive.segments import messages_at
from store.archive.storage import FolderStorage, Step, no_step, storage_at
from store.archive.table import ArchiveTable, CommitConflict, Segment
from tests.gateway.admin.test_erasing import is_marker
from tests.gateway.amqp.conftest import Connect, Telling
from tests.spark_bridge.log_gateway import LogGateway
from tests.spark_bridge.places.test_log_file import EVERY_KIND
from tests.spark_bridge.reading import source, table
from tests.spark_bridge.spark_types import struct
from tests.spark_bridge.stored_log import StoredLog
from tests.store.archive.archives import IDS, archiver, ids, log_of, state_of, two_days
from tests.store.archive.begun import Begin, Past, administered, of_a
from tests.store.archive.log_archive import LogArchive
from tests.store.archive.test_archive_verb import rewind
from tests.store.vpn_file import MADE_MS
from tests.support import starts
from tests.support.client import Client, Refused, texts
from tests.support.postgresql import eventually
from tests.support.running import RunningGateway
from tests.support.starts import STARTS, Start
from tests.system.gateway_process import GatewayProcess
from tests.system.test_kill import CONFIG, kill_erasing

pytestmark = pytest.mark.spark


# --- Archiving, the table and compaction ----------------------------------------------------------------------------


class Crash(BaseException):
    """Stands for the end of the process: a BaseException, which the product nowhere catches."""


class CrashAt:
    """Records the steps, and raises ``Crash`` at the step of this number."""

    def __init__(self, number: int | None = None) -> None:
        self.names: list[str] = []
        self._number = number

    def __call__(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) - 1 == self._number:
            raise Crash(name)


@pytest.fixture
def log(tmp_path: Path) -> StoredLog:
    return two_days(tmp_path / "data")


@pytest.fixture
def to(tmp_path: Path) -> str:
    return str(tmp_path / "archive")


def vacuum(to: str) -> None:
    """Remove all files that the newest version of the table does not name, at any age."""
    table = ArchiveTable(storage_at(to))
    table.refresh()
    table.vacuum(0)


# --- archiving --------------------------------------------------------------------------------------------------
@pytest.mark.system
def test_path_url_and_archive_give_the_same_rows(tmp_path: Path) -> None:
    """With bodies of every kind, nulls, Unicode, empty ones and a megabyte; each message is archived bit for bit."""
    with LogGateway(tmp_path / "gateway") as gateway:
        gateway.publish(EVERY_KIND)
        expected = table(path=gateway.path)
        for name, place in {"path": gateway.path, "url": gateway.url}.items():
            to = str(tmp_path / name)
            Archiver(log_of({name: place}), storage_at(to), Limits(rows=7)).run()
            for options in ({"archive": to}, {"archive": to, name: place}):
                found = table(**options)
                assert found.to_pylist() == expected.to_pylist()
                assert found.schema == expected.schema
                assert table("partition int, body binary", **options).to_pylist() == (
                    expected.select(["partition", "body"]).to_pylist()
                )
                assert ids(subscribe="t/b/*,!t/a", **options) == ids(path=gateway.path, subscribe="t/b/*")
        with closing(sqlite3.connect(Path(gateway.path) / "default.db")) as file:
            contents = [content for (content,) in file.execute("select content from message order by id")]
        rows = ds.dataset(str(tmp_path / "path")).to_table().sort_by("offset")
        assert messages_at(rows, range(rows.num_rows)).contents == contents


def test_segments_are_plain_parquet_in_zstd(log: StoredLog, to: str) -> None:
    """Any Parquet reader gets each logged id once and nothing else; the columns of the data source come first."""
    archiver(log, to).run()
    found = ds.dataset(to).to_table()
    assert sorted(found.column("offset").to_pylist()) == log.logged
    assert found.column_names[:3] == ["offset", "enqueuedTime", "topic"]
    assert found.column_names[-2:] == ["envelope", "bodyAt"]
    first = next(iter(sorted(Path(to).glob("*.parquet"))))
    assert pq.ParquetFile(first).metadata.row_group(0).column(3).compression == "ZSTD"


def test_segments_keep_to_their_bounds_and_cover_every_id(log: StoredLog, to: str) -> None:
    """No segment exceeds its limit of rows, each begins at the id after the last, and together they are the log."""
    archiver(log, to).run()
    segments = state_of(to).segments
    assert [segment.rows for segment in segments] == [10, 10, 10, 10, 5]
    assert [segment.first for segment in segments] == [1, *(segment.last + 1 for segment in segments[:-1])]
    assert (segments[-1].last, log.archived) == (50, 50)
    large = Archiver(log_of({"path": log.path}), storage_at(to + "2"), Limits(bytes=1))
    large.run()
    assert ids(archive=to + "2") == log.logged


def test_a_second_run_goes_on_where_the_first_ended(log: StoredLog, to: str) -> None:
    """No message is archived twice, and a run with nothing to archive commits nothing."""
    archiver(log, to).run()
    archiver(log, to).run()
    version = state_of(to).version
    log.publish(7)
    archiver(log, to).run()
    assert state_of(to).version == version + 1
    assert ids(archive=to) == log.logged


def test_after_a_crash_at_any_step_the_archive_becomes_whole(log: StoredLog, tmp_path: Path) -> None:
    """The archiver crashes after each of its steps (written, synced, linked, committed, told). Each time the table is
    sound, the gateway was told of no id that is not archived, and after the next run each id is there once. A vacuum
    removes the files that the table does not name."""
    whole = CrashAt()
    archiver(log, str(tmp_path / "whole"), whole, rows=30).run()
    assert len(whole.names) == 2 * (4 + 2)  # file, committed and told
    for number in range(len(whole.names)):
        to, crashing = str(tmp_path / f"{number}"), CrashAt(number)
        told: list[int] = []
        crashed = archiver(log, to, crashing, rows=30)
        crashed.told = lambda last, _, told=told: told.append(last)  # type: ignore[misc]
        with pytest.raises(Crash):
            crashed.run()
        state = state_of(to)
        assert max(told, default=0) <= state.last, crashing.names[-1]
        if state.segments:
            assert ids(archive=to) == [i for i in log.logged if i <= state.last]
        again = archiver(log, to, rows=30)
        again.told = lambda last, _, told=told: told.append(last)  # type: ignore[misc]
        again.run()
        assert ids(archive=to) == log.logged, crashing.names[-1]
        assert told[-1] == log.last
        vacuum(to)
        assert sorted(path.name for path in Path(to).glob("*.*")) == sorted(
            segment.file for segment in state_of(to).segments
        )


def test_a_gateway_that_cannot_be_told_is_told_by_the_next_run(log: StoredLog, to: str) -> None:
    """The log is archived, but the run fails and says why: otherwise a full log would wait for room in vain."""
    warned: list[str] = []

    def away(_last: int, _generation: int) -> None:
        raise ArchiveError("nobody there")

    run = archiver(log, to)
    run.told, run.warned = away, warned.append
    with pytest.raises(ArchiveError, match="the gateway was not told"):
        run.run()
    assert set(warned) == {"nobody there"}
    assert (ids(archive=to), log.archived) == (log.logged, 0)
    archiver(log, to).run()
    assert log.archived == 50


def test_another_generation_is_not_archived_on_top(log: StoredLog, to: str, tmp_path: Path) -> None:
    """A recreated log has other messages under the same ids: archiver and reader refuse it as data loss."""
    archiver(log, to).run()
    other = StoredLog(tmp_path / "other")
    other.publish(90)
    with pytest.raises(DataLoss, match="the log was recreated since"):
        archiver(other, to).run()
    with pytest.raises(DataLoss, match=r"it was recreated since\. Give the archive of this log"):
        table(IDS, path=other.path, archive=to)


def test_what_was_trimmed_before_it_was_archived_is_told(log: StoredLog, to: str) -> None:
    """The archiver fails at the gap until it is told to skip it; then readers fail unless they accept the loss."""
    archiver(log, to).run()
    log.publish(20)
    log.trim(60)
    with pytest.raises(DataLoss, match="The log begins at 60, but the archive ends at 50"):
        archiver(log, to).run()
    run = archiver(log, to)
    run.skip_lost = True
    run.run()
    with pytest.raises(DataLoss, match="lacks offsets 51 to 59"):
        ids(archive=to)
    assert ids(archive=to, failOnDataLoss="false") == [i for i in log.logged if not 50 < i < 60]


def test_two_archivers_take_turns(log: StoredLog, to: str) -> None:
    """The archiver that commits second continues after the ids that the first has committed: no id is there twice."""
    second = archiver(log, to, rows=7)

    def meanwhile(name: str) -> None:
        if name == "published" and len(state_of(to).segments) < 3:
            second.run()

    archiver(log, to, meanwhile).run()
    assert ids(archive=to) == log.logged
    assert [segment.rows for segment in state_of(to).segments] == [7, 7, 7, 7, 7, 7, 3]
    assert len(list(Path(to).glob("*.parquet"))) == 7


def test_following_ends_with_the_segment_it_is_at(log: StoredLog, to: str) -> None:
    """The archiver stops between two segments; what it has written is complete, and the next run continues."""
    run = archiver(log, to)
    run.progress = lambda _segment, _last: run.stopped.set()
    run.run(follow=True)
    assert 0 < state_of(to).last < 50
    archiver(log, to).run()
    assert ids(archive=to) == log.logged


def test_following_archives_what_comes(log: StoredLog, to: str) -> None:
    """An archiver that follows the log writes new messages into new segments until it is stopped."""
    run = archiver(log, to, rows=1_000)
    run.limits = Limits(age_seconds=0)

    def progress(_segment: Segment, last: int) -> None:
        if last >= 80:
            run.stopped.set()
        else:
            log.publish(10)

    run.progress = progress
    run.run(follow=True)
    assert [segment.high for segment in state_of(to).segments] == [49, 59, 69, 79]
    assert log.archived == 80


def test_following_outlives_a_gateway_that_is_away(
    log: StoredLog, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archiver retries while the log's file is missing; a log that never existed is an error immediately."""
    monkeypatch.setattr(archivers, "RETRY_SECONDS", 0)
    file, aside = Path(log.path) / "default.db", Path(log.path) / "aside"
    warned: list[str] = []
    run = archiver(log, to)
    run.told = None

    def progress(segment: Segment, last: int) -> None:
        if last >= 60 and segment.last == last:
            run.stopped.set()
        elif segment.last == 50:
            file.rename(aside)

    def back(sentence: str) -> None:
        warned.append(sentence)
        aside.rename(file)
        log.publish(10)

    run.limits = Limits(rows=10, age_seconds=0)
    run.progress, run.warned = progress, back
    run.run(follow=True)
    assert len(warned) == 1
    assert ids(archive=to) == log.logged
    with pytest.raises(ConnectionFailed, match="There is no"):
        Archiver(log_of({"path": to}), storage_at(to)).run(follow=True)


# --- the table --------------------------------------------------------------------------------------------------
def test_a_checkpoint_serves_who_comes_new(log: StoredLog, to: str) -> None:
    """A new reader begins at the newest checkpoint: the commits before it may be missing."""
    log.publish(60)
    archiver(log, to, rows=1).run()
    (checkpoint,) = (Path(to) / "_delta_log").glob("*.checkpoint.parquet")
    assert int(checkpoint.name[:20]) == 99
    for number in range(99):
        (Path(to) / "_delta_log" / f"{number:020}.json").unlink()
    assert ids(archive=to) == log.logged


def test_only_one_of_two_commits_is_taken(log: StoredLog, to: str) -> None:
    """The second of two commits from one state conflicts, and so does one that began before an erasure."""
    archiver(log, to).run()
    one, other = ArchiveTable(storage_at(to)), ArchiveTable(storage_at(to))
    state = one.refresh()
    other.refresh()
    new = Segment("a.parquet", 51, 60, 51, 60, 10, 100, 0, 0)
    one.append(new, 0)
    with pytest.raises(CommitConflict):
        other.append(replace(new, file="y.parquet"), 0)
    with pytest.raises(CommitConflict):
        one.append(new, 0)
    one.refresh(), other.refresh()
    one.exchange([replace(state.segments[0], file="c.parquet")], state.segments[:1], is_erasing=True)
    with pytest.raises(CommitConflict):
        other.exchange([replace(new, file="y.parquet")], state.segments[:1], is_erasing=False)
    for each in (one, other):
        each.refresh()
        with pytest.raises(CommitConflict):
            each.append(Segment("b.parquet", 61, 70, 61, 70, 10, 100, 0, 0), 0)
    with pytest.raises(CommitConflict):
        one.exchange([], [Segment("z.parquet", 1, 10, 1, 10, 10, 100, 0, 0)], is_erasing=False)
    with pytest.raises(DataLoss, match="is of generation"):
        one.create(8, None)


def test_a_commit_whose_answer_is_lost_keeps_its_files(
    log: StoredLog, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store that repeats a commit refuses it for the first try: its files are the table's, and stay."""
    commit = DeltaTable.create_write_transaction

    def repeated(table: DeltaTable, *given: Any, **more: Any) -> None:
        commit(table, *given, **more)
        raise CommitFailedError("it exists already")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", repeated)
    archiver(log, to, rows=20).run()
    assert log.archived == 50
    assert ids(archive=to) == log.logged
    compact(storage_at(to), is_all=True)
    assert ids(archive=to) == log.logged


@pytest.mark.parametrize(
    "spoil", [lambda path: path.write_text("{"), Path.unlink], ids=["damaged", "missing"]
)
def test_a_commit_that_cannot_be_read_is_told(
    log: StoredLog, to: str, spoil: Callable[[Path], object]
) -> None:
    """Readers and archivers fail: they never take a part of the archive for the whole."""
    archiver(log, to).run()
    spoil(Path(to) / "_delta_log" / f"{2:020}.json")
    for read in (lambda: ids(archive=to), archiver(log, to).run):
        with pytest.raises(ArchiveError, match=r"archive .* cannot be used"):
            read()


def test_a_table_of_something_else_is_refused(log: StoredLog, to: str) -> None:
    """The archiver adds nothing to a Delta table that is not an archive."""
    write_deltalake(to, pa.table({"offset": [1]}))
    with pytest.raises(ArchiveError, match="is not an archive of a replay log"):
        archiver(log, to).run()


def test_what_another_program_optimized_is_read(log: StoredLog, to: str) -> None:
    """Another program rewrites the files under other names and without our checksums; the rows are the same."""
    log.publish(20)
    log.trim(55)
    run = archiver(log, to)
    run.run()
    before = table(archive=to).to_pylist()
    DeltaTable(to).optimize.z_order(["offset"])
    assert table(archive=to).to_pylist() == before
    assert state_of(to).first == 55
    log.publish(5)
    archiver(log, to).run()
    assert ids(archive=to) == [i for i in log.logged if i >= 55]


# --- compaction -------------------------------------------------------------------------------------------------
def test_days_that_are_over_become_one_file_each(log: StoredLog, to: str) -> None:
    """The current day keeps its small files until it is over, or until a compaction of all days."""
    archiver(log, to).run()
    before = table(archive=to).to_pylist()
    day = MADE_MS + 86_400_000
    assert [(s.first, s.rows) for s in compact(storage_at(to), now_ms=day).segments][:2] == [
        (1, 20),
        (23, 10),
    ]
    assert len(compact(storage_at(to), now_ms=day).segments) == 4
    assert len(compact(storage_at(to), is_all=True, now_ms=day).segments) == 2
    assert table(archive=to).to_pylist() == before
    assert len(list(Path(to).glob("*.parquet"))) > 2
    vacuum(to)
    assert sorted(path.name for path in Path(to).glob("*.parquet")) == [s.file for s in state_of(to).segments]


def test_compaction_is_safe_at_every_step(log: StoredLog, tmp_path: Path) -> None:
    """At each step readers find each id once, also one that began before; a crash at any step loses nothing."""

    def archived(name: str) -> str:
        to = str(tmp_path / name)
        archiver(log, to).run()
        return to

    to = archived("watched")
    reader = source(archive=to, minPartitions="1").reader(struct(IDS))
    reading = reader.read(reader.partitions()[0])
    early = next(reading).column(0).to_pylist()
    names: list[str] = []

    def look(name: str) -> None:
        names.append(name)
        assert ids(archive=to) == log.logged, name

    compact(FolderStorage(Path(to), look), is_all=True)
    assert early + [i for batch in reading for i in batch.column(0).to_pylist()] == log.logged
    assert len(names) == 2 * 5
    for number in range(len(names)):
        to, crashing = archived(str(number)), CrashAt(number)
        with pytest.raises(Crash):
            compact(FolderStorage(Path(to), crashing), is_all=True)
        assert ids(archive=to) == log.logged, crashing.names[-1]
        compact(storage_at(to), is_all=True)
        archiver(log, to).run()
        assert ids(archive=to) == log.logged, crashing.names[-1]
        vacuum(to)
        assert sorted(path.name for path in Path(to).glob("*.*")) == [
            segment.file for segment in state_of(to).segments
        ]


# --- what is damaged --------------------------------------------------------------------------------------------
def test_a_missing_file_is_told(log: StoredLog, to: str) -> None:
    """A read fails if a file that the table names is missing; it does not return fewer rows."""
    archiver(log, to).run()
    (Path(to) / state_of(to).segments[1].file).unlink()
    with pytest.raises(LogError, match="is missing"):
        ids(archive=to)


def test_a_file_with_other_rows_than_the_table_says_is_told(log: StoredLog, to: str) -> None:
    """A read, or a look-up by time, fails at a file that was replaced, rather than returning other rows."""
    archiver(log, to).run()
    first, second, *_ = state_of(to).segments
    table = pq.read_table(Path(to) / second.file)
    pq.write_table(table.slice(1), Path(to) / second.file)
    with pytest.raises(ArchiveError, match=f"{second.file} .* is not what was written"):
        ids(archive=to)
    (Path(to) / first.file).write_bytes(b"PAR1")
    with pytest.raises(ArchiveError, match=first.file):
        ids(archive=to, startingTimestamp="0")


# --- archives of earlier versions -------------------------------------------------------------------------------
def old_form(to: str, log: StoredLog) -> None:
    """Turn the archive into one of an earlier version: entries in place of commits, one of them an exchange."""
    folder = Path(to)
    entries = folder / "_manifest"
    entries.mkdir()
    files = [
        {"file": one.file, "first": one.first, "last": one.last, "rows": one.rows}
        | {"bytes": 1, "first_ms": one.first_ms, "last_ms": one.last_ms, "footer": 1}
        for one in state_of(to).segments
    ]
    before = [{**files[0], "file": "a.parquet"}]
    for number, (added, removed) in enumerate([(before, []), (files[:1], before), (files[1:], [])], 1):
        entry = {"format": 2, "number": number, "generation": log.generation, "added": added}
        entry["removed"] = [file["file"] for file in removed]
        (entries / f"{number:020}.json").write_text(json.dumps(entry))
    (entries / "archiver.lock").touch()
    shutil.rmtree(folder / "_delta_log")
    (folder / "_erased").mkdir()
    told = {"format": 1, "generation": log.generation, "time": 5, "reason": "asked to", "ids": [3, 999]}
    (folder / "_erased" / "x.json").write_text(json.dumps(told))


def test_an_archive_of_the_old_form_is_converted_once(log: StoredLog, to: str) -> None:
    """Conversion is in place, rewrites only the file with an erased message, and can be repeated if interrupted."""
    archiver(log, to).run()
    before = table(archive=to).to_pylist()
    old_form(to, log)
    files = {path.name for path in Path(to).glob("*.parquet")}
    with pytest.raises(ArchiveError, match="run `rewind archive convert"):
        ids(archive=to)
    shutil.copytree(to, to + "-interrupted")
    convert(storage_at(to))
    after = table(archive=to).to_pylist()
    assert [row for row in after if row["offset"] != 3] == [row for row in before if row["offset"] != 3]
    assert [row["bodyType"] for row in after if row["offset"] == 3] == ["value"]
    assert len(files & {path.name for path in Path(to).glob("*.parquet")}) == len(files) - 1
    assert storage_at(to).names("_manifest") == storage_at(to).names("_erased") == []
    shutil.copytree(Path(to) / "_delta_log", Path(to + "-interrupted") / "_delta_log")
    for path in Path(to).glob("*.parquet"):
        shutil.copy(path, to + "-interrupted")
    for where in (to, to + "-interrupted"):
        convert(storage_at(where))
        assert table(archive=where).to_pylist() == after
    log.publish(5)
    archiver(log, to).run()
    assert ids(archive=to) == log.logged


def test_an_old_archive_that_is_not_whole_is_not_converted(log: StoredLog, to: str) -> None:
    """Without the missing entry the archive would look shorter than it is. No archive at all is an error, too."""
    with pytest.raises(ArchiveError, match="There is no archive at"):
        convert(storage_at(to))
    archiver(log, to).run()
    old_form(to, log)
    (Path(to) / "_manifest" / f"{2:020}.json").unlink()
    with pytest.raises(ArchiveError, match=r"is missing"):
        convert(storage_at(to))
    (Path(to) / "_manifest" / f"{2:020}.json").write_text("{")
    with pytest.raises(ArchiveError, match=r"is damaged"):
        convert(storage_at(to))


# --- Starts within the archive --------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[6, 11])
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningGateway]:
    """The log of ``tests.support.starts``, trimmed to an id, with all of it archived in files of four messages."""
    folder = tmp_path_factory.mktemp("starts")
    vpn = Vpn(archive=ArchivedLog(place=str(folder / "archive")))
    with starts.gateway_with_log(folder / "data", ["orders"], vpn) as running:
        LogArchive(running, folder / "archive").archive_and_trim(request.param)
        with Client(running.url) as client:
            client.wait(
                lambda: running.call(lambda gateway: gateway.vpns["default"].broker.history.first_id) == 1,
                "it is known what the archive has",
            )
        yield running


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[Client]:
    with Client(gateway.url) as client:
        yield client


@pytest.fixture
def generation(client: Client) -> int:
    return int(client.receiver("log://>").link.remote_properties["rewind:replay-generation"])


@pytest.mark.parametrize("source", ["log://>", "orders"])
@pytest.mark.parametrize("start", STARTS, ids=[start.name for start in STARTS])
def test_every_way_to_ask(client: Client, generation: int, start: Start, source: str) -> None:
    """From log and endpoint come the same messages, ids and times, and the reply names the first of them."""
    receiver = client.receiver(**start.arguments(source, generation))
    numbers = range(start.first, starts.COUNT)
    if source == "orders" and start.first == starts.LIVE:
        receiver.close()
        return
    taken = receiver.drain()
    receiver.settle(taken)
    assert texts(taken) == [str(number) for number in numbers]
    assert [message.id for message in taken] == [number + 1 for number in numbers]
    assert [message.is_end for message in taken] == [number == starts.COUNT - 1 for number in numbers]
    assert [message.annotations["x-opt-enqueued-time"] for message in taken] == [
        starts.arrival_ms(number) for number in numbers
    ]
    answer = receiver.start
    assert answer["offset"] == start.first + 1
    assert answer["id"] == format_replay_id(generation, start.first + 1)
    if start.first < starts.COUNT:
        assert answer["date"] == starts.arrival_ms(start.first)
    assert receiver.link.remote_properties["rewind:replay-first"] == 1
    receiver.close()


@pytest.mark.parametrize(
    ("until", "last"), [("%235", 4), ("2027-01-15T08:00:05Z", 4), ("2027-01-15T08:00:05.999Z", 4), ("now", 9)]
)
def test_a_bounded_read_ends_where_it_would(client: Client, until: str, last: int) -> None:
    """The end of the read may be in the archive or in the log."""
    receiver = client.receiver(f"log://>?replay-start=beginning&until={until}")
    assert texts(receiver.take_to_end()) == [str(number) for number in range(last + 1)]


@pytest.mark.parametrize(
    ("start", "error", "sentence"),
    [
        ({"offset": ulong(0)}, 156, "offset 0 is not in the replay log"),
        (
            {"date": timestamp(starts.BEGAN_MS)},
            143,
            "the start date is before the log and its archive, which are",
        ),
        ({"match": "n = 1"}, 156, "no message for match:n = 1"),
        ({"message-id": "none"}, 156, "no message for message-id:none"),
    ],
)
def test_a_start_that_neither_has_is_refused(
    client: Client, start: dict[str, object], error: int, sentence: str
) -> None:
    """The refusal says which ids the log and the archive have, so that the client can ask for one of them."""
    with pytest.raises(Refused) as refused:
        client.receiver("log://>", filters={"rewind:replay-start": {symbol(k): v for k, v in start.items()}})
    assert refused.value.subcode == error
    assert sentence in refused.value.text
    assert "its archive has ids 1 to 10" in refused.value.text


# --- Erased messages: the archive's files are rewritten, and no version of the table has the contents -----------------

WHEN = Erasure(1_700_000_000_123, "asked to")
SOME = [3, 14, 15, 42]


def erase(to: str, step: Step = no_step) -> None:
    """Erase the messages ``SOME`` in the archive, as a gateway does."""
    maintenance.erase(FolderStorage(Path(to), step), dict.fromkeys(SOME, WHEN))


def contents(folder: str) -> bytes:
    """Body and envelope of every row of every Parquet file in the folder."""
    tables = [pq.read_table(path) for path in Path(folder).glob("*.parquet")]
    return b" ".join(
        value for table in tables for row in table.to_pylist() for value in (row["body"], row["envelope"])
    )


def erased_ids(to: str) -> list[int]:
    """The ids for which a reader gets the marker of an erased message."""
    found = table("offset bigint, bodyType string", archive=to).to_pylist()
    return [row["offset"] for row in found if row["bodyType"] == "value"]


def test_the_archive_s_rows_are_the_log_s(log: StoredLog, to: str) -> None:
    """
    After an erasure, all columns of all rows are equal in log and archive, before and after a compaction. No file holds
    the erased contents any more, and neither does any earlier version of the table.
    """
    archiver(log, to).run()
    compact(FolderStorage(Path(to)), now_ms=MADE_MS + DAY_MS)
    versions = range(ArchiveTable(storage_at(to)).refresh().version + 1)
    assert b"id-42" in contents(to)
    erase(to)
    log.erase(SOME, *WHEN)
    live = table(DDL, path=log.path)
    assert table(DDL, archive=to).to_pylist() == live.to_pylist()
    for i in SOME:
        assert b"id-%d" % i not in contents(to).split()
    for version in versions:
        # An earlier version lacks these messages, or its files are gone.
        with suppress(FileNotFoundError):
            found = DeltaTable(to, version=version).to_pyarrow_table().column("messageId").to_pylist()
            assert not {f"id-{i}" for i in SOME} & set(found)
    compact(FolderStorage(Path(to)), is_all=True)
    assert table(DDL, archive=to).to_pylist() == live.to_pylist()
    erased = [row for row in live.to_pylist() if row["bodyType"] == "value"]
    assert [row["offset"] for row in erased] == SOME
    assert dict(erased[0]["systemProperties"])["x-opt-erased-reason"] == "asked to"


@pytest.mark.parametrize("at", ["written", "published"])
def test_an_archiver_does_not_commit_what_is_erased_meanwhile(log: StoredLog, to: str, at: str) -> None:
    """The archiver has read messages that are erased before its commit: it reads the log again."""
    is_due = True

    def meanwhile(name: str) -> None:
        nonlocal is_due
        if name == at and is_due and state_of(to).last:
            is_due = False
            log.erase(SOME, *WHEN)
            erase(to)

    archiver(log, to, meanwhile, rows=2).run()
    assert not is_due
    assert erased_ids(to) == SOME
    assert ids(archive=to) == log.logged


def test_a_compaction_gives_nothing_back_that_is_erased_meanwhile(log: StoredLog, to: str) -> None:
    """The compaction has read messages that are erased before its commit: it begins again."""
    archiver(log, to).run()
    is_due = True

    def meanwhile(name: str) -> None:
        nonlocal is_due
        if name == "published" and is_due:
            is_due = False
            erase(to)

    compact(FolderStorage(Path(to), meanwhile), is_all=True)
    assert erased_ids(to) == SOME
    assert ids(archive=to) == log.logged


def test_an_erasure_that_crashes_is_ended_by_the_next(log: StoredLog, to: str) -> None:
    """After a crash at any step readers find each id once; the next erasure removes the contents completely."""
    archiver(log, to).run()
    left: list[Path] = []

    def leave(_name: str) -> None:
        left.append(Path(f"{to}-{len(left)}"))
        copytree(to, left[-1])

    erase(to, leave)
    assert len(left) > 5
    for folder in left:
        assert ids(archive=str(folder)) == log.logged
        erase(str(folder))
        assert ids(archive=str(folder)) == log.logged
        assert erased_ids(str(folder)) == SOME
        assert b"id-42" not in contents(str(folder)).split()


def test_a_gateway_erases_what_only_the_archive_has(past: Past) -> None:
    """A reader gets markers for messages that were trimmed from the log, also after a compaction of the archive."""
    gateway, archive, client = past(40, queues=of_a())
    client.receiver("q").settle(client.receiver("q").drain())
    archive.archive_and_trim(31)
    with administered(gateway) as api:
        body = {"msgId": [5, 20, 35], "reason": "asked to"}
        done = api.done("PUT", "action", "/replayLogs/default/redactMsg", body)
        assert (done["msgIds"], done["missingMsgIds"]) == ([5, 20, 35], [])
    for _ in range(2):
        read = client.receiver("log://a?replay-start=beginning").drain()
        assert [one.id for one in read] == list(range(1, 41))
        assert [one.id for one in read if is_marker(one, "asked to")] == [5, 20, 35]
        archive.compact()


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_start_carries_out_what_a_crash_has_interrupted(
    past: Past, begin: Begin, connect: Connect, is_stored: bool
) -> None:
    """Whether the crash came before the store's commit or after it: log, archive and queue have the markers."""
    gateway, archive, _client = past(40, 31, queues=of_a())
    generation = gateway.call(lambda running: running.vpns["default"].broker.log.generation)
    if is_stored:
        with administered(gateway) as api:
            api.done(
                "PUT", "action", "/replayLogs/default/redactMsg", {"msgId": SOME[:3], "reason": WHEN.reason}
            )
    gateway.stop()
    erasures = Erasures(archive.storage)
    assert erasures.begun() == []
    erasures.begin(SOME[:3], WHEN, generation)
    gateway.restart()
    eventually(lambda: not erasures.begun(), "the start ends what is begun")
    for address in ("log://a?replay-start=beginning", "q"):
        read = connect(gateway).receiver(address).drain()
        assert [one.id for one in read if is_marker(one, WHEN.reason)] == SOME[:3]
    assert erased_ids(archive.storage.where) == SOME[:3]


def test_an_archive_that_fails_in_the_middle_is_told_later(past: Past, telling: Telling) -> None:
    """The archive is erased after the store's commit; if that fails, it is repeated until the archive is back."""
    gateway, archive, client = past(40, 31)
    erasures = Erasures(archive.storage)
    folder = Path(archive.storage.where) / "_delta_log"
    telling.hold(EraseMessages)
    with administered(gateway) as api, ThreadPoolExecutor(1) as beside:
        body = {"msgId": [5, 35], "reason": "asked to"}
        asked = beside.submit(api.ask, "PUT", "action", "/replayLogs/default/redactMsg", body)
        eventually(erasures.begun, "it begins")
        assert erased_ids(archive.storage.where) == []
        folder.rename(folder.with_name("_away"))
        folder.write_text("no folder")
        telling.go_on()
        assert "erased everywhere else" in asked.result().json()["meta"]["error"]["description"]
    folder.unlink()
    folder.with_name("_away").rename(folder)
    eventually(lambda: not erasures.begun(), "the archive is told")
    read = client.receiver("log://a?replay-start=beginning").drain()
    assert [one.id for one in read if is_marker(one, "asked to")] == [5, 35]


@pytest.mark.system
def test_kills_leave_log_and_archive_of_one_mind(tmp_path: Path, _ending: ExitStack) -> None:
    """A message whose erasure was interrupted by kill -9 is erased in both, or in neither, after the next start."""
    folder = tmp_path / "archive"
    config = f'{CONFIG}\n[vpn.default.archive]\nfrom = "{folder}"\n'

    def begin() -> GatewayProcess:
        gateway = GatewayProcess(tmp_path / "data", config)
        _ending.callback(gateway.stop)
        erasures = Erasures(FolderStorage(folder))
        eventually(lambda: not erasures.begun(), "a start ends what is begun")
        return gateway

    def look(gateway: GatewayProcess, markers: set[int]) -> None:
        done = rewind("--from", str(gateway.data), "--to", str(folder), "--no-tell", "--rows", "2000")
        assert done.exit_code == 0, done.output
        assert set(erased_ids(str(folder))) == markers

    kill_erasing(begin, look)
