"""
Last-value queues: their index of the newest message of each key follows the log.

Each queue has a follower, which is a reader of the log like any other: history first, from the position of the index,
then live. The follower updates the index in commits of its own, some milliseconds later and for many messages at a
time, so no publisher waits for it. For a new queue, or one with other topics, it reads from the log's beginning. The
log is not trimmed beyond the index (``Trimming.possible_below``); a message that leaves the log while it is a value is
held.

A reader of the values waits until the index has everything that is committed at that moment, reads the values below
that position, and continues with the log from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gateway.core.effects import KeepValues
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.last_values import digest_of, key_of
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID, TOPIC, Row
from gateway.core.replay.starts import Resolved
from gateway.vpn.clients import OwnClient
from gateway.vpn.feeds.log_feed import LogFeed, Readers
from gateway.vpn.state import VpnPart, VpnService, VpnState
from gateway.vpn.turns import ADMINISTRATION
from gateway.vpn.upkeep.trimming import Trimmer
from store.errors import ReadFailed, WriteFailed
from store.ports import MAX_ID

LOOK_SECONDS: Final = 1.0
"""From one look at the queues to the next: how late an expired value goes, and a failure is tried again."""

GATHER_SECONDS: Final = 0.02
"""How long values are gathered before they are written: a key that changes often is written less often."""

MANY: Final = 1_000
"""With so many values, they are written without a further wait."""

MOST_GATHERED: Final = 20_000
"""Values of one queue in memory, at most; its follower waits while there are so many."""


class _NoRoom:
    """The account of a follower."""

    @staticmethod
    def has_room(size_bytes: int) -> bool:
        """No page is kept for it while it takes nothing."""
        return False


class Follower(VpnPart):
    """Makes the index of one queue follow the log. It is the link that a log reader sends to."""

    client = OwnClient(ADMINISTRATION)
    account: Any = _NoRoom

    def __init__(self, state: VpnState, endpoint: Endpoint, readers: Readers, trimmer: Trimmer) -> None:
        super().__init__(state)
        assert endpoint.values is not None
        self._endpoint = endpoint
        self._values = endpoint.values
        self._readers = readers
        self._trimmer = trimmer
        self._feed: LogFeed | None = None
        self._revision = -1
        """The revision of the values for which it reads."""
        self._beginning: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def look(self) -> None:
        """Begin to read if it does not, or read again if that is wanted; write what is due."""
        if self._revision != self._values.revision or (self._feed is None and self._beginning is None):
            self._stop()
            self._revision = self._values.revision
            self._beginning = self._loop.create_task(self._begin(self._revision))
        self._write()

    async def wait(self, is_met: Callable[[], bool]) -> None:
        """
        Wait for a condition that depends on the index.

        Raises:
            Refused: RESOURCE_DELETED, the queue is gone; INTERNAL, the log cannot be read, or the store not written.
        """
        self.look()
        if not is_met():
            met: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((is_met, met))
            self._write()
            await met

    def close(self) -> None:
        """The queue is gone, or the gateway stops."""
        self._stop()
        self._tell(Refused(ErrorCode.RESOURCE_DELETED, f"{self._endpoint.name!r} was deleted"))

    # --- reading the log ----------------------------------------------------------------------------------------------

    async def _begin(self, revision: int) -> None:
        # A piece that is being trimmed now was begun when this queue did not need it.
        await self._trimmer.take_turn()
        self._trimmer.end_turn()
        endpoint, values = self._endpoint, self._values
        try:
            if revision:
                await self._drop_others(revision)
        except ReadFailed as error:
            self._runtime.report("log_read_failed", error)
            self._beginning = None  # the next look begins again
            return
        self._beginning = None
        if values.revision != revision:
            return
        first = max(values.saved, self._broker.log.first_id)
        patterns = endpoint.topics.patterns
        without_below = self._history.taken_from(patterns).below
        start = Resolved(first, None, None, without_below=without_below)
        feed = self._feed = self._readers.read_log(start, patterns, self, stream=endpoint, is_traced=False)
        values.follows, values.is_held_up = lambda: feed.position, False
        feed.run()

    async def _drop_others(self, revision: int) -> None:
        """Remove the values that match none of the queue's topics any more."""
        endpoint, position = self._endpoint, 0
        matches = endpoint.topics.matches
        while position < MAX_ID and self._values.revision == revision:
            page = await self._state.read(
                self._reader.values_page, endpoint.cursor_number, position, MAX_ID, 0
            )
            self._values.remove(row[ID] for row in page.rows if not matches(row[TOPIC]))
            position = page.position

    def _stop(self) -> None:
        for running in (self._beginning, self._timer):
            if running is not None:
                running.cancel()
        self._beginning = self._timer = None
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def room(self) -> int:
        """How many messages of the log it takes now."""
        return MOST_GATHERED - self._values.waiting

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        """Messages of the queue's topics."""
        if self._values.revision != self._revision:
            self._loop.call_soon(self.look)
            return
        self._values.take(rows, self._endpoint.settings)
        if self._values.waiting >= MANY or self._waiting:
            self._write()
        elif self._timer is None:
            self._timer = self._loop.call_later(GATHER_SECONDS, self._write)

    def nothing_to_send(self) -> None:
        """It has read the whole log."""
        self._write()
        self._tell()

    def finish(self) -> None:
        """Nothing to do: the log has no end."""

    def refuse(self, refused: Refused) -> None:
        """The log cannot be read from that position; messages that have left it are not needed."""
        self._feed = None
        if refused.code is ErrorCode.INTERNAL:
            self._values.is_held_up = True
            self._tell(refused)
        else:
            self._loop.call_soon(self.look)

    # --- writing the index --------------------------------------------------------------------------------------------

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        endpoint = self._endpoint
        effect = self._values.change(endpoint.cursor_number, endpoint.settings, self._now_ms())
        if effect is not None:
            self._committer.commit([effect], lambda error: self._written(effect, error))

    def _written(self, effect: KeepValues, error: WriteFailed | None) -> None:
        self._values.written(effect, is_committed=error is None)
        if error is not None:
            self._tell(Refused(ErrorCode.INTERNAL, f"the store could not write: {error}"))
            return  # the next look tries again
        if self._values.waiting or self._waiting:
            self._write()
        if self._feed is not None and self._values.waiting < MANY:
            self._feed.run()
        self._tell()
        self._trimmer.run()

    def _tell(self, refused: Refused | None = None) -> None:
        waiting, self._waiting = self._waiting, []
        for is_met, met in waiting:
            if met.done():
                continue
            if refused is not None:
                met.set_exception(refused)
            elif is_met():
                met.set_result(None)
            else:
                self._waiting.append((is_met, met))


class LastValueQueues(VpnService):
    """The last-value queues of one Message VPN."""

    def __init__(self, state: VpnState, readers: Readers, trimmer: Trimmer) -> None:
        super().__init__(state)
        self._readers = readers
        self._trimmer = trimmer
        self._followers: dict[Endpoint, Follower] = {}

    def start(self) -> None:
        """Follow the log from the positions of the indexes."""
        self._every(LOOK_SECONDS, self.look)

    def close(self) -> None:
        """Follow the log no more."""
        super().close()
        for follower in self._followers.values():
            follower.close()

    def look(self) -> None:
        """Follow the log for all present queues, and no longer for deleted ones."""
        valued = self._broker.trimming.valued
        for endpoint in [endpoint for endpoint in self._followers if endpoint not in valued]:
            self._followers.pop(endpoint).close()
        for endpoint in valued:
            self._follower(endpoint).look()

    def _follower(self, endpoint: Endpoint) -> Follower:
        follower = self._followers.get(endpoint)
        if follower is None:
            follower = Follower(self._state, endpoint, self._readers, self._trimmer)
            self._followers[endpoint] = follower
        return follower

    async def values_below(self, endpoint: Endpoint) -> int:
        """
        Wait until the index has all that is committed now.

        Returns:
            The id below which the values include every message.

        Raises:
            Refused: As ``Follower.wait``.
        """
        values, next_id = endpoint.values, self._broker.log.next_id
        assert values is not None
        await self._follower(endpoint).wait(lambda: values.reached() >= next_id)
        return values.reached()

    async def page(
        self, endpoint: Endpoint, position: int, count: int
    ) -> tuple[list[tuple[str, Row]], int | None]:
        """
        Some of the values (key, message) from an id on, ``count`` at most, in the order of the log, and where the next
        ones begin; None where these were the last.

        Raises:
            Refused: As ``Follower.wait``.
            store.errors.ReadFailed: The store cannot be read.
        """
        if endpoint.values is None:
            return [], None
        await self.values_below(endpoint)
        cursor, now_ms = endpoint.cursor_number, self._now_ms()
        page = await self._state.read_in_turn(self._reader.values_page, cursor, position, MAX_ID, now_ms)
        rows, after = page.rows[:count], page.position
        if len(rows) < len(page.rows):
            after = page.rows[count][ID]
        value_key = endpoint.settings.value_key
        found = [(key_of(row, value_key) or "", row) for row in rows]
        return found, after if after < MAX_ID else None

    async def value_of(self, endpoint: Endpoint, key: str) -> int | None:
        """
        The message that is a key's value; None where it has none.

        Raises:
            Refused: As ``Follower.wait``.
            store.errors.ReadFailed: The store cannot be read.
        """
        if endpoint.values is None:
            return None
        await self.values_below(endpoint)
        return await self._state.read(self._reader.value_of, endpoint.cursor_number, digest_of(key))

    async def delete(self, endpoint: Endpoint, key: str | int) -> None:
        """
        Delete the value of a key; the next message with the key is its value again. The log keeps the message, and
        present readers are not told. Returns when that is durable.

        Args:
            key: The key, or the id of the message that is its value.

        Raises:
            Refused: NOT_FOUND, the key has no value; INTERNAL, the store could not write.
            store.errors.ReadFailed: The store cannot be read.
        """
        values = endpoint.values
        if isinstance(key, str):
            found = await self.value_of(endpoint, key)
        else:
            page, _ = await self.page(endpoint, key, 1)
            found = key if page and page[0][1][ID] == key else None
        if found is None or values is None:
            which = f"with the key {key[:80]!r}" if isinstance(key, str) else f"that is message {key}"
            raise Refused(ErrorCode.NOT_FOUND, f"{endpoint.name!r} has no value {which}")
        values.remove([found])
        await self._follower(endpoint).wait(lambda: values.is_idle)

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages were erased: they are values no longer."""
        for endpoint in self._broker.trimming.valued:
            assert endpoint.values is not None
            endpoint.values.remove(markers)
            self._follower(endpoint).look()
