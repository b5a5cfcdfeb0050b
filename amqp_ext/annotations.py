"""
What the gateway puts in front of a message on its way out: header and message annotations, spliced, never re-encoded.

The bare message follows bit for bit. Only where a message brought annotations of its own, or failed before, is its
front taken apart; all others get a template filled in. One ``Splicer`` serves one kind of link of one log.

Annotations delivered (AMQP 1.0 section 3.2.10; ``x-opt-`` keys may be ignored by whoever does not know them):

=========================  =========  =============================================================================
``x-opt-topic``            string     what the message was published to
``x-opt-sequence-number``  long       the id
``x-opt-enqueued-time``    timestamp  arrival
``x-opt-replay-id``        string     ``rmid1:…``: the id with the log's generation
``x-opt-offset``           string     the id in decimal (Event Hubs)
``x-opt-replay-end``       boolean    true on the last message before live
``x-stream-offset``        long       the id, only for links that used RabbitMQ's filter
=========================  =========  =============================================================================
"""

from __future__ import annotations

import struct
from typing import Final

from amqp_ext import codec
from amqp_ext.codec import Symbol, UByte, UInt
from amqp_ext.replay_id import format_replay_id
from amqp_ext.sections import HEADER, MESSAGE_ANNOTATIONS, read_header, split

TEMPLATE_CACHE: Final = 4_096
"""Topics whose template is remembered; it starts anew when full."""

_OURS: Final = frozenset(
    {
        "x-opt-topic",
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-replay-id",
        "x-opt-offset",
        "x-opt-replay-end",
        "x-stream-offset",
    }
)
_LONG: Final = struct.Struct(">q").pack
_SIZES: Final = struct.Struct(">II").pack
_MAP32: Final = b"\x00\x53\x72\xd1"
_END: Final = codec.encode(Symbol("x-opt-replay-end")) + b"\x41"
_STREAM_OFFSET: Final = codec.encode(Symbol("x-stream-offset")) + b"\x81"
_FIRST_PAIRS: Final = 5
_SHORT_HEADER: Final = b"\x00\x53\x70\xc0"


class Splicer:
    """
    Args:
        generation: The log's generation, part of every replay id.
        stream_offset: Whether the link asked with RabbitMQ's filter.
    """

    def __init__(self, generation: int, *, stream_offset: bool = False) -> None:
        self._stream_offset = stream_offset
        self._templates: dict[tuple[str, int], bytes] = {}
        self._time_ms = -1
        self._middle = b""
        replay_id = format_replay_id(generation, 0)
        self._replay_id = replay_id[: -len("00000000-00000000")].encode()
        self._before_time = codec.encode(Symbol("x-opt-enqueued-time")) + b"\x83"
        self._after_time = (
            codec.encode(Symbol("x-opt-replay-id")) + b"\xa1" + bytes([len(replay_id)]) + self._replay_id
        )
        self._before_offset = codec.encode(Symbol("x-opt-offset")) + b"\xa1"

    def front(
        self,
        message_id: int,
        time_ms: int,
        topic: str,
        bare: int,
        content: bytes,
        attempts: int,
        is_end: bool,
    ) -> bytes:
        """
        All that goes in front of ``content[bare:]``.

        Args:
            attempts: Failed deliveries before this one: the header's delivery-count.
            is_end: The message is the last before live.
        """
        if is_end or self._stream_offset:
            annotations = self._extended(message_id, time_ms, topic, is_end)
        else:
            annotations = self._annotations(message_id, time_ms, topic)
        if not bare and not attempts:
            return annotations
        return _with_front_of(content, bare, annotations, attempts)

    def _annotations(self, message_id: int, time_ms: int, topic: str) -> bytes:
        digits = b"%d" % message_id
        template = self._templates.get((topic, len(digits)))
        if template is None:
            template = self._template(topic, len(digits))
        if time_ms != self._time_ms:
            self._time_ms = time_ms
            self._middle = self._before_time + _LONG(time_ms) + self._after_time
        return b"%b%b%b%08x-%08x%b%b" % (
            template,
            _LONG(message_id),
            self._middle,
            message_id >> 32,
            message_id & 0xFFFFFFFF,
            self._before_offset + bytes((len(digits),)),
            digits,
        )

    def _template(self, topic: str, digit_count: int) -> bytes:
        first = (
            codec.encode(Symbol("x-opt-topic"))
            + codec.encode(topic)
            + codec.encode(Symbol("x-opt-sequence-number"))
            + b"\x81"
        )
        rest = (
            8
            + len(self._before_time)
            + 8
            + len(self._after_time)
            + 17
            + len(self._before_offset)
            + 1
            + digit_count
        )
        if len(self._templates) >= TEMPLATE_CACHE:
            self._templates.clear()
        # The size counts from behind itself: the four bytes of the pair count, and the pairs.
        template = _MAP32 + _SIZES(4 + len(first) + rest, 2 * _FIRST_PAIRS) + first
        self._templates[topic, digit_count] = template
        return template

    def _extended(self, message_id: int, time_ms: int, topic: str, is_end: bool) -> bytes:
        pairs = self._annotations(message_id, time_ms, topic)[12:]
        count = _FIRST_PAIRS
        if is_end:
            pairs += _END
            count += 1
        if self._stream_offset:
            pairs += _STREAM_OFFSET + _LONG(message_id)
            count += 1
        return _MAP32 + _SIZES(4 + len(pairs), 2 * count) + pairs


def _with_front_of(content: bytes, bare: int, annotations: bytes, attempts: int) -> bytes:
    """Our annotations joined with the header and the annotations that the message came with."""
    if not attempts and content[:4] == _SHORT_HEADER and content[4] + 5 == bare:
        # By far the most common: a header and nothing else.
        return content[:bare] + annotations
    header = b""
    for section in split(content):
        if section.start >= bare:
            break
        if section.code == HEADER:
            header = content[section.start : section.end]
        elif section.code == MESSAGE_ANNOTATIONS:
            annotations = _merged(content[section.start : section.end], annotations)
    if attempts:
        header = _counted(content, attempts)
    return header + annotations


def _merged(theirs: bytes, ours: bytes) -> bytes:
    """One annotations section: their pairs as they were encoded, without those that are ours to set, then ours."""
    start = codec.skip(theirs, 1)
    kind = theirs[start]
    wide = kind == 0xD1
    count = int.from_bytes(theirs[start + 5 : start + 9] if wide else theirs[start + 2 : start + 3], "big")
    position = start + (9 if wide else 3)
    kept = []
    for _ in range(count // 2):
        key, value = codec.decode(theirs, position)
        end = codec.skip(theirs, value)
        if key not in _OURS:
            kept.append(theirs[position:end])
        position = end
    pairs = b"".join(kept) + ours[12:]
    total = 2 * len(kept) + int.from_bytes(ours[8:12], "big")
    return _MAP32 + _SIZES(4 + len(pairs), total) + pairs


def _counted(content: bytes, attempts: int) -> bytes:
    """The header with its delivery-count raised (AMQP 1.0 section 3.2.1)."""
    header = read_header(content)
    fields = [
        header.durable,
        UByte(header.priority),
        None if header.ttl_ms is None else UInt(header.ttl_ms),
        False,
        UInt(header.delivery_count + attempts),
    ]
    return b"\x00\x53\x70" + codec.encode(fields)
