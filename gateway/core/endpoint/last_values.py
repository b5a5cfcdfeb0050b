"""
The values of a last-value queue: the newest message of the log for each key.

The index is in the store, with a row for each key. It follows the log with a small delay. This module has the next
changes of the index, its position, and its totals. A follower reads the log (``gateway.vpn.upkeep.last_values``): it
passes the messages of the queue's topics to ``take``, in the order of the log, and commits each ``change`` before the
next one. Invariant: the index durably covers all messages below ``reached()``, and the log keeps all messages from
there on. So a reader that gets the values below such a bound, and then the log from the bound on, gets every value
once.

A key is the value of the queue's ``value_key`` as text, or the topic. The store has a digest of it, which has the same
length for a key of one character as for a key of 64 KB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from sys import maxsize
from typing import Final

from amqp_ext.message.fields import ttl_of
from amqp_ext.message.json_rows import is_erased
from amqp_ext.message.sections import MessageView, has_empty_body
from gateway.core.effects import KeepValues, StoredValues, Value
from gateway.core.endpoint.settings import EndpointSettings
from gateway.core.model import BARE, CONTENT, ID, TIME_MS, TOPIC, Row
from gateway.core.replay.search import property_text

MOST_KEYS: Final = 1_000_000
"""The most keys of a queue without ``quota_messages``, some 100 MB of the store. A limit is needed because publishers
can send any number of keys."""

DIGEST_BYTES: Final = 32
"""Long enough that no two keys can be found with the same digest."""

SAVED_IDS: Final = 50_000
"""The most ids that a start reads again although their values are in the index already."""


def digest_of(key: str) -> bytes:
    """The digest of a key in the store."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def key_of(row: Row, value_key: str) -> str | None:
    """A message's key; None where it has no such property, or the property has no text form."""
    return property_text(MessageView(row[CONTENT], row[BARE]), value_key) if value_key else row[TOPIC]


class LastValues:
    """The values of one last-value queue."""

    def __init__(self, position: int, stored: StoredValues) -> None:
        """
        Args:
            position: The index covers the messages below this id.
        """
        self.messages = stored.messages
        """How many keys have a value."""
        self.size_bytes = stored.size_bytes
        """The size of the values' content."""
        self.dropped = 0
        """How many values were removed by the quota for values of other keys, since the start."""
        self.saved = position
        """The position of the index after a crash: it durably covers at least the messages below this id."""
        self.revision = 0
        """A changed number tells the follower to begin again from ``saved``."""
        self.follows: Callable[[], int] | None = None
        """Returns the id below which the follower has passed all messages to ``take``; None while there is no
        follower."""
        self.is_held_up = False
        """The follower cannot read the log. Then the log may be trimmed without it."""
        self._next_expiry_ms = stored.next_expiry_ms
        self._taken: dict[bytes, Value] = {}
        self._gone: list[int] = []
        self._first_taken: int | None = None
        self._writing: KeepValues | None = None
        self._is_older = False
        """The change that is being committed is from before the last ``read_anew``."""

    def reached(self) -> int:
        """The id below which the index durably covers all messages."""
        if self.follows is None:
            return self.saved
        is_writing = self._writing is not None and not self._is_older
        first = self._writing.first if self._writing is not None and is_writing else self._first_taken
        return self.follows() if first is None else min(first, self.follows())

    @property
    def needed_from(self) -> int | None:
        """The log must keep its messages from this id on; None where it need not keep any."""
        return None if self.is_held_up else self.reached()

    def take(self, rows: Iterable[Row], settings: EndpointSettings) -> None:
        """Take logged messages of the queue's topics, in rising order. Messages without a key are ignored."""
        value_key, taken = settings.value_key, self._taken
        digests: dict[str, bytes] = {}
        for row in rows:
            if self._first_taken is None:
                self._first_taken = row[ID]
            key = key_of(row, value_key)
            if key is None:
                continue
            digest = digests.get(key)
            if digest is None:
                digest = digests[key] = digest_of(key)
            content, bare = row[CONTENT], row[BARE]
            if has_empty_body(content, bare) or is_erased(content, bare):
                taken[digest] = Value(digest, row[ID], None, None)
                continue
            ttl_ms = min(
                [
                    t
                    for t in (ttl_of(content) if bare else None, settings.max_ttl_ms or None)
                    if t is not None
                ],
                default=None,
            )
            expires_ms = None if ttl_ms is None else row[TIME_MS] + ttl_ms
            taken[digest] = Value(digest, row[ID], len(content), expires_ms)

    def remove(self, ids: Iterable[int]) -> None:
        """These messages stop being values. Their keys have no value until a new message comes."""
        self._gone += ids

    @property
    def waiting(self) -> int:
        """How many values were taken and are not being committed yet."""
        return len(self._taken)

    @property
    def is_idle(self) -> bool:
        """Whether there is no change to commit, and none being committed."""
        return not (self._taken or self._gone or self._writing)

    def change(self, cursor: int, settings: EndpointSettings, now_ms: int) -> KeepValues | None:
        """
        The next change to commit; None without changes, or while one is being committed. The caller calls ``written``
        after the commit.

        Args:
            cursor: The number of the endpoint's cursor, which identifies the index in the store.
            now_ms: Values that have expired by now are removed.
        """
        if self._writing is not None:
            return None
        is_due = self._next_expiry_ms is not None and self._next_expiry_ms <= now_ms
        reached = self.saved if self.follows is None else self.follows()
        if not (self._taken or self._gone or is_due) and reached < self.saved + SAVED_IDS:
            self._first_taken = None
            return None
        self._writing = KeepValues(
            cursor,
            tuple(self._taken.values()),
            tuple(self._gone),
            first=reached if self._first_taken is None else self._first_taken,
            position=max(reached, self.saved),
            now_ms=now_ms,
            most=settings.quota_messages or MOST_KEYS,
            most_bytes=settings.quota_bytes,
            messages=self.messages,
            size_bytes=self.size_bytes,
        )
        self._taken, self._gone, self._first_taken = {}, [], None
        return self._writing

    def written(self, effect: KeepValues, *, is_committed: bool) -> None:
        """The change is durable, or is to be tried again."""
        if effect is not self._writing:
            return  # the queue was emptied meanwhile
        self._writing, is_older, self._is_older = None, self._is_older, False
        if not is_committed:
            self._taken = {**{value.key: value for value in effect.values}, **self._taken}
            self._gone = [*effect.gone, *self._gone]
            # After ``read_anew``, messages from before this change may have been taken.
            taken = effect.first if self._first_taken is None else self._first_taken
            self._first_taken = min(effect.first, taken)
            return
        self.messages += effect.more
        self.size_bytes += effect.more_bytes
        self.dropped += effect.dropped
        self._next_expiry_ms = effect.next_expiry_ms
        if not is_older:
            self.saved = max(self.saved, effect.position)

    def read_anew(self, cursor: int, position: int) -> KeepValues:
        """
        The queue's topics have changed: the follower is to read the log again from ``position``. A value in the index
        stays until a newer message of its key comes.
        """
        self._is_older = self._writing is not None
        self._begin_anew(position)
        return KeepValues(cursor, (), (), position, position, 0, maxsize, 0, self.messages, self.size_bytes)

    def reset(self, position: int) -> None:
        """Drop all values; the index continues empty from ``position``."""
        self.messages = self.size_bytes = 0
        self._next_expiry_ms = None
        self._gone = []
        self._writing, self._is_older = None, False
        self._begin_anew(position)

    def _begin_anew(self, position: int) -> None:
        self.saved = position
        self.revision += 1
        self.follows = self._first_taken = None
        self._taken = {}
