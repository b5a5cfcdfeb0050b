"""
The table of errors: every refusal that a peer can get, with its AMQP condition and Solace's subcode.

AMQP links, administration and the documents look rows up here (docs/reference/refusals.md). No code parses an error
text to find its row. Conditions are those of AMQP 1.0 sections 2.8.15 to 2.8.18 and 4.5.8; subcodes are those of
Solace's C API.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class ErrorCode(enum.Enum):
    """
    A row of the table: AMQP condition, case, replay-error, Solace subcode.

    Attributes:
        condition: Symbol of the AMQP error.
        replay_error: Value (a symbol) of ``rewind:replay-error`` in the error's info map; None where the error is not
            about a replay.
        subcode: ``subcode`` of the info map; sent together with the replay-error.
        case: When a peer gets the error, for the documents. It also keeps apart rows that are alike on the wire.
    """

    UNKNOWN_START = ("amqp:invalid-field", "a start that is none, or in the future", "unknown-start", 139)
    START_TIME_NOT_AVAILABLE = (
        "amqp:precondition-failed",
        "a date before the log begins",
        "start-time-not-available",
        143,
    )
    START_MESSAGE_UNAVAILABLE = (
        "amqp:precondition-failed",
        "an id, an offset, a point or a match that the log does not hold",
        "start-message-unavailable",
        156,
    )
    LOG_MODIFIED = ("amqp:precondition-failed", "the generation of another log", "log-modified", 145)
    NON_EXCLUSIVE = (
        "amqp:not-allowed",
        "a replay of a shared queue that has other consumers",
        "non-exclusive",
        135,
    )
    INACTIVE_FLOW = ("amqp:resource-locked", "another consumer is active", "inactive-flow", 136)
    BROWSER_FLOW = ("amqp:not-allowed", "a browser asks for a replay", "browser-flow", 137)
    REPLAY_DISABLED = ("amqp:not-implemented", "the Message VPN's replay log is off", "disabled", 134)
    REPLAY_TEMPORARY = (
        "amqp:not-implemented",
        "a temporary endpoint, with `replay_temporary` off",
        "temporary-not-supported",
        138,
    )
    OUT_OF_REPLAY_RESOURCES = (
        "amqp:resource-limit-exceeded",
        "too many replays at once (`max_replays`)",
        "out-of-resources",
        147,
    )
    REPLAY_STARTED = (
        "amqp:link:detach-forced",
        "on a running link: a replay was started by another",
        "started",
        141,
    )
    REPLAY_CANCELLED = (
        "amqp:link:detach-forced",
        "on a running link: the replay was cancelled",
        "cancelled",
        142,
    )
    REPLAY_MESSAGE_UNAVAILABLE = (
        "amqp:resource-deleted",
        "on a running link: the next message was trimmed",
        "message-unavailable",
        140,
    )
    REPLAY_FAILED = ("amqp:internal-error", "on a running link: the replay cannot go on", "failed", 149)

    UNAUTHORIZED = ("amqp:unauthorized-access", "no permission")
    RESOURCE_LOCKED = ("amqp:resource-locked", "somebody else has it to himself")
    STOLEN = ("amqp:link:stolen", "displaced by a consumer of a higher epoch, or by a link of the same name")
    MESSAGE_TOO_LARGE = ("amqp:link:message-size-exceeded", "a message larger than is taken")
    TRANSFER_LIMIT = ("amqp:link:transfer-limit-exceeded", "transfers beyond the link's credit")
    NOT_FOUND = ("amqp:not-found", "there is no such thing")
    NOT_ALLOWED = ("amqp:not-allowed", "what cannot be done with this kind of thing, or in its state")
    NOT_IMPLEMENTED = ("amqp:not-implemented", "what the gateway does not do")
    INVALID_FIELD = ("amqp:invalid-field", "a value that means nothing here")
    PRECONDITION_FAILED = ("amqp:precondition-failed", "it contradicts what is there")
    ALREADY_EXISTS = ("amqp:precondition-failed", "what is to be made is there already")
    RESOURCE_LIMIT = ("amqp:resource-limit-exceeded", "a quota or another bound is reached")
    RESOURCE_DELETED = ("amqp:resource-deleted", "it was deleted meanwhile")
    DECODE_ERROR = ("amqp:decode-error", "bytes that are not what they have to be")
    UNATTACHED_HANDLE = ("amqp:session:unattached-handle", "a frame for a handle that no link is attached at")
    HANDLE_IN_USE = ("amqp:session:handle-in-use", "an attach that takes a handle in use")
    WINDOW_VIOLATION = ("amqp:session:window-violation", "a session's transfer-ids that go back")
    FRAMING_ERROR = (
        "amqp:connection:framing-error",
        "frames that are none, a channel or a handle past the largest",
    )
    CONNECTION_FORCED = ("amqp:connection:forced", "the gateway ends the connection")
    REDIRECT = (
        "amqp:connection:redirect",
        "another gateway is active; clients that are not known to follow are told otherwise",
    )
    ONE_MACHINE = (
        "amqp:precondition-failed",
        "no synchronous standby would have the message, and the Message VPN's `require_standby` asks for one",
    )
    INTERNAL = ("amqp:internal-error", "a mistake of the gateway, or the store could not write")

    UNKNOWN_TRANSACTION = ("amqp:transaction:unknown-id", "there is no such transaction, or it has ended")
    ROLLED_BACK = ("amqp:transaction:rollback", "the transaction was rolled back")
    TRANSACTION_TIMEOUT = ("amqp:transaction:timeout", "the transaction was open too long")

    def __init__(
        self, condition: str, case: str, replay_error: str | None = None, subcode: int | None = None
    ) -> None:
        self.condition = condition
        self.replay_error = replay_error
        self.subcode = subcode
        self.case = case


class Refused(Exception):
    """
    The broker refuses a command. This is an expected error; the peer gets it as its ErrorCode row says.

    Attributes:
        code: The row of the table.
        text: One sentence for a person: what was wrong and what would be right.
        info: Further entries of the error's info map, by name.
    """

    def __init__(self, code: ErrorCode, text: str, **info: Any) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.info = info


@contextmanager
def refusing(
    *errors: type[Exception], code: ErrorCode = ErrorCode.INVALID_FIELD, saying: str = "", **info: Any
) -> Iterator[None]:
    """
    Turn any of these errors in the block into ``Refused``, with the error's text.

    Args:
        saying: Text in front of the error's text.
        info: As in ``Refused``.
    """
    try:
        yield
    except errors as error:
        raise Refused(code, f"{saying}{error}", **info) from error
