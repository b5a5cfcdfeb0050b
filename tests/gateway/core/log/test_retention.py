"""Retention by topic: which rule holds, what is counted while it is counted, and what a start is told is missing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.core.log import NOTHING, LogPolicy, Retention, RetentionRule
from gateway.core.model import LogState
from tests.support.core import new_broker, publish

ORDERS = RetentionRule(("orders/>", "!orders/test/>"), max_age_hours=9)
DEBUG = RetentionRule(("debug/>", "orders/test/*"), quota_bytes=1_000)
ALL = RetentionRule((">",), max_age_hours=1)


def retention(*rules: RetentionRule, first_id: int = 1, next_id: int = 1) -> Retention:
    return retention_of(LogState(1, first_id, next_id, 0, 0), *rules)


def retention_of(log: LogState, *rules: RetentionRule) -> Retention:
    found = Retention(log)
    found.configure(rules)
    return found


@pytest.mark.parametrize(
    ("topic", "place"),
    [("orders/1", 0), ("orders/test/1", 1), ("orders/test/1/2", 2), ("debug/1", 1), ("#queue/q", 2)],
)
def test_the_first_rule_that_matches_a_topic_holds(topic: str, place: int) -> None:
    """Exceptions of one rule are left to those behind it."""
    found = retention(ORDERS, DEBUG, ALL)
    assert found.of(topic) is found.rules[place]
    assert retention(ORDERS, DEBUG).of("other") is None


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
    """What earlier rules hold for it did not take, and what is excepted is not asked for; without the rule, too."""
    found = retention(ORDERS, DEBUG)
    found.took_out(found.rules[1].key, 70, 7_000, ())
    expected = (70, 7_000, DEBUG.topics)
    assert found.taken_from(patterns) == (expected if is_missing else NOTHING)
    found.configure((ALL,))
    assert found.taken_from(patterns) == (expected if is_missing else NOTHING)


def test_of_several_rules_the_newest_counts() -> None:
    """By id and by time, each on its own."""
    found = retention(ORDERS, DEBUG)
    found.took_out(found.rules[0].key, 70, 5_000, ())
    found.took_out(found.rules[1].key, 50, 7_000, ())
    found.took_out(found.rules[1].key, 40, 6_000, ())
    assert found.taken_from((">",)) == (70, 7_000, ORDERS.topics)
    assert found.taken_from(("debug/>",)) == (50, 7_000, DEBUG.topics)
    found.took_out(found.rules[0].key, 71, 8_000, ())
    assert found.taken_from((">",)) == (71, 8_000, ORDERS.topics)


def test_a_rule_for_all_others_took_nothing_of_what_rules_before_it_hold_for() -> None:
    """So their topics can be replayed from further back; of what such a rule leaves out by an exception it did take."""
    found = retention(ORDERS, ALL)
    found.took_out(found.rules[1].key, 70, 7_000, ())
    assert found.taken_from(("orders/1",)) == NOTHING
    assert found.taken_from(("orders/test/1",)).below == 70
    assert found.taken_from(("other",)).below == 70


def test_what_the_log_s_beginning_has_passed_is_the_log_s_own() -> None:
    """Its mark goes, and the log is whole from no earlier than that says."""
    found = retention(DEBUG)
    found.took_out(found.rules[0].key, 70, 7_000, ())
    assert found.log_trimmed(69, ()) == 0
    assert found.log_trimmed(70, ()) == 7_000
    assert found.taken_from((">",)) == NOTHING


def test_what_is_published_while_it_is_counted_counts_once() -> None:
    """Below where counting began it is counted there, from there on as it comes; what fails is taken back."""
    found = retention(DEBUG, next_id=11)
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
    """Below what was counted it is taken off; beyond, counting begins anew behind it."""
    log = LogState(1, 1, 11, 0, 0)
    found = retention_of(log, DEBUG)
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
    """Reloading a configuration that says the same changes nothing."""
    found = retention(DEBUG, next_id=11)
    found.counted([("debug/1", 5, 500)], 11)
    assert not found.configure((DEBUG,))
    assert found.is_counted
    assert found.configure((DEBUG, ALL))
    assert not found.is_counted


def test_what_is_about_to_leave_is_gone_and_comes_back_where_that_fails() -> None:
    """Of its rule's topics, below the piece's end, and no other row; the log's size falls with the commit."""
    broker = new_broker(LogPolicy(retention=(DEBUG,)))
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
