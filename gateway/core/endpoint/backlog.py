"""
The backlog of an endpoint: what lies on it, and how much that is.

A message lies on an endpoint in one of three ways. Its route leads to the endpoint, and the endpoint's cursor is not
done with it. Or a replay has put it there, out of the log, and the replay's own cursor is not done with it. Or there is
a reference to it: a copy that an administrator made, or what a replay had put and the log, or the replay, has dropped
since.

How much that is need not be added up for each publication: an endpoint that is not awake (nobody consumes, no quota)
has what its cursor counted, and what its routes counted since. Invariant: each effect that is made here brings the
store's counts to what they are here, as of the last committed id, so that a start counts what came after and nothing
else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from amqp_ext.message.priority import DEFAULT
from gateway.core.effects import (
    DropCursor,
    Effect,
    MoveCursor,
    OpenCursor,
    SettleInTransaction,
    settled_firsts,
)
from gateway.core.endpoint.cursor import Cursor
from gateway.core.endpoint.put_messages import PutMessages
from gateway.core.endpoint.routed_messages import RoutedMessages
from gateway.core.model import ID, ROUTE, WHOLE, Row


class Backlog:
    def __init__(self, number: int, cursor_number: int, parts: dict[int, Cursor]) -> None:
        """
        Args:
            number: The endpoint's.
            parts: Its cursor: one for ``WHOLE``, or one for each priority.
        """
        self._number = number
        self.cursor_number = cursor_number
        """What the store knows the cursor by; another one once everything was dropped."""
        self.parts = parts
        self.put = PutMessages(cursor_number, next(iter(parts)))
        """What did not come by routes."""
        self.routes: dict[RoutedMessages, None] = {}
        """Routes that lead here."""
        self.is_awake = False
        """It counts each message of its routes itself."""
        self.emptied_up_to = 0
        """Everything up to this id was dropped as a whole."""
        self._dropped_on_way = 0
        self._reserved_messages = 0
        self._reserved_bytes = 0

    # --- how much it is ---------------------------------------------------------------------------------------------

    @property
    def messages(self) -> int:
        """How many messages lie here, durably, unsettled ones among them."""
        return self.put.messages + sum(self._counts(part)[0] for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """Their content."""
        return self.put.size_bytes + sum(self._counts(part)[1] for part in self.parts)

    def room_for(self, contents: Sequence[bytes], quota_messages: int, quota_bytes: int) -> int:
        """How many of ``contents``, from the first on, fit quotas (0: no bound) beside what is about to come and go."""
        room = len(contents)
        if quota_messages:
            room = min(room, max(quota_messages - self.messages - self._reserved_messages, 0))
        if quota_bytes:
            left = quota_bytes - self.size_bytes - self._reserved_bytes
            for count, content in enumerate(contents[:room]):
                left -= len(content)
                if left < 0:
                    return count
        return room

    def reserve(self, messages: int, size_bytes: int) -> None:
        """So many are about to be put here; negative where they are about to go, or come to nothing."""
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
        Content of a message that lies here takes so many bytes more.

        Args:
            part: Of the cursor that it is in; None where it was put here.
            is_saved: The store counts it so.
        """
        if part is None:
            self.put.resize(size_bytes)
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
        """The endpoint is done with a route, and no more comes by it."""
        if not self.is_awake:
            self.parts[self.part_of(route)].count(route.messages, route.size_bytes)
        del self.routes[route]

    def is_done_with(self, route: RoutedMessages) -> bool:
        """Whether every message of a route is settled here."""
        return route.newest_id <= self.parts[self.part_of(route)].floor

    def wake(self, is_awake: bool) -> bool:
        """From now on it counts each message itself, or leaves that to its routes; whether that is another way."""
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
        """Messages of a route are durable; told while it is awake."""
        self.parts[self.part_of(route)].count(messages, size_bytes)

    # --- what is written --------------------------------------------------------------------------------------------

    def open_effects(self, floor: int) -> list[Effect]:
        """The cursor is new: everything up to ``floor`` is not here."""
        return [OpenCursor(self.cursor_number, tuple(self.parts), floor)]

    def drop_on_way(self, count: int) -> None:
        """These are committed now that everything was dropped: they were before that, and do not come to lie here."""
        self._dropped_on_way += count

    def take_dropped_on_way(self) -> int:
        """How many messages were on their way when everything was dropped, and are gone, since this was asked last."""
        count, self._dropped_on_way = self._dropped_on_way, 0
        return count

    def drop_effects(self, up_to: int) -> list[Effect]:
        """Nothing up to an id is here any more."""
        effects: list[Effect] = [DropCursor(self.cursor_number, self._number, up_to)]
        if self.put.replay_cursor_number:
            effects.append(DropCursor(self.put.replay_cursor_number, 0, 0))
        return effects

    def count_effects(self, newest_id: int) -> list[Effect]:
        """What the store counts here is to be as of ``newest_id``, the last committed one; nothing where it is so."""
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
        references: Sequence[int] = (),
    ) -> MoveCursor:
        cursor = self.parts[part]
        floor, ranges = cursor.change()
        messages, size = cursor.saves(*self._counts(part))
        return MoveCursor(
            self.cursor_number, part, floor, ranges, newest_id, messages, size, done, attempts, references
        )

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
        """Those of rising ids, by part, that lie here still; parts without any are left out."""
        found = {part: [i for i in ids if self.parts[part].is_open(i)] for part, ids in routed.items()}
        return {part: ids for part, ids in found.items() if ids}

    def has(self, row: Row) -> bool:
        """Whether a message of the store lies here."""
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
        What a transaction writes for messages to be gone if it succeeds, and to lie here if it does not.

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
                    None,
                    dict(cursor.ranges_of(ids)),
                    None,
                    -len(ids),
                    -sum(sizes[i] for i in ids),
                    ids,
                    [i for i in ids if i in attempts],
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
        """Whether something up to an id may be needed by way of routes."""
        return any(cursor.floor < message_id for cursor in self.parts.values())

    def needed(self, route: RoutedMessages, first: int, last: int) -> Iterator[tuple[int, int]]:
        """(first, last) of the ids of a route from ``first`` to ``last`` that are needed."""
        return self.parts[self.part_of(route)].gaps(first, last)

    def reset(self, cursor_number: int, floor: int) -> None:
        """Everything that lay here is gone: it begins with a new cursor."""
        self.cursor_number = cursor_number
        self.emptied_up_to = floor
        self.parts = {part: Cursor(floor) for part in self.parts}
        if not self.is_awake:
            for route in self.routes:
                self.parts[self.part_of(route)].count(-route.messages, -route.size_bytes)
        self.put.reset(cursor_number)
