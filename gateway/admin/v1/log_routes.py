"""``GET /v1/log``: history, and what comes after it, for programs without AMQP."""

from typing import Annotated, Any, Final

from fastapi import Depends, Header, Query, Request, Response

from amqp_ext.message.json_rows import JsonRows
from amqp_ext.replay_start import MAX_OFFSET
from amqp_ext.replay_start.modifiers import NAME_CHARACTERS
from amqp_ext.topics import TopicPattern
from gateway.admin import rights
from gateway.admin.administrators import Administrator, administrator_of
from gateway.admin.lazy_route import LazyRoute, LazyRouter
from gateway.admin.rights import Subscribed, VpnQuery
from gateway.admin.semp.envelope import CLIENTS_ROOT, REFUSALS
from gateway.admin.semp.resources import vpn_of
from gateway.admin.v1.log_answer import LAST_EVENT_ID, LogAnswer, started
from gateway.admin.v1.log_forms import JsonLines, ServerSentEvents
from gateway.config.setting_types import ANONYMOUS_USER
from gateway.core.errors import ErrorCode, Refused
from gateway.core.replay.reading import ReplayMark

_EVENTS: Final = "text/event-stream"

_FROM: Final = (
    "Where to begin, as every start is written: `beginning`, a date, `10m` (ago), `#123`, `rmid1:…`, `point:NAME`, "
    "`message-id:ID`, `match:SELECTOR`, `last`, `last:N`, `live`. Without it JSON lines "
    "begin at the beginning, and events live."
)
_UNTIL: Final = (
    "Where to end: `now`, a date, `#123` or `rmid1:…`. Without it JSON lines end with what is there now, and events "
    "never do."
)
_NAME: Final = (
    "What this replay is called: history has it as the annotation `x-opt-replay-name`, and what is published from now "
    "on has not."
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


def log_read_routes() -> list[LazyRoute]:
    """``/v1/log``."""
    router = LazyRouter(CLIENTS_ROOT, tags=["messages"])

    @router.operation(
        "GET",
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
        name: Annotated[str | None, Query(description=_NAME, max_length=NAME_CHARACTERS)] = None,
        limit: Annotated[int | None, Query(ge=1, le=MAX_OFFSET, description="At most so many.")] = None,
        vpn: VpnQuery = "default",
        last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", description=LAST_EVENT_ID)] = None,
    ) -> Response:
        is_events = _EVENTS in request.headers.get("accept", "").lower()
        for pattern in subscribe:
            TopicPattern.parse(pattern)
        found = vpn_of(request, vpn).vpn
        if not found.settings.enabled:
            raise Refused(ErrorCode.NOT_ALLOWED, f"the Message VPN {vpn!r} is not enabled")
        place = started(start, until, missing, last_event_id, is_events=is_events, name=name)
        mark = None if place.name is None else ReplayMark(place.name)
        return LogAnswer(
            request,
            found,
            user.name or ANONYMOUS_USER,
            place,
            subscribe or [">"],
            selector,
            limit,
            ServerSentEvents() if is_events else JsonLines(),
            JsonRows(found.log.generation, mark),
            mark=mark,
            resumes=is_events and last_event_id is not None,
        )

    return router.routes
