"""
Retention by topic: which rule holds for a topic, what the log has of its topics, and what rules took out of it.

What a rule takes out lies between messages that stay, so the log's own beginning does not say that it is missing. Two
things are known of it instead. A mark, which is durable, says below which id, and before which time, the log may lack
messages of the rule's topics: a start there is refused, a rule that is no more included. And while the gateway runs,
``is_gone`` says of a row that was read earlier whether it has left since.

Invariant: once ``is_counted``, ``messages`` and ``size_bytes`` of a rule are what the log has of the topics for which
it holds, what is on its way into the store included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from amqp_ext.addresses.rule_topics import may_hold_for
from amqp_ext.topics import TopicFilter, TopicPattern
from gateway.core.log.retention_mark import RetentionMark
from gateway.core.log.retention_rule import RetentionRule
from gateway.core.model import HELD, ID, TOPIC, LogState, Row

CACHED_TOPICS: Final = 10_000
"""Topics of which it is remembered which rule holds for them; then that starts anew."""


class TakenOut(NamedTuple):
    """What rules took out of the topics that somebody asks for."""

    below: int = 0
    """Messages with ids below this may be missing."""
    whole_ms: int = 0
    """From this time on none is, ms since the epoch."""
    topics: tuple[str, ...] = ()
    """Of the rule that took out the newest of them."""


NOTHING: Final = TakenOut()


class KeptTopics:
    """What the log has of the topics that one rule holds for."""

    __slots__ = ("cleared_below", "filter", "key", "messages", "rule", "size_bytes")

    def __init__(self, rule: RetentionRule, before: Sequence[RetentionRule]) -> None:
        """
        Args:
            before: The rules before it: what they match it does not hold for.
        """
        self.rule = rule
        self.key = json.dumps([list(other.topics) for other in (rule, *before)])
        """What it is known by where what it took out is kept: what it holds for, whatever other rules come and go."""
        self.filter = TopicFilter([TopicPattern.parse(text) for text in rule.topics])
        self.messages = 0
        self.size_bytes = 0
        """Of the disk."""
        self.cleared_below = 0
        """All of them with lower ids have left the log, or are about to."""

    @property
    def excess_bytes(self) -> int:
        """What is to leave the log by the rule's quota."""
        return max(self.size_bytes - self.rule.quota_bytes, 0) if self.rule.quota_bytes else 0


class Retention:
    def __init__(self, log: LogState) -> None:
        self._log = log
        self.rules: list[KeptTopics] = []
        """In their order."""
        self.marks: dict[str, RetentionMark] = {}
        """By the keys of rules, those of former ones among them."""
        self.version = 0
        """Another one whenever counting begins anew."""
        self.is_counted = True
        self.counted_below = 0
        """What had lower ids than this was counted, while counting is under way."""
        self.counts_from = 0
        """From this id on messages are counted as they are published."""
        self._by_topic: dict[str, KeptTopics | None] = {}
        self._on_its_way: RetentionMark | None = None
        """The mark of a piece that is being committed; from which time on all is there, is not known yet."""

    def restore(self, marks: Iterable[RetentionMark]) -> None:
        """What the store kept."""
        self.marks = {mark.rule: mark for mark in marks}

    def configure(self, rules: Sequence[RetentionRule], next_id: int) -> bool:
        """
        Go by these rules from now on; what the log has of their topics is to be counted then.

        Args:
            next_id: The next one to be given out.

        Returns:
            Whether they are others than before.
        """
        if [kept.rule for kept in self.rules] == list(rules):
            return False
        self.rules = [KeptTopics(rule, rules[:place]) for place, rule in enumerate(rules)]
        self._by_topic.clear()
        self._count_anew(self._log.first_id, next_id)
        return True

    # --- which rule -----------------------------------------------------------------------------------------------

    def of(self, topic: str) -> KeptTopics | None:
        """What is kept by the rule that holds for a topic; None where none does."""
        try:
            return self._by_topic[topic]
        except KeyError:
            pass
        if len(self._by_topic) >= CACHED_TOPICS:
            self._by_topic.clear()
        found = next((kept for kept in self.rules if kept.filter.matches(topic)), None)
        self._by_topic[topic] = found
        return found

    def is_gone(self, row: Row) -> bool:
        """
        Whether a message that the log had when it was read has left it by a rule, or is about to. What lies before the
        log's beginning comes out of an archive.
        """
        if row[HELD] is not None or row[ID] < self._log.first_id:
            return False
        kept = self.of(row[TOPIC])
        return kept is not None and row[ID] < kept.cleared_below

    def left(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Those of some rows, rising, that the log still has, and those that it never had."""
        if not rows or all(rows[0][ID] >= kept.cleared_below for kept in self.rules):
            return rows
        return [row for row in rows if not self.is_gone(row)]

    # --- what there is --------------------------------------------------------------------------------------------

    def _count_anew(self, position: int, next_id: int) -> None:
        self.version += 1
        self.is_counted = not self.rules or position >= next_id
        self.counted_below, self.counts_from = position, next_id
        for kept in self.rules:
            kept.messages = kept.size_bytes = 0

    def recount(self, next_id: int) -> None:
        """What the log has of the rules' topics takes less of the disk than it did: it is counted anew."""
        if self.rules:
            self._count_anew(self._log.first_id, next_id)

    def counted(self, found: Iterable[tuple[str, int, int]], position: int) -> None:
        """
        What the log has from where counting was, below ``position``.

        Args:
            found: (topic, messages, bytes of the disk).
        """
        for topic, messages, size_bytes in found:
            self._add(topic, messages, size_bytes)
        self.counted_below = position
        self.is_counted = position >= self.counts_from

    def published(self, topic: str, first_id: int, messages: int, size_bytes: int) -> None:
        """Messages are on their way into the log; none came of them where the numbers are below nothing."""
        if first_id >= self.counts_from:
            self._add(topic, messages, size_bytes)

    def _add(self, topic: str, messages: int, size_bytes: int) -> None:
        kept = self.of(topic)
        if kept is not None:
            kept.messages += messages
            kept.size_bytes += size_bytes

    @property
    def is_over_quota(self) -> bool:
        """Whether some rule's topics take more of the disk than they may."""
        return self.is_counted and any(kept.excess_bytes for kept in self.rules)

    # --- what has left it -----------------------------------------------------------------------------------------

    def log_trimmed(self, stop: int, freed: Iterable[tuple[str, int, int]], next_id: int) -> int:
        """
        The log begins at ``stop`` now.

        Args:
            freed: (topic, messages, bytes of the disk) of what left it then.
            next_id: The next one to be given out.

        Returns:
            From which time on the log itself is whole by what rules had taken out there; 0 where that is nothing.
        """
        if self.rules and not self.is_counted and stop > self.counted_below:
            # What was counted is gone, and what left beside it may have been counted or not.
            self._count_anew(stop, next_id)
        else:
            for topic, messages, size_bytes in freed:
                self._add(topic, -messages, -size_bytes)
        passed = [mark for mark in self.marks.values() if mark.below <= stop]
        for mark in passed:
            del self.marks[mark.rule]
        return max((mark.whole_ms for mark in passed), default=0)

    def takes_out(self, rule: str, below: int) -> None:
        """A rule is about to take messages out of the log, the newest of them with the id before ``below``."""
        self._on_its_way = RetentionMark(rule, below, 0)

    def taken_or_not(self) -> None:
        """That was committed, or failed."""
        self._on_its_way = None

    def took_out(self, rule: str, below: int, whole_ms: int, freed: Iterable[tuple[str, int, int]]) -> None:
        """A rule took messages out of the log, the newest of them with the id before ``below``."""
        if self.is_counted or below <= self.counted_below:
            # Else counting began anew meanwhile, and it will not see them.
            for topic, messages, size_bytes in freed:
                self._add(topic, -messages, -size_bytes)
        before = self.marks.get(rule, RetentionMark(rule, 0, 0))
        self.marks[rule] = RetentionMark(rule, max(before.below, below), max(before.whole_ms, whole_ms))

    def whole_ms(self, kept: KeptTopics) -> int:
        """From which time on no rule has taken anything of a rule's topics, ms since the epoch; 0: it never has."""
        mark = self.marks.get(kept.key)
        return mark.whole_ms if mark is not None else 0

    # --- what is missing ------------------------------------------------------------------------------------------

    def taken_from(self, patterns: Sequence[str]) -> TakenOut:
        """
        What rules took out of the topics of some subscriptions, and what they are about to.

        Args:
            patterns: As ``taken_by`` has it.
        """
        return taken_by(self._all_marks(), patterns)

    def taken_below(self, patterns: Sequence[str]) -> tuple[int, ...]:
        """The same rule by rule: below which ids each that may have taken any of these topics did, in rising order."""
        below: dict[str, int] = {}
        for mark in self._all_marks():
            below[mark.rule] = max(below.get(mark.rule, 0), taken_by([mark], patterns).below)
        return tuple(sorted(found for found in below.values() if found))

    def _all_marks(self) -> list[RetentionMark]:
        return [*self.marks.values(), *([self._on_its_way] if self._on_its_way else [])]


def taken_by(marks: Sequence[RetentionMark], patterns: Sequence[str]) -> TakenOut:
    """
    What rules that left these marks took out of the topics of some subscriptions.

    Args:
        patterns: With exceptions among them; none for every topic.
    """
    if not marks:
        return NOTHING
    found = NOTHING
    for mark in marks:
        topics, *before = json.loads(mark.rule)
        if may_hold_for(topics, before, patterns):
            newest = mark.below > found.below
            found = TakenOut(
                max(found.below, mark.below),
                max(found.whole_ms, mark.whole_ms),
                tuple(topics) if newest else found.topics,
            )
    return found
