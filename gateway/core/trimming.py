"""
Trimming the replay log: which messages may leave it, piece by piece, and which of these endpoints still need.

A trim says, route by route, how many endpoints need the messages in a range of ids. So the store does not have to look
at cursors: it writes that number into ``held`` of these messages.

Invariant: with ``keep_until_archived``, only messages that the archiver has reported are trimmed. The archiver reports
messages that its own table holds durably, so that at any moment each id is in the log, in the archive, or in both.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from gateway.core.effects import Effect, HeldRun, SaveArchived, TrimLog, TrimTopics
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import History, KeptTopics, LogPolicy, Retention
from gateway.core.router import Route
from gateway.core.settlements import Settlements

TRIM_IDS: Final = 1_000
"""Ids trimmed in one commit. It takes some milliseconds, so that publishers hardly wait for it."""

TRIM_PACE: Final = 2
"""Ids trimmed for each id that came during the commit of the last piece, if that is more than ``TRIM_IDS``. On a slow
disk a commit takes long, and more messages come during it."""

MOST_TRIM_IDS: Final = 20_000
"""The most ids trimmed in one commit, which then takes a tenth of a second."""

URGENT: Final = 0.95
"""Above this share of the quota, pieces have the largest size: it is better that publishers wait a little than that
they are refused."""

MOST_TOPIC_PIECES: Final = 100
"""How many pieces are remembered, for code that reads an endpoint's messages meanwhile."""


class LogFull(Refused):
    """The log's quota has no room for a message. The messages before it that fit are not affected."""

    def __init__(self, text: str, size_bytes: int, *, is_passing: bool, is_too_large: bool) -> None:
        super().__init__(ErrorCode.RESOURCE_LIMIT, text, **{"rewind:reason": "replay-log-quota"})
        self.size_bytes = size_bytes
        """The disk space that the message would take."""
        self.is_passing = is_passing
        """Trimming may make room for it, without an administrator."""
        self.is_too_large = is_too_large
        """The message would not even fit in an empty log. Messages after it may fit."""


@dataclass(eq=False)
class Trimming:
    _policy: LogPolicy
    _history: History
    _retention: Retention
    _endpoints: Mapping[str, Endpoint]
    _routes: Iterable[Route]
    _settlements: Settlements
    valued: dict[Endpoint, None] = field(default_factory=dict)
    """Last-value queues."""
    below: int = 0
    """Ids below this are trimmed, or are about to be: no replay may put them on an endpoint again."""
    topic_pieces: deque[range] = field(default_factory=lambda: deque(maxlen=MOST_TOPIC_PIECES))
    """The id ranges of the newest pieces that retention rules took out of the log, or are about to take out."""
    topic_pieces_made: int = 0
    _next_id: int = 0
    """The log's ``next_id`` when the newest piece was made."""
    _came: int = 0
    """How many ids came during the commit of the last piece."""

    def __post_init__(self) -> None:
        self._log = self._history.log

    @property
    def _first_id(self) -> int:
        """The first id that stays once all pending pieces are committed."""
        return max(self._log.first_id, self.below)

    @property
    def usage(self) -> float:
        """How much of its quota the log uses, 0 to 1 and above; 0 without a quota."""
        quota = self._policy.quota_bytes
        return self._log.size_bytes / quota if quota else 0.0

    @property
    def possible_below(self) -> int:
        """Ids below this may be trimmed: they are committed, and archived where ``keep_until_archived`` is on."""
        log = self._log
        below = min(log.next_id, log.archived_id + 1) if self._policy.keep_until_archived else log.next_id
        return min(below, self._indexed_below(below))

    def _indexed_below(self, below: int) -> int:
        """``below``, or a lower id from which on a last-value queue has not indexed its values yet."""
        needed = [endpoint.values.needed_from for endpoint in self.valued if endpoint.values is not None]
        return min([below, *[first for first in needed if first is not None]])

    @property
    def possible_of_topics(self) -> int:
        """
        Retention rules may take out ids below this. If the log has an archive, only archived ids may leave: an archive
        with messages missing in between would give its readers less than was published, and they could not know.
        """
        return min(self.possible_below, self._history.archived_below)

    def room_below(self, usage: float) -> int:
        """The id below which to trim so that the log uses this share of its quota, by the average size of messages."""
        log = self._log
        first = self._first_id
        share = 1 - usage * self._policy.quota_bytes / log.size_bytes if log.size_bytes else 0.0
        return first + max(ceil(share * (log.next_id - first)), 1)

    def lacks_room(self, size_bytes: int) -> bool:
        """Whether ``size_bytes`` more would take the log over its quota."""
        quota = self._policy.quota_bytes
        return bool(quota) and self._log.size_bytes + size_bytes > quota

    def may_make_room(self, size_bytes: int) -> bool:
        """
        Whether trimming may make room for a message of this size without an administrator: a piece is being committed,
        or there are messages that may be trimmed now or once they are committed.
        """
        log, policy = self._log, self._policy
        first = self._first_id
        end = log.archived_id + 1 if policy.keep_until_archived else self._log.unused_id
        return size_bytes <= policy.quota_bytes and (self.below > log.first_id or first < end)

    def log_full(self, size_bytes: int) -> LogFull:
        """The refusal of a message of this size, for which the log has no room now."""
        log, policy = self._log, self._policy
        keeps = policy.keep_until_archived and log.archived_id < log.next_id - 1
        return LogFull(
            "the replay log is at its quota, and keeps messages that are not archived: archive them or raise "
            "the quota"
            if keeps
            else "the replay log is at its quota; trim it or raise the quota",
            size_bytes,
            is_passing=self.may_make_room(size_bytes),
            is_too_large=size_bytes > policy.quota_bytes,
        )

    @property
    def is_possible(self) -> bool:
        """Whether any message could be trimmed now."""
        return self._first_id < self.possible_below

    def next_piece(self, before_id: int) -> TrimLog | None:
        """
        The next piece of a trim of all ids below ``before_id``; None when that is done, or when the next messages may
        not be trimmed. Only committed messages are trimmed. The caller calls ``trimmed`` once the piece is committed.
        """
        first = self._first_id
        stop = min(before_id, self.possible_below, first + self._piece_ids())
        # Until its transaction ends, it is not known whether the endpoint needs a message.
        stop = self._settlements.oldest_pending(stop)
        if stop <= first:
            return None
        self.below = stop
        self._next_id = self._log.next_id
        endpoints = self._endpoints.values()
        references = held_references(endpoints, range(first, stop))
        held = held_runs(self._routes, endpoints, first, stop - 1)
        return TrimLog(
            first,
            stop,
            held,
            references,
            counts_topics=bool(self._retention.rules),
            has_kept=self._has_kept,
        )

    def settled_part(self, ids: Sequence[int]) -> Sequence[int]:
        """Those of rising ids that may be trimmed now: all before the first that a transaction is about to settle."""
        first = bisect_left(ids, self._first_id)
        ids = ids[first : bisect_left(ids, self.possible_of_topics)]
        return ids[: bisect_left(ids, self._settlements.oldest_pending(ids[-1] + 1))] if ids else ids

    def next_of_topics(self, kept: KeptTopics, ids: Sequence[int]) -> TrimTopics:
        """
        The next piece that a retention rule takes out of the log. The caller calls ``topics_trimmed`` once it is
        committed.

        Args:
            ids: All messages of the rule's topics in the log up to the last of them; at least one. ``settled_part``
                returns them all.
        """
        first, stop = ids[0], ids[-1] + 1
        kept.cleared_below = stop
        self._retention.takes_out(kept.key, stop)
        self.topic_pieces.append(range(first, stop))
        self.topic_pieces_made += 1
        endpoints = self._endpoints.values()
        held = [
            run
            for run in held_runs(self._routes, endpoints, first, stop - 1)
            if bisect_left(ids, run.first) < bisect_right(ids, run.last)
        ]
        references = held_references(endpoints, ids)
        return TrimTopics(
            first,
            stop,
            held,
            references,
            counts_topics=True,
            has_kept=self._has_kept,
            ids=ids,
            rule=kept.key,
        )

    @property
    def _has_kept(self) -> bool:
        """Whether there are delayed messages, or values of last-value queues. Only the store knows which these are."""
        return bool(self.valued) or any(
            endpoint.backlog.delayed.messages for endpoint in self._endpoints.values()
        )

    def topics_trimmed(self, effect: TrimTopics) -> None:
        """A piece that a retention rule takes out is committed."""
        self._log.size_bytes -= effect.freed_bytes
        self._retention.taken_or_not()
        if effect.newest_ms:
            # As with the log itself, other messages of that millisecond may have stayed.
            self._retention.took_out(effect.rule, effect.stop, effect.newest_ms + 1, effect.freed)

    def topics_not_trimmed(self, kept: KeptTopics, effect: TrimTopics) -> None:
        """The commit failed: these messages are to be tried again."""
        kept.cleared_below = effect.first
        self._retention.taken_or_not()
        self._not_held(effect)

    def _piece_ids(self) -> int:
        """The most ids of the next piece."""
        if self.usage > URGENT:
            return MOST_TRIM_IDS
        return min(max(TRIM_PACE * self._came, TRIM_IDS), MOST_TRIM_IDS)

    def replay_positions(self) -> list[Effect]:
        """Effects that save how far replays have read; they must be durable before the log is trimmed."""
        return [
            endpoint.replay_definition()
            for endpoint in self._endpoints.values()
            if endpoint.replay is not None and endpoint.replay.is_reading
        ]

    @property
    def waits(self) -> bool:
        """Whether trimming waits for a transaction or a last-value queue's index, and is to be tried again soon."""
        first = self._first_id
        next_id = self._log.next_id
        return self._settlements.oldest_pending(first + 1) <= first or (
            first < next_id and self._indexed_below(next_id) <= first
        )

    def trimmed(self, effect: TrimLog) -> None:
        """A piece of a trim is committed."""
        log = self._log
        self._came = log.next_id - self._next_id
        log.first_id = max(log.first_id, effect.stop)
        log.size_bytes -= effect.freed_bytes
        if effect.newest_ms:
            # Other messages of that millisecond may have stayed: nothing is missing from the next one on.
            log.floor_ms = max(log.floor_ms, effect.newest_ms + 1)
        passed_ms = self._retention.log_trimmed(effect.stop, effect.freed)
        log.floor_ms = max(log.floor_ms, passed_ms)

    def not_trimmed(self, effect: TrimLog) -> None:
        """The commit failed: these ids are to be tried again from the beginning of the log."""
        self.below = effect.first
        self._not_held(effect)

    def _not_held(self, effect: TrimLog) -> None:
        for endpoint in self._endpoints.values():
            endpoint.backlog.put.not_kept(
                i for cursor, i in effect.references if cursor == endpoint.cursor_number
            )

    def check(self, before_id: int) -> None:
        """
        Check that an administrator may trim all messages below an id.

        Raises:
            Refused: PRECONDITION_FAILED, some are not archived, and ``keep_until_archived`` is on.
        """
        log = self._log
        if self._policy.keep_until_archived and before_id > max(log.archived_id + 1, log.first_id):
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                "the log keeps messages that are not archived, and is archived up to message "
                f"{log.archived_id}: trim to message {log.archived_id + 1} at most, run `rewind archive`, or "
                "turn keep_until_archived off",
            )

    def report_archived(self, last_id: int, generation: int) -> SaveArchived | None:
        """
        The archiver reports that an archive holds the log up to an id. Return the effect, or None if that was known.
        The caller calls ``archive_saved`` once it is committed.

        Raises:
            Refused: LOG_MODIFIED, the archive is of another log; PRECONDITION_FAILED, the log has no such id.
        """
        log = self._log
        if generation != log.generation:
            raise Refused(
                ErrorCode.LOG_MODIFIED,
                f"the archive is of generation {generation} of the log, and this log has generation "
                f"{log.generation}",
            )
        if last_id >= log.next_id:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"the log ends at message {log.newest_id}: it cannot be archived up to {last_id}",
            )
        return SaveArchived(last_id) if last_id > log.archived_id else None

    def archive_saved(self, effect: SaveArchived) -> None:
        """Allow trimming up to the archived id."""
        self._log.archived_id = max(self._log.archived_id, effect.last_id)


def held_runs(routes: Iterable[Route], endpoints: Iterable[Endpoint], first: int, last: int) -> list[HeldRun]:
    """The messages from ``first`` to ``last`` that endpoints need by routes; each is in one run at most."""
    needing = {endpoint for endpoint in endpoints if endpoint.backlog.needs_before(last)}
    if not needing:
        return []
    found: list[HeldRun] = []
    for route in routes:
        if route.newest_id >= first:
            members = [endpoint for endpoint in route.endpoints if endpoint in needing]
            if members:
                found += _runs_of(route, members, first, last)
    return found


def _runs_of(route: Route, endpoints: Iterable[Endpoint], first: int, last: int) -> list[HeldRun]:
    """The runs of one route's messages, with the number of these endpoints that need them."""
    changes: dict[int, int] = {}
    for endpoint in endpoints:
        for start, end in endpoint.backlog.needed(route, first, last):
            changes[start] = changes.get(start, 0) + 1
            changes[end + 1] = changes.get(end + 1, 0) - 1
    found: list[HeldRun] = []
    count, since = 0, first
    for at in sorted(changes):
        if count and at > since:
            found += [HeldRun(number, since, at - 1, count) for number in route.numbers]
        count += changes[at]
        since = at
    return found


def held_references(endpoints: Iterable[Endpoint], ids: Sequence[int]) -> list[tuple[int, int]]:
    """
    (cursor, message) of each message that leaves the log while an endpoint needs it, though no route leads to it. From
    now on the endpoint has it by a reference.
    """
    return [
        (endpoint.cursor_number, message_id)
        for endpoint in endpoints
        for message_id in endpoint.backlog.put.keep_by_reference(ids)
    ]
