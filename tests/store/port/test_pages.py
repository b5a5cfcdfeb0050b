"""Pages and their bounds, with every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp_ext.message.fields import priorities_of
from gateway.core.effects import CancelDelayed, CountAttempts, DelayedMessage, Effect
from gateway.core.model import BARE, CONTENT, HELD, ID, ROUTE, TOPIC, UNROUTED, Row
from gateway.core.replay.search import Search
from store.errors import LogTrimmed, ReadFailed
from store.ports import Reader
from tests.store.effects import delayed, publication, queue, route, trimming
from tests.store.histories import KEYS, histories
from tests.store.port.vpns import StoredVpn, model_of
from tests.store.vpn_file import MADE_MS
from tests.support.chance import times
from tests.support.naive_reader import NaivePages, agree
from tests.support.naive_store import NaiveStore

LARGE = 1 << 20
"""A largest content that makes a reader look at lengths before it reads contents; no content here is so large."""

QUEUE_ROUTE = route(1).number
"""The route of messages that only the queue 1 has."""

NewVpn = Callable[[], StoredVpn]

EACH_HISTORY = settings(max_examples=times(15, 2_000))


def all_pages(reader: Reader, position: int, end: int, patterns: Sequence[str] = ()) -> list[list[Row]]:
    """The log from ``position`` on and below ``end``, page by page."""
    pages = []
    while position < end:
        page = reader.log_page(position, end, patterns)
        assert page.position > position
        pages.append(page.rows)
        position = page.position
    assert position == end
    return pages


def delayed_of(model: NaiveStore, cursor: int) -> list[DelayedMessage]:
    """The delayed messages of a cursor, in the order of their times."""
    found = []
    for i, (due_ms, counted, retry) in model.cursors[cursor].delayed.items():
        row = model.messages[i]
        (priority,) = priorities_of([row[CONTENT]], [row[BARE]])
        attempts = model.cursors[cursor].attempts.get(i, 0)
        found.append(DelayedMessage(due_ms, i, counted, len(row[CONTENT]), priority, attempts, retry > 0))
    return sorted(found)


def logged(model: NaiveStore) -> list[Row]:
    return [row for i, row in sorted(model.state().messages.items()) if row[HELD] is None]


@EACH_HISTORY
@given(
    history=histories(),
    rows=st.sampled_from([1, 3, 4, 50, 1_000]),
    page_bytes=st.sampled_from([1, 1_000, 1 << 22]),
    largest=st.sampled_from([1, LARGE]),
    most_merged=st.sampled_from([0, 1, 2, 32]),
    scanned=st.sampled_from([1, 7, 50_000]),
    data=st.data(),
)
def test_pages_joined_are_the_log_and_the_messages_of_routes(
    new_vpn: NewVpn,
    history: list[list[Effect]],
    rows: int,
    page_bytes: int,
    largest: int,
    most_merged: int,
    scanned: int,
    data: st.DataObject,
) -> None:
    """
    Between any two ids and with any bounds, each logged message is in exactly one page, in order, as stored. The same
    holds for pages that include held messages, and for pages of some routes, whether those are merged or scanned.
    """
    vpn = new_vpn()
    model = vpn.write(history)
    reader = vpn.open_reader(rows=rows, page_bytes=page_bytes, largest_bytes=largest)
    stored = vpn.stored()
    first = data.draw(st.integers(model.first_id, model.last_id + 1))
    end = data.draw(st.integers(first, model.last_id + 1))
    pages = all_pages(reader, first, end)
    assert [row for page in pages for row in page] == [row for row in logged(model) if first <= row[ID] < end]
    assert all(len(page) <= rows for page in pages)
    position, with_held = first, list[Row]()
    while position < end:
        page = reader.log_page(position, end, ("a/b",), held=True)
        with_held += [row for row in page.rows if row[HELD] is not None or row[TOPIC] == "a/b"]
        position = page.position
    wanted = [row for row in stored if first <= row[ID] < end]
    assert with_held == [row for row in wanted if row[HELD] is not None or row[TOPIC] == "a/b"]
    named = sorted({row[ROUTE] for row in stored} - {UNROUTED})
    routes = sorted(data.draw(st.sets(st.sampled_from([*named, 77_777_777])))) if named else []
    after = data.draw(st.integers(0, model.last_id))
    end = data.draw(st.integers(after + 1, model.last_id + 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vpn.reader_module, "MOST_MERGED", most_merged)
        for bound in ("SCAN_IDS", "MERGE_IDS"):
            patch.setattr(vpn.reader_module, bound, max(scanned, (end - after) // 50), raising=False)
        found: list[Row] = []
        position = after + 1
        while position < end:
            routed = reader.routed_page(routes, position - 1, end)
            assert position < routed.position <= end
            assert len(routed.rows) <= rows
            found += routed.rows
            position = routed.position
    assert found == [row for row in stored if after < row[ID] < end and row[ROUTE] in routes]


@EACH_HISTORY
@given(history=histories(), limit=st.sampled_from([None, 1, 5]))
def test_a_page_is_that_of_the_naive_store(
    new_vpn: NewVpn, history: list[list[Effect]], limit: int | None
) -> None:
    """Pages of routes and of the log, attempts, delayed messages and values equal those of the naive store."""
    vpn = new_vpn()
    model = vpn.write(history)
    reader, naive = vpn.open_reader(rows=20), NaivePages(model, 20)
    end = model.last_id + 1
    # Whether no message is stored that only a dropped cursor holds.
    is_swept = vpn.stored() == [row for _, row in sorted(model.messages.items())]
    if is_swept:
        routes = sorted(model.routes)
        for after in (0, end // 2, end):
            page, expected = (each.routed_page(routes, after, end, limit) for each in (reader, naive))
            assert agree(page, expected, min(limit or 20, 20))
            ids = range(after, after + 20)
            assert reader.messages(ids) == naive.messages(ids)
            assert len(reader.messages(range(after, after + 30))) <= 20
    first = model.first_id
    assert agree(reader.log_page(first, end, ()), naive.log_page(first, end, ()), 20)
    for cursor in model.cursors:
        assert reader.attempts(cursor, 3) == naive.attempts(cursor, 3)
        expected_delays = delayed_of(model, cursor)
        assert reader.delayed_page(cursor) == expected_delays[:256]
        for k, delay in enumerate(expected_delays[:3]):
            assert reader.delayed_message(cursor, delay.id) == delay
            after = (delay.due_ms, delay.id)
            assert reader.delayed_page(cursor, after, 2) == expected_delays[k + 1 : k + 3]
            next_ms = min((one.due_ms for one in expected_delays if one.due_ms > delay.due_ms), default=0)
            assert reader.delayed_page(cursor, until_ms=delay.due_ms) == [
                one for one in expected_delays if one.due_ms <= max(delay.due_ms, next_ms)
            ]
            retries = [one for one in expected_delays[k + 1 :] if one.is_retry and one.id < end - 2]
            assert reader.delayed_page(cursor, after, 2, end - 2) == retries[:2]
        assert reader.delayed_message(cursor, end) is None
        for position, now_ms in ((0, 0), (0, 3), (end // 2, 0)):
            page, expected = (each.values_page(cursor, position, end, now_ms) for each in (reader, naive))
            assert agree(page, expected, 20) or not is_swept
        for key in KEYS:
            assert reader.value_of(cursor, key) == naive.value_of(cursor, key)


def test_routes_of_different_lengths_are_merged(vpn: StoredVpn) -> None:
    """One route has nearly all messages, others have few: each message is on one page, in order, in few pages."""
    numbers = range(1, 9)
    batches: list[list[Effect]] = [[effect for n in numbers for effect in queue(n, f"q{n}")]]
    first = 1
    for k in range(60):
        of = 1 if k % 6 else 2 + k // 6 % 7
        batches.append([publication(first, [b"x"] * 25, endpoints=(of,), time_ms=MADE_MS)])
        first += 25
    batches.append([trimming(model_of(batches), 300)])
    vpn.write(batches)
    routes = sorted(route(n).number for n in numbers)
    for rows in (100, 130, 1_000):
        reader = vpn.open_reader(rows=rows)
        for named in (routes, routes[:2], routes[3:]):
            found: list[int] = []
            position, pages = 1, 0
            while position < first:
                page = reader.routed_page(named, position - 1, first)
                assert position < page.position <= first
                found += [row[ID] for row in page.rows]
                position, pages = page.position, pages + 1
            assert found == [row[ID] for row in vpn.stored() if row[ROUTE] in named]
            assert pages <= 2 + 3 * len(found) // rows + 1_500 // 64


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    page_bytes=st.integers(0, 100),
)
@EACH_HISTORY
def test_a_page_is_bounded_in_bytes(new_vpn: NewVpn, sizes: list[int], page_bytes: int) -> None:
    """A page holds as many messages as fit, and at least one."""
    vpn = new_vpn()
    model = vpn.write([[publication(1, [bytes(size) for size in sizes], time_ms=MADE_MS)]])
    reader = vpn.open_reader(page_bytes=page_bytes, largest_bytes=LARGE)
    pages = all_pages(reader, 1, len(sizes) + 1)
    assert [row for page in pages for row in page] == logged(model)
    weights = [sum(len(row[CONTENT]) for row in page) for page in pages]
    assert all(weight <= page_bytes or len(page) == 1 for weight, page in zip(weights, pages, strict=True))
    firsts = [len(page[0][CONTENT]) for page in pages[1:] if page]
    assert all(weight + first > page_bytes for weight, first in zip(weights, firsts, strict=False))


def test_a_page_scans_a_bounded_piece_of_the_log(vpn: StoredVpn, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no logged message, or none of a rare topic, comes within SCAN_IDS, the page ends there and is empty."""
    monkeypatch.setattr(vpn.reader_module, "SCAN_IDS", 10)
    vpn.write(
        [
            queue(1, "q"),
            [publication(1, [b"x"] * 95, topic="a", endpoints=(1,), logged=False, time_ms=MADE_MS)],
            [publication(96, [b"y"], topic="b", time_ms=MADE_MS)],
        ]
    )
    reader = vpn.open_reader()
    for patterns in ((), ("b",)):
        first = reader.log_page(1, 97, patterns)
        assert (first.rows, first.position) == ([], 11)
        assert [len(page) for page in all_pages(reader, 1, 97, patterns)] == [0] * 9 + [1]


@pytest.mark.parametrize("largest_bytes", [1, LARGE])
def test_what_was_trimmed_is_not_missed_in_silence(vpn: StoredVpn, largest_bytes: int) -> None:
    """A page from before the log's beginning raises LogTrimmed with the log's first id, where a read can begin."""
    made = publication(1, [b"x"] * 20, time_ms=MADE_MS)
    vpn.write([[made], [trimming(model_of([[made]]), 11)]])
    reader = vpn.open_reader(largest_bytes=largest_bytes)
    for position, end in ((1, 21), (10, 21), (1, 5)):
        for held in (False, True):
            with pytest.raises(LogTrimmed) as caught:
                reader.log_page(position, end, (), held=held)
            assert caught.value.first_id == 11
    assert [row[ID] for row in reader.log_page(11, 21, ()).rows] == list(range(11, 21))
    assert reader.first_since(MADE_MS) == 11


def test_nobody_reads_what_was_trimmed(vpn: StoredVpn) -> None:
    """No read returns a trimmed message that no endpoint needs; one that an endpoint needs comes once."""
    made: list[list[Effect]] = [
        queue(1, "q"),
        [publication(1, [b"x"] * 10, topic="t", time_ms=MADE_MS)],
        [publication(11, [b"y"] * 10, topic="t", endpoints=(1,), time_ms=MADE_MS)],
        [publication(21, [b"z"] * 10, topic="t", endpoints=(1,), time_ms=MADE_MS + 1)],
    ]
    vpn.write([*made, [trimming(model_of(made), 16)]])
    reader = vpn.open_reader()
    assert [row[ID] for row in reader.messages(range(1, 31))] == list(range(11, 31))
    # However many are gone before the first that is there.
    assert [row[ID] for row in vpn.open_reader(rows=5).messages(range(1, 31))] == list(range(11, 16))
    for routes in ([QUEUE_ROUTE], [QUEUE_ROUTE, 77_777], [QUEUE_ROUTE, *range(77_777, 77_877)]):
        found = [(row[ID], row[HELD]) for row in reader.routed_page(routes, 0).rows]
        assert found == [(i, 1 if i < 16 else None) for i in range(11, 31)]
    assert [reader.time_of(i) for i in (1, 15, 16)] == [None, None, MADE_MS]
    assert reader.tally(1, 31, ()) == [("t", 15, 15)]
    assert reader.first_since(MADE_MS) == 16
    assert reader.last_matching(lambda topic: True) == 30


def test_what_the_store_takes_of_its_disk_grows_with_it(vpn: StoredVpn) -> None:
    """The size grows by about what is written; the disk's free space is known of a file, but not of a database."""
    vpn.write([[publication(1, [b"x"] * 10, time_ms=MADE_MS)]])
    before = vpn.open_reader().disk()
    vpn.write([[publication(11, [bytes(100_000)] * 20, time_ms=MADE_MS)]])
    after = vpn.open_reader().disk()
    assert 2_000_000 <= after.size_bytes - before.size_bytes <= 10_000_000
    assert 0 <= after.reusable_bytes < after.size_bytes
    assert after.free_bytes is None or after.free_bytes > 0


def test_attempts_are_those_counted(vpn: StoredVpn) -> None:
    """Only messages with failed deliveries are returned, of one cursor and within the bounds."""
    made = publication(1, [b"x"] * 30, endpoints=(1, 2), time_ms=MADE_MS)
    counts = [CountAttempts(1, [(3, 1), (20, 2), (21, 5)]), CountAttempts(2, [(4, 9)])]
    vpn.write([[*queue(1, "q"), *queue(2, "r"), made], counts])
    reader = vpn.open_reader()
    assert reader.attempts(1) == [(3, 1), (20, 2), (21, 5)]
    assert reader.attempts(1, 4, 20) == [(20, 2)]
    assert reader.attempts(3) == []


def test_what_waits_for_its_time_and_is_cancelled_is_let_go_of(vpn: StoredVpn) -> None:
    """A cancelled message is no longer delayed, its failed deliveries are deleted, and so is itself if not logged."""
    due_ms = MADE_MS + 5
    model = vpn.write([queue(1, "q")])
    for first, is_logged in ((1, True), (3, False)):
        waits = [due_ms] * 2
        vpn.commit(
            [delayed(model, first, [b"x"] * 2, waits, endpoints=(1,), logged=is_logged, time_ms=MADE_MS)]
        )
    vpn.commit([CountAttempts(1, [(i, 1) for i in range(1, 5)])])
    vpn.commit([CancelDelayed(1, [(due_ms, 2), (due_ms, 4)])])
    reader = vpn.open_reader()
    assert [message.id for message in reader.delayed_page(1)] == [1, 3]
    assert reader.attempts(1) == [(1, 1), (3, 1)]
    assert [row[ID] for row in vpn.stored()] == [1, 2, 3]
    assert vpn.check() == []


@pytest.mark.parametrize("topic", ["a\x01b", "\x01;", "\x010", "ä/\x01", "a;b", "€" * 60])
def test_topics_come_as_they_were(vpn: StoredVpn, topic: str) -> None:
    """A topic is read as written, even if it has characters that an engine uses to pack or escape topics."""
    effects = [
        publication(1, [b"x"] * 5, topic=topic, time_ms=MADE_MS),
        publication(6, [b"x"], topic="other", time_ms=MADE_MS),
    ]
    vpn.write([effects])
    reader = vpn.open_reader()
    assert [row[TOPIC] for row in reader.log_page(1, 6, ()).rows] == [topic] * 5
    assert [row[TOPIC] for row in reader.log_page(5, 7, ()).rows] == [topic, "other"]
    assert [row[ID] for row in reader.log_page(1, 7, (topic,)).rows] == [1, 2, 3, 4, 5]
    assert sorted(reader.tally(1, 7, ())) == sorted([(topic, 5, 5), ("other", 1, 1)])
    assert reader.last_matching(lambda found: found == topic) == 5


# --- damage ---------------------------------------------------------------------------------------------------------

DAMAGES = (
    "update message set content = content || content where id = {}",
    "update message set topic = 'b' where id = {}",
    "update message set time = time + 1 where id = {}",
    "update message set route = 7 where id = {}",
    "update message set bare = 1 where id = {}",
    "update message set checksum = checksum + 1 where id = {}",
    "update message set checksum = 0 where id = {}",
)


@pytest.mark.parametrize(("rows", "largest"), [(1_000, 64), (1_000, LARGE), (4, 64), (1, 64)])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_what_was_written_is_not_given(
    vpn: StoredVpn, damage: str, rows: int, largest: int
) -> None:
    """
    Messages before the damaged one are read. Every read that reaches it fails and names it, and the reader reports the
    damage from then on.
    """
    made = publication(1, [b"x"] * 20, endpoints=(1,), time_ms=MADE_MS)
    vpn.write([queue(1, "q"), [made]])
    vpn.execute(damage.format(12))
    reader = vpn.open_reader(rows=rows, largest_bytes=largest)
    assert [row for page in all_pages(reader, 1, 12) for row in page] == made.rows[:11]
    assert reader.damage is None
    page = reader.log_page(11, 21, ())
    assert (page.rows, page.position) == (made.rows[10:11], 12)
    reads: list[Callable[[], object]] = [
        lambda: reader.log_page(12, 21, ()),
        lambda: reader.messages([12, 13]),
        lambda: reader.search_page(Search(lambda view: False), (), 12, 21),
        lambda: reader.search_page(Search(lambda view: False, needles=(b"x",)), (), 12, 21),
    ]
    if "route" not in damage:
        reads.append(lambda: reader.routed_page([QUEUE_ROUTE], 11))
    for read in reads:
        with pytest.raises(ReadFailed, match="message 12 is not what was written"):
            read()
    assert reader.damage is not None
    assert "message 12" in reader.damage
    assert reader.log_page(13, 21, ()).rows == made.rows[12 : 12 + rows]


def test_what_cannot_be_read_is_an_error_of_the_port(vpn: StoredVpn) -> None:
    """If the engine fails, ``ReadFailed`` has its reason, also from a thread of the pool."""
    vpn.write([])
    reader = vpn.open_reader()
    vpn.execute("alter table message rename to gone")
    reads: list[Callable[[], object]] = [
        lambda: reader.log_page(1, 2, ()),
        lambda: reader.routed_page([1], 0),
        lambda: reader.messages([1]),
        lambda: reader.tally(1, 2, ()),
        lambda: reader.first_since(MADE_MS),
        lambda: reader.positions_since([MADE_MS]),
        lambda: reader.time_of(1),
        lambda: reader.last_matching(None),
    ]
    try:
        for read in reads:
            with pytest.raises(
                ReadFailed, match=r"no such table: message|relation \"message\" does not exist"
            ):
                reader.submit(read).result()
    finally:
        vpn.execute("alter table gone rename to message")
