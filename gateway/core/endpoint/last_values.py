"""
The newest values of a last-value queue: for each key, which message of the log is its newest one.

The index is the store's, a row for each key; it follows the log a little behind. Here is what is to be written next,
how far the index is, and what it comes to. Whoever follows the log gives what the queue's topics bring to ``take``, in
the order of the log, and has ``change`` committed, one at a time. Invariant: the index is what the messages below
``reached()`` make of it, durably; so the log keeps all messages from there on, and a reader who is given the values
below a bound that was reached, and then the log from that bound on, has all, and none twice.

A key is the value of the queue's ``value_key`` as text, or the topic. In the store it is a digest, as long for a key of
one character as for one of 64 KB.
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
"""Of a queue without ``quota_messages``, some 100 MB of the store: whoever may publish may make up keys."""

DIGEST_BYTES: Final = 32
"""Nobody finds two keys with the same digest."""

SAVED_IDS: Final = 50_000
"""Ids that a start looks at once more, at most, for values that are in the index already."""


def digest_of(key: str) -> bytes:
    """What the store knows a key by."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def key_of(row: Row, value_key: str) -> str | None:
    """A message's key; None where it has no such property, or one that is no text, number, or the like."""
    return property_text(MessageView(row[CONTENT], row[BARE]), value_key) if value_key else row[TOPIC]


class LastValues:
    """Of one last-value queue."""

    def __init__(self, position: int, stored: StoredValues) -> None:
        """
        Args:
            position: The index is what messages below this id make of it.
        """
        self.messages = stored.messages
        """Keys that have a value."""
        self.size_bytes = stored.size_bytes
        """The content of the values."""
        self.dropped = 0
        """Values that gave way to newer ones of other keys, by the quota, since the start."""
        self.saved = position
        """The index is known to be so far, after a crash, too."""
        self.revision = 0
        """Another number: who follows the log is to begin anew, from ``saved``."""
        self.follows: Callable[[], int] | None = None
        """Up to which id, exclusive, whoever follows the log has given what is there; None while nobody does."""
        self.is_held_up = False
        """Whoever follows the log cannot read it: the log is not kept for that."""
        self._next_expiry_ms = stored.next_expiry_ms
        self._taken: dict[bytes, Value] = {}
        self._gone: list[int] = []
        self._first_taken: int | None = None
        self._writing: KeepValues | None = None
        self._is_older = False
        """What is being written is of before the log was to be followed from another place on."""

    def reached(self) -> int:
        """The index is what messages below this id make of it, and durable."""
        if self.follows is None:
            return self.saved
        is_writing = self._writing is not None and not self._is_older
        first = self._writing.first if self._writing is not None and is_writing else self._first_taken
        return self.follows() if first is None else min(first, self.follows())

    @property
    def needed_from(self) -> int | None:
        """The log is to keep what it has from this id on; None where it need not."""
        return None if self.is_held_up else self.reached()

    def take(self, rows: Iterable[Row], settings: EndpointSettings) -> None:
        """Messages of the queue's topics, rising, in the log; those that have no key are passed over."""
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
        """Those of these messages that are values are none any more; their keys are gone until they come again."""
        self._gone += ids

    @property
    def waiting(self) -> int:
        """Values that were taken and are not being written yet."""
        return len(self._taken)

    @property
    def is_idle(self) -> bool:
        """Nothing is to be written, or being written."""
        return not (self._taken or self._gone or self._writing)

    def change(self, cursor: int, settings: EndpointSettings, now_ms: int) -> KeepValues | None:
        """
        What is to be written now; None where nothing is, or while something is being written. Once it is committed, or
        not, tell ``written``.

        Args:
            cursor: The endpoint's, by which the store knows the index.
            now_ms: Values whose time has come go.
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
        """It is durable, or is to be tried again."""
        if effect is not self._writing:
            return  # All was dropped meanwhile.
        self._writing, is_older, self._is_older = None, self._is_older, False
        if not is_committed:
            self._taken = {**{value.key: value for value in effect.values}, **self._taken}
            self._gone = [*effect.gone, *self._gone]
            self._first_taken = effect.first
            return
        self.messages += effect.more
        self.size_bytes += effect.more_bytes
        self.dropped += effect.dropped
        self._next_expiry_ms = effect.next_expiry_ms
        if not is_older:
            self.saved = max(self.saved, effect.position)

    def read_anew(self, cursor: int, position: int) -> KeepValues:
        """
        The log is to be followed from another place on: other topics are the queue's. What is in the index stays,
        where nothing newer comes.
        """
        self._is_older = self._writing is not None
        self._begin_anew(position)
        return KeepValues(cursor, (), (), position, position, 0, maxsize, 0, self.messages, self.size_bytes)

    def reset(self, position: int) -> None:
        """All values are dropped: it goes on, without any, from a place on."""
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
