"""Erased messages of an archive: its files are written anew, and no version of the table has the contents."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from shutil import copytree

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from gateway.core.effects import EraseMessages
from spark_bridge.source import DDL
from store.archive import maintenance
from store.archive.erasures import Erasure, Erasures
from store.archive.maintenance import DAY_MS, compact
from store.archive.storage import FolderStorage, Step, no_step, storage_at
from store.archive.table import ArchiveTable
from tests.gateway.admin.test_erasing import is_marker
from tests.gateway.amqp.conftest import Connect, Telling
from tests.spark_bridge.places.test_log_file import table
from tests.spark_bridge.stored_log import StoredLog
from tests.store.archive.archives import archiver, ids, state_of, two_days
from tests.store.archive.begun import Begin, Past, administered, of_a
from tests.store.archive.test_archive_verb import rewind
from tests.store.vpn_file import MADE_MS
from tests.support.postgresql import eventually
from tests.system.gateway_process import GatewayProcess
from tests.system.test_erased import CONFIG, kill_erasing

pytestmark = pytest.mark.spark
WHEN = Erasure(1_700_000_000_123, "asked to")
SOME = [3, 14, 15, 42]


@pytest.fixture
def archived(tmp_path: Path) -> tuple[StoredLog, str]:
    """A log, and its archive in several files."""
    log, to = two_days(tmp_path / "data"), str(tmp_path / "archive")
    archiver(log, to).run()
    return log, to


def erase(to: str, step: Step = no_step) -> None:
    """As a gateway does."""
    maintenance.erase(FolderStorage(Path(to), step), dict.fromkeys(SOME, WHEN), step)


def contents(folder: str) -> bytes:
    """All that any file of a folder holds, decoded."""
    tables = [pq.read_table(path) for path in Path(folder).glob("*.parquet")]
    return b" ".join(
        value for table in tables for row in table.to_pylist() for value in (row["body"], row["envelope"])
    )


def erased_ids(to: str) -> list[int]:
    """Those that a reader is given markers for."""
    found = table("offset bigint, bodyType string", archive=to).to_pylist()
    return [row["offset"] for row in found if row["bodyType"] == "value"]


def test_the_archive_s_rows_are_the_log_s(archived: tuple[StoredLog, str]) -> None:
    """
    All columns of all rows: those of erased messages, and the others, before and after a compaction. What was there
    before the erasure, or was left by earlier compactions, is in no file any more.
    """
    log, to = archived
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
        # It had none of them yet, or cannot be read any more.
        with suppress(FileNotFoundError):
            found = DeltaTable(to, version=version).to_pyarrow_table().column("messageId").to_pylist()
            assert not {f"id-{i}" for i in SOME} & set(found)
    compact(FolderStorage(Path(to)), is_all=True)
    assert table(DDL, archive=to).to_pylist() == live.to_pylist()
    erased = [row for row in live.to_pylist() if row["bodyType"] == "value"]
    assert [row["offset"] for row in erased] == SOME
    assert dict(erased[0]["systemProperties"])["x-opt-erased-reason"] == "asked to"


@pytest.mark.parametrize("at", ["written", "published"])
def test_an_archiver_does_not_commit_what_is_erased_meanwhile(tmp_path: Path, at: str) -> None:
    """It had read messages before they were erased, and would commit them after: it reads the log again."""
    log, to = two_days(tmp_path / "data"), str(tmp_path / "archive")
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


def test_a_compaction_gives_nothing_back_that_is_erased_meanwhile(archived: tuple[StoredLog, str]) -> None:
    """It had read messages before they were erased: it begins again."""
    log, to = archived
    is_due = True

    def meanwhile(name: str) -> None:
        nonlocal is_due
        if name == "published" and is_due:
            is_due = False
            erase(to)

    compact(FolderStorage(Path(to), meanwhile), is_all=True)
    assert erased_ids(to) == SOME
    assert ids(archive=to) == log.logged


def test_an_erasure_that_crashes_is_ended_by_the_next(archived: tuple[StoredLog, str]) -> None:
    """As it is at each of its steps, every reader finds each id once; once more, and nothing is left of it."""
    log, to = archived
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
    """Trimmed from the log, replayed out of the archive: a marker, also for a gateway that starts anew."""
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
    """Before the store's commit or after it: log, archive and queue have the markers, and the crash's time."""
    gateway, archive, _client = past(40, 31, queues=of_a())
    generation = gateway.call(lambda running: running.vpns["default"].log.generation)
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
    """It has the contents until the store has committed; afterwards it is written as soon as that can be."""
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
    """What was erased when its gateway was killed is erased in both, or in neither, once another one has started."""
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

    kill_erasing(begin, 3, look)
