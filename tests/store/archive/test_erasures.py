"""Erased messages of an archive: every reader has markers at once, as the log has them, and compaction the files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from shutil import copytree

import pytest

from gateway.core.effects import EraseMessages
from spark_bridge.source import DDL
from store.archive.archiver import compact
from store.archive.erasures import Erasure
from store.archive.manifest import Manifest
from store.archive.storage import FolderStorage, storage_at
from store.ports import MAX_ID
from tests.gateway.admin.test_erasing import is_marker
from tests.gateway.amqp.conftest import Connect, Telling
from tests.spark_bridge.places.test_log_file import table
from tests.spark_bridge.stored_log import StoredLog
from tests.store.archive.archives import archiver, ids, two_days
from tests.store.archive.begun import Begin, Past, administered, of_a
from tests.support.postgresql import eventually
from tests.system.gateway_process import GatewayProcess
from tests.system.test_erased import CONFIG, kill_erasing

pytestmark = pytest.mark.spark
WHEN = Erasure(1_700_000_000_123, "asked to")
SOME = [3, 14, 15, 42]


def bytes_of(folder: str) -> list[bytes]:
    """Messages' own bytes in the files, decoded."""
    found = table("offset bigint, messageId string, body binary", archive=folder).to_pylist()
    return [b"%d %s %s" % (row["offset"], str(row["messageId"]).encode(), row["body"]) for row in found]


@pytest.fixture
def archived(tmp_path: Path) -> tuple[StoredLog, str]:
    """A log, and its archive in several files."""
    log, to = two_days(tmp_path / "data"), str(tmp_path / "archive")
    archiver(log, to).run()
    return log, to


def erase(log: StoredLog, to: str) -> None:
    """As a gateway does."""
    storage = storage_at(to)
    manifest = Manifest(storage)
    manifest.refresh()
    manifest.erasures.finish(manifest.erasures.begin(SOME, WHEN, log.generation))


def test_the_archive_s_rows_are_the_log_s(archived: tuple[StoredLog, str]) -> None:
    """All columns of all rows: those of erased messages, and the others, before and after a compaction."""
    log, to = archived
    erase(log, to)
    log.erase(SOME, *WHEN)
    live = table(DDL, path=log.path)
    assert table(DDL, archive=to).to_pylist() == live.to_pylist()
    compact(FolderStorage(Path(to)), is_all=True)
    assert table(DDL, archive=to).to_pylist() == live.to_pylist()
    assert storage_at(to).names("_erased") == []
    erased = [row for row in live.to_pylist() if row["bodyType"] == "value"]
    assert [row["offset"] for row in erased] == SOME
    assert dict(erased[0]["systemProperties"])["x-opt-erased-reason"] == "asked to"


def test_what_is_archived_later_is_erased_all_the_same(tmp_path: Path) -> None:
    """An archiver that had read messages before they were erased, and writes them after: readers have markers."""
    log, to = two_days(tmp_path / "data"), str(tmp_path / "archive")
    erase(log, to)
    archiver(log, to).run()
    found = table("offset bigint, bodyType string", archive=to).to_pylist()
    assert [row["offset"] for row in found if row["bodyType"] == "value"] == SOME
    compact(FolderStorage(Path(to)), is_all=True)
    assert b"id-42" not in b"".join(bytes_of(to))


def test_a_compaction_that_crashes_gives_nothing_back(archived: tuple[StoredLog, str]) -> None:
    """As it is at each of its steps, every reader has markers, each id once; the next run ends what it began."""
    log, to = archived
    expected = ids(archive=to)
    erase(log, to)
    left: list[Path] = []

    def leave(_name: str) -> None:
        left.append(Path(f"{to}-{len(left)}"))
        copytree(to, left[-1])

    def look(folder: Path) -> None:
        found = table("offset bigint, messageId string", archive=str(folder)).to_pylist()
        assert [row["offset"] for row in found] == expected
        assert all(row["messageId"] is None for row in found if row["offset"] in SOME)

    compact(FolderStorage(Path(to), leave), is_all=True, step=leave)
    assert len(left) > 5
    for folder in left:
        look(folder)
        compact(FolderStorage(folder), is_all=True)
        look(folder)
        assert storage_at(str(folder)).names("_erased") == []


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
    manifest = Manifest(archive.storage)
    if is_stored:
        (name,) = archive.storage.names("_erased")
        text = archive.storage.read(f"_erased/{name}")
        assert text is not None
        archive.storage.publish(f"_erased/{name[:-5]}.begun", lambda file: file.write(text))
        archive.storage.remove(f"_erased/{name}")
    else:
        manifest.erasures.begin(SOME[:3], WHEN, generation)
    manifest.refresh()
    assert manifest.erasures.lists() == {}
    gateway.restart()
    eventually(lambda: not manifest.erasures.begun(), "the start ends what is begun")
    for address in ("log://a?replay-start=beginning", "q"):
        read = connect(gateway).receiver(address).drain()
        assert [one.id for one in read if is_marker(one, WHEN.reason)] == SOME[:3]
    manifest.refresh()
    assert list(manifest.erasures.between(1, 40)) == SOME[:3]


def test_an_archive_that_fails_in_the_middle_is_told_later(past: Past, telling: Telling) -> None:
    """Nobody goes by its list before the store has committed; afterwards it is written as soon as that can be."""
    gateway, archive, client = past(40, 31)
    manifest = Manifest(archive.storage)
    folder = Path(archive.storage.where) / "_erased"
    telling.hold(EraseMessages)
    with administered(gateway) as api, ThreadPoolExecutor(1) as beside:
        body = {"msgId": [5, 35], "reason": "asked to"}
        asked = beside.submit(api.ask, "PUT", "action", "/replayLogs/default/redactMsg", body)
        eventually(manifest.erasures.begun, "it begins")
        manifest.refresh()
        assert manifest.erasures.lists() == {}
        folder.rename(folder.with_name("_away"))
        folder.write_text("no folder")
        telling.go_on()
        assert "erased everywhere else" in asked.result().json()["meta"]["error"]["description"]
    folder.unlink()
    folder.with_name("_away").rename(folder)
    eventually(lambda: not manifest.erasures.begun(), "the archive is told")
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
        erasures = Manifest(FolderStorage(folder)).erasures
        eventually(lambda: not erasures.begun(), "a start ends what is begun")
        return gateway

    def look(_gateway: GatewayProcess, markers: set[int]) -> None:
        manifest = Manifest(FolderStorage(folder))
        manifest.refresh()
        assert set(manifest.erasures.between(1, MAX_ID)) == markers

    kill_erasing(begin, 3, look)
