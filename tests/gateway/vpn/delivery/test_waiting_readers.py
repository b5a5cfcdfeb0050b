"""Log readers that wait: what a commit does to them, and where they go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.model import ID, Row
from gateway.core.replay.starts import Resolved
from gateway.ledger import Kind, Ledger
from gateway.vpn.feeds.log_feed import STALLED_SECONDS, LogFeed
from gateway.vpn.turns import HistoryPace
from tests.gateway.core.machines.model import message
from tests.gateway.core.machines.world import UNLOGGED, Sizes, World

ENOUGH = 1_000


class Link:
    """A reader's link; it counts how often it is asked for room, as it is once whenever its feed is looked at."""

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


class Vpn:
    """A Message VPN without threads, a cache of few bytes, and publishers of one message at a time."""

    def __init__(self, **sizes: Any) -> None:
        self.world = World(Sizes(window=10, page_rows=10, quantum=10, **sizes))
        self.world.settle_down()
        self._serial = 0

    def publish(self, *topics: str) -> None:
        """A message to each topic, all in one commit; returns when readers were told."""
        self.submit(*topics)
        self.world.settle_down()

    def submit(self, *topics: str) -> None:
        """They are handed to the writer."""
        for topic in topics:
            content, bare = message(self._serial, 0, 0)
            self._serial += 1
            self.world.publisher.waiting.add(content)
            publish = self.world.vpn.publishing.publish
            self.world.on_loop(partial(publish, self.world.publisher, topic, [content], [bare], [content]))
        self.world.loop.run()

    def read(
        self,
        link: Link,
        *patterns: str,
        last: int | None = None,
        matches: Callable[[str], bool] | None = None,
        gives_way: bool = False,
    ) -> LogFeed:
        """A reader of what comes from now on, to ``last``."""
        resolved = Resolved(self.next_id, last=last, time_ms=None, is_live=True)
        topics = (
            None if matches is None else SimpleNamespace(topics=SimpleNamespace(matches=matches), name="s")
        )
        stream = cast("Endpoint | None", topics)
        feed = self.world.vpn.readers.read_log(resolved, patterns, link, stream=stream, gives_way=gives_way)
        self.run(feed)
        return feed

    def run(self, feed: LogFeed) -> None:
        """Its link has credit, or room."""
        self.world.on_loop(feed.run)

    @property
    def next_id(self) -> int:
        return self.world.vpn.log.next_id

    @property
    def pages(self) -> int:
        """How often the store was asked for a page since ``forget_pages``."""
        return self._pages

    def count_pages(self) -> None:
        """Begin to count what the store is asked for."""
        self._pages = 0
        submit = self.world.reader.submit

        def counted(*arguments: Any) -> Any:
            self._pages += 1
            return submit(*arguments)

        self.world.reader.submit = counted  # type: ignore[assignment,method-assign]


@pytest.fixture
def vpn() -> Iterator[Vpn]:
    """Its cache holds all that the test publishes."""
    vpn = Vpn(tail_bytes=1_000_000)
    yield vpn
    vpn.world.loop.close()


@pytest.fixture
def forgetful() -> Iterator[Vpn]:
    """Its cache holds nothing behind a commit."""
    vpn = Vpn(tail_bytes=1)
    yield vpn
    vpn.world.loop.close()


def test_a_commit_does_not_look_at_readers_of_other_topics(vpn: Vpn) -> None:
    """Nobody is asked for anything but who reads what was published, however many wait."""
    others = [Link() for _ in range(50)]
    for number, link in enumerate(others):
        vpn.read(link, f"b/{number}")
        vpn.read(link, "c/>")
    for link in others:
        link.looks = 0
    mine, everything = Link(), Link()
    vpn.read(mine, "a/*")
    vpn.read(everything, ">")
    first = vpn.next_id
    for _ in range(10):
        vpn.publish("a/x", "elsewhere")
    assert mine.received == list(range(first, first + 20, 2))
    assert everything.received == list(range(first, first + 20))
    assert {link.looks for link in others} == {0}


def left_behind(
    vpn: Vpn, monkeypatch: pytest.MonkeyPatch, *, gives_way: bool, count: int = 8
) -> tuple[Link, list[int]]:
    """A live reader whose link took nothing for a while; history may not be read for a second from now."""
    link = Link()
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
    forgetful: Vpn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is live traffic itself."""
    link, ids = left_behind(forgetful, monkeypatch, gives_way=False)
    monkeypatch.setattr(HistoryPace, "wait", None)  # and is not asked
    forgetful.world.settle_down()
    assert link.received == ids


def test_one_for_eyes_that_is_left_behind_waits_as_history_does(
    forgetful: Vpn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it has all, in order."""
    link, ids = left_behind(forgetful, monkeypatch, gives_way=True)
    assert not forgetful.world.reader.waiting, "not even a page is asked for"
    forgetful.world.settle_down()  # however long it takes
    assert link.received == ids


@pytest.mark.parametrize(("count", "waits"), [(10, False), (11, True)])
def test_one_for_eyes_that_keeps_up_waits_for_nobody(
    vpn: Vpn, monkeypatch: pytest.MonkeyPatch, count: int, waits: bool
) -> None:
    """What is in memory, and no more than the messages of a turn, is live; with more it is left behind."""
    link, ids = left_behind(vpn, monkeypatch, gives_way=True, count=count)
    assert link.received == ([] if waits else ids)
    vpn.world.settle_down()
    assert link.received == ids


@pytest.mark.parametrize("tail_bytes", [1, 1_000_000], ids=["out of the store", "out of the cache"])
def test_a_reader_goes_on_with_the_first_message_that_is_for_it(tail_bytes: int) -> None:
    """However much was published to others meanwhile: nothing of that is read again, and nothing passed over."""
    vpn = Vpn(tail_bytes=tail_bytes)
    link = Link()
    vpn.read(link, "a/x", "a/y")
    for _ in range(100):
        vpn.publish("b/x")
    vpn.count_pages()
    first = vpn.next_id
    vpn.publish("b/x", "a/y", "b/x", "a/x", "b/x")
    assert link.received == [first + 1, first + 3]
    # 100 rows would be ten pages.
    assert vpn.pages <= 1
    vpn.world.loop.close()


def test_a_reader_of_two_topics_begins_with_the_one_that_came_first(vpn: Vpn) -> None:
    """Also where both come in one commit, and the index finds the later one first."""
    link, other = Link(), Link()
    vpn.read(other, "a/y")
    vpn.read(link, "a/y", "b/*")
    first = vpn.next_id
    vpn.publish("b/x", "a/y", "b/y")
    assert link.received == [first, first + 1, first + 2]
    assert other.received == [first + 1]


def test_a_reader_without_credit_is_not_looked_at(forgetful: Vpn) -> None:
    """It gets what came meanwhile once it has credit, out of the store."""
    link = Link(credit=1)
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


def test_a_link_that_asks_while_its_reader_waits_reads_nothing_again(forgetful: Vpn) -> None:
    """More credit, or a drain, is answered at once, from the end of the log."""
    link = Link()
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


def test_a_link_that_asks_between_a_commit_and_its_news_loses_nothing(vpn: Vpn) -> None:
    """Where a reader goes on is what it was told of, not what is committed."""
    link = Link()
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


def test_what_a_reader_does_in_its_turn_may_have_another_look(vpn: Vpn) -> None:
    """Who is looked at before its own turn has what was published all the same."""
    link, other = Link(), Link()
    feeds: list[LogFeed] = []

    class Asking(Link):
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


def test_exceptions_are_the_readers_own(vpn: Vpn) -> None:
    """What a stream's subscriptions except wakes nobody; what they do not does, whatever else is in them."""
    link = Link()
    # A stream's own topic is not for exceptions.
    vpn.read(link, "a/>", "!a/x", "!o*", "own", matches=lambda topic: topic in ("a/y", "own", "a/z"))
    looks, first = link.looks, vpn.next_id
    vpn.publish("a/x")
    assert link.looks == looks
    vpn.publish("own")
    vpn.publish("a/x", "a/y")
    assert link.received == [first + 1, first + 3]


def test_what_the_log_does_not_take_is_not_sent(vpn: Vpn) -> None:
    """A message that is on no endpoint and not in the log has no id; one that is logged behind it comes."""
    link = Link()
    vpn.read(link, UNLOGGED, "a/x")
    vpn.publish(UNLOGGED)
    first = vpn.next_id
    vpn.publish("a/x")
    assert link.received == [first]


def test_a_bounded_replay_ends_with_any_message(vpn: Vpn) -> None:
    """Its last id may be of another topic."""
    link = Link()
    vpn.read(link, "a/x", last=vpn.next_id + 2)
    first = vpn.next_id
    vpn.publish("a/x", "b/x")
    assert not link.is_finished
    vpn.publish("b/x")
    assert link.received == [first]
    assert link.is_finished


def test_a_bounded_replay_ends_with_an_id_that_came_to_nothing(vpn: Vpn) -> None:
    """It waits for nothing that will never be."""
    link, patient = Link(), Link()
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


def test_a_waiting_reader_is_where_the_log_ends(vpn: Vpn) -> None:
    """A purge of what was published to others meanwhile is none of what it has not read."""
    link = Link()
    feed = vpn.read(link, "a/x")
    for _ in range(5):
        vpn.publish("b/x")
    assert feed.position == vpn.next_id


def test_readers_that_left_are_forgotten(vpn: Vpn) -> None:
    """Those of the same topics that stay go on; when the last has left, the index has nothing of them."""
    links = [Link(), Link()]
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
    assert len(waiting._index) == 0


def stalled(vpn: Vpn, *links: Link) -> list[LogFeed]:
    """Readers of history whose links have taken three messages of twenty, and take nothing now."""
    feeds = [vpn.read(link, "a") for link in links]
    for link in links:
        link.credit = 0
    for _ in range(20):
        vpn.publish("a")
    for link, feed in zip(links, feeds, strict=True):
        link.credit = 3
        vpn.run(feed)
        while vpn.world.reader.waiting:
            vpn.world.reader.read(len(vpn.world.reader.waiting))
            vpn.world.loop.run()
    assert [len(link.received) for link in links] == [3] * len(links)
    return feeds


def test_a_page_is_kept_for_a_link_that_stalls_for_a_moment(forgetful: Vpn) -> None:
    """It is in its connection's account until the link goes on, and is not read again."""
    link = Link()
    (feed,) = stalled(forgetful, link)
    forgetful.count_pages()
    assert link.account.held[Kind.PAGES] > 0
    link.credit = 5
    forgetful.run(feed)
    assert (len(link.received), forgetful.pages) == (8, 0)


@pytest.mark.parametrize(
    ("limit_bytes", "seconds"), [(1_000_000, STALLED_SECONDS), (1, 0.0)], ids=["for long", "without room"]
)
def test_a_link_that_stalls_holds_no_page(forgetful: Vpn, limit_bytes: int, seconds: float) -> None:
    """Nor does one for whose page its account has no room. What was let go of is read again, and nothing is missed."""
    link = Link(limit_bytes=limit_bytes)
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


def test_all_links_that_stall_hold_a_bounded_amount(forgetful: Vpn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the bound the one that has stalled for the longest lets go; one that leaves holds nothing."""
    alone, *links = [Link() for _ in range(4)]
    stalled(forgetful, alone)
    monkeypatch.setattr("gateway.vpn.feeds.log_feed.STALLED_BYTES", alone.account.held[Kind.PAGES] * 5 // 2)
    feeds = stalled(forgetful, *links)
    assert [bool(link.account.held[Kind.PAGES]) for link in links] == [False, True, True]
    forgetful.world.on_loop(feeds[1].close)
    assert [bool(link.account.held[Kind.PAGES]) for link in links] == [False, False, True]
