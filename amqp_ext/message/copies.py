"""
Copies of logged messages, as a replay publishes them again: the bare message bit for bit, and annotations in front.

============================  ======  =====================================================
``x-opt-replay-name``         string  the replay that published the copy
``x-opt-replay-source-topic`` string  what the message was published to that it is a copy of
``x-opt-replay-source-id``    long    the id of that message in the log it came from
============================  ======  =====================================================

A copy of a copy names the later replay, and the message that it all began with: by that, whoever handles messages
knows them again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

from amqp_ext import codec
from amqp_ext.codec import Long, Symbol
from amqp_ext.message.annotations import REPLAY_NAME, annotated, is_short_header
from amqp_ext.message.sections import message_annotations

LoggedRow: TypeAlias = "tuple[int, int, str, int, int, int | None, bytes]"

SOURCE_TOPIC: Final = "x-opt-replay-source-topic"
SOURCE_ID: Final = "x-opt-replay-source-id"

KNOWN_TOPICS: Final = 1_024
"""Topics whose fronts are remembered; then that starts anew."""

_LONG: Final = struct.Struct(">q").pack
_SIZES: Final = struct.Struct(">II").pack
_MAP32: Final = b"\x00\x53\x72\xd1"
_BEFORE_ID: Final = codec.encode(Symbol(SOURCE_ID)) + b"\x81"


def origin_of(content: bytes) -> tuple[int, str]:
    """What a message is a copy of, and what that was published to; 0 and empty where it does not say."""
    try:
        found = message_annotations(content)
    except codec.CodecError:
        return 0, ""
    source_id, topic = found.get(SOURCE_ID), found.get(SOURCE_TOPIC)
    if not isinstance(source_id, int) or isinstance(source_id, bool) or not 0 < source_id < 2**63:
        return 0, ""
    return int(source_id), topic if isinstance(topic, str) else ""


class CopyFronts:
    """
    What one replay puts in front of its copies.

    Args:
        name: The replay's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pairs = codec.encode(Symbol(REPLAY_NAME)) + codec.encode(name)
        self._by_topic: dict[str, bytes] = {}

    def copies(self, rows: Sequence[LoggedRow]) -> tuple[list[bytes], list[int]]:
        """
        The copies of logged messages, and where the bare message begins in each.

        Args:
            rows: (id, time ms, topic, offset of the bare message, anything, anything, content) of each.
        """
        contents: list[bytes] = []
        bares: list[int] = []
        by_topic = self._by_topic
        for message_id, _, topic, bare, _, _, content in rows:
            before = by_topic.get(topic) or self._before_id(topic)
            if not bare:
                contents.append(b"".join((before, _LONG(message_id), content)))
                bares.append(len(before) + 8)
                continue
            header = content[:bare]
            if is_short_header(header):
                contents.append(b"".join((header, before, _LONG(message_id), content[bare:])))
                bares.append(bare + len(before) + 8)
                continue
            origin_id, origin_topic = origin_of(content)
            copied, begins = annotated(
                content,
                {
                    REPLAY_NAME: self._name,
                    SOURCE_TOPIC: origin_topic or topic,
                    SOURCE_ID: Long(origin_id or message_id),
                },
            )
            contents.append(copied)
            bares.append(begins)
        return contents, bares

    def _before_id(self, topic: str) -> bytes:
        """The section of annotations up to the id, which ends it."""
        pairs = self._pairs + codec.encode(Symbol(SOURCE_TOPIC)) + codec.encode(topic) + _BEFORE_ID
        # A map's size counts from behind itself: the four bytes of the count, and the pairs.
        section = _MAP32 + _SIZES(4 + len(pairs) + 8, 6) + pairs
        if len(self._by_topic) >= KNOWN_TOPICS:
            self._by_topic.clear()
        self._by_topic[topic] = section
        return section
