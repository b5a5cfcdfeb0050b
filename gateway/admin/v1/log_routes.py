"""``GET /v1/log``: history, and what comes after it, for programs without AMQP."""

import re
from typing import Annotated, Any, Final

import structlog
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from starlette.types import Receive, Scope, Send

from amqp_ext.filters.filter_set import Filters
from amqp_ext.message.json_rows import JsonRows
from amqp_ext.replay_start import MAX_OFFSET, ReplayStart, ReplayStartError, from_options
from amqp_ext.topics import TopicPattern
from gateway import log_keys
from gateway.admin import rights
from gateway.admin.administrators import Administrator, administrator_of
from gateway.admin.http_connection import ABORT
from gateway.admin.rights import Subscribed, VpnQuery
from gateway.admin.semp.envelope import CLIENTS_ROOT, REFUSALS, SempError
from gateway.admin.semp.resources import vpn_of
from gateway.admin.v1.admitting import admitted
from gateway.admin.v1.clients import HttpClient
from gateway.admin.v1.log_forms import JsonLines, LogForm, ServerSentEvents
from gateway.admin.v1.log_stream import LogStream
from gateway.admin.waiting import while_waiting
from gateway.config.setting_types import ANONYMOUS_USER
from gateway.core.errors import ErrorCode, Refused
from gateway.core.selection import compile_filters
from gateway.vpn.message_vpn import MessageVpn

log = structlog.get_logger()

_EVENTS: Final = "text/event-stream"
_OFFSET: Final = re.compile(r"[0-9]{1,19}")

_FROM: Final = (
    "Where to begin, as every start is written: `beginning`, a date, `10m` (ago), `#123`, `rmid1:…`, `point:NAME`, "
    "`message-id:ID`, `match:SELECTOR`, `last`, `last:N`, `live`. Without it JSON lines "
    "begin at the beginning, and events live."
)
_UNTIL: Final = (
    "Where to end: `now`, a date, `#123` or `rmid1:…`. Without it JSON lines end with what is there now, and events "
    "never do."
)
_LAST_EVENT_ID: Final = (
    "The offset of the last message that came: those after it are sent, whatever `from` says. A browser says it when "
    "it connects again."
)
_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    **REFUSALS,
    200: {
        "description": "Messages, each as `rewind tail --json` prints it: a line each or, asked for with "
        "`Accept: text/event-stream`, an event each, whose `id` is the offset.",
        "content": {
            JsonLines.content_type: {"schema": {"type": "string"}},
            _EVENTS: {"schema": {"type": "string"}},
        },
    },
    204: {"description": "Of events that end: all came before, and a browser need not connect again."},
}


class _Read(Response):
    """The answer to a request for messages: all that was asked for, read and checked."""

    def __init__(
        self,
        request: Request,
        vpn: MessageVpn,
        user: str,
        start: ReplayStart,
        patterns: list[str],
        selector: str | None,
        limit: int | None,
        form: LogForm,
        *,
        resumes: bool,
    ) -> None:
        super().__init__()
        self._request = request
        self._vpn = vpn
        self._user = user
        self._start = start
        self._patterns = patterns
        self._selector = selector
        self._limit = limit
        self._form = form
        self._resumes = resumes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with admitted(self._request, self._user, self._vpn.name) as client:
            await self._read(client, scope, receive, send)

    async def _read(self, client: HttpClient, scope: Scope, receive: Receive, send: Send) -> None:
        vpn, patterns = self._vpn, self._patterns
        vpn.log.check_reads("there is nothing to read")
        selects = compile_filters(Filters(selector=self._selector))
        resolved = await while_waiting(
            self._request, vpn.log.resolve_start(self._start, patterns, client.user)
        )
        client.check()
        if self._resumes and resolved.last is not None and resolved.first > resolved.last:
            await Response(status_code=204)(scope, receive, send)
            return
        stream = LogStream(
            client,
            self._form,
            JsonRows(vpn.log.generation),
            self._limit,
            scope.get(ABORT, lambda: None),
            vpn.lease,
            vpn.clock,
        )
        feed = vpn.readers.read_log(resolved, patterns, stream, selects)
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [
                        (b"content-type", self._form.content_type.encode()),
                        (b"cache-control", b"no-store"),
                        (b"x-accel-buffering", b"no"),
                    ],
                }
            )
            await stream.run(feed, resolved, receive, send)
        finally:
            feed.close()
            self._tell(client, stream, resolved.first)

    def _tell(self, client: HttpClient, stream: LogStream, first: int) -> None:
        log.info(
            "http_read",
            **{
                log_keys.USER: client.user,
                log_keys.PEER: client.peer,
                log_keys.VPN: self._vpn.name,
                log_keys.TOPIC: ", ".join(self._patterns)[:300],
                log_keys.FIRST: first,
                log_keys.MESSAGES: stream.sent,
            },
        )


def _started(
    start: str | None, until: str | None, missing: str | None, last_event_id: str | None, *, is_events: bool
) -> ReplayStart:
    """
    The start that is asked for.

    Raises:
        ReplayStartError: It is none.
        SempError: INVALID_PARAMETER, nor is the last event's id.
    """
    if last_event_id is not None:
        if not _OFFSET.fullmatch(last_event_id) or int(last_event_id) >= MAX_OFFSET:
            raise SempError(
                "INVALID_PARAMETER", f"Last-Event-ID is the offset of a message, not {last_event_id[:80]!r}."
            )
        start = f"#{int(last_event_id) + 1}"
    if start is None and not is_events:
        start = "beginning"
    if start is None and until is None:
        start = "live"
    if until is None and not is_events:
        until = "now"
    options = {"replay-start": start, "until": until, "missing": missing}
    found = from_options({name: value for name, value in options.items() if value is not None})
    if found is None:
        raise ReplayStartError("There is no start.")
    return found


def log_read_routes() -> APIRouter:
    """``/v1/log``."""
    router = APIRouter(prefix=CLIENTS_ROOT, tags=["messages"])

    @router.get(
        "/log",
        summary="Messages of the log, and on: as JSON lines or as Server-Sent Events",
        dependencies=[rights.needs(rights.LOG_READ)],
        response_class=Response,
        responses=_ANSWERS,
    )
    async def read(
        request: Request,
        user: Annotated[Administrator, Depends(administrator_of)],
        subscribe: Subscribed = [">"],  # noqa: B006 - FastAPI copies it
        start: Annotated[str | None, Query(alias="from", description=_FROM, max_length=5_000)] = None,
        until: Annotated[str | None, Query(description=_UNTIL, max_length=100)] = None,
        missing: Annotated[
            str | None, Query(description="`clamp`: where the start is not in the log, the nearest that is.")
        ] = None,
        selector: Annotated[
            str | None, Query(description="A JMS selector that messages pass.", max_length=5_000)
        ] = None,
        limit: Annotated[int | None, Query(ge=1, le=MAX_OFFSET, description="At most so many.")] = None,
        vpn: VpnQuery = "default",
        last_event_id: Annotated[
            str | None, Header(alias="Last-Event-ID", description=_LAST_EVENT_ID)
        ] = None,
    ) -> Response:
        is_events = _EVENTS in request.headers.get("accept", "").lower()
        for pattern in subscribe:
            TopicPattern.parse(pattern)
        found = vpn_of(request, vpn).vpn
        if not found.settings.enabled:
            raise Refused(ErrorCode.NOT_ALLOWED, f"the Message VPN {vpn!r} is not enabled")
        return _Read(
            request,
            found,
            user.name or ANONYMOUS_USER,
            _started(start, until, missing, last_event_id, is_events=is_events),
            subscribe or [">"],
            selector,
            limit,
            ServerSentEvents() if is_events else JsonLines(),
            resumes=is_events and last_event_id is not None,
        )

    return router
