"""The answer to a request for messages of the log, history and what comes after it: a client, and its stream."""

from __future__ import annotations

import re
from typing import Final

import structlog
from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from amqp_ext.filters.filter_set import Filters
from amqp_ext.replay_start import MAX_OFFSET, ReplayStart, ReplayStartError, from_options
from gateway import log_keys
from gateway.admin.http_connection import ABORT
from gateway.admin.semp.envelope import SempError
from gateway.admin.v1.admitting import admitted
from gateway.admin.v1.clients import HttpClient
from gateway.admin.v1.log_forms import LogForm
from gateway.admin.v1.log_stream import LogStream, Texts
from gateway.admin.waiting import while_waiting
from gateway.core.replay.reading import ReplayMark, compile_filters
from gateway.vpn.message_vpn import MessageVpn

log = structlog.get_logger()

_OFFSET: Final = re.compile(r"[0-9]{1,19}")

LAST_EVENT_ID: Final = (
    "The offset of the last message that came: those after it are sent, whatever the start says. A browser says it "
    "when it connects again."
)


class LogAnswer(Response):
    """
    What was asked for, read and checked.

    Args:
        start: Where to begin, and to end.
        texts: Makes of each message what the form shows.
        mark: What is on history; None where it has no name.
        resumes: The client has had all before ``start``; where there is no more, it is told not to come again.
    """

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
        texts: Texts,
        *,
        mark: ReplayMark | None = None,
        resumes: bool,
    ) -> None:
        super().__init__()
        self._mark = mark
        self._request = request
        self._vpn = vpn
        self._user = user
        self._start = start
        self._patterns = patterns
        self._selector = selector
        self._limit = limit
        self._form = form
        self._texts = texts
        self._resumes = resumes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with admitted(self._request, self._user, self._vpn.name, f"log://{self._patterns[0]}") as client:
            await self._read(client, scope, receive, send)

    async def _read(self, client: HttpClient, scope: Scope, receive: Receive, send: Send) -> None:
        vpn, patterns = self._vpn, self._patterns
        vpn.log.check_reads("there is nothing to read")
        selects = compile_filters(Filters(selector=self._selector), mark=self._mark)
        resolved = await while_waiting(
            self._request, vpn.log.resolve_start(self._start, patterns, client.user)
        )
        client.check()
        if self._mark is not None:
            self._mark.below = vpn.broker.next_id
        if self._resumes and resolved.last is not None and resolved.first > resolved.last:
            await Response(status_code=204)(scope, receive, send)
            return
        stream = LogStream(
            client,
            self._form,
            self._texts,
            self._limit,
            scope.get(ABORT, lambda: None),
            vpn.lease,
            vpn.clock,
        )
        feed = vpn.readers.read_log(resolved, patterns, stream, selects, gives_way=self._form.gives_way)
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


def started(
    start: str | None,
    until: str | None,
    missing: str | None,
    last_event_id: str | None,
    *,
    is_events: bool,
    name: str | None = None,
) -> ReplayStart:
    """
    The start that is asked for; without one, JSON lines begin at the beginning, and events live.

    Args:
        last_event_id: Of the last event that came, where the client comes again.
        name: What the replay is called.

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
    options = {"replay-start": start, "until": until, "missing": missing, "replay-name": name}
    found = from_options({option: value for option, value in options.items() if value is not None})
    if found is None:
        raise ReplayStartError("There is no start.")
    return found
