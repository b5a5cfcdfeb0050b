"""
Links that check what they are sent: against credit, against the model, against each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gateway.core.endpoint.endpoint import Flow
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import HELD, Row
from gateway.ledger import Ledger
from gateway.vpn.feeds.log_feed import LogFeed
from tests.gateway.core.machines.model import Content, is_expired, matches

if TYPE_CHECKING:
    from tests.gateway.core.machines.world import World

FEW_PAGES = 1_500
"""The limit of bytes held for a log reader's connection: small, so that readers stall now and then."""


class Consumer:
    """A consumer's link. With ``modulus`` its selector refuses ids divisible by that."""

    def __init__(self, world: World, *, is_pre_settled: bool = False, modulus: int = 0) -> None:
        self._world = world
        self._modulus = modulus
        self._shunned: set[int] = set()
        self.is_pre_settled = is_pre_settled
        self.credit = 0
        self.came_back = 0
        """Deliveries that it has again because their transaction failed, after other messages had taken their room."""
        self.flow: Flow | None = None
        self.content: Content | None = None
        """The messages that it consumes; None after it is detached."""
        self.history: list[int] = []
        self.refused: Refused | None = None

    @property
    def _max_unsettled(self) -> int:
        """The endpoint's limit, or else the default; it may change while the link is attached."""
        own = self.flow.endpoint.settings.max_unsettled if self.flow is not None else 0
        return own or self._world.limits.max_unsettled_per_flow

    @property
    def selects(self) -> bool:
        return bool(self._modulus or self._shunned)

    def wants(self, message_id: int) -> bool:
        return message_id not in self._shunned and (not self._modulus or message_id % self._modulus != 0)

    @property
    def unsettled(self) -> list[int]:
        """Deliveries that its peer has not settled, rejected or released."""
        if self.content is None:
            return []
        rejected = self.content.rejected
        return [i for i, c in self.content.unsettled.items() if c is self and i not in rejected]

    # --- what the gateway says ----------------------------------------------------------------------------------

    def room(self) -> int:
        if self.flow is None or self.content is None or self.flow.is_stalled:
            return 0
        return min(self.credit, self._max_unsettled - len(self.flow.unsettled))

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        assert self.flow is not None and self.content is not None, "messages for a link that is not attached"
        assert 0 < len(rows) <= self.credit, "handed out beyond credit"
        self.credit -= len(rows)
        content, settings = self.content, self.flow.endpoint.settings
        assert not self.flow.is_stalled, "it has not said that it knows what was taken back"
        is_of_the_dead = self._world.is_dead_message_queue(self.flow.endpoint)
        for row in rows:
            message_id = row[0]
            content.handed_out(message_id, self)
            self.history.append(message_id)
            failures = content.failures.get(message_id, 0)
            assert attempts.get(message_id, 0) == failures
            if not is_of_the_dead:
                assert not settings.max_redelivery or failures <= settings.max_redelivery
                assert not (content.is_fresh(message_id) and is_expired(row, self._world.clock.now))
        assert len(self.flow.unsettled) <= self._max_unsettled + self.came_back or self.is_pre_settled
        if end_id is not None:
            self._check_end(content, end_id)
        if self.is_pre_settled:
            self.settle([row[0] for row in rows])

    def _check_end(self, content: Content, end_id: int) -> None:
        if content.replay is None:
            # After a replay that failed, messages may be left that the log has trimmed.
            return
        content.note_hand_over()
        published = self._world.store.published
        replayed = [i for i in content.ids if content.is_replayed(published[i])]
        assert content.cut is not None or end_id == max(replayed), "the end is the last message before live"

    def nothing_to_send(self) -> None:
        pass

    def take_back(self, ids: Sequence[int]) -> bool:
        assert self.content is not None
        for i in ids:
            self.content.given_back(i, failed=False)
        return True

    def finish(self) -> None:
        raise AssertionError("an endpoint's consumer goes on live")

    def refuse(self, refused: Refused) -> None:
        self.refused = refused
        self.left()

    # --- what its peer does -------------------------------------------------------------------------------------

    def ask(self) -> None:
        if self.flow is not None and self.content is not None:
            self._world.vpn.consumers.set_demand(self.flow, self.room())

    def confirm(self) -> None:
        if self.flow is not None and self.content is not None:
            self._world.vpn.consumers.confirmed(self.flow)

    def settle(self, ids: Sequence[int]) -> None:
        assert self.flow is not None
        if self.content is not None:
            for i in ids:
                self.content.settled(i)
        self._world.vpn.consumers.settle(self.flow, list(ids))

    def release(self, ids: Sequence[int], *, failed: bool, undeliverable: bool) -> None:
        assert self.flow is not None and self.content is not None
        if undeliverable and ids:
            self._shunned.update(ids)
            self._world.vpn.consumers.exclude(self.flow, list(ids))
        for i in ids:
            self.content.given_back(i, failed=failed)
        self._world.vpn.consumers.release(self.flow, list(ids), failed=failed)

    def reject(self, ids: Sequence[int]) -> None:
        assert self.flow is not None and self.content is not None
        if self.flow.endpoint.settings.dead_message_queue:
            self.content.rejected.update(ids)
        else:
            for i in ids:
                self.content.settled(i)
        self._world.vpn.consumers.reject(self.flow, list(ids))

    def left(self) -> None:
        """The link is detached: its unsettled messages are ready again."""
        content, self.content = self.content, None
        if content is not None:
            for i in [i for i, holder in content.unsettled.items() if holder is self]:
                content.given_back(i, failed=True)


def takes(pattern: str, topic: str) -> bool:
    """As ``matches``; but the pattern `>` of a log reader matches reserved topics, too."""
    return pattern == ">" or matches(pattern, topic)


class LogConsumer:
    """
    A log reader's link, from id ``first`` to ``last``.

    Args:
        is_live: The log had nothing from its start on when that was resolved: it gets live messages only.
    """

    client: Any = SimpleNamespace(user="")

    def __init__(
        self, world: World, patterns: Sequence[str], first: int, last: int | None, *, is_live: bool
    ) -> None:
        self._world = world
        self.account = Ledger(1_000_000, 1_000_000).open(FEW_PAGES, lambda bound: None)
        self._patterns = patterns
        self._first = first
        self._last = last
        self.feed: LogFeed | None = None
        self.credit = 0
        self.received: list[int] = []
        self.marked: list[int] = []
        self.is_finished = False
        self.refused: Refused | None = None
        self.due: list[int] = []
        """Everything that it must have received by now, or will receive, in order."""
        self._may_be_left_out: set[int] = set()
        """What a rule was about to take out of the log when it attached: it comes only if that fails."""
        for row in world.store.published.values():
            if row[0] < world.store.first_id or world.store.is_logged(row[0]):
                self.offer(row)
                if row[0] in world.left or world.broker.retention.is_gone(row):
                    self._may_be_left_out.add(row[0])
        self._is_past = last is not None and last < world.vpn.broker.log.next_id
        """It ends before live, so the last message is known in time to be marked."""
        self.has_history = (
            not is_live and self.is_due_below(world.vpn.cache.next_id) and not self._may_be_left_out
        )
        """When it attached, there was something to read before live, and that was durable for the gateway, too."""

    def is_due_below(self, message_id: int) -> bool:
        """Whether it must receive a message with a lower id."""
        return bisect_left(self.due, message_id) > 0

    def offer(self, row: Row) -> None:
        """A message has become durable."""
        is_between = self._first <= row[0] and (self._last is None or row[0] <= self._last)
        if is_between and row[HELD] is None and any(takes(pattern, row[2]) for pattern in self._patterns):
            self.due.append(row[0])

    @property
    def is_open(self) -> bool:
        return not self.is_finished and self.refused is None

    def room(self) -> int:
        return self.credit

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        assert self.is_open
        assert 0 < len(rows) <= self.credit, "handed out beyond credit"
        self.credit -= len(rows)
        ids = [row[0] for row in rows]
        done = len(self.received)
        for place, message_id in enumerate(ids, done):
            self._leave_out(place, message_id)
        assert ids == self.due[done : done + len(ids)], "no gap, no duplicate, in order"
        self.received += ids
        if end_id is not None:
            assert end_id == ids[-1], "the end is marked on the last message of what is sent"
            self.marked.append(end_id)
            assert len(self.marked) == 1

    def _leave_out(self, place: int, message_id: int | None) -> None:
        """Drop from ``due``, up to this message, what may be left out."""
        due = self.due
        while len(due) > place and due[place] != message_id and due[place] in self._may_be_left_out:
            del due[place]

    def nothing_to_send(self) -> None:
        pass

    def finish(self) -> None:
        self._leave_out(len(self.received), None)
        assert self._last is not None and self.received == self.due, "a bounded replay ends at its end"
        assert self.marked == self.received[-1:] or not self._is_past
        self.is_finished = True

    def refuse(self, refused: Refused) -> None:
        self.refused = refused
        if refused.code is ErrorCode.REPLAY_MESSAGE_UNAVAILABLE:
            position = self.due[len(self.received)] if len(self.received) < len(self.due) else None
            first_id = self._world.store.first_id
            if not self._world.left.isdisjoint(self.due[len(self.received) :]):
                return
            assert first_id > self._first, "nothing was trimmed under it"
            assert position is None or first_id > (self.received or [self._first])[-1]
        else:
            assert refused.code is ErrorCode.INTERNAL

    def check_at_rest(self) -> None:
        """Everything that there was credit for has come, and only the last message before live is marked."""
        if self.is_open and self.credit:
            self._leave_out(len(self.received), None)
            assert self.received == self.due
            if self._last is not None and self._last <= max(self._world.store.published, default=0):
                assert self.is_finished
            elif self.has_history and self._last is None:
                assert len(self.marked) == 1
