"""
Topics: strings of levels separated by ``/``, that messages are published to.

In a topic ``*``, ``>`` and ``!`` are ordinary characters, and it may have empty levels (``/a``, ``a//b``, ``a/``; MQTT
publishers use them). Levels are compared as they are: case counts, nothing is trimmed.

Source: Solace documentation, "SMF Topics".
"""

from __future__ import annotations

from typing import Final

MAX_TOPIC_BYTES: Final = 250
"""Longest topic or pattern in UTF-8 bytes, a leading ``!`` included. Solace's limit: names carry over."""

MAX_TOPIC_LEVELS: Final = 128
"""Most levels of a topic or pattern. Solace's limit; it also bounds the depth of the trie."""

_NUL: Final = "\0"


class TopicSyntaxError(ValueError):
    """
    A topic or pattern that breaks the rules.

    Attributes:
        position: Index of the character where it does.
        reason: A sentence without the place.
    """

    def __init__(self, text: str, position: int, reason: str) -> None:
        super().__init__(f"{text[:MAX_TOPIC_BYTES]!r}: {reason} (at character {position})")
        self.position = position
        self.reason = reason


def check_topic(topic: str) -> str:
    """
    Return ``topic`` unchanged if a message may be published to it.

    ``*``, ``>``, ``!`` and empty levels are all allowed: in a published topic they are plain characters.

    Raises:
        TopicSyntaxError: It may not.
    """
    check_size(topic, "topic")
    return topic


def check_size(text: str, noun: str) -> None:
    """
    Whether a topic or subscription has a size and levels that it may have.

    Args:
        noun: What it is, for the error text.

    Raises:
        TopicSyntaxError: It has not.
    """
    if not text:
        raise TopicSyntaxError(text, 0, f"a {noun} needs at least one character")
    if _NUL in text:
        raise TopicSyntaxError(text, text.index(_NUL), f"a {noun} cannot contain the character NUL")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise TopicSyntaxError(text, error.start, f"a {noun} has to be valid Unicode") from None
    if size > MAX_TOPIC_BYTES:
        reason = f"a {noun} has at most {MAX_TOPIC_BYTES} bytes in UTF-8; this one has {size}"
        raise TopicSyntaxError(text, len(text), reason)
    levels = text.count("/") + 1
    if levels > MAX_TOPIC_LEVELS:
        reason = f"a {noun} has at most {MAX_TOPIC_LEVELS} levels; this one has {levels}"
        raise TopicSyntaxError(text, len(text), reason)


def is_reserved(topic: str) -> bool:
    """Whether ``topic`` lies in the part the gateway keeps for itself: its first level starts with ``#``."""
    return topic.startswith("#")
