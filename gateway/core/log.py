"""
The replay log as rules: what it takes, what it keeps of some topics, which ids it and its archive have, and the places
in it that have names.

Policy. Whoever asks for what the log would give, while it gives nothing, is told so in the same words.

History is the replay log, and before that what the log's archive has, as one run of ids without a gap. Of an archive it
takes the ids without a gap up to the archive's end, and takes them only while they reach to where the log begins: as
long as every id is archived before it is trimmed, that is always so. What lies before a gap is no part of it, and
whoever asks for that is told so.

Retention by topic takes messages out of the log between others that stay, so the log's own beginning does not say that
they are missing. Two things are known of it instead. A mark, which is durable, says below which id, and before which
time, the log may lack messages of the rule's topics: a start there is refused, a rule that is no more included. And
while the gateway runs, ``Retention.is_gone`` says of a row that was read earlier whether it has left since.
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
    What the replay log of a Message VPN takes and keeps.

    Invariant: whoever asks for what the log would give, while it gives nothing, is told so in the same words.
    """

    writes: bool = True
    """Messages are logged."""
    reads: bool = True
    """What is logged can be replayed and read."""
    quota_bytes: int = 0
    """What all of it may take of the disk; 0 for no bound."""
    filter: TopicFilter | None = None
    """None when every topic is logged."""
    promote_direct: bool = False
    replay_temporary: bool = True
    max_replays: int = 1000
    max_age_hours: int = 0
    """What is older is trimmed; 0 for no bound."""
    retention: tuple[RetentionRule, ...] = ()
    """What is kept of some topics, in their order."""
    keep_until_archived: bool = False
    """Nothing is trimmed that is not in an archive."""

    def become(self, other: LogPolicy) -> None:
        """The configuration has changed: whoever has this policy goes by the other one from now on."""
        for one in fields(self):
            setattr(self, one.name, getattr(other, one.name))

    def takes(self, topic: str) -> bool:
        """Whether Guaranteed messages of a topic are logged."""
        return self.writes and (self.filter is None or self.filter.matches(topic))

    def check_reads(self, without: str) -> None:
        """
        That what is logged can be read; ``without`` says what is not there as long as it cannot.

        Raises:
            Refused: REPLAY_DISABLED.
        """
        if not self.reads:
            raise log_is_off(without)

    def check_can_be_viewed(self) -> None:
        """
        That there is a log a stream can show, if only later.

        Raises:
            Refused: REPLAY_DISABLED.
        """
        if not (self.writes or self.reads):
            raise log_is_off("a stream would be a view of nothing")


def log_is_off(without: str) -> Refused:
    """The refusal of what needs the replay log; ``without`` says what is not there while it is off."""
    return Refused(ErrorCode.REPLAY_DISABLED, f"the replay log of this Message VPN is off: {without}")


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """Of rules that match a topic the first one holds; what none matches is under the log's own bounds alone."""

    topics: tuple[str, ...]
    """Topic subscriptions, ``!`` before an exception; one at least is none."""
    max_age_hours: int = 0
    """What is older leaves the log; 0 for no bound."""
    quota_bytes: int = 0
    """What all of it may take of the disk; 0 for no bound."""


class RetentionMark(NamedTuple):
    """What a retention rule has taken out of the log, as the store keeps it."""

    rule: str
    """Key of the rule: its topics as JSON."""
    below: int
    """Of the rule's topics the log may lack messages with ids below this."""
    whole_ms: int
    """From this time on nothing of them is missing, ms since the epoch."""


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """The ids that an archive has without a gap, up to its end; it is empty where ``last_id`` is below ``first_id``."""

    generation: int | None
    """Of the log that was archived; None when nothing was yet."""
    first_id: int
    last_id: int
    first_ms: int
    """When the first of its messages arrived, ms since the epoch."""
    last_before: int = 0
    """The last id that the archive has before the gap in front of the run; 0 when there is none."""


@dataclass(slots=True, eq=False)
class History:
    """Which ids lie in the log, and which in its archive alone."""

    log: LogState
    """As the store has it."""
    has_archive: bool = False
    """The log has an archive that is read; it may be empty."""
    archived: ArchivedRun | None = None
    """As it was looked at last; None when it never was, or cannot be read."""

    @property
    def is_joined(self) -> bool:
        """The archive has what the log no longer has, up to where the log begins."""
        archived, log = self.archived, self.log
        return (
            archived is not None
            and archived.generation == log.generation
            and archived.first_id < log.first_id <= archived.last_id + 1
            and archived.last_id < log.next_id
        )

    @property
    def first_id(self) -> int:
        """The oldest id that may be read."""
        return self.archived.first_id if self.is_joined and self.archived else self.log.first_id

    @property
    def floor_ms(self) -> int:
        """From this time on nothing is missing, ms since the epoch."""
        if not self.is_joined or self.archived is None:
            return self.log.floor_ms
        # Others of that millisecond may have been trimmed before the archive began.
        return self.archived.first_ms + (self.archived.first_id > 1)

    @property
    def archived_below(self) -> int:
        """Ids below this are in the log's archive, as far as is known; all that are given out, where it has none."""
        if not self.has_archive:
            return self.log.next_id
        archived, log = self.archived, self.log
        is_of_log = archived is not None and archived.generation == log.generation
        return max(log.archived_id, archived.last_id if archived is not None and is_of_log else 0) + 1

    def is_archived(self, message_id: int) -> bool:
        """Whether the archive is known to have an id."""
        archived = self.archived
        return (
            archived is not None
            and archived.generation == self.log.generation
            and archived.first_id <= message_id <= archived.last_id
        )

    @property
    def says(self) -> str:
        """What the archive has, as a refusal says it behind what the log holds; empty where there is none."""
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
            return f"; {has}, and what lies between is in neither"
        return f"; {has}"


class Points(dict[str, Point]):
    """The named points of a Message VPN's log, by name."""

    def __init__(self, history: History, policy: LogPolicy) -> None:
        super().__init__()
        self._history = history
        self._policy = policy

    def restore(self, points: Iterable[Point]) -> None:
        """The store has these, and no others."""
        self.clear()
        self.update((point.name, point) for point in points)

    def check(self, name: str) -> None:
        """
        Whether a point of this name may be made.

        Raises:
            Refused: INVALID_FIELD for a bad name, ALREADY_EXISTS for one that is taken, REPLAY_DISABLED.
        """
        check_name("a point", name)
        self._policy.check_reads("there are no points in it")
        if name in self:
            raise Refused(ErrorCode.ALREADY_EXISTS, f"a point named {name!r} exists already; delete it first")

    def create(
        self, name: str, position: int | None, time_ms: int | None, now_ms: int
    ) -> tuple[Point, list[Effect]]:
        """
        Give a place in the log a name.

        Args:
            position: The first id behind it; None for now: before everything that is published from here on.
            time_ms: When that message arrived; None for now.

        Raises:
            Refused: As ``check`` has it.
        """
        self.check(name)
        position = self._history.log.unused_id if position is None else position
        point = self[name] = Point(name, position, now_ms if time_ms is None else time_ms, now_ms)
        return point, [SavePoint(point)]

    def delete(self, name: str) -> tuple[Point, list[Effect]]:
        """
        The point goes; once that is committed, tell ``deleted``. Replays that began at it go on.

        Raises:
            Refused: NOT_FOUND, there is none of this name.
        """
        point = self.get(name)
        if point is None:
            raise Refused(ErrorCode.NOT_FOUND, f"there is no point named {name!r}")
        return point, [DeletePoint(name)]

    def deleted(self, point: Point) -> None:
        """The point is gone, or came to nothing; another that has its name since stays."""
        if self.get(point.name) is point:
            del self[point.name]

    def is_trimmed(self, point: Point) -> bool:
        """Whether neither the log nor its archive reaches back to the point."""
        return point.position < self._history.first_id


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
    def __init__(self, history: History) -> None:
        self._history = history
        self._log = history.log
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

    def configure(self, rules: Sequence[RetentionRule]) -> bool:
        """
        Go by these rules from now on; what the log has of their topics is to be counted then.

        Returns:
            Whether they are others than before.
        """
        if [kept.rule for kept in self.rules] == list(rules):
            return False
        self.rules = [KeptTopics(rule, rules[:place]) for place, rule in enumerate(rules)]
        self._by_topic.clear()
        self._count_anew(self._log.first_id)
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
        found = self._by_topic[topic] = next((k for k in self.rules if k.filter.matches(topic)), None)
        return found

    def is_gone(self, row: Row) -> bool:
        """
        Whether a message that the log had when it was read has left it by a rule, or is about to. Where there is an
        archive, what lies before the log's beginning may come out of that, and counts as there.
        """
        if row[HELD] is not None or (self._history.has_archive and row[ID] < self._log.first_id):
            return False
        kept = self.of(row[TOPIC])
        return kept is not None and row[ID] < kept.cleared_below

    def left(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Those of some rows, rising, that the log still has, and those that it never had."""
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
        """What the log has of the rules' topics takes less of the disk than it did: it is counted anew."""
        if self.rules:
            self._count_anew(self._log.first_id)

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

    def log_trimmed(self, stop: int, freed: Iterable[tuple[str, int, int]]) -> int:
        """
        The log begins at ``stop`` now.

        Args:
            freed: (topic, messages, bytes of the disk) of what left it then.

        Returns:
            From which time on the log itself is whole by what rules had taken out there; 0 where that is nothing.
        """
        if self.rules and not self.is_counted and stop > self.counted_below:
            # What was counted is gone, and what left beside it may have been counted or not.
            self._count_anew(stop)
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
