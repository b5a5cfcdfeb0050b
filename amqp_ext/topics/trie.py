"""
The index of subscriptions: who subscribed to a topic, found without a look at each pattern.

Invariant: ``SubscriptionTrie.match`` agrees with ``TopicPattern.matches`` on every topic; it exists to be fast.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from amqp_ext.topics.pattern import LevelKind, PatternLevel, TopicPattern
from amqp_ext.topics.topic import is_reserved

REMEMBERED_TOPICS: Final = 4_096
"""Topics whose match a trie remembers. Publishers use few topics many times; beyond this it starts over."""

REMEMBERED_KEYS: Final = 64
"""Longest match a trie remembers, in keys, so that what is remembered stays within some megabytes."""

K = TypeVar("K", bound=Hashable)


class _Node(Generic[K]):
    """
    What follows one path of pattern levels. Containers are made when first needed: most nodes are leaves.

    ``here`` and ``rest`` hold the keys of patterns that end at this node, without and with a ``>``, by
    ordinal. ``prefixes`` groups prefix levels by length: one look-up per distinct length, and no scan.
    """

    __slots__ = ("any_level", "here", "literals", "prefixes", "rest")

    def __init__(self) -> None:
        self.literals: dict[str, _Node[K]] | None = None
        self.prefixes: dict[int, dict[str, _Node[K]]] | None = None
        self.any_level: _Node[K] | None = None
        self.here: dict[int, K] | None = None
        self.rest: dict[int, K] | None = None

    def child(self, level: PatternLevel) -> _Node[K] | None:
        kind, text = level
        if kind is LevelKind.LITERAL:
            return self.literals.get(text) if self.literals else None
        if kind is LevelKind.ANY:
            return self.any_level
        return self.prefixes.get(len(text), {}).get(text) if self.prefixes else None

    def grow(self, level: PatternLevel) -> _Node[K]:
        kind, text = level
        node: _Node[K] = _Node()
        if kind is LevelKind.LITERAL:
            if self.literals is None:
                self.literals = {}
            self.literals[text] = node
        elif kind is LevelKind.ANY:
            self.any_level = node
        else:
            if self.prefixes is None:
                self.prefixes = {}
            self.prefixes.setdefault(len(text), {})[text] = node
        return node

    def prune(self, level: PatternLevel) -> None:
        kind, text = level
        if kind is LevelKind.LITERAL:
            assert self.literals is not None
            del self.literals[text]
        elif kind is LevelKind.ANY:
            self.any_level = None
        else:
            assert self.prefixes is not None
            same_length = self.prefixes[len(text)]
            del same_length[text]
            if not same_length:
                del self.prefixes[len(text)]

    @property
    def is_empty(self) -> bool:
        return not (self.literals or self.prefixes or self.any_level or self.here or self.rest)

    def put(self, pattern: TopicPattern, ordinal: int, key: K) -> None:
        node = self
        for level in pattern.levels:
            node = node.child(level) or node.grow(level)
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
            node = path[-1].child(level)
            assert node is not None, "the trie's record of a pattern and its nodes disagree"
            path.append(node)
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
                        if child is not None:
                            following.append(child)
                if hidden:
                    continue
                if node.any_level is not None:
                    following.append(node.any_level)
                if node.rest:
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
    Who subscribed to what. ``K`` is whatever the caller delivers to: an endpoint's id, for one.

    A key may have many patterns. It matches a topic when one of its patterns does and none of its exceptions
    does. A match costs some look-ups per level of the topic, whatever the number of subscriptions.

    With ``reserved=False`` a ``*`` or ``>`` in the first level does not match a topic whose first level
    starts with ``#``. At Solace, too, a subscription ``>`` does not receive what is sent to a queue by name.
    """

    def __init__(self, *, reserved: bool = True) -> None:
        self._reserved = reserved
        self._wanted: _Node[K] = _Node()
        self._excepted: _Node[K] = _Node()
        # A key's ordinal says in what order keys came; its patterns are what remove_all has to take away.
        self._ordinals: dict[K, int] = {}
        self._patterns: dict[K, set[TopicPattern]] = {}
        self._next_ordinal = 0
        self._remembered: dict[str, tuple[K, ...]] = {}

    def add(self, pattern: TopicPattern, key: K) -> bool:
        """Subscribe ``key`` to ``pattern``. False if it already was."""
        patterns = self._patterns.get(key)
        if patterns is None:
            patterns = self._patterns[key] = set()
            self._ordinals[key] = self._next_ordinal
            self._next_ordinal += 1
        elif pattern in patterns:
            return False
        patterns.add(pattern)
        self._root(pattern).put(pattern, self._ordinals[key], key)
        self._remembered.clear()
        return True

    def remove(self, pattern: TopicPattern, key: K) -> bool:
        """Take one subscription of ``key`` away. False if there was none."""
        patterns = self._patterns.get(key)
        if patterns is None or pattern not in patterns:
            return False
        patterns.remove(pattern)
        self._root(pattern).discard(pattern, self._ordinals[key])
        if not patterns:
            del self._patterns[key], self._ordinals[key]
        self._remembered.clear()
        return True

    def remove_all(self, key: K) -> int:
        """Take all subscriptions of ``key`` away; the number there were."""
        patterns = self._patterns.pop(key, None)
        if patterns is None:
            return 0
        ordinal = self._ordinals.pop(key)
        for pattern in patterns:
            self._root(pattern).discard(pattern, ordinal)
        self._remembered.clear()
        return len(patterns)

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

    def patterns_of(self, key: K) -> frozenset[TopicPattern]:
        """The patterns ``key`` is subscribed to, exceptions among them."""
        return frozenset(self._patterns.get(key, ()))

    def __len__(self) -> int:
        """The number of subscriptions."""
        return sum(map(len, self._patterns.values()))

    def __contains__(self, key: K) -> bool:
        return key in self._patterns

    def _root(self, pattern: TopicPattern) -> _Node[K]:
        return self._excepted if pattern.is_exception else self._wanted
