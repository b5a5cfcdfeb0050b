"""
Messages of the replay log and of endpoints: in lists, one with all its sections, its bytes as a file; and the live
messages of the log, as Server-Sent Events.

Looking at the messages of an endpoint does not consume them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

from fastapi import Depends, Header, Path, Query, Request, Response
from pydantic import Field
from starlette.types import Receive, Scope, Send
from typing_extensions import TypedDict

from amqp_ext.message.json_rows import BodyKind, body_bytes, sections_of
from amqp_ext.replay_id import format_replay_id
from amqp_ext.replay_start import MAX_OFFSET
from amqp_ext.sasl import ANONYMOUS_USER
from amqp_ext.selector.lexer import SelectorError
from amqp_ext.selector.selector import compile_selector
from amqp_ext.topics import TopicFilter, TopicPattern
from gateway.admin import rights
from gateway.admin.administrators import Administrator, administrator_of, admitted
from gateway.admin.operations import Tree
from gateway.admin.rights import MOST_PATTERNS
from gateway.admin.semp.endpoints import COLLECTIONS, Collection, OfQueue
from gateway.admin.semp.envelope import (
    Attributes,
    Body,
    InVpn,
    ListAnswer,
    Responses,
    SempError,
    Shown,
    resource,
    written,
)
from gateway.admin.semp.paging import Pages, encoded
from gateway.admin.semp.resources import OfLog, OfVpn, logged_id, range_of, serving_vpn, while_waiting
from gateway.admin.v1.log import LAST_EVENT_ID, ListedEvents, LogAnswer, Reading, start_of
from gateway.core.effects import DelayedMessage
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import BARE, CONTENT, Row
from gateway.core.replay.search import Search
from gateway.ledger import Kind
from gateway.vpn.administration import Administration
from gateway.vpn.log import LoggedMessage, Order, Wanted, summary
from gateway.vpn.message_vpn import MessageVpn
from store.ports import MAX_ID

# --- in a list ----------------------------------------------------------------------------------------------------

MOST_LISTED_PATTERNS: Final = 100
"""Topic patterns in a request for a list: each message's topic is matched against all of them."""


class ListedMessage(TypedDict):
    """The attributes of a message in a list; none is read from the body."""

    msgId: int
    replicationGroupMsgId: str
    spooledTime: int
    spooledTimeMs: int
    topic: str
    priority: int
    contentSize: int
    contentType: str | None
    correlationId: str | None
    isErased: bool


MESSAGE: Final = resource("LoggedMsg", ListedMessage)


def listed_message(message: LoggedMessage, generation: int) -> ListedMessage:
    """A message in a list; ``generation`` is the log's."""
    return {
        "msgId": message.message_id,
        "replicationGroupMsgId": format_replay_id(generation, message.message_id),
        "spooledTime": message.time_ms // 1_000,
        "spooledTimeMs": message.time_ms,
        "topic": message.topic,
        "priority": message.priority,
        "contentSize": message.size_bytes,
        "contentType": message.content_type,
        "correlationId": message.correlation_id,
        "isErased": message.is_erased,
    }


def wanted(patterns: Sequence[str], selector: str | None) -> Wanted:
    """
    The messages that are asked for: those with one of these topics that pass the selector.

    Raises:
        amqp_ext.topics.TopicSyntaxError: A pattern is not valid.
        SempError: INVALID_PARAMETER, the selector is not valid.
    """
    matches = TopicFilter([TopicPattern.parse(pattern) for pattern in patterns], implicit_all=True).matches
    if not selector:
        return Wanted(patterns, matches)
    try:
        return Wanted(patterns, matches, Search(compile_selector(selector)))
    except SelectorError as error:
        raise SempError("INVALID_PARAMETER", f"The selector is not valid: {error}") from None


def place_of(cursor: str | None) -> tuple[int, int] | None:
    """The position and the bound in a paging cursor; None for a text of another form."""
    found = None if cursor is None else re.fullmatch(r"([0-9]{1,19}):([0-9]{1,19})", cursor)
    place = None if found is None else (int(found[1]), int(found[2]))
    return None if place is None or max(place) > MAX_ID else place


# --- one message --------------------------------------------------------------------------------------------------

BYTES: Final[Responses] = {
    200: {
        "description": "The bytes.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
}


class Download(Response):
    """
    An answer that a browser saves as a file.

    Args:
        user: The user who asks; empty where no users are configured.
        name: The file's name; plain letters.
    """

    def __init__(self, request: Request, user: str, vpn: str, content: bytes, name: str) -> None:
        disposition = f'attachment; filename="{name}"'
        super().__init__(
            content,
            headers={**_HEADERS, "Content-Disposition": disposition},
            media_type="application/octet-stream",
        )
        self._request = request
        self._user = user or ANONYMOUS_USER
        self._vpn = vpn
        self._address = f"log://{name}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with admitted(self._request, self._user, self._vpn, self._address) as client:
            client.account.holds(Kind.UNSETTLED, len(self.body))
            if client.account.is_over:
                raise Refused(
                    ErrorCode.RESOURCE_LIMIT, "a message is larger than a client may have (connection_bytes)"
                )
            await super().__call__(scope, receive, send)


class _Body(TypedDict):
    kind: BodyKind
    contentType: str | None
    text: str | None
    base64: str | None
    isCut: bool
    size: int


class _Sections(InVpn):
    header: dict[str, Any]
    messageAnnotations: dict[str, Any]
    properties: dict[str, Any]
    applicationProperties: dict[str, Any]
    footer: dict[str, Any]
    body: _Body
    malformed: str | None


WHOLE_MESSAGE: Final = resource("WholeMsg", ListedMessage, _Sections)

MessageId = Annotated[int, Path(ge=1, lt=MAX_OFFSET, description="Its offset in the log.")]
"""The id of a message, in a path."""

_User = Annotated[Administrator, Depends(administrator_of)]

_MONITOR = Tree("monitor")
_ACTION = Tree("action")

# --- of the log ---------------------------------------------------------------------------------------------------

_PATH: Final = "/replayLogs/{log}/msgs"

_BETWEEN: Final = (
    "in place of `start` and `until`, the messages that exist between two ids; missing ids are no error."
)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which messages a request lists."""

    start: Annotated[str, Query(description="Ours: any replay start.")] = "beginning"
    topic: Annotated[str | None, Query(description="Ours: a topic pattern; the same as `subscribe`.")] = None
    until: Annotated[str | None, Query(description="Ours: the end: `now`, a date, `#123` or `rmid1:…`.")] = (
        None
    )
    subscribe: Annotated[
        list[str] | None,
        Query(
            description="Ours: topic patterns; those with `!` are exceptions.",
            max_length=MOST_LISTED_PATTERNS,
        ),
    ] = None
    selector: Annotated[str | None, Query(description="Ours: a JMS selector.", max_length=10_000)] = None
    order: Annotated[Order, Query(description="Ours: which message comes first.")] = Order.OLDEST
    firstMsgId: Annotated[
        int | None, Query(ge=0, lt=MAX_OFFSET, description=f"Ours: {_BETWEEN} The first id.")
    ] = None
    lastMsgId: Annotated[
        int | None, Query(ge=0, lt=MAX_OFFSET, description=f"Ours: {_BETWEEN} The last id.")
    ] = None

    @property
    def patterns(self) -> tuple[str, ...]:
        """Topic patterns; all topics, if none are named."""
        return (*(self.subscribe or ()), *([self.topic] if self.topic is not None else ())) or (">",)

    async def place(self, request: Request, vpn: MessageVpn) -> tuple[int, int]:
        """
        Where the list begins, and the bound at its other end.

        Raises:
            SempError: INVALID_PARAMETER, the request has ids, and a start or an end as well.
            amqp_ext.replay_start.ReplayStartError: The start, or the end, is not valid.
            Refused: The log has no such place.
        """
        if self.firstMsgId is not None or self.lastMsgId is not None:
            if self.start != "beginning" or self.until is not None:
                raise SempError("INVALID_PARAMETER", "Give ids, or `start` and `until`, not both.")
            log = vpn.broker.log
            first, end = max(self.firstMsgId or 0, log.first_id), log.next_id
            end = end if self.lastMsgId is None else min(end, self.lastMsgId + 1)
        else:
            start = range_of(self.start, self.until)
            resolved = await while_waiting(request, vpn.log.resolve_start(start, self.patterns))
            first, end = resolved.first, vpn.broker.log.next_id
            end = end if resolved.last is None else min(end, resolved.last + 1)
        return (first, end) if self.order is Order.OLDEST else (end, first)


@_MONITOR.list(_PATH, rights.WHOLE_VPN, MESSAGE)
async def messages(
    request: Request, administration: OfLog, paging: Pages, asked: Annotated[_Wanted, Depends()]
) -> ListAnswer:
    """Messages of the log, the oldest or the newest first."""
    running = administration.vpn
    paging.refuse_where(
        "Messages are chosen by `start`, `until`, `subscribe` and `selector`, not by `where`."
    )
    chosen = wanted(asked.patterns, asked.selector)
    position, bound = place_of(paging.after) or await asked.place(request, running)
    position = min(position, running.broker.log.next_id)  # a search from far above the log would not end
    listing = running.log.listing
    read = listing.oldest_first if asked.order is Order.OLDEST else listing.newest_first
    # The next message of a rare topic may be far away.
    found = await while_waiting(request, read(chosen, position, bound, paging.count))
    generation = running.broker.log.generation
    page = [paging.shown(listed_message(message, generation)) for message in found.messages]
    cursor = None if found.position is None else encoded(f"{found.position}:{bound}")
    return await paging.listed(page, cursor)


@_MONITOR.get(_PATH + "/{message}", rights.WHOLE_VPN, WHOLE_MESSAGE)
async def one_message(request: Request, administration: OfLog, message: MessageId) -> Attributes:
    """One message with all its sections; of a long body the beginning."""
    row = await _logged(request, administration, message)
    return await _whole(administration, row)


@_MONITOR.file(_PATH + "/{message}/body", rights.WHOLE_VPN, BYTES)
async def body(request: Request, administration: OfLog, message: MessageId, user: _User) -> Response:
    """The body of a message, as a file."""
    row = await _logged(request, administration, message)
    content = await administration.vpn.state.read(body_bytes, row[CONTENT], row[BARE])
    return Download(request, user.name, administration.vpn.name, content, f"message-{message}.bin")


@_MONITOR.file(_PATH + "/{message}/encoded", rights.WHOLE_VPN, BYTES)
async def as_received(request: Request, administration: OfLog, message: MessageId, user: _User) -> Response:
    """A message as it was received, in the encoding of AMQP 1.0."""
    row = await _logged(request, administration, message)
    return Download(request, user.name, administration.vpn.name, row[CONTENT], f"message-{message}.amqp")


async def _whole(administration: Administration, row: Row) -> dict[str, Any]:
    """A message with all its sections, which are decoded off the loop."""
    vpn = administration.vpn
    said = await vpn.state.read(sections_of, row[CONTENT])
    return {"msgVpnName": vpn.name, **listed_message(summary(row), vpn.broker.log.generation), **said}


async def _logged(request: Request, administration: Administration, message_id: int) -> Row:
    """
    The row of a message of the log.

    Raises:
        SempError: NOT_FOUND, the log does not have it.
        gateway.core.errors.Refused: REPLAY_DISABLED, the log cannot be read.
    """
    listing, broker = administration.vpn.log.listing, administration.vpn.broker
    broker.policy.check_reads("there is nothing to read")
    row = await while_waiting(request, listing.one(message_id)) if message_id < broker.log.next_id else None
    if row is None:
        raise SempError(
            "NOT_FOUND", f"Message {message_id} is not in the replay log, which {broker.log_facts().holds}."
        )
    return row


# --- of the log, as they come -------------------------------------------------------------------------------------

_EVENTS: Final[Responses] = {
    200: {
        "description": "Events `msgs`: the data is a JSON array of messages in the form of `msgs`, and the `id` is the "
        "last offset that was read. An event `error` if the answer ends.",
        "content": {ListedEvents.content_type: {"schema": {"type": "string"}}},
    }
}


@dataclass(frozen=True, slots=True)
class _Followed:
    """Which messages a request follows."""

    start: Annotated[str, Query(description="Any replay start.", max_length=5_000)] = "live"
    subscribe: Annotated[list[str] | None, Query(description="Topic patterns.", max_length=MOST_PATTERNS)] = (
        None
    )
    selector: Annotated[str | None, Query(description="A JMS selector.", max_length=5_000)] = None
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", description=LAST_EVENT_ID)] = None


@_MONITOR.file("/replayLogs/{log}/live", rights.WHOLE_VPN, _EVENTS)
async def live(
    request: Request, administration: OfLog, user: _User, asked: Annotated[_Followed, Depends()]
) -> Response:
    """Live messages as Server-Sent Events, many messages in each, and no more than a person can follow."""
    patterns = asked.subscribe or [">"]
    for pattern in patterns:
        TopicPattern.parse(pattern)
    found = serving_vpn(request, administration.vpn.name)
    reading = Reading(
        start_of(asked.start, None, None, asked.last_event_id, is_events=True),
        patterns,
        asked.selector,
        resumes=asked.last_event_id is not None,
    )
    generation = found.broker.log.generation

    def texts(rows: Sequence[Row], end_id: int | None) -> list[str]:
        return [written(listed_message(summary(row), generation)) for row in rows]

    return LogAnswer(request, found, user.name or ANONYMOUS_USER, reading, ListedEvents(), texts)


# --- of an endpoint -----------------------------------------------------------------------------------------------


SHOWN_KEY: Final = 1_000
"""Characters of a key in a list."""

ENDPOINT_MESSAGE: Final = resource("EndpointMsg", ListedMessage, deliveryCount=int, isUnacked=bool)


class _Delayed(NamedTuple):
    """A delayed message, and the generation of its log."""

    message: DelayedMessage
    generation: int


_DELAYED: Final = Shown[_Delayed](
    {
        "msgId": (int, lambda one: one.message.id),
        "replicationGroupMsgId": (str, lambda one: format_replay_id(one.generation, one.message.id)),
        "deliveryTime": (int, lambda one: one.message.due_ms // 1_000),
        "deliveryTimeMs": (int, lambda one: one.message.due_ms),
        "priority": (int, lambda one: one.message.priority),
        "contentSize": (int, lambda one: one.message.size_bytes),
        "deliveryCount": (int, lambda one: one.message.attempts),
        "isRetry": (bool, lambda one: one.message.is_retry),
    }
)
DELAYED_MESSAGE: Final = resource("DelayedMsg", _DELAYED)


class _Value(TypedDict):
    key: str
    isKeyCut: bool


VALUE: Final = resource("LastValue", ListedMessage, _Value)


class DeleteValue(Body):
    """The key whose value is to be removed: the key itself, or the message that is its value."""

    key: Annotated[str | None, Field(max_length=1_000_000)] = None
    replicationGroupMsgId: str | None = None
    """`rmid1:…` of the value, for a key that is too long to be shown whole."""


class WaitingMessage(Body):
    """A delayed message."""

    replicationGroupMsgId: str
    """`rmid1:…`"""


def _add_messages(collection: Collection) -> None:
    path, right = f"/{collection.name}/{{name}}/msgs", collection.right
    Found = Annotated[Endpoint, Depends(collection.find)]

    @_MONITOR.list(path, right, ENDPOINT_MESSAGE)
    async def messages(request: Request, administration: OfVpn, endpoint: Found, paging: Pages) -> ListAnswer:
        """Its messages, the oldest first; none is consumed."""
        running = administration.vpn
        paging.refuse_where("`where` does not select the messages of an endpoint.")
        position, _ = place_of(paging.after) or (1, 0)
        found = await while_waiting(request, running.listing.page(endpoint, position, paging.count))
        generation = running.broker.log.generation
        page = [
            paging.shown(
                {
                    **listed_message(summary(message.row), generation),
                    "deliveryCount": message.attempts,
                    "isUnacked": message.is_unsettled,
                }
            )
            for message in found.messages
        ]
        cursor = None if found.position is None else encoded(f"{found.position}:0")
        return await paging.listed(page, cursor, endpoint.depth)

    @_MONITOR.get(path + "/{message}", right, WHOLE_MESSAGE)
    async def one_message(
        request: Request, administration: OfVpn, endpoint: Found, message: MessageId
    ) -> Attributes:
        """One of its messages, with all sections."""
        row = await while_waiting(request, administration.vpn.listing.one(endpoint, message))
        if row is None:
            raise SempError("NOT_FOUND", f"Message {message} is not on {endpoint.name!r}.")
        return await _whole(administration, row)

    @_MONITOR.list(f"/{collection.name}/{{name}}/delayedMsgs", right, DELAYED_MESSAGE)
    async def delayed_messages(
        request: Request, administration: OfVpn, endpoint: Found, paging: Pages
    ) -> ListAnswer:
        """Its delayed messages, the next due first."""
        running = administration.vpn
        paging.refuse_where("`where` does not select delayed messages.")
        after = place_of(paging.after) or (0, 0)
        found = await while_waiting(request, running.delayed.page(endpoint, after, paging.count))
        generation = running.broker.log.generation
        page = [paging.shown(_DELAYED.of(_Delayed(message, generation))) for message in found]
        cursor = encoded(f"{found[-1].due_ms}:{found[-1].id}") if len(found) == paging.count else None
        return await paging.listed(page, cursor, endpoint.backlog.delayed.messages)

    @_ACTION.put(f"/{collection.name}/{{name}}/cancelDelayedMsg", right)
    async def cancel_delayed(administration: OfVpn, endpoint: Found, body: WaitingMessage) -> None:
        """Cancel a delayed message; the log keeps it."""
        message_id = logged_id(administration, body.replicationGroupMsgId)
        await administration.vpn.delayed.cancel(endpoint, message_id)

    @_ACTION.put(f"/{collection.name}/{{name}}/releaseDelayedMsg", right)
    async def release_delayed(administration: OfVpn, endpoint: Found, body: WaitingMessage) -> None:
        """Deliver a delayed message now."""
        message_id = logged_id(administration, body.replicationGroupMsgId)
        await administration.vpn.delayed.release(endpoint, message_id)


@_MONITOR.list("/queues/{name}/values", rights.QUEUE, VALUE)
async def values(
    request: Request,
    administration: OfVpn,
    endpoint: OfQueue,
    paging: Pages,
    key: Annotated[str | None, Query(description="Only this key.", max_length=10_000)] = None,
) -> ListAnswer:
    """The keys of a last-value queue, each with its newest message, in the order of the log."""
    running = administration.vpn
    paging.refuse_where("`where` does not select values; name a `key`.")
    position, _ = place_of(paging.after) or (0, 0)
    count = paging.count if key is None else 1
    if key is not None:
        message_id = await while_waiting(request, running.last_values.value_of(endpoint, key))
        position = MAX_ID if message_id is None else message_id
    found, after = await while_waiting(request, running.last_values.page(endpoint, position, count))
    page = [paging.shown(_listed_value(text, row, running.broker.log.generation)) for text, row in found]
    cursor = None if after is None or key is not None else encoded(f"{after}:0")
    return await paging.listed(page, cursor, endpoint.depth if key is None else len(page))


def _listed_value(key: str, row: Row, generation: int) -> dict[str, Any]:
    shown = key[:SHOWN_KEY]
    said = listed_message(summary(row), generation)
    return {"key": shown, "isKeyCut": len(shown) < len(key), **said}


@_ACTION.put("/queues/{name}/deleteValue", rights.QUEUE)
async def delete_value(administration: OfVpn, endpoint: OfQueue, body: DeleteValue) -> None:
    """Remove the value of a key until a message with that key arrives; the log keeps the message."""
    last_values = administration.vpn.last_values
    if (body.key is None) == (body.replicationGroupMsgId is None):
        raise SempError("INVALID_PARAMETER", "Give either `key` or `replicationGroupMsgId`.")
    key: str | int | None = body.key
    if key is None:
        key = logged_id(administration, body.replicationGroupMsgId or "")
    await last_values.delete(endpoint, key)


for _collection in COLLECTIONS:
    _add_messages(_collection)

ROUTES: Final = (*_MONITOR.routes, *_ACTION.routes)
