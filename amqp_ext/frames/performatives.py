"""
Performatives (AMQP 1.0 section 2.7): their codes, their frames, the types of their fields, and what an open frame asks
for with regard to other connections of its container (AMQP Enforcing Connection Uniqueness).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

from amqp_ext.codec import Described, Symbol, UByte, UInt, ULong, UShort, encode

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)

_NAMES: Final = ("open", "begin", "attach", "flow", "transfer", "disposition", "detach", "end", "close")

NAMES: Final = dict(zip(range(OPEN, CLOSE + 1), _NAMES, strict=True))
"""The names of the performatives, by code."""

_CODES: Final = {f"amqp:{name}:list": code for code, name in NAMES.items()} | {
    "amqp:error:list": 0x1D,
    "amqp:received:list": 0x23,
    "amqp:accepted:list": 0x24,
    "amqp:rejected:list": 0x25,
    "amqp:released:list": 0x26,
    "amqp:modified:list": 0x27,
    "amqp:source:list": 0x28,
    "amqp:target:list": 0x29,
    "amqp:delete-on-close:list": 0x2B,
    "amqp:delete-on-no-links:list": 0x2C,
    "amqp:delete-on-no-messages:list": 0x2D,
    "amqp:delete-on-no-links-or-messages:list": 0x2E,
    "amqp:coordinator:list": 0x30,
    "amqp:declare:list": 0x31,
    "amqp:discharge:list": 0x32,
    "amqp:declared:list": 0x33,
    "amqp:transactional-state:list": 0x34,
}
"""The symbolic descriptors of what occurs in frames, and their codes. Descriptors of filters are not among them."""


class FieldError(ValueError):
    """
    A field that is missing or has the wrong type; the text is a sentence for its sender.

    Attributes:
        is_missing: The field is mandatory and missing; otherwise it has the wrong type.
    """

    def __init__(self, text: str, *, is_missing: bool) -> None:
        super().__init__(text)
        self.is_missing = is_missing


class _Field(NamedTuple):
    name: str
    type: type | None = None
    """The type of its value; None if it is not checked here."""
    is_mandatory: bool = False


def _must(name: str, of_type: type) -> _Field:
    return _Field(name, of_type, is_mandatory=True)


_FIELDS: Final[dict[int, tuple[_Field, ...]]] = {
    OPEN: (
        _must("container-id", str),
        _Field("hostname", str),
        _Field("max-frame-size", UInt),
        _Field("channel-max", UShort),
        _Field("idle-time-out", UInt),
        *map(
            _Field, ("outgoing-locales", "incoming-locales", "offered-capabilities", "desired-capabilities")
        ),
        _Field("properties", dict),
    ),
    BEGIN: (
        _Field("remote-channel", UShort),
        _must("next-outgoing-id", UInt),
        _must("incoming-window", UInt),
        _must("outgoing-window", UInt),
        _Field("handle-max", UInt),
    ),
    ATTACH: (
        _must("name", str),
        _must("handle", UInt),
        _must("role", bool),
        _Field("snd-settle-mode", UByte),
        _Field("rcv-settle-mode", UByte),
        _Field("source", Described),
        _Field("target", Described),
        _Field("unsettled", dict),
        _Field("incomplete-unsettled", bool),
        _Field("initial-delivery-count", UInt),
        _Field("max-message-size", ULong),
    ),
    FLOW: (
        _Field("next-incoming-id", UInt),
        _must("incoming-window", UInt),
        _must("next-outgoing-id", UInt),
        _must("outgoing-window", UInt),
        _Field("handle", UInt),
        _Field("delivery-count", UInt),
        _Field("link-credit", UInt),
        _Field("available", UInt),
        _Field("drain", bool),
        _Field("echo", bool),
        _Field("properties", dict),
    ),
    TRANSFER: (
        _must("handle", UInt),
        _Field("delivery-id", UInt),
        _Field("delivery-tag", bytes),
        _Field("message-format", UInt),
        _Field("settled", bool),
        _Field("more", bool),
        _Field("rcv-settle-mode", UByte),
        _Field("state", Described),
        _Field("resume", bool),
        _Field("aborted", bool),
        _Field("batchable", bool),
    ),
    DISPOSITION: (
        _must("role", bool),
        _must("first", UInt),
        _Field("last", UInt),
        _Field("settled", bool),
        _Field("state", Described),
        _Field("batchable", bool),
    ),
    DETACH: (_must("handle", UInt), _Field("closed", bool), _Field("error", Described)),
    END: (_Field("error", Described),),
    CLOSE: (_Field("error", Described),),
}

_TYPES: Final[dict[type, str]] = {
    str: "a string",
    bytes: "a binary",
    bool: "a boolean",
    dict: "a map",
    UByte: "a ubyte",
    UShort: "a ushort",
    UInt: "a uint",
    ULong: "a ulong",
    Described: "described",
}


def described(value: Any) -> tuple[int | None, Any]:
    """The code of a value's descriptor, which may be a number or a symbol, and what it describes; None for no code."""
    if not isinstance(value, Described):
        return None, value
    descriptor = value.descriptor
    return _CODES.get(descriptor) if isinstance(descriptor, str) else int(descriptor), value.value


def code_of(performative: Any) -> int | None:
    """The code of a decoded performative; None for any other value."""
    code, fields = described(performative)
    return code if code is not None and OPEN <= code <= CLOSE and isinstance(fields, list) else None


def framed(frame: bytes, start: int, code: int, fields: list[Any], behind: int) -> bytes:
    """
    The frame with another performative in place of its own.

    Args:
        start: Where its own performative begins.
        behind: Where its own performative ends.
    """
    body = frame[4:start] + encode(Described(ULong(code), fields)) + frame[behind:]
    return (4 + len(body)).to_bytes(4, "big") + body


def checked(code: int, fields: list[Any]) -> list[Any]:
    """
    All fields that a performative may have; None for those that are left out.

    Raises:
        FieldError: A mandatory field is missing, or a field has the wrong type.
    """
    known = _FIELDS[code]
    fields = fields + [None] * (len(known) - len(fields))
    for field, value in zip(known, fields, strict=False):
        if value is None:
            if field.is_mandatory:
                raise FieldError(
                    f"{NAMES[code]} needs its field {field.name}, which is null or missing", is_missing=True
                )
        elif field.type is not None and (
            not isinstance(value, field.type) or (field.type is str and isinstance(value, Symbol))
        ):
            raise FieldError(
                f"the field {field.name} of {NAMES[code]} is {_TYPES[field.type]}, not {value!r:.60}",
                is_missing=False,
            )
    return fields


def numbered(value: Any) -> Any:
    """
    The value with numeric descriptors in place of the symbolic ones that are known here, also in the values inside it:
    an engine may know only numbers.
    """
    if isinstance(value, Described):
        code, inner = described(value)
        inner = [numbered(field) for field in inner] if isinstance(inner, list) else inner
        return Described(value.descriptor if code is None else ULong(code), inner)
    return value


SOLE_CONNECTION: Final = Symbol("sole-connection-for-container")
"""The capability that a peer desires and we then offer."""

ENFORCEMENT_POLICY: Final = Symbol("sole-connection-enforcement-policy")
DETECTION_POLICY: Final = Symbol("sole-connection-detection-policy")
ENFORCEMENT: Final = "sole-connection-enforcement"
"""The key in the info of the error with which an older connection is closed."""

STRONG: Final = 0
"""The detection policy: all connections of the container count, whatever they desire themselves."""


class EnforcementPolicy(IntEnum):
    """What happens when a container that has a connection opens another one."""

    REFUSE_CONNECTION = 0
    CLOSE_EXISTING = 1


class PolicyError(ValueError):
    """An unknown enforcement policy; the text is a sentence for the peer."""


def read_policy(desired: Any, properties: Any) -> EnforcementPolicy | None:
    """
    The policy that an open frame asks for; None if it does not ask to be the sole connection.

    Args:
        desired: The open's desired-capabilities, decoded.
        properties: The open's properties, decoded.

    Raises:
        PolicyError: There is no such policy.
    """
    wanted = desired if isinstance(desired, list) else [desired]
    if SOLE_CONNECTION not in wanted:
        return None
    said = properties.get(ENFORCEMENT_POLICY) if isinstance(properties, dict) else None
    if said is None:
        return EnforcementPolicy.REFUSE_CONNECTION
    if isinstance(said, bool) or not isinstance(said, int) or said not in tuple(EnforcementPolicy):
        raise PolicyError(
            f"{ENFORCEMENT_POLICY} is 0 (refuse-connection) or 1 (close-existing), not {said!r:.60}"
        )
    return EnforcementPolicy(said)
