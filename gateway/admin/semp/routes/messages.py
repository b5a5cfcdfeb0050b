"""Messages of the replay log: lists of them, and all that one says."""

from functools import partial
from typing import Annotated, Any, Final

from fastapi import Depends, Path, Query, Request, Response
from typing_extensions import TypedDict

from amqp_ext.message.json_sections import BodyKind, body_bytes, sections_of
from amqp_ext.replay_start import MAX_OFFSET, from_options
from gateway.admin import rights
from gateway.admin.administrators import Administrator, administrator_of
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import InVpn, listed, one, resource
from gateway.admin.semp.download import BYTES, Download
from gateway.admin.semp.envelope import Answer, SempError, answer, list_answer
from gateway.admin.semp.message_attributes import (
    MESSAGE,
    MOST_PATTERNS,
    ListedMessage,
    listed_message,
    place_of,
    wanted,
)
from gateway.admin.semp.paging import Pages, encoded
from gateway.admin.semp.resources import Name, check_log, vpn_of
from gateway.admin.semp.tree import Tree
from gateway.admin.waiting import while_waiting
from gateway.core.model import BARE, CONTENT, Row
from gateway.vpn.administration import Administration
from gateway.vpn.log import Order, summary


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
"""A message, in a path."""

_User = Annotated[Administrator, Depends(administrator_of)]

_PATH: Final = "/{vpn}/replayLogs/{log}/msgs"

_BETWEEN: Final = (
    "in place of `start` and `until`, what is left between two ids, refused for nothing that is not there."
)


def message_routes() -> list[LazyRoute]:
    """``/monitor/msgVpns/{vpn}/replayLogs/{log}/msgs``."""
    tree = Tree("monitor", "/msgVpns")

    @tree.get(
        _PATH,
        rights.WHOLE_VPN,
        summary="Messages of the log, the oldest or the newest first",
        responses=listed(MESSAGE),
    )
    async def messages(
        request: Request,
        vpn: Name,
        log: Name,
        paging: Pages,
        start: Annotated[str, Query(description="Ours: any replay start.")] = "beginning",
        topic: Annotated[
            str | None, Query(description="Ours: a topic pattern; `subscribe` by another name.")
        ] = None,
        until: Annotated[
            str | None, Query(description="Ours: the end: `now`, a date, `#123` or `rmid1:…`.")
        ] = None,
        subscribe: Annotated[
            list[str] | None,
            Query(
                description="Ours: topic patterns; those with `!` are exceptions.", max_length=MOST_PATTERNS
            ),
        ] = None,
        selector: Annotated[str | None, Query(description="Ours: a JMS selector.", max_length=10_000)] = None,
        order: Annotated[Order, Query(description="Ours: which message comes first.")] = Order.OLDEST,
        firstMsgId: Annotated[
            int | None, Query(ge=0, lt=MAX_OFFSET, description=f"Ours: {_BETWEEN} The first id.")
        ] = None,
        lastMsgId: Annotated[
            int | None, Query(ge=0, lt=MAX_OFFSET, description=f"Ours: {_BETWEEN} The last id.")
        ] = None,
    ) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(log)
        running = administration.vpn
        if paging.where:
            raise SempError(
                "INVALID_PARAMETER",
                "Messages are chosen by `start`, `until`, `subscribe` and `selector`, not by `where`.",
            )
        patterns = (*(subscribe or ()), *([topic] if topic is not None else ())) or (">",)
        chosen = wanted(patterns, selector)
        place = place_of(paging.after)
        if place is None and (firstMsgId is not None or lastMsgId is not None):
            if start != "beginning" or until is not None:
                raise SempError("INVALID_PARAMETER", "Give ids, or `start` and `until`, not both.")
            kept = running.broker.log
            first, end = max(firstMsgId or 0, kept.first_id), kept.next_id
            end = end if lastMsgId is None else min(end, lastMsgId + 1)
            place = (first, end) if order is Order.OLDEST else (end, first)
        if place is None:
            asked = {"replay-start": start} | ({} if until is None else {"until": until})
            range_ = from_options(asked)
            assert range_ is not None
            resolved = await while_waiting(request, running.log.resolve_start(range_, patterns))
            end = running.log.next_id if resolved.last is None else resolved.last + 1
            end = min(end, running.log.next_id)
            place = (resolved.first, end) if order is Order.OLDEST else (end, resolved.first)
        position, bound = place
        # A rare topic may be far away.
        found = await while_waiting(
            request, administration.logged_messages(chosen, position, bound, paging.count, order)
        )
        generation = running.broker.log.generation
        page = [paging.shown(listed_message(message, generation)) for message in found.messages]
        cursor = None if found.position is None else encoded(f"{found.position}:{bound}")
        return list_answer(request, page, cursor)

    @tree.get(
        f"{_PATH}/{{message}}",
        rights.WHOLE_VPN,
        summary="All that one message says; of a long body the beginning",
        responses=one(WHOLE_MESSAGE),
    )
    async def one_message(
        request: Request, vpn: Name, log: Name, message: MessageId, paging: Pages
    ) -> Answer:
        administration = vpn_of(request, vpn)
        row = await _found(request, administration, log, message)
        return answer(request, paging.shown(await whole_message(administration, row)))

    @tree.get_as_it_is(
        f"{_PATH}/{{message}}/body", rights.WHOLE_VPN, summary="Its body, as a file", responses=BYTES
    )
    async def body(request: Request, vpn: Name, log: Name, message: MessageId, user: _User) -> Response:
        administration = vpn_of(request, vpn)
        row = await _found(request, administration, log, message)
        content = await administration.vpn.log.off_loop(partial(body_bytes, row[CONTENT], row[BARE]))
        return Download(request, user.name, vpn, content, f"message-{message}.bin")

    @tree.get_as_it_is(
        f"{_PATH}/{{message}}/encoded",
        rights.WHOLE_VPN,
        summary="The message as it was received, encoded as AMQP 1.0 has it",
        responses=BYTES,
    )
    async def as_received(
        request: Request, vpn: Name, log: Name, message: MessageId, user: _User
    ) -> Response:
        row = await _found(request, vpn_of(request, vpn), log, message)
        return Download(request, user.name, vpn, row[CONTENT], f"message-{message}.amqp")

    return tree.routes


async def whole_message(administration: Administration, row: Row) -> dict[str, Any]:
    """A message with all its sections, which are decoded off the loop."""
    vpn = administration.vpn
    said = await vpn.log.off_loop(partial(sections_of, row[CONTENT]))
    return {"msgVpnName": vpn.name, **listed_message(summary(row), vpn.log.generation), **said}


async def _found(request: Request, administration: Administration, log: str, message_id: int) -> Row:
    """
    Raises:
        SempError: NOT_FOUND, the log does not have it.
        gateway.core.errors.Refused: REPLAY_DISABLED, it cannot be read.
    """
    check_log(log)
    found = administration.vpn.log
    found.check_reads("there is nothing to read")
    row = await while_waiting(request, found.listing.one(message_id)) if message_id < found.next_id else None
    if row is None:
        raise SempError(
            "NOT_FOUND", f"Message {message_id} is not in the replay log, which {found.facts().holds}."
        )
    return row
