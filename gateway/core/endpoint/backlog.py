"""
The backlog of an endpoint: its unsettled messages, with their count and size.

A message is on an endpoint in one of three ways. (1) It is a routed message: its route leads to the endpoint, and the
endpoint's cursor has not passed it. (2) A replay has put it there from the log, and the replay's own cursor has not
passed it. (3) There is a reference to it: it is a copy that an administrator made, a replayed message that the log or
the replay has dropped, or a delayed message that is due. ``PutMessages`` has (2) and (3).

Delayed messages, and returned messages that wait for redelivery, are only in the store, in the order of their times.
``DelayedMessages`` knows how many there are and when the next one is due. They count against the quota, but are part of
the backlog only after their release.

An endpoint that is asleep (no consumer, no quota) does not count each publication: its backlog is the count of its
cursor plus the counts of its routes since. Invariant: each effect made here brings the store's counts to the counts
here, as of the last committed id. So a start counts only the messages after that id.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from amqp_ext.message.fields import DEFAULT
from gateway.core.effects import (
    AddReferences,
    DelayedMessage,
    DropCursor,
    Effect,
    MoveCursor,
    OpenCursor,
    SettleInTransaction,
    settled_firsts,
)
from gateway.core.endpoint.cursor import Cursor
from gateway.core.model import ID, ROUTE, WHOLE, Row


class RoutedMessages:
    """
    The messages of one route, as its endpoints see them. ``gateway.core.router.Route`` knows the endpoints.

    Attributes:
        numbers: The route numbers of its messages in the store, that of new messages first; several if routes were
            merged when an endpoint was deleted.
        priority: The priority of its messages, if one of its endpoints delivers by priority.
        messages: How many were committed since the route was loaded or made.
        size_bytes: The size of their content.
        newest_id: The newest id of its committed messages; 0 when there are none.
    """

    __slots__ = ("messages", "newest_id", "numbers", "priority", "size_bytes")

    def __init__(self, number: int, priority: int | None, newest_id: int = 0) -> None:
        self.numbers = [number]
        self.priority = priority
        self.messages = 0
        self.size_bytes = 0
        self.newest_id = newest_id

    def endpoints_changed(self) -> None:
        """One of its endpoints has woken up or fallen asleep."""


@dataclass(slots=True, eq=False)
class PutMessages:
    """The messages of an endpoint's ``Backlog`` that a replay has put there, or that have a reference."""

    _cursor_number: int
    """The number of the endpoint's cursor, which identifies its references in the store."""
    _part: int
    """The first part of that cursor; effects that only concern references name it."""
    messages: int = 0
    """How many such messages there are."""
    size_bytes: int = 0
    """The size of their content."""
    replayed: Cursor | None = None
    """The cursor of the replay that puts messages here. Its ``open`` ids are the replayed messages that are not
    settled."""
    replay_cursor_number: int = 0
    archived: set[int] = field(default_factory=set)
    """The replayed messages that only the log's archive has: the store does not have them."""
    references: set[int] = field(default_factory=set)
    live: dict[int, int] = field(default_factory=dict)
    """While a replay runs: the sizes of delayed messages that were published since it began, and were due. They are
    among ``references``, and stay if the replay fails."""
    waiting: deque[int] = field(default_factory=deque)
    """Replayed messages that a replay put before a restart and that have references since, rising. Each becomes ready
    once the routed messages before it are."""
    _orphans: set[int] = field(default_factory=set)
    """References of a failed replay that a transaction is about to settle."""
    coming: set[int] = field(default_factory=set)
    """Messages whose new references are being committed."""
    _replayed_done: list[int] = field(default_factory=list)
    """Messages that the replay's cursor has passed, not yet written to the store."""
    _archived_done: int = 0
    """How many such messages only the archive has."""

    def reset(self, cursor_number: int) -> None:
        """Forget all: the endpoint was emptied and has a new cursor."""
        self._cursor_number = cursor_number
        self.replayed = None
        self.replay_cursor_number = 0
        self.archived.clear()
        self.references.clear()
        self.live.clear()
        self._orphans.clear()
        self.messages = self.size_bytes = 0

    def has_all(self, ids: list[int]) -> bool:
        """Whether a replay has put all of these here, with no other replayed message between them."""
        return self.replayed is not None and self.replayed.has_all(ids)

    def settle(
        self, ids: list[int], size_bytes: int, attempts: Sequence[int], *, is_run: bool = False
    ) -> list[Effect]:
        """
        Settle messages (rising ids) that a replay or references put here.

        Args:
            attempts: The ids with failed deliveries.
            is_run: ``has_all`` is true for them.
        """
        self.messages -= len(ids)
        self.size_bytes -= size_bytes
        references = [i for i in ids if i in self.references] if self.references else []
        self.references.difference_update(references)
        effects: list[Effect] = []
        if references or attempts:
            effects.append(self.drop_references(references, attempts))
        if self.replayed is not None:
            replayed = (
                ids if is_run or self.replayed.has_all(ids) else [i for i in ids if self.is_replayed(i)]
            )
            for i in references:
                if self.live.pop(i, None) is None and not self.is_replayed(i):
                    # A replay put it before a restart. A replay from the archive reads again from the cursor on, and
                    # would read it again.
                    self.replayed.add(i, i)
            if replayed:
                self.replayed.settle(replayed, is_run=is_run)
                self._replayed_done = [i for i in replayed if i not in references] if references else replayed
                self._pass_archived()
        return effects

    def _pass_archived(self) -> None:
        if self.archived:
            stored = [i for i in self._replayed_done if i not in self.archived]
            self._archived_done = len(self._replayed_done) - len(stored)
            self.archived.difference_update(self._replayed_done)
            self._replayed_done = stored

    @property
    def ids(self) -> list[int]:
        """All ids that the replay or references put here, rising."""
        return sorted(self.references if self.replayed is None else {*self.references, *self.replayed.open})

    def drop_references(self, ids: Sequence[int], attempts: Sequence[int] = ()) -> MoveCursor:
        """The effect that deletes the references to these, and the failed deliveries of ``attempts``."""
        return MoveCursor(self._cursor_number, self._part, done=ids, attempts=attempts, references=ids)

    def acknowledged(self, count: int) -> MoveCursor:
        """The effect for ``count`` messages before live that were settled while a replay runs."""
        assert self.replayed is not None
        floor, ranges = self.replayed.change()
        done, self._replayed_done = self._replayed_done, []
        archived, self._archived_done = self._archived_done, 0
        return MoveCursor(
            self.replay_cursor_number, WHOLE, floor, ranges, messages=-count, done=done, archived=archived
        )

    def is_replayed(self, message_id: int) -> bool:
        """Whether the replay has put this message here and it is unsettled."""
        return self.replayed is not None and self.replayed.is_open(message_id)

    def among(self, ids: list[int]) -> set[int]:
        """Those of rising ids that a replay or references put here."""
        if not self.references:
            if self.replayed is None:
                return set()
            if self.replayed.has_all(ids):
                return set(ids)
        return {i for i in ids if self.has(i)}

    def has(self, message_id: int) -> bool:
        """Whether a replay or a reference put this message here; else it came by a route."""
        return message_id in self.references or self.is_replayed(message_id)

    # --- in transactions --------------------------------------------------------------------------------------------

    def settle_in_transaction(
        self, ids: Collection[int], acknowledged: int, attempts: Collection[int]
    ) -> list[Effect]:
        """The part of ``Backlog.settle_in_transaction`` for messages that were put here."""
        effects: list[Effect] = []
        if ids:
            references = sorted(i for i in ids if i in self.references)
            failed = [i for i in ids if i in attempts]
            effects.append(
                SettleInTransaction(
                    self._cursor_number, self._part, done=references, attempts=failed, references=references
                )
            )
        if self.replayed is not None and (ids or acknowledged):
            replayed = sorted(i for i in ids if self.is_replayed(i))
            ranges = dict(self.replayed.ranges_of(replayed)) if replayed else {}
            done = [i for i in replayed if i not in self.references and i not in self.archived]
            archived = sum(i in self.archived for i in replayed)
            effects.append(
                SettleInTransaction(
                    self.replay_cursor_number,
                    WHOLE,
                    ranges=ranges,
                    messages=-acknowledged,
                    done=done,
                    archived=archived,
                )
            )
        return effects

    def settled_by_transaction(self, sizes: Mapping[int, int], written: Iterable[Effect]) -> None:
        """
        A transaction has settled messages that a replay or a reference put here. Its effects have removed their
        references: a message gets no reference while a transaction is about to settle it.
        """
        self.messages -= len(sizes)
        self.size_bytes -= sum(sizes.values())
        self.references.difference_update(sizes)
        for i in self.live.keys() & sizes.keys():
            del self.live[i]
        self.archived.difference_update(sizes)
        replayed = sorted(i for i in sizes if self.is_replayed(i))
        if replayed:
            assert self.replayed is not None
            self.replayed.settled_elsewhere(
                replayed, settled_firsts(written, self.replay_cursor_number, WHOLE)
            )

    def orphans_settled(self, ids: Collection[int], *, is_committed: bool) -> list[Effect]:
        """A transaction has ended that was to settle references of a failed replay: these are deleted in any case."""
        orphans = sorted(self._orphans.intersection(ids))
        self._orphans.difference_update(orphans)
        return [self.drop_references(orphans)] if orphans and not is_committed else []

    # --- replays and references -------------------------------------------------------------------------------------

    def begin_replay(self, number: int, position: int) -> list[Effect]:
        """Begin a replay that puts messages of the log here, from ``position`` on."""
        self.replayed = Cursor(position - 1)
        self.replay_cursor_number = number
        self.waiting.clear()
        return [OpenCursor(number, (WHOLE,), position - 1)]

    def leave_to_routes(self, ids: Iterable[int]) -> list[Effect]:
        """The replay that has just begun does not put these messages (rising): they are here by their routes."""
        assert self.replayed is not None
        for i in ids:
            self.replayed.add(i, i)
        floor, ranges = self.replayed.change()
        return [MoveCursor(self.replay_cursor_number, WHOLE, floor, ranges)]

    def restore_replay(self, number: int, replayed: Cursor) -> None:
        """Take over the replay's cursor after a restart."""
        self.replayed = replayed
        self.replay_cursor_number = number

    def add(self, ids: Sequence[int], size_bytes: int, archived: Collection[int] = ()) -> None:
        """
        The replay puts these messages here, rising.

        Args:
            archived: Those that only the log's archive has.
        """
        assert self.replayed is not None
        self.archived.update(archived)
        self.replayed.load(ids)
        self.messages += len(ids)
        self.size_bytes += size_bytes

    def end_replay(self) -> list[Effect]:
        """The replay ends: each of its messages is settled, or has a reference."""
        number, self.replay_cursor_number = self.replay_cursor_number, 0
        self.replayed = None
        self.archived.clear()
        self.live.clear()
        return [DropCursor(number, 0, 0)] if number else []

    def keep(self) -> list[Effect]:
        """The replay ends at its position, and its messages stay. No transaction is about to settle any of them."""
        assert self.replayed is not None
        # This includes the messages that trimming gives references: these may not be written yet, and may fail.
        ids = list(self.replayed.open)
        self.references.update(ids)
        return [AddReferences(self._cursor_number, ids), *self.end_replay()]

    def drop(self, attempts: Collection[int], withdrawn: Collection[int]) -> tuple[list[int], list[Effect]]:
        """
        Drop the unsettled messages of the replay.

        Args:
            attempts: Ids with failed deliveries.
            withdrawn: Ids that transactions are about to settle. Their references stay until the transaction ends.

        Returns:
            The dropped ids, rising, and the effects.
        """
        assert self.replayed is not None
        put = self.references.difference(self.live)
        ids = sorted({*self.replayed.open, *put})
        self.waiting.clear()
        self.messages, self.size_bytes = len(self.live), sum(self.live.values())
        self._orphans = put.intersection(withdrawn)
        references = sorted(put - self._orphans)
        self.references.intersection_update(self.live)
        failed = [i for i in ids if i in attempts]
        effects: list[Effect] = []
        if references or failed:
            effects.append(self.drop_references(references, failed))
        return ids, [*effects, *self.end_replay()]

    def refer(self, ids: Collection[int], size_bytes: int) -> None:
        """These messages have references, and are on the endpoint from now on."""
        self.references.update(ids)
        self.messages += len(ids)
        self.size_bytes += size_bytes

    def take_waiting(self, below: int) -> list[int]:
        """Take the ids of ``waiting`` below an id, rising, without those settled meanwhile."""
        found: list[int] = []
        while self.waiting and self.waiting[0] < below:
            waited = self.waiting.popleft()
            if waited in self.references:
                found.append(waited)
        return found

    def keep_by_reference(self, ids: Sequence[int]) -> list[int]:
        """The log is about to drop these messages (rising, at least one): those that were put here get references."""
        first, stop = ids[0], ids[-1] + 1
        found = {i for i in self.references if first <= i < stop}
        if self.replayed is not None:
            put = self.replayed.open
            found.update(put[bisect_left(put, first) : bisect_left(put, stop)])
        coming = [i for i in self.coming if first <= i < stop]
        if len(ids) < stop - first:
            leaving = set(ids)
            found &= leaving
            coming = [i for i in coming if i in leaving]
        self.references.update(found)
        self.archived.difference_update(found)
        return sorted(found.union(coming))

    def not_kept(self, ids: Iterable[int]) -> None:
        """The log has not dropped these after all: replayed messages among them need no reference."""
        self.references.difference_update([i for i in ids if self.is_replayed(i)])


@dataclass(slots=True)
class DelayedMessages:
    """The counts of an endpoint's delayed messages. Only the store knows which messages these are."""

    messages: int = 0
    size_bytes: int = 0
    next_ms: int | None = None
    """No delayed message is due before this time, in ms since the epoch; None without delayed messages."""
    retries: int = 0
    """How many of them were returned by a consumer, and wait for redelivery."""

    def add(self, due_ms: Collection[int], size_bytes: int, *, are_retries: bool = False) -> None:
        """Add delayed messages."""
        self.messages += len(due_ms)
        self.size_bytes += size_bytes
        self.retries += len(due_ms) if are_retries else 0
        self.note_next(min(due_ms))

    def note_next(self, due_ms: int) -> None:
        """A delayed message is due at this time."""
        self.next_ms = due_ms if self.next_ms is None else min(self.next_ms, due_ms)

    def remove(self, messages: Sequence[DelayedMessage]) -> None:
        """These messages were released or cancelled."""
        self.messages -= len(messages)
        self.size_bytes -= sum(message.counted_bytes for message in messages)
        self.retries -= sum(message.is_retry for message in messages)
        if not self.messages:
            self.next_ms = None


@dataclass(eq=False)
class Backlog:
    number: int
    """The endpoint's number."""
    cursor_number: int
    """The cursor's number in the store. An endpoint gets a new one when it is emptied."""
    parts: dict[int, Cursor]
    """The endpoint's cursor: one for ``WHOLE``, or one for each priority."""
    put: PutMessages = field(init=False)
    """The messages that did not come by routes."""
    delayed: DelayedMessages = field(default_factory=DelayedMessages)
    routes: dict[RoutedMessages, None] = field(default_factory=dict)
    """The routes that lead to the endpoint."""
    is_awake: bool = False
    """Whether the backlog itself counts each message of its routes, because there is a consumer or a quota."""
    emptied_up_to: int = 0
    """The endpoint was emptied up to this id."""
    _dropped_on_way: int = 0
    _reserved_messages: int = 0
    _reserved_bytes: int = 0

    def __post_init__(self) -> None:
        self.put = PutMessages(self.cursor_number, next(iter(self.parts)))

    # --- how much it is ---------------------------------------------------------------------------------------------

    @property
    def messages(self) -> int:
        """How many messages are durably on the endpoint, unsettled deliveries included."""
        return self.put.messages + sum(self._counts(part)[0] for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """The size of their content."""
        return self.put.size_bytes + sum(self._counts(part)[1] for part in self.parts)

    def room_for(self, contents: Sequence[bytes], quota_messages: int, quota_bytes: int) -> int:
        """How many of ``contents``, from the first on, fit the quotas (0: no limit), given what is reserved."""
        room = len(contents)
        if quota_messages:
            taken = self.messages + self.delayed.messages + self._reserved_messages
            room = min(room, max(quota_messages - taken, 0))
        if quota_bytes:
            left = quota_bytes - self.size_bytes - self.delayed.size_bytes - self._reserved_bytes
            for count, content in enumerate(contents[:room]):
                left -= len(content)
                if left < 0:
                    return count
        return room

    def reserve(self, messages: int, size_bytes: int) -> None:
        """Reserve room for messages to be committed. Negative: a reservation ends, or messages are to be settled."""
        self._reserved_messages += messages
        self._reserved_bytes += size_bytes

    def _counts(self, part: int) -> tuple[int, int]:
        cursor = self.parts[part]
        messages, size = cursor.messages, cursor.size_bytes
        if not self.is_awake:
            for route in self.routes_of(part):
                messages += route.messages
                size += route.size_bytes
        return messages, size

    def resize(self, part: int | None, size_bytes: int, *, is_saved: bool) -> None:
        """
        The content of a message on the endpoint has grown by ``size_bytes``.

        Args:
            part: The part of the cursor that the message is in; None where a replay or a reference put it here.
            is_saved: Whether the store's count includes the change.
        """
        if part is None:
            self.put.size_bytes += size_bytes
            return
        self.parts[part].count(0, size_bytes)
        self.parts[part].saved_bytes += size_bytes if is_saved else 0

    # --- routes -----------------------------------------------------------------------------------------------------

    def part_of(self, route: RoutedMessages) -> int:
        """The part of the cursor that messages of a route are in."""
        if WHOLE in self.parts:
            return WHOLE
        return DEFAULT if route.priority is None else route.priority

    def routes_of(self, part: int) -> Collection[RoutedMessages]:
        """The routes whose messages are in a part."""
        if part == WHOLE:
            return self.routes
        return [route for route in self.routes if self.part_of(route) == part]

    def route_numbers(self, part: int) -> list[int]:
        """The route numbers of a part's messages in the store, rising."""
        return sorted(number for route in self.routes_of(part) for number in route.numbers)

    def newest_id(self, part: int) -> int:
        """The newest id of the part's routes; 0 when there are no messages."""
        return max((route.newest_id for route in self.routes_of(part)), default=0)

    def add_route(self, route: RoutedMessages) -> None:
        """A new route leads to the endpoint."""
        self.routes[route] = None

    def remove_route(self, route: RoutedMessages) -> None:
        """The route was merged into another one, which has its counts."""
        del self.routes[route]

    def retire_route(self, route: RoutedMessages) -> None:
        """Remove a route whose messages are all settled here, and that gets no more."""
        if not self.is_awake:
            self.parts[self.part_of(route)].count(route.messages, route.size_bytes)
        del self.routes[route]

    def is_done_with(self, route: RoutedMessages) -> bool:
        """Whether every message of a route is settled on this endpoint."""
        return route.newest_id <= self.parts[self.part_of(route)].floor

    def wake(self, is_awake: bool) -> bool:
        """Count each message from now on, or leave that to the routes. Return whether this is a change."""
        if is_awake == self.is_awake:
            return False
        sign = 1 if is_awake else -1
        for route in self.routes:
            self.parts[self.part_of(route)].count(sign * route.messages, sign * route.size_bytes)
        self.is_awake = is_awake
        for route in self.routes:
            route.endpoints_changed()
        return True

    def published(self, route: RoutedMessages, messages: int, size_bytes: int) -> None:
        """Count durable messages of a route; called only while the backlog is awake."""
        self.parts[self.part_of(route)].count(messages, size_bytes)

    # --- what is written --------------------------------------------------------------------------------------------

    def open_effects(self, floor: int) -> list[Effect]:
        """The effects of a new cursor that begins at ``floor``."""
        return [OpenCursor(self.cursor_number, tuple(self.parts), floor)]

    def drop_on_way(self, count: int) -> None:
        """Count messages that were published before the endpoint was emptied and committed later: they are dropped."""
        self._dropped_on_way += count

    def take_dropped_on_way(self) -> int:
        """How many messages ``drop_on_way`` has counted since the last call."""
        count, self._dropped_on_way = self._dropped_on_way, 0
        return count

    def drop_effects(self, up_to: int) -> list[Effect]:
        """The effects that drop everything up to an id."""
        effects: list[Effect] = [DropCursor(self.cursor_number, self.number, up_to)]
        if self.put.replay_cursor_number:
            effects.append(DropCursor(self.put.replay_cursor_number, 0, 0))
        return effects

    def count_effects(self, newest_id: int) -> list[Effect]:
        """The effects that bring the store's counts up to ``newest_id``, the last committed id; empty if not needed."""
        effects: list[Effect] = []
        for part, cursor in self.parts.items():
            if self._counts(part) != (cursor.saved_messages, cursor.saved_bytes):
                effects.append(self._move(part, newest_id))
        return effects

    def _move(
        self,
        part: int,
        newest_id: int,
        done: Sequence[int] = (),
        attempts: Sequence[int] = (),
    ) -> MoveCursor:
        cursor = self.parts[part]
        floor, ranges = cursor.change()
        messages, size = cursor.saves(*self._counts(part))
        return MoveCursor(self.cursor_number, part, floor, ranges, newest_id, messages, size, done, attempts)

    # --- messages go ------------------------------------------------------------------------------------------------

    def settle(
        self, part: int, ids: list[int], size_bytes: int, newest_id: int, attempts: Sequence[int]
    ) -> MoveCursor:
        """
        Settle messages that came by routes (rising ids, in ``open``).

        Args:
            attempts: The ids with failed deliveries.
        """
        cursor = self.parts[part]
        cursor.settle(ids)
        cursor.count(-len(ids), -size_bytes)
        return self._move(part, newest_id, ids, attempts)

    def settle_all(
        self,
        routed: Mapping[int, list[int]],
        put: Collection[int],
        sizes: Mapping[int, int],
        newest_id: int,
        failed: Collection[int],
    ) -> list[Effect]:
        """
        Settle messages that came in several ways.

        Args:
            routed: Ids that came by routes, by part, rising.
            put: Ids that a replay or references put here.
            sizes: Content sizes by id.
            failed: Ids with failed deliveries.
        """
        effects: list[Effect] = [
            self.settle(part, ids, sum(sizes[i] for i in ids), newest_id, [i for i in ids if i in failed])
            for part, ids in routed.items()
        ]
        if put:
            ids = sorted(put)
            effects += self.put.settle(ids, sum(sizes[i] for i in ids), [i for i in ids if i in failed])
        return effects

    def open_among(self, routed: Mapping[int, list[int]]) -> dict[int, list[int]]:
        """Those of rising ids, by part, that are still unsettled; parts without any are left out."""
        found = {part: [i for i in ids if self.parts[part].is_open(i)] for part, ids in routed.items()}
        return {part: ids for part, ids in found.items() if ids}

    def has(self, row: Row) -> bool:
        """Whether a message of the store is on the endpoint."""
        message_id, number = row[ID], row[ROUTE]
        if self.put.has(message_id):
            return True
        return any(
            number in route.numbers and not self.parts[self.part_of(route)].is_done(message_id)
            for route in self.routes
        )

    # --- in transactions --------------------------------------------------------------------------------------------

    def settle_in_transaction(
        self,
        by_part: Mapping[int, list[int]],
        sizes: Mapping[int, int],
        put: Collection[int],
        acknowledged: int,
        newest_id: int,
        attempts: Collection[int],
    ) -> list[Effect]:
        """
        The effects by which a transaction settles messages if it is committed.

        Args:
            by_part: Ids that came by routes, by part, rising.
            sizes: Content sizes of all of them by id.
            put: Ids that a replay or a reference put here.
            acknowledged: How many of all are before live, while a replay runs.
        """
        effects: list[Effect] = []
        for part, ids in by_part.items():
            cursor = self.parts[part]
            # The transaction lowers the counts, so the store must have counted these messages before.
            effects.append(self._move(part, newest_id))
            effects.append(
                SettleInTransaction(
                    self.cursor_number,
                    part,
                    ranges=dict(cursor.ranges_of(ids)),
                    messages=-len(ids),
                    size_bytes=-sum(sizes[i] for i in ids),
                    done=ids,
                    attempts=[i for i in ids if i in attempts],
                )
            )
        return effects + self.put.settle_in_transaction(put, acknowledged, attempts)

    def settled_by_transaction(
        self, by_part: Mapping[int, list[int]], sizes: Mapping[int, int], written: Iterable[Effect]
    ) -> None:
        """
        A transaction has settled messages that came by routes.

        Args:
            written: The effects of ``settle_in_transaction``, which are durable.
        """
        for part, ids in by_part.items():
            cursor = self.parts[part]
            cursor.settled_elsewhere(ids, settled_firsts(written, self.cursor_number, part))
            size = sum(sizes[i] for i in ids)
            cursor.count(-len(ids), -size)
            cursor.saved_messages -= len(ids)
            cursor.saved_bytes -= size

    def needs_before(self, message_id: int) -> bool:
        """Whether a routed message up to this id may be unsettled."""
        return any(cursor.floor < message_id for cursor in self.parts.values())

    def needed(self, route: RoutedMessages, first: int, last: int) -> Iterator[tuple[int, int]]:
        """(first, last) of the unsettled ids of a route from ``first`` to ``last``."""
        return self.parts[self.part_of(route)].gaps(first, last)

    def reset(self, cursor_number: int, floor: int) -> None:
        """Drop everything: the endpoint continues with a new cursor."""
        self.cursor_number = cursor_number
        self.emptied_up_to = floor
        self.parts = {part: Cursor(floor) for part in self.parts}
        if not self.is_awake:
            for route in self.routes:
                self.parts[self.part_of(route)].count(-route.messages, -route.size_bytes)
        self.put.reset(cursor_number)
        self.delayed = DelayedMessages()
