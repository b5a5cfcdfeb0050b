"""
Messages that a client of HTTP publishes, a JSON text a line: taken as they come, and answered for when all are durable.

Only so much is read ahead of what is durable: a slow disk, or a client that sends quickly, does not become memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol

from amqp_ext.addresses.queue_names import queue_of_topic
from amqp_ext.message.json_message import MessageFormError, message_of_line
from gateway.admin.semp.envelope import problem_of
from gateway.admin.v1.clients import HttpClient
from gateway.config import Limits
from gateway.core.errors import ErrorCode, Refused
from gateway.ledger import Kind
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.publishing import bare_offset_of

MOST_LINE_BYTES: Final = 1_048_576
"""Bytes of a line. Reading JSON keeps the loop: 15 ms for so much; what is larger comes by AMQP."""

LONG_LINE_BYTES: Final = 16 * 1024
"""Bytes of a line from which on it is read on a thread."""

TURN_S: Final = 0.003
"""Seconds of the loop that reading lines takes before others have their turn."""

WINDOW_BYTES: Final = 2 * 1_048_576
"""Bytes of messages that are not durable yet, of one request."""

MOST_ERRORS: Final = 100
"""Lines whose errors are told; the others are counted."""


class RoomSource(Protocol):
    """Where there may be no room for more (``gateway.vpn.committer.Committer``, ``gateway.ledger.Account``)."""

    def wait_for_room(self, resume: Callable[[], None]) -> bool:
        """Whether there is none; if so ``resume`` is called once there is."""


class Submission:
    """
    The messages of one request (``gateway.vpn.clients.PublisherLink``). A delivery is a line's number and its size.

    Args:
        topic: What they are published to.
    """

    def __init__(self, client: HttpClient, vpn: MessageVpn, topic: str, limits: Limits) -> None:
        self.accepted_count = 0
        self.refused_count = 0
        self.errors: list[dict[str, Any]] = []
        """Of lines that were not taken, the first ones."""
        self.has_store_failed = False
        self._client = client
        self._vpn = vpn
        self._topic = topic
        self._queue = queue_of_topic(topic)
        self._limits = limits
        self._line = 0
        self._pending = 0
        self._pending_bytes = 0
        self._rest = b""
        self._is_skipping = False
        """The line that is coming is too long."""
        self._news = asyncio.Event()

    # --- what became of them --------------------------------------------------------------------------------------

    def accepted(self, deliveries: Any, *, at_once: bool = False) -> None:
        """These are durable."""
        self.accepted_count += len(deliveries)
        self._client.sent = self.accepted_count
        self._done(deliveries)

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None:
        """These were not taken; without a reason, as no queue and no log takes them."""
        refused = refused or Refused(ErrorCode.NOT_FOUND, "no queue and no log takes messages of this topic")
        for line, _ in deliveries:
            self._refuse(line, refused)
        self._done(deliveries)

    def _done(self, deliveries: Any) -> None:
        self._pending -= len(deliveries)
        self._pending_bytes -= sum([size for _, size in deliveries])
        self._count()
        self._news.set()

    def _refuse(self, line: int, refused: Refused) -> None:
        self.refused_count += 1
        self.has_store_failed |= refused.code is ErrorCode.INTERNAL
        if len(self.errors) < MOST_ERRORS:
            self.errors.append({"line": line, **problem_of(refused)})

    # --- they come --------------------------------------------------------------------------------------------------

    async def take(self, body: AsyncIterator[bytes]) -> None:
        """
        Take all lines, and return when what became of each is known.

        Raises:
            Refused: The client was ended; some may have been taken.
        """
        self._client.when_stopped(self._news.set)
        async for piece in body:
            first, *others = piece.split(b"\n")
            self._append(first)
            if others:
                *lines, last = self._whole(), *others
                self._rest = b""
                await self._take(lines)
                self._append(last)
            self._client.check()
            self._count()
        await self._take([self._whole()])
        while self._pending:
            await self._change()

    def _append(self, piece: bytes) -> None:
        """The line that is coming goes on."""
        if not self._is_skipping:
            self._rest += piece
            if len(self._rest) > MOST_LINE_BYTES:
                self._is_skipping, self._rest = True, b""

    def _whole(self) -> bytes | None:
        """The line that was coming has come; None where it was too long."""
        is_skipping, self._is_skipping = self._is_skipping, False
        return None if is_skipping else self._rest

    async def _take(self, lines: list[bytes | None]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + TURN_S
        contents: list[bytes] = []
        bares: list[int] = []
        deliveries: list[tuple[int, int]] = []
        size = 0
        for line in lines:
            self._line += 1
            if line is not None and not line.strip():
                continue
            try:
                if line is None or len(line) > MOST_LINE_BYTES:
                    raise Refused(
                        ErrorCode.MESSAGE_TOO_LARGE,
                        f"a line has at most {MOST_LINE_BYTES:,} bytes; larger messages come by AMQP",
                    )
                content = await self._read(line)
                bare = self._checked(content)
            except Refused as refused:
                self._refuse(self._line, refused)
                continue
            contents.append(content)
            bares.append(bare)
            deliveries.append((self._line, len(content)))
            size += len(content)
            if loop.time() >= until or size >= WINDOW_BYTES or len(contents) >= self._limits.link_credit:
                await self._publish(contents, bares, deliveries, size)
                contents, bares, deliveries, size = [], [], [], 0
                await asyncio.sleep(0)
                until = loop.time() + TURN_S
        if contents:
            await self._publish(contents, bares, deliveries, size)

    async def _read(self, line: bytes) -> bytes:
        try:
            if len(line) < LONG_LINE_BYTES:
                return message_of_line(line)
            return await asyncio.get_running_loop().run_in_executor(None, message_of_line, line)
        except MessageFormError as error:
            raise Refused(ErrorCode.DECODE_ERROR, str(error)) from None

    def _checked(self, content: bytes) -> int:
        """Where a message's bare message begins, where it is one that is taken."""
        limits = self._limits
        bare = bare_offset_of(content, limits.max_annotations_bytes)
        if len(content) > limits.max_message_bytes:
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a message of {len(content)} bytes; at most {limits.max_message_bytes} are taken (max_message_bytes)",
            )
        return bare

    async def _publish(
        self, contents: list[bytes], bares: list[int], deliveries: list[tuple[int, int]], size: int
    ) -> None:
        await self._room()
        self._pending += len(deliveries)
        self._pending_bytes += size
        self._count()
        if self._queue is not None and self._vpn.endpoints.find(self._queue) is None:
            deleted = Refused(ErrorCode.RESOURCE_DELETED, f"there is no queue {self._queue!r} any more")
            self.not_stored(deliveries, deleted)
            return
        self._vpn.publishing.publish(
            self, self._topic, contents, bares, deliveries, origin=self._client.peer_container
        )

    async def _room(self) -> None:
        """Until there is room for more."""
        sources: tuple[RoomSource, ...] = (self._vpn.committer, self._client.account)
        while self._pending_bytes >= WINDOW_BYTES or self._pending >= self._limits.link_credit:
            await self._change()
        for source in sources:
            while source.wait_for_room(self._news.set):
                await self._change()
        self._client.check()

    async def _change(self) -> None:
        self._client.check()
        self._news.clear()
        await self._news.wait()

    def _count(self) -> None:
        self._client.account.holds(Kind.UNFINISHED, self._pending_bytes + len(self._rest))
