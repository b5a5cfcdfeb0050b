"""Messages of the replay log as they come, for a page that shows them: Server-Sent Events."""

from typing import Annotated, Any, Final

from fastapi import Depends, Header, Query, Request, Response

from amqp_ext.topics import TopicPattern
from gateway.admin import rights
from gateway.admin.administrators import Administrator, administrator_of
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.rights import MOST_PATTERNS
from gateway.admin.semp.message_attributes import ListedRows
from gateway.admin.semp.resources import Name, check_log, vpn_of
from gateway.admin.semp.tree import Tree
from gateway.admin.v1.log_answer import LAST_EVENT_ID, LogAnswer, started
from gateway.admin.v1.log_forms import ListedEvents
from gateway.config.setting_types import ANONYMOUS_USER
from gateway.core.errors import ErrorCode, Refused

_EVENTS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Events `msgs`, each with a JSON array of messages as `msgs` lists them, and as `id` the last "
        "offset that was looked at. An event `error` where it ends.",
        "content": {ListedEvents.content_type: {"schema": {"type": "string"}}},
    }
}


def live_routes() -> list[LazyRoute]:
    """``/monitor/msgVpns/{vpn}/replayLogs/{log}/live``."""
    tree = Tree("monitor", "/msgVpns")

    @tree.get_as_it_is(
        "/{vpn}/replayLogs/{log}/live",
        rights.WHOLE_VPN,
        summary="Messages as they come: Server-Sent Events of many messages each, no more than somebody can look at",
        responses=_EVENTS,
    )
    async def live(
        request: Request,
        vpn: Name,
        log: Name,
        user: Annotated[Administrator, Depends(administrator_of)],
        start: Annotated[str, Query(description="Any replay start.", max_length=5_000)] = "live",
        subscribe: Annotated[
            list[str] | None, Query(description="Topic patterns.", max_length=MOST_PATTERNS)
        ] = None,
        selector: Annotated[str | None, Query(description="A JMS selector.", max_length=5_000)] = None,
        last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", description=LAST_EVENT_ID)] = None,
    ) -> Response:
        found = vpn_of(request, vpn).vpn
        check_log(log)
        patterns = subscribe or [">"]
        for pattern in patterns:
            TopicPattern.parse(pattern)
        if not found.settings.enabled:
            raise Refused(ErrorCode.NOT_ALLOWED, f"the Message VPN {vpn!r} is not enabled")
        return LogAnswer(
            request,
            found,
            user.name or ANONYMOUS_USER,
            started(start, None, None, last_event_id, is_events=True),
            patterns,
            selector,
            None,
            ListedEvents(),
            ListedRows(found.log.generation),
            resumes=last_event_id is not None,
        )

    return tree.routes
