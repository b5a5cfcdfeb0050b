"""
The text form of a message's place in a replay log: ``rmid1:ggggg-ggggggggggg-nnnnnnnn-nnnnnnnn``.

The form is that of Solace's Replication Group Message ID, so that programs that store Solace's ids can store ours:
``rmid1:`` and 5-11-8-8 hexadecimal digits. The first sixteen digits are the generation of the log. The last
sixteen are the integer that is the message's offset, sequence number and id.

Invariant: ``parse_replay_id`` undoes ``format_replay_id``, and among ids of one generation the order of the texts
is the order of the messages.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

MAX_FIELD: Final = (1 << 64) - 1
"""The largest generation, and the largest number, that the form can hold."""

_FORM: Final = re.compile(
    r"rmid1:([0-9a-f]{5})-([0-9a-f]{11})-([0-9a-f]{8})-([0-9a-f]{8})", re.IGNORECASE | re.ASCII
)


class ReplayIdError(ValueError):
    """A text that is not a replay id, or numbers that have no such text."""


class ReplayId(NamedTuple):
    """The place of a message: the log's generation, and the message's number in the log."""

    generation: int
    number: int

    def __str__(self) -> str:
        return format_replay_id(self.generation, self.number)


@lru_cache(maxsize=64)
def _head(generation: int) -> str:
    # Every delivered message carries an id, and a VPN has one generation: its digits are made once.
    if not 0 <= generation <= MAX_FIELD:
        raise ReplayIdError(f"A generation is an unsigned 64-bit integer; {generation} is not.")
    digits = f"{generation:016x}"
    return f"rmid1:{digits[:5]}-{digits[5:]}-"


def format_replay_id(generation: int, number: int) -> str:
    """
    The text of a replay id.

    Raises:
        ReplayIdError: A part is no unsigned 64-bit number.
    """
    if not 0 <= number <= MAX_FIELD:
        raise ReplayIdError(f"A message's number is an unsigned 64-bit integer; {number} is not.")
    return f"{_head(generation)}{number >> 32:08x}-{number & 0xFFFFFFFF:08x}"


def parse_replay_id(text: str) -> ReplayId:
    """
    Read a replay id, in lower or upper case.

    Raises:
        ReplayIdError: The text is not a replay id.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ReplayIdError(
            f"{text[:80]!r} is not a replay id; one is 'rmid1:' and 5-11-8-8 hexadecimal digits, as in "
            f"{format_replay_id(1, 1)!r}."
        )
    digits = found.groups()
    return ReplayId(int(digits[0] + digits[1], 16), int(digits[2] + digits[3], 16))
