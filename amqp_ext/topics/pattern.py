"""
Subscriptions: patterns that topics match or do not.

====================  =====================================================================
``*`` as a level      any one level
``abc*`` as a level   any one level that starts with ``abc`` (``abc`` itself too)
``>`` as last level   one or more levels
leading ``!``         an exception: what the rest matches is left out
====================  =====================================================================

Everywhere else ``*`` and ``>`` are ordinary characters. ``*`` and ``>`` match empty levels; a pattern may not have any,
which is what Solace's messaging APIs tell a subscriber.

Sources: Solace documentation, "Wildcard Characters in Topic Subscriptions", "System-Level Subscription Exception
Configuration".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from amqp_ext.topics.topic import TopicSyntaxError, check_size


class LevelKind(enum.Enum):
    """What one level of a pattern matches."""

    LITERAL = enum.auto()
    ANY = enum.auto()
    PREFIX = enum.auto()


class PatternLevel(NamedTuple):
    """One level of a pattern; ``text`` is the literal or the prefix, and empty for ANY."""

    kind: LevelKind
    text: str


_ANY_LEVEL: Final = PatternLevel(LevelKind.ANY, "")


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """
    A subscription: its text, and what the text says. Make one with ``parse``.

    For an exception, ``matches`` answers whether the part after ``!`` matches, so that the caller decides what that
    means.

    Attributes:
        levels: Without a final ``>``.
        takes_rest: There was one.
        is_exception: There was a leading ``!``.
    """

    text: str
    levels: tuple[PatternLevel, ...] = field(compare=False, repr=False)
    takes_rest: bool = field(compare=False, repr=False)
    is_exception: bool = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> TopicPattern:
        """
        Read a subscription.

        Raises:
            TopicSyntaxError: Solace would refuse it too: an empty text, a lone ``!``, an empty level, the character
                NUL, more than ``MAX_TOPIC_BYTES`` or ``MAX_TOPIC_LEVELS``.
        """
        check_size(text, "subscription")
        is_exception = text[0] == "!"
        pieces = (text[1:] if is_exception else text).split("/")
        position = int(is_exception)
        if is_exception and pieces == [""]:
            raise TopicSyntaxError(text, position, "an exception needs a pattern after the '!'")
        takes_rest = pieces[-1] == ">"
        if takes_rest:
            pieces.pop()
        levels = []
        for piece in pieces:
            if not piece:
                raise TopicSyntaxError(
                    text, position, "a subscription cannot have an empty level; use '*' to match one"
                )
            levels.append(_read_level(piece))
            position += len(piece) + 1
        return cls(text, tuple(levels), takes_rest, is_exception)

    def matches(self, topic: str) -> bool:
        """Whether ``topic`` matches, a leading ``!`` of the pattern aside."""
        pieces = topic.split("/")
        levels = self.levels
        if self.takes_rest:
            if len(pieces) <= len(levels):
                return False
        elif len(pieces) != len(levels):
            return False
        # pieces may be longer: what is left over is what '>' takes.
        for (kind, text), piece in zip(levels, pieces, strict=False):
            if kind is LevelKind.LITERAL:
                if piece != text:
                    return False
            elif not piece.startswith(text):  # ANY is the empty prefix
                return False
        return True

    @property
    def starts_with_wildcard(self) -> bool:
        """Whether the first level is ``*`` or ``>``, so that the pattern reaches into every branch."""
        return self.levels[0].kind is LevelKind.ANY if self.levels else self.takes_rest

    def __str__(self) -> str:
        return self.text


def _read_level(piece: str) -> PatternLevel:
    if piece == "*":
        return _ANY_LEVEL
    if piece[-1] == "*":
        return PatternLevel(LevelKind.PREFIX, piece[:-1])
    return PatternLevel(LevelKind.LITERAL, piece)
