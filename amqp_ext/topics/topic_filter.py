"""
A set of subscriptions that is asked about one topic at a time.

Invariant: ``TopicFilter.matches`` agrees with the index of the same subscriptions (``trie``) on every topic.
"""

from __future__ import annotations

from collections.abc import Iterable

from amqp_ext.topics.pattern import TopicPattern
from amqp_ext.topics.trie import SubscriptionTrie


class TopicFilter:
    """
    A set of patterns that is asked about one topic at a time: what an endpoint or a log takes.

    A topic matches when some pattern matches and no exception does. Exceptions alone match nothing, as on a
    Solace queue.

    Args:
        implicit_all: Exceptions alone match all that is not excepted, and no patterns at all match everything, as a
            log's filter does.
        reserved: As of ``SubscriptionTrie``.
    """

    __slots__ = ("_trie", "patterns")

    def __init__(
        self, patterns: Iterable[TopicPattern], *, implicit_all: bool = False, reserved: bool = True
    ) -> None:
        self.patterns = tuple(patterns)
        self._trie: SubscriptionTrie[None] = SubscriptionTrie(reserved=reserved)
        for pattern in self.patterns:
            self._trie.add(pattern, None)
        if implicit_all and all(pattern.is_exception for pattern in self.patterns):
            self._trie.add(TopicPattern.parse(">"), None)

    def matches(self, topic: str) -> bool:
        """Whether the filter lets ``topic`` through."""
        return bool(self._trie.match(topic))

    def __repr__(self) -> str:
        return f"TopicFilter({', '.join(pattern.text for pattern in self.patterns)})"
