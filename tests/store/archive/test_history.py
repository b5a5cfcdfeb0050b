"""Readers and replays that begin in the archive and go on into the log and into live traffic."""

from __future__ import annotations

import random
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from amqp_ext.codec import Symbol
from gateway.app import Gateway
from gateway.config import Queue, ReplayLog, Vpn
from gateway.config.vpn import ArchivedLog, Retention
from store.archive.archiver import Archiver
from store.archive.archiver import Limits as SegmentLimits
from store.archive.storage import FolderStorage
from store.archive.table import ArchiveTable
from store.archived_log import ArchivedLog as ArchivedFiles
from store.errors import StoreError
from store.ports import LogPage, StoreOptions
from store.sqlite.check import check
from tests.gateway.amqp.conftest import Clock, Connect
from tests.store.archive.archives import ids, log_of
from tests.store.archive.begun import BEGINNING, SMALL, Begin, Past, accept, administered, numbers, of_a
from tests.support.client import Client, Receiver, Refused, texts
from tests.support.messages import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, PROPERTIES, data, section
from tests.support.running import RunningGateway, settings_for

pytestmark = pytest.mark.spark


# --- Readers of log and streams, and refusals -------------------------------------------------------------------------

HOUR_MS = 3_600_000


def _archive_alarms(running: Gateway) -> list[str]:
    watch = running.vpns["default"].alarms
    watch.check()
    return [alarm.text for alarm in watch.active() if alarm.kind.value == "archive"]


# --- readers ------------------------------------------------------------------------------------------------------


def test_a_reader_goes_from_the_archive_into_the_log_and_live(past: Past) -> None:
    """Every message once, in order, bit for bit as it was sent, with the end of history marked once."""
    _, archive, client = past(0)
    annotated = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-replay-end"): True, Symbol("x-mine"): 1})
    raws = [
        (annotated if i % 7 == 0 else b"") + section(APPLICATION_PROPERTIES, {"n": i}) + data(i)
        for i in range(60)
    ]
    sender = client.sender("topic://a")
    sender.send_all(raws[:50])
    archive.archive_and_trim(31)
    reader = client.receiver("log://a", filters=BEGINNING, credit=500)
    taken = reader.take(50)
    sender.send_all(raws[50:])
    taken += reader.take(10)
    assert texts(taken) == numbers(0, 60)
    assert [message.id for message in taken] == list(range(1, 61))
    assert [message.is_end for message in taken] == [i == 49 for i in range(60)]
    assert [message.bare for message in taken] == [
        section(APPLICATION_PROPERTIES, {"n": i}) + data(i) for i in range(60)
    ]
    assert [message.annotations.get("x-mine") for message in taken] == [
        1 if i % 7 == 0 else None for i in range(60)
    ]


def test_selectors_topics_and_searches_hold_in_the_archive(past: Past) -> None:
    """
    Selectors and topics filter what comes from the archive. Starts by message-id and by selector find the first
    matching message in the archive or in the log.
    """
    _, archive, client = past(0)
    senders = [client.sender(f"topic://t/{i}") for i in range(3)]
    for i in range(60):
        front = section(PROPERTIES, [f"id-{i}"]) + section(APPLICATION_PROPERTIES, {"n": i % 20})
        senders[i % 3].send_all([front + data(i)])
    archive.archive_and_trim(45)
    filters = {**BEGINNING, "apache.org:selector-filter:string": "n > 9"}
    assert texts(client.receiver("log://t/1", filters=filters).drain()) == [
        str(i) for i in range(60) if i % 3 == 1 and i % 20 > 9
    ]
    for start, first in {
        "message-id:id-30": 30,
        "message-id:id-50": 50,
        "match:n = 7": 7,
        "match:n > 18": 19,
    }.items():
        taken = client.receiver("log://t/>", filters={"rewind:replay-start": start}).drain()
        assert texts(taken) == numbers(first, 60 - first)


@pytest.mark.parametrize("seed", range(6))
def test_readers_are_the_list_whatever_happens_meanwhile(past: Past, seed: int) -> None:
    """
    Messages are published, archived, trimmed and compacted at random while readers read, each from its own start. Each
    reader gets exactly the messages published from its start on, once, in order.
    """
    dice = random.Random(seed)
    _, archive, client = past(0, log=ReplayLog(keep_until_archived=True))
    sender = client.sender("topic://a")
    published = 0
    readers: list[tuple[Receiver, int, list[str]]] = []
    for _ in range(60):
        match dice.randrange(6):
            case 0 | 1:
                count = dice.randrange(1, 30)
                sender.send_all([data(i) for i in range(published, published + count)])
                published += count
            case 2 if published:
                archive.archive(dice.randint(archive.last, published), rows=dice.randrange(1, 12))
            case 3 if archive.last:
                archive.trim(dice.randint(1, archive.last + 1))
            case 4 if archive.last:
                archive.compact()
            case 5 if published and len(readers) < 5:
                first = dice.randint(1, published)
                readers.append((client.receiver(f"log://a?replay-start=%23{first}"), first - 1, []))
        for reader, first, taken in readers:
            count = min(published - first - len(taken), dice.randrange(0, 12))
            if count:
                reader.flow(count)
                taken.extend(texts(reader.take(count)))
    for reader, first, taken in readers:
        left = published - first - len(taken)
        reader.flow(left)
        taken.extend(texts(reader.take(left)))
        assert taken == numbers(first, published - first)
    assert readers


def test_a_stream_shows_what_was_trimmed(past: Past) -> None:
    """A stream reads trimmed messages from the archive, but none that was purged from the stream."""
    gateway, _, client = past(40, 30, queues={"events": Queue(kind="stream", subscriptions=("a",))})
    assert texts(client.receiver("events", filters=BEGINNING).drain()) == numbers(0, 40)
    assert texts(client.receiver("events?replay-start=%2311").drain()) == numbers(10, 30)
    with administered(gateway) as api:
        api.done("PUT", "action", "/queues/events/deleteMsgs", {})
    client.sender("topic://a").send_all([data("new")])
    assert texts(client.receiver("events", filters=BEGINNING).drain()) == ["new"]


# --- administration -----------------------------------------------------------------------------------------------


def test_administration_shows_log_and_archive_as_one(past: Past) -> None:
    """
    A replay's preview counts messages of both. The list of messages and the histogram begin with the archive, and say
    where it begins. A message that only the archive has is shown whole, and a point there does not count as trimmed.
    """
    gateway, archive, client = past(0, queues=of_a())
    senders = [client.sender("topic://a"), client.sender("topic://b")]
    for i in range(40):
        senders[i % 2].send_all([data(i)])
    log = "/replayLogs/default"
    with administered(gateway) as api:
        api.done("POST", "config", "/replayPoints", {"replayPointName": "p", "start": "#6"})
        archive.archive_and_trim(31)
        preview = api.done("PUT", "action", "/queues/q/previewReplay", {"start": "#11"})
        assert (preview["firstMsgId"], preview["msgCount"]) == (11, 15)
        assert preview["msgSpoolUsage"] == 15 * len(data(10))
        listed = api.done("GET", "monitor", f"{log}/msgs", count=100)
        assert len(listed) == 40
        told = api.done("GET", "monitor", log)
        assert (told["firstMsgId"], told["archiveFirstMsgId"], told["archiveLastMsgId"]) == (31, 1, 40)
        found = api.done("GET", "monitor", f"{log}/histogram", buckets=7)
        assert (found["firstMsgId"], found["lastMsgId"]) == (1, 40)
        assert sum(bucket["msgCount"] for bucket in found["buckets"]) == 40
        first_ms, last_ms = (listed[place]["spooledTimeMs"] for place in (0, -1))
        assert found["archive"] == {"oldestMsgId": 1, "oldestTimeMs": first_ms}
        assert (found["log"]["oldestMsgId"], found["log"]["newestMsgId"]) == (31, 40)
        assert (found["fromTimeMs"], found["untilTimeMs"]) == (first_ms, last_ms + 1)
        for message in (1, 30, 31):
            shown = api.done("GET", "monitor", f"{log}/msgs/{message}")
            assert shown["body"]["text"] == str(message - 1)
        (point,) = api.done("GET", "config", "/replayPoints")
        assert point["trimmed"] is False
    read = client.receiver("log://a?replay-start=point:p").drain()
    assert texts(read) == [str(i) for i in range(6, 40, 2)]


def test_a_preview_counts_as_lost_what_neither_log_nor_archive_has(past: Past) -> None:
    """Trimmed messages in the archive are no loss; messages that the log never took are, also amid archived ones."""
    gateway, archive, client = past(0, queues=of_a())
    sender = client.sender("topic://a")
    preview, log = "/queues/q/previewReplay", "/replayLogs/default"
    with administered(gateway) as api:
        topics = f"{log}/topicFilterSubscriptions"
        api.done("POST", "config", topics, {"topicFilterSubscription": "elsewhere/>"})
        for first, is_filtered in ((0, False), (20, True), (23, False)):
            api.done("PATCH", "config", log, {"topicFilterEnabled": is_filtered})
            sender.send_all([data(i) for i in range(first, first + (3 if is_filtered else 20))])
        archive.archive_and_trim(40)
        found = api.done("PUT", "action", preview, {})
        assert [found[name] for name in ("msgCount", "droppedMsgCount", "lossMsgCount")] == [40, 43, 3]
        error = api.refused("PUT", "action", "/queues/q/startReplay", {"ifLossAtMost": 2})
        assert "3 messages" in error["description"]
        assert "that neither the log nor an archive has" in error["description"]


# --- with the archiver, and Spark ---------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["path", "url"])
def test_what_the_archiver_writes_is_what_was_published(past: Past, tmp_path: Path, source: str) -> None:
    """The archiver writes from the data folder or over AMQP, in two runs with a trim between. A second archive can be
    written from the gateway's log and archive, and Spark reads both by the gateway's url alone."""
    gateway, archive, client = past(0, log=ReplayLog(keep_until_archived=True))
    sender = client.sender("topic://a")
    front = section(MESSAGE_ANNOTATIONS, {Symbol("x-mine"): 1})
    raws = [section(APPLICATION_PROPERTIES, {"n": i}) + data(i) for i in range(60)]
    place = {"path": str(tmp_path / "data"), "url": gateway.url}[source]
    for first in (0, 30):
        sender.send_all([front + raw for raw in raws[first : first + 30]])
        Archiver(log_of({source: place}), archive.storage, SegmentLimits(rows=7)).run()
        archive.tell()
        archive.trim(first + 20)
    taken = client.receiver("log://a", filters=BEGINNING, credit=100).take(60)
    assert [message.bare for message in taken] == raws
    assert [message.annotations["x-mine"] for message in taken] == [1] * 60
    assert [message.is_end for message in taken] == [False] * 59 + [True]
    assert [message.annotations["x-opt-offset"] for message in taken] == numbers(1, 60)
    second = FolderStorage(tmp_path / "second")
    Archiver(log_of({"url": gateway.url}), second, SegmentLimits(rows=9)).run()
    assert ArchiveTable(second).refresh().first == 1
    assert ids(url=gateway.url) == list(range(1, 61))
    assert ids(url=gateway.url, archive=str(tmp_path / "archive")) == list(range(1, 61))


# --- what is not there --------------------------------------------------------------------------------------------


def test_a_gap_is_told_and_not_read_over(past: Past) -> None:
    """Messages trimmed before they were archived are lost: history begins after the gap, and a refusal names it."""
    _, archive, client = past(30)
    archive.archive(10)
    archive.trim(16)
    with pytest.raises(Refused) as refused:
        client.receiver("log://a?replay-start=%235")
    assert refused.value.text.endswith(
        "which holds ids 16 to 30; its archive has ids 1 to 10, and the ids in between are in neither"
    )
    assert texts(client.receiver("log://a", filters=BEGINNING).drain()) == numbers(15, 15)
    archive.archive(rows=20)  # in one commit: the gateway may look at any time
    archive.trim(21)
    with pytest.raises(Refused) as refused:
        client.receiver("log://a?replay-start=%235")
    assert "its archive has ids 16 to 30, and up to 10 before a gap" in refused.value.text
    assert texts(client.receiver("log://a", filters=BEGINNING).drain()) == numbers(15, 15)


def test_another_logs_archive_is_not_read(past: Past, connect: Connect, tmp_path: Path) -> None:
    """After the log was recreated, the old log's archive has other messages under the same ids, and is not read."""
    gateway, archive, client = past(0)
    client.sender("topic://a").send_all([data(f"old {i}") for i in range(30)])
    archive.archive()
    client.close()
    gateway.stop()
    shutil.rmtree(tmp_path / "data")
    gateway.start()
    client = connect(gateway)
    client.sender("topic://a").send_all([data(i) for i in range(40)])
    archive.trim(21)
    with pytest.raises(Refused) as refused:
        client.receiver("log://a?replay-start=%235")
    assert "another log" in refused.value.text
    assert texts(client.receiver("log://a", filters=BEGINNING).drain()) == numbers(20, 20)
    assert texts(client.receiver("log://a?replay-start=last").drain()) == ["39"]
    (alarm,) = gateway.call(_archive_alarms)
    assert "of generation" in alarm


def test_reads_of_the_archive_are_counted(past: Past, connect: Connect, tmp_path: Path) -> None:
    """The metrics count messages read for readers and replays, the reads with their duration, and failed reads."""

    def scraped() -> tuple[float, float, float]:
        with administered(gateway) as api:
            lines = dict(
                line.rsplit(" ", 1)
                for line in api.http.get("/metrics").text.splitlines()
                if "_archive_" in line
            )
        messages, failures, reads = (
            float(lines[f'rewind_archive_read_{name}{{vpn="default"}}'])
            for name in ("messages_total", "failures_total", "seconds_count")
        )
        return messages, failures, reads

    gateway, archive, client = past(30, 21, queues=of_a())
    assert scraped()[:2] == (0, 0)
    assert texts(client.receiver("log://a", filters=BEGINNING).drain()) == numbers(0, 30)
    messages, failures, reads = scraped()
    assert (messages, failures) == (20, 0)
    assert reads >= 20 / 5
    client.receiver("q?replay-start=beginning", credit=30).take(30)
    assert scraped()[:2] == (40, 0)
    for segment in ArchiveTable(archive.storage).refresh().segments:
        path = tmp_path / "archive" / segment.file
        path.write_bytes(path.read_bytes()[:-8])
    gateway.restart()
    with pytest.raises(Refused):
        connect(gateway).receiver("log://a", filters=BEGINNING, credit=100)
    messages, failures, reads = scraped()
    assert messages == 0
    assert 0 < failures <= reads


def test_a_damaged_file_stops_its_readers_alone(past: Past, tmp_path: Path) -> None:
    """Its readers are detached with an error and an alarm names the file; readers of other ids go on."""
    gateway, archive, client = past(30, 21)
    segment = ArchiveTable(archive.storage).refresh().segments[1]
    path = tmp_path / "archive" / segment.file
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"damaged" + content[107:])
    reader = client.receiver("log://a", filters=BEGINNING, credit=100)
    # The reader holds the fourth message back, as it may be the last of history.
    taken = reader.take(3)
    assert reader.detached_by_peer().text.startswith("the replay log could not be read")
    assert texts(taken) == numbers(0, 3)
    assert texts(client.receiver("log://a?replay-start=%2313").drain()) == numbers(12, 18)

    (text,) = gateway.call(_archive_alarms)
    assert segment.file in text
    path.write_bytes(content)
    assert texts(client.receiver("log://a", filters=BEGINNING).drain()) == numbers(0, 30)
    assert gateway.call(_archive_alarms) == []


def test_an_archive_that_is_away_refuses_what_may_lie_in_it(past: Past, tmp_path: Path) -> None:
    """Starts in the log are served; a start that may be in the archive is refused rather than moved to the log."""
    gateway, _, client = past(20, 11)
    (tmp_path / "archive" / "_delta_log").rename(tmp_path / "away")
    (tmp_path / "archive" / "_delta_log").write_text("no folder")
    client.wait(
        lambda: gateway.call(lambda running: running.vpns["default"].broker.history.archived) is None,
        "the gateway has seen it",
    )
    with pytest.raises(Refused) as refused:
        client.receiver("log://a", filters=BEGINNING)
    assert "its archive cannot be read now" in refused.value.text
    assert texts(client.receiver("log://a?replay-start=%2313").drain()) == numbers(12, 8)
    (tmp_path / "archive" / "_delta_log").unlink()
    (tmp_path / "away").rename(tmp_path / "archive" / "_delta_log")
    assert texts(client.receiver("log://a", filters=BEGINNING).drain()) == numbers(0, 20)


class Far(ArchivedFiles):
    """An archive whose reads wait while a test clears ``may_read``; it counts how many are under way."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.may_read = threading.Event()
        self.may_read.set()
        self.reads = 0
        self.most = 0
        self._lock = threading.Lock()

    def log_page(self, position: int, end: int, patterns: Sequence[str]) -> LogPage:
        with self._lock:
            self.reads += 1
            self.most = max(self.most, self.reads)
        assert self.may_read.wait(30)
        with self._lock:
            self.reads -= 1
        return super().log_page(position, end, patterns)


def test_a_slow_archive_holds_up_nobody_else(past: Past, given: dict[str, Any]) -> None:
    """While readers wait for the archive, the log is read and written as usual. At most two reads of the archive are
    under way, and reads for links that have detached do not begin."""
    opened: list[Far] = []

    def far(place: str, generation: int, options: StoreOptions) -> Far:
        opened.append(Far(place, generation, page_rows=options.page_rows, page_bytes=options.page_bytes))
        return opened[-1]

    given["archive"] = far
    _, archive, client = past(0)
    sender = client.sender("topic://a")
    sender.send_all([data(i) for i in range(40)])
    archive.archive_and_trim(31)
    slow = [client.receiver("log://a", filters=BEGINNING) for _ in range(8)]
    log = opened[-1]
    log.may_read.clear()
    for reader in slow:
        reader.flow(100)
    client.wait(lambda: log.reads == 2, "as many reads are under way as may be")
    for leaving in slow[4:]:
        leaving.close()
    quick = client.receiver("log://a?replay-start=%2333", credit=100)
    sender.send_all([data(40)])
    assert texts(quick.take(9)) == numbers(32, 9)
    assert not any(reader.arrived for reader in slow)
    log.may_read.set()
    for reader in slow[:4]:
        assert texts(reader.take(41)) == numbers(0, 41)
    assert log.most == 2


def test_without_its_library_the_gateway_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway refuses to start without pyarrow rather than running without its archive."""
    vpn = Vpn(archive=ArchivedLog(place=str(tmp_path / "archive")))
    for name in [name for name in sys.modules if name.startswith(("store.archive", "store.archived"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(StoreError, match=r"pip install 'rewind-gateway\[archive\]'"):
        RunningGateway(settings_for(tmp_path / "data", vpn)).start()


# --- age ----------------------------------------------------------------------------------------------------------


def test_what_is_too_old_is_trimmed_once_it_is_archived(past: Past, clock: Clock) -> None:
    """Messages older than the log's 30 days are trimmed once archived, and still read at the log's address."""
    gateway, archive, client = past(0, log=ReplayLog(max_age_hours=720, keep_until_archived=True))
    sender = client.sender("topic://a")
    sender.send_all([data(i) for i in range(10)])
    clock.ms += 700 * HOUR_MS
    sender.send_all([data(i) for i in range(10, 20)])
    clock.ms += 21 * HOUR_MS

    def first(running: Gateway) -> int:
        return running.vpns["default"].broker.log.first_id

    archive.archive(4)
    client.wait(lambda: gateway.call(first) == 5, "what is archived is trimmed, and no more")
    archive.archive()
    client.wait(lambda: gateway.call(first) == 11, "all that is old is trimmed, and no more")
    assert texts(client.receiver("log://a", filters=BEGINNING).drain()) == numbers(0, 20)
    clock.ms += 721 * HOUR_MS
    client.wait(lambda: gateway.call(first) == 21, "all is old")
    assert texts(client.receiver("log://a", filters=BEGINNING).drain()) == numbers(0, 20)


def kept(gateway: RunningGateway) -> tuple[int, int]:
    """Messages and excess bytes of the first rule of retention."""
    rule = gateway.call(lambda running: running.vpns["default"].broker.retention.rules[0])
    return rule.messages, rule.excess_bytes


def test_a_rule_takes_what_the_archive_has(past: Past) -> None:
    """
    A rule of retention removes messages only after they are archived. A start among the removed ones is refused while
    the log still has older messages; once those are trimmed, the archive gives all messages of the topic.
    """
    rule = Retention(topics=("debug/>",), quota_mb=1)
    gateway, archive, client = past(0, log=ReplayLog(retention=(rule,)))
    client.sender("topic://orders/a").send_all([data("first")])
    debug = client.sender("topic://debug/a")
    debug.send_all(data(f"{i:<20000}") for i in range(80))
    client.wait(lambda: kept(gateway)[1] > 0, "it is over its quota")
    assert len(client.receiver("log://debug/>?replay-start=beginning&until=now").take_to_end()) == 80
    archive.archive()
    client.wait(lambda: kept(gateway)[1] == 0, "the rule is kept to")
    assert kept(gateway)[0] < 60
    with pytest.raises(Refused) as refused:
        client.receiver("log://debug/>?replay-start=%232")
    assert refused.value.replay_error == "start-message-unavailable"
    archive.trim(50)
    found = client.receiver("log://debug/>?replay-start=%232&until=now").take_to_end()
    assert [text.strip() for text in texts(found)] == numbers(0, 80)


# --- Endpoint replays from the archive: each message once, in order, also after a stop --------------------------------


def test_an_endpoint_replay_from_the_archive(past: Past) -> None:
    """The replay puts messages from the archive, then from the log, then live, each once and in order."""
    gateway, archive, client = past(0, queues=of_a(max_unsettled=7))
    sender = client.sender("topic://a")
    sender.send_all([data(i) for i in range(50)])
    first = client.receiver("q", credit=50)
    accept(first, 50)
    first.close()
    archive.archive_and_trim(31)
    receiver = client.receiver("q?replay-start=beginning", credit=500)
    taken = accept(receiver, 20)
    sender.send_all([data(i) for i in range(50, 60)])
    taken += accept(receiver, 40)
    assert texts(taken) == numbers(0, 60)
    assert [message.id for message in taken] == list(range(1, 61))
    assert [message.delivery_count for message in taken] == [0] * 60
    assert sum(message.is_end for message in taken) == 1
    client.wait(lambda: gateway.replay_state("q") == "complete", "the replay is complete")
    settled = gateway.call(lambda running: running.vpns["default"].counters.settled_messages)
    assert settled == 50 + 60


@pytest.mark.parametrize("accepted", [0, 12, 33])
def test_a_stop_loses_nothing_of_a_replay(begin: Begin, accepted: int) -> None:
    """After each of two restarts the replay puts the unsettled messages of the archive again, and no settled one."""
    gateway, archive = begin(SMALL, queues=of_a(max_unsettled=9))
    with Client(gateway.url) as client:
        client.sender("topic://a").send_all([data(i) for i in range(60)])
        archive.archive()
        archive.trim(31)
        receiver = client.receiver("q?replay-start=beginning", credit=500)
        done = texts(accept(receiver, accepted))
        # One message stays unsettled, and later ones are settled.
        _, *others = receiver.take(6)
        receiver.settle(others)
        done += texts(others)
        archive.trim(45)
        client.close()
    gateway.restart()
    archive.archive()
    archive.trim(50)
    with Client(gateway.url) as client:
        receiver = client.receiver("q", credit=500)
        done += texts(accept(receiver, 5))
        client.close()
    gateway.restart()
    with Client(gateway.url) as client:
        receiver = client.receiver("q", credit=500)
        done += texts(accept(receiver, 60 - len(done)))
        assert sorted(done, key=int) == numbers(0, 60)
        client.wait(lambda: gateway.replay_state("q") == "complete", "the replay is complete")


def test_a_stop_loses_nothing_that_an_earlier_gateway_trimmed(begin: Begin) -> None:
    """The log is trimmed, the gateway restarted, and a replay begun and interrupted: it continues without a loss."""
    gateway, archive = begin(SMALL, queues=of_a())
    with Client(gateway.url) as client:
        client.sender("topic://a").send_all([data(i) for i in range(60)])
        archive.archive_and_trim(41)
        client.close()
    gateway.restart()
    with Client(gateway.url) as client:
        done = texts(accept(client.receiver("q?replay-start=beginning", credit=500), 10))
        client.close()
    gateway.restart()
    with Client(gateway.url) as client:
        done += texts(accept(client.receiver("q", credit=500), 50))
        assert done == numbers(0, 60)
        client.wait(lambda: gateway.replay_state("q") == "complete", "the replay is complete")


def test_trimming_overtakes_a_replay(past: Past) -> None:
    """A replay whose next messages are trimmed goes on in the archive, without a gap or duplicate, to its end."""
    gateway, archive, client = past(80, queues=of_a(max_unsettled=6))
    receiver = client.receiver("q?replay-start=beginning", credit=500)
    taken = receiver.take(6)
    archive.archive_and_trim(40)
    receiver.settle(taken)
    taken += accept(receiver, 10)
    archive.trim(70)
    taken += accept(receiver, 64)
    assert texts(taken) == numbers(0, 80)
    client.wait(lambda: gateway.replay_state("q") == "complete", "the replay is complete")
    assert gateway.depth("q") == 0


def test_a_replay_that_is_overtaken_by_what_is_lost_fails(past: Past) -> None:
    """A message that was read and then trimmed without an archive is not put: it could not be redelivered."""
    _, archive, client = past(80, queues=of_a(max_unsettled=6))
    receiver = client.receiver("q?replay-start=beginning", credit=500)
    taken = receiver.take(6)
    archive.archive(9)
    archive.trim(40)
    receiver.settle(taken)
    while not client.is_detached(receiver.link):
        client.wait(lambda: receiver.arrived or client.is_detached(receiver.link), "more, or the end")
        while receiver.arrived:
            taken += accept(receiver, 1)
    assert receiver.detached_by_peer().subcode == 140
    assert len(taken) <= 9
    assert texts(taken) == numbers(0, len(taken))


def test_what_another_queue_holds_is_not_let_go_of(past: Past) -> None:
    """When a replay's consumer settles a trimmed message, the store still holds it for the other queue."""
    queues = {name: Queue(subscriptions=("a",)) for name in ("q", "other")}
    gateway, archive, client = past(30, queues=queues)
    first = client.receiver("q", credit=30)
    accept(first, 30)
    first.close()
    archive.archive_and_trim(25)
    assert texts(client.receiver("q?replay-start=beginning", credit=50).take_and_accept(30)) == numbers(0, 30)
    assert texts(client.receiver("other", credit=50).take_and_accept(30)) == numbers(0, 30)
    client.wait(lambda: gateway.depth("other") == 0, "the other queue is empty")


@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_kept_is_not_brought_by_the_archive_too(
    begin: Begin, connect: Connect, restarts: bool
) -> None:
    """
    A replay with keepUnlogged begins before the log. Consumed messages come from the archive. Trimmed messages that are
    still queued stay as they are, with their failed deliveries. Each message comes once, in the order of ids.
    """
    log = ReplayLog(topics=("a",))
    gateway, archive = begin(SMALL, log, queues={"q": Queue(subscriptions=("a", "b"), max_unsettled=20)})
    with Client(gateway.url) as client:
        logged, other = client.sender("topic://a"), client.sender("topic://b")
        for i in range(40):
            (other if i % 5 == 0 else logged).send_all([data(i)])
        first = client.receiver("q", credit=20)
        taken = first.take(20)
        first.settle([message for message in taken if int(message.text) % 2])
        client.wait(lambda: gateway.depth("q") == 30, "settlements arrive")
        first.close()
        archive.archive_and_trim(35)
        with administered(gateway) as api:
            api.done("PUT", "action", "/queues/q/startReplay", {"start": "beginning", "keepUnlogged": True})
        if restarts:
            gateway.restart()
    client = connect(gateway)
    brought = {i for i in range(40) if i % 5}
    kept = {i for i in range(34) if i >= 20 or i % 2 == 0} | {i for i in range(40) if i % 5 == 0 and i >= 20}
    taken = accept(client.receiver("q", credit=50), len(brought | kept))
    assert [int(message.text) for message in taken] == sorted(brought | kept)
    failed = {int(message.text): message.delivery_count for message in taken if message.delivery_count}
    assert failed == dict.fromkeys(range(0, 20, 2), 1)
    marked = {int(message.text) for message in taken if "x-opt-replay-name" in message.annotations}
    assert marked == brought - kept
    client.wait(lambda: gateway.replay_state("q") == "complete", "the replay is complete")
    assert gateway.depth("q") == 0


def test_what_the_log_does_not_take_has_its_place(past: Past) -> None:
    """A message that only the queue holds comes in its place among those of the archive."""
    log = ReplayLog(topics=("a",))
    gateway, archive, client = past(
        0, log=log, queues={"q": Queue(subscriptions=("a", "b"), max_unsettled=4)}
    )
    logged, other = client.sender("topic://a"), client.sender("topic://b")
    logged.send_all([data(i) for i in range(10)])
    receiver = client.receiver("q?replay-start=beginning", credit=500)
    taken = receiver.take(4)
    for i in range(10, 40):
        (other if i % 5 == 0 else logged).send_all([data(i)])
    archive.archive_and_trim(41)
    receiver.settle(taken)
    taken += accept(receiver, 36)
    assert texts(taken) == numbers(0, 40)
    client.wait(lambda: gateway.depth("q") == 0, "all is acknowledged")


def test_what_is_given_back_comes_again_from_the_archive(past: Past) -> None:
    """Modified as failed, a message comes again with its delivery-count; rejected, it is dead-lettered."""
    queue = Queue(subscriptions=("a",), dead_message_queue="dead")
    gateway, _, client = past(30, 31, queues={"q": queue})
    receiver = client.receiver("q?replay-start=beginning", credit=30)
    taken = receiver.take(30)
    receiver.modify(taken[:5], failed=True)
    receiver.settle(taken[5:29])
    receiver.update(taken[29:], 0x25)
    receiver.settle(taken[29:], None)
    receiver.flow(30)
    again = accept(receiver, 5)
    assert texts(again) == numbers(0, 5)
    assert [message.delivery_count for message in again] == [1] * 5
    assert texts(client.receiver("dead", credit=1).take_and_accept(1)) == ["29"]
    client.wait(lambda: gateway.replay_state("q") == "complete", "the replay is complete")


def test_failed_deliveries_out_of_the_archive_are_not_written(past: Past, tmp_path: Path) -> None:
    """Failed deliveries are stored only of messages that the store has, so those of archived ones begin at 0 again."""
    gateway, _, client = past(20, 11, queues=of_a())
    receiver = client.receiver("q?replay-start=beginning", credit=20)
    receiver.modify(receiver.take(20), failed=True)
    receiver.flow(20)
    assert [message.delivery_count for message in receiver.take(20)] == [1] * 20
    client.close()
    gateway.stop()
    assert check(tmp_path / "data" / "default.db") == []
    gateway.start()
    with Client(gateway.url) as again:
        taken = accept(again.receiver("q", credit=20), 20)
        assert texts(taken) == numbers(0, 20)
        assert [message.delivery_count for message in taken] == [0] * 10 + [1] * 10
        again.close()


def test_what_only_the_archive_has_is_not_kept_by_force(past: Past) -> None:
    """A replay of messages that only the archive has cannot be force-completed, but it can be cancelled."""
    gateway, _, client = past(30, 20, queues=of_a())
    receiver = client.receiver("q?replay-start=beginning", credit=3)
    receiver.take(3)
    with administered(gateway) as api:
        refused = api.refused("PUT", "action", "/queues/q/cancelReplay", {"forceComplete": True})
        assert "are only in the log's archive" in refused["description"]
        api.done("PUT", "action", "/queues/q/cancelReplay", {})
    assert gateway.replay_state("q") == "failed"
