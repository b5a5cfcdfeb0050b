"""Readers of the log: rows kept for them, traces, pace, and waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import httpx
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from proton import Link, Terminus

from gateway import app
from gateway.config import Queue, Vpn
from gateway.config.settings import Telemetry
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings
from gateway.core.model import CONTENT, ID, Row
from gateway.core.replay.starts import Resolved
from gateway.ledger import Kind, Ledger
from gateway.vpn import turns
from gateway.vpn.feeds.browse_feed import BrowseFeed
from gateway.vpn.feeds.endpoint_feed import KeptRows
from gateway.vpn.feeds.log_feed import LogFeed
from gateway.vpn.feeds.stalled import STALLED_SECONDS
from gateway.vpn.history import ValuesSource
from gateway.vpn.runtime import Counters, SystemClock, Tuning
from gateway.vpn.tracing import Span, TracedLink
from gateway.vpn.turns import HistoryPace
from store.ports import LogPage
from tests.gateway.core.machines.model import message
from tests.gateway.core.machines.world import UNLOGGED, Sizes, World
from tests.support.client import Client, texts
from tests.support.messages import APPLICATION_PROPERTIES, data, section
from tests.support.running import PLAIN_HTTP, RunningGateway, settings_for

# --- Rows kept until they are handed out, against a dictionary ------------------------------------------------------

IDS = st.sets(st.integers(1, 12)).map(sorted)


def rows_of(ids: list[int]) -> list[Row]:
    return [(i, 0, "t", 0, 1, None, b"%d" % i) for i in ids]


def sizes_of(rows: list[Row]) -> list[int]:
    return [len(row[CONTENT]) for row in rows]


class KeptRowsMachine(RuleBasedStateMachine):
    """Whatever the order in which rows come and go, those that are kept are found by id."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = KeptRows()
        self.model: dict[int, Row] = {}
        self.newest = 0

    @rule(ids=IDS)
    def keep(self, ids: list[int]) -> None:
        self._keep(ids)

    @rule(count=st.integers(0, 4))
    def keep_newer(self, count: int) -> None:
        self._keep(list(range(self.newest + 1, self.newest + 1 + count)))

    def _keep(self, ids: list[int]) -> None:
        self.kept.keep(ids, rows_of(ids), sizes_of(rows_of(ids)))
        self.model.update(zip(ids, rows_of(ids), strict=True))
        self.newest = max([self.newest, *ids])

    @rule(ids=IDS)
    def look(self, ids: list[int]) -> None:
        self._look(ids)

    @rule(count=st.integers(0, 5), beyond=st.integers(0, 2))
    def take_the_first(self, count: int, beyond: int) -> None:
        ids = self._first(count, beyond)
        self._look(ids)
        self._forget(ids)

    @rule(count=st.integers(0, 5), beyond=st.integers(0, 2))
    def take_and_forget_the_first(self, count: int, beyond: int) -> None:
        self._take(self._first(count, beyond))

    @rule(ids=IDS)
    def take(self, ids: list[int]) -> None:
        self._take(ids)

    @rule(ids=IDS)
    def forget(self, ids: list[int]) -> None:
        self._forget(ids)

    def _first(self, count: int, beyond: int) -> list[int]:
        return [*sorted(self.model)[:count], *range(self.newest + 1, self.newest + 1 + beyond)]

    def _take(self, ids: list[int]) -> None:
        there = next((n for n, i in enumerate(ids) if i not in self.model), len(ids))
        rows = [self.model.pop(i) for i in ids[:there]]
        assert self.kept.take(ids) == (rows, sizes_of(rows))

    def _look(self, ids: list[int]) -> None:
        there = next((n for n, i in enumerate(ids) if i not in self.model), len(ids))
        assert self.kept.first_of(ids) == [self.model[i] for i in ids[:there]]

    def _forget(self, ids: list[int]) -> None:
        self.kept.forget(ids)
        for i in ids:
            self.model.pop(i, None)

    @rule()
    def clear(self) -> None:
        self.kept.clear()
        self.model.clear()

    @invariant()
    def nothing_more_is_kept(self) -> None:
        assert len(self.kept) == len(self.model)


TestKeptRows = KeptRowsMachine.TestCase


# --- Readers and browsers are in the trace of the publisher ---------------------------------------------------------

TRACE, PARENT = "a" * 32, "b" * 16
TRACED = section(APPLICATION_PROPERTIES, {"traceparent": f"00-{TRACE}-{PARENT}-01"})
VPN = Vpn(queues={"audit": Queue(kind="stream", subscriptions=("a/>",)), "q": Queue()})


class Spans:
    """Keeps spans instead of exporting them."""

    exported = dropped = failed = 0

    def __init__(self) -> None:
        self.found: list[Span] = []

    def add(self, span: Span) -> None:
        self.found.append(span)

    def close(self) -> None:
        """There is nothing to send."""

    def about(self, name: str) -> list[tuple[int | str, str, int]]:
        """For each span of this name: the message's id, the trace, and the parent span."""
        return [
            (s.attributes["rewind.offset"], f"{s.trace_id:032x}", s.parent.span_id if s.parent else 0)
            for s in self.found
            if s.name == name
        ]


def browsing(link: Link) -> None:
    link.source.distribution_mode = Terminus.DIST_MODE_COPY


def test_readers_and_browsers_are_in_the_publishers_trace(tmp_path: Path) -> None:
    """Once each: live, the parent is the enqueue span; in history, the publisher's."""
    spans = Spans()
    telemetry = Telemetry(endpoint="http://127.0.0.1:1/v1/traces", sample_ratio=0.0)
    settings = settings_for(tmp_path, VPN, telemetry=telemetry)
    with patch.object(app, "open_telemetry", lambda _: spans), RunningGateway(settings) as gateway:
        with Client(gateway.url) as client:
            live = client.receiver("log://a/>", credit=9)
            client.sender("topic://a/1").send_all([TRACED + data("one"), data("two")])
            assert texts(live.take(2)) == ["one", "two"]
            assert texts(client.receiver("audit?replay-start=beginning", credit=9).take(2)) == ["one", "two"]
            client.sender("q").send_all([TRACED + data("three")])
            assert texts(client.receiver("q", set_up=browsing, credit=9).take(1)) == ["three"]
            (enqueue,) = [s.span_id for s in spans.found if s.name == "enqueue a/1"]
            assert spans.about("read log://a/>") == spans.about("read audit") == [(1, TRACE, enqueue)]
            assert [found[:2] for found in spans.about("browse q")] == [(3, TRACE)]
        gateway.restart()
        url = gateway.call(lambda running: running.admin[0])
        assert len(httpx.get(f"{url}/v1/log", **PLAIN_HTTP).text.splitlines()) == 3
        assert spans.about("read log://>") == [(1, TRACE, int(PARENT, 16)), (3, TRACE, int(PARENT, 16))]


def test_without_telemetry_nothing_stands_between_a_feed_and_its_link(tmp_path: Path) -> None:
    """Without telemetry a feed sends to its link directly, so tracing costs nothing."""
    with RunningGateway(settings_for(tmp_path, VPN)) as gateway, Client(gateway.url) as client:
        client.sender("q").send_all([data("x")])
        readers = [
            client.receiver("log://>"),
            client.receiver("audit"),
            client.receiver("q", set_up=browsing),
        ]
        links = gateway.call(
            lambda running: [
                feed._link
                for shown in (running.vpns["default"].readers,)
                for feed in (*shown.log_feeds, *(f for feeds in shown._browsers.values() for f in feeds))
                if isinstance(feed, LogFeed | BrowseFeed)
            ]
        )
        assert len(links) == len(readers)
        assert not any(isinstance(link, TracedLink) for link in links)
        assert gateway.call(lambda running: running.vpns["default"].tracing) is None


# --- The pace of log readers during live traffic --------------------------------------------------------------------

ROWS = 128


class _Clock(SystemClock):
    """The clock of the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def seconds(self) -> float:  # type: ignore[override]
        return self._loop.now


class Loop:
    """A loop on which readers take turns during live traffic; its clock advances with both."""

    def __init__(self, row_seconds: float, live_per_second: float) -> None:
        self.now = 100.0
        self.row_seconds = row_seconds
        self.reading = 0.0
        self.live_per_second = live_per_second
        self._due: list[float] = []
        self._wakes: list[float] = []
        self._published = 0.0
        self._seen = self.now
        self.counters = Counters()
        self.pace = HistoryPace(self.counters, _Clock(self), Tuning().longest_pause)

    def share(self, readers: int, seconds: float) -> float:
        """The share of the time that the readers' turns take."""
        if len(self._due) != readers:
            self._due, self._wakes = [0.0] * readers, [self.now] * readers
        due, wakes = self._due, self._wakes
        end, taken = self.now + seconds, 0.0
        while (at := min(wakes)) < end:
            reader = wakes.index(at)
            self.now = started = max(self.now, at)
            self._live_goes_on()
            wait = self.pace.wait(due[reader])
            if wait <= 0:
                self.now += ROWS * self.row_seconds
                taken += self.now - started
                self._live_goes_on()
                due[reader] = self.pace.spent(started, ROWS, self.reading)
                wait = self.pace.wait(due[reader])
            wakes[reader] = self.now + max(wait, 0)
        return taken / (self.now - end + seconds)

    def _live_goes_on(self) -> None:
        elapsed, self._seen = self.now - self._seen, self.now
        self._published += elapsed * self.live_per_second
        self.counters.published_messages = int(self._published)


def share(*, row_us: float, live: float, readers: int = 1) -> float:
    """The share of the loop's time that readers take, once they have measured the live traffic."""
    loop = Loop(row_us / 1e6, live)
    loop.share(readers, 0.5)
    return loop.share(readers, 2.0)


@pytest.mark.parametrize(
    ("live", "readers", "expected"),
    [
        # Without live traffic a reader never pauses.
        (0, 1, pytest.approx(1, abs=0.02)),
        # During full load all readers together have a seventeenth, however many there are.
        *((80_000, readers, pytest.approx(1 / 16.5, rel=0.1)) for readers in (1, 2, 7)),
        # A thousand messages a second, published and settled, leave a reader more than half of the loop.
        (2_000, 1, pytest.approx(0.75, abs=0.25)),
    ],
)
def test_readers_have_what_live_traffic_leaves_of_the_loop(live: float, readers: int, expected: Any) -> None:
    """The more live traffic, the smaller the readers' share."""
    assert share(row_us=3, live=live, readers=readers) == expected


def test_reading_pages_counts_as_turns_do() -> None:
    """Time spent reading pages in a thread counts: if it equals the turns' time, readers have half the share."""
    loop = Loop(3e-6, 80_000)
    loop.share(1, 0.5)
    alone = loop.share(1, 2.0)
    loop.reading = ROWS * loop.row_seconds
    assert loop.share(1, 2.0) == pytest.approx(alone / 2, rel=0.1)


def test_on_a_slower_machine_the_same_load_is_more() -> None:
    """The share of the loop that live traffic takes counts, not the number of messages."""
    quick = share(row_us=3, live=8_000)
    assert share(row_us=6, live=4_000) == pytest.approx(quick, rel=0.05)
    assert share(row_us=6, live=8_000) < quick


@pytest.mark.parametrize("readers", [1, 7])
def test_readers_go_on_at_once_where_live_traffic_has_ended(readers: int) -> None:
    """A pause that began during full load is cut short, and none follows."""
    loop = Loop(3e-6, 80_000)
    loop.reading = 0.004
    loop.share(readers, 1.0)
    loop.live_per_second = 0
    loop.share(readers, 4 * turns.WINDOW_SECONDS)
    assert loop.share(readers, 0.5) == pytest.approx(1, abs=0.02)


def test_a_reader_that_comes_after_live_traffic_does_not_wait_for_it() -> None:
    """Messages that were published while nobody read say nothing about present traffic."""
    loop = Loop(3e-6, 80_000)
    loop.share(1, 0.5)
    loop.now += 2 * turns.STALE_SECONDS
    loop.counters.published_messages += 1_000_000
    started = loop.now
    loop.now += ROWS * loop.row_seconds
    assert loop.pace.wait(loop.pace.spent(started, ROWS)) == 0


def test_a_search_that_finds_little_is_not_taken_for_slow_rows() -> None:
    """A page that took long to read and has one row says nothing about the cost of live messages."""
    loop = Loop(3e-6, 1)
    loop.share(1, 0.5)
    loop.reading = 0.03
    for _ in range(50):
        started = loop.now
        loop.now += 0.001
        loop.pace.spent(started, 1, 0.03)
    loop.reading = 0.0
    assert loop.share(1, 2.0) == pytest.approx(1, abs=0.02)


def test_one_that_pauses_beside_live_traffic_looks_seldom() -> None:
    """A paused reader checks seldom, so that many of them do not keep the loop busy."""
    loop = Loop(3e-6, 80_000)
    loop.share(1, 0.5)
    due = loop.now + 10.0
    looks = 0
    while (wait := loop.pace.wait(due)) > 0:
        loop.now += wait
        loop.counters.published_messages += int(80_000 * wait)
        looks += 1
    assert loop.now >= due
    assert looks <= 50


def test_a_turn_that_was_interrupted_is_not_waited_for_long() -> None:
    """During the turn other processes had the processor; a pause in proportion would be lost time."""
    loop = Loop(3e-6, 80_000)
    loop.share(1, 0.5)
    loop.now += 1.0
    assert loop.pace.spent(loop.now - 1.0, ROWS) - loop.now <= 16.01 * turns.LONGEST_TURN


# --- Log readers that wait for messages -----------------------------------------------------------------------------

ENOUGH = 1_000


class NaiveLink:
    """A reader's link, which counts how often it is asked for room: once whenever its feed is run."""

    client: Any = SimpleNamespace(user="ann")

    def __init__(self, credit: int = ENOUGH, limit_bytes: int = 1_000_000) -> None:
        self.account = Ledger(1_000_000, 1_000_000).open(limit_bytes, lambda bound: None)
        self.credit = credit
        self.looks = 0
        self.received: list[int] = []
        self.drained = 0
        self.is_finished = False

    def room(self) -> int:
        self.looks += 1
        return self.credit

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        self.credit -= len(rows)
        self.received += [row[ID] for row in rows]

    def nothing_to_send(self) -> None:
        self.drained += 1

    def finish(self) -> None:
        self.is_finished = True

    def refuse(self, refused: Any) -> None:
        raise AssertionError(refused)


class NaiveVpn:
    """A Message VPN without threads, with a small cache, and publishers of one message at a time."""

    def __init__(self, **sizes: Any) -> None:
        self.world = World(Sizes(window=10, page_rows=10, quantum=10, **sizes))
        self.world.settle_down()
        self._serial = 0

    def publish(self, *topics: str) -> None:
        """Publish a message to each topic, all in one commit; return when readers have been told."""
        self.submit(*topics)
        self.world.settle_down()

    def submit(self, *topics: str) -> None:
        """Hand a message for each topic to the writer."""
        for topic in topics:
            content, bare = message(self._serial, 0, 0)
            self._serial += 1
            self.world.publisher.waiting.add(content)
            publish = self.world.vpn.publishing.publish
            self.world.on_loop(partial(publish, self.world.publisher, topic, [content], [bare], [content]))
        self.world.loop.run()

    def read(
        self,
        link: NaiveLink,
        *patterns: str,
        last: int | None = None,
        matches: Callable[[str], bool] | None = None,
        gives_way: bool = False,
    ) -> LogFeed:
        """A reader from now on, up to the id ``last``."""
        resolved = Resolved(self.next_id, last=last, time_ms=None, is_live=True)
        topics = (
            None if matches is None else SimpleNamespace(topics=SimpleNamespace(matches=matches), name="s")
        )
        stream = cast("Endpoint | None", topics)
        feed = self.world.vpn.readers.read_log(resolved, patterns, link, stream=stream, gives_way=gives_way)
        self.run(feed)
        return feed

    def run(self, feed: LogFeed) -> None:
        """Run a feed, as when its link gets credit or room."""
        self.world.on_loop(feed.run)

    @property
    def next_id(self) -> int:
        return self.world.vpn.broker.log.next_id

    @property
    def pages(self) -> int:
        """How often the store was asked for a page since ``count_pages``."""
        return self._pages

    def read_pages(self) -> None:
        """Let the store's threads read what they were asked for, while no time passes."""
        while self.world.reader.waiting:
            self.world.reader.read(len(self.world.reader.waiting))
            self.world.loop.run()

    def count_pages(self) -> None:
        """Begin to count requests to the store."""
        self._pages = 0
        submit = self.world.reader.submit

        def counted(*arguments: Any) -> Any:
            self._pages += 1
            return submit(*arguments)

        self.world.reader.submit = counted  # type: ignore[assignment,method-assign]


@pytest.fixture
def vpn() -> Iterator[NaiveVpn]:
    """Its cache holds everything that the test publishes."""
    vpn = NaiveVpn(tail_bytes=1_000_000)
    yield vpn
    vpn.world.loop.close()


@pytest.fixture
def forgetful() -> Iterator[NaiveVpn]:
    """Its cache is empty after each commit."""
    vpn = NaiveVpn(tail_bytes=1)
    yield vpn
    vpn.world.loop.close()


def test_a_commit_does_not_look_at_readers_of_other_topics(vpn: NaiveVpn) -> None:
    """Only feeds that read the published topics are run, however many wait."""
    others = [NaiveLink() for _ in range(50)]
    for number, link in enumerate(others):
        vpn.read(link, f"b/{number}")
        vpn.read(link, "c/>")
    for link in others:
        link.looks = 0
    mine, everything = NaiveLink(), NaiveLink()
    vpn.read(mine, "a/*")
    vpn.read(everything, ">")
    first = vpn.next_id
    for _ in range(10):
        vpn.publish("a/x", "elsewhere")
    assert mine.received == list(range(first, first + 20, 2))
    assert everything.received == list(range(first, first + 20))
    assert {link.looks for link in others} == {0}


def left_behind(
    vpn: NaiveVpn, monkeypatch: pytest.MonkeyPatch, *, gives_way: bool, count: int = 8
) -> tuple[NaiveLink, list[int]]:
    """A live reader whose link had no credit for a while; historical readers must pause for another second."""
    link = NaiveLink()
    feed = vpn.read(link, ">", gives_way=gives_way)
    vpn.publish("a")
    link.credit = 0
    first = vpn.next_id
    vpn.publish(*"abcdefghijk"[:count])
    seconds = vpn.world.vpn.clock.seconds
    due = seconds() + 1
    monkeypatch.setattr(HistoryPace, "wait", lambda self, _: due - seconds())
    link.received.clear()
    link.credit = ENOUGH
    vpn.run(feed)
    vpn.world.loop.run()
    return link, list(range(first, first + count))


def test_a_live_reader_that_is_left_behind_waits_for_nobody(
    forgetful: NaiveVpn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as live traffic, and does not pause."""
    link, ids = left_behind(forgetful, monkeypatch, gives_way=False)
    monkeypatch.setattr(HistoryPace, "wait", None)  # it is not called
    forgetful.world.settle_down()
    assert link.received == ids


def test_one_for_eyes_that_is_left_behind_waits_as_history_does(
    forgetful: NaiveVpn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it has all, in order."""
    link, ids = left_behind(forgetful, monkeypatch, gives_way=True)
    assert not forgetful.world.reader.waiting, "not even a page is asked for"
    forgetful.world.settle_down()  # however long it takes
    assert link.received == ids


@pytest.mark.parametrize(("count", "waits"), [(10, False), (11, True)])
def test_one_for_eyes_that_keeps_up_waits_for_nobody(
    vpn: NaiveVpn, monkeypatch: pytest.MonkeyPatch, count: int, waits: bool
) -> None:
    """Up to a turn's number of messages, read from memory, is live; with more the reader has fallen behind."""
    link, ids = left_behind(vpn, monkeypatch, gives_way=True, count=count)
    assert link.received == ([] if waits else ids)
    vpn.world.settle_down()
    assert link.received == ids


@pytest.mark.parametrize("tail_bytes", [1, 1_000_000], ids=["out of the store", "out of the cache"])
def test_a_reader_goes_on_with_the_first_message_that_is_for_it(tail_bytes: int) -> None:
    """However much was published to other topics: none of it is read again, and no message is skipped."""
    vpn = NaiveVpn(tail_bytes=tail_bytes)
    link = NaiveLink()
    vpn.read(link, "a/x", "a/y")
    for _ in range(100):
        vpn.publish("b/x")
    vpn.count_pages()
    first = vpn.next_id
    vpn.publish("b/x", "a/y", "b/x", "a/x", "b/x")
    assert link.received == [first + 1, first + 3]
    # 100 rows would be ten pages
    assert vpn.pages <= 1
    vpn.world.loop.close()


def test_a_reader_of_two_topics_begins_with_the_one_that_came_first(vpn: NaiveVpn) -> None:
    """Also if both come in one commit, and the index finds the later one first."""
    link, other = NaiveLink(), NaiveLink()
    vpn.read(other, "a/y")
    vpn.read(link, "a/y", "b/*")
    first = vpn.next_id
    vpn.publish("b/x", "a/y", "b/y")
    assert link.received == [first, first + 1, first + 2]
    assert other.received == [first + 1]


def test_a_reader_without_credit_is_not_looked_at(forgetful: NaiveVpn) -> None:
    """Once it has credit, it gets the messages published meanwhile from the store."""
    link = NaiveLink(credit=1)
    feed = forgetful.read(link, "a/x")
    first = forgetful.next_id
    forgetful.publish("a/x")
    assert link.received == [first]
    link.looks = 0
    for _ in range(10):
        forgetful.publish("b/x")
        forgetful.publish("a/x")
    assert link.looks == 0
    link.credit = ENOUGH
    forgetful.run(feed)
    forgetful.world.settle_down()
    assert link.received == [first, *range(first + 2, first + 21, 2)]


def test_a_link_that_asks_while_its_reader_waits_reads_nothing_again(forgetful: NaiveVpn) -> None:
    """More credit, or a drain, is answered immediately, from the end of the log."""
    link = NaiveLink()
    feed = forgetful.read(link, "a/x")
    for _ in range(20):
        forgetful.publish("b/x")
    forgetful.count_pages()
    drained = link.drained
    forgetful.run(feed)
    assert link.drained == drained + 1
    assert forgetful.pages == 0
    first = forgetful.next_id
    forgetful.publish("a/x")
    assert link.received == [first]


def test_a_link_that_asks_between_a_commit_and_its_news_loses_nothing(vpn: NaiveVpn) -> None:
    """A reader continues after the last message that it was told of, not after the last one committed."""
    link = NaiveLink()
    feed = vpn.read(link, "a/x")
    first = vpn.next_id
    told = vpn.world.vpn.committer.when_committed
    committed = told[0]

    def ask_first(*news: Any) -> None:
        feed.run()
        committed(*news)

    told[0] = ask_first
    vpn.publish("b/x", "a/x")
    assert link.received == [first + 1]


def test_what_a_reader_does_in_its_turn_may_have_another_look(vpn: NaiveVpn) -> None:
    """A feed that another reader runs before its own turn gets all messages, and gets them once."""
    link, other = NaiveLink(), NaiveLink()
    feeds: list[LogFeed] = []

    class Asking(NaiveLink):
        def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
            super().send(rows, attempts, end_id)
            for feed in feeds:
                feed.run()

    feeds.append(vpn.read(link, "a/x"))
    vpn.read(Asking(), "a/>")
    feeds.append(vpn.read(other, "a/*"))
    first = vpn.next_id
    vpn.publish("a/x", "a/y")
    assert link.received == [first]
    assert other.received == [first, first + 1]


def test_exceptions_are_the_readers_own(vpn: NaiveVpn) -> None:
    """A message that a stream's exceptions cover does not run the feed; any other does."""
    link = NaiveLink()
    # Exceptions do not apply to a stream's own topic.
    vpn.read(link, "a/>", "!a/x", "!o*", "own", matches=lambda topic: topic in ("a/y", "own", "a/z"))
    looks, first = link.looks, vpn.next_id
    vpn.publish("a/x")
    assert link.looks == looks
    vpn.publish("own")
    vpn.publish("a/x", "a/y")
    assert link.received == [first + 1, first + 3]


def test_what_the_log_does_not_take_is_not_sent(vpn: NaiveVpn) -> None:
    """A message that is on no endpoint and not in the log has no id; a later logged one is delivered."""
    link = NaiveLink()
    vpn.read(link, UNLOGGED, "a/x")
    vpn.publish(UNLOGGED)
    first = vpn.next_id
    vpn.publish("a/x")
    assert link.received == [first]


def test_a_bounded_replay_ends_with_any_message(vpn: NaiveVpn) -> None:
    """Even if its last id is a message of another topic."""
    link = NaiveLink()
    vpn.read(link, "a/x", last=vpn.next_id + 2)
    first = vpn.next_id
    vpn.publish("a/x", "b/x")
    assert not link.is_finished
    vpn.publish("b/x")
    assert link.received == [first]
    assert link.is_finished


def test_a_bounded_replay_ends_with_an_id_that_came_to_nothing(vpn: NaiveVpn) -> None:
    """It does not wait for the id of a failed commit."""
    link, patient = NaiveLink(), NaiveLink()
    vpn.read(link, "a/x", last=vpn.next_id)
    vpn.read(patient, "a/x")
    vpn.world.has_failed_to_write = True
    vpn.submit("a/x")
    vpn.world.writer.fail(1)
    vpn.world.settle_down()
    assert link.is_finished
    assert not link.received
    vpn.publish("a/x")
    assert patient.received == [vpn.next_id - 1]


def test_a_waiting_reader_is_where_the_log_ends(vpn: NaiveVpn) -> None:
    """Its position is after the messages of other topics, so that trimming those is no loss to it."""
    link = NaiveLink()
    feed = vpn.read(link, "a/x")
    for _ in range(5):
        vpn.publish("b/x")
    assert feed.position == vpn.next_id


def test_readers_that_left_are_forgotten(vpn: NaiveVpn) -> None:
    """Other readers of the same topics go on; after the last one, the index has no entry left."""
    links = [NaiveLink(), NaiveLink()]
    one, other = (vpn.read(link, "a/x", "a/y") for link in links)
    waiting = vpn.world.vpn.readers.waiting
    vpn.world.on_loop(one.close)
    vpn.world.on_loop(one.close)
    assert list(waiting._groups["a/x", "a/y"].waiting) == [other]
    first = vpn.next_id
    vpn.publish("a/y")
    assert [link.received for link in links] == [[], [first]]
    vpn.world.on_loop(other.close)
    assert not waiting._groups
    assert not any(map(waiting._index.match, ("a/x", "a/y")))


def stalled(vpn: NaiveVpn, *links: NaiveLink) -> list[LogFeed]:
    """Readers that have fallen behind: their links took three of twenty messages, and now have no credit."""
    feeds = [vpn.read(link, "a") for link in links]
    for link in links:
        link.credit = 0
    for _ in range(20):
        vpn.publish("a")
    for link, feed in zip(links, feeds, strict=True):
        link.credit = 3
        vpn.run(feed)
        vpn.read_pages()
    assert [len(link.received) for link in links] == [3] * len(links)
    return feeds


def test_a_page_is_kept_for_a_link_that_stalls_for_a_moment(forgetful: NaiveVpn) -> None:
    """The page is in its connection's account until the link goes on, and is not read again."""
    link = NaiveLink()
    (feed,) = stalled(forgetful, link)
    forgetful.count_pages()
    assert link.account.held[Kind.PAGES] > 0
    link.credit = 5
    forgetful.run(feed)
    assert (len(link.received), forgetful.pages) == (8, 0)


@pytest.mark.parametrize(
    ("limit_bytes", "seconds"), [(1_000_000, STALLED_SECONDS), (1, 0.0)], ids=["for long", "without room"]
)
def test_a_link_that_stalls_holds_no_page(forgetful: NaiveVpn, limit_bytes: int, seconds: float) -> None:
    """A page is also dropped if the account has no room for it. It is read again later, and no message is missing."""
    link = NaiveLink(limit_bytes=limit_bytes)
    (feed,) = stalled(forgetful, link)
    forgetful.world.loop.advance(seconds)
    forgetful.count_pages()
    assert (link.account.held[Kind.PAGES], feed.position) == (0, link.received[-1] + 1)
    link.credit = ENOUGH
    forgetful.run(feed)
    forgetful.world.settle_down()
    assert link.received == list(range(link.received[0], forgetful.next_id))
    assert forgetful.pages > 0
    assert link.account.held[Kind.PAGES] == 0


def test_all_links_that_stall_hold_a_bounded_amount(
    forgetful: NaiveVpn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit, the link that has stalled longest drops its page; a closed one holds nothing."""
    alone, *links = [NaiveLink() for _ in range(4)]
    stalled(forgetful, alone)
    monkeypatch.setattr("gateway.vpn.feeds.stalled.STALLED_BYTES", alone.account.held[Kind.PAGES] * 5 // 2)
    feeds = stalled(forgetful, *links)
    assert [bool(link.account.held[Kind.PAGES]) for link in links] == [False, True, True]
    forgetful.world.on_loop(feeds[1].close)
    assert [bool(link.account.held[Kind.PAGES]) for link in links] == [False, False, True]


@pytest.mark.parametrize(
    "credit", [10, 1], ids=["a whole page is taken", "credit ends before the page comes"]
)
def test_a_page_that_comes_while_a_link_takes_nothing_is_counted(forgetful: NaiveVpn, credit: int) -> None:
    """No part of the page was taken. It is in the account for a moment, and then it is dropped."""
    link = NaiveLink()
    feed = forgetful.read(link, "a")
    link.credit = 0
    for _ in range(20):
        forgetful.publish("a")
    link.credit = credit
    forgetful.run(feed)
    if credit == 1:
        link.credit = 0
    forgetful.read_pages()
    assert link.credit == 0
    assert link.account.held[Kind.PAGES] > 0
    forgetful.world.loop.advance(STALLED_SECONDS)
    forgetful.count_pages()
    assert link.account.held[Kind.PAGES] == 0
    link.credit = ENOUGH
    forgetful.run(feed)
    assert forgetful.pages > 0
    forgetful.world.settle_down()
    assert len(link.received) == 20 and link.account.held[Kind.PAGES] == 0


@pytest.mark.parametrize("priorities", [False, True])
@pytest.mark.parametrize("selects", [None, lambda row: True], ids=["all", "selected"])
def test_a_browser_that_takes_nothing_holds_no_page(
    vpn: NaiveVpn, priorities: bool, selects: Callable[[Row], bool] | None
) -> None:
    """
    The rest of a page is in the account for a moment, however much is published meanwhile; then it is dropped. It is
    read again later, and no message is missing or shown twice.
    """
    link, settings = NaiveLink(credit=3), EndpointSettings(priorities=priorities)
    first, world = vpn.next_id, vpn.world
    queue = world.vpn.endpoints.create("browsed", EndpointKind.QUEUE, settings, ["a"])
    world.new_content(queue, None)
    for _ in range(20):
        vpn.publish("a")
    feed = world.vpn.readers.browse(queue, link, selects)
    world.on_loop(feed.run)
    vpn.read_pages()
    assert link.received == [first, first + 1, first + 2]
    held = link.account.held[Kind.PAGES]
    assert held > 0
    world.loop.advance(STALLED_SECONDS / 2)
    vpn.submit("a")
    assert link.account.held[Kind.PAGES] == held
    world.loop.advance(STALLED_SECONDS / 2)
    assert link.account.held[Kind.PAGES] == 0
    vpn.count_pages()
    link.credit = ENOUGH
    world.on_loop(feed.run)
    assert vpn.pages > 0
    world.settle_down()
    assert link.received == list(range(first, vpn.next_id))
    assert link.account.held[Kind.PAGES] == 0


# --- Values of a last-value queue -------------------------------------------------------------------------------------


class ValuesReader:
    """A reader of values, whose pages of two come when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Future[Any]] = []
        self.woken: list[BaseException | None] = []
        loop = SimpleNamespace(call_soon_threadsafe=lambda call, *args: call(*args))
        history: Any = SimpleNamespace(
            cache=SimpleNamespace(next_id=9, first_id=1),
            runtime=SimpleNamespace(loop=loop),
            timed=self._timed,
        )
        self.source = ValuesSource(
            lambda position: lambda: LogPage([], 9), 1, history, 9, (), self.woken.append
        )

    def _timed(self, read: Callable[[], LogPage]) -> Future[Any]:
        self.asked.append(Future())
        return self.asked[-1]

    def page(self) -> None:
        """The page that was asked for has come."""
        first = 2 * len(self.asked) - 1
        self.asked[-1].set_result((LogPage(rows_of([first, first + 1]), first + 2), 0.0))


def test_a_reader_of_values_is_woken_although_something_is_erased_meanwhile() -> None:
    """Nobody else would wake it."""
    reader = ValuesReader()
    assert reader.source.read(10) is None
    reader.source.erased({})
    reader.page()
    assert reader.woken == [None]
    assert reader.source.read(10) == (rows_of([1, 2]), 3)


def test_a_page_of_values_that_nobody_takes_is_counted() -> None:
    """From when it comes until it is dropped or taken."""
    reader = ValuesReader()
    assert reader.source.read(10) is None
    reader.page()
    assert reader.source.held_bytes == 2
    reader.source.let_go()
    assert reader.source.held_bytes == 0
    assert reader.source.read(10) is None
    assert len(reader.asked) == 2
