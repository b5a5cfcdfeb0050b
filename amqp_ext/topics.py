"""
Topics and subscriptions as Solace defines them.

A topic is levels separated by ``/``. A subscription is a pattern that topics match: ``*`` stands for one level,
``abc*`` for one level that begins with abc, ``>`` as the last level for one or more. ``SubscriptionTrie`` finds the
subscribers of a topic without looking at each pattern; ``SubscriptionTrie.match`` agrees with ``TopicPattern.matches``
on every topic.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final, Generic, NamedTuple, TypeVar

MAX_TOPIC_BYTES: Final = 250
"""Longest topic or pattern in UTF-8 bytes, a leading ``!`` included. Solace's limit: names carry over."""

MAX_TOPIC_LEVELS: Final = 128
"""Most levels of a topic or pattern. Solace's limit; it also bounds the depth of the trie."""

_NUL: Final = "\0"


class TopicSyntaxError(ValueError):
    """
    A topic or pattern that breaks the rules.

    Attributes:
        position: Index of the character that breaks a rule.
        reason: A sentence without the position.
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
        TopicSyntaxError: No message may be published to it.
    """
    check_size(topic, "topic")
    return topic


def check_size(text: str, noun: str) -> None:
    """
    Check the size and the number of levels of a topic or subscription.

    Args:
        noun: What the text is, for the error text.

    Raises:
        TopicSyntaxError: The text is empty, too long, has too many levels, or is no valid text.
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
    """Whether ``topic`` is one that the gateway keeps for itself: its first level starts with ``#``."""
    return topic.startswith("#")


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
        levels: The levels, without a final ``>``.
        takes_rest: Whether the pattern ends with ``>``.
        is_exception: Whether the pattern begins with ``!``.
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
        """Whether ``topic`` matches; a leading ``!`` of the pattern is ignored."""
        pieces = topic.split("/")
        levels = self.levels
        if self.takes_rest:
            if len(pieces) <= len(levels):
                return False
        elif len(pieces) != len(levels):
            return False
        # pieces may be longer: '>' takes the rest.
        for (kind, text), piece in zip(levels, pieces, strict=False):
            if kind is LevelKind.LITERAL:
                if piece != text:
                    return False
            elif not piece.startswith(text):  # ANY is the empty prefix
                return False
        return True

    def covers(self, asked: TopicPattern) -> bool:
        """Whether this pattern matches every topic that ``asked`` matches; a leading ``!`` of either is ignored."""
        ours, theirs = self.levels, asked.levels
        if self.takes_rest:
            if len(theirs) + asked.takes_rest <= len(ours):
                return False
        elif asked.takes_rest or len(theirs) != len(ours):
            return False
        return all(_covers(our, their) for our, their in zip(ours, theirs, strict=False))

    def touches(self, asked: TopicPattern) -> bool:
        """Whether some topic matches both this pattern and ``asked``; a leading ``!`` of either is ignored."""
        ours, theirs = self.levels, asked.levels
        if len(ours) + self.takes_rest > len(theirs) and not asked.takes_rest:
            return False
        if len(theirs) + asked.takes_rest > len(ours) and not self.takes_rest:
            return False
        return all(_touch(our, their) for our, their in zip_longest(ours, theirs, fillvalue=_ANY_LEVEL))

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


def _covers(our: PatternLevel, their: PatternLevel) -> bool:
    if our.kind is LevelKind.LITERAL:
        return our == their
    # A prefix, or ANY, which is the empty prefix: only ANY covers ANY.
    return their.text.startswith(our.text)


def _touch(our: PatternLevel, their: PatternLevel) -> bool:
    if our.kind is LevelKind.LITERAL:
        return our.text == their.text or (
            their.kind is not LevelKind.LITERAL and our.text.startswith(their.text)
        )
    if their.kind is LevelKind.LITERAL:
        return their.text.startswith(our.text)
    return our.text.startswith(their.text) or their.text.startswith(our.text)


REMEMBERED_TOPICS: Final = 4_096
"""How many topics a trie caches the match of. Publishers use few topics many times. A full cache is cleared."""

REMEMBERED_KEYS: Final = 64
"""The longest match that a trie caches, in keys, so that the cache stays within some megabytes."""

K = TypeVar("K", bound=Hashable)


class _Node(Generic[K]):
    """
    A node of the trie: what follows one path of pattern levels. Containers are made when first needed, as most nodes
    are leaves.

    ``here`` and ``rest`` hold the keys of patterns that end at this node, without and with a ``>``, by
    ordinal. ``prefixes`` groups prefix levels by length, ``*`` as the empty prefix: one look-up per distinct length,
    and no scan.
    """

    __slots__ = ("here", "literals", "prefixes", "rest")

    def __init__(self) -> None:
        self.literals: dict[str, _Node[K]] | None = None
        self.prefixes: dict[int, dict[str, _Node[K]]] | None = None
        self.here: dict[int, K] | None = None
        self.rest: dict[int, K] | None = None

    def alike(self, level: PatternLevel) -> dict[str, _Node[K]]:
        """The children whose level has this level's kind, and this length of a prefix, by the texts of their levels."""
        if level.kind is LevelKind.LITERAL:
            if self.literals is None:
                self.literals = {}
            return self.literals
        if self.prefixes is None:
            self.prefixes = {}
        return self.prefixes.setdefault(len(level.text), {})

    def prune(self, level: PatternLevel) -> None:
        alike = self.alike(level)
        del alike[level.text]
        if not alike and self.prefixes and level.kind is not LevelKind.LITERAL:
            del self.prefixes[len(level.text)]

    @property
    def is_empty(self) -> bool:
        return not (self.literals or self.prefixes or self.here or self.rest)

    def put(self, pattern: TopicPattern, ordinal: int, key: K) -> None:
        node = self
        for level in pattern.levels:
            node = node.alike(level).setdefault(level.text, _Node())
        if pattern.takes_rest:
            if node.rest is None:
                node.rest = {}
            node.rest[ordinal] = key
        else:
            if node.here is None:
                node.here = {}
            node.here[ordinal] = key

    def discard(self, pattern: TopicPattern, ordinal: int) -> None:
        path = [self]
        for level in pattern.levels:
            path.append(path[-1].alike(level)[level.text])
        ends = path[-1].rest if pattern.takes_rest else path[-1].here
        assert ends is not None, "the trie's record of a pattern and its nodes disagree"
        del ends[ordinal]
        for level in reversed(pattern.levels):
            if not path.pop().is_empty:
                break
            path[-1].prune(level)

    def collect(self, pieces: list[str], hidden: bool) -> dict[int, K]:
        """
        Keys, by ordinal, of every pattern that matches.

        ``hidden`` keeps ``*`` and ``>`` from matching in the first level.
        """
        found: dict[int, K] = {}
        nodes: list[_Node[K]] = [self]
        for piece in pieces:
            following: list[_Node[K]] = []
            for node in nodes:
                if node.literals is not None:
                    child = node.literals.get(piece)
                    if child is not None:
                        following.append(child)
                if node.prefixes is not None:
                    for length, same_length in node.prefixes.items():
                        child = same_length.get(piece[:length])
                        if child is not None and (length or not hidden):
                            following.append(child)
                if node.rest and not hidden:
                    found.update(node.rest)
            hidden = False
            nodes = following
            if not nodes:
                return found
        for node in nodes:
            if node.here:
                found.update(node.here)
        return found


class SubscriptionTrie(Generic[K]):
    """
    The subscribers of each topic. ``K`` is what the caller delivers to, such as an endpoint's id.

    A key may have many patterns. It matches a topic when one of its patterns does and none of its exceptions
    does. A match costs some look-ups per level of the topic, whatever the number of subscriptions.

    With ``reserved=False`` a ``*`` or ``>`` in the first level does not match a topic whose first level
    starts with ``#``. At Solace, too, a subscription ``>`` does not receive what is sent to a queue by name.
    """

    def __init__(self, *, reserved: bool = True) -> None:
        self._reserved = reserved
        self._wanted: _Node[K] = _Node()
        self._excepted: _Node[K] = _Node()
        # The ordinals are the order in which keys came; the patterns of a key are those that remove_all removes.
        self._ordinals: dict[K, int] = {}
        self._patterns: dict[K, set[TopicPattern]] = {}
        self._next_ordinal = 0
        self._remembered: dict[str, tuple[K, ...]] = {}

    def add(self, pattern: TopicPattern, key: K) -> None:
        """Subscribe ``key`` to ``pattern``; does nothing if it is already."""
        patterns = self._patterns.get(key)
        if patterns is None:
            patterns = self._patterns[key] = set()
            self._ordinals[key] = self._next_ordinal
            self._next_ordinal += 1
        if pattern not in patterns:
            patterns.add(pattern)
            self._root(pattern).put(pattern, self._ordinals[key], key)
            self._remembered.clear()

    def remove(self, pattern: TopicPattern, key: K) -> None:
        """Remove one subscription of ``key``, if there is one."""
        patterns = self._patterns.get(key, set())
        if pattern not in patterns:
            return
        patterns.remove(pattern)
        self._root(pattern).discard(pattern, self._ordinals[key])
        if not patterns:
            del self._patterns[key], self._ordinals[key]
        self._remembered.clear()

    def remove_all(self, key: K) -> None:
        """Remove all subscriptions of ``key``."""
        for pattern in tuple(self._patterns.get(key, ())):
            self.remove(pattern, key)

    def match(self, topic: str) -> tuple[K, ...]:
        """Keys subscribed to ``topic``, each once, in the order in which they were first added."""
        remembered = self._remembered.get(topic)
        if remembered is not None:
            return remembered
        pieces = topic.split("/")
        hidden = not self._reserved and is_reserved(topic)
        found = self._wanted.collect(pieces, hidden)
        if found and not self._excepted.is_empty:
            for ordinal in self._excepted.collect(pieces, hidden):
                found.pop(ordinal, None)
        keys = tuple(found[ordinal] for ordinal in sorted(found))
        if len(keys) <= REMEMBERED_KEYS:
            if len(self._remembered) >= REMEMBERED_TOPICS:
                self._remembered.clear()
            self._remembered[topic] = keys
        return keys

    def _root(self, pattern: TopicPattern) -> _Node[K]:
        return self._excepted if pattern.is_exception else self._wanted


class TopicFilter:
    """
    A set of patterns that is matched with one topic at a time: the topics that an endpoint or a log reader takes.

    A topic matches when some pattern matches and no exception does. Exceptions alone match nothing, as on a
    Solace queue.

    Args:
        implicit_all: Exceptions alone match every topic that is not excepted, and an empty set matches every topic, as
            in a log reader's filter.
        reserved: As in ``SubscriptionTrie``.
    """

    __slots__ = ("_trie",)

    def __init__(
        self, patterns: Iterable[TopicPattern], *, implicit_all: bool = False, reserved: bool = True
    ) -> None:
        self._trie: SubscriptionTrie[None] = SubscriptionTrie(reserved=reserved)
        takes_some = False
        for pattern in patterns:
            self._trie.add(pattern, None)
            takes_some |= not pattern.is_exception
        if implicit_all and not takes_some:
            self._trie.add(TopicPattern.parse(">"), None)

    def matches(self, topic: str) -> bool:
        """Whether the filter lets ``topic`` through."""
        return bool(self._trie.match(topic))
