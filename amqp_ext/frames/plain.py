"""
Plain frames, which need no closer look: transfers of whole messages and settlements, which come by the thousand.

``plain_frames`` runs for each read. A gateway runs its version in C if that was built; both do the same.
"""

from __future__ import annotations

from typing import Final

_NUMBERS: Final = {0x40: 0, 0x43: 0, 0x52: 1, 0x70: 4}
"""The number of octets after the format code of a uint or of null, by that code."""

_BOOLEANS: Final = frozenset({0x40, 0x41, 0x42})
_NOT_TRUE: Final = frozenset({0x40, 0x42})
_OUTCOMES: Final = frozenset(b"\x00\x53" + bytes([code]) + b"\x45" for code in (0x24, 0x25, 0x26))
_TAG_BYTES: Final = 32
_PERFORMATIVE: Final = 11
"""Where the list of a performative begins, in a frame without an extended header."""

_WRONG: Final = -1
_MIDDLE: Final = -2


def plain_frames(
    data: bytes, position: int, begun: set[int], continued: set[int], next_ids: dict[int, int]
) -> int:
    """
    Skip the frames that need no closer look: transfers of a whole message with the next delivery-id, or of a middle
    part of a message; and a receiver's dispositions, settled or unsettled, with an outcome without fields. Their
    mandatory fields are there, and all fields have the right types.

    Args:
        begun: The links (``link_key``) on which a delivery may begin.
        continued: The links on which a delivery has begun and goes on.
        next_ids: The next delivery-id of each channel; updated here. A transfer on another channel is not plain.

    Returns:
        The position of the first frame that is not plain, or not whole.
    """
    end = len(data)
    head = mark = tail = b""
    number_at = tag_at = tail_at = stop = channel = 0
    while end - position >= _PERFORMATIVE:
        size = int.from_bytes(data[position : position + 4], "big")
        if (
            stop <= size <= end - position
            and head
            and data[position + 4 : position + number_at] == head
            and data[position + tag_at : position + tag_at + 2] == mark
            and data[position + tail_at : position + stop] == tail
            and int.from_bytes(data[position + number_at : position + tag_at], "big") == next_ids[channel]
        ):
            # Like the frame before, except for its delivery-id, the octets of its tag and its payload.
            next_ids[channel] = (next_ids[channel] + 1) % 2**32
            position += size
            continue
        if not _PERFORMATIVE <= size <= end - position or data[position + 4 : position + 6] != b"\x02\x00":
            break
        code = data[position + 8 : position + 11]
        frame = data[position : position + size]
        if code == b"\x00\x53\x14":
            number, of_channel = _plain_number(frame, begun, continued), int.from_bytes(frame[6:8], "big")
            if of_channel not in next_ids or number not in (_MIDDLE, next_ids[of_channel]):
                break
            if number != _MIDDLE:
                channel = of_channel
                next_ids[channel] = (number + 1) % 2**32
                number_at, tag_at, tail_at, stop = _places_in(frame)
                head, mark, tail = frame[4:number_at], frame[tag_at : tag_at + 2], frame[tail_at:stop]
        elif code != b"\x00\x53\x15" or not _is_plain_disposition(frame):
            break
        position += size
    return position


def link_key(channel: int, handle: int) -> int:
    """One number that identifies a link."""
    return channel << 32 | handle


def _places_in(frame: bytes) -> tuple[int, int, int, int]:
    """
    Positions in a plain transfer with a tag: its delivery-id without the format code, its tag, the fields after the
    tag, and its payload. Zeros for a transfer that is not encoded in the usual way.
    """
    if frame[_PERFORMATIVE] != 0xC0:
        return 0, 0, 0, 0
    stop = _PERFORMATIVE + 2 + frame[_PERFORMATIVE + 1]
    number = _PERFORMATIVE + 3 + 1 + _NUMBERS[frame[_PERFORMATIVE + 3]]
    tag = number + 1 + _NUMBERS[frame[number]]
    if frame[tag] != 0xA0:
        return 0, 0, 0, 0
    return number + 1, tag, tag + 2 + frame[tag + 1], stop


def _list_in(frame: bytes) -> tuple[bytes, int]:
    """The encoded fields of a performative, and their count; no octets and zero if they are not a list."""
    form = frame[_PERFORMATIVE : _PERFORMATIVE + 1]
    width = 1 if form == b"\xc0" else 4 if form == b"\xd0" else 0
    start = _PERFORMATIVE + 1 + width
    size = int.from_bytes(frame[_PERFORMATIVE + 1 : start], "big")
    if not width or not width <= size <= len(frame) - start:
        return b"", 0
    count = int.from_bytes(frame[start : start + width], "big")
    return frame[start + width : start + size], count


def _number(fields: bytes, at: int) -> tuple[int, int | None]:
    """The position after a uint, and its value, None for null; ``_WRONG`` if there is neither a uint nor null."""
    if at >= len(fields):
        return _WRONG, None
    form = fields[at]
    behind = at + 1 + _NUMBERS.get(form, len(fields))
    if behind > len(fields):
        return _WRONG, None
    return behind, None if form == 0x40 else int.from_bytes(fields[at + 1 : behind], "big")


def _plain_number(frame: bytes, begun: set[int], continued: set[int]) -> int:
    """The delivery-id of a plain transfer of a whole message; ``_MIDDLE`` for a middle part; ``_WRONG`` for others."""
    fields, count = _list_in(frame)
    if count < 3:
        return _WRONG
    at, handle = _number(fields, 0)
    if handle is None:
        return _WRONG
    key = link_key(int.from_bytes(frame[6:8], "big"), handle)
    is_continued = key not in begun
    if is_continued and key not in continued:
        return _WRONG
    at, number = _number(fields, at)
    if at == _WRONG or at >= len(fields):
        return _WRONG
    has_tag = fields[at] == 0xA0
    if has_tag:
        size = fields[at + 1] if at + 1 < len(fields) else _TAG_BYTES + 1
        at += 2 + size
        if size > _TAG_BYTES or at > len(fields):
            return _WRONG
    elif fields[at] == 0x40:
        at += 1
    else:
        return _WRONG
    # A field that is left out is null.
    if count == 3 and at != len(fields):
        return _WRONG
    at, form = _number(fields + b"\x40" if count == 3 else fields, at)
    if at == _WRONG:
        return _WRONG
    rest = fields[at:]
    if len(rest) != max(count - 4, 0) or count > 11:
        return _WRONG
    settled, more, mode, state, resume, aborted, batchable = rest + b"\x40" * (7 - len(rest))
    is_plain = (
        settled in _BOOLEANS
        and mode == state == 0x40
        and resume in _NOT_TRUE
        and aborted in _NOT_TRUE
        and batchable in _BOOLEANS
    )
    if is_continued:
        return _MIDDLE if is_plain and form is None and more == 0x41 else _WRONG
    return number if is_plain and number is not None and has_tag and more in _NOT_TRUE else _WRONG


def _is_plain_disposition(frame: bytes) -> bool:
    fields, count = _list_in(frame)
    if not 2 <= count <= 6 or fields[:1] != b"\x41":
        return False
    padded = fields + b"\x40" * (6 - count)
    at, first = _number(padded, 1)
    if first is None:
        return False
    at, last = _number(padded, at)
    if at == _WRONG or at >= len(padded) or (last is not None and (last - first) & 0x8000_0000):
        return False
    settled, state = padded[at], padded[at + 1 : at + 5]
    behind = at + 5 if state in _OUTCOMES else at + 2
    if behind == at + 2 and state[:1] != b"\x40":
        return False
    return settled in _BOOLEANS and len(padded) == behind + 1 and padded[behind] in _BOOLEANS
