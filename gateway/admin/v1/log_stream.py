"""
A log reader's answer over HTTP: messages as they are read, at the pace at which its client takes them.

What is made and not written yet is bounded in bytes, and what making it takes of the loop in seconds; a client that
does not read stops its reader, and is closed by its connection if that lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from starlette.types import Receive, Send

from gateway.admin.semp.envelope import problem_of
from gateway.admin.v1.clients import HttpClient
from gateway.admin.v1.log_forms import LogForm
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID, Row
from gateway.core.replay.starts import Resolved
from gateway.ledger import Kind
from gateway.vpn.role import Lease
from gateway.vpn.runtime import Clock
from gateway.vpn.turns import RowsAtOnce

PIECE_BYTES: Final = 256 * 1024
"""Bytes that are made before they are written: large enough that what a write costs does not show."""

MOST_ROWS: Final = 256
"""Messages that are made at once, where they are quick."""

TURN_S: Final = 0.005
"""Seconds of the loop that making messages takes before others have their turn."""

STOP_S: Final = 1.0
"""Seconds that a client has to take what was written, once it is to end."""

HEARTBEAT_S: Final = 15.0
"""Seconds without a message after which the client is shown that the connection lives."""


class Feed(Protocol):
    """Where the messages come from (``gateway.vpn.feeds.log_feed.LogFeed``)."""

    @property
    def position(self) -> int:
        """The first id that may not have been sent."""

    def run(self) -> None:
        """Send what is taken."""

    def close(self) -> None:
        """Send nothing any more."""


class Texts(Protocol):
    """Makes JSON of messages (``amqp_ext.message.json_rows.JsonRows``)."""

    def texts(self, rows: Sequence[Row], end_id: int | None) -> Sequence[str]:
        """The JSON text of each; ``end_id`` is the last message before live, if it is among them."""


class LogStream:
    """
    One reader's messages on their way (``gateway.vpn.clients.ConsumerLink``).

    Args:
        limit: Messages after which it ends; None for as many as there are.
        abort: Cuts the connection.
        lease: Without it nothing may be delivered just now; None where nobody can take the store over.
    """

    def __init__(
        self,
        client: HttpClient,
        form: LogForm,
        texts: Texts,
        limit: int | None,
        abort: Callable[[], None],
        lease: Lease | None,
        clock: Clock,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.client = client
        self.sent = 0
        """Messages."""
        self._form = form
        self._texts = texts
        self._left = limit
        self._abort = abort
        self._ending: asyncio.TimerHandle | None = None
        self._lease = lease
        self._seconds = clock.seconds
        self._heartbeat_s = heartbeat_s
        self._pieces: list[bytes] = []
        self._size = 0
        self._messages = 0
        self._last_id = 0
        self._row_bytes = 1
        self._at_once = RowsAtOnce(clock.seconds, MOST_ROWS)
        self._spent = 0.0
        self._is_over = False
        self._is_left = False
        """The client has gone."""
        self._refused: Refused | None = None
        self._news = asyncio.Event()
        self._over = asyncio.Event()

    # --- what the feed calls ------------------------------------------------------------------------------------

    def room(self) -> int:
        """How many messages it can take right now."""
        free = PIECE_BYTES - self._size
        if free <= 0 or self._spent >= TURN_S or self._is_over:
            return 0
        room = min(
            self._at_once.count,
            max(free // self._row_bytes, 1),
            self._form.most_messages - self._messages,
        )
        return room if self._left is None else min(room, self._left)

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        """Make these ready to be written, at most ``room``."""
        began = self._seconds()
        with self._at_once:
            piece = self._form.messages(rows, self._texts.texts(rows, end_id))
        self._pieces.append(piece)
        self._size += len(piece)
        self._messages += len(rows)
        self._last_id = rows[-1][ID]
        self._row_bytes = len(piece) // len(rows) or 1
        self.sent += len(rows)
        self.client.sent = self.sent
        self._spent += self._seconds() - began
        account = self.client.account
        account.holds(Kind.UNSETTLED, self._size)
        if account.is_over:
            self.refuse(
                Refused(
                    ErrorCode.RESOURCE_LIMIT, "a message is larger than a client may have (connection_bytes)"
                )
            )
        if self._left is not None:
            self._left -= len(rows)
            if not self._left:
                self.finish()
        self._news.set()

    def nothing_to_send(self) -> None:
        """It has all there is."""

    def finish(self) -> None:
        """All that was asked for was sent."""
        self._is_over = True
        self._news.set()
        self._over.set()

    def refuse(self, refused: Refused) -> None:
        """It cannot go on."""
        self._refused = self._refused or refused
        self.finish()

    # --- on its way -------------------------------------------------------------------------------------------------

    async def run(self, feed: Feed, resolved: Resolved, receive: Receive, send: Send) -> None:
        """Answer with what the feed has, from where it begins until that ends or the client leaves."""
        leaving = asyncio.ensure_future(self._watch(receive))
        self.client.when_stopped(self._stopped)
        try:
            await _write(send, self._form.head(resolved.first))
            feed.run()
            while not self._is_left:
                if not self._pieces:
                    if self._is_over:
                        break
                    await self._wait(feed, send)
                    continue
                if self._lease is not None and not self._lease.holds():
                    await self._wait_for_lease(self._lease)
                    continue
                piece = self._form.joined(self._pieces, self._last_id)
                self._pieces.clear()
                self._messages = 0
                await _write(send, piece)
                del piece
                # Written, or the socket's buffer has it: the loop's next turn is for others.
                await asyncio.sleep(0)
                self._size, self._spent = 0, 0.0
                self.client.account.holds(Kind.UNSETTLED, 0)
                if not self._is_over:
                    feed.run()
                    await self._rest()
            await send(
                {"type": "http.response.body", "body": self._end(feed, resolved.last), "more_body": False}
            )
        finally:
            leaving.cancel()
            if self._ending is not None:
                self._ending.cancel()
            feed.close()
            if self._lease is not None:
                self._lease.forget(self._news.set)

    def _end(self, feed: Feed, last_id: int | None) -> bytes:
        if self._refused is not None:
            return self._form.error(problem_of(self._refused))
        # A reader with an end has looked behind it.
        return self._form.end(feed.position if last_id is None else min(feed.position, last_id + 1))

    async def _wait(self, feed: Feed, send: Send) -> None:
        """For messages; now and then the client is shown that there are none."""
        self._news.clear()
        try:
            async with asyncio.timeout(self._heartbeat_s):
                await self._news.wait()
        except TimeoutError:
            if not self._pieces and (self._lease is None or self._lease.holds()):
                await _write(send, self._form.nothing(feed.position))

    async def _rest(self) -> None:
        """What comes meanwhile is written together."""
        if self._form.pause_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._form.pause_s):
                    await self._over.wait()

    async def _wait_for_lease(self, lease: Lease) -> None:
        self._news.clear()
        lease.wait(self._news.set)
        await self._news.wait()
        if self._refused is not None:
            self._drop()

    def _drop(self) -> None:
        """What was not written is not to be, as another gateway may have the store."""
        self._pieces.clear()
        self._size = self._messages = 0

    def _stopped(self) -> None:
        assert self.client.refused is not None
        self.refuse(self.client.refused)
        if self._ending is None:
            self._ending = asyncio.get_running_loop().call_later(STOP_S, self._abort)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._is_left = True
        self.finish()


async def _write(send: Send, piece: bytes) -> None:
    if piece:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
