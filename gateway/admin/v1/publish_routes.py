"""``POST /v1/publish``: messages from programs without AMQP, answered when they are durable."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import structlog
from fastapi import Depends, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from amqp_ext.addresses.address import AddressKind, parse_target
from amqp_ext.addresses.queue_names import queue_of_topic, queue_topic
from gateway import log_keys
from gateway.admin import rights
from gateway.admin.administrators import Administrator, administrator_of
from gateway.admin.lazy_route import LazyRoute, LazyRouter
from gateway.admin.rights import PublishedTo, VpnQuery
from gateway.admin.semp.envelope import (
    CLIENTS_ROOT,
    REFUSALS,
    FailureMeta,
    Meta,
    Problem,
    SempError,
    told,
)
from gateway.admin.semp.resources import resources_of, vpn_of
from gateway.admin.v1.admitting import admitted
from gateway.admin.v1.clients import HttpClient
from gateway.admin.v1.submission import MOST_ERRORS, MOST_LINE_BYTES, Submission
from gateway.admin.waiting import LEFT
from gateway.config.setting_types import ANONYMOUS_USER
from gateway.core.endpoint.settings import EndpointKind, Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.message_vpn import MessageVpn

log = structlog.get_logger()

SILENCE_S: Final = 30.0
"""Seconds that the rest of a body may be silent."""


class LineProblem(Problem):
    """Why a line was not taken."""

    line: int = Field(description="Its number, from 1.")
    condition: str = Field(description="The AMQP condition that an AMQP client would be told.")


class Published(BaseModel):
    """What became of the lines."""

    accepted: int = Field(description="Messages that are durable.")
    refused: int = Field(description="Lines that were not taken.")
    errors: list[LineProblem] = Field(description=f"Why; of the first {MOST_ERRORS} of them.")


class PublishAnswer(BaseModel):
    """All were taken, and are durable."""

    data: Published
    links: dict[str, str]
    meta: Meta


class PublishFailure(BaseModel):
    """Not all were taken; without `data`, none was read."""

    meta: FailureMeta
    data: Published | None = None


_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    **{
        code: {**answer, "model": PublishFailure} if "model" in answer else answer
        for code, answer in REFUSALS.items()
    },
    200: {"model": PublishAnswer, "description": "All are durable"},
}
_BODY: Final = {
    "requestBody": {
        "required": True,
        "description": "A message a line, as `rewind tail --json` prints one; `body` is all that it needs. A line has "
        f"at most {MOST_LINE_BYTES:,} bytes; there may be any number of them.",
        "content": {
            "application/x-ndjson": {
                "schema": {"type": "string"},
                "example": '{"body":"one"}\n{"body":"two","properties":{"n":2}}\n',
            }
        },
    }
}


def topic_of(vpn: MessageVpn, address: str) -> str:
    """
    The topic that an address publishes to; a queue it names is made where that is allowed.

    Raises:
        amqp_ext.addresses.texts.AddressError: It is none.
        amqp_ext.topics.TopicSyntaxError: Nor is its topic.
        Refused: Nothing can be sent there.
    """
    parsed = parse_target(address)
    if parsed.kind is AddressKind.TOPIC:
        topic = vpn.publishing.check_topic(parsed.name)
        queue = queue_of_topic(topic)
        if queue is not None and vpn.endpoints.find(queue) is None:
            raise Refused(ErrorCode.NOT_FOUND, f"there is no queue {queue!r}")
        return topic
    if parsed.kind is AddressKind.QUEUE:
        kind, exclusive = parsed.options.get("kind"), parsed.options.get("exclusive")
        found = vpn.endpoints.queue_for(
            parsed.name,
            kind=EndpointKind(kind) if kind is not None else None,
            exclusive=Exclusivity(exclusive) if exclusive is not None else None,
            may_create=parsed.options.get("create") != "never",
        )
        return queue_topic(found.name)
    raise Refused(
        ErrorCode.NOT_ALLOWED, f"nothing can be sent to {address[:250]!r}: it is no queue and no topic"
    )


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    """
    The body as it comes.

    Raises:
        HTTPException: 408, it does not go on; 499, the client has left.
    """
    pieces = request.stream()
    while True:
        try:
            async with asyncio.timeout(SILENCE_S):
                piece = await anext(pieces, None)
        except TimeoutError:
            raise HTTPException(408, f"The body has not gone on for {SILENCE_S:g} s.") from None
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
        text = (
            f"{submission.refused_count} of {count} not taken; line {first['line']}: {first['description']}"
        )
        status = 503 if submission.has_store_failed else 400
        more = {key: first[key] for key in ("replayError", "subcode") if key in first}
        return told(request, SempError(first["status"], text, status), data, **more)
    meta = {"responseCode": 200, "request": {"method": request.method, "uri": str(request.url)}}
    return JSONResponse({"data": data, "links": {"uri": str(request.url)}, "meta": meta})


def _tell(client: HttpClient, vpn: MessageVpn, topic: str, submission: Submission) -> None:
    log.info(
        "http_published",
        **{
            log_keys.USER: client.user,
            log_keys.PEER: client.peer,
            log_keys.VPN: vpn.name,
            log_keys.TOPIC: topic[:300],
            log_keys.MESSAGES: submission.accepted_count,
            log_keys.REFUSED: submission.refused_count,
        },
    )


def publish_routes() -> list[LazyRoute]:
    """``/v1/publish``."""
    router = LazyRouter(CLIENTS_ROOT, tags=["messages"])

    @router.operation(
        "POST",
        "/publish",
        summary="Publish a JSON message a line; answered when all are durable",
        dependencies=[rights.needs(rights.PUBLISHED)],
        response_class=JSONResponse,
        responses=_RESPONSES,
        openapi_extra=_BODY,
    )
    async def publish(
        request: Request,
        user: Annotated[Administrator, Depends(administrator_of)],
        address: PublishedTo,
        vpn: VpnQuery = "default",
    ) -> JSONResponse:
        found = vpn_of(request, vpn).vpn
        if not found.settings.enabled:
            raise Refused(ErrorCode.NOT_ALLOWED, f"the Message VPN {vpn!r} is not enabled")
        with admitted(request, user.name or ANONYMOUS_USER, found.name, address, is_sender=True) as client:
            topic = topic_of(found, address)
            await found.committer.committed()
            submission = Submission(client, found, topic, resources_of(request).limits)
            try:
                await submission.take(_pieces(request))
            except Refused as refused:
                raise SempError("FAIL", f"{refused.text}; some lines may have been taken", 503) from None
            finally:
                _tell(client, found, topic, submission)
            return _answer(request, submission)

    return router.routes
