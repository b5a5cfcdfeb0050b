"""
Local transactions as AMQP 1.0 part 4 has them on the wire: control messages, and the states of deliveries.

Everything here is values; what a transaction does to messages is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from amqp_ext import codec
from amqp_ext.codec import CodecError, Described, Symbol, ULong
from amqp_ext.frames.performatives import described
from amqp_ext.message.fields import DeliveryTimeError, retry_time
from amqp_ext.message.sections import MalformedMessage, body

DECLARE: Final = 0x31
DISCHARGE: Final = 0x32
ACCEPTED: Final = 0x24
REJECTED: Final = 0x25
RELEASED: Final = 0x26
MODIFIED: Final = 0x27

LOCAL_TRANSACTIONS: Final = "amqp:local-transactions"
MULTIPLE_PER_SESSION: Final = "amqp:multi-txns-per-ssn"
MULTIPLE_SESSIONS: Final = "amqp:multi-ssns-per-txn"


class OutcomeError(ValueError):
    """An invalid outcome; the text is a sentence for its sender."""


class TransactionError(ValueError):
    """An invalid control message or transactional state; the text is a sentence for its sender."""


@dataclass(frozen=True, slots=True)
class Declare:
    """The peer asks for a new transaction (section 4.5.2)."""


@dataclass(frozen=True, slots=True)
class Discharge:
    """The peer ends a transaction (section 4.5.3): it commits it, or rolls it back if ``fail`` is set."""

    txn_id: bytes
    fail: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a delivery: the code of one of the four outcomes, and the fields that modified adds."""

    code: int
    failed: bool = False
    undeliverable: bool = False
    again_ms: int = 0
    """When to redeliver, in ms since the epoch; 0 if the outcome does not say."""


@dataclass(frozen=True, slots=True)
class TransactionalState:
    """The state of a delivery that belongs to a transaction (section 4.5.8)."""

    txn_id: bytes
    outcome: Outcome | None


def read_control(content: bytes) -> Declare | Discharge:
    """
    What a message to the coordinator asks for.

    Raises:
        TransactionError: It is no control message, or asks for a kind of transaction that is not supported.
    """
    try:
        kind, parts = body(content)
        if kind != "value":
            raise TransactionError(
                "a message to the coordinator is a declare or a discharge in an amqp-value"
            )
        value = codec.decode(parts[0])[0].value
    except (CodecError, MalformedMessage) as error:
        raise TransactionError(f"this is not a message to the coordinator: {error}") from error
    code, fields = _described(value)
    if code == DECLARE:
        if fields and fields[0] is not None:
            raise TransactionError("distributed transactions are not supported: leave global-id out")
        return Declare()
    if code == DISCHARGE:
        txn_id = fields[0] if fields else None
        fail = fields[1] if len(fields) > 1 else None
        if not isinstance(txn_id, bytes) or not isinstance(fail, bool | None):
            raise TransactionError("a discharge needs a txn-id, a binary, and fail, a boolean")
        return Discharge(txn_id, bool(fail))
    raise TransactionError("a message to the coordinator is a declare or a discharge")


def read_state(fields: Any) -> TransactionalState:
    """
    The transactional-state that has these decoded fields.

    Raises:
        TransactionError: The fields are not those of a transactional-state.
    """
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], bytes):
        raise TransactionError("a transactional-state needs a txn-id, a binary")
    if len(fields) < 2 or fields[1] is None:
        return TransactionalState(fields[0], None)
    try:
        return TransactionalState(fields[0], read_outcome(fields[1]))
    except OutcomeError as error:
        raise TransactionError(f"the outcome of a transactional-state: {error}") from error


def read_outcome(value: Any) -> Outcome:
    """
    A decoded outcome (section 3.4).

    Raises:
        OutcomeError: The value is not an outcome.
    """
    code, values = _described(value)
    if code not in (ACCEPTED, REJECTED, RELEASED, MODIFIED):
        raise OutcomeError("an outcome is accepted, rejected, released or modified")
    if code != MODIFIED:
        return Outcome(code)
    failed, undeliverable, annotations = [*values, None, None, None][:3]
    try:
        return Outcome(code, bool(failed), bool(undeliverable), retry_time(annotations))
    except DeliveryTimeError as error:
        raise OutcomeError(str(error)) from None


def declared(txn_id: bytes) -> bytes:
    """The fields of the outcome declared (section 4.5.5), encoded."""
    return codec.encode([txn_id])


def transactional(txn_id: bytes, outcome: int, error: Described | None = None) -> bytes:
    """
    The fields of a transactional-state with an outcome, encoded.

    Args:
        error: The error of a rejected outcome, as ``error`` makes it.
    """
    return codec.encode([txn_id, Described(ULong(outcome), [] if error is None else [error])])


def error(condition: str, text: str, info: Mapping[Symbol, Any] | None = None) -> Described:
    """An error (section 2.8.14)."""
    return Described(ULong(0x1D), [Symbol(condition), text, dict(info) if info else None])


def _described(value: Any) -> tuple[int | None, list[Any]]:
    """The code of a described list, and its fields."""
    code, fields = described(value)
    return (code, fields) if isinstance(fields, list) else (None, [])
