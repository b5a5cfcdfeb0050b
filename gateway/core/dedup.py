"""
Publisher deduplication: each endpoint's window of the ids that publishers gave to messages on its topics.

A message is a duplicate if its id is in the window of any endpoint that its topic leads to: it is accepted, and not
stored again. The window has the ids of at least the last ``dedup_window`` messages that are younger than
``dedup_window_ms``. An id becomes durable in the transaction of its message; if the transaction fails, the id leaves
the window.

The time is the log's, which never goes back. If the machine's clock goes back, ids stay longer and never leave early;
their number is bounded in any case.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gateway.core.effects import DedupIds, ForgetIds, Publication, StoredIds
from gateway.core.endpoint.settings import MOST_IDS
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID, TIME_MS

if TYPE_CHECKING:
    IdSet = set[bytes]
else:
    try:
        from gateway.core._id_set import IdSet
    except ImportError:  # not built: a set does the same, slower
        IdSet = set

FORGOTTEN_AT_ONCE: Final = 16_384
"""How many ids leave a window before the store deletes them. A start may read that many more, and drops them."""


@dataclass(slots=True, eq=False)
class DedupWindow:
    """The ids of one endpoint's window. Invariant: ``_batches`` has each of ``ids`` once, oldest first."""

    messages: int
    """The most ids to keep."""
    age_ms: int
    """How long to keep each id; 0 for no limit."""
    duplicates: int = 0
    """Duplicates that were not stored again since the gateway started."""
    ids: IdSet = field(default_factory=IdSet)
    """All ids of the window."""
    _batches: deque[tuple[int, int, list[bytes]]] = field(default_factory=deque)
    """(id of the first message, time ms, publishers' ids) of each publication."""
    _durable: int = 0
    """How many ids are committed. They are the oldest ones."""
    _passed: int = 0
    """How many ids of the oldest publication have left the window."""
    _to_forget: int = 0
    """How many ids have left since the store was told."""
    _gone_up_to: int = 0
    """The ids of the publication that begins with this message, and of those before it, have left."""

    def __len__(self) -> int:
        return len(self.ids)

    def restore(self, batches: Iterable[StoredIds]) -> None:
        """Take over the stored ids, oldest first."""
        for (first, time_ms), ids in reversed(list(batches)):
            # An id that had left, and was not yet deleted from the store, may have come again.
            stay = [one for one in ids if one not in self.ids]
            self.ids.update(stay)
            if stay:
                self._batches.appendleft((first, time_ms, stay))
        self._durable = len(self.ids)
        self._shrink()

    def resize(self, messages: int, age_ms: int) -> None:
        """Change the limits of the window."""
        self.messages, self.age_ms = messages, age_ms
        self._shrink()

    def age(self, now_ms: int) -> None:
        """Drop the ids that are too old."""
        batches = self._batches
        while self.age_ms and self._durable and batches[0][1] <= now_ms - self.age_ms:
            self._leave(len(batches[0][2]) - self._passed)

    def publish(self, first: int, time_ms: int, ids: list[bytes]) -> int:
        """
        Add new ids, which become durable together with their publication.

        Returns:
            The store may delete the ids of the publication that begins with this message, and of those before it; 0: no
            more than before.
        """
        self.ids.update(ids)
        self._batches.append((first, time_ms, ids))
        if self._to_forget < min(FORGOTTEN_AT_ONCE, self.messages):
            return 0
        self._to_forget = 0
        return self._gone_up_to

    def committed(self, count: int) -> None:
        """The oldest ``count`` ids that were not durable have become durable."""
        self._durable += count
        self._shrink()

    def failed(self, first: int) -> None:
        """The publication that begins with ``first`` failed: remove its ids."""
        # It is one of the newest, mostly the last.
        for place in range(len(self._batches) - 1, -1, -1):
            if self._batches[place][0] == first:
                self.ids.difference_update(self._batches[place][2])
                del self._batches[place]
                return

    def without(self, named: Mapping[int, bytes]) -> dict[int, list[bytes]]:
        """
        The remaining ids of publications, by first message, after the ids of some messages are taken out.

        Args:
            named: Publishers' ids by message; the messages are durable.
        """
        batches = list(self._batches)
        firsts = [first for first, _, _ in batches]
        left: dict[int, list[bytes]] = {}
        for message, one in named.items():
            place = bisect_right(firsts, message) - 1
            if place < 0:
                continue
            first, _, ids = batches[place]
            ids = left.get(first, ids)
            # An id that has left may have come again, with another message.
            if one in (ids if place else ids[self._passed :]):
                left[first] = [other for other in ids if other != one]
        return left

    def forget(self, kept: Mapping[int, Sequence[bytes]]) -> None:
        """Keep only these ids of these durable publications, by first message."""
        left = deque[tuple[int, int, list[bytes]]]()
        for first, time_ms, ids in self._batches:
            stay, passed = ids, self._passed
            self._passed = 0
            if passed or first in kept:
                wanted = set(kept.get(first, ids))
                stay = [one for one in ids[passed:] if one in wanted]
                self.ids.difference_update([one for one in ids[passed:] if one not in wanted])
                self._durable -= len(ids) - passed - len(stay)
            if stay:
                left.append((first, time_ms, stay))
        self._batches = left

    def _shrink(self) -> None:
        while self._durable > self.messages:
            first = self._batches[0]
            self._leave(min(self._durable - self.messages, len(first[2]) - self._passed))

    def _leave(self, count: int) -> None:
        """Drop the next ``count`` ids of the oldest publication."""
        first, _, ids = self._batches[0]
        stop = self._passed + count
        self.ids.difference_update(ids[self._passed : stop])
        self._durable -= count
        self._to_forget += count
        self._passed = stop
        if stop == len(ids):
            self._batches.popleft()
            self._passed = 0
            self._gone_up_to = first


@dataclass(slots=True)
class Sifted:
    """
    Messages that arrived together, sorted by their ids into new ones and duplicates. Numbers are places in the list.
    """

    new: list[int]
    """Messages to be stored."""
    stored: list[int] = field(default_factory=list)
    """Duplicates of a durable message."""
    on_way: list[tuple[int, Publication]] = field(default_factory=list)
    """Duplicates of a message that is not durable yet, with its publication: the duplicate gets the publication's
    outcome."""
    again: list[int] = field(default_factory=list)
    """Duplicates of a new message before them in the same list."""


class Deduplication:
    """All windows of a Message VPN."""

    def __init__(self) -> None:
        self.windows: dict[int, DedupWindow] = {}
        """By the endpoint's number. While it is empty, no id is looked at."""
        self._on_way: dict[Publication, list[DedupWindow]] = {}
        """Publications whose ids are not durable yet, and the windows that have these ids."""
        self._on_way_by_id: dict[bytes, list[Publication]] | None = None
        """The same publications by id: made when a duplicate comes, kept until ``_on_way`` is empty."""

    def check(self, number: int, messages: int, age_ms: int) -> None:
        """
        Check that an endpoint may have a window of this size.

        Raises:
            Refused: INVALID_FIELD, there is an age and no number of messages; RESOURCE_LIMIT, all windows together
                would be too large.
        """
        if age_ms and not messages:
            raise Refused(
                ErrorCode.INVALID_FIELD,
                f"a dedup_window_ms of {age_ms} and no dedup_window: set the number of messages whose ids are "
                "remembered, or set both to 0",
            )
        others = sum(window.messages for other, window in self.windows.items() if other != number)
        if messages and others + messages > MOST_IDS:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"a dedup_window of {messages} messages; all windows of a Message VPN may have {MOST_IDS} "
                f"together, and the others have {others}",
            )

    def configure(self, number: int, messages: int, age_ms: int) -> bool:
        """
        Give an endpoint a window of this size, or take its window away (0 messages).

        Returns:
            Whether this took a window away: its ids are to be forgotten.
        """
        window = self.windows.get(number)
        if not messages:
            return self.windows.pop(number, None) is not None
        if window is None:
            self.windows[number] = DedupWindow(messages, age_ms)
        else:
            window.resize(messages, age_ms)
        return False

    def forget(self, named: Mapping[int, bytes]) -> list[ForgetIds]:
        """
        The effects that take the ids of messages to be erased out of the windows. Call ``forgotten`` once they are
        committed.

        Args:
            named: Publishers' ids by message; empty for a message without an id.
        """
        found = {number: window.without(named) for number, window in self.windows.items()}
        return [ForgetIds(number, kept) for number, kept in found.items() if kept]

    def forgotten(self, effects: Iterable[ForgetIds]) -> None:
        """The effects of ``forget`` are committed."""
        for effect in effects:
            if effect.endpoint in self.windows and effect.kept is not None:
                self.windows[effect.endpoint].forget(effect.kept)

    def windows_of(self, numbers: Iterable[int]) -> list[DedupWindow]:
        """The windows of these endpoints."""
        return [window for number in numbers if (window := self.windows.get(number)) is not None]

    def sift(self, windows: Sequence[DedupWindow], ids: list[bytes], now_ms: int) -> Sifted | None:
        """
        Separate duplicates from new messages.

        Args:
            windows: The windows of the topic's endpoints.
            ids: One id for each message; empty for a message without an id, which is never a duplicate.

        Returns:
            None if all are new.
        """
        for window in windows:
            window.age(now_ms)
        distinct = set(ids)
        are_distinct = b"" not in distinct and len(distinct) == len(ids)
        if are_distinct and all(window.ids.isdisjoint(ids) for window in windows):
            return None
        sifted = Sifted([])
        here: set[bytes] = set()
        for place, one in enumerate(ids):
            holders = [window for window in windows if one in window.ids]
            if holders:
                # One window may keep an id longer than another. If it is durable in any window, the message is stored.
                found = self._on_way_with(one)
                if all(any(window in self._on_way[other] for other in found) for window in holders):
                    sifted.on_way.append((place, found[0]))
                else:
                    sifted.stored.append(place)
            elif one in here:
                sifted.again.append(place)
            else:
                sifted.new.append(place)
                if one:
                    here.add(one)
        return sifted

    def _on_way_with(self, one: bytes) -> list[Publication]:
        if self._on_way_by_id is None:
            self._on_way_by_id = {}
            for publication in self._on_way:
                self._index(publication)
        return self._on_way_by_id.get(one, [])

    def _index(self, publication: Publication) -> None:
        if self._on_way_by_id is not None and publication.dedup is not None:
            for one in publication.dedup.ids:
                self._on_way_by_id.setdefault(one, []).append(publication)

    def _ended(self, publication: Publication) -> list[DedupWindow]:
        """The publication was committed or failed. Return the windows that have its ids."""
        windows = self._on_way.pop(publication, [])
        if not self._on_way:
            self._on_way_by_id = None
        elif windows and self._on_way_by_id is not None and publication.dedup is not None:
            for one in publication.dedup.ids:
                self._on_way_by_id[one].remove(publication)
                if not self._on_way_by_id[one]:
                    del self._on_way_by_id[one]
        return windows

    def publish(self, numbers: Iterable[int], publication: Publication, ids: Sequence[bytes]) -> None:
        """
        Put the new ids of a publication into the windows, before the commit.

        Args:
            numbers: The numbers of the topic's endpoints.
            ids: One id for each message; empty for a message without an id.
        """
        named = list(filter(None, ids))
        if not named:
            return
        first, time_ms = publication.rows[0][ID], publication.rows[0][TIME_MS]
        found = {number: self.windows[number] for number in numbers if number in self.windows}
        forgotten = {number: window.publish(first, time_ms, named) for number, window in found.items()}
        publication.dedup = DedupIds(named, forgotten)
        self._on_way[publication] = list(found.values())
        self._index(publication)

    def committed(self, publication: Publication, dedup: DedupIds) -> None:
        """The publication is durable, and so are its ids."""
        for window in self._ended(publication):
            window.committed(len(dedup.ids))

    def failed(self, publication: Publication) -> None:
        """The publication failed: its ids leave the windows."""
        for window in self._ended(publication):
            window.failed(publication.rows[0][ID])


def echoes_of(publication: Publication) -> list[Any]:
    """Receipts of duplicates that get the outcome of this publication, in addition to its own receipt."""
    return publication.dedup.echoes if publication.dedup is not None else []
