"""
One table of everything a peer can be refused with: condition, replay-error and Solace subcode.

The wire side only looks rows up here (contract: condition, text for a person, and an info map); a test walks the table.
Standard conditions are those of AMQP 1.0 part 2.8.15-18 and 4.5.9; subcodes are those of Solace's C API.
"""

from __future__ import annotations

import enum
from typing import Any


class ErrorCode(enum.Enum):
    """Value: (AMQP condition, replay-error symbol or None, Solace subcode or None)."""

    UNKNOWN_START = ("amqp:invalid-field", "unknown-start", 139)
    START_TIME_NOT_AVAILABLE = ("amqp:precondition-failed", "start-time-not-available", 143)
    START_MESSAGE_UNAVAILABLE = ("amqp:precondition-failed", "start-message-unavailable", 156)
    LOG_MODIFIED = ("amqp:precondition-failed", "log-modified", 145)
    NON_EXCLUSIVE = ("amqp:not-allowed", "non-exclusive", 135)
    INACTIVE_FLOW = ("amqp:resource-locked", "inactive-flow", 136)
    BROWSER_FLOW = ("amqp:not-allowed", "browser-flow", 137)
    REPLAY_DISABLED = ("amqp:not-implemented", "disabled", 134)
    REPLAY_TEMPORARY = ("amqp:not-implemented", "temporary-not-supported", 138)
    OUT_OF_REPLAY_RESOURCES = ("amqp:resource-limit-exceeded", "out-of-resources", 147)
    REPLAY_STARTED = ("amqp:link:detach-forced", "started", 141)
    REPLAY_CANCELLED = ("amqp:link:detach-forced", "cancelled", 142)
    REPLAY_MESSAGE_UNAVAILABLE = ("amqp:resource-deleted", "message-unavailable", 140)
    REPLAY_FAILED = ("amqp:internal-error", "failed", 149)

    UNAUTHORIZED = ("amqp:unauthorized-access", None, None)
    RESOURCE_LOCKED = ("amqp:resource-locked", None, None)
    STOLEN = ("amqp:link:stolen", None, None)
    MESSAGE_TOO_LARGE = ("amqp:link:message-size-exceeded", None, None)
    TRANSFER_LIMIT = ("amqp:link:transfer-limit-exceeded", None, None)
    NOT_FOUND = ("amqp:not-found", None, None)
    NOT_ALLOWED = ("amqp:not-allowed", None, None)
    NOT_IMPLEMENTED = ("amqp:not-implemented", None, None)
    INVALID_FIELD = ("amqp:invalid-field", None, None)
    PRECONDITION_FAILED = ("amqp:precondition-failed", None, None)
    RESOURCE_LIMIT = ("amqp:resource-limit-exceeded", None, None)
    RESOURCE_DELETED = ("amqp:resource-deleted", None, None)
    DECODE_ERROR = ("amqp:decode-error", None, None)
    DETACH_FORCED = ("amqp:link:detach-forced", None, None)
    CONNECTION_FORCED = ("amqp:connection:forced", None, None)
    FRAMING_ERROR = ("amqp:connection:framing-error", None, None)
    INTERNAL = ("amqp:internal-error", None, None)

    UNKNOWN_TRANSACTION = ("amqp:transaction:unknown-id", None, None)
    ROLLED_BACK = ("amqp:transaction:rollback", None, None)
    TRANSACTION_TIMEOUT = ("amqp:transaction:timeout", None, None)

    def __init__(self, condition: str, replay_error: str | None, subcode: int | None) -> None:
        self.condition = condition
        self.replay_error = replay_error
        self.subcode = subcode


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
