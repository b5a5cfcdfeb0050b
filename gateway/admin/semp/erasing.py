"""Erasing messages: their content is overwritten; offset, id, time and topic stay."""

from contextlib import suppress
from typing import Annotated, Final, NamedTuple

from fastapi import Request
from pydantic import Field

from amqp_ext.message.annotations import MOST_REASON
from gateway.admin import rights
from gateway.admin.operations import Tree
from gateway.admin.semp.envelope import Attributes, Body, SempError, Shown, resource
from gateway.admin.semp.resources import LOG_NAME, OfLog, check_log, logged_id, range_of, while_waiting
from gateway.config.setting_types import TopicFilter
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.administration import Administration
from gateway.vpn.erasing import MOST_IDS, Copies, Erased

MOST_PATTERNS: Final = 100


class RedactMsg(Body):
    """Which messages are erased: by their ids or by a selector."""

    replayLogName: str = LOG_NAME
    """There is one log."""
    msgId: Annotated[list[Annotated[int, Field(ge=1, lt=2**63)]], Field(max_length=MOST_IDS)] | None = None
    """Ids of messages, in the log or only on queues."""
    replicationGroupMsgId: Annotated[list[str], Field(max_length=MOST_IDS)] | None = None
    """The same, as `rmid1:…`."""
    selector: Annotated[str, Field(max_length=10_000)] | None = None
    """Instead of ids: the messages of the log that match. It needs `expectedMsgCount` or `preview`."""
    subscribe: Annotated[list[TopicFilter], Field(max_length=MOST_PATTERNS)] | None = None
    """With a selector: topic patterns; without any, all topics."""
    start: str | None = None
    """With a selector: any replay start; by default the beginning of the log."""
    until: str | None = None
    """With a selector: the end, as `now`, a date, `#123` or `rmid1:…`."""
    reason: Annotated[str, Field(max_length=MOST_REASON)] = ""
    """The reason, which is stored in place of the content and written to the gateway's log."""
    withCopies: bool = False
    """Also erase the copies that replays made (`copyMsgIds`); otherwise they are only listed."""
    preview: bool = False
    """Only list what would be erased."""
    expectedMsgCount: Annotated[int, Field(ge=0)] | None = None
    """The number of messages that a preview gave; with another number, nothing is erased."""


class _Outcome(NamedTuple):
    """The messages that were erased, or would be, and their copies."""

    found: Erased
    copies: Copies
    is_preview: bool


_REDACTED: Final = Shown[_Outcome](
    {
        "msgCount": (int, lambda one: len(one.found.ids)),
        "msgIds": (list[int], lambda one: one.found.ids),
        "missingMsgIds": (list[int], lambda one: one.found.missing),
        "deadMsgIds": (list[int], lambda one: one.copies.dead),
        "copyMsgIds": (list[int], lambda one: one.copies.others),
        "originMsgIds": (list[int], lambda one: one.copies.origins),
        "copiedTo": (list[str], lambda one: one.copies.elsewhere),
        "preview": (bool, lambda one: one.is_preview),
        "scrubbed": (bool, lambda one: one.found.is_scrubbed),
    }
)
REDACTED: Final = resource("MsgsRedacted", _REDACTED)

_ACTION = Tree("action")


@_ACTION.put("/replayLogs/{log}/redactMsg", rights.WHOLE_VPN, REDACTED)
async def redact(request: Request, administration: OfLog, body: RedactMsg) -> Attributes:
    """Ours: erase the content of messages, in the log, its archive and on queues."""
    check_log(body.replayLogName)
    erasing = administration.vpn.erasing
    if body.selector is None:
        ids = _named(administration, body)
    else:
        ids = await while_waiting(request, _matching(administration, body))
    looked_to = administration.vpn.broker.log.next_id
    copies = await while_waiting(request, erasing.copies.of(ids))
    wanted = {*ids, *copies.dead, *(copies.others if body.withCopies else ())}
    if body.preview:
        found = await while_waiting(request, erasing.found(wanted))
        missing = sorted(set(ids) - set(found))
        preview = Erased(found, missing, is_scrubbed=False)
        return _REDACTED.of(_Outcome(preview, copies, is_preview=True))
    if body.expectedMsgCount is not None and body.expectedMsgCount != len(wanted):
        raise Refused(
            ErrorCode.PRECONDITION_FAILED,
            f"{len(wanted)} messages would be erased, and {body.expectedMsgCount} were expected; see the preview",
        )
    done = await erasing.erase(wanted, body.reason)
    with suppress(
        Refused
    ):  # A log that cannot be read is reported elsewhere, and the messages are erased already.
        # Copies that jobs published during the first search are at least named.
        copies = copies.later(await erasing.copies.of(ids, since=looked_to))
    return _REDACTED.of(_Outcome(done, copies, is_preview=False))


def _named(administration: Administration, body: RedactMsg) -> list[int]:
    """The ids that a request names.

    Raises:
        SempError: INVALID_PARAMETER, there are no ids, or one is not a replay id, or an attribute needs a selector.
        Refused: LOG_MODIFIED, one is of another generation of the log.
    """
    beside = [name for name in ("subscribe", "start", "until") if getattr(body, name) is not None]
    if beside:
        raise SempError("INVALID_PARAMETER", f"{beside[0]} needs a selector, and there is none.")
    ids = {
        *(body.msgId or ()),
        *(logged_id(administration, text) for text in body.replicationGroupMsgId or ()),
    }
    if not ids:
        raise SempError("INVALID_PARAMETER", "Give msgId, replicationGroupMsgId or selector.")
    return sorted(ids)


async def _matching(administration: Administration, body: RedactMsg) -> list[int]:
    """The ids of the messages that a request's selector matches.

    Raises:
        SempError: INVALID_PARAMETER, the request has ids as well, or neither the expected count nor ``preview``.
        amqp_ext.replay_start.ReplayStartError: The start, or the end, is not valid.
        Refused: The selector is not valid, or the log has no such place.
    """
    assert body.selector is not None
    if body.msgId is not None or body.replicationGroupMsgId is not None:
        raise SempError("INVALID_PARAMETER", "Give ids or a selector, not both.")
    if not body.preview and body.expectedMsgCount is None:
        raise SempError(
            "INVALID_PARAMETER", "With a selector, give preview, or expectedMsgCount from a preview."
        )
    start = range_of(body.start or "beginning", body.until)
    return await administration.vpn.erasing.selected(body.selector, body.subscribe or [">"], start)


ROUTES: Final = _ACTION.routes
