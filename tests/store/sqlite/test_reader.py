"""Pages, probes and their bounds, on real files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from amqp_ext.topics import TopicPattern, TopicSyntaxError
from gateway.core.effects import CountAttempts, Effect
from gateway.core.model import CONTENT, HELD, ROUTE, UNROUTED, Row
from store.errors import LogTrimmed, ReadFailed
from store.sqlite import reader as reader_module
from store.sqlite.reader import (
    FEW_ROWS,
    MOST_LITERALS,
    MOST_MERGED,
    MOST_WILDCARDS,
    SqliteReader,
    topic_condition,
)
from store.sqlite.schema import PAGE_BYTES
from tests.store.effects import publication, queue, route, trimming
from tests.store.histories import histories
from tests.store.vpn_file import COLUMNS, MADE_MS, commit, empty_model, execute, writing_to
from tests.support.naive_reader import NaivePages, agree
from tests.support.naive_store import NaiveStore

LARGE = 1 << 20
"""More than any content here: with it, a reader looks at lengths before it reads contents."""


def written(path: Path, batches: Iterable[Sequence[Effect]]) -> NaiveStore:
    """The batches, committed; and what the file holds then."""
    model = empty_model()
    with closing(writing_to(path)) as connection:
        for effects in batches:
            commit(connection, effects)
            for effect in effects:
                model.apply(effect)
    return model


@pytest.fixture
def open_reader() -> Iterator[Callable[..., SqliteReader]]:
    """Makes readers that end with the test."""
    readers: list[SqliteReader] = []

    def make(
        path: Path, *, rows: int = 1_000, page_bytes: int = 1 << 22, largest_bytes: int | None = None
    ) -> SqliteReader:
        largest = largest_bytes if largest_bytes is not None else 64
        reader = SqliteReader(path, threads=1, page_rows=rows, page_bytes=page_bytes, largest_bytes=largest)
        readers.append(reader)
        return reader

    yield make
    for reader in readers:
        reader.close()


def all_pages(reader: SqliteReader, position: int, end: int, patterns: Sequence[str] = ()) -> list[list[Row]]:
    """The log from `position` to `end`, page by page."""
    pages = []
    while position < end:
        page = reader.log_page(position, end, patterns)
        assert page.position > position
        pages.append(page.rows)
        position = page.position
    assert position == end
    return pages


def written_to_nothing(*effects: Effect) -> NaiveStore:
    """What there is after these effects, in no file."""
    model = empty_model()
    for effect in effects:
        model.apply(effect)
    return model


QUEUE_ROUTE = route(1).number
"""Of what lies on the queue of the tests alone."""


def logged(model: NaiveStore) -> list[Row]:
    return [row for i, row in sorted(model.state().messages.items()) if row[HELD] is None]


SLOW_FIXTURES = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=30
)


# --- pages ----------------------------------------------------------------------------------------------------------


@SLOW_FIXTURES
@given(
    history=histories(),
    rows=st.sampled_from([1, FEW_ROWS - 1, FEW_ROWS, 50, 1_000]),
    page_bytes=st.sampled_from([1, 1_000, 1 << 22]),
    largest=st.sampled_from([1, LARGE]),
)
def test_pages_joined_are_the_log(
    fresh: Callable[[], Path],
    open_reader: Callable[..., SqliteReader],
    history: list[list[Effect]],
    rows: int,
    page_bytes: int,
    largest: int,
) -> None:
    """Whatever the bounds, every logged message is in exactly one page, in order, as stored; with all held ones."""
    path = fresh()
    model = written(path, history)
    reader = open_reader(path, rows=rows, page_bytes=page_bytes, largest_bytes=largest)
    end = model.last_id + 1
    pages = all_pages(reader, model.first_id, end)
    assert [row for page in pages for row in page] == logged(model)
    assert all(len(page) <= rows for page in pages)
    stored = list(reader._connection.execute(f"select {COLUMNS} from message order by id"))
    position, with_held = model.first_id, list[Row]()
    while position < end:
        page = reader.log_page(position, end, ("a/b",), held=True)
        with_held += [row for row in page.rows if row[HELD] is not None or row[2] == "a/b"]
        position = page.position
    wanted = [row for row in stored if row[0] >= model.first_id]
    assert with_held == [row for row in wanted if row[HELD] is not None or row[2] == "a/b"]


@SLOW_FIXTURES
@given(
    history=histories(),
    rows=st.sampled_from([1, FEW_ROWS, 50, 1_000]),
    page_bytes=st.sampled_from([1, 1_000, 1 << 22]),
    largest=st.sampled_from([1, LARGE]),
    most_merged=st.sampled_from([0, 1, 2, MOST_MERGED]),
    scanned=st.sampled_from([1, 7, 50_000]),
    data=st.data(),
)
def test_pages_joined_are_the_messages_of_their_routes(
    fresh: Callable[[], Path],
    open_reader: Callable[..., SqliteReader],
    history: list[list[Effect]],
    rows: int,
    page_bytes: int,
    largest: int,
    most_merged: int,
    scanned: int,
    data: st.DataObject,
) -> None:
    """Merged or looked at one by one, and whatever the bounds: each is in exactly one page, in order, as stored."""
    path = fresh()
    model = written(path, history)
    reader = open_reader(path, rows=rows, page_bytes=page_bytes, largest_bytes=largest)
    stored = list(reader._connection.execute(f"select {COLUMNS} from message order by id"))
    named = sorted({row[ROUTE] for row in stored} - {UNROUTED})
    routes = sorted(data.draw(st.sets(st.sampled_from([*named, 77_777_777])))) if named else []
    after = data.draw(st.integers(0, model.last_id))
    end = data.draw(st.integers(after + 1, model.last_id + 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_module, "MOST_MERGED", most_merged)
        patch.setattr(reader_module, "SCAN_IDS", max(scanned, (end - after) // 50))
        found: list[Row] = []
        position = after + 1
        while position < end:
            page = reader.routed_page(routes, position - 1, end)
            assert position < page.position <= end
            assert len(page.rows) <= rows
            found += page.rows
            position = page.position
    assert found == [row for row in stored if after < row[0] < end and row[ROUTE] in routes]


@SLOW_FIXTURES
@given(history=histories(), limit=st.sampled_from([None, 1, 5]))
def test_a_page_is_that_of_the_naive_store(
    fresh: Callable[[], Path],
    open_reader: Callable[..., SqliteReader],
    history: list[list[Effect]],
    limit: int | None,
) -> None:
    """Rows and position of a page of routes, of the log, and of attempts: as a store of dictionaries gives them."""
    path = fresh()
    model = written(path, history)
    reader, naive = open_reader(path, rows=20), NaivePages(model, 20)
    end = model.last_id + 1
    if not reader._connection.execute("select count(*) from garbage").get:
        routes = sorted(model.routes)
        for after in (0, end // 2, end):
            page, expected = (each.routed_page(routes, after, end, limit) for each in (reader, naive))
            assert agree(page, expected, min(limit or 20, 20))
            ids = range(after, after + 20)
            assert reader.messages(ids) == naive.messages(ids)
    first = model.first_id
    assert agree(reader.log_page(first, end, ()), naive.log_page(first, end, ()), 20)
    for cursor in model.cursors:
        assert reader.attempts(cursor, 3) == naive.attempts(cursor, 3)


def test_a_merge_reads_no_more_than_its_page(path: Path, open_reader: Callable[..., SqliteReader]) -> None:
    """Ids are merged by the index as far as the page goes, and rows of those alone are read."""
    contents = [bytes(2_000)] * 1_000
    both = [publication(1 + 1_000 * k, contents, endpoints=(1 + k,), time_ms=MADE_MS) for k in (0, 1)]
    written(path, [[*queue(1, "q"), *queue(2, "r")], both])
    reader = open_reader(path, rows=10)
    connection = reader._connection
    connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS, True)
    found = reader.routed_page([route(1).number, route(2).number], 500)
    assert [row[0] for row in found.rows] == list(range(501, 511))
    misses, _ = connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS)
    assert misses < 60


def test_a_page_is_bounded_in_rows(path: Path, open_reader: Callable[..., SqliteReader]) -> None:
    """No page of the log, of a route or of chosen messages has more rows than its bound; together they are all."""
    written(path, [queue(1, "q"),
                   [publication(1, [b"x"] * 25, endpoints=(1,), time_ms=MADE_MS)]])  # fmt: skip
    reader = open_reader(path, rows=10)
    assert [len(page) for page in all_pages(reader, 1, 26)] == [10, 10, 5]
    assert len(reader.routed_page([QUEUE_ROUTE], 0).rows) == 10
    assert len(reader.routed_page([QUEUE_ROUTE], 20).rows) == 5
    assert len(reader.routed_page([QUEUE_ROUTE], 0, limit=3).rows) == 3
    assert [row[0] for row in reader.messages(range(3, 26))] == list(range(3, 13))


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    page_bytes=st.integers(0, 100),
)
@SLOW_FIXTURES
def test_a_page_is_bounded_in_bytes(
    fresh: Callable[[], Path], open_reader: Callable[..., SqliteReader], sizes: list[int], page_bytes: int
) -> None:
    """A page holds the messages that fit, one at least: none could have taken the next one, too."""
    path = fresh()
    model = written(path, [[publication(1, [bytes(size) for size in sizes], time_ms=MADE_MS)]])
    reader = open_reader(path, page_bytes=page_bytes, largest_bytes=LARGE)
    pages = all_pages(reader, 1, len(sizes) + 1)
    assert [row for page in pages for row in page] == logged(model)
    weights = [sum(len(row[CONTENT]) for row in page) for page in pages]
    assert all(weight <= page_bytes or len(page) == 1 for weight, page in zip(weights, pages, strict=True))
    firsts = [len(page[0][CONTENT]) for page in pages[1:] if page]
    assert all(weight + first > page_bytes for weight, first in zip(weights, firsts, strict=False))


def test_small_contents_are_not_measured_first(path: Path, open_reader: Callable[..., SqliteReader]) -> None:
    """While a page of the largest content ever stored fits the bound, one statement reads it."""
    written(path, [[publication(1, [b"x"] * 20, time_ms=MADE_MS)]])
    for largest, statements in ((64, 1), (LARGE, 4)):
        seen: list[str] = []
        reader = open_reader(path, largest_bytes=largest)
        reader._connection.exec_trace = lambda cursor, sql, values, seen=seen: seen.append(sql) is None
        assert len(reader.log_page(1, 21, ()).rows) == 20
        assert len(seen) == statements


def test_a_page_scans_a_bounded_piece_of_the_log(
    path: Path, open_reader: Callable[..., SqliteReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In search of a rare topic, or of a logged message, a page ends after SCAN_IDS and says how far it is."""
    monkeypatch.setattr(reader_module, "SCAN_IDS", 10)
    written(
        path,
        [
            queue(1, "q"),
            [publication(1, [b"x"] * 95, topic="a", endpoints=(1,), logged=False, time_ms=MADE_MS)],
            [publication(96, [b"y"], topic="b", time_ms=MADE_MS)],
        ],
    )
    reader = open_reader(path)
    for patterns in ((), ("b",)):
        first = reader.log_page(1, 97, patterns)
        assert (first.rows, first.position) == ([], 11)
        assert [len(page) for page in all_pages(reader, 1, 97, patterns)] == [0] * 9 + [1]


@pytest.mark.parametrize("largest_bytes", [1, LARGE])
def test_what_was_trimmed_is_not_missed_in_silence(
    path: Path, open_reader: Callable[..., SqliteReader], largest_bytes: int
) -> None:
    """A page from before the log's beginning is refused and says where the log begins now; from there on it is read."""
    made = publication(1, [b"x"] * 20, time_ms=MADE_MS)
    written(path, [[made], [trimming(written_to_nothing(made), 11)]])
    reader = open_reader(path, largest_bytes=largest_bytes)
    for position, end in ((1, 21), (10, 21), (1, 5)):
        with pytest.raises(LogTrimmed) as caught:
            reader.log_page(position, end, ())
        assert caught.value.first_id == 11
    assert [row[0] for row in reader.log_page(11, 21, ()).rows] == list(range(11, 21))
    assert reader.first_since(MADE_MS) == 11


def test_a_page_ends_where_it_was_told(path: Path, open_reader: Callable[..., SqliteReader]) -> None:
    """What the file knows already and the caller was not yet told of is left out, of the log and of routes."""
    written(path, [queue(1, "q"),
                   [publication(1, [b"x"] * 25, endpoints=(1,), time_ms=MADE_MS)]])  # fmt: skip
    reader = open_reader(path)
    page = reader.log_page(20, 23, ())
    assert ([row[0] for row in page.rows], page.position) == ([20, 21, 22], 23)
    found = reader.routed_page([QUEUE_ROUTE], 19, 23)
    assert ([row[0] for row in found.rows], found.position) == ([20, 21, 22], 23)


@SLOW_FIXTURES
@given(ids=st.sets(st.integers(1, 60), max_size=60))
def test_messages_are_those_asked_for_that_there_are(
    fresh: Callable[[], Path], open_reader: Callable[..., SqliteReader], ids: set[int]
) -> None:
    """Any number of ids gives their messages in order, held or not; ids of none are passed over."""
    path = fresh()
    model = written(
        path,
        [
            queue(1, "q"),
            [publication(1, [b"x"] * 20, time_ms=MADE_MS)],
            [publication(31, [b"y"] * 20, endpoints=(1,), logged=False, time_ms=MADE_MS)],
        ],
    )
    stored = model.state().messages
    found = open_reader(path).messages(sorted(ids))
    assert found == [stored[i] for i in sorted(ids) if i in stored]


def test_attempts_are_those_counted(path: Path, open_reader: Callable[..., SqliteReader]) -> None:
    """Messages with failed deliveries, by one cursor and within the bounds; the others are not named."""
    written(
        path,
        [
            [*queue(1, "q"), *queue(2, "r"), publication(1, [b"x"] * 30, endpoints=(1, 2), time_ms=MADE_MS)],
            [CountAttempts(1, [(3, 1), (20, 2), (21, 5)]), CountAttempts(2, [(4, 9)])],
        ],
    )
    reader = open_reader(path)
    assert reader.attempts(1) == [(3, 1), (20, 2), (21, 5)]
    assert reader.attempts(1, 4, 20) == [(20, 2)]
    assert reader.attempts(3) == []


# --- topics ---------------------------------------------------------------------------------------------------------

_pieces = st.text(alphabet="ab*>?[]!#-^ä", max_size=3)
_topics = st.lists(_pieces, min_size=1, max_size=4).map("/".join).filter(bool)
_levels = st.one_of(_pieces.filter(bool), st.sampled_from(["*", "a*", "ab*", "[a*", "?*"]))


@st.composite
def _patterns(draw: st.DrawFn) -> str:
    text = "/".join(draw(st.lists(_levels, min_size=1, max_size=4))) + draw(st.sampled_from(["", "", "/>"]))
    text = draw(st.sampled_from([text, text, text, "!" + text, ">"]))
    try:
        TopicPattern.parse(text)
    except TopicSyntaxError:
        return "a/*"
    return text


@st.composite
def _topics_near(draw: st.DrawFn, patterns: Sequence[str]) -> str:
    """A topic; often one of those a pattern is about, or one just beside."""
    pattern = draw(st.sampled_from(patterns)).removeprefix("!")
    rest = draw(st.sampled_from(["", "a", "b/c", "/"]))
    if pattern.endswith(">"):
        pattern = pattern[:-1] + rest
    near = "".join(draw(_pieces) if c == "*" and draw(st.booleans()) else c for c in pattern)
    return draw(st.sampled_from([near or "a"]) | _topics)


@given(data=st.data(), patterns=st.lists(_patterns(), min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
def test_no_topic_that_matches_is_left_out_by_sqlite(
    path: Path, open_reader: Callable[..., SqliteReader], data: st.DataObject, patterns: list[str]
) -> None:
    """The condition holds for every topic that a pattern matches (it may hold for more: the caller looks again)."""
    topic = data.draw(_topics_near(patterns))
    wanted = [TopicPattern.parse(text) for text in patterns]
    condition, values = topic_condition(patterns)
    connection = open_reader(path)._connection
    ((holds,),) = connection.execute(
        f"select count(*) from (select ? as topic) where 1{condition}", [topic, *values]
    )
    if any(pattern.matches(topic) for pattern in wanted if not pattern.is_exception):
        assert holds


def test_sqlite_leaves_out_what_patterns_without_wildcards_do_not_name(
    path: Path, open_reader: Callable[..., SqliteReader]
) -> None:
    """The condition is worth having: literal topics are exact, and a wildcard keeps other beginnings out."""
    topics = ["a", "a/b", "a/bc", "b", "b/b", "a*b"]
    written(path, [[publication(1 + k, [b"x"], topic=t, time_ms=MADE_MS)] for k, t in enumerate(topics)])
    reader = open_reader(path)

    def found(*patterns: str) -> list[str]:
        return [row[2] for row in reader.log_page(1, 9, patterns).rows]

    assert found("a", "b/b") == ["a", "b/b"]
    assert found("a/>") == ["a/b", "a/bc"]
    assert found("a/b*") == ["a/b", "a/bc"]
    assert found("a*b") == ["a*b"]
    assert found("b", "a/b*") == ["a/b", "a/bc", "b"]
    assert found(">", "b") == topics


@pytest.mark.parametrize("pattern", ["t/{}", "t/{}/*"], ids=["literals", "wildcards"])
@pytest.mark.parametrize("count", [MOST_WILDCARDS, MOST_LITERALS, 5_000])
def test_an_endpoint_may_have_thousands_of_subscriptions(
    path: Path, open_reader: Callable[..., SqliteReader], pattern: str, count: int
) -> None:
    """However many patterns there are, SQLite takes the query, and what the last one matches is found."""
    patterns = [pattern.format(k) for k in range(count)]
    topic = patterns[-1].replace("*", "x")
    written(path, [[publication(1, [b"x"], topic=topic, time_ms=MADE_MS)]])
    assert [row[2] for row in open_reader(path).log_page(1, 2, patterns).rows] == [topic]


# --- probes ---------------------------------------------------------------------------------------------------------


@st.composite
def _sparse_logs(draw: st.DrawFn) -> list[Effect]:
    """Publications with equal times, holes in the ids, and some that the log does not hold."""
    effects: list[Effect] = [*queue(1, "q")]
    position, time = 1, MADE_MS
    for count, step, hole, is_logged in draw(
        st.lists(
            st.tuples(st.integers(1, 12), st.integers(0, 3), st.sampled_from([0, 0, 1, 40]), st.booleans()),
            max_size=8,
        )
    ):
        position, time = position + hole, time + step
        effects.append(publication(position, [b"x"] * count, endpoints=(1,), logged=is_logged, time_ms=time))
        position += count
    return effects


@SLOW_FIXTURES
@given(effects=_sparse_logs())
@example(effects=[])
def test_a_date_is_found_exactly(
    fresh: Callable[[], Path], open_reader: Callable[..., SqliteReader], effects: list[Effect]
) -> None:
    """For every time there is, and those before, between and after: the first logged id that arrived then or later."""
    path = fresh()
    rows = logged(written(path, [effects]))
    reader = open_reader(path)
    for time in range(MADE_MS - 2, MADE_MS + 30):
        naive = next((row[0] for row in rows if row[1] >= time), None)
        assert reader.first_since(time) == naive


@SLOW_FIXTURES
@given(history=histories(), rows=st.sampled_from([1, 4, 1_000]))
def test_probes_answer_as_a_look_at_every_message_would(
    fresh: Callable[[], Path],
    open_reader: Callable[..., SqliteReader],
    history: list[list[Effect]],
    rows: int,
) -> None:
    """Times of messages, and the last message of a topic, are those of the logged ones alone."""
    path = fresh()
    model = written(path, history)
    reader = open_reader(path, rows=rows)
    in_log = logged(model)
    times = {row[0]: row[1] for row in in_log}
    for i in (1, 2, model.last_id, model.last_id + 1):
        assert reader.time_of(i) == times.get(i)
    assert reader.last_matching(None) == (in_log[-1][0] if in_log else None)
    of_topic = [row[0] for row in in_log if row[2] == "a/b"]
    assert reader.last_matching(lambda topic: topic == "a/b") == (of_topic[-1] if of_topic else None)


# --- connections ----------------------------------------------------------------------------------------------------


def test_a_reader_leaves_no_snapshot_behind(path: Path, open_reader: Callable[..., SqliteReader]) -> None:
    """After every kind of read the WAL can be begun anew: no statement and no transaction is left open."""
    written(path, [queue(1, "q"),
                   [publication(1, [b"x"] * 25, endpoints=(1,), time_ms=MADE_MS)]])  # fmt: skip
    reads: list[Callable[[SqliteReader], object]] = [
        lambda reader: reader.log_page(1, 26, ()),
        lambda reader: reader.routed_page([QUEUE_ROUTE], 0),
        lambda reader: reader.routed_page(range(1, 90), 0),
        lambda reader: reader.messages([1, 2]),
        lambda reader: reader.attempts(1),
        lambda reader: reader.first_since(MADE_MS),
        lambda reader: reader.time_of(1),
        lambda reader: reader.last_matching(None),
    ]
    with closing(writing_to(path)) as connection:
        for largest in (1, LARGE):
            reader = open_reader(path, largest_bytes=largest, rows=7)
            for read in reads:
                connection.execute("update log set largest_bytes = largest_bytes")
                read(reader)
                ((busy, _, _),) = connection.execute("pragma wal_checkpoint(restart)").fetchall()
                assert not busy


def test_a_reader_cannot_write(path: Path, open_reader: Callable[..., SqliteReader]) -> None:
    """Its connection refuses: the writer alone changes the file."""
    connection = open_reader(path)._connection
    with pytest.raises(apsw.ReadOnlyError, match="readonly"):
        connection.execute("delete from message")


def test_what_cannot_be_read_is_an_error_of_the_port(
    path: Path, open_reader: Callable[..., SqliteReader]
) -> None:
    """Where the engine fails, `ReadFailed` says its reason, from a thread of the pool, too."""
    reader = open_reader(path)
    execute(path, "drop table message")
    reads: list[Callable[[], object]] = [
        lambda: reader.log_page(1, 2, ()),
        lambda: reader.routed_page([1], 0),
        lambda: reader.messages([1]),
        lambda: reader.tally(1, 2, ()),
        lambda: reader.first_since(MADE_MS),
        lambda: reader.time_of(1),
        lambda: reader.last_matching(None),
    ]
    for read in reads:
        with pytest.raises(ReadFailed, match="no such table: message"):
            reader.submit(read).result()


def test_the_bound_in_bytes_is_the_longest_prefix(
    path: Path, open_reader: Callable[..., SqliteReader]
) -> None:
    """Of contents of 1, 2, 3 … bytes, a page takes as many as their sum allows, to the byte."""
    written(path, [[publication(1, [bytes(size) for size in range(1, 30)], time_ms=MADE_MS)]])
    for count, total in enumerate(accumulate(range(1, 30)), 1):
        reader = open_reader(path, page_bytes=total, largest_bytes=LARGE)
        assert len(reader.log_page(1, 30, ()).rows) == count


# --- damage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("largest_bytes", [64, LARGE])
def test_damage_is_known_after_it_was_met(
    path: Path, open_reader: Callable[..., SqliteReader], largest_bytes: int
) -> None:
    """A page that cannot be read fails with SQLite's own reason, and the reader says from then on that it met one."""
    written(path, [[publication(1, [b"x" * 300] * 200, time_ms=MADE_MS)]])
    with closing(writing_to(path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    content = bytearray(path.read_bytes())
    leaf = content.index(b"xxx") // PAGE_BYTES * PAGE_BYTES
    content[leaf] = 0x5A
    path.write_bytes(content)
    reader = open_reader(path, largest_bytes=largest_bytes)
    assert reader.damage is None
    with pytest.raises(ReadFailed, match="malformed"):
        reader.log_page(1, 201, ())
    assert reader.damage is not None
    assert "malformed" in reader.damage
