"""
Patterns of addresses: which queues, topics and parts of the replay log a permission covers, and to which topics a rule
of retention may apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from amqp_ext.addresses.address import AddressKind
from amqp_ext.addresses.forms import AddressError
from amqp_ext.topics import TopicPattern, TopicSyntaxError, is_reserved

_KINDS = {kind.value: kind for kind in (AddressKind.QUEUE, AddressKind.TOPIC, AddressKind.LOG)}


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
            AddressError: The text is not a pattern; the error says what would be right.
        """
        body = text.removeprefix("!")
        scheme, marker, names = body.partition("://")
        kind = _KINDS.get(scheme)
        if not marker or kind is None:
            raise AddressError(
                f"{text!r} does not say what kind of node it is for; write it as one of "
                f"{', '.join(f'`{known}://…`' for known in _KINDS)}"
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
            raise AddressError(f"{text!r} is not a valid pattern: {error}") from None

    def matches(self, kind: AddressKind, name: str) -> bool:
        """Whether this pattern matches the queue or topic ``name``, in which wildcards are plain characters."""
        return kind is self.kind and self._reaches(name) and self.names.matches(name)

    def covers(self, kind: AddressKind, asked: TopicPattern) -> bool:
        """Whether this pattern matches every topic that ``asked`` matches; the caller handles exceptions."""
        return kind is self.kind and self._reaches(asked.text) and self.names.covers(asked)

    def touches(self, kind: AddressKind, asked: TopicPattern) -> bool:
        """Whether some topic matches both this pattern and ``asked``; the caller handles exceptions."""
        if kind is not self.kind or not self._reaches(asked.text):
            return False
        is_hidden = asked.starts_with_wildcard and is_reserved(self.names.text)
        return (kind is AddressKind.LOG or not is_hidden) and self.names.touches(asked)

    def _reaches(self, name: str) -> bool:
        """Whether a name, or pattern of names, is not hidden from this pattern by its leading ``#``."""
        return self.kind is AddressKind.LOG or not (self.names.starts_with_wildcard and is_reserved(name))

    def __str__(self) -> str:
        return self.text


def may_hold_for(topics: Sequence[str], before: Sequence[Sequence[str]], patterns: Sequence[str]) -> bool:
    """
    Whether a rule of retention may apply to topics that some subscriptions match; in doubt, True.

    Args:
        topics: The topics of the rule.
        before: The topics of the rules before it: the rule does not apply to topics that these match.
        patterns: The subscriptions and their exceptions; exceptions alone stand for every topic.
    """
    asked, excepted = _parted(patterns)
    own, own_excepted = _parted(topics)
    rules_before = list(map(_parted, before))

    def may_hold(pattern: TopicPattern) -> bool:
        if any(exception.covers(pattern) for exception in own_excepted):
            return False
        for others, but in rules_before:
            if any(one.covers(pattern) for one in others) and not any(one.touches(pattern) for one in but):
                return False
        return any(one.touches(pattern) and not any(e.covers(one) for e in excepted) for one in own)

    return any(map(may_hold, asked or [TopicPattern.parse(">")]))


def _parted(topics: Sequence[str]) -> tuple[list[TopicPattern], list[TopicPattern]]:
    """The patterns that are no exceptions, and the exceptions."""
    patterns = list(map(TopicPattern.parse, topics))
    return [one for one in patterns if not one.is_exception], [one for one in patterns if one.is_exception]
