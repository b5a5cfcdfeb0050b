"""
AMQP error conditions: refusals, and errors that the engine finds by itself, in the form that a detach, a close or a
disposition carries (AMQP 1.0 sections 2.8.15 to 2.8.18).

After an error the engine closes the connection, and writes that close frame by itself, at times with a condition that
is in no specification. That is the last frame it writes, so it is replaced in the output.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cproton_ffi import lib
from proton import Condition, Link, int32, symbol

from amqp_ext.codec import Described, Int, Symbol, ULong, encode
from gateway.core.errors import ErrorCode, Refused
from gateway.logging import log_keys
from gateway.vpn.runtime import REFUSALS

UNBOUNDED: Final = 0xFFFF_FFFF
"""The ``max-frame-size`` of a peer that takes any frame."""

_AROUND_BYTES: Final = 64
"""Upper bound of the bytes of a frame with an error, without the error's texts."""

_AROUND_ENTRY: Final = 8
"""Upper bound of the bytes of an entry of the info map, without its symbols and digits."""


def info_of(refused: Refused) -> dict[str, Any]:
    """The info map: replay-error, subcode, and what the refusal adds."""
    info: dict[str, Any] = {}
    if refused.code.replay_error is not None:
        info["rewind:replay-error"] = Symbol(refused.code.replay_error)
    if refused.code.subcode is not None:
        info["subcode"] = Int(refused.code.subcode)
    info.update(refused.info)
    return info


def room_of(link: Link) -> int:
    """Bytes of the largest frame that the peer takes (``max-frame-size``, AMQP 1.0 section 2.4.1)."""
    transport = link.connection.transport
    return (transport.remote_max_frame_size if transport is not None else 0) or UNBOUNDED


def condition_of(refused: Refused, room: int = UNBOUNDED) -> Condition:
    """
    The condition of a link, session or connection.

    Args:
        room: Bytes of the largest frame that the peer takes: the text is cut to what is left for it.
    """
    REFUSALS[refused.code.condition] += 1
    info: dict[Any, Any] = {symbol(key): _as_the_engine_has(value) for key, value in info_of(refused).items()}
    return Condition(refused.code.condition, fitted(refused, room), info or None)


def fitted(refused: Refused, room: int) -> str:
    """The text of a refusal, cut to what a frame of so many bytes has left for it."""
    said = len(refused.code.condition) + sum(
        len(f"{key}{value}") + _AROUND_ENTRY for key, value in info_of(refused).items()
    )
    return _cut(refused.text, room - _AROUND_BYTES - said)


def _as_the_engine_has(value: Any) -> Any:
    """A value of the info map in the engine's types."""
    if isinstance(value, Symbol):
        return symbol(str(value))
    return int32(int(value)) if isinstance(value, Int) else value


def _cut(text: str, room: int) -> str:
    """A text in at most so many bytes of UTF-8, with an ellipsis where it is cut."""
    encoded = text.encode()
    return text if len(encoded) <= room else encoded[: max(room - 3, 0)].decode(errors="ignore") + "…"


def code_of(condition: str) -> ErrorCode:
    """The error code of a condition without a replay error; the first one, where several have it."""
    return next(code for code in ErrorCode if code.condition == condition and code.replay_error is None)


def describe(refused: Refused, room: int) -> Callable[[Any], None]:
    """A function that fills in a C condition, for dispositions in frames of so many bytes at most."""
    text = fitted(refused, room).encode("utf-8", "replace")
    REFUSALS[refused.code.condition] += 1
    info = {Symbol(key): value for key, value in info_of(refused).items()}
    encoded = encode(info) if info else b""

    def fill_in(condition: Any) -> None:
        lib.pn_condition_set_name(condition, refused.code.condition.encode("ascii"))
        lib.pn_condition_set_description(condition, text)
        if encoded:
            lib.pn_data_decode(lib.pn_condition_info(condition), encoded, len(encoded))

    return fill_in


_CLOSE: Final = b"\x02\x00\x00\x00\x00\x53\x18"
"""The bytes of a close frame after its size, as the engine writes it."""

_CUT: Final = " (connection aborted)"
"""What the engine adds when it is told that nothing more will come."""

_MEANT: Final = {
    r"no such handle: (\d+)": (ErrorCode.UNATTACHED_HANDLE.condition, "no link is attached to handle {0}"),
    r"no such channel: (\d+)": ("amqp:illegal-state", "no session has begun on channel {0}"),
    r"link name already attached: (.*)": (
        ErrorCode.NOT_ALLOWED.condition,
        "a link named {0!r} is being attached in this direction already: wait for the answer before a second attach",
    ),
    r"illegal delivery range: (\w+)-(\w+)": (
        ErrorCode.INVALID_FIELD.condition,
        "a disposition's range is from {0} to {1} (hexadecimal): first has to be the smaller number",
    ),
    r"sequencing error, (.*)": (
        ErrorCode.INVALID_FIELD.condition,
        "delivery-ids rise by one in a session: {0}",
    ),
    r"malformed frame": (
        ErrorCode.FRAMING_ERROR.condition,
        "a frame's header is wrong, or the frame is larger than our max-frame-size",
    ),
    r"connection aborted": (
        ErrorCode.DECODE_ERROR.condition,
        "a frame cannot be read: it has to be of type 0, and its performative a list described by a known "
        "number, such as 0x10 for open; symbols are not accepted",
    ),
}
"""By a pattern of the engine's text: the condition that it should have, and a text for people."""


@dataclass(frozen=True, slots=True)
class CloseError:
    """An error that the connection is closed with."""

    condition: str
    text: str

    @classmethod
    def of(cls, found: Condition | None) -> CloseError:
        """The meaning of an error of the engine; the error itself where that is clear."""
        if found is None:
            return cls("amqp:internal-error", "")
        description = (found.description or "").removesuffix(_CUT)
        for pattern, (meant, text) in _MEANT.items():
            matched = re.match(pattern, description, re.DOTALL)
            if matched is not None:
                return cls(meant, text.format(*matched.groups()))
        return cls(found.name, description)

    def put_into(self, output: bytes) -> bytes:
        """
        The last output of the engine, with its close frame replaced.

        Args:
            output: Ends with the close frame; otherwise it is returned unchanged.
        """
        start = output.rfind(_CLOSE) - 4
        if start < 0 or int.from_bytes(output[start : start + 4], "big") != len(output) - start:
            return output
        return output[:start] + self.frame

    @property
    def frame(self) -> bytes:
        """A close frame with the error."""
        error = Described(ULong(0x1D), [Symbol(self.condition), self.text])
        body = encode(Described(ULong(0x18), [error]))
        return (8 + len(body)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body


class Denied(Refused):
    """A user's permissions do not allow it. ``rule`` has decided that; it is for the log, not for the peer."""

    def __init__(self, text: str, rule: str) -> None:
        super().__init__(ErrorCode.UNAUTHORIZED, text)
        self.rule = rule


def reason_keys(refused: Refused) -> dict[str, Any]:
    """What a log line says about a refusal, with the rule that decided if permissions did."""
    return {
        log_keys.CONDITION: refused.code.condition,
        log_keys.REPLAY_ERROR: refused.code.replay_error,
        log_keys.RULE: refused.rule if isinstance(refused, Denied) else None,
        log_keys.REASON: refused.text,
    }
