"""
The position of a log reader: a consumer that reads the replay log from its own start, in order, and slides into live
traffic.

It keeps nothing but a position. History comes as pages from the store, then as slices of the message cache; both are
offered here in id order, without a gap, and each id is offered once: that is all there is to "no gap and no duplicate".
While it is behind, the last match is held back until the next one, or the end of the log, is known, so that exactly the
last message before live is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from amqp_ext.topics import TopicFilter, TopicPattern
from gateway.core.model import HELD, HELD_OF, ID, TOPIC, TOPIC_OF, Row


class LogCursor:
    __slots__ = ("caught_up", "held_back", "last", "matches", "position", "selects")

    def __init__(
        self,
        position: int,
        last: int | None,
        matches: Callable[[str], bool] | None,
        *,
        is_live: bool,
        selects: Callable[[Row], bool] | None = None,
    ) -> None:
        self.position = position
        """The next id to be considered."""
        self.last = last
        """The last id to be delivered, of a bounded replay."""
        self.matches = matches
        """Whether a topic is subscribed to; None when every topic is."""
        self.selects = selects
        """The reader's selector and filters; None when it has none."""
        self.held_back: Row | None = None
        self.caught_up = is_live

    @property
    def is_finished(self) -> bool:
        """A bounded replay has considered its last id and holds nothing back."""
        return self.last is not None and self.position > self.last and self.held_back is None

    def offer(self, rows: Sequence[Row], position: int, end: int, limit: int) -> tuple[list[Row], bool]:
        """The same as ``offer_logged``, of messages among which there may be some that the log does not hold."""
        return self.offer_logged(logged(rows), position, end, limit)

    def offer_logged(
        self, rows: list[Row], position: int, end: int, limit: int, topics: Collection[str] | None = None
    ) -> tuple[list[Row], bool]:
        """
        Consider all that the log has from ``self.position`` to ``position`` (excluded).

        Args:
            rows: Those messages, rising, at most ``limit``; ones that the reader does not subscribe to may be among
                them. The caller's no longer.
            position: The next id to be considered afterwards.
            end: One past the last committed id: whether live is reached.
            limit: How many rows may be delivered. Where one too many is at hand, it is held back: offer no rows at
                the same position to have it.
            topics: Theirs, each once, where that is known.

        Returns:
            The rows to deliver now, in order, and whether the last of them is the last before live (or the last of
            a bounded replay).
        """
        self.position = position
        last = self.last
        if last is not None and rows and rows[-1][ID] > last:
            rows = [row for row in rows if row[ID] <= last]
        chosen = self.choose(rows, topics)
        if self.caught_up and last is None:
            return chosen, False
        if self.held_back is not None:
            chosen.insert(0, self.held_back)
            self.held_back = None
        if len(chosen) <= limit and (position >= end or (last is not None and position > last)):
            self.caught_up = True
            return chosen, bool(chosen) and (last is None or position > last)
        if chosen:
            self.held_back = chosen.pop()
        return chosen, False

    def choose(self, rows: list[Row], topics: Collection[str] | None = None) -> list[Row]:
        """Those of these logged messages that the reader is to have; ``topics`` are theirs, where that is known."""
        chosen = rows
        if self.matches is not None:
            chosen = of_topics(chosen, self.matches, topics)
        return chosen if self.selects is None else list(filter(self.selects, chosen))


def logged(rows: Sequence[Row]) -> list[Row]:
    """Those of these messages that the log holds, in a new list."""
    are_all = list(map(HELD_OF, rows)).count(None) == len(rows)
    return list(rows) if are_all else [row for row in rows if row[HELD] is None]


def of_topics(
    rows: list[Row], matches: Callable[[str], bool], topics: Collection[str] | None = None
) -> list[Row]:
    """
    Those of these messages whose topics are wanted. Topics repeat: each is looked at once.

    Args:
        topics: Theirs, each once, where that is known.
    """
    if topics is None:
        topics = set(map(TOPIC_OF, rows))
    wanted = set(filter(matches, topics))
    return rows if len(wanted) == len(topics) else [row for row in rows if row[TOPIC] in wanted]


def topic_matcher(patterns: Sequence[str]) -> Callable[[str], bool] | None:
    """Whether a topic is one of those a log reader subscribes to; None when all are."""
    is_whole = ">" in patterns and not any(pattern.startswith("!") for pattern in patterns)
    return None if is_whole else TopicFilter([TopicPattern.parse(p) for p in patterns]).matches
