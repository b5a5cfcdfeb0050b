"""
Transactions of clients, and what must become of them: all of a transaction or nothing, as its client is told.

As on the wire, the Message VPN sees nothing of a transaction before its commit. A transaction that acknowledges a
delivery that is no longer unsettled is rolled back before the commit is requested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.publishing import Staged
from store.errors import WriteFailed
from tests.gateway.core.machines.model import Content, message
from tests.gateway.core.machines.naive_links import Consumer
from tests.gateway.core.machines.vpn_machine import TOPICS, VpnMachine, few, mostly, picks

if TYPE_CHECKING:
    from tests.gateway.core.machines.world import World


class NaiveTransaction:
    """What a client publishes and acknowledges in one transaction."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held: list[tuple[Content, Consumer, int]] = []
        """The deliveries whose settlement is being committed."""
        self.staged: list[Staged] = []
        self.acknowledged: dict[tuple[Consumer, int], Content | None] = {}

    def acknowledge(self, consumer: Consumer, ids: list[int]) -> None:
        for i in ids:
            self.acknowledged[consumer, i] = consumer.content

    @property
    def is_held(self) -> bool:
        """Whether every delivery acknowledged in it is still with its consumer, unsettled."""
        return all(
            content is not None and consumer.content is content and i in consumer.unsettled
            for (consumer, i), content in self.acknowledged.items()
        )

    def commit(self) -> None:
        """Request the commit. If it is refused, nothing has changed: no id, no room and no delivery is lost."""
        world, broker = self._world, self._world.broker
        by_flow: dict[Consumer, list[int]] = {}
        for consumer, i in self.acknowledged:
            by_flow.setdefault(consumer, []).append(i)
        asked = [(c.flow, ids) for c, ids in by_flow.items() if c.flow is not None]
        before = self._surroundings()
        try:
            world.vpn.publishing.commit_transaction(self.staged, asked, "", self._told)
        except Refused as refused:
            assert refused.code is ErrorCode.ROLLED_BACK
            assert self._surroundings() == before
            return
        assert broker.log.unused_id == before[0] + len(self.staged)
        for (consumer, i), content in self.acknowledged.items():
            assert content is not None
            content.withdraw(i)
            self._held.append((content, consumer, i))
        world.committing.append(self)

    def _surroundings(self) -> tuple[object, ...]:
        broker = self._world.broker
        endpoints = [
            (e.cursor_number, e.depth, e.size_bytes, [list(flow.unsettled.items()) for flow in e.flows])
            for e in broker.endpoints.values()
        ]
        # A delivery that was put back is last.
        found = [
            (number, depth, size, [sorted(u) for u in flows]) for number, depth, size, flows in endpoints
        ]
        return broker.log.unused_id, broker.log.size_bytes, found

    def _told(self, error: WriteFailed | None) -> None:
        self._world.committing.remove(self)
        assert error is None or self._world.has_failed_to_write
        assert self.what_is_durable() <= {error is None}
        for content, consumer, i in self._held:
            if error is None:
                content.committed(i)
            else:
                content.not_committed(i, consumer if consumer.content is content else None)
                consumer.came_back += 1
        for consumer in {consumer for _, consumer, _ in self._held}:
            consumer.ask()

    def what_is_durable(self) -> set[bool]:
        """True: a part of it is durable; False: a part of it is not. Never both."""
        store = self._world.store
        there = {message.content in store.contents for message in self.staged}
        # Endpoints that were emptied or deleted meanwhile say nothing.
        there |= {store.is_removed(c.numbers, i) for c, _, i in self._held if c.number in store.cursors}
        assert len(there) < 2, "a part of a transaction is durable"
        return there


class TransactingMachine(VpnMachine):
    """Two clients with one transaction each."""

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[int, NaiveTransaction] = {}

    def transaction(self, which: int) -> NaiveTransaction:
        return self.open.setdefault(which % 2, NaiveTransaction(self.world))

    @rule(which=picks, topic=st.sampled_from(TOPICS), count=st.integers(1, 3), padding=st.integers(0, 3))
    def stage(self, which: int, topic: str, count: int, padding: int) -> None:
        """Publish in a transaction."""
        for _ in range(count):
            content, bare = message(self.serial, padding, 0)
            self.serial += 1
            self.transaction(which).staged.append(Staged(topic, content, bare))

    @precondition(lambda self: any(c.unsettled for c in self.world.consumers))
    @rule(which=picks, pick=picks, chosen=st.integers(1, 255) | st.just(255))
    def acknowledge(self, which: int, pick: int, chosen: int) -> None:
        """Acknowledge in a transaction the unsettled messages whose bits are set in ``chosen``."""
        holders = [c for c in self.world.consumers if c.unsettled]
        consumer = holders[pick % len(holders)]
        ids = [i for k, i in enumerate(consumer.unsettled) if chosen >> k & 1]
        self.transaction(which).acknowledge(consumer, ids)

    @precondition(lambda self: self.open)
    @rule(which=picks, commits=mostly, fails=st.sampled_from([False, False, True]), count=few)
    def discharge(self, which: int, commits: bool, fails: bool, count: int) -> None:
        """Commit, perhaps on a full disk, or roll back."""
        transaction = self.open.pop(which % 2, None)
        if transaction is None or not commits or not transaction.is_held:
            return
        self.world.on_loop(transaction.commit)
        if fails:
            self.disk_fails(count, True)
