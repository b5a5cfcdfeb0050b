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

    UNKNOWN_START = (
        "amqp:invalid-field",
        "a start that is not valid, or is in the future",
        "unknown-start",
        139,
    )
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
    RESOURCE_LOCKED = ("amqp:resource-locked", "another client has exclusive use of it")
    STOLEN = ("amqp:link:stolen", "displaced by a consumer of a higher epoch, or by a link of the same name")
    MESSAGE_TOO_LARGE = ("amqp:link:message-size-exceeded", "a message that exceeds the size limit")
    TRANSFER_LIMIT = ("amqp:link:transfer-limit-exceeded", "transfers beyond the link's credit")
    NOT_FOUND = ("amqp:not-found", "what the peer names does not exist")
    NOT_ALLOWED = (
        "amqp:not-allowed",
        "the operation is not possible on a node of this kind, or in its state",
    )
    NOT_IMPLEMENTED = ("amqp:not-implemented", "a feature that the gateway does not have")
    INVALID_FIELD = ("amqp:invalid-field", "a value that is not valid here")
    PRECONDITION_FAILED = ("amqp:precondition-failed", "the request contradicts the present state")
    ALREADY_EXISTS = ("amqp:precondition-failed", "an object of this name exists already")
    RESOURCE_LIMIT = ("amqp:resource-limit-exceeded", "a quota or another limit is reached")
    RESOURCE_DELETED = ("amqp:resource-deleted", "the node was deleted meanwhile")
    DECODE_ERROR = ("amqp:decode-error", "bytes that cannot be decoded as what the peer says they are")
    UNATTACHED_HANDLE = (
        "amqp:session:unattached-handle",
        "a frame for a handle to which no link is attached",
    )
    HANDLE_IN_USE = ("amqp:session:handle-in-use", "an attach with a handle that is in use")
    WINDOW_VIOLATION = ("amqp:session:window-violation", "transfer-ids of a session that go back")
    FRAMING_ERROR = (
        "amqp:connection:framing-error",
        "invalid frames, a channel or a handle above the maximum",
    )
    CONNECTION_FORCED = ("amqp:connection:forced", "the gateway ends the connection")
    REDIRECT = (
        "amqp:connection:redirect",
        "another gateway is active; clients that are not known to follow a redirect get another error",
    )
    ONE_MACHINE = (
        "amqp:precondition-failed",
        "no synchronous standby would have the message, and the Message VPN has `require_standby`",
    )
    INTERNAL = ("amqp:internal-error", "an error in the gateway, or the store could not write")

    UNKNOWN_TRANSACTION = ("amqp:transaction:unknown-id", "the transaction does not exist, or has ended")
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
