"""
The rules of the replay log: its policy, the history of ids that the log and its archive have, its named points, and
retention by topic.

History is one run of ids without a gap: first the ids that only the archive has, then those of the log. From the
archive it takes the last run of ids without a gap, and only if this run reaches the beginning of the log. That is
always so if every id is archived before it is trimmed. Ids before a gap are not part of history; a request for them is
refused with a text that says so.

Retention by topic takes messages out of the log between messages that stay, so the beginning of the log does not show
that they are missing. Two things show it instead. A durable mark says below which id, and before which time, the log
may lack messages of the rule's topics: a start there is refused, even if the rule no longer exists. And while the
gateway runs, ``Retention.is_gone`` says whether a row that was read earlier has left the log since.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from amqp_ext.addresses.patterns import may_hold_for
from amqp_ext.topics import TopicFilter, TopicPattern
from gateway.core.effects import DeletePoint, Effect, SavePoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import HELD, ID, TOPIC, LogState, Point, Row, check_name


@dataclass(slots=True)
class LogPolicy:
    """
    Which messages the replay log of a Message VPN takes and keeps.

    Invariant: while reading is off, all requests that need the log are refused with the same text.
    """

    writes: bool = True
    """Messages are logged."""
    reads: bool = True
    """Logged messages can be replayed and read."""
    quota_bytes: int = 0
    """The most disk space of the log; 0 for no limit."""
    filter: TopicFilter | None = None
    """None when every topic is logged."""
    promote_direct: bool = False
    replay_temporary: bool = True
    max_replays: int = 1000
    max_age_hours: int = 0
    """Older messages are trimmed; 0 for no limit."""
    retention: tuple[RetentionRule, ...] = ()
    """Retention rules for some topics, in their order."""
    keep_until_archived: bool = False
    """Only messages that are in the archive are trimmed."""

    def become(self, other: LogPolicy) -> None:
        """The configuration has changed: take over the values of the other policy."""
        for one in fields(self):
            setattr(self, one.name, getattr(other, one.name))

    def takes(self, topic: str) -> bool:
        """Whether Guaranteed messages of a topic are logged."""
        return self.writes and (self.filter is None or self.filter.matches(topic))

    def check_reads(self, without: str) -> None:
        """
        Check that logged messages can be read. ``without`` says, for the text, what is not available while they cannot.

        Raises:
            Refused: REPLAY_DISABLED.
        """
        if not self.reads:
            raise log_is_off(without)

    def check_can_be_viewed(self) -> None:
        """
        Check that a stream has a log to show, now or later.

        Raises:
            Refused: REPLAY_DISABLED.
        """
        if not (self.writes or self.reads):
            raise log_is_off("a stream would have no messages to show")


def log_is_off(without: str) -> Refused:
    """The refusal of a request that needs the log; ``without`` says what is not available while the log is off."""
    return Refused(ErrorCode.REPLAY_DISABLED, f"the replay log of this Message VPN is off: {without}")


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """The first rule that matches a topic holds for it. For a topic without a rule, the log's own limits hold."""

    topics: tuple[str, ...]
    """Topic subscriptions, with ``!`` before an exception; at least one is not an exception."""
    max_age_hours: int = 0
    """Older messages leave the log; 0 for no limit."""
    quota_bytes: int = 0
    """The most disk space of the rule's messages; 0 for no limit."""


class RetentionMark(NamedTuple):
    """The durable mark of the messages that a retention rule has taken out of the log."""

    rule: str
    """The rule's key: its topics, and those of the rules before it, as JSON."""
    below: int
    """The log may lack messages of the rule's topics with ids below this."""
    whole_ms: int
    """The log lacks no message of these topics from this time on, ms since the epoch."""


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """The last run of ids without a gap in an archive. It is empty where ``last_id`` is below ``first_id``."""

    generation: int | None
    """The generation of the archived log; None while the archive is empty."""
    first_id: int
    last_id: int
    first_ms: int
    """When the first message of the run arrived, ms since the epoch."""
    last_before: int = 0
    """The last id before the gap in front of the run; 0 when there is no gap."""


@dataclass(slots=True, eq=False)
class History:
    """Which ids are in the log, and which are only in its archive."""

    log: LogState
    """The log's state in the store."""
    has_archive: bool = False
    """The log has an archive that the gateway reads; the archive may be empty."""
    archived: ArchivedRun | None = None
    """The archive's run at the last look; None before the first look, or when the archive cannot be read."""

    @property
    def _own(self) -> ArchivedRun | None:
        """The archive's run; None if it is of another log, or not known."""
        archived = self.archived
        return archived if archived is not None and archived.generation == self.log.generation else None

    @property
    def joined(self) -> ArchivedRun | None:
        """The archive's run, if it begins before the log and reaches its beginning."""
        run, log = self._own, self.log
        if run is None or not run.first_id < log.first_id <= run.last_id + 1 or run.last_id >= log.next_id:
            return None
        return run

    @property
    def first_id(self) -> int:
        """The oldest id that may be read."""
        run = self.joined
        return self.log.first_id if run is None else run.first_id

    @property
    def floor_ms(self) -> int:
        """History lacks no message that arrived from this time on, ms since the epoch."""
        run = self.joined
        # Other messages of that millisecond may have been trimmed before the archive began.
        return self.log.floor_ms if run is None else run.first_ms + (run.first_id > 1)

    @property
    def archived_below(self) -> int:
        """Ids below this are known to be in the log's archive. Without an archive: one past the last committed id."""
        if not self.has_archive:
            return self.log.next_id
        run = self._own
        return max(self.log.archived_id, 0 if run is None else run.last_id) + 1

    def is_archived(self, message_id: int) -> bool:
        """Whether the archive is known to have an id."""
        run = self._own
        return run is not None and run.first_id <= message_id <= run.last_id

    @property
    def says(self) -> str:
        """The part of a refusal's text that says what the archive has; empty where there is no archive."""
        if not self.has_archive:
            return ""
        archived, log = self.archived, self.log
        if archived is None:
            return "; its archive cannot be read"
        if archived.generation is None:
            return "; its archive is empty"
        if archived.generation != log.generation:
            return f"; its archive is of generation {archived.generation}, another log"
        before = f", and up to {archived.last_before} before a gap" if archived.last_before else ""
        has = f"its archive has ids {archived.first_id} to {archived.last_id}{before}"
        if archived.last_id >= log.next_id:
            return f"; {has}, more than the log ever had"
        if archived.last_id + 1 < log.first_id:
            return f"; {has}, and the ids in between are in neither"
        return f"; {has}"


class Points(dict[str, Point]):
    """The named points of a Message VPN's log, by name."""

    def __init__(self, history: History, policy: LogPolicy) -> None:
        super().__init__()
        self._history = history
        self._policy = policy

    def restore(self, points: Iterable[Point]) -> None:
        """Take over the points in the store, in place of all others."""
        self.clear()
        self.update((point.name, point) for point in points)

    def check(self, name: str) -> None:
        """
        Check that a point of this name may be created.

        Raises:
            Refused: INVALID_FIELD for a bad name, ALREADY_EXISTS for a name that is taken, REPLAY_DISABLED.
        """
        check_name("a point", name)
        self._policy.check_reads("there are no points in it")
        if name in self:
            raise Refused(ErrorCode.ALREADY_EXISTS, f"a point named {name!r} exists already; delete it first")

    def create(
        self, name: str, position: int | None, time_ms: int | None, now_ms: int
    ) -> tuple[Point, list[Effect]]:
        """
        Create a point: give a place in the log a name.

        Args:
            position: The first id after the point; None for now: before everything that is published from here on.
            time_ms: When that message arrived; None for now.

        Raises:
            Refused: As in ``check``.
        """
        self.check(name)
        position = self._history.log.unused_id if position is None else position
        point = self[name] = Point(name, position, now_ms if time_ms is None else time_ms, now_ms)
        return point, [SavePoint(point)]

    def delete(self, name: str) -> tuple[Point, list[Effect]]:
        """
        Delete a point; call ``deleted`` once that is committed. Replays that began at the point go on.

        Raises:
            Refused: NOT_FOUND, there is no point of this name.
        """
        point = self.get(name)
        if point is None:
            raise Refused(ErrorCode.NOT_FOUND, f"there is no point named {name!r}")
        return point, [DeletePoint(name)]

    def deleted(self, point: Point) -> None:
        """The point's deletion is committed, or its creation failed. A newer point of the same name stays."""
        if self.get(point.name) is point:
            del self[point.name]

    def is_trimmed(self, point: Point) -> bool:
        """Whether neither the log nor its archive reaches back to the point."""
        return point.position < self._history.first_id


CACHED_TOPICS: Final = 10_000
"""The most topics whose rule is cached; then the cache is cleared."""


class TakenOut(NamedTuple):
    """What retention rules took out of requested topics."""

    below: int = 0
    """Messages with ids below this may be missing."""
    whole_ms: int = 0
    """No message is missing from this time on, ms since the epoch."""
    topics: tuple[str, ...] = ()
    """The topics of the rule that took out the newest of the missing messages."""


NOTHING: Final = TakenOut()


class KeptTopics:
    """The messages of one rule's topics that the log has."""

    __slots__ = ("cleared_below", "filter", "key", "messages", "rule", "size_bytes")

    def __init__(self, rule: RetentionRule, before: Sequence[RetentionRule]) -> None:
        """
        Args:
            before: The rules before it. The rule does not hold for topics that they match.
        """
        self.rule = rule
        self.key = json.dumps([list(other.topics) for other in (rule, *before)])
        """Identifies the rule in its mark. It says which topics the rule holds for, and so stays valid when other rules
        change."""
        self.filter = TopicFilter([TopicPattern.parse(text) for text in rule.topics])
        self.messages = 0
        self.size_bytes = 0
        """The disk space of these messages."""
        self.cleared_below = 0
        """All of the rule's messages with lower ids have left the log, or are about to."""

    @property
    def excess_bytes(self) -> int:
        """How many bytes have to leave the log by the rule's quota."""
        return max(self.size_bytes - self.rule.quota_bytes, 0) if self.rule.quota_bytes else 0


class Retention:
    def __init__(self, history: History) -> None:
        self._history = history
        self._log = history.log
        self.rules: list[KeptTopics] = []
        """In the order of the configuration."""
        self.marks: dict[str, RetentionMark] = {}
        """By the keys of rules, former rules included."""
        self.version = 0
        """Changes whenever counting begins again."""
        self.is_counted = True
        self.counted_below = 0
        """While counting runs: messages below this id are counted."""
        self.counts_from = 0
        """From this id on, messages are counted as they are published."""
        self._by_topic: dict[str, KeptTopics | None] = {}
        self._on_its_way: RetentionMark | None = None
        """The mark of a removal that is being committed. Its ``whole_ms`` is not known yet."""

    def restore(self, marks: Iterable[RetentionMark]) -> None:
        """Take over the stored marks."""
        self.marks = {mark.rule: mark for mark in marks}

    def configure(self, rules: Sequence[RetentionRule]) -> bool:
        """
        Use these rules from now on. The log's messages of their topics are to be counted then.

        Returns:
            Whether the rules differ from those before.
        """
        if [kept.rule for kept in self.rules] == list(rules):
            return False
        self.rules = [KeptTopics(rule, rules[:place]) for place, rule in enumerate(rules)]
        self._by_topic.clear()
        self._count_anew(self._log.first_id)
        return True

    # --- which rule -----------------------------------------------------------------------------------------------

    def of(self, topic: str) -> KeptTopics | None:
        """The messages of the rule that holds for a topic; None where no rule does."""
        try:
            return self._by_topic[topic]
        except KeyError:
            pass
        if len(self._by_topic) >= CACHED_TOPICS:
            self._by_topic.clear()
        found = self._by_topic[topic] = next((k for k in self.rules if k.filter.matches(topic)), None)
        return found

    def is_gone(self, row: Row) -> bool:
        """
        Whether a message that was in the log when it was read has left the log by a rule, or is about to. Where there
        is an archive, a message before the beginning of the log may come from the archive and counts as present.
        """
        if row[HELD] is not None or (self._history.has_archive and row[ID] < self._log.first_id):
            return False
        kept = self.of(row[TOPIC])
        return kept is not None and row[ID] < kept.cleared_below

    def left(self, rows: Sequence[Row]) -> Sequence[Row]:
        """
        The rows without those that have left the log by a rule.

        Args:
            rows: In rising order of ids; unlogged messages among them stay.
        """
        if not rows or all(rows[0][ID] >= kept.cleared_below for kept in self.rules):
            return rows
        return [row for row in rows if not self.is_gone(row)]

    # --- what there is --------------------------------------------------------------------------------------------

    def _count_anew(self, position: int) -> None:
        next_id = self._log.unused_id
        self.version += 1
        self.is_counted = not self.rules or position >= next_id
        self.counted_below, self.counts_from = position, next_id
        for kept in self.rules:
            kept.messages = kept.size_bytes = 0

    def recount(self) -> None:
        """The log's messages of the rules' topics take less disk space than before: count them again."""
        if self.rules:
            self._count_anew(self._log.first_id)

    def counted(self, found: Iterable[tuple[str, int, int]], position: int) -> None:
        """
        Add a counted piece of the log, up to below ``position``.

        Args:
            found: The messages of the piece, as (topic, messages, bytes of the disk).
        """
        for topic, messages, size_bytes in found:
            self._add(topic, messages, size_bytes)
        self.counted_below = position
        self.is_counted = position >= self.counts_from

    def published(self, topic: str, first_id: int, messages: int, size_bytes: int) -> None:
        """Add messages that are to be logged. The numbers are negative for a publication that failed."""
        if first_id >= self.counts_from:
            self._add(topic, messages, size_bytes)

    def _add(self, topic: str, messages: int, size_bytes: int) -> None:
        kept = self.of(topic)
        if kept is not None:
            kept.messages += messages
            kept.size_bytes += size_bytes

    @property
    def is_over_quota(self) -> bool:
        """Whether the topics of some rule take more disk space than its quota."""
        return self.is_counted and any(kept.excess_bytes for kept in self.rules)

    # --- what has left it -----------------------------------------------------------------------------------------

    def log_trimmed(self, stop: int, freed: Iterable[tuple[str, int, int]]) -> int:
        """
        The log begins at ``stop`` now.

        Args:
            freed: The messages that left it, as (topic, messages, bytes of the disk).

        Returns:
            The time from which on the log is complete, given the removals by rules below ``stop``; 0 where there were
            none.
        """
        if self.rules and not self.is_counted and stop > self.counted_below:
            # All counted messages are gone, and the others that left may have been counted or not.
            self._count_anew(stop)
        else:
            for topic, messages, size_bytes in freed:
                self._add(topic, -messages, -size_bytes)
        passed = [mark for mark in self.marks.values() if mark.below <= stop]
        for mark in passed:
            del self.marks[mark.rule]
        return max((mark.whole_ms for mark in passed), default=0)

    def takes_out(self, rule: str, below: int) -> None:
        """A rule is about to take messages out of the log; the newest of them has the id ``below`` - 1."""
        self._on_its_way = RetentionMark(rule, below, 0)

    def taken_or_not(self) -> None:
        """The removal was committed, or failed."""
        self._on_its_way = None

    def took_out(self, rule: str, below: int, whole_ms: int, freed: Iterable[tuple[str, int, int]]) -> None:
        """A rule took messages out of the log; the newest of them has the id ``below`` - 1."""
        if self.is_counted or below <= self.counted_below:
            # Else counting began again meanwhile, and will not see the removed messages.
            for topic, messages, size_bytes in freed:
                self._add(topic, -messages, -size_bytes)
        before = self.marks.get(rule, RetentionMark(rule, 0, 0))
        self.marks[rule] = RetentionMark(rule, max(before.below, below), max(before.whole_ms, whole_ms))

    def whole_ms(self, kept: KeptTopics) -> int:
        """From which time on no message of the rule's topics is missing, ms since the epoch; 0: it took nothing out."""
        mark = self.marks.get(kept.key)
        return mark.whole_ms if mark is not None else 0

    # --- what is missing ------------------------------------------------------------------------------------------

    def taken_from(self, patterns: Sequence[str]) -> TakenOut:
        """
        What rules took out of the topics of these subscriptions, or are about to take out.

        Args:
            patterns: As in ``taken_by``.
        """
        return taken_by(self._all_marks(), patterns)

    def taken_below(self, patterns: Sequence[str]) -> tuple[int, ...]:
        """For each rule that may have taken out messages of these topics, the id below which it did; rising."""
        below: dict[str, int] = {}
        for mark in self._all_marks():
            below[mark.rule] = max(below.get(mark.rule, 0), taken_by([mark], patterns).below)
        return tuple(sorted(found for found in below.values() if found))

    def _all_marks(self) -> list[RetentionMark]:
        return [*self.marks.values(), *([self._on_its_way] if self._on_its_way else [])]


def taken_by(marks: Sequence[RetentionMark], patterns: Sequence[str]) -> TakenOut:
    """
    What the rules of these marks took out of the topics of some subscriptions.

    Args:
        patterns: Topic subscriptions, exceptions included; empty for every topic.
    """
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
