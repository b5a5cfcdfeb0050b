"""Topics that a page looks at, and questions to the log, whichever engine answers them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from amqp_ext.topics import TopicFilter, TopicPattern
from gateway.core.effects import Effect
from gateway.core.model import HELD, ID, TIME_MS, TOPIC
from store import reading
from store.errors import LogTrimmed
from store.ports import Reader
from store.reading import MOST_LITERALS, MOST_WILDCARDS
from tests.store.effects import publication, queue, trimming
from tests.store.histories import histories
from tests.store.port.vpns import StoredVpn
from tests.store.topics import topic_patterns, topics_near
from tests.store.vpn_file import MADE_MS
from tests.support.naive_reader import NaivePages

NewVpn = Callable[[], StoredVpn]


@given(data=st.data(), patterns=st.lists(topic_patterns(), min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
def test_no_topic_that_matches_is_left_out(new_vpn: NewVpn, data: st.DataObject, patterns: list[str]) -> None:
    """A page has every message that a pattern matches (it may have more: the caller looks again)."""
    vpn = new_vpn()
    topics = [data.draw(topics_near(patterns)) for _ in range(5)]
    vpn.write([[publication(1 + k, [b"x"], topic=t, time_ms=MADE_MS)] for k, t in enumerate(topics)])
    found = {row[ID] for row in vpn.open_reader().log_page(1, 6, patterns).rows}
    wanted = [TopicPattern.parse(text) for text in patterns]
    for k, topic in enumerate(topics):
        if any(pattern.matches(topic) for pattern in wanted if not pattern.is_exception):
            assert 1 + k in found


def test_what_patterns_without_wildcards_do_not_name_is_left_out(vpn: StoredVpn) -> None:
    """The condition is worth having: literal topics are exact, and a wildcard keeps other beginnings out."""
    topics = ["a", "a/b", "a/bc", "b", "b/b", "a*b", "a_b", "a%b", "axb"]
    vpn.write([[publication(1 + k, [b"x"], topic=t, time_ms=MADE_MS)] for k, t in enumerate(topics)])
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
    """However many patterns there are, the engine takes the query, and what the last one matches is found."""
    patterns = [pattern.format(k) for k in range(count)]
    topic = patterns[-1].replace("*", "x")
    vpn.write([[publication(1, [b"x"], topic=topic, time_ms=MADE_MS)]])
    assert [row[TOPIC] for row in vpn.open_reader().log_page(1, 2, patterns).rows] == [topic]


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


PROBED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=20
)


@PROBED
@given(effects=_sparse_logs(), trimmed=st.integers(0, 30))
@example(effects=[], trimmed=0)
def test_times_are_found_exactly(new_vpn: NewVpn, effects: list[Effect], trimmed: int) -> None:
    """
    For every time there is, and others: a place in the log before which all arrived earlier, and no other did; and the
    first logged message that arrived then or later.
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


@PROBED
@given(
    history=histories(), patterns=st.sampled_from([(), (">",), ("a/>",), ("a/b",), ("none",)]), data=st.data()
)
def test_topics_come_newest_first(
    new_vpn: NewVpn, history: list[list[Effect]], patterns: tuple[str, ...], data: st.DataObject
) -> None:
    """Page by page, from any id down to any other: the logged messages whose topics match, each once, ids falling."""
    vpn = new_vpn()
    model = vpn.write(history)
    reader = vpn.open_reader()
    first = data.draw(st.integers(1, model.last_id + 1))
    before = data.draw(st.integers(first, model.last_id + 1))
    matches = TopicFilter([TopicPattern.parse(p) for p in patterns], implicit_all=True).matches
    naive = NaivePages(model, 1_000)
    for limit in (1, 3, 10_000):
        with pages_of_topics(limit):
            assert newest_first(reader, before, first, patterns, matches) == newest_first(
                naive, before, first, patterns, matches
            )


@PROBED
@given(
    history=histories(), patterns=st.sampled_from([(), (">",), ("a/>",), ("a/b",), ("none",)]), data=st.data()
)
def test_lengths_come_page_by_page(
    new_vpn: NewVpn, history: list[list[Effect]], patterns: tuple[str, ...], data: st.DataObject
) -> None:
    """From any id up to any other: the logged messages whose topics match, each once, with how long they are."""
    vpn = new_vpn()
    model = vpn.write(history)
    reader = vpn.open_reader()
    first = data.draw(st.integers(1, model.last_id + 1))
    end = data.draw(st.integers(first, model.last_id + 1))
    matches = TopicFilter([TopicPattern.parse(p) for p in patterns], implicit_all=True).matches
    naive = NaivePages(model, 1_000).lengths_page(first, end, ()).found
    expected = [one for one in naive if matches(one[1])]
    for limit in (1, 3, 10_000):
        found: list[tuple[int, str, int]] = []
        position = first
        with pages_of_topics(limit):
            while position < end:
                page = reader.lengths_page(position, end, patterns)
                assert position < page.position <= end
                found += [one for one in page.found if matches(one[1])]
                position = page.position
        assert found == expected


def newest_first(
    reader: Reader | NaivePages,
    before: int,
    first: int,
    patterns: tuple[str, ...],
    matches: Callable[[str], bool],
) -> list[tuple[int, str]]:
    """All of it; what was trimmed ends it."""
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


@contextmanager
def pages_of_topics(limit: int) -> Iterator[None]:
    """Pages of so many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "TOPIC_ROWS", limit)
        yield


@PROBED
@given(history=histories(), rows=st.sampled_from([1, 4, 1_000]))
def test_probes_answer_as_a_look_at_every_message_would(
    new_vpn: NewVpn, history: list[list[Effect]], rows: int
) -> None:
    """Times of messages, and the last message of a topic, are those of the logged ones alone."""
    vpn = new_vpn()
    model = vpn.write(history)
    reader = vpn.open_reader(rows=rows)
    in_log = [row for _, row in sorted(model.messages.items()) if row[HELD] is None]
    times = {row[ID]: row[TIME_MS] for row in in_log}
    for i in (1, 2, model.last_id, model.last_id + 1):
        assert reader.time_of(i) == times.get(i)
    assert reader.last_matching(None) == (in_log[-1][ID] if in_log else None)
    of_topic = [row[ID] for row in in_log if row[TOPIC] == "a/b"]
    assert reader.last_matching(lambda topic: topic == "a/b") == (of_topic[-1] if of_topic else None)
