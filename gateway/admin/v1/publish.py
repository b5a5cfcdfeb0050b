"""
``POST /v1/publish``: publish messages from programs without AMQP, one JSON text a line.

Lines are published as they arrive; the answer is sent when all messages are durable. At most ``WINDOW_BYTES`` of a
request are read and not durable yet: neither a slow disk nor a fast client fills the memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import structlog
from fastapi import Depends, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from amqp_ext.addresses.address import queue_of_topic
from amqp_ext.message.json_message import MessageFormError, message_of_line
from amqp_ext.sasl import ANONYMOUS_USER
from gateway.admin import rights
from gateway.admin.administered_gateway import HttpClient
from gateway.admin.administrators import Administrator, administrator_of, admitted
from gateway.admin.operations import LazyRouter, only_known
from gateway.admin.rights import PublishedTo, VpnQuery
from gateway.admin.semp import envelope
from gateway.admin.semp.resources import LEFT, resources_of, serving_vpn
from gateway.config import Limits
from gateway.core.errors import ErrorCode, Refused
from gateway.ledger import Kind
from gateway.logging import log_keys
from gateway.vpn.jobs.job import topic_at
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.publishing import bare_offset_of

MOST_LINE_BYTES: Final = 1_048_576
"""Longest line, in bytes: parsing this much JSON holds up the loop for 15 ms. Larger messages have to come by AMQP."""

LONG_LINE_BYTES: Final = 16 * 1024
"""Lines of this many bytes or more are parsed on a thread."""

TURN_S: Final = 0.003
"""Seconds for which parsing lines may occupy the loop before it yields."""

WINDOW_BYTES: Final = 2 * 1_048_576
"""Messages of one request that are not durable yet, in bytes at most."""

MOST_ERRORS: Final = 100
"""Lines whose errors the answer lists; further errors are only counted."""


class Submission:
    """
    The messages of one request, as a ``gateway.vpn.clients.PublisherLink``. A delivery is a pair: the number of the
    line, and the size of its message.

    Args:
        topic: The topic that the messages are published to.
    """

    def __init__(self, client: HttpClient, vpn: MessageVpn, topic: str, limits: Limits) -> None:
        self.accepted_count = 0
        self.refused_count = 0
        self.errors: list[dict[str, Any]] = []
        """Of the first lines that were not taken."""
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
        """The line that is arriving is too long: the rest of it is discarded."""
        self._news = asyncio.Event()

    # --- outcomes -------------------------------------------------------------------------------------------------

    def accepted(self, deliveries: Any, *, at_once: bool = False) -> None:
        """These deliveries are durable."""
        self.accepted_count += len(deliveries)
        self._client.sent = self.accepted_count
        self._done(deliveries)

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None:
        """These deliveries were not taken: for the reason given, or because no queue and no log takes their topic."""
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
            self.errors.append({"line": line, **envelope.problem_of(refused)})

    # --- lines ----------------------------------------------------------------------------------------------------

    async def take(self, body: AsyncIterator[bytes]) -> None:
        """
        Publish all lines, and return when the outcome of each is known.

        Raises:
            Refused: The client was stopped; some lines may have been published.
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
        """Add a piece to the line that is arriving."""
        if not self._is_skipping:
            self._rest += piece
            if len(self._rest) > MOST_LINE_BYTES:
                self._is_skipping, self._rest = True, b""

    def _whole(self) -> bytes | None:
        """The line that has arrived; None where it was too long."""
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
        """Check a message against the limits (raises Refused), and return the offset of its bare message."""
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
        if self._queue is not None and self._vpn.endpoints.by_name.get(self._queue) is None:
            deleted = Refused(ErrorCode.RESOURCE_DELETED, f"there is no queue {self._queue!r} any more")
            self.not_stored(deliveries, deleted)
            return
        self._vpn.publishing.publish(
            self, self._topic, contents, bares, deliveries, origin=self._client.peer_container
        )

    async def _room(self) -> None:
        """Wait until there is room for more messages."""
        while self._pending_bytes >= WINDOW_BYTES or self._pending >= self._limits.link_credit:
            await self._change()
        for wait_for_room in (self._vpn.committer.wait_for_room, self._client.account.wait_for_room):
            while wait_for_room(self._news.set):
                await self._change()
        self._client.check()

    async def _change(self) -> None:
        self._client.check()
        self._news.clear()
        await self._news.wait()

    def _count(self) -> None:
        self._client.account.holds(Kind.UNFINISHED, self._pending_bytes + len(self._rest))


log = structlog.get_logger()

SILENCE_S: Final = 30.0
"""Seconds to wait for the next piece of a body."""


class LineProblem(envelope.Problem):
    """Why a line was refused."""

    line: int = Field(description="The number of the line, from 1.")
    condition: str = Field(description="The condition that an AMQP client would get.")


class Published(BaseModel):
    """The outcome of the lines."""

    accepted: int = Field(description="Messages that are durable.")
    refused: int = Field(description="Lines that were refused.")
    errors: list[LineProblem] = Field(description=f"Why, for the first {MOST_ERRORS} refused lines.")


class PublishAnswer(BaseModel):
    """All messages were accepted, and are durable."""

    data: Published
    links: dict[str, str]
    meta: envelope.Meta


class PublishFailure(BaseModel):
    """Not all lines were accepted; without `data`, no line was read."""

    meta: envelope.FailureMeta
    data: Published | None = None


_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    **{
        code: {**answer, "model": PublishFailure} if "model" in answer else answer
        for code, answer in envelope.REFUSALS.items()
    },
    200: {"model": PublishAnswer, "description": "All messages are durable"},
}
_BODY: Final = {
    "requestBody": {
        "required": True,
        "description": "One message a line, in the JSON form of `rewind tail --json`; only `body` is required. A line "
        f"has at most {MOST_LINE_BYTES:,} bytes; there may be any number of lines.",
        "content": {
            "application/x-ndjson": {
                "schema": {"type": "string"},
                "example": '{"body":"one"}\n{"body":"two","properties":{"n":2}}\n',
            }
        },
    }
}


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    """
    The body, piece by piece.

    Raises:
        HTTPException: 408, no piece came for ``SILENCE_S``; 499, the client has left.
    """
    pieces = request.stream()
    while True:
        try:
            async with asyncio.timeout(SILENCE_S):
                piece = await anext(pieces, None)
        except TimeoutError:
            raise HTTPException(408, f"Nothing more of the body has arrived for {SILENCE_S:g} s.") from None
        except ClientDisconnect:
            raise HTTPException(LEFT, "the client left") from None
        if piece is None:
            return
        yield piece


def _answer(request: Request, submission: Submission) -> JSONResponse:
    data = {
        "accepted": submission.accepted_count,
        "refused": submission.refused_count,
        "errors": submission.errors,
    }
    if submission.refused_count:
        first = submission.errors[0]
        count = submission.accepted_count + submission.refused_count
        text = f"{submission.refused_count} of {count} lines refused; line {first['line']}: {first['description']}"
        status = 503 if submission.has_store_failed else 400
        more = {key: first[key] for key in ("replayError", "subcode") if key in first}
        return envelope.told(request, envelope.SempError(first["status"], text, status), data, **more)
    meta = {"responseCode": 200, "request": {"method": request.method, "uri": str(request.url)}}
    return JSONResponse({"data": data, "links": {"uri": str(request.url)}, "meta": meta})


_ROUTER = LazyRouter(envelope.CLIENTS_ROOT, tags=["messages"], dependencies=[Depends(only_known)])


@_ROUTER.operation("POST", "/publish", rights.PUBLISHED, responses=_RESPONSES, openapi_extra=_BODY)
async def publish(
    request: Request,
    user: Annotated[Administrator, Depends(administrator_of)],
    address: PublishedTo,
    vpn: VpnQuery = "default",
) -> JSONResponse:
    """Publish messages, one JSON text a line; the answer comes when all are durable."""
    found = serving_vpn(request, vpn)
    with admitted(request, user.name or ANONYMOUS_USER, found.name, address, is_sender=True) as client:
        topic = topic_at(address, found.endpoints, found.publishing)
        await found.committer.committed()
        submission = Submission(client, found, topic, resources_of(request).gateway.vpns.settings.limits)
        try:
            await submission.take(_pieces(request))
        except Refused as refused:
            raise envelope.SempError(
                "FAIL", f"{refused.text}; some lines may have been accepted", 503
            ) from None
        finally:
            refused_count = {log_keys.REFUSED: submission.refused_count}
            log.info("http_published", **client.log_values(topic), **refused_count)
        return _answer(request, submission)


ROUTES: Final = _ROUTER.routes
