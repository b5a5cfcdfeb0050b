"""
Queues and topic endpoints against a naive model, with any order of events that Hypothesis generates.

``HYPOTHESIS_PROFILE=nightly`` runs many more examples.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from amqp_ext.addresses.address import queue_topic
from amqp_ext.replay_start import ReplayStart, StartKind
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity
from gateway.core.replay.states import ReplayState
from gateway.vpn.replay_preview import unlogged_on
from tests.gateway.core.machines.naive_links import Consumer
from tests.gateway.core.machines.naive_transactions import TransactingMachine
from tests.gateway.core.machines.vpn_machine import TOPICS, few, mostly, picks, starts
from tests.support.chance import times

NAMES = ("q1", "q1", "q2", "t1", "dead")
SUBSCRIPTIONS = (("a/>",), (">",), ("a/x", "b/x"), ("c/>", "a/y"), ())
NOTHING_ASKED = ReplayStart(StartKind.LIVE)

any_settings = st.builds(
    EndpointSettings,
    exclusive=st.sampled_from(Exclusivity),
    quota_messages=st.sampled_from([0, 0, 0, 4, 8]),
    quota_bytes=st.sampled_from([0, 0, 20, 41]),
    max_redelivery=st.sampled_from([0, 0, 1, 2]),
    dead_message_queue=st.sampled_from(["", "dead"]),
    max_unsettled=st.sampled_from([0, 0, 1, 2]),
)


outcomes = st.sampled_from(
    [
        "accepted",
        "accepted",
        "accepted",
        "rejected",
        "released",
        "failed",
        "undeliverable",
        "failed, undeliverable",
        "lock ended",
    ]
)


class EndpointMachine(TransactingMachine):
    """Consumers and administrators of a few endpoints."""

    def begin(self) -> None:
        self.create("q1", EndpointSettings(), ("a/>",), temporary=False)

    # --- endpoints --------------------------------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(NAMES),
        options=any_settings,
        subscriptions=st.sampled_from(SUBSCRIPTIONS),
        temporary=st.booleans(),
    )
    def create(
        self, name: str, options: EndpointSettings, subscriptions: tuple[str, ...], temporary: bool
    ) -> None:
        world = self.world
        if name in world.broker.endpoints:
            return
        if options.dead_message_queue == name:
            # Nobody can create such a queue: its dead messages would come back to it.
            options.dead_message_queue = ""
        kind = EndpointKind.TOPIC_ENDPOINT if name == "t1" else EndpointKind.QUEUE
        options.temporary = temporary and name == "t1"
        endpoint, effects = world.broker.create(name, kind, options, subscriptions)
        world.new_content(endpoint, None)
        world.on_loop(lambda: world.vpn.committer.commit(effects))

    @precondition(lambda self: self.world.broker.endpoints)
    @rule(pick=picks, subscriptions=st.sampled_from((*SUBSCRIPTIONS, None)))
    def redefine(self, pick: int, subscriptions: tuple[str, ...] | None) -> None:
        """
        Give an endpoint other subscriptions, or delete it. Subscriptions do not change while a replay reads: the model
        does not know which messages the replay has put already, by the old ones, and which will come by the new ones.
        See tests/gateway/amqp/replay/test_endpoint_replay.py.
        """
        vpn, endpoint = self.world.vpn, self.endpoint(pick)
        if subscriptions is None:
            self.world.on_loop(lambda: vpn.endpoints.delete(endpoint))
        elif endpoint.replay is None or not endpoint.replay.is_reading:
            self.world.on_loop(lambda: vpn.endpoints.set_subscriptions(endpoint, subscriptions))

    def endpoint(self, pick: int) -> Endpoint:
        endpoints = self.world.broker.endpoints
        names = sorted(endpoints)
        return endpoints[names[pick % len(names)]]

    # --- consuming --------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.broker.endpoints)
    @rule(
        pick=picks,
        start=st.none() | starts,
        credit=st.integers(0, 12),
        epoch=st.none() | few,
        is_pre_settled=st.sampled_from([False, False, False, True]),
        modulus=st.sampled_from([0, 0, 0, 2, 3]),
        is_prompt=mostly,
    )
    def attach(
        self,
        pick: int,
        start: ReplayStart | None,
        credit: int,
        epoch: int | None,
        is_pre_settled: bool,
        modulus: int,
        is_prompt: bool,
    ) -> None:
        consumer = Consumer(self.world, is_pre_settled=is_pre_settled, modulus=modulus)
        consumer.credit = credit
        self.spawn(self._attach, self.endpoint(pick), consumer, start, epoch, is_prompt=is_prompt)

    def attach_plain(self, endpoint: Endpoint, credit: int) -> None:
        consumer = Consumer(self.world)
        consumer.credit = credit
        self.spawn(self._attach, endpoint, consumer, None, None, is_prompt=True)

    async def _attach(
        self, endpoint: Endpoint, consumer: Consumer, start: ReplayStart | None, epoch: int | None
    ) -> None:
        """Attach as the wire side does."""
        world, vpn, broker = self.world, self.world.vpn, self.world.broker
        resolved = await vpn.log.resolve_start(start or NOTHING_ASKED, endpoint.topics.patterns)
        if broker.endpoints.get(endpoint.name) is not endpoint:
            return
        if start is not None:
            vpn.replays.check(endpoint, by_client=True)
        selects = (lambda row: consumer.wants(row[0])) if consumer.selects else None
        flow = vpn.consumers.bind(endpoint, consumer, epoch, selects)
        is_attached = False
        try:
            if start is not None:
                vpn.replays.start(endpoint, resolved.first, flow)
                await vpn.committer.committed()
            is_attached = flow in endpoint.flows
        finally:
            if not is_attached:
                vpn.consumers.unbind(flow)
        if is_attached:
            consumer.flow = flow
            consumer.content = world.contents[endpoint.cursor_number]
            world.consumers.append(consumer)
            consumer.ask()

    @precondition(lambda self: self.world.broker.endpoints)
    @rule(pick=picks, start=starts, is_prompt=mostly, keeps=st.booleans())
    def administrator_replays(
        self, pick: int, start: ReplayStart, is_prompt: bool, keeps: bool = False
    ) -> None:
        self.spawn(self._replay, self.endpoint(pick), start, keeps, is_prompt=is_prompt)

    @precondition(lambda self: self.world.broker.endpoints)
    @rule(
        pick=picks,
        start=starts,
        count=st.integers(0, 2),
        on_way=st.integers(0, 2),
        turns=st.integers(0, 3),
        trimmed=st.sampled_from([0, 0, 2, 4, 30]),
    )
    def replay_keeps_what_is_on_its_way(
        self, pick: int, start: ReplayStart, count: int, on_way: int, turns: int, trimmed: int = 0
    ) -> None:
        """
        A replay keeps unlogged messages while others, unlogged and logged, are being committed, and the log may be
        trimmed.
        """
        endpoint = self.endpoint(pick)
        if trimmed:
            self.trim(trimmed)
        if count:
            self.publish("a/x", count, True, 0, 0)
        self.spawn(self._replay, endpoint, start, True, is_prompt=True)
        for _ in range(turns):
            self.commit(len(self.world.writer.waiting))
            self.world.loop.run()
            if on_way:
                self.publish("a/x", on_way, True, 0, 0)
                self.publish("a/x", 1, False, 0, 0)
            self.read(len(self.world.reader.waiting))

    async def _replay(self, endpoint: Endpoint, start: ReplayStart, keeps: bool = False) -> None:
        vpn, broker = self.world.vpn, self.world.broker
        resolved = await vpn.log.resolve_start(start, endpoint.topics.patterns)
        if broker.endpoints.get(endpoint.name) is endpoint:
            vpn.replays.check(endpoint, by_client=False)
            kept = await unlogged_on(vpn.state, endpoint) if keeps else None
            if broker.endpoints.get(endpoint.name) is not endpoint:
                return
            vpn.replays.check(endpoint, by_client=False)
            vpn.replays.start(endpoint, resolved.first, None, kept=kept)
            await vpn.committer.committed()

    @precondition(lambda self: self.world.broker.endpoints)
    @rule(pick=picks, in_flight=st.integers(1, 3), behind=st.integers(0, 3), count=few)
    def replay_meets_live(self, pick: int, in_flight: int, behind: int, count: int) -> None:
        """A replay reaches the end of the log while messages are being committed, and others come after them."""
        self.spawn(self.replay_from_the_beginning, self.endpoint(pick), is_prompt=True)
        self.commit(len(self.world.writer.waiting))
        self.publish("a/x", in_flight, False, 0, 0)
        self.world.loop.run()
        if behind:
            self.publish("a/x", behind, False, 0, 0)
        self.commit(count)

    async def replay_from_the_beginning(self, endpoint: Endpoint) -> None:
        await self._replay(endpoint, ReplayStart(StartKind.BEGINNING))

    @precondition(lambda self: any(e.replay is not None for e in self.world.broker.endpoints.values()))
    @rule(pick=picks, force_complete=st.booleans())
    def cancel(self, pick: int, force_complete: bool) -> None:
        replayed = [e for e in self.world.broker.endpoints.values() if e.replay is not None]
        endpoint = replayed[pick % len(replayed)]
        self.spawn(self._cancel, endpoint, force_complete)

    @precondition(lambda self: self.world.broker.endpoints)
    @rule(pick=picks, turns=st.integers(0, 2), count=st.integers(0, 3))
    def cancel_meets_a_full_disk(self, pick: int, turns: int, count: int) -> None:
        """A replay is cancelled; neither that nor what is published meanwhile can be written at first."""
        endpoint = self.endpoint(pick)
        self.spawn(self.replay_from_the_beginning, endpoint, is_prompt=True)
        for _ in range(turns):
            self.commit(len(self.world.writer.waiting))
            self.read(len(self.world.reader.waiting))
        self.world.loop.run()
        self.spawn(self._cancel, endpoint, False, is_prompt=True)
        if count:
            self.publish("a/x", count, False, 0, 0)
        self.disk_fails(len(self.world.writer.waiting), True)

    async def _cancel(self, endpoint: Endpoint, force_complete: bool) -> None:
        if self.world.broker.endpoints.get(endpoint.name) is endpoint:
            self.world.vpn.replays.cancel(endpoint, force_complete=force_complete)
            self.world.contents[endpoint.cursor_number].was_forced = force_complete

    @precondition(lambda self: self.world.consumers)
    @rule(pick=picks, credit=st.integers(1, 12))
    def credit(self, pick: int, credit: int) -> None:
        """Credit also confirms that the consumer knows which deliveries were taken back."""
        consumer = self.consumer(pick)
        consumer.credit += credit
        self.world.on_loop(lambda: (consumer.confirm(), consumer.ask()))

    @precondition(lambda self: any(c.unsettled for c in self.world.consumers))
    @rule(pick=picks, outcome=outcomes, chosen=st.integers(1, 255) | st.just(255))
    def tell_outcome(self, pick: int, outcome: str, chosen: int) -> None:
        """Settle with an outcome the unsettled messages whose bits are set in ``chosen``."""
        holders = [c for c in self.world.consumers if c.unsettled]
        consumer = holders[pick % len(holders)]
        ids = [i for k, i in enumerate(consumer.unsettled) if chosen >> k & 1]
        world = self.world

        def tell() -> None:
            if outcome == "accepted":
                consumer.settle(ids)
            elif outcome == "rejected":
                consumer.reject(ids)
            elif outcome == "lock ended":
                world.vpn.consumers.take_back(consumer.flow, ids)
                return
            else:
                consumer.release(ids, failed="failed" in outcome, undeliverable="undeliverable" in outcome)
            consumer.ask()

        self.world.on_loop(tell)

    @precondition(lambda self: self.world.broker.endpoints)
    @rule(
        pick=picks,
        chosen=st.integers(1, 255) | st.just(255),
        topics=st.lists(st.sampled_from(TOPICS), max_size=3),
        meanwhile=st.sampled_from(["", "", "leaves", "replayed", "cancelled", "deleted", "settled"]),
        is_late=mostly,
        ending=st.sampled_from(["", "", "written", "failed", "stopped"]),
        count=few,
    )
    def transact(
        self,
        pick: int,
        chosen: int,
        topics: list[str],
        meanwhile: str,
        is_late: bool,
        ending: str,
        count: int,
    ) -> None:
        """A client consumes and publishes in a transaction; something else happens before its commit or during it."""
        world, endpoint = self.world, self.endpoint(pick)
        if not any(c.unsettled for c in world.consumers):
            if not endpoint.depth:
                self.publish(queue_topic(endpoint.name), 3, False, 0, 0)
            self.attach_plain(endpoint, credit=4)
            world.settle_down()
        if any(c.unsettled for c in world.consumers):
            self.acknowledge(pick, pick, chosen)
        for topic in topics:
            self.stage(pick, topic, 1, 0)
        if is_late:
            self.discharge(pick, True, False, 0)
        match meanwhile:
            case "leaves":
                self.drop(world.consumers[:1])
            case "replayed":
                self.spawn(self.replay_from_the_beginning, endpoint, is_prompt=True)
            case "cancelled":
                self.spawn(self._cancel, endpoint, False, is_prompt=True)
            case "deleted":
                self.redefine(pick, None)
            case "settled" if any(c.unsettled for c in world.consumers):
                self.tell_outcome(pick, "failed", chosen)
        self.discharge(pick, True, False, 0)
        world.loop.run()
        match ending:
            case "written":
                world.writer.commit(count)
            case "failed":
                self.disk_fails(count, True)
            case "stopped":
                world.crash()

    @precondition(lambda self: self.world.departed or self.world.consumers)
    @rule(pick=picks, chosen=st.integers(1, 255))
    def settle_late(self, pick: int, chosen: int) -> None:
        """A peer may settle deliveries again that are no longer unsettled."""
        world = self.world
        everybody = world.departed + world.consumers
        consumer = everybody[pick % len(everybody)]
        own = consumer.content.unsettled if consumer.content is not None else {}
        ids = [i for i in consumer.history if own.get(i) is not consumer]
        late = [i for k, i in enumerate(ids) if chosen >> k & 1]
        flow = consumer.flow
        if late and flow is not None:
            world.on_loop(lambda: world.vpn.consumers.settle(flow, late))

    @precondition(lambda self: self.world.consumers)
    @rule(which=st.integers(1, 15))
    def drop_connection(self, which: int) -> None:
        self.drop([c for k, c in enumerate(self.world.consumers) if which >> k & 1])

    def drop(self, consumers: list[Consumer]) -> None:
        for consumer in consumers:
            flow = consumer.flow
            assert flow is not None
            consumer.left()
            self.world.on_loop(lambda flow=flow: self.world.vpn.consumers.unbind(flow))

    def consumer(self, pick: int) -> Consumer:
        return self.world.consumers[pick % len(self.world.consumers)]

    # --- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Everything is read and settled: no message is left, and every replay that did not fail is complete."""
        world = self.world
        world.settle_down()
        self.drop(list(world.consumers))
        for _ in range(1_000):
            # A replay that fails detaches its consumer.
            for endpoint in [e for e in world.broker.endpoints.values() if not e.flows]:
                self.attach_plain(endpoint, credit=10_000)
            world.settle_down()
            world.check_at_rest()
            holders = [c for c in world.consumers if c.unsettled]
            for consumer in holders:
                world.on_loop(lambda c=consumer: (c.settle(c.unsettled), c.ask()))
            if not holders and all(e.flows for e in world.broker.endpoints.values()):
                break
        for endpoint in world.broker.endpoints.values():
            assert endpoint.depth == 0, f"{endpoint.depth} messages are left on {endpoint.name}"
            replay = endpoint.replay
            if replay is not None and replay.state is not ReplayState.FAILED:
                assert replay.state is ReplayState.COMPLETE
                was_forced = world.contents[endpoint.cursor_number].was_forced
                assert was_forced or replay.put == replay.acknowledged
                assert replay.totals.last_completed_ms >= replay.started_ms
            if replay is not None:
                record = replay.totals
                assert record.started == record.succeeded + record.failed


TestEndpoints = EndpointMachine.TestCase
TestEndpoints.settings = settings(
    max_examples=times(500, 50_000, dev=100),
    stateful_step_count=50,
    suppress_health_check=list(HealthCheck),
)
