"""
Publisher deduplication: an endpoint's window of the ids that publishers gave to messages published to its topics.

A message whose id is in the window of any endpoint that its topic leads to is a duplicate: it is accepted, and not
stored again. The window has the ids of at least the last ``dedup_window`` messages, where they are younger than
``dedup_window_ms``. An id is durable in the transaction of its message, and gone with it where that fails.

Time is that of the log, which never goes back: a clock that does makes ids stay longer, never leave early, and their
number is bounded in any case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.core.effects import DedupIds, ForgetIds, Publication, StoredIds
from gateway.core.endpoint.settings import MOST_IDS
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID, TIME_MS

FORGOTTEN_AT_ONCE: Final = 16_384
"""Ids that left a window before the store is told to delete them; a start finds so many more, and lets them go."""


@dataclass(slots=True, eq=False)
class DedupWindow:
    """The ids of one endpoint's window. Invariant: ``_batches`` has those of ``first_of``, each once, oldest first."""

    messages: int
    """How many of them it keeps."""
    age_ms: int
    """How long it keeps each; 0: as long as it is among them."""
    duplicates: int = 0
    """What was not stored again since the gateway started."""
    first_of: dict[bytes, int] = field(default_factory=dict)
    """By id, the first message of the publication that it came with."""
    _batches: deque[tuple[int, int, Sequence[bytes]]] = field(default_factory=deque)
    """(first message, time, ids) of each publication."""
    _durable: int = 0
    """Ids that are committed: the oldest ones."""
    _passed: int = 0
    """Ids of the oldest publication that have left."""
    _to_forget: int = 0
    """Ids that have left since the store was told."""
    _gone_up_to: int = 0
    """The publication that begins with this message, and those before it, have left."""

    def __len__(self) -> int:
        return len(self.first_of)

    def restore(self, batches: Iterable[StoredIds]) -> None:
        """Take over what the store kept, oldest first."""
        for (first, time_ms), ids in reversed(list(batches)):
            # One that had left, and was not yet deleted there, may have come again.
            stay = [one for one in ids if one not in self.first_of]
            self.first_of.update(dict.fromkeys(stay, first))
            if stay:
                self._batches.appendleft((first, time_ms, stay))
        self._durable = len(self.first_of)
        self._shrink()

    def resize(self, messages: int, age_ms: int) -> None:
        """It is so large from now on."""
        self.messages, self.age_ms = messages, age_ms
        self._shrink()

    def age(self, now_ms: int) -> None:
        """Let go of what is too old."""
        batches = self._batches
        while self.age_ms and self._durable and batches[0][1] <= now_ms - self.age_ms:
            self._leave(len(batches[0][2]) - self._passed)

    def publish(self, first: int, time_ms: int, ids: Sequence[bytes]) -> int:
        """
        Take up new ids, durable when their publication is.

        Returns:
            The store need not keep the ids of the publication that begins here, nor of those before it; 0: as before.
        """
        self.first_of.update(dict.fromkeys(ids, first))
        self._batches.append((first, time_ms, ids))
        if self._to_forget < min(FORGOTTEN_AT_ONCE, self.messages):
            return 0
        self._to_forget = 0
        return self._gone_up_to

    def committed(self, count: int) -> None:
        """So many of the oldest that were not durable are."""
        self._durable += count
        self._shrink()

    def failed(self, first: int) -> None:
        """A publication is not stored: its ids were never here."""
        # One of the newest, mostly the last.
        for place in range(len(self._batches) - 1, -1, -1):
            if self._batches[place][0] == first:
                for one in self._batches[place][2]:
                    del self.first_of[one]
                del self._batches[place]
                return

    def without(self, named: Mapping[int, bytes]) -> dict[int, list[bytes]]:
        """
        What stays of publications' ids, by their first messages, without those of some messages.

        Args:
            named: Ids by messages, which are durable.
        """
        gone: dict[int, set[bytes]] = {}
        for message, one in named.items():
            # A later one is of another message, which came once the id of this one had left.
            if (first := self.first_of.get(one, message + 1)) <= message:
                gone.setdefault(first, set()).add(one)
        if not gone:
            return {}
        return {
            first: [one for one in ids if one not in gone[first]]
            for first, _, ids in self._batches
            if first in gone
        }

    def forget(self, kept: Mapping[int, Sequence[bytes]]) -> None:
        """Of these durable publications no other ids stay."""
        left = deque[tuple[int, int, Sequence[bytes]]]()
        for first, time_ms, ids in self._batches:
            stay, passed = ids, self._passed
            self._passed = 0
            if passed or first in kept:
                wanted = kept.get(first, ids)
                stay = [one for one in ids[passed:] if one in wanted]
                for one in set(ids[passed:]).difference(stay):
                    del self.first_of[one]
                self._durable -= len(ids) - passed - len(stay)
            if stay:
                left.append((first, time_ms, stay))
        self._batches = left

    def _shrink(self) -> None:
        while self._durable > self.messages:
            first = self._batches[0]
            self._leave(min(self._durable - self.messages, len(first[2]) - self._passed))

    def _leave(self, count: int) -> None:
        """So many of the oldest publication leave."""
        first, _, ids = self._batches[0]
        stop = self._passed + count
        # A loop in C, as it is done for each message.
        deque(map(self.first_of.__delitem__, ids[self._passed : stop]), 0)
        self._durable -= count
        self._to_forget += count
        self._passed = stop
        if stop == len(ids):
            self._batches.popleft()
            self._passed = 0
            self._gone_up_to = first


@dataclass(slots=True)
class Sifted:
    """Messages that arrived together, told apart by their ids."""

    new: list[int]
    """Places of those to be stored."""
    stored: list[int] = field(default_factory=list)
    """Of duplicates of what is durable."""
    on_way: list[tuple[int, Publication]] = field(default_factory=list)
    """Of duplicates of what is not, with the publication that each one stands and falls with."""
    again: list[int] = field(default_factory=list)
    """Of duplicates of new ones before them."""


class Deduplication:
    """All windows of a Message VPN."""

    def __init__(self) -> None:
        self.windows: dict[int, DedupWindow] = {}
        """By the endpoint's number; nothing is looked at where there is none."""
        self._on_way: dict[int, Publication] = {}
        """Publications with ids that are not durable yet, by their first message."""

    def check(self, number: int, messages: int, age_ms: int) -> None:
        """
        Whether an endpoint may have such a window.

        Raises:
            Refused: INVALID_FIELD, an age bounds what is not there; RESOURCE_LIMIT, all together would have too many.
        """
        if age_ms and not messages:
            raise Refused(
                ErrorCode.INVALID_FIELD,
                f"a dedup_window_ms of {age_ms} and no dedup_window: say of how many messages ids are remembered,"
                " or have both be 0",
            )
        others = sum(window.messages for other, window in self.windows.items() if other != number)
        if messages and others + messages > MOST_IDS:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"a dedup_window of {messages} messages; all of a Message VPN may have {MOST_IDS} together, and the"
                f" others have {others}",
            )

    def configure(self, number: int, messages: int, age_ms: int) -> bool:
        """
        An endpoint has such a window from now on, or none (0 messages).

        Returns:
            Whether it had one and has none any more: its ids are to be forgotten.
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
        Messages are to be erased: what makes their ids leave the windows. Once it is committed, tell ``forgotten``.

        Args:
            named: What publishers called them, by message; empty for one that has no id.
        """
        found = {number: window.without(named) for number, window in self.windows.items()}
        return [ForgetIds(number, kept) for number, kept in found.items() if kept]

    def forgotten(self, effects: Iterable[ForgetIds]) -> None:
        """The ids have left, durably."""
        for effect in effects:
            if effect.endpoint in self.windows and effect.kept is not None:
                self.windows[effect.endpoint].forget(effect.kept)

    def windows_of(self, numbers: Iterable[int]) -> list[DedupWindow]:
        """Those of these endpoints that have one."""
        return [window for number in numbers if (window := self.windows.get(number)) is not None]

    def sift(
        self, windows: Sequence[DedupWindow], ids: Sequence[bytes], now_ms: int, next_id: int
    ) -> Sifted | None:
        """
        Tell duplicates from what is new.

        Args:
            windows: Of the topic's endpoints.
            ids: One for each message; empty for one that has none, and is never a duplicate.
            next_id: What is below is durable.

        Returns:
            None where all are new.
        """
        for window in windows:
            window.age(now_ms)
        distinct = set(ids)
        are_distinct = b"" not in distinct and len(distinct) == len(ids)
        if are_distinct and all(window.first_of.keys().isdisjoint(ids) for window in windows):
            return None
        sifted = Sifted([])
        here: set[bytes] = set()
        for place, one in enumerate(ids):
            firsts = [first for window in windows if (first := window.first_of.get(one)) is not None]
            if firsts:
                # One window may have it longer than another: what is durable anywhere is stored.
                first = min(firsts)
                if first < next_id:
                    sifted.stored.append(place)
                else:
                    sifted.on_way.append((place, self._on_way[first]))
            elif one in here:
                sifted.again.append(place)
            else:
                sifted.new.append(place)
                if one:
                    here.add(one)
        return sifted

    def publish(self, numbers: Iterable[int], publication: Publication, ids: Sequence[bytes]) -> None:
        """
        Messages with new ids are on their way.

        Args:
            numbers: Of the topic's endpoints.
            ids: One for each message; empty for one that has none.
        """
        ids = list(filter(None, ids))
        if not ids:
            return
        first, time_ms = publication.rows[0][ID], publication.rows[0][TIME_MS]
        found = {number: self.windows[number] for number in numbers if number in self.windows}
        forgotten = {number: window.publish(first, time_ms, ids) for number, window in found.items()}
        publication.dedup = DedupIds(ids, forgotten)
        self._on_way[first] = publication

    def _ended(self, publication: Publication, dedup: DedupIds) -> Iterator[DedupWindow]:
        if self._on_way.pop(publication.rows[0][ID], None) is not None:
            yield from self.windows_of(dedup.endpoints)

    def committed(self, publication: Publication, dedup: DedupIds) -> None:
        """It is durable, and so are its ids."""
        for window in self._ended(publication, dedup):
            if window.first_of.get(dedup.ids[0]) == publication.rows[0][ID]:  # else it is one made since
                window.committed(len(dedup.ids))

    def failed(self, publication: Publication, dedup: DedupIds) -> None:
        """It is not stored: its ids are free."""
        for window in self._ended(publication, dedup):
            window.failed(publication.rows[0][ID])


def echoes_of(publication: Publication) -> list[Any]:
    """Receipts of duplicates that stand and fall with a publication, beside its own."""
    return publication.dedup.echoes if publication.dedup is not None else []
