"""Searches and probes of the log, with every engine: the answers are those of reading every message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amqp_ext.codec import ULong
from amqp_ext.replay_start import parse_text
from amqp_ext.topics import TopicFilter, TopicPattern, TopicSyntaxError
from gateway.core.effects import Effect, Publication, TrimLog
from gateway.core.model import CONTENT, HELD, ID, TIME_MS, TOPIC, RouteDefinition, Row
from gateway.core.replay.search import Search, search_for
from store import property_index, reading
from store.errors import LogTrimmed
from store.ports import Reader
from store.reading import MOST_LITERALS, MOST_WILDCARDS, PooledReader
from tests.store.effects import publication, queue, trimming
from tests.store.histories import histories
from tests.store.port.vpns import StoredVpn
from tests.store.vpn_file import MADE_MS
from tests.support.chance import times
from tests.support.messages import HELD_ROUTE, row, trade
from tests.support.naive_reader import NaivePages

# --- Searches, page by page: the answers are those of reading every message -------------------------------------------

LARGEST = 1 << 10
"""A bound on the contents of these small messages."""


def search_of(text: str, patterns: Sequence[str] = (">",)) -> Search:
    """The search that a replay start asks for."""
    topics = None if ">" in patterns else TopicFilter([TopicPattern.parse(p) for p in patterns]).matches
    found = search_for(parse_text(text), topics)
    assert found is not None
    return found


def result(
    reader: Reader, what: Search, patterns: Sequence[str], position: int, end: int
) -> tuple[int | None, int]:
    """What a search finds, page by page, and the number of pages."""
    pages = 0
    while position < end:
        page = reader.search_page(what, patterns, position, end)
        assert position < page.position <= end, "each page gets on, and none goes too far"
        pages, position = pages + 1, page.position
        if page.found is not None:
            return page.found, pages
    return None, pages


def published(rows: Sequence[Row]) -> Publication:
    rows = [(one[ID], MADE_MS + one[TIME_MS], *one[TOPIC:]) for one in rows]  # type: ignore[misc]
    held = rows[0][HELD]
    routes = [] if held is None else [RouteDefinition(HELD_ROUTE, (1,), None)]
    return Publication(rows, rows[0][TOPIC], routes, held is None, [len(one[CONTENT]) for one in rows], None)


def publish(vpn: StoredVpn, rows: Sequence[Row], index: Sequence[str] = ()) -> None:
    """Publish the messages one by one, after a start with this index."""
    vpn.commit([], index)
    if rows:
        vpn.commit([published([one]) for one in rows])


def test_what_the_index_does_not_reach_is_read(vpn: StoredVpn) -> None:
    """Messages from before their property was indexed, and from after it no longer was, are found by reading."""
    publish(vpn, [row(i, trade(message_id=f"m-{i}")) for i in range(1, 11)])
    publish(vpn, [row(i, trade(message_id=f"m-{i}")) for i in range(11, 21)], ["message-id"])
    publish(vpn, [row(i, trade(message_id=f"m-{i}")) for i in range(21, 31)])
    reader = vpn.open_reader()
    found = {i: result(reader, search_of(f"message-id:m-{i}"), (">",), 1, 31) for i in (5, 15, 25)}
    assert found == {5: (5, 1), 15: (15, 2), 25: (25, 3)}


@pytest.mark.parametrize("index", [(), ("message-id",)])
def test_a_page_is_bounded_however_much_speaks_for_a_message(
    vpn: StoredVpn, monkeypatch: pytest.MonkeyPatch, index: tuple[str, ...]
) -> None:
    """A page looks at a bounded number of candidates, so many messages of one id give many short pages."""
    monkeypatch.setattr(vpn.search_module, "PAGE_CANDIDATES", 10)
    publish(vpn, [row(i, trade(message_id="same"), f"t/{i}") for i in range(1, 101)], index)
    reader = vpn.open_reader()
    patterns = ("t/95",)
    wanted = search_of("message-id:same", patterns)
    # Without the index, the store filters by topic before candidates are counted.
    assert result(reader, wanted, patterns, 1, 101) == (95, 10 if index else 1)
    assert result(reader, wanted, (">",), 1, 101) == (95, 10)


def test_a_page_looks_through_so_many_bytes(vpn: StoredVpn) -> None:
    """A page of large messages is short: it looks through its number of bytes, and at most one message more."""
    publish(vpn, [row(i, trade("x" * 10_000, message_id=f"m-{i}")) for i in range(1, 41)])
    reader = vpn.open_reader(page_bytes=50_000, largest_bytes=11_000)
    assert result(reader, search_of("message-id:m-40"), (">",), 1, 41) == (40, 8)
    assert reader.search_page(search_of("message-id:none"), (">",), 1, 41) == (None, 6, 0)
    short = vpn.open_reader(page_bytes=1, largest_bytes=11_000)
    assert short.search_page(search_of("message-id:none"), (">",), 1, 41) == (None, 2, 0)


@pytest.mark.parametrize("needle", ["", "kind = 'trade' AND "])
@pytest.mark.parametrize("index", [[], ["kind"]])
def test_a_page_asks_so_much(vpn: StoredVpn, needle: str, index: list[str]) -> None:
    """Messages that are costly to evaluate make a page short, with and without an index, so others need not wait."""
    costly = [row(i, trade(properties={"kind": "trade", "x": "ab" * 20_000})) for i in range(1, 41)]
    publish(vpn, costly, index)
    wanted = search_of(f"match:{needle}x LIKE '%a_c%'")
    reader = vpn.open_reader(largest_bytes=50_000)
    assert reader.search_page(wanted, (">",), 1, 41) == (None, 6, 0)
    assert result(reader, wanted, (">",), 1, 41)[0] is None


def test_the_first_of_several_readings_is_found(vpn: StoredVpn) -> None:
    """A text that can mean a binary or a string id finds the older message, whichever type it has."""
    publish(vpn, [row(1, trade(message_id=b"\xbe\xef")), row(2, trade(message_id="BEEF"))], ["message-id"])
    assert result(vpn.open_reader(), search_of("message-id:BEEF"), (">",), 1, 3)[0] == 1


@pytest.mark.parametrize("index", [(), ("message-id",)])
def test_what_was_trimmed_is_not_found(vpn: StoredVpn, index: tuple[str, ...]) -> None:
    """A trimmed message is found neither by the index nor by a scan, though its row and entry may still be stored."""
    publish(vpn, [row(i, trade(message_id="same")) for i in range(1, 21)], index)
    vpn.commit([TrimLog(1, 11, [], [])])
    reader = vpn.open_reader()
    for text in ("message-id:same", "match:JMSMessageID LIKE 's_me'"):
        assert result(reader, search_of(text), (">",), 1, 21)[0] == 11


# --- what is indexed ------------------------------------------------------------------------------------------------


def test_without_an_index_no_message_is_looked_into(vpn: StoredVpn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no property is configured, no message is parsed for the index, and the index has no rows."""
    for engine in ("sqlite", "postgresql"):
        monkeypatch.delattr(f"store.{engine}.transaction.index_entries")
    publish(vpn, [row(1, trade(message_id="m-1"))])
    assert vpn.count("property_value") == 0


def test_only_configured_properties_of_logged_messages_are_filed(vpn: StoredVpn) -> None:
    """The index has a row for each configured property of a logged message, and none for unlogged messages."""
    rows = [
        row(1, trade(message_id="m-1", properties={"tradeId": "T", "side": "buy"})),
        row(2, trade(properties={"side": "buy"})),
        row(3, trade(message_id="m-3"), held=1),
    ]
    publish(vpn, rows, ["message-id", "tradeId"])
    assert vpn.count("property_value") == 2


def test_a_span_lasts_while_its_property_is_configured(vpn: StoredVpn) -> None:
    """A span begins at the start that configures the property and ends at the start that no longer does."""
    for i, index in enumerate([(), ("a",), ("a", "b"), ("b",), ("b", "a")], 1):
        publish(vpn, [row(i, trade())], index)
    spans = [(span.name, span.first_id, span.end_id) for span in vpn.open_reader()._indexed]
    assert spans == [("a", 2, 4), ("b", 3, None), ("a", 5, None)]


def test_an_indexed_message_is_found_without_reading_the_log(
    vpn: StoredVpn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a span one page of the index finds the message, without a scan or a page of the log."""
    publish(vpn, [row(i, trade(properties={"tradeId": f"T-{i}"})) for i in range(1, 400)], ["tradeId"])
    reader = vpn.open_reader(rows=10)
    monkeypatch.delattr(PooledReader, "_scan")
    monkeypatch.delattr(type(reader), "log_page")
    assert result(reader, search_of("match:tradeId = 'T-350'"), (">",), 1, 400) == (350, 1)
    assert result(reader, search_of("match:tradeId = 'T-0'"), (">",), 1, 400) == (None, 1)


# --- index == scan ------------------------------------------------------------------------------------------------

IDS = [None, "a", "T-1", "42", ULong(42), b"\x42", "BEEF", b"\xbe\xef", "x" * 200, "x" * 199 + "y"]
VALUES = [None, "a", "T-1", "42", 42, 42.0, 42.5, True, 2**53, float(2**53)]
contents = st.builds(
    lambda message_id, trade_id, subject: trade(
        "b", {"tradeId": trade_id}, message_id=message_id, subject=subject
    ),
    st.sampled_from(IDS),
    st.sampled_from(VALUES),
    st.sampled_from([None, "a", "T-1"]),
)
starts = st.sampled_from(
    [
        "message-id:a",
        "message-id:42",
        "message-id:BEEF",
        "message-id:" + "x" * 200,
        "match:tradeId = 'T-1'",
        "match:tradeId = '42'",
        "match:tradeId = 42",
        "match:tradeId = 42.5",
        "match:tradeId = 9007199254740992",
        "match:tradeId = TRUE",
        "match:tradeId > 42",
        "match:JMSType = 'T-1' AND tradeId = 'a'",
        "match:JMSMessageID = 'T-1'",
    ]
)
indexes = st.sampled_from(
    [(), ("message-id",), ("tradeId",), ("subject", "tradeId"), ("message-id", "tradeId")]
)
runs = st.lists(
    st.tuples(
        indexes,
        st.lists(st.tuples(contents, st.sampled_from(["t/1", "t/2", "u"]), st.booleans()), max_size=12),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=times(20, 2_000))
@given(
    runs=runs,
    texts=st.lists(starts, min_size=1, max_size=4, unique=True),
    patterns=st.sampled_from([(">",), ("t/>",), ("t/2", "u")]),
    first=st.integers(1, 10),
    candidates=st.integers(1, 3),
    segments=st.integers(1, 3),
)
def test_the_index_finds_what_a_scan_finds(
    new_vpn: Callable[[], StoredVpn],
    runs: list[tuple[tuple[str, ...], list[tuple[bytes, str, bool]]]],
    texts: list[str],
    patterns: tuple[str, ...],
    first: int,
    candidates: int,
    segments: int,
) -> None:
    """With any spans and any bounds of a page, a search finds the first matching message."""
    vpn = new_vpn()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vpn.search_module, "PAGE_CANDIDATES", candidates)
        patch.setattr(vpn.search_module, "PAGE_SEGMENTS", segments)
        patch.setattr(vpn.search_module, "PAGE_IDS", 5)
        patch.setattr(vpn.search_module, "SEGMENT_BITS", 2)
        patch.setattr(property_index, "SEGMENT_BITS", 2)
        rows: list[Row] = []
        for index, published in runs:
            before = len(rows)
            for content, topic, is_logged in published:
                # Ids have gaps where a commit failed.
                next_id = rows[-1][ID] + 1 + (len(rows) % 5 == 0) if rows else 1
                rows.append(row(next_id, content, topic, held=None if is_logged else 1))
            publish(vpn, rows[before:], index)
        end = rows[-1][ID] + 1 if rows else 1
        reader = vpn.open_reader(rows=3, largest_bytes=LARGEST)
        for text in texts:
            wanted = search_of(text, patterns)
            expected = next((one[ID] for one in rows if first <= one[ID] and wanted.takes(one)), None)
            assert result(reader, wanted, patterns, first, end)[0] == expected


# --- Topics of a page, and probes of the log, with every engine -------------------------------------------------------

NewVpn = Callable[[], StoredVpn]

# With characters that have a meaning in SQL's own patterns.
_pieces = st.text(alphabet='ab*>?[]!#-^ä%_\\"{},', max_size=3)
_topics = st.lists(_pieces, min_size=1, max_size=4).map("/".join).filter(bool)
_levels = st.one_of(_pieces.filter(bool), st.sampled_from(["*", "a*", "ab*", "[a*", "?*", "_*", "%*", "\\*"]))


@st.composite
def topic_patterns(draw: st.DrawFn) -> str:
    """A topic pattern, sometimes an exception."""
    text = "/".join(draw(st.lists(_levels, min_size=1, max_size=4))) + draw(st.sampled_from(["", "", "/>"]))
    text = draw(st.sampled_from([text, text, text, "!" + text, ">"]))
    try:
        TopicPattern.parse(text)
    except TopicSyntaxError:
        return "a/*"
    return text


@st.composite
def topics_near(draw: st.DrawFn, texts: Sequence[str]) -> str:
    """A topic, often one that one of the patterns matches or nearly matches."""
    pattern = draw(st.sampled_from(texts)).removeprefix("!")
    rest = draw(st.sampled_from(["", "a", "b/c", "/"]))
    if pattern.endswith(">"):
        pattern = pattern[:-1] + rest
    near = "".join(draw(_pieces) if c == "*" and draw(st.booleans()) else c for c in pattern)
    return draw(st.sampled_from([near or "a"]) | _topics)


@given(data=st.data(), patterns=st.lists(topic_patterns(), min_size=1, max_size=4))
@settings(max_examples=times(30, 2_000))
def test_no_topic_that_matches_is_left_out(new_vpn: NewVpn, data: st.DataObject, patterns: list[str]) -> None:
    """A page has every message that a pattern matches. It may have more, as the caller matches topics again."""
    vpn = new_vpn()
    topics = [data.draw(topics_near(patterns)) for _ in range(5)]
    vpn.write([[publication(1 + k, [b"x"], topic=t, time_ms=MADE_MS) for k, t in enumerate(topics)]])
    found = {row[ID] for row in vpn.open_reader().log_page(1, 6, patterns).rows}
    wanted = [TopicPattern.parse(text) for text in patterns]
    for k, topic in enumerate(topics):
        if any(pattern.matches(topic) for pattern in wanted if not pattern.is_exception):
            assert 1 + k in found


def test_what_patterns_without_wildcards_do_not_name_is_left_out(vpn: StoredVpn) -> None:
    """Literal topics are matched exactly, and wildcards leave out topics with another beginning."""
    topics = ["a", "a/b", "a/bc", "b", "b/b", "a*b", "a_b", "a%b", "axb"]
    vpn.write([[publication(1 + k, [b"x"], topic=t, time_ms=MADE_MS) for k, t in enumerate(topics)]])
    reader = vpn.open_reader()

    def found(*patterns: str) -> list[str]:
        return [row[TOPIC] for row in reader.log_page(1, 10, patterns).rows]

    assert found("a", "b/b") == ["a", "b/b"]
    assert found("a/>") == ["a/b", "a/bc"]
    assert found("a/b*") == ["a/b", "a/bc"]
    assert found("a*b") == ["a*b"]
    assert found("a_*") == ["a_b"]
    assert found("a%*") == ["a%b"]
    assert found("b", "a/b*") == ["a/b", "a/bc", "b"]
    assert found(">", "b") == topics


@pytest.mark.parametrize("pattern", ["t/{}", "t/{}/*"], ids=["literals", "wildcards"])
@pytest.mark.parametrize("count", [MOST_WILDCARDS, MOST_LITERALS, 5_000])
def test_an_endpoint_may_have_thousands_of_subscriptions(vpn: StoredVpn, pattern: str, count: int) -> None:
    """The engine accepts a query of any number of patterns, and finds what the last pattern matches."""
    patterns = [pattern.format(k) for k in range(count)]
    topic = patterns[-1].replace("*", "x")
    vpn.write([[publication(1, [b"x"], topic=topic, time_ms=MADE_MS)]])
    assert [row[TOPIC] for row in vpn.open_reader().log_page(1, 2, patterns).rows] == [topic]


# --- probes ---------------------------------------------------------------------------------------------------------


@st.composite
def _sparse_logs(draw: st.DrawFn) -> list[Effect]:
    """Publications with equal times and gaps in the ids, some of them not logged."""
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


PROBED = settings(max_examples=times(10, 2_000))


@PROBED
@given(effects=_sparse_logs(), trimmed=st.integers(0, 30))
@example(effects=[], trimmed=0)
def test_times_are_found_exactly(new_vpn: NewVpn, effects: list[Effect], trimmed: int) -> None:
    """
    For any time, ``positions_since`` separates the logged messages that arrived earlier from the rest, and
    ``first_since`` is the first of the rest.
    """
    vpn = new_vpn()
    model = vpn.write([effects])
    first = min(trimmed, model.last_id) + 1
    if first > 1:
        vpn.commit([trimming(model, first)])
    logged = [row for row in model.messages.values() if row[HELD] is None and row[ID] >= first]
    reader = vpn.open_reader()
    times = list(range(MADE_MS - 2, MADE_MS + 30))
    positions = reader.positions_since(times)
    assert len(positions) == len(times)
    for time, position in zip(times, positions, strict=True):
        assert first <= position <= model.last_id + 1
        assert all((row[TIME_MS] >= time) == (row[ID] >= position) for row in logged)
        naive = next((row[ID] for row in logged if row[TIME_MS] >= time), None)
        assert reader.first_since(time) == naive
    assert reader.positions_since([]) == []


PATTERNS = st.sampled_from([(), (">",), ("a/>",), ("a/b",), ("none",)])
"""Patterns that match all topics, some, one and none."""


@PROBED
@given(history=histories(), patterns=PATTERNS, rows=st.sampled_from([1, 4, 1_000]), data=st.data())
def test_probes_answer_as_a_look_at_every_message_would(
    new_vpn: NewVpn, history: list[list[Effect]], patterns: tuple[str, ...], rows: int, data: st.DataObject
) -> None:
    """
    Probes see logged messages only. ``topics_below`` and ``lengths_page`` give each matching message once, newest first
    or with its length, between any two ids. Compared are also the times of messages, and the last one of a topic.
    """
    vpn = new_vpn()
    model = vpn.write(history)
    reader, naive = vpn.open_reader(rows=rows), NaivePages(model, 1_000)
    first = data.draw(st.integers(1, model.last_id + 1))
    end = data.draw(st.integers(first, model.last_id + 1))
    matches = TopicFilter([TopicPattern.parse(p) for p in patterns], implicit_all=True).matches
    lengths = [one for one in naive.lengths_page(first, end, ()).found if matches(one[1])]
    for limit in (1, 3, 10_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading, "TOPIC_ROWS", limit)
            assert newest_first(reader, end, first, patterns, matches) == newest_first(
                naive, end, first, patterns, matches
            )
            assert all_lengths(reader, first, end, patterns, matches) == lengths
    in_log = [row for _, row in sorted(model.messages.items()) if row[HELD] is None]
    times = {row[ID]: row[TIME_MS] for row in in_log}
    for i in (1, 2, model.last_id, model.last_id + 1):
        assert reader.time_of(i) == times.get(i)
    assert reader.last_matching(None) == (in_log[-1][ID] if in_log else None)
    of_topic = [row[ID] for row in in_log if row[TOPIC] == "a/b"]
    assert reader.last_matching(lambda topic: topic == "a/b") == (of_topic[-1] if of_topic else None)


def all_lengths(
    reader: Reader, position: int, end: int, patterns: tuple[str, ...], matches: Callable[[str], bool]
) -> list[tuple[int, str, int]]:
    found: list[tuple[int, str, int]] = []
    while position < end:
        page = reader.lengths_page(position, end, patterns)
        assert position < page.position <= end
        found += [one for one in page.found if matches(one[1])]
        position = page.position
    return found


def newest_first(
    reader: Reader | NaivePages,
    before: int,
    first: int,
    patterns: tuple[str, ...],
    matches: Callable[[str], bool],
) -> list[tuple[int, str]]:
    """The matching messages below ``before``, newest first, down to ``first`` or to where the log was trimmed."""
    found: list[tuple[int, str]] = []
    while before > first:
        try:
            page = reader.topics_below(before, first, patterns)
        except LogTrimmed as trimmed:
            assert trimmed.first_id >= before
            break
        assert page.position < before
        assert all(page.position <= number < before for number, _ in page.found)
        found += [(number, topic) for number, topic in page.found if matches(topic)]
        before = page.position
    return found
