"""The log of a Message VPN: how it is read, cached, archived and trimmed, and how it grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import cycle
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.broker import Broker
from gateway.core.effects import TrimLog
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import NOTHING, ArchivedRun, History, LogPolicy, Retention, RetentionRule
from gateway.core.message_cache import ROW_OVERHEAD_BYTES, CacheBudget, MessageCache
from gateway.core.model import ID, LogState, Row
from gateway.core.replay.reading import LogCursor
from gateway.core.sizing import (
    DAY_MS,
    FAR_MS,
    HOUR_MS,
    MINUTE_MS,
    LogGrowth,
    LogPlan,
    LogSize,
    Rate,
    Taken,
    TopicsPlan,
    TopicsSize,
    plan,
    plan_of_topics,
)
from gateway.core.trimming import TRIM_IDS
from tests.support.core import new_broker, publish

# --- The position of a log reader, against a list of the ids that it has to send ------------------------------------

LAST = 12

kinds = st.lists(st.sampled_from(["wanted", "other", "held"]), min_size=LAST, max_size=LAST)
steps = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=8)


def row(message_id: int, kind: str) -> Row:
    return (message_id, 0, kind, 0, 1, 1 if kind == "held" else None, b"")


def read(cursor: LogCursor, log: list[Row], step: Iterator[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Read a log to its end or the cursor's; return the ids sent, and the ids marked as the last one."""
    sent: list[int] = []
    marked: list[int] = []
    while not cursor.is_finished:
        at_once, limit = next(step)
        start = cursor.position
        rows = log[start - 1 : start - 1 + min(at_once, limit)]
        if not rows and cursor.held_back is None:
            break
        chosen, is_end = cursor.offer(rows, start + len(rows), len(log) + 1, limit)
        assert len(chosen) <= limit
        sent += [found[0] for found in chosen]
        marked += sent[-1:] if is_end else []
    return sent, marked


@given(kinds=kinds, first=st.integers(1, LAST), last=st.none() | st.integers(1, LAST), steps=steps)
@example(kinds=["wanted"] * LAST, first=1, last=5, steps=[(4, 4)])
@example(kinds=["wanted"] * LAST, first=1, last=4, steps=[(1, 1)])
@example(kinds=["wanted"] * LAST, first=1, last=4, steps=[(4, 4)])
@example(kinds=[*["wanted"] * 4, *["other"] * 8], first=1, last=8, steps=[(4, 4)])
@example(kinds=[*["wanted"] * 4, *["other"] * 8], first=1, last=None, steps=[(3, 3)])
def test_a_reader_has_each_message_once_and_knows_the_last(
    kinds: list[str], first: int, last: int | None, steps: list[tuple[int, int]]
) -> None:
    """
    In order, whatever is read together and however few are taken. Messages of other topics, held messages, and messages
    beyond the end are left out.
    """
    log = [row(i, kind) for i, kind in enumerate(kinds, 1)]
    cursor = LogCursor(first, last, lambda topic: topic != "other", caught_up=False)
    end = LAST if last is None else last
    expected = [i for i, kind in enumerate(kinds, 1) if kind == "wanted" and first <= i <= end]
    assert read(cursor, log, cycle(steps)) == (expected, expected[-1:])
    assert cursor.held_back is None


# --- What the core permits to trim if a log keeps what is not archived ----------------------------------------------


def broker_of(*, keeps: bool, archived_id: int = 0) -> Broker:
    """A log of ids 1 to 3,000 whose generation is 7."""
    log = LogState(7, 1, 3_001, 0, 0, archived_id=archived_id)
    return new_broker(LogPolicy(keep_until_archived=keeps), log=log)


def trimmed(broker: Broker) -> int:
    """Trim everything that may be trimmed; return the log's first id."""
    while effect := broker.trimming.next_piece(broker.log.next_id):
        assert isinstance(effect, TrimLog)
        assert effect.stop - effect.first <= TRIM_IDS
        broker.trimming.trimmed(effect)
    assert not broker.trimming.is_possible
    return broker.log.first_id


@pytest.mark.parametrize(
    ("keeps", "archived_id", "first_id"),
    [(False, 0, 3_001), (True, 0, 1), (True, 1_500, 1_501), (True, 3_000, 3_001)],
)
def test_trimming_stops_at_what_is_not_archived(keeps: bool, archived_id: int, first_id: int) -> None:
    """However much is requested. Without the setting the archive has no influence."""
    assert trimmed(broker_of(keeps=keeps, archived_id=archived_id)) == first_id


def test_what_is_reported_moves_the_bound_once_it_is_durable() -> None:
    """Not before the commit; and a smaller report later does not lower it."""
    broker = broker_of(keeps=True)
    effect = broker.trimming.report_archived(100, 7)
    assert effect is not None
    assert trimmed(broker) == 1
    broker.trimming.archive_saved(effect)
    assert trimmed(broker) == 101
    assert broker.trimming.report_archived(50, 7) is None
    assert broker.log.archived_id == 100


def test_an_order_beyond_the_archive_is_refused() -> None:
    """A trim up to the archived id is permitted. A log without the setting refuses no trim."""
    broker = broker_of(keeps=True, archived_id=10)
    broker.trimming.check(11)
    with pytest.raises(Refused) as caught:
        broker.trimming.check(12)
    assert caught.value.code is ErrorCode.PRECONDITION_FAILED
    broker_of(keeps=False).trimming.check(3_001)


@pytest.mark.parametrize(
    ("last_id", "generation", "code"),
    [(10, 8, ErrorCode.LOG_MODIFIED), (3_001, 7, ErrorCode.PRECONDITION_FAILED)],
)
def test_a_report_that_cannot_be_of_this_log_is_refused(
    last_id: int, generation: int, code: ErrorCode
) -> None:
    """A wrong generation, or an id not assigned yet: believing it would trim what nobody has archived."""
    with pytest.raises(Refused) as caught:
        broker_of(keeps=True).trimming.report_archived(last_id, generation)
    assert caught.value.code is code


# --- The message caches of several Message VPNs, which share a budget of bytes --------------------------------------

ROW_BYTES = 1_000
"""The size of a row of these tests, with its overhead."""


def rows_of(cache: MessageCache, count: int) -> list[Row]:
    """The next messages of a Message VPN."""
    content = b"x" * (ROW_BYTES - ROW_OVERHEAD_BYTES)
    return [(cache.next_id + number, 1, "a", 0, None, content) for number in range(count)]


def commit(cache: MessageCache, count: int) -> None:
    rows = rows_of(cache, count)
    cache.extend(rows, sum(len(row[5]) for row in rows))


def held(cache: MessageCache) -> list[int]:
    """The ids in the cache, as a reader gets them."""
    return [row[ID] for row in cache.since(cache.first_id, 1_000_000)]


def test_a_quiet_message_vpn_keeps_what_a_busy_one_cannot_have() -> None:
    """A busy cache drops its own oldest messages, as long as it has more than the quiet one."""
    budget = CacheBudget(80 * ROW_BYTES)
    quiet, busy = MessageCache(budget, 1), MessageCache(budget, 1)
    commit(quiet, 20)
    for _ in range(100):
        commit(busy, 10)
    assert held(quiet) == list(range(1, 21))
    assert 50 * ROW_BYTES <= busy.size_bytes <= 60 * ROW_BYTES
    assert held(busy)[-1] == 1_000


def test_what_a_message_vpn_no_longer_uses_goes_to_those_who_do() -> None:
    """The larger cache gives way, until both have about the same."""
    budget = CacheBudget(80 * ROW_BYTES)
    early, late = MessageCache(budget, 1), MessageCache(budget, 1)
    for _ in range(8):
        commit(early, 10)
    for _ in range(100):
        commit(late, 10)
    assert early.size_bytes <= 40 * ROW_BYTES
    assert late.size_bytes >= 30 * ROW_BYTES
    assert held(early)[-1] == 80


def test_a_cache_that_is_closed_or_emptied_leaves_its_room() -> None:
    """A closed cache counts nothing; one that skips ids is empty, and continues after them."""
    budget = CacheBudget(80 * ROW_BYTES)
    gone, emptied, stays = (MessageCache(budget, 1) for _ in range(3))
    commit(gone, 30)
    commit(emptied, 30)
    gone.close()
    emptied.skip(100)
    assert budget.used_bytes == 0
    commit(stays, 80)
    assert len(stays) == 80
    assert emptied.first_id == emptied.next_id == 100


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30), st.booleans()), max_size=60),
)
def test_together_they_hold_no_more_than_the_limit(
    limit: int, publications: list[tuple[int, int, bool]]
) -> None:
    """
    Whatever is published and dropped: each cache has a gapless run up to its last id, and is counted for exactly that.
    """
    budget = CacheBudget(limit * ROW_BYTES)
    caches = [MessageCache(budget, 1) for _ in range(3)]
    for who, count, gives_up in publications:
        commit(caches[who], count)
        if gives_up:
            caches[who].drop_below(caches[who].next_id - count)
        assert budget.used_bytes == sum(cache.size_bytes for cache in caches) <= limit * ROW_BYTES
        for cache in caches:
            assert held(cache) == list(range(cache.first_id, cache.next_id))
            assert cache.size_bytes == len(cache) * ROW_BYTES


# --- Where the history of a Message VPN begins, by what log and archive have ----------------------------------------


def history(archived: ArchivedRun | None, *, first_id: int = 50) -> History:
    """A log of generation 7 with the ids from ``first_id`` to 99, whole from 5,000 on."""
    found = History(LogState(7, first_id, 100, 9_000, 5_000))
    found.has_archive = True
    found.archived = archived
    return found


@pytest.mark.parametrize(
    ("archived", "first", "floor", "says"),
    [
        (None, 50, 5_000, "; its archive cannot be read"),
        (ArchivedRun(None, 1, 0, 0), 50, 5_000, "; its archive is empty"),
        (ArchivedRun(7, 1, 60, 1_000), 1, 1_000, "; its archive has ids 1 to 60"),
        (ArchivedRun(7, 1, 49, 1_000), 1, 1_000, "; its archive has ids 1 to 49"),
        (ArchivedRun(7, 1, 99, 1_000), 1, 1_000, "; its archive has ids 1 to 99"),
        # Messages of its first millisecond may have been trimmed before it.
        (ArchivedRun(7, 20, 60, 1_000), 20, 1_001, "; its archive has ids 20 to 60"),
        (
            ArchivedRun(7, 20, 60, 1_000, 9),
            20,
            1_001,
            "; its archive has ids 20 to 60, and up to 9 before a gap",
        ),
        (
            ArchivedRun(7, 1, 48, 1_000),
            50,
            5_000,
            "; its archive has ids 1 to 48, and the ids in between are in neither",
        ),
        (ArchivedRun(7, 50, 60, 1_000), 50, 5_000, "; its archive has ids 50 to 60"),
        (ArchivedRun(8, 1, 60, 1_000), 50, 5_000, "; its archive is of generation 8, another log"),
        (
            ArchivedRun(7, 1, 100, 1_000),
            50,
            5_000,
            "; its archive has ids 1 to 100, more than the log ever had",
        ),
    ],
)
def test_the_history_has_no_gap(archived: ArchivedRun | None, first: int, floor: int, says: str) -> None:
    """It begins in the archive if that is of this log and reaches to it; otherwise it begins with the log."""
    found = history(archived)
    assert (found.first_id, found.floor_ms, found.says) == (first, floor, says)


def test_it_follows_the_log() -> None:
    """After a trim it still begins in the archive, as long as that is known to reach to the log."""
    found = history(ArchivedRun(7, 1, 60, 1_000), first_id=1)
    assert (found.first_id, found.floor_ms) == (1, 5_000)
    found.log.first_id = 61
    assert (found.first_id, found.floor_ms) == (1, 1_000)
    found.log.first_id = 62
    assert found.first_id == 62


def test_what_is_archived() -> None:
    """Ids of the archived run, if it is of this log."""
    found = history(ArchivedRun(7, 20, 60, 1_000))
    assert [i for i in (19, 20, 60, 61) if found.is_archived(i)] == [20, 60]
    assert not history(ArchivedRun(8, 20, 60, 1_000)).is_archived(30)
    assert not history(None).is_archived(30)


@pytest.mark.parametrize(
    ("archived", "archived_id", "below"),
    [
        (None, 7, 8),
        (ArchivedRun(7, 1, 60, 1_000), 7, 61),
        (ArchivedRun(7, 1, 5, 1_000), 7, 8),
        (ArchivedRun(8, 1, 60, 1_000), 7, 8),
        (ArchivedRun(None, 1, 0, 0), 0, 1),
    ],
)
def test_up_to_where_the_log_is_archived(archived: ArchivedRun | None, archived_id: int, below: int) -> None:
    """The higher of what was reported to the log and what its own archive says; without an archive, all of the log."""
    found = history(archived)
    found.log.archived_id = archived_id
    assert found.archived_below == below
    found.has_archive = False
    assert found.archived_below == 100


def test_a_log_without_an_archive_says_nothing_of_one() -> None:
    """Refusals of starts then do not mention one."""
    found = History(LogState(7, 50, 100, 9_000, 5_000))
    assert (found.first_id, found.floor_ms, found.says) == (50, 5_000, "")


# --- Retention by topic ---------------------------------------------------------------------------------------------

ORDERS = RetentionRule(("orders/>", "!orders/test/>"), max_age_hours=9)
DEBUG_RULE = RetentionRule(("debug/>", "orders/test/*"), quota_bytes=1_000)
ALL = RetentionRule((">",), max_age_hours=1)


def retention(*rules: RetentionRule, first_id: int = 1, next_id: int = 1) -> Retention:
    return retention_of(LogState(1, first_id, next_id, 0, 0), *rules)


def retention_of(log: LogState, *rules: RetentionRule) -> Retention:
    found = Retention(History(log))
    found.configure(rules)
    return found


@pytest.mark.parametrize(
    ("topic", "place"),
    [("orders/1", 0), ("orders/test/1", 1), ("orders/test/1/2", 2), ("debug/1", 1), ("#queue/q", 2)],
)
def test_the_first_rule_that_matches_a_topic_holds(topic: str, place: int) -> None:
    """A topic that a rule excepts may match a later rule."""
    found = retention(ORDERS, DEBUG_RULE, ALL)
    assert found.of(topic) is found.rules[place]
    assert retention(ORDERS, DEBUG_RULE).of("other") is None


@pytest.mark.parametrize(
    ("patterns", "is_missing"),
    [
        (("orders/>",), True),
        (("orders/1",), False),
        (("orders/test/1",), True),
        (("orders/test/1/2",), False),
        (("*/test/>",), True),
        (("debug/a",), True),
        (("other",), False),
        ((">",), True),
        ((), True),
        ((">", "!debug/>"), True),
        ((">", "!debug/>", "!orders/>"), False),
    ],
)
def test_what_a_rule_took_out_is_missing_for_who_asks_for_its_topics(
    patterns: Sequence[str], is_missing: bool
) -> None:
    """For a request that overlaps its topics, except for what an earlier rule keeps; also without the rule."""
    found = retention(ORDERS, DEBUG_RULE)
    found.took_out(found.rules[1].key, 70, 7_000, ())
    expected = (70, 7_000, DEBUG_RULE.topics)
    assert found.taken_from(patterns) == (expected if is_missing else NOTHING)
    found.configure((ALL,))
    assert found.taken_from(patterns) == (expected if is_missing else NOTHING)


def test_of_several_rules_the_newest_counts() -> None:
    """The highest id and the latest time, each by itself, of the rules that match."""
    found = retention(ORDERS, DEBUG_RULE)
    found.took_out(found.rules[0].key, 70, 5_000, ())
    found.took_out(found.rules[1].key, 50, 7_000, ())
    found.took_out(found.rules[1].key, 40, 6_000, ())
    assert found.taken_from((">",)) == (70, 7_000, ORDERS.topics)
    assert found.taken_from(("debug/>",)) == (50, 7_000, DEBUG_RULE.topics)
    found.took_out(found.rules[0].key, 71, 8_000, ())
    assert found.taken_from((">",)) == (71, 8_000, ORDERS.topics)


def test_a_rule_for_all_others_took_nothing_of_what_rules_before_it_hold_for() -> None:
    """Topics of earlier rules can be replayed from further back; topics that an earlier rule excepts cannot."""
    found = retention(ORDERS, ALL)
    found.took_out(found.rules[1].key, 70, 7_000, ())
    assert found.taken_from(("orders/1",)) == NOTHING
    assert found.taken_from(("orders/test/1",)).below == 70
    assert found.taken_from(("other",)).below == 70


def test_what_the_log_s_beginning_has_passed_is_the_log_s_own() -> None:
    """The rule's mark is removed, and the log is complete only from that time on."""
    found = retention(DEBUG_RULE)
    found.took_out(found.rules[0].key, 70, 7_000, ())
    assert found.log_trimmed(69, ()) == 0
    assert found.log_trimmed(70, ()) == 7_000
    assert found.taken_from((">",)) == NOTHING


def test_what_is_published_while_it_is_counted_counts_once() -> None:
    """Messages are counted by reading below the start of counting, and when published above it; or undone."""
    found = retention(DEBUG_RULE, next_id=11)
    kept = found.rules[0]
    assert not found.is_counted
    found.published("debug/1", 10, 1, 100)
    found.published("debug/1", 11, 2, 200)
    found.published("other", 13, 1, 100)
    found.counted([("debug/1", 3, 300), ("other", 1, 100)], 6)
    assert (kept.messages, kept.size_bytes, found.is_counted) == (5, 500, False)
    found.published("debug/1", 12, 0, 600)
    assert (kept.excess_bytes, found.is_over_quota) == (100, False)
    found.published("debug/1", 12, 0, -600)
    found.counted([("debug/2", 1, 900)], 11)
    assert (kept.messages, kept.size_bytes, found.is_counted) == (6, 1_400, True)
    assert kept.excess_bytes == 400
    found.published("debug/1", 11, -2, -200)
    assert (kept.messages, kept.excess_bytes, found.is_over_quota) == (4, 200, True)


def test_what_is_trimmed_while_it_is_counted_is_not_counted() -> None:
    """A trim of counted messages is subtracted; a trim beyond them restarts the counting after it."""
    log = LogState(1, 1, 11, 0, 0)
    found = retention_of(log, DEBUG_RULE)
    kept = found.rules[0]
    found.counted([("debug/1", 5, 500)], 6)
    found.log_trimmed(3, [("debug/1", 2, 200)])
    assert (kept.messages, found.counted_below) == (3, 6)
    version = found.version
    log.unused_id = 20
    found.log_trimmed(8, [("debug/1", 5, 500)])
    assert (kept.messages, kept.size_bytes, found.counted_below, found.counts_from) == (0, 0, 8, 20)
    assert (found.version != version, found.is_counted) == (True, False)


def test_the_same_rules_are_not_counted_again() -> None:
    """A reload with the same rules changes nothing."""
    found = retention(DEBUG_RULE, next_id=11)
    found.counted([("debug/1", 5, 500)], 11)
    assert not found.configure((DEBUG_RULE,))
    assert found.is_counted
    assert found.configure((DEBUG_RULE, ALL))
    assert not found.is_counted


def test_what_is_about_to_leave_is_gone_and_comes_back_where_that_fails() -> None:
    """Messages of the rule's topics in the piece, and no others; the log's size changes with the commit."""
    broker = new_broker(LogPolicy(retention=(DEBUG_RULE,)))
    rows = [row for topic in ("debug/1", "debug/1", "other") for row in publish(broker, topic).rows]
    kept = broker.retention.rules[0]
    before = broker.log.size_bytes
    effect = broker.trimming.next_of_topics(kept, broker.trimming.settled_part([1]))
    assert [broker.retention.is_gone(row) for row in rows] == [True, False, False]
    assert broker.retention.left(rows) == rows[1:]
    assert broker.retention.taken_from(("debug/>",)).below == 2
    broker.trimming.topics_not_trimmed(kept, effect)
    assert broker.retention.left(rows) == rows
    assert broker.retention.taken_from(("debug/>",)) == NOTHING
    effect = broker.trimming.next_of_topics(kept, [1, 2])
    effect.freed_bytes, effect.newest_ms, effect.freed = 90, 1_000, [("debug/1", 2, 90)]
    size_bytes = kept.size_bytes
    broker.trimming.topics_trimmed(effect)
    assert (broker.log.size_bytes, broker.log.first_id) == (before - 90, 1)
    assert broker.retention.taken_from(("debug/>",))[:2] == (3, 1_001)
    assert (kept.messages, kept.size_bytes) == (0, size_bytes - 90)


# --- How quickly the log grows, and what follows from that, compared with results computed by hand ------------------

GB = 10**9
NOW_MS = 1_767_323_045_000


def grown(*, days: float, bytes_per_second: float = 1_000) -> LogGrowth:
    """A log that took ten messages a second for these days, measured once a minute."""
    growth = LogGrowth()
    for passed in range(0, int(days * DAY_MS) + 1, MINUTE_MS):
        growth.note(Taken(NOW_MS + passed, passed / 100, passed / 1_000 * bytes_per_second))
    return growth


def test_nothing_is_known_of_what_was_looked_at_once() -> None:
    """A rate needs two measurements."""
    growth = LogGrowth()
    assert (growth.rate(HOUR_MS), growth.rates()) == (None, [])
    growth.note(Taken(NOW_MS, 0, 0))
    assert (growth.rate(HOUR_MS), growth.rates()) == (None, [])


def test_a_steady_log_has_one_rate_over_every_period_that_is_known() -> None:
    """Each rate is over its own period, except the longest, which is over all that is known."""
    assert grown(days=2).rates() == [
        Rate(10 * MINUTE_MS, 10, 1_000),
        Rate(HOUR_MS, 10, 1_000),
        Rate(DAY_MS, 10, 1_000),
        Rate(2 * DAY_MS, 10, 1_000),
    ]
    assert grown(days=0.01).rates() == [
        Rate(10 * MINUTE_MS, 10, 1_000),
        Rate(14 * MINUTE_MS, 10, 1_000),
    ]


def test_a_burst_is_seen_in_the_hour_and_hardly_in_the_week() -> None:
    """The last minutes are a large part of an hour, and a small part of a week."""
    growth = grown(days=7)
    newest = growth._newest
    assert newest is not None
    growth.note(Taken(newest.time_ms + MINUTE_MS, newest.messages, newest.size_bytes + 3_600_000))
    hour, week = growth.rate(HOUR_MS), growth.rate(7 * DAY_MS)
    assert hour is not None and hour.size_bytes == pytest.approx(1_983, abs=1)
    assert week is not None and week.size_bytes == pytest.approx(1_006, abs=1)


@given(st.lists(st.tuples(st.integers(1, 3 * DAY_MS), st.integers(0, 10**9)), max_size=400))
def test_what_is_kept_is_bounded_and_a_rate_lies_between_the_least_and_the_most(
    steps: list[tuple[int, int]],
) -> None:
    """Whatever the intervals of measurement; a rate is over at least the requested period, if that much is known."""
    growth = LogGrowth()
    taken = Taken(NOW_MS, 0, 0)
    growth.note(taken)
    for passed_ms, size in steps:
        taken = Taken(taken.time_ms + passed_ms, taken.messages + 1, taken.size_bytes + size)
        growth.note(taken)
    assert sum(map(len, growth._rings)) <= 142
    rates = [size * 1_000 / passed_ms for passed_ms, size in steps]
    for period_ms in (MINUTE_MS, HOUR_MS, DAY_MS, 30 * DAY_MS):
        rate = growth.rate(period_ms)
        if rate is None:
            assert not steps
            continue
        assert min(rates) * 0.999 <= rate.size_bytes <= max(rates) * 1.001
        assert rate.period_ms >= min(period_ms, 30 * DAY_MS) or rate.period_ms <= taken.time_ms - NOW_MS


SIZE = LogSize(
    used_bytes=10 * GB, quota_bytes=100 * GB, trim_at=0.9, trim_to=0.88, max_age_hours=0, room_bytes=None
)
KEEP = 818_181_818_182
"""30 days at a gigabyte an hour, and an eighth more, which is trimmed in one piece."""
A_GB_AN_HOUR = Rate(DAY_MS, 100, GB / 3_600)


def about(plan: LogPlan | TopicsPlan) -> dict[str, Any]:
    """The plan, with a tolerance for floating point."""
    said = asdict(plan).items()
    return {name: value if value is None else pytest.approx(value, rel=1e-5) for name, value in said}


@pytest.mark.parametrize(
    ("size", "rate", "expected"),
    [
        (SIZE, None, LogPlan(None, None, None, None)),
        (SIZE, Rate(DAY_MS, 0, 0), LogPlan(None, None, None, None)),
        # 88 GB are kept; 80 GB are left until 90 % of the quota; 30 days are 720 GB and an eighth more.
        (SIZE, A_GB_AN_HOUR, LogPlan(88 * HOUR_MS, 80 * HOUR_MS, None, KEEP)),
        (replace(SIZE, used_bytes=95 * GB), A_GB_AN_HOUR, LogPlan(88 * HOUR_MS, 0, None, KEEP)),
        # The disk is smaller than the quota.
        (replace(SIZE, room_bytes=5 * GB), A_GB_AN_HOUR, LogPlan(88 * HOUR_MS, 80 * HOUR_MS, 5 * HOUR_MS, KEEP)),
        (replace(SIZE, room_bytes=90 * GB), A_GB_AN_HOUR, LogPlan(88 * HOUR_MS, 80 * HOUR_MS, None, KEEP)),
        # Without a quota the log fills the disk, unless a maximum age trims it before.
        (replace(SIZE, quota_bytes=0, room_bytes=5 * GB), A_GB_AN_HOUR, LogPlan(None, None, 5 * HOUR_MS, KEEP)),
        (
            replace(SIZE, quota_bytes=0, room_bytes=5 * GB, max_age_hours=12),
            A_GB_AN_HOUR,
            LogPlan(12 * HOUR_MS, None, None, KEEP),
        ),
        (
            replace(SIZE, quota_bytes=0, room_bytes=5 * GB, max_age_hours=24),
            A_GB_AN_HOUR,
            LogPlan(24 * HOUR_MS, None, 5 * HOUR_MS, KEEP),
        ),
        # Times beyond a thousand years are left out.
        (SIZE, Rate(DAY_MS, 1, GB * 1_000 / FAR_MS), LogPlan(None, None, None, 93_400)),
    ],
)  # fmt: skip
def test_what_follows_from_a_rate(size: LogSize, rate: Rate | None, expected: LogPlan) -> None:
    """How long messages are kept, when the log is trimmed, when the disk is full, and how large 30 days are."""
    found = plan(size, rate, 30 * DAY_MS)
    assert asdict(found) == about(expected)


DEBUG = TopicsSize(used_bytes=8 * GB, whole_ms=10 * HOUR_MS, quota_bytes=8 * GB, max_age_hours=0)
"""A rule whose topics are four fifths of the traffic, kept for ten hours."""


@pytest.mark.parametrize(
    ("size", "topics", "expected"),
    [
        # A fifth fills the log: 80 GB in 400 hours, until 10 GB more of the quota are used; 30 days are 144 + 8 GB.
        (SIZE, DEBUG, LogPlan(400 * HOUR_MS, 400 * HOUR_MS, None, 172_727_272_728)),
        (replace(SIZE, quota_bytes=0, room_bytes=5 * GB), DEBUG, LogPlan(None, None, 25 * HOUR_MS, 172_727_272_728)),
        # The rule's quota has room left, which is filled first.
        (
            replace(SIZE, quota_bytes=0, room_bytes=10 * GB),
            replace(DEBUG, quota_bytes=16 * GB),
            LogPlan(None, None, 10 * HOUR_MS, 181_818_181_819),
        ),
        # All traffic is the rule's, so the log is never full.
        (
            replace(SIZE, room_bytes=15 * GB),
            replace(DEBUG, used_bytes=10 * GB, quota_bytes=0, max_age_hours=20),
            LogPlan(None, None, None, 22_727_272_728),
        ),
    ],
)  # fmt: skip
def test_what_a_rule_takes_out_does_not_fill_the_log(
    size: LogSize, topics: TopicsSize, expected: LogPlan
) -> None:
    """Its topics grow to their own limit, at their own rate; the other topics fill the rest."""
    found = plan(size, A_GB_AN_HOUR, 30 * DAY_MS, [topics])
    assert asdict(found) == about(expected)


@pytest.mark.parametrize(
    ("topics", "log_lasts_ms", "expected"),
    [
        (DEBUG, None, TopicsPlan(10 * HOUR_MS, 8 * GB)),
        (replace(DEBUG, max_age_hours=5), None, TopicsPlan(5 * HOUR_MS, 4 * GB)),
        (DEBUG, 2 * HOUR_MS, TopicsPlan(2 * HOUR_MS, round(1.6 * GB))),
        (replace(DEBUG, quota_bytes=0), None, TopicsPlan(None, None)),
        (replace(DEBUG, used_bytes=0), None, TopicsPlan(None, None)),
        (replace(DEBUG, whole_ms=0), None, TopicsPlan(None, None)),
    ],
)  # fmt: skip
def test_what_a_rule_will_hold(topics: TopicsSize, log_lasts_ms: int | None, expected: TopicsPlan) -> None:
    """By its own limits and the log's, at the rate of its topics since the last of them was removed."""
    found = plan_of_topics(topics, log_lasts_ms)
    assert asdict(found) == about(expected)
