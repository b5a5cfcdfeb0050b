"""
What a Message VPN's consumers must see, said as plainly as possible: sets of ids and the next one due.

Nothing here knows of windows, pages, positions or states of a replay. What is durable is the naive store's word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from gateway.core.effects import Row
from gateway.core.endpoint import Flow
from gateway.core.errors import Refused
from gateway.vpn.log_feed import LogFeed
from gateway.vpn.message_vpn import MessageVpn
from tests.core.naive_store import NaiveStore


def matches(pattern: str, topic: str) -> bool:
    """The three kinds of pattern that the model uses: a topic, all below a level, and all but what is reserved."""
    if pattern == ">":
        return not topic.startswith("#")
    if pattern.endswith("/>"):
        return topic.startswith(pattern[:-1])
    return topic == pattern


class Publisher:
    """A link that messages come in on; each is known by its content."""

    def __init__(self, store: NaiveStore) -> None:
        self._store = store
        self.accepted_contents: set[bytes] = set()
        self.refused_contents: set[bytes] = set()

    def accepted(self, deliveries: Sequence[bytes]) -> None:
        durable = {row[5] for row in self._store.published.values()}
        assert durable.issuperset(deliveries), "accepted before it was durable"
        assert self.accepted_contents.isdisjoint(deliveries)
        self.accepted_contents.update(deliveries)

    def not_stored(self, deliveries: Sequence[bytes], refused: Refused | None) -> None:
        self.refused_contents.update(deliveries)

    def check(self) -> None:
        """What was refused is nowhere."""
        durable = {row[5] for row in self._store.published.values()}
        assert durable.isdisjoint(self.refused_contents)


class Content:
    """
    What lies on an endpoint under one number: from its making, or from the start of a replay, to the next.

    Each of its messages is handed out in the order of ids; one that comes back is the next one due.
    """

    def __init__(
        self, store: NaiveStore, number: int, replay_from: int | None, takes: Callable[[str], bool]
    ) -> None:
        self._store = store
        self.number = number
        self.replay_from = replay_from
        self._takes = takes
        self.routed: set[bytes] = set()
        """Contents of the messages published while the endpoint subscribed to them."""
        self.unsettled: dict[int, Consumer] = {}
        self.returned: set[int] = set()
        self.gone: set[int] = set()
        self.failures: dict[int, int] = {}
        self.last_handed_out = 0
        self.marked: set[int] = set()

    def holds(self, row: Row) -> bool:
        is_replayed = (
            self.replay_from is not None
            and row[0] >= self.replay_from
            and row[4] is None
            and self._takes(row[2])
        )
        return is_replayed or row[5] in self.routed

    @property
    def ids(self) -> set[int]:
        """Everything durable that is, or once was, on the endpoint; a replay may have yet to put some of it there."""
        return {i for i, row in self._store.published.items() if self.holds(row)}

    @property
    def next_due(self) -> int | None:
        if self.returned:
            return min(self.returned)
        published = self._store.published
        return next(
            (
                i
                for i in sorted(published)
                if i > self.last_handed_out and i not in self.gone and self.holds(published[i])
            ),
            None,
        )

    def handed_out(self, message_id: int, consumer: Consumer) -> None:
        assert message_id not in self.unsettled and message_id not in self.gone
        assert message_id == self.next_due, f"{message_id} was handed out, {self.next_due} was due"
        self.returned.discard(message_id)
        self.last_handed_out = max(self.last_handed_out, message_id)
        self.unsettled[message_id] = consumer

    def given_back(self, message_id: int, *, failed: bool) -> None:
        del self.unsettled[message_id]
        self.returned.add(message_id)
        if failed:
            self.failures[message_id] = self.failures.get(message_id, 0) + 1

    def settled(self, message_id: int) -> None:
        del self.unsettled[message_id]
        self.failures.pop(message_id, None)
        self.gone.add(message_id)

    def restarted(self) -> None:
        """What was not durably settled is due again."""
        self.unsettled.clear()
        self.returned.clear()
        self.failures.clear()
        self.last_handed_out = 0
        self.gone = set(self._store.removed[self.number])


class Consumer:
    """A link that an endpoint's messages go out on."""

    def __init__(self, vpn: MessageVpn, max_unsettled: int, *, is_pre_settled: bool) -> None:
        self._vpn = vpn
        self._max_unsettled = max_unsettled
        self.is_pre_settled = is_pre_settled
        self.credit = 0
        self.flow: Flow | None = None
        self.content: Content | None = None
        """What it consumes; None once it was detached."""
        self.history: list[int] = []
        self.refused: Refused | None = None

    def room(self) -> int:
        if self.flow is None or self.content is None:
            return 0
        return min(self.credit, self._max_unsettled - len(self.flow.unsettled))

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        assert self.flow is not None and self.content is not None, "messages for a link that is not attached"
        assert 0 < len(rows) <= self.credit, "handed out beyond credit"
        self.credit -= len(rows)
        content = self.content
        for row in rows:
            content.handed_out(row[0], self)
            self.history.append(row[0])
            assert attempts.get(row[0], 0) == content.failures.get(row[0], 0)
        assert len(self.flow.unsettled) <= self._max_unsettled or self.is_pre_settled
        if end_id is not None and end_id in {row[0] for row in rows}:
            content.marked.add(end_id)
        if self.is_pre_settled:
            self.settle([row[0] for row in rows])

    def settle(self, ids: Sequence[int]) -> None:
        assert self.flow is not None
        if self.content is not None:
            for i in ids:
                self.content.settled(i)
        self._vpn.settle(self.flow, list(ids))

    def release(self, ids: Sequence[int], *, failed: bool) -> None:
        assert self.flow is not None
        if self.content is not None:
            for i in ids:
                self.content.given_back(i, failed=failed)
        self._vpn.release(self.flow, list(ids), failed=failed)

    def ask(self) -> None:
        if self.flow is not None and self.content is not None:
            self._vpn.ask(self.flow, self.room())

    def idle(self) -> None:
        pass

    def finish(self) -> None:
        raise AssertionError("an endpoint's consumer goes on live")

    def refuse(self, refused: Refused) -> None:
        self.refused = refused
        self.left()

    def left(self) -> None:
        """It is attached no more: what it had not settled is due again."""
        content, self.content = self.content, None
        if content is not None:
            for i in [i for i, holder in content.unsettled.items() if holder is self]:
                content.given_back(i, failed=False)


class LogConsumer:
    """A link that the log goes out on, from ``first`` to ``last``."""

    def __init__(self, store: NaiveStore, patterns: Sequence[str], first: int, last: int | None) -> None:
        self._store = store
        self._patterns = patterns
        self._first = first
        self._last = last
        self.has_history = False
        """There was something to read before live when it attached."""
        self.feed: LogFeed | None = None
        self.credit = 0
        self.received: list[int] = []
        self.marked: list[int] = []
        self.is_finished = False
        self.refused: Refused | None = None

    @property
    def is_open(self) -> bool:
        return not self.is_finished and self.refused is None

    @property
    def due(self) -> Iterator[int]:
        """Everything it must have received by now, in order."""
        for i, row in sorted(self._store.published.items()):
            wanted = ">" in self._patterns or any(matches(pattern, row[2]) for pattern in self._patterns)
            if self._first <= i <= (self._last or i) and row[4] is None and wanted:
                yield i

    def room(self) -> int:
        return self.credit

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        assert 0 < len(rows) <= self.credit, "handed out beyond credit"
        self.credit -= len(rows)
        self.received += [row[0] for row in rows]
        if end_id is not None:
            assert end_id == self.received[-1], "the end is marked on the last message of what is sent"
            self.marked.append(end_id)

    def idle(self) -> None:
        pass

    def finish(self) -> None:
        self.is_finished = True

    def refuse(self, refused: Refused) -> None:
        self.refused = refused

    def check(self) -> None:
        """No gap and no duplicate, at any time."""
        due = list(self.due)
        assert self.received == due[: len(self.received)]
        assert len(self.marked) <= 1

    def check_end(self) -> None:
        """All there was credit for has come, and exactly the last message before live is marked."""
        if self.refused is None and self.credit:
            assert self.received == list(self.due)
            if self._last is not None and self._last <= max(self._store.published, default=0):
                assert self.is_finished
                assert self.marked == self.received[-1:]
            elif self.has_history:
                assert len(self.marked) == 1
