"""
The table of errors: everything that a peer can be refused with, with its AMQP condition and Solace's subcode.

AMQP links, administration and the documents look rows up here (docs/reference/refusals.md); nobody tells a code from a
text. Conditions are those of AMQP 1.0 sections 2.8.15 to 2.8.18 and 4.5.8; subcodes are those of Solace's C API.
"""

from __future__ import annotations

import enum
from typing import Any


class ErrorCode(enum.Enum):
    """
    A row of the table: AMQP condition, replay-error, Solace subcode, and in which case it is told.

    Attributes:
        condition: Symbol of the AMQP error.
        replay_error: Symbol ``rewind:replay-error`` of the error's info map; None where it is not about a replay.
        subcode: ``subcode`` of the info map, with the replay-error.
        case: When a peer gets it, for the documents. It also tells rows apart that are alike on the wire.
    """

    UNKNOWN_START = ("amqp:invalid-field", "unknown-start", 139, "a start that is none, or in the future")
    START_TIME_NOT_AVAILABLE = (
        "amqp:precondition-failed",
        "start-time-not-available",
        143,
        "a date before the log begins",
    )
    START_MESSAGE_UNAVAILABLE = (
        "amqp:precondition-failed",
        "start-message-unavailable",
        156,
        "an id, an offset, a point or a match that the log does not hold",
    )
    LOG_MODIFIED = ("amqp:precondition-failed", "log-modified", 145, "the generation of another log")
    NON_EXCLUSIVE = (
        "amqp:not-allowed",
        "non-exclusive",
        135,
        "a replay of a shared queue that has other consumers",
    )
    INACTIVE_FLOW = ("amqp:resource-locked", "inactive-flow", 136, "another consumer is active")
    BROWSER_FLOW = ("amqp:not-allowed", "browser-flow", 137, "a browser asks for a replay")
    REPLAY_DISABLED = ("amqp:not-implemented", "disabled", 134, "the Message VPN's replay log is off")
    REPLAY_TEMPORARY = (
        "amqp:not-implemented",
        "temporary-not-supported",
        138,
        "a temporary endpoint, with `replay_temporary` off",
    )
    OUT_OF_REPLAY_RESOURCES = (
        "amqp:resource-limit-exceeded",
        "out-of-resources",
        147,
        "too many replays at once (`max_replays`)",
    )
    REPLAY_STARTED = (
        "amqp:link:detach-forced",
        "started",
        141,
        "on a running link: a replay was started by another",
    )
    REPLAY_CANCELLED = (
        "amqp:link:detach-forced",
        "cancelled",
        142,
        "on a running link: the replay was cancelled",
    )
    REPLAY_MESSAGE_UNAVAILABLE = (
        "amqp:resource-deleted",
        "message-unavailable",
        140,
        "on a running link: the next message was trimmed",
    )
    REPLAY_FAILED = ("amqp:internal-error", "failed", 149, "on a running link: the replay cannot go on")

    UNAUTHORIZED = ("amqp:unauthorized-access", None, None, "no permission")
    RESOURCE_LOCKED = ("amqp:resource-locked", None, None, "somebody else has it to himself")
    STOLEN = (
        "amqp:link:stolen",
        None,
        None,
        "displaced by a consumer of a higher epoch, or by a link of the same name",
    )
    MESSAGE_TOO_LARGE = ("amqp:link:message-size-exceeded", None, None, "a message larger than is taken")
    TRANSFER_LIMIT = ("amqp:link:transfer-limit-exceeded", None, None, "transfers beyond the link's credit")
    NOT_FOUND = ("amqp:not-found", None, None, "there is no such thing")
    NOT_ALLOWED = (
        "amqp:not-allowed",
        None,
        None,
        "what cannot be done with this kind of thing, or in its state",
    )
    NOT_IMPLEMENTED = ("amqp:not-implemented", None, None, "what the gateway does not do")
    INVALID_FIELD = ("amqp:invalid-field", None, None, "a value that means nothing here")
    PRECONDITION_FAILED = ("amqp:precondition-failed", None, None, "it contradicts what is there")
    ALREADY_EXISTS = ("amqp:precondition-failed", None, None, "what is to be made is there already")
    RESOURCE_LIMIT = ("amqp:resource-limit-exceeded", None, None, "a quota or another bound is reached")
    RESOURCE_DELETED = ("amqp:resource-deleted", None, None, "it was deleted meanwhile")
    DECODE_ERROR = ("amqp:decode-error", None, None, "bytes that are not what they have to be")
    UNATTACHED_HANDLE = (
        "amqp:session:unattached-handle",
        None,
        None,
        "a frame for a handle that no link is attached at",
    )
    HANDLE_IN_USE = ("amqp:session:handle-in-use", None, None, "an attach that takes a handle in use")
    WINDOW_VIOLATION = (
        "amqp:session:window-violation",
        None,
        None,
        "a session's transfer-ids that go back",
    )
    FRAMING_ERROR = (
        "amqp:connection:framing-error",
        None,
        None,
        "frames that are none, a channel or a handle past the largest",
    )
    CONNECTION_FORCED = ("amqp:connection:forced", None, None, "the gateway ends the connection")
    REDIRECT = (
        "amqp:connection:redirect",
        None,
        None,
        "another gateway is active; clients that are not known to follow are told otherwise",
    )
    ONE_MACHINE = (
        "amqp:precondition-failed",
        None,
        None,
        "no synchronous standby would have the message, and the Message VPN's `require_standby` asks for one",
    )
    INTERNAL = ("amqp:internal-error", None, None, "a mistake of the gateway, or the store could not write")

    UNKNOWN_TRANSACTION = (
        "amqp:transaction:unknown-id",
        None,
        None,
        "there is no such transaction, or it has ended",
    )
    ROLLED_BACK = ("amqp:transaction:rollback", None, None, "the transaction was rolled back")
    TRANSACTION_TIMEOUT = ("amqp:transaction:timeout", None, None, "the transaction was open too long")

    def __init__(self, condition: str, replay_error: str | None, subcode: int | None, case: str) -> None:
        self.condition = condition
        self.replay_error = replay_error
        self.subcode = subcode
        self.case = case


class Refused(Exception):
    """
    A command the broker will not carry out; expected, and told to the peer as its ErrorCode row says.

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
