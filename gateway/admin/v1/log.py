"""
``GET /v1/log``: history, then live messages, for programs without AMQP, as fast as the client reads.

There are three forms: JSON lines, Server-Sent Events, and events of many messages each (for the console). In each form
a message is one JSON text on one line. An event's ``id`` is the message's offset; a browser that reconnects sends the
last one as ``Last-Event-ID``. An event without data advances it, and no script sees that event. So a browser that has
received no message yet misses none, and where messages are rare the log need not be searched again.

Bytes that are encoded and not written yet are bounded, and so are the seconds of the loop that encoding takes. A client
that does not read halts its feed; if that lasts, its connection is cut (``gateway.admin.http.READ_S``).

Source: HTML Standard, section 9.2 (Server-sent events).
"""

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

import structlog
from fastapi import Depends, Header, Query, Request, Response
from starlette.types import Receive, Scope, Send

from amqp_ext.filters.filter_set import Filters
from amqp_ext.message.annotations import ReplayMark
from amqp_ext.message.json_rows import JsonRows
from amqp_ext.replay_start import MAX_OFFSET, NAME_CHARACTERS, ReplayStart, ReplayStartError, from_options
from amqp_ext.sasl import ANONYMOUS_USER
from amqp_ext.topics import TopicPattern
from gateway.admin import rights
from gateway.admin.administered_gateway import HttpClient
from gateway.admin.administrators import Administrator, administrator_of, admitted
from gateway.admin.http import ABORT
from gateway.admin.operations import LazyRouter, only_known
from gateway.admin.rights import Subscribed, VpnQuery
from gateway.admin.semp.envelope import CLIENTS_ROOT, REFUSALS, Responses, SempError, problem_of
from gateway.admin.semp.resources import serving_vpn, while_waiting
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID, Row
from gateway.core.replay.reading import compile_filters
from gateway.core.replay.starts import Resolved
from gateway.ledger import Kind
from gateway.logging import log_keys
from gateway.vpn.feeds.log_feed import LogFeed
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.role import Lease
from gateway.vpn.runtime import Clock
from gateway.vpn.turns import RowsAtOnce

log = structlog.get_logger()

# --- forms --------------------------------------------------------------------------------------------------------

RETRY_MS: Final = 1_000
"""Milliseconds after which a browser reconnects."""


ANY: Final = 1 << 62
"""Any number of messages."""

MOST_LISTED: Final = 600
"""Messages in an event of many, at most: with the pause between events 6,000 a second, more than anybody reads."""

LISTED_PAUSE_S: Final = 0.1
"""Seconds from one event of many to the next: a table that changes more often is no easier to follow, and each event
takes time from the publishers."""


class LogForm(ABC):
    """How messages are written."""

    content_type: str
    most_messages = ANY
    """Messages of one write, at most."""
    pause_s = 0.0
    """Seconds from one write to the next, at least."""
    gives_way = False
    """For people: a feed that falls behind live traffic yields to it, as a reader of history does."""

    @abstractmethod
    def messages(self, rows: Sequence[Row], texts: Sequence[str]) -> bytes:
        """Encode messages, of which ``texts`` are the JSON texts."""

    def joined(self, pieces: Sequence[bytes], last_id: int) -> bytes:
        """The bytes of one write: the pieces that ``messages`` made since the last write, up to this message."""
        return b"".join(pieces)

    def head(self, first_id: int) -> bytes:
        """Written before all messages; ``first_id`` is the lowest id that they can have."""
        return b""

    def nothing(self, next_id: int) -> bytes:
        """Written now and then while there are no messages: none below this id is to come."""
        return b""

    def end(self, next_id: int) -> bytes:
        """Written after all messages that were asked for."""
        return b""

    @abstractmethod
    def error(self, problem: dict[str, Any]) -> bytes:
        """Written where the answer ends for another reason."""


class JsonLines(LogForm):
    """A message a line; a last line ``{"error": …}`` where not all could be sent."""

    content_type = "application/x-ndjson"

    def messages(self, rows: Sequence[Row], texts: Sequence[str]) -> bytes:
        """A line each. There are no empty lines as a heartbeat: not every reader of lines accepts them."""
        return ("\n".join(texts) + "\n").encode()

    def error(self, problem: dict[str, Any]) -> bytes:
        """A line with the error, in place of a message."""
        return json.dumps({"error": problem}).encode() + b"\n"


class ServerSentEvents(LogForm):
    """An event a message."""

    content_type = "text/event-stream"

    def head(self, first_id: int) -> bytes:
        """An id to resume from, in case the connection breaks before the first message."""
        return b"retry: %d\nid: %d\n\n" % (RETRY_MS, max(first_id - 1, 0))

    def messages(self, rows: Sequence[Row], texts: Sequence[str]) -> bytes:
        """Events."""
        return "".join(
            [f"id: {row[ID]}\ndata: {text}\n\n" for row, text in zip(rows, texts, strict=True)]
        ).encode()

    def nothing(self, next_id: int) -> bytes:
        """A comment, which shows proxies that the connection is alive, and an id to resume from."""
        return b":\nid: %d\n\n" % max(next_id - 1, 0)

    def end(self, next_id: int) -> bytes:
        """An event that tells a page to close its EventSource, which would connect again."""
        return b"event: end\nid: %d\ndata: {}\n\n" % max(next_id - 1, 0)

    def error(self, problem: dict[str, Any]) -> bytes:
        """An event with the error."""
        return b"event: error\ndata: " + json.dumps({"error": problem}).encode() + b"\n\n"


class ListedEvents(ServerSentEvents):
    """One event for all messages since the last event, a JSON array: for a page that lists them."""

    most_messages = MOST_LISTED
    pause_s = LISTED_PAUSE_S
    gives_way = True

    def messages(self, rows: Sequence[Row], texts: Sequence[str]) -> bytes:
        """Members of the array."""
        return ",".join(texts).encode()

    def joined(self, pieces: Sequence[bytes], last_id: int) -> bytes:
        """The event."""
        return b"event: msgs\nid: %d\ndata: [%b]\n\n" % (last_id, b",".join(pieces))


Texts: TypeAlias = Callable[[Sequence[Row], int | None], Sequence[str]]
"""Makes the JSON text of each row; the id is that of the last message before live, if it is among the rows."""


# --- one reader's messages ---------------------------------------------------------------------------------------

PIECE_BYTES: Final = 256 * 1024
"""Bytes that are encoded before they are written: enough to make the cost of a write negligible."""

MOST_ROWS: Final = 256
"""Messages that are encoded in one go, where that is quick."""

TURN_S: Final = 0.005
"""Seconds for which encoding may occupy the loop before it yields."""

STOP_S: Final = 1.0
"""Seconds that a client has to read what was written, once it was stopped."""

HEARTBEAT_S: Final = 15.0
"""Seconds without a message after which the client gets a sign that the connection is alive."""


class LogStream:
    """
    Writes the messages of one feed to one client (``gateway.vpn.clients.ConsumerLink``).

    Args:
        limit: Messages after which it ends; None for no limit.
        abort: Cuts the connection.
        lease: Messages may be delivered only while it is held; None where no other gateway can take the store over.
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
    ) -> None:
        self.client = client
        self.account = client.account
        self.sent = 0
        """Messages so far."""
        self._form = form
        self._texts = texts
        self._left = limit
        self._abort = abort
        self._ending: asyncio.TimerHandle | None = None
        self._lease = lease
        self._seconds = clock.seconds
        self._pieces: list[bytes] = []
        self._size = 0
        self._unsent = 0
        """Bytes of the piece that was written last: the socket may not have taken them yet."""
        self._messages = 0
        self._last_id = 0
        self._row_bytes = 1
        self._at_once = RowsAtOnce(clock.seconds, MOST_ROWS)
        self._spent = 0.0
        self._is_left = False
        """The client has gone."""
        self._refused: Refused | None = None
        self._news = asyncio.Event()
        self._over = asyncio.Event()

    # --- what the feed calls ------------------------------------------------------------------------------------

    def room(self) -> int:
        """How many messages ``send`` takes right now."""
        free = PIECE_BYTES - self._size
        if free <= 0 or self._spent >= TURN_S or self._over.is_set():
            return 0
        room = min(
            self._at_once.count,
            max(free // self._row_bytes, 1),
            self._form.most_messages - self._messages,
        )
        return room if self._left is None else min(room, self._left)

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        """Encode these messages, at most ``room``, for the next write."""
        began = self._seconds()
        with self._at_once:
            piece = self._form.messages(rows, self._texts(rows, end_id))
        self._pieces.append(piece)
        self._size += len(piece)
        self._messages += len(rows)
        self._last_id = rows[-1][ID]
        self._row_bytes = len(piece) // len(rows) or 1
        self.sent += len(rows)
        self.client.sent = self.sent
        self._spent += self._seconds() - began
        self.account.holds(Kind.UNSETTLED, self._unsent + self._size)
        if self.account.is_over:
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
        """The client has every message there is."""

    def finish(self) -> None:
        """End: every message that was asked for was sent."""
        self._news.set()
        self._over.set()

    def refuse(self, refused: Refused) -> None:
        """End with an error."""
        self._refused = self._refused or refused
        self.finish()

    # --- writing --------------------------------------------------------------------------------------------------

    async def run(self, feed: LogFeed, resolved: Resolved, receive: Receive, send: Send) -> None:
        """Write the body of the answer, until the feed ends or the client leaves."""
        leaving = asyncio.ensure_future(self._watch(receive))
        self.client.when_stopped(self._stopped)
        try:
            await _write(send, self._form.head(resolved.first))
            feed.run()
            while not self._is_left:
                if not self._pieces:
                    if self._over.is_set():
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
                self._unsent = len(piece)
                del piece
                # The piece is written, or in the socket's buffer. Others have the next turn of the loop.
                await asyncio.sleep(0)
                self._size, self._spent = 0, 0.0
                self.account.holds(Kind.UNSETTLED, self._unsent)
                if not self._over.is_set():
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

    def _end(self, feed: LogFeed, last_id: int | None) -> bytes:
        if self._refused is not None:
            return self._form.error(problem_of(self._refused))
        # A feed with an end has looked at ids after that end.
        return self._form.end(feed.position if last_id is None else min(feed.position, last_id + 1))

    async def _wait(self, feed: LogFeed, send: Send) -> None:
        """Wait for messages; while there are none, give the client a sign of life now and then."""
        self._news.clear()
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await self._news.wait()
        except TimeoutError:
            if not self._pieces and (self._lease is None or self._lease.holds()):
                await _write(send, self._form.nothing(feed.position))

    async def _rest(self) -> None:
        """Pause, so that the messages that arrive meanwhile are written together."""
        if self._form.pause_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._form.pause_s):
                    await self._over.wait()

    async def _wait_for_lease(self, lease: Lease) -> None:
        self._news.clear()
        lease.wait(self._news.set)
        await self._news.wait()
        if self._refused is not None:
            # Discard what was not written: another gateway may have the store.
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


# --- the answer --------------------------------------------------------------------------------------------------

_OFFSET: Final = re.compile(r"[0-9]{1,19}")

LAST_EVENT_ID: Final = (
    "The offset of the last message that the client received: the messages after it are sent, whatever the start says. "
    "A browser sends it when it connects again."
)


@dataclass(frozen=True, slots=True)
class Reading:
    """
    Which messages of the log are read.

    Attributes:
        start: Where to begin, and where to end.
        patterns: Topic patterns.
        limit: Messages at most; None for no limit.
        mark: The mark on history; None for a replay without a name.
        resumes: The client reconnects, and has everything before ``start``. Where nothing more is to come, the answer
            is 204, which tells it not to reconnect.
    """

    start: ReplayStart
    patterns: list[str]
    selector: str | None = None
    limit: int | None = None
    mark: ReplayMark | None = None
    resumes: bool = False


class LogAnswer(Response):
    """
    The answer to a request whose query is parsed: it resolves the start, then streams the messages.

    Args:
        texts: Makes the JSON text of each message.
    """

    def __init__(
        self, request: Request, vpn: MessageVpn, user: str, reading: Reading, form: LogForm, texts: Texts
    ) -> None:
        super().__init__()
        self._request = request
        self._vpn = vpn
        self._user = user
        self._reading = reading
        self._form = form
        self._texts = texts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = f"log://{self._reading.patterns[0]}"
        with admitted(self._request, self._user, self._vpn.name, address) as client:
            await self._read(client, scope, receive, send)

    async def _read(self, client: HttpClient, scope: Scope, receive: Receive, send: Send) -> None:
        vpn, reading = self._vpn, self._reading
        vpn.broker.policy.check_reads("there is nothing to read")
        selects = compile_filters(Filters(selector=reading.selector), mark=reading.mark)
        resolved = await while_waiting(
            self._request, vpn.log.resolve_start(reading.start, reading.patterns, client.user)
        )
        client.check()
        if reading.mark is not None:
            reading.mark.below = vpn.broker.log.unused_id
        if reading.resumes and resolved.last is not None and resolved.first > resolved.last:
            await Response(status_code=204)(scope, receive, send)
            return
        abort = scope.get(ABORT, lambda: None)
        stream = LogStream(client, self._form, self._texts, reading.limit, abort, vpn.lease, vpn.clock)
        feed = vpn.readers.read_log(
            resolved, reading.patterns, stream, selects, gives_way=self._form.gives_way
        )
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
            what = client.log_values(", ".join(reading.patterns))
            log.info("http_read", **what, **{log_keys.FIRST: resolved.first})


def start_of(
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
        last_event_id: The id of the last event that the client received, where it reconnects.
        name: The name of the replay.

    Raises:
        ReplayStartError: The start is not valid.
        SempError: INVALID_PARAMETER, the last event's id is not an offset.
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
        raise ReplayStartError("The start is missing.")
    return found


# --- the route ---------------------------------------------------------------------------------------------------

_FROM: Final = (
    "Where to begin, as any replay start: `beginning`, a date, `10m` (ago), `#123`, `rmid1:…`, `point:NAME`, "
    "`message-id:ID`, `match:SELECTOR`, `last`, `last:N`, `live`. By default JSON lines "
    "begin at the beginning, and events at `live`."
)
_UNTIL: Final = (
    "Where to end: `now`, a date, `#123` or `rmid1:…`. By default JSON lines end with the newest message "
    "now, and events do not end."
)
_NAME: Final = (
    "The name of this replay: the annotation `x-opt-replay-name` of messages that were published before the request; "
    "live messages do not have it."
)
_ANSWERS: Final[Responses] = {
    **REFUSALS,
    200: {
        "description": "Messages in the JSON form of `rewind tail --json`: one a line, or, with "
        "`Accept: text/event-stream`, one an event, whose `id` is the offset.",
        "content": {
            form.content_type: {"schema": {"type": "string"}} for form in (JsonLines, ServerSentEvents)
        },
    },
    204: {
        "description": "Events with an end: the client has received all of them, and a browser does not connect again."
    },
}

_ROUTER = LazyRouter(CLIENTS_ROOT, tags=["messages"], dependencies=[Depends(only_known)])


@dataclass(frozen=True, slots=True)
class _Asked:
    """The query of a request, without its topics."""

    start: Annotated[str | None, Query(alias="from", description=_FROM, max_length=5_000)] = None
    until: Annotated[str | None, Query(description=_UNTIL, max_length=100)] = None
    missing: Annotated[
        str | None,
        Query(description="`clamp`: if the start is not in the log, begin at the nearest message that is."),
    ] = None
    selector: Annotated[
        str | None, Query(description="A JMS selector that the messages have to match.", max_length=5_000)
    ] = None
    name: Annotated[str | None, Query(description=_NAME, max_length=NAME_CHARACTERS)] = None
    limit: Annotated[int | None, Query(ge=1, le=MAX_OFFSET, description="How many messages at most.")] = None


@_ROUTER.operation("GET", "/log", rights.LOG_READ, response_class=Response, responses=_ANSWERS)
async def read(
    request: Request,
    user: Annotated[Administrator, Depends(administrator_of)],
    asked: Annotated[_Asked, Depends()],
    subscribe: Subscribed = [">"],  # noqa: B006 - FastAPI copies it
    vpn: VpnQuery = "default",
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", description=LAST_EVENT_ID)] = None,
) -> Response:
    """Read the log, then live messages, as JSON lines or as Server-Sent Events."""
    is_events = ServerSentEvents.content_type in request.headers.get("accept", "").lower()
    for pattern in subscribe:
        TopicPattern.parse(pattern)
    found = serving_vpn(request, vpn)
    start = start_of(
        asked.start, asked.until, asked.missing, last_event_id, is_events=is_events, name=asked.name
    )
    reading = Reading(
        start,
        subscribe or [">"],
        asked.selector,
        asked.limit,
        None if start.name is None else ReplayMark(start.name),
        resumes=is_events and last_event_id is not None,
    )
    texts = JsonRows(found.broker.log.generation, reading.mark).texts
    form = ServerSentEvents() if is_events else JsonLines()
    return LogAnswer(request, found, user.name or ANONYMOUS_USER, reading, form, texts)


ROUTES: Final = _ROUTER.routes
