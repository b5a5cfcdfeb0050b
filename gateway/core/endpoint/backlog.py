"""
The backlog of an endpoint: its unsettled messages, with their count and size.

A message is on an endpoint in one of three ways. Its route leads to the endpoint, and the endpoint's cursor has not
passed it. Or a replay has put it there, out of the log, and the replay's own cursor has not passed it. Or there is a
reference to it: a copy that an administrator made, what a replay had put before the log or the replay dropped it, or a
message that waited here for its time. ``PutMessages`` has the last two.

Messages whose time has not come, and those that are to be tried again later, wait in the store, in the order of their
times; ``DelayedMessages`` knows how many, and when the next one is due. They are no part of the backlog until they are
released, but for its quota.

Nobody adds up counts for each publication: the backlog of an endpoint that is asleep (no consumer, no quota) is what
its cursor counted, and what its routes counted since. Invariant: each effect that is made here brings the store's
counts to what they are here, as of the last committed id, so that a start counts what came after and nothing else.
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
    The messages of one route, as the endpoints of that route see them. ``gateway.core.router.Route`` knows the
    endpoints.

    Attributes:
        numbers: What messages of it name in the store, the one of new messages first; several where endpoints that told
            them apart are gone.
        priority: Of its messages, where one of its endpoints delivers by priority.
        messages: Committed since the route is in memory.
        size_bytes: Their content.
        newest_id: Of its committed messages; 0 when there are none.
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
    """A part of an endpoint's ``Backlog``."""

    _cursor_number: int
    """The endpoint's cursor, by which the store knows references."""
    _part: int
    """Of that cursor, the first; effects that are about references alone name it."""
    messages: int = 0
    """How many there are."""
    size_bytes: int = 0
    """Their content."""
    replayed: Cursor | None = None
    """The cursor of the replay that puts messages here; its open ones are those that lie here."""
    replay_cursor_number: int = 0
    archived: set[int] = field(default_factory=set)
    """What the replay has put that the log's archive alone has: the store holds nothing of it."""
    references: set[int] = field(default_factory=set)
    waiting: deque[int] = field(default_factory=deque)
    """Put before a stop, rising, with references that lead to them since: ready, in their places, once what came by
    routes before them is."""
    _orphans: set[int] = field(default_factory=set)
    """References that a failed replay has left, which a transaction is about to settle."""
    coming: set[int] = field(default_factory=set)
    """References to these are being committed."""
    _replayed_done: list[int] = field(default_factory=list)
    """Settled by the replay's cursor, and not told yet."""
    _archived_done: int = 0
    """The same of those that the archive alone has."""

    def reset(self, cursor_number: int) -> None:
        """They are dropped with everything on the endpoint, which has another cursor."""
        self._cursor_number = cursor_number
        self.replayed = None
        self.replay_cursor_number = 0
        self.archived.clear()
        self.references.clear()
        self._orphans.clear()
        self.messages = self.size_bytes = 0

    def has_all(self, ids: list[int]) -> bool:
        """Whether a replay has put all of these, one after the other."""
        return self.replayed is not None and self.replayed.has_all(ids)

    def settle(
        self, ids: list[int], size_bytes: int, attempts: Sequence[int], *, is_run: bool = False
    ) -> list[Effect]:
        """
        Messages that a replay or references have here (rising ids) are consumed for good.

        Args:
            attempts: Those of them whose deliveries failed before.
            is_run: ``has_all`` said so of all.
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
                if not self.is_replayed(i):
                    # Put before a restart: what the archive has is read again from the cursor on, and this is in it.
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
        """What is here by the replay and by references, rising."""
        return sorted(self.references if self.replayed is None else {*self.references, *self.replayed.open})

    def drop_references(self, ids: Sequence[int], attempts: Sequence[int] = ()) -> MoveCursor:
        """No reference is to lead to these, and no failed deliveries are to be on record of some."""
        return MoveCursor(self._cursor_number, self._part, done=ids, attempts=attempts, references=ids)

    def acknowledged(self, count: int) -> MoveCursor:
        """So many messages before live were acknowledged while a replay was under way."""
        assert self.replayed is not None
        floor, ranges = self.replayed.change()
        done, self._replayed_done = self._replayed_done, []
        archived, self._archived_done = self._archived_done, 0
        return MoveCursor(
            self.replay_cursor_number, WHOLE, floor, ranges, messages=-count, done=done, archived=archived
        )

    def is_replayed(self, message_id: int) -> bool:
        """Whether the replay has put this one here, and it was not settled."""
        return self.replayed is not None and self.replayed.is_open(message_id)

    def among(self, ids: list[int]) -> set[int]:
        """Those of rising ids that a replay or references have here."""
        if not self.references:
            if self.replayed is None:
                return set()
            if self.replayed.has_all(ids):
                return set(ids)
        return {i for i in ids if self.has(i)}

    def has(self, message_id: int) -> bool:
        """Whether this one was put here, as far as that is known; else it came by a route."""
        return message_id in self.references or self.is_replayed(message_id)

    # --- in transactions --------------------------------------------------------------------------------------------

    def settle_in_transaction(
        self, ids: Collection[int], acknowledged: int, attempts: Collection[int]
    ) -> list[Effect]:
        """See ``Backlog.settle_in_transaction``, of which this is what was put here."""
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

    def settled_by_transaction(self, sizes: Mapping[int, int], written: Iterable[Effect]) -> list[Effect]:
        """
        Those that a replay or a reference had here are gone.

        Returns:
            What removes those that are newer than the transaction.
        """
        self.messages -= len(sizes)
        self.size_bytes -= sum(sizes.values())
        referenced = {i for e in written if isinstance(e, MoveCursor) for i in e.references}
        newer = [i for i in sorted(sizes) if i in self.references and i not in referenced]
        self.references.difference_update(sizes)
        self.archived.difference_update(sizes)
        replayed = sorted(i for i in sizes if self.is_replayed(i))
        if replayed:
            assert self.replayed is not None
            self.replayed.settled_elsewhere(
                replayed, settled_firsts(written, self.replay_cursor_number, WHOLE)
            )
        return [self.drop_references(newer)] if newer else []

    def orphans_settled(self, ids: Collection[int], *, is_committed: bool) -> list[Effect]:
        """A transaction is over that was to settle what a failed replay had left: either way nothing of it is here."""
        orphans = sorted(self._orphans.intersection(ids))
        self._orphans.difference_update(orphans)
        return [self.drop_references(orphans)] if orphans and not is_committed else []

    # --- replays and references -------------------------------------------------------------------------------------

    def begin_replay(self, number: int, position: int) -> list[Effect]:
        """A replay is to put messages of the log here, from ``position`` on."""
        self.replayed = Cursor(position - 1)
        self.replay_cursor_number = number
        self.waiting.clear()
        return [OpenCursor(number, (WHOLE,), position - 1)]

    def leave_to_routes(self, ids: Iterable[int]) -> list[Effect]:
        """The replay that has just begun does not put these (rising): they lie here by their routes."""
        assert self.replayed is not None
        for i in ids:
            self.replayed.add(i, i)
        floor, ranges = self.replayed.change()
        return [MoveCursor(self.replay_cursor_number, WHOLE, floor, ranges)]

    def restore_replay(self, number: int, replayed: Cursor) -> None:
        """A replay goes on after a restart."""
        self.replayed = replayed
        self.replay_cursor_number = number

    def add(self, ids: Sequence[int], size_bytes: int, archived: Collection[int] = ()) -> None:
        """
        The replay puts these here, rising.

        Args:
            archived: Those that the log's archive alone has.
        """
        assert self.replayed is not None
        self.archived.update(archived)
        self.replayed.load(ids)
        self.messages += len(ids)
        self.size_bytes += size_bytes

    def end_replay(self) -> list[Effect]:
        """All that the replay had put is settled, or has references."""
        number, self.replay_cursor_number = self.replay_cursor_number, 0
        self.replayed = None
        self.archived.clear()
        return [DropCursor(number, 0, 0)] if number else []

    def keep(self, withdrawn: Collection[int]) -> list[Effect]:
        """
        The replay ends where it is, and what it has put stays.

        Args:
            withdrawn: Ids that transactions are about to settle: a reference that one removes is not made again.
        """
        assert self.replayed is not None
        # With those that trimming has given references to: that may not be written yet, and may fail.
        ids = [i for i in self.replayed.open if not (i in withdrawn and i in self.references)]
        self.references.update(ids)
        return [AddReferences(self._cursor_number, ids), *self.end_replay()]

    def drop(self, attempts: Collection[int], withdrawn: Collection[int]) -> tuple[list[int], list[Effect]]:
        """
        What the replay has put and was not settled is not here any more.

        Args:
            attempts: Ids whose deliveries failed before.
            withdrawn: Ids that transactions are about to settle: what becomes of them is theirs to say.

        Returns:
            Their ids, rising, and the effects.
        """
        assert self.replayed is not None
        ids = sorted({*self.replayed.open, *self.references})
        self.waiting.clear()
        self.messages = self.size_bytes = 0
        self._orphans = self.references.intersection(withdrawn)
        references = sorted(self.references - self._orphans)
        self.references.clear()
        failed = [i for i in ids if i in attempts]
        effects: list[Effect] = []
        if references or failed:
            effects.append(self.drop_references(references, failed))
        return ids, [*effects, *self.end_replay()]

    def refer(self, ids: Collection[int], size_bytes: int) -> None:
        """References lead to these, which are on the endpoint from now on."""
        self.references.update(ids)
        self.messages += len(ids)
        self.size_bytes += size_bytes

    def take_waiting(self, below: int) -> list[int]:
        """Those of ``waiting`` below an id whose turn it is now, rising; what was settled meanwhile is left out."""
        found: list[int] = []
        while self.waiting and self.waiting[0] < below:
            waited = self.waiting.popleft()
            if waited in self.references:
                found.append(waited)
        return found

    def keep_by_reference(self, ids: Sequence[int]) -> list[int]:
        """What was put here of these (rising, not none), which the log is about to drop: references lead to it now."""
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
        """The log has not dropped these after all: what the replay had put needs no reference."""
        self.references.difference_update([i for i in ids if self.is_replayed(i)])


@dataclass(slots=True)
class DelayedMessages:
    """What waits on an endpoint for its time. Which messages these are only the store knows."""

    messages: int = 0
    size_bytes: int = 0
    next_ms: int | None = None
    """When the first of them is to be delivered, at the earliest, in ms since the epoch; None while there is none."""
    retries: int = 0
    """How many of them were given back by a consumer, and are to be tried again."""

    def add(self, due_ms: Collection[int], size_bytes: int, *, are_retries: bool = False) -> None:
        """These wait here from now on."""
        self.messages += len(due_ms)
        self.size_bytes += size_bytes
        self.retries += len(due_ms) if are_retries else 0
        self.note_next(min(due_ms))

    def note_next(self, due_ms: int) -> None:
        """One of them is to be delivered then."""
        self.next_ms = due_ms if self.next_ms is None else min(self.next_ms, due_ms)

    def remove(self, messages: Sequence[DelayedMessage]) -> None:
        """These are released, or cancelled."""
        self.messages -= len(messages)
        self.size_bytes -= sum(message.counted_bytes for message in messages)
        self.retries -= sum(message.is_retry for message in messages)
        if not self.messages:
            self.next_ms = None


@dataclass(eq=False)
class Backlog:
    number: int
    """The endpoint's."""
    cursor_number: int
    """What the store knows the cursor by; another one once everything was dropped."""
    parts: dict[int, Cursor]
    """The endpoint's cursor: one for ``WHOLE``, or one for each priority."""
    put: PutMessages = field(init=False)
    """What did not come by routes."""
    delayed: DelayedMessages = field(default_factory=DelayedMessages)
    routes: dict[RoutedMessages, None] = field(default_factory=dict)
    """Routes that lead here."""
    is_awake: bool = False
    """It counts each message of its routes itself: somebody consumes, or there is a quota."""
    emptied_up_to: int = 0
    """Everything up to this id was dropped as a whole."""
    _dropped_on_way: int = 0
    _reserved_messages: int = 0
    _reserved_bytes: int = 0

    def __post_init__(self) -> None:
        self.put = PutMessages(self.cursor_number, next(iter(self.parts)))

    # --- how much it is ---------------------------------------------------------------------------------------------

    @property
    def messages(self) -> int:
        """How many messages are on the endpoint, durably; those handed out and not settled among them."""
        return self.put.messages + sum(self._counts(part)[0] for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """Their content."""
        return self.put.size_bytes + sum(self._counts(part)[1] for part in self.parts)

    def room_for(self, contents: Sequence[bytes], quota_messages: int, quota_bytes: int) -> int:
        """How many of ``contents``, from the first on, fit quotas (0: no bound) beside what is about to come and go."""
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
        """So many messages are about to come; negative where they are about to go, or come to nothing."""
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
        The content of a message on the endpoint takes so many bytes more.

        Args:
            part: Of the cursor that it is in; None where it was put here.
            is_saved: The store counts it so.
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
        """What messages in a part name in the store, rising."""
        return sorted(number for route in self.routes_of(part) for number in route.numbers)

    def newest_id(self, part: int) -> int:
        """Of the messages that its routes led here; 0 when there are none."""
        return max((route.newest_id for route in self.routes_of(part)), default=0)

    def add_route(self, route: RoutedMessages) -> None:
        """A route leads here."""
        self.routes[route] = None

    def remove_route(self, route: RoutedMessages) -> None:
        """It is another one since, that counts what it had."""
        del self.routes[route]

    def retire_route(self, route: RoutedMessages) -> None:
        """Every message of a route is settled here, and no more comes by it."""
        if not self.is_awake:
            self.parts[self.part_of(route)].count(route.messages, route.size_bytes)
        del self.routes[route]

    def is_done_with(self, route: RoutedMessages) -> bool:
        """Whether every message of a route is settled here."""
        return route.newest_id <= self.parts[self.part_of(route)].floor

    def wake(self, is_awake: bool) -> bool:
        """Count each message from now on, or leave that to the routes; whether that is a change."""
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
        """Messages of a route are durable; called while the backlog is awake."""
        self.parts[self.part_of(route)].count(messages, size_bytes)

    # --- what is written --------------------------------------------------------------------------------------------

    def open_effects(self, floor: int) -> list[Effect]:
        """The cursor is new, and begins at ``floor``."""
        return [OpenCursor(self.cursor_number, tuple(self.parts), floor)]

    def drop_on_way(self, count: int) -> None:
        """So many messages were published before everything was dropped and are committed after it: they are dropped,
        too."""
        self._dropped_on_way += count

    def take_dropped_on_way(self) -> int:
        """How many messages ``drop_on_way`` has counted since this was called last."""
        count, self._dropped_on_way = self._dropped_on_way, 0
        return count

    def drop_effects(self, up_to: int) -> list[Effect]:
        """Everything up to an id is dropped."""
        effects: list[Effect] = [DropCursor(self.cursor_number, self.number, up_to)]
        if self.put.replay_cursor_number:
            effects.append(DropCursor(self.put.replay_cursor_number, 0, 0))
        return effects

    def count_effects(self, newest_id: int) -> list[Effect]:
        """Bring the store's counts up to ``newest_id``, the last committed one; nothing where they are right."""
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
        Messages that came by routes (rising ids, open) are consumed for good.

        Args:
            attempts: Those of them whose deliveries failed before.
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
        The same for messages that came in several ways.

        Args:
            routed: Rising ids that came by routes, by part.
            put: Ids that a replay or references have here.
            sizes: Content sizes by id.
            failed: Those whose deliveries failed before.
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
        """Those of rising ids, by part, that are unsettled still; parts without any are left out."""
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
        What a transaction writes for messages to be gone if it succeeds, and to stay if it does not.

        Args:
            by_part: Rising ids that came by routes.
            sizes: Content sizes of all of them by id.
            put: Those that a replay or a reference has here.
            acknowledged: How many of all are before live, while a replay is under way.
        """
        effects: list[Effect] = []
        for part, ids in by_part.items():
            cursor = self.parts[part]
            # Counts are changed by what goes; so the store has to have counted that it came.
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
        They are gone.

        Args:
            written: What ``settle_in_transaction`` said, and is durable.
        """
        for part, ids in by_part.items():
            cursor = self.parts[part]
            cursor.settled_elsewhere(ids, settled_firsts(written, self.cursor_number, part))
            size = sum(sizes[i] for i in ids)
            cursor.count(-len(ids), -size)
            cursor.saved_messages -= len(ids)
            cursor.saved_bytes -= size

    def needs_before(self, message_id: int) -> bool:
        """Whether a message up to an id may be unsettled that came by a route."""
        return any(cursor.floor < message_id for cursor in self.parts.values())

    def needed(self, route: RoutedMessages, first: int, last: int) -> Iterator[tuple[int, int]]:
        """(first, last) of the unsettled ids of a route from ``first`` to ``last``."""
        return self.parts[self.part_of(route)].gaps(first, last)

    def reset(self, cursor_number: int, floor: int) -> None:
        """Everything is dropped: the endpoint goes on with a new cursor."""
        self.cursor_number = cursor_number
        self.emptied_up_to = floor
        self.parts = {part: Cursor(floor) for part in self.parts}
        if not self.is_awake:
            for route in self.routes:
                self.parts[self.part_of(route)].count(-route.messages, -route.size_bytes)
        self.put.reset(cursor_number)
        self.delayed = DelayedMessages()
