"""
Order by key among several consumers, against a naive model: whatever comes, goes, dies and moves, messages of one key
are handed out in order, to one consumer at a time, and no consumer waits that could get a message.
"""

from __future__ import annotations

from functools import cache

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from amqp_ext import codec
from amqp_ext.message.fields import DEFAULT, HIGHEST
from amqp_ext.message.keys import LAST_SEQUENCE, group_of
from gateway.core.endpoint import by_key
from gateway.core.endpoint.by_key import Partitions, Share
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.settings import EndpointSettings
from gateway.core.model import LogState, Row
from gateway.core.settlements import PendingSettlement, Settlements
from tests.support.chance import times
from tests.support.core import new_endpoint
from tests.support.messages import PROPERTIES, data, section

PAGE = 4
GROUPS = ("a", "b", "c", "")


SAID = st.tuples(st.sampled_from((*GROUPS, None)), st.booleans(), st.booleans())
"""A message: its group, and two flags; it is the last of its group if both are true."""


@cache
def message(group: str | None, *, is_last: bool = False) -> bytes:
    """A message of a group."""
    sequence = codec.UInt(LAST_SEQUENCE) if is_last else None
    return section(PROPERTIES, [*[None] * 10, group, sequence]) + data("x")


def is_odd(row: Row) -> bool:
    return row[0] % 2 == 1


class ByKeyMachine(RuleBasedStateMachine):
    """An endpoint, with what its feed and its store do for it, next to a model of where each message is."""

    options = EndpointSettings(message_groups=True)
    may_end = True
    flows = Bundle("flows")

    def __init__(self) -> None:
        super().__init__()
        self.endpoint: Endpoint = new_endpoint(self.options, window=6)
        self.log = LogState(1, 1, 1, 0, 0)
        self.settlements = Settlements(self.log)
        self.rows: dict[int, Row] = {}
        self.turns: dict[int, int] = {}
        """For each message, the rank of its priority: 0 is the highest."""
        self.left: set[int] = set()
        """The unsettled messages."""
        self.held: dict[int, Flow] = {}
        """The consumer that has each message, or had it when a transaction withdrew it."""
        self.assigned: dict[int, Flow] = {}
        """The consumer that is to get each message that was sorted and not handed out yet."""
        self.owners: dict[object, Flow] = {}
        self.closed: dict[object, tuple[int, int]] = {}
        self.pending: list[PendingSettlement] = []

    # --- the model ------------------------------------------------------------------------------------------------

    def key(self, message_id: int) -> object:
        """The key by which a message is kept in order; None if it has none."""
        row = self.rows[message_id]
        return group_of(row[6], 0)[0]

    def place(self, message_id: int) -> tuple[int, int]:
        return self.turns[message_id], message_id

    def may_have(self, flow: Flow, message_id: int) -> bool:
        """Whether this consumer may now be handed a ready message."""
        key = self.key(message_id)
        if not flow.wants(self.rows[message_id]):
            return False
        if key is None:
            return self.assigned.get(message_id, flow) is flow
        held = {self.held[i] for i in self.held if self.key(i) == key}
        owner = self.owners.get(key)
        if owner is None:
            return not held
        return owner is flow and not (key in self.closed and self.place(message_id) > self.closed[key])

    def check_handed_out(self, flow: Flow, message_id: int) -> None:
        """This consumer may have the message, and no earlier message of its key is left that it wants."""
        key = self.key(message_id)
        assert message_id in self.left
        assert message_id not in self.held, "it is handed out once at a time"
        if key is None:
            return
        holders = {other for i, other in self.held.items() if self.key(i) == key}
        assert holders <= {flow}, "two have messages of one key"
        assert self.may_have(flow, message_id)
        before = [
            i
            for i in self.left - self.held.keys() - self.withdrawn
            if self.key(i) == key and self.place(i) < self.place(message_id) and flow.wants(self.rows[i])
        ]
        assert not before, "another message of the key is before it"

    @property
    def withdrawn(self) -> set[int]:
        return {i for pending in self.pending for i in pending.messages}

    def let_go(self, ids: list[int]) -> None:
        """No consumer has these any more. A closed group ends when no consumer has, or is to get, a message of it."""
        for i in ids:
            self.held.pop(i, None)
            self.assigned.pop(i, None)
        for i in ids:
            key = self.key(i)
            if key in self.closed and not any(self.key(i) == key for i in (*self.held, *self.assigned)):
                del self.closed[key]
                self.owners.pop(key, None)

    def gone(self, flow: Flow) -> None:
        for key in [key for key, owner in self.owners.items() if owner is flow]:
            del self.owners[key]
            self.closed.pop(key, None)
        self.assigned = {i: other for i, other in self.assigned.items() if other is not flow}

    # --- messages come and go -------------------------------------------------------------------------------------

    @rule(
        groups=st.lists(SAID, min_size=1, max_size=8),
        priority=st.sampled_from([DEFAULT, DEFAULT, HIGHEST]),
    )
    def publish(self, groups: list[tuple[str | None, bool, bool]], priority: int) -> None:
        endpoint = self.endpoint
        first = self.log.next_id
        for group, *both in groups:
            i = self.log.next_id
            self.rows[i] = (i, 0, "t", 0, 0, None, message(group, is_last=self.may_end and all(both)))
            self.turns[i] = HIGHEST - priority if self.options.priorities else 0
            self.left.add(i)
            self.log.next_id += 1
        ids = range(first, self.log.next_id)
        if endpoint.flows:
            endpoint.ready.note_priorities(ids, [priority] * len(ids))
            endpoint.ready.add_committed(ids)
        else:
            endpoint.ready.of(priority).stored(ids[-1])
        self.deliver()

    @rule(flow=flows, count=st.integers(0, 4), spread=st.booleans())
    def settle(self, flow: Flow, count: int, spread: bool) -> None:
        ids = list(flow.unsettled)[:: 2 if spread else 1][:count]
        gone, _ = self.endpoint.settle(flow, ids, self.log.newest_id)
        self.left.difference_update(gone)
        self.let_go(gone)
        self.deliver()

    @rule(flow=flows, count=st.integers(0, 4), spread=st.booleans())
    def release(self, flow: Flow, count: int, spread: bool) -> None:
        ids = list(flow.unsettled)[:: 2 if spread else 1][:count]
        self.let_go(self.endpoint.release(flow, ids, failed=spread))
        self.deliver()

    @rule(flow=flows, count=st.integers(1, 3))
    def withdraw(self, flow: Flow, count: int) -> None:
        ids = list(flow.unsettled)[:count]
        if ids:
            self.pending.append(self.settlements.begin(flow, ids))

    @rule(is_committed=st.booleans())
    def end_transaction(self, is_committed: bool) -> None:
        if not self.pending:
            return
        pending = self.pending.pop(0)
        flow = pending.flow
        if is_committed:
            self.settlements.committed(pending)
            self.left.difference_update(pending.messages)
            self.let_go(list(pending.messages))
        else:
            self.settlements.failed(pending)
            if flow not in self.endpoint.flows and flow not in self.endpoint.suspended:
                self.let_go(list(pending.messages))
        self.deliver()

    @rule()
    def forget(self) -> None:
        """The oldest message is removed, whoever has it."""
        ids = sorted(self.left - self.withdrawn)[:1]
        queue = self.endpoint.ready.queues[-1]
        if ids and not self.options.priorities and ids[0] <= queue.read_up_to:
            self.endpoint.forget(ids)
            self.left.difference_update(ids)
            self.let_go(ids)
            self.deliver()

    # --- consumers come and go ------------------------------------------------------------------------------------

    @rule(target=flows, demand=st.integers(0, 9), selects=st.sampled_from([False, False, True]))
    def bind(self, demand: int, selects: bool) -> Flow:
        flow = Flow(self.endpoint, None, matches=is_odd if selects else None)
        self.endpoint.bind(flow)
        flow.demand = demand
        self.deliver()
        return flow

    @rule(flow=flows, demand=st.integers(1, 9))
    def ask(self, flow: Flow, demand: int) -> None:
        if flow in self.endpoint.flows:
            flow.demand += demand
            self.deliver()

    @rule(flow=consumes(flows), way=st.sampled_from(["dies", "dies", "gives back", "suspended", "kept"]))
    def leave(self, flow: Flow, way: str) -> None:
        endpoint = self.endpoint
        self.gone(flow)
        if way in ("suspended", "kept") and flow in endpoint.flows:
            endpoint.suspend(flow)
            self.deliver()
            if way == "kept":
                return
        back = list(flow.unsettled)
        if way == "gives back":
            endpoint.release(flow, back, failed=True)
        endpoint.unbind(flow)
        endpoint.end_suspended(flow)
        self.let_go(back)
        self.deliver()

    # --- what a feed does -----------------------------------------------------------------------------------------

    def read_pages(self) -> None:
        while (queue := self.endpoint.queue_to_read(PAGE)) is not None:
            after, until = queue.next_page(self.log.next_id)
            part = queue.part
            ids = [
                i
                for i in self.rows
                if after < i < until and (not self.options.priorities or self.turns[i] == HIGHEST - part)
            ][:PAGE]
            self.endpoint.add_page(queue, ids, ids[-1] + 1 if len(ids) == PAGE else until, [])

    def deliver(self) -> None:
        endpoint = self.endpoint
        self.read_pages()
        while (flow := endpoint.next_flow()) is not None:
            share, keyed = flow.candidates, endpoint.by_key
            assert isinstance(share, Share)
            assert keyed is not None
            assert keyed.candidates is not None
            if share.is_behind:
                ids = keyed.candidates.take(5)
                room = {flow: flow.demand - len(each.waiting) for flow, each in keyed.shares.items()}
                before = {place for each in keyed.shares.values() for place in each.waiting}
                found = keyed.sort(share, [self.rows[i] for i in ids], lambda: False)
                keyed.candidates.put_back(ids[found.looked_at :])
                for i in ids[: found.looked_at]:
                    turn, _ = self.place(i)
                    place = i | turn << 56
                    takers = [flow for flow, each in keyed.shares.items() if place in each.waiting]
                    if place not in before:
                        self.check_sorted(i, takers, room)
                self.read_pages()
                if share.is_behind:
                    continue
            ids = share.take(min(flow.demand, 3))
            share.put_back(ids[2:])
            for i in ids[:2]:
                self.check_handed_out(flow, i)
                self.note(flow, i)
            if ids:
                endpoint.hand_out(flow, ids[:2], [self.rows[i] for i in ids[:2]], 0)
            self.read_pages()

    def check_sorted(self, message_id: int, takers: list[Flow], room: dict[Flow, int]) -> None:
        """
        A message is sorted to its key's consumer, else to one that has credit left for it, else to any that wants it.

        Args:
            takers: Who is to get it.
            room: How many more messages each consumer has credit for.
        """
        may = [flow for flow in room if self.may_have(flow, message_id)]
        assert len(takers) == min(len(may), 1)
        for flow in takers:
            assert flow in may
            assert room[flow] > 0 or not any(room[other] > 0 for other in may)
            room[flow] -= 1
            self.note_sorted(flow, message_id)

    def note_sorted(self, flow: Flow, message_id: int) -> None:
        key = self.key(message_id)
        self.assigned[message_id] = flow
        if key is not None:
            self.owners[key] = flow
            if group_of(self.rows[message_id][6], 0)[1]:
                self.closed[key] = self.place(message_id)

    def note(self, flow: Flow, message_id: int) -> None:
        assert self.assigned.pop(message_id) is flow
        self.held[message_id] = flow

    # --- always ---------------------------------------------------------------------------------------------------

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        ready = self.left - self.held.keys()
        for flow in self.endpoint.flows:
            if flow.demand > 0:
                assert not [i for i in ready if self.may_have(flow, i)]

    @invariant()
    def what_is_open_is_counted(self) -> None:
        keyed = self.endpoint.by_key
        assert keyed is not None
        assert sum(lane.open for lane in keyed.lanes) == len(keyed._lane_of)
        for share in keyed.shares.values():
            assert share.waiting == sorted(set(share.waiting))

    def teardown(self) -> None:
        """In the end one consumer that takes everything gets all that is left."""
        while self.pending:
            self.end_transaction(False)
        for flow in (*self.endpoint.flows, *self.endpoint.suspended):
            self.leave(flow, "dies")
        last = self.bind(1_000, selects=False)
        while last.unsettled:
            self.settle(last, 1_000, spread=False)
        assert not self.left


class PriorityMachine(ByKeyMachine):
    options = EndpointSettings(message_groups=True, priorities=True)
    may_end = False  # A message that already waits in a share may be overtaken by the end of its group.


class PartitionMachine(ByKeyMachine):
    options = EndpointSettings(partitions=3)

    def key(self, message_id: int) -> object:
        keyed = self.endpoint.by_key
        assert isinstance(keyed, Partitions)
        return keyed._lane(self.rows[message_id])[0]

    def may_have(self, flow: Flow, message_id: int) -> bool:
        lane = self.key(message_id)
        assert isinstance(lane, by_key.Lane)
        return flow.wants(self.rows[message_id]) and lane.share is not None and lane.share.flow is flow

    def note_sorted(self, flow: Flow, message_id: int) -> None:
        self.assigned[message_id] = flow

    @invariant()
    def partitions_are_shared_out_evenly(self) -> None:
        keyed = self.endpoint.by_key
        assert keyed is not None
        targets = [lane.target for lane in keyed.lanes]
        for share in keyed.shares.values():
            assert abs(targets.count(share) - len(targets) / len(keyed.shares)) < 1
        for lane in keyed.lanes:
            assert (lane.target is None) == (not keyed.shares)
            assert lane.share is lane.target or any(self.key(i) is lane for i in self.held)


many = settings(
    max_examples=times(40, 5_000), stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
for machine in (ByKeyMachine, PriorityMachine, PartitionMachine):
    machine.TestCase.settings = many
TestGroups = ByKeyMachine.TestCase
TestGroupsByPriority = PriorityMachine.TestCase
TestPartitions = PartitionMachine.TestCase
