"""
What a peer is told that broke the protocol: the engine's finding, in the conditions of AMQP 1.0 sections 2.8.15-2.8.17.

The engine closes the connection for whatever it cannot go on with, and writes that close frame by itself, at times with
a condition that no specification knows. It is the last frame it writes, so it is replaced on its way out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from proton import Condition

from amqp_ext.codec import Described, Symbol, ULong, encode

_CLOSE: Final = b"\x02\x00\x00\x00\x00\x53\x18"
"""A close frame behind its size, as the engine writes it."""

_CUT: Final = " (connection aborted)"
"""What the engine adds when it is told that nothing more will come."""

_MEANT: Final = [
    (
        re.compile(r"no such handle: (\d+)"),
        "amqp:session:unattached-handle",
        "no link is attached at handle {0}",
    ),
    (
        re.compile(r"no such channel: (\d+)"),
        "amqp:illegal-state",
        "no session has begun on channel {0}",
    ),
    (
        re.compile(r"link name already attached: (.*)", re.DOTALL),
        "amqp:not-allowed",
        "a link named {0!r} is being attached in this direction already: wait for the answer before a second attach",
    ),
    (
        re.compile(r"illegal delivery range: (\w+)-(\w+)"),
        "amqp:invalid-field",
        "a disposition's range is from {0} to {1} (hexadecimal): first is to be the smaller number",
    ),
    (
        re.compile(r"sequencing error, (.*)", re.DOTALL),
        "amqp:invalid-field",
        "delivery-ids rise by one in a session: {0}",
    ),
    (
        re.compile(r"malformed frame"),
        "amqp:connection:framing-error",
        "a frame's header is wrong, or the frame is larger than our max-frame-size",
    ),
    (
        re.compile(r"connection aborted"),
        "amqp:decode-error",
        "a frame cannot be read: it is to be of type 0, and its performative a list described by a number we know, "
        "such as 0x10 for open; symbols are not taken",
    ),
]
"""How the engine says it, the condition it should have, and the words for a person."""


@dataclass(frozen=True, slots=True)
class CloseError:
    """An error that the connection is closed with."""

    condition: str
    text: str

    @classmethod
    def of(cls, found: Condition | None) -> CloseError:
        """What the engine's error means; as it is, where that is good enough."""
        if found is None:
            return cls("amqp:internal-error", "")
        description = (found.description or "").removesuffix(_CUT)
        for pattern, meant, text in _MEANT:
            matched = pattern.match(description)
            if matched is not None:
                return cls(meant, text.format(*matched.groups()))
        return cls(found.name, description)

    def put_into(self, output: bytes) -> bytes:
        """
        The end of what the engine writes, with its close frame replaced.

        Args:
            output: Ends with the close frame; where it does not, it comes back as it is.
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
