"""
What a Message VPN must do, as simple as possible: sets of ids, of which the lowest is next.

The model knows nothing of windows, pages, positions or turns. It believes the naive store about what is durable, and
the gateway about where live messages follow a replay (``Replay.live_from``); it checks that no gap is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from amqp_ext.message.fields import ttl_of
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import Refused
from gateway.core.model import CONTENT, HELD, Row
from gateway.core.replay.states import Replay, ReplayState
from tests.gateway.core.machines.naive_threads import WatchedStore

if TYPE_CHECKING:
    from tests.gateway.core.machines.naive_links import Consumer


def matches(pattern: str, topic: str) -> bool:
    """The model's three kinds of pattern: a topic, everything below a level, and all but reserved topics."""
    if pattern == ">":
        return not topic.startswith("#")
    if pattern.endswith("/>"):
        return topic.startswith(pattern[:-1])
    return topic == pattern


def message(serial: int, padding: int, ttl_ms: int) -> tuple[bytes, int]:
    """A message with unique content, and the offset of its bare message."""
    header = b"\x00\x53\x70\xc0\x05\x03\x40\x40\x52%c" % ttl_ms if ttl_ms else b""
    data = b"%d %*s" % (serial, padding, b"")
    return b"%s\x00\x53\x75\xa0%c%s" % (header, len(data), data), len(header)


def is_expired(row: Row, now_ms: int) -> bool:
    """Whether the ttl in the message's header is over."""
    ttl_ms = ttl_of(row[CONTENT]) if row[3] else None
    return ttl_ms is not None and row[1] + ttl_ms < now_ms


class Publisher:
    """A publisher's link."""

    def __init__(self, store: WatchedStore) -> None:
        self._store = store
        self.waiting: set[bytes] = set()
        """Delivered, with no outcome yet."""
        self.accepted_contents: set[bytes] = set()
        self.refused_contents: set[bytes] = set()

    def accepted(self, deliveries: Sequence[bytes], *, at_once: bool = False) -> None:
        assert self._store.contents.keys() >= set(deliveries), "accepted before it was durable"
        self.waiting -= set(deliveries)
        self.accepted_contents.update(deliveries)

    def not_stored(self, deliveries: Sequence[bytes], refused: Refused | None) -> None:
        assert self.accepted_contents.isdisjoint(deliveries)
        self.waiting -= set(deliveries)
        self.refused_contents.update(deliveries)

    def check(self) -> None:
        """No refused message is stored, and every accepted one is."""
        assert self._store.contents.keys().isdisjoint(self.refused_contents)
        assert self._store.contents.keys() >= self.accepted_contents


class Content:
    """
    The messages of an endpoint under one cursor number: from its creation, or the start of a replay, to the next
    replay.

    Its messages are handed out in the order of ids; a message that comes back keeps its place.
    """

    def __init__(
        self, store: WatchedStore, endpoint: Endpoint, replay_from: int | None, takes: Callable[[str], bool]
    ) -> None:
        self._store = store
        self._takes = takes
        self.number = endpoint.cursor_number
        self.replay: Replay | None = endpoint.replay if replay_from is not None else None
        self.replay_from = replay_from
        self.replay_cursor = self.replay.cursor if self.replay is not None else None
        self.live_from: int | None = None
        """Messages from this id on are live, and do not come by the replay."""
        self.cut: int | None = None
        """Where a replay ended that was forced to complete."""
        self.was_forced = False
        """The replay was forced to complete, so some of its messages may not be acknowledged."""
        self.was_interrupted = False
        """There was a crash meanwhile."""
        self.began = replay_from
        """``replay_from`` as it was before the replay failed."""
        self.routed: set[bytes] = set()
        """Contents of the messages that came by a route, and that no replay will put here."""
        self.stayed: set[bytes] = set()
        """Those of ``routed`` that were here before its replay, which was told to keep them."""
        self.ids: set[int] = set()
        """Every durable message that is, or was, on the endpoint; the replay may not have put some of them yet."""
        self.ready: set[int] = set()
        self.unsettled: dict[int, Consumer] = {}
        self.gone: set[int] = set()
        self.rejected: set[int] = set()
        """Rejected but not yet moved: no consumer gets them again."""
        self.withdrawn: set[int] = set()
        """Being removed: acknowledged in a transaction that is committing, or on the way to a dead message queue."""
        self.failures: dict[int, int] = {}
        self.handed_out_once: set[int] = set()
        for row in store.published.values():
            self.offer(row)

    # --- messages come ----------------------------------------------------------------------------------------------

    def is_replayed(self, row: Row) -> bool:
        """Whether the replay puts this message here."""
        return (
            self.replay_from is not None
            and row[0] >= self.replay_from
            and (self.live_from is None or row[0] < self.live_from)
            and (self.cut is None or row[0] < self.cut)
            and row[HELD] is None
            and row[CONTENT] not in self.stayed
            and self._takes(row[2])
        )

    def note_hand_over(self) -> None:
        """Take over ``live_from`` of the replay; to be called before anything is published."""
        if self.replay is not None and self.replay.live_from is not None:
            self.live_from = self.replay.live_from

    def offer(self, row: Row) -> None:
        """A message has become durable."""
        if row[CONTENT] in self.routed or self.is_replayed(row):
            self.ids.add(row[0])
            self.ready.add(row[0])

    def kept(self, unlogged: set[bytes], found: Sequence[int], trimmed_below: int) -> set[bytes]:
        """
        Contents that stay when a replay is told to keep unlogged messages.

        Args:
            unlogged: Contents that the log did not take; some are not committed yet.
            found: The committed messages that the gateway keeps.
            trimmed_below: The log has nothing below this id, or is about to trim it, or tried and failed.
        """
        store = self._store
        lacking = [
            i for i in self.ids - self.gone if i in store.messages and store.messages[i][HELD] is not None
        ]
        lacking = [i for i in lacking if store.published[i][CONTENT] in self.routed]
        assert set(found) >= set(lacking), "what the log does not have is to stay"
        assert all(i in lacking or i < trimmed_below for i in found), "the log has it"
        here = {store.published[i][CONTENT]: i for i in self.ids - self.gone}
        return {
            content
            for content in self.routed
            if here.get(content) in found or (content not in store.contents and content in unlogged)
        }

    def keep(self, kept: set[bytes], failures: dict[int, int]) -> None:
        """The replay began, and kept these."""
        self.stayed |= kept
        self.routed |= kept
        for row in self._store.published.values():
            if row[CONTENT] in kept:
                self.offer(row)
                if row[0] in failures:
                    self.failures[row[0]] = failures[row[0]]

    def is_fresh(self, message_id: int) -> bool:
        """Whether the message came live, so that it can expire."""
        if self.replay is None or self.replay_from is None:
            return True
        return self.live_from is not None and message_id >= self.live_from

    # --- and go -----------------------------------------------------------------------------------------------------

    def next_for(self, consumer: Consumer) -> int | None:
        """The id that this consumer must get next."""
        if not consumer.selects:
            return min(self.ready, default=None)
        return min((i for i in self.ready if consumer.wants(i)), default=None)

    def check_next(self, message_id: int, consumer: Consumer) -> None:
        assert message_id in self.ready, f"{message_id} was handed out, and is not ready"
        assert consumer.wants(message_id)
        if not consumer.selects:
            assert message_id == min(self.ready), f"{message_id} was handed out, {min(self.ready)} was due"
        elif message_id not in self.handed_out_once:
            # A message that came back may be offered again only after those that were there before.
            due = min(i for i in self.ready - self.handed_out_once if consumer.wants(i))
            assert message_id == due, f"{message_id} was handed out, {due} was due"

    def handed_out(self, message_id: int, consumer: Consumer) -> None:
        self.check_next(message_id, consumer)
        self.ready.remove(message_id)
        self.handed_out_once.add(message_id)
        self.unsettled[message_id] = consumer

    def given_back(self, message_id: int, *, failed: bool) -> None:
        del self.unsettled[message_id]
        self.rejected.discard(message_id)
        self.ready.add(message_id)
        if failed:
            self.failures[message_id] = self.failures.get(message_id, 0) + 1

    def settled(self, message_id: int) -> None:
        del self.unsettled[message_id]
        self.removed(message_id)

    def withdraw(self, message_id: int) -> None:
        """A transaction that acknowledges it begins to commit."""
        del self.unsettled[message_id]
        self.withdrawn.add(message_id)

    def taken_to_remove(self, message_id: int) -> None:
        """It is on the way to a dead message queue, and no consumer may get it."""
        self.ready.discard(message_id)
        self.rejected.discard(message_id)
        self.withdrawn.add(message_id)

    def committed(self, message_id: int) -> None:
        """The transaction that acknowledged it is committed."""
        self.withdrawn.discard(message_id)
        self.removed(message_id)

    def not_committed(self, message_id: int, consumer: Consumer | None) -> None:
        """The commit failed: the message is its consumer's again, or ready if the consumer has left."""
        self.withdrawn.discard(message_id)
        if message_id not in self.ids:
            return  # A failed replay has removed it.
        if consumer is not None:
            self.unsettled[message_id] = consumer
        else:
            self.ready.add(message_id)

    def removed(self, message_id: int) -> None:
        self.ready.discard(message_id)
        self.rejected.discard(message_id)
        self.failures.pop(message_id, None)
        self.gone.add(message_id)

    # --- what becomes of replays ------------------------------------------------------------------------------------

    def failed(self) -> None:
        """The replay failed: the messages that it put are dropped, and those that came live stay."""
        self.note_hand_over()
        published = self._store.published
        left = {i for i in self.ids if published[i][CONTENT] in self.routed}
        self.replay_from = self.replay = None
        self.ids = left
        self.ready &= left
        self.gone &= left
        self.withdrawn &= left
        self.rejected &= left
        self.unsettled = {i: consumer for i, consumer in self.unsettled.items() if i in left}
        self.failures = {i: count for i, count in self.failures.items() if i in left}

    def forced(self, position: int) -> None:
        """The replay is forced to complete where it is."""
        self.note_hand_over()
        self.cut = position
        published = self._store.published
        given_up = {i for i in self.ready if i >= position and published[i][CONTENT] not in self.routed}
        given_up = {i for i in given_up if self.live_from is None or i < self.live_from}
        self.ids -= given_up
        self.ready -= given_up

    def restarted(self, replay: Replay | None) -> None:
        """Messages whose settlement was not durable are ready again; a replay continues from what is durable of it."""
        self.was_interrupted = True
        self.replay = replay if self.began is not None else None
        self.live_from = replay.live_from if replay is not None and self.began is not None else None
        self.replay_from = self.began
        if replay is not None and replay.state is ReplayState.FAILED:
            self.replay_from = self.replay = None
        if replay is not None and replay.is_reading:
            self.cut = None
        for row in self._store.published.values():
            self.offer(row)
        self.ids = {
            i
            for i in self.ids
            if self._store.published[i][CONTENT] in self.routed or self.is_replayed(self._store.published[i])
        }
        self.gone = {i for i in self.ids if self._store.is_removed(self.numbers, i)}
        self.ready = self.ids - self.gone
        self.unsettled.clear()
        self.rejected.clear()
        self.withdrawn.clear()
        self.handed_out_once.clear()
        self.failures = dict(self._store.cursors[self.number].attempts)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The cursors that say what is settled here: the endpoint's, and the replay's."""
        return (self.number,) if self.replay_cursor is None else (self.number, self.replay_cursor)
