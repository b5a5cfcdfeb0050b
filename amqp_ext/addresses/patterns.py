"""
Patterns of addresses: which queues, topics and parts of the replay log a permission speaks of.

====================================================  =======================================================
``queue://orders``, ``queue://eu/*``, ``queue://>``   queues by name, whose levels are separated by ``/`` too
``topic://a/>``                                       topics
``log://a/>``                                         the part of the replay log with these topics
leading ``!``                                         an exception: what the rest matches is left out
====================================================  =======================================================

The wildcards are those of ``amqp_ext.topics``, for names of queues as well, so that there is one notation to learn. As
in a subscription, a wildcard at the first level of a queue or topic does not reach names that start with ``#``: those
are the gateway's own. In a log it does, as ``log://>`` reads everything.

Whoever subscribes asks for many topics at once, so a pattern is held against another pattern: ``AddressPattern.covers``
says that all of it is meant, ``AddressPattern.touches`` that some of it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest

from amqp_ext.addresses.address import AddressKind
from amqp_ext.addresses.texts import AddressError
from amqp_ext.topics import LevelKind, PatternLevel, TopicPattern, TopicSyntaxError, is_reserved

_KINDS = {kind.value: kind for kind in (AddressKind.QUEUE, AddressKind.TOPIC, AddressKind.LOG)}
_ANY = PatternLevel(LevelKind.ANY, "")


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """
    One pattern: its text, and what the text says. Make one with ``parse``.

    For an exception, the methods answer for the part after the ``!``, so that the caller decides what that means.
    """

    text: str
    kind: AddressKind = field(compare=False)
    names: TopicPattern = field(compare=False, repr=False)
    is_exception: bool = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> AddressPattern:
        """
        Read a pattern.

        Raises:
            AddressError: It is none; the text says what would be right.
        """
        body = text.removeprefix("!")
        scheme, marker, names = body.partition("://")
        kind = _KINDS.get(scheme)
        if not marker or kind is None:
            raise AddressError(
                f"{text!r} does not say of what it is a pattern; "
                f"write it as one of {', '.join(f'`{known}://…`' for known in _KINDS)}"
            )
        if "?" in names:
            raise AddressError(f"{text!r} has a '?': a permission is about a node, not about options")
        if names.startswith("!"):
            raise AddressError(
                f"{text!r} has its '!' inside; an exception is written as `!{scheme}://{names[1:]}`"
            )
        try:
            return cls(text, kind, TopicPattern.parse(names), body != text)
        except TopicSyntaxError as error:
            raise AddressError(f"{text!r} is no pattern: {error}") from None

    def matches(self, kind: AddressKind, name: str) -> bool:
        """Whether the queue or topic ``name``, in which wildcards are plain characters, is one of these."""
        return kind is self.kind and self._reaches(name) and self.names.matches(name)

    def covers(self, kind: AddressKind, asked: TopicPattern) -> bool:
        """Whether every topic that ``asked`` matches is one of these; exceptions are the caller's business."""
        if kind is not self.kind or not self._reaches(asked.text):
            return False
        ours, theirs = self.names.levels, asked.levels
        if self.names.takes_rest:
            shortest = len(theirs) + asked.takes_rest
            if shortest <= len(ours):
                return False
        elif asked.takes_rest or len(theirs) != len(ours):
            return False
        return all(_covers(our, their) for our, their in zip(ours, theirs, strict=False))

    def touches(self, kind: AddressKind, asked: TopicPattern) -> bool:
        """Whether some topic that ``asked`` matches is one of these; exceptions are the caller's business."""
        if kind is not self.kind or not (self._reaches(asked.text) and self._is_reached_by(asked)):
            return False
        ours, theirs = self.names.levels, asked.levels
        if len(ours) + self.names.takes_rest > len(theirs) and not asked.takes_rest:
            return False
        if len(theirs) + asked.takes_rest > len(ours) and not self.names.takes_rest:
            return False
        return all(_touch(our, their) for our, their in zip_longest(ours, theirs, fillvalue=_ANY))

    def _reaches(self, name: str) -> bool:
        """Whether a name, or pattern of names, is not hidden from us by its ``#``."""
        return self.kind is AddressKind.LOG or not (self.names.starts_with_wildcard and is_reserved(name))

    def _is_reached_by(self, asked: TopicPattern) -> bool:
        return self.kind is AddressKind.LOG or not (
            asked.starts_with_wildcard and is_reserved(self.names.text)
        )

    def __str__(self) -> str:
        return self.text


def _covers(our: PatternLevel, their: PatternLevel) -> bool:
    if our.kind is LevelKind.LITERAL:
        return our == their
    # A prefix, or ANY as the empty one: ANY is covered by nothing narrower.
    return their.text.startswith(our.text)


def _touch(our: PatternLevel, their: PatternLevel) -> bool:
    if our.kind is LevelKind.LITERAL:
        return our.text == their.text or (
            their.kind is not LevelKind.LITERAL and our.text.startswith(their.text)
        )
    if their.kind is LevelKind.LITERAL:
        return their.text.startswith(our.text)
    return our.text.startswith(their.text) or their.text.startswith(our.text)
