"""
Log readers that have all there is for them, found by the topics that they wait for.

Invariant: whoever waits here has been told of everything below ``next_id`` that may be for it. So a commit costs
nothing for those whose topics were not published to, however many they are, and whoever goes on, goes on behind all
that was published meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from amqp_ext.topics import SubscriptionTrie, TopicPattern


class WaitingReader(Protocol):
    """A log reader."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Patterns of what it waits for; none where whatever is published concerns it. They never change."""

    def takes(self, topic: str) -> bool:
        """Whether a topic that one of them matches is really one that it reads."""

    def go_on_from(self, position: int) -> None:
        """Nothing below ``position`` is for it, of what was published while it waited. It waits no more."""

    def run(self) -> None:
        """Send what the link takes."""


class _Group:
    """Readers of the same topics."""

    __slots__ = ("size", "waiting")

    def __init__(self) -> None:
        self.size = 0
        """Those that came and have not left, waiting or not."""
        self.waiting: dict[WaitingReader, None] = {}


class WaitingReaders:
    """
    Those of one Message VPN.

    Args:
        next_id: One past the last committed id.
    """

    def __init__(self, next_id: int) -> None:
        self.next_id = next_id
        """One past the last id that was looked up for all who wait."""
        self._groups: dict[tuple[str, ...], _Group] = {}
        self._index: SubscriptionTrie[_Group] = SubscriptionTrie()

    def join(self, reader: WaitingReader) -> None:
        """A reader has come; it does not wait yet."""
        topics = reader.topics
        group = self._groups.get(topics)
        if group is None:
            group = self._groups[topics] = _Group()
            for pattern in map(TopicPattern.parse, topics):
                # What is excepted is left to the reader.
                if not pattern.is_exception:
                    self._index.add(pattern, group)
        group.size += 1

    def leave(self, reader: WaitingReader) -> None:
        """A reader that had come is gone."""
        group = self._groups[reader.topics]
        group.waiting.pop(reader, None)
        group.size -= 1
        if not group.size:
            del self._groups[reader.topics]
            self._index.remove_all(group)

    def wait(self, reader: WaitingReader) -> None:
        """A reader that has come has all there is below ``next_id``, and can take more."""
        self._groups[reader.topics].waiting[reader] = None

    def stop_waiting(self, reader: WaitingReader) -> None:
        """It goes on by itself."""
        self._groups[reader.topics].waiting.pop(reader, None)

    def published(self, news: Mapping[str, int], next_id: int) -> None:
        """
        Messages were committed.

        Args:
            news: Their topics, each with the id of its first message.
            next_id: One past the last of them.
        """
        self.next_id = next_id
        if not self._groups:
            return
        concerned = dict.fromkeys(self._of_any, min(news.values(), default=next_id))
        for topic, first_id in news.items():
            for group in self._index.match(topic):
                for reader in group.waiting:
                    if first_id < concerned.get(reader, next_id) and reader.takes(topic):
                        concerned[reader] = first_id
        self._go_on(concerned)

    def passed_over(self, next_id: int) -> None:
        """There is something new below ``next_id``, for whomever it may be."""
        before, self.next_id = self.next_id, next_id
        waiting = [reader for group in self._groups.values() for reader in group.waiting]
        self._go_on(dict.fromkeys(waiting, before))

    def came_to_nothing(self, next_id: int) -> None:
        """Ids below ``next_id`` that were not committed, never will be: a reader may end with one of them."""
        self.next_id = next_id
        self._go_on(dict.fromkeys(self._of_any, next_id))

    @property
    def _of_any(self) -> Mapping[WaitingReader, None]:
        """Those whom everything concerns, and who wait."""
        group = self._groups.get(())
        return {} if group is None else group.waiting

    def _go_on(self, concerned: Mapping[WaitingReader, int]) -> None:
        # All of them first: what one of them does may have another look at the log, and that is to know where.
        for reader, position in concerned.items():
            self.stop_waiting(reader)
            reader.go_on_from(position)
        for reader in concerned:
            reader.run()
