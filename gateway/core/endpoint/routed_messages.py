"""
The messages of one route, as far as the endpoints of that route look at them: how many there are, and which numbers the
store knows the route by.
"""

from __future__ import annotations


class RoutedMessages:
    """
    Attributes:
        numbers: What messages of it name in the store, the one of new messages first; several where endpoints that told
            them apart are gone.
        priority: Of its messages, where one of its endpoints delivers by priority.
        messages: Committed since the route is in memory.
        size_bytes: Their content.
        newest_id: Of its committed messages; 0 when there are none.
    """

    __slots__ = ("messages", "newest_id", "numbers", "priority", "size_bytes")

    def __init__(self, number: int, priority: int | None, newest_id: int = 0) -> None:
        self.numbers = [number]
        self.priority = priority
        self.messages = 0
        self.size_bytes = 0
        self.newest_id = newest_id

    def endpoints_changed(self) -> None:
        """One of its endpoints wants to be told of each message from now on, or no longer."""
