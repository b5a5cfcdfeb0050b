"""
What the model machines found, told one by one.
"""

from __future__ import annotations

import pytest

from amqp_ext.addresses.address import queue_topic
from amqp_ext.replay_start import Missing, ReplayStart, StartKind
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointSettings
from gateway.core.replay.states import ReplayState
from tests.gateway.core.machines.test_endpoints import EndpointMachine
from tests.gateway.core.machines.test_log import LogMachine
from tests.gateway.core.machines.world import UNLOGGED, Sizes, World


def publish(machine: EndpointMachine, count: int, topic: str = "a/x", ttl_ms: int = 0) -> None:
    machine.publish(topic=topic, count=count, is_direct=False, padding=0, ttl_ms=ttl_ms)


def replayed(machine: EndpointMachine) -> None:
    """q1 holds two messages that a replay put on it."""
    publish(machine, 2)
    machine.spawn(machine.replay_from_the_beginning, machine.endpoint(0))
    machine.settle_down()


def with_dead_message_queue(machine: EndpointMachine) -> tuple[Endpoint, Endpoint]:
    """A queue for everything below `a`, and its dead message queue."""
    machine.create("dead", EndpointSettings(), (), temporary=False)
    machine.create("q2", EndpointSettings(dead_message_queue="dead"), ("a/>",), temporary=False)
    endpoints = machine.world.broker.endpoints
    return endpoints["q2"], endpoints["dead"]


def reject_one(machine: EndpointMachine, queue: Endpoint) -> None:
    """A message comes to the queue, and its consumer rejects it."""
    publish(machine, 1)
    machine.attach_plain(queue, credit=5)
    machine.settle_down()
    machine.tell_outcome(pick=0, outcome="rejected", chosen=255)


def test_cancel_survives_a_full_disk(machine: EndpointMachine) -> None:
    """What a cancelled replay had put leaves the endpoint, even if that could not be written at first."""
    replayed(machine)
    machine.cancel(pick=0, force_complete=False)
    machine.disk_fails(count=1, is_write=True)
    assert machine.endpoint(0).depth == 0
    machine.settle_down()
    assert machine.endpoint(0).depth == 0
    machine.restart(is_clean=True)
    assert machine.endpoint(0).depth == 0


@pytest.mark.parametrize("restarts", [True, False])
def test_order_survives_a_cancel_on_a_full_disk(machine: EndpointMachine, restarts: bool) -> None:
    """What is published and consumed after a cancel that could not be written comes in order, once."""
    replayed(machine)
    machine.cancel(pick=0, force_complete=False)
    machine.disk_fails(count=1, is_write=True)
    publish(machine, 1)
    machine.attach_plain(machine.endpoint(0), credit=5)
    publish(machine, 2)
    if restarts:
        machine.restart(is_clean=False)
    machine.settle_down()


def test_quota_holds_again_after_a_drop(machine: EndpointMachine) -> None:
    """A cancelled replay gives the room back that its messages took."""
    machine.create("q2", EndpointSettings(quota_messages=2), ("a/>",), temporary=False)
    publish(machine, 2)
    machine.settle_down()
    q2 = machine.world.broker.endpoints["q2"]
    machine.spawn(machine.replay_from_the_beginning, q2)
    machine.settle_down()
    machine.cancel(pick=1, force_complete=False)
    machine.settle_down()
    publish(machine, 3)
    machine.settle_down()
    assert q2.depth == 2


def test_a_replay_writes_nothing_of_what_it_puts(machine: EndpointMachine) -> None:
    """A disk that is full while a replay puts messages on its endpoint does not end the replay."""
    publish(machine, 2)
    machine.settle_down()
    machine.spawn(machine.replay_from_the_beginning, machine.endpoint(0), is_prompt=True)
    machine.commit(count=1)
    machine.disk_fails(count=1, is_write=True)
    machine.settle_down()
    assert machine.endpoint(0).depth == 2


def test_what_spills_while_a_page_is_read_is_read_by_the_next(machine: EndpointMachine) -> None:
    """A page that found nothing says nothing of what was committed since it was asked for."""
    world = World(Sizes(window=1, page_rows=1, tail_bytes=1))
    machine.world = world
    machine.begin()
    replayed(machine)
    machine.attach_plain(machine.endpoint(0), credit=10)
    machine.cancel(pick=0, force_complete=False)
    machine.attach_plain(machine.endpoint(0), credit=10)
    machine.commit(count=1)
    world.loop.run()
    publish(machine, 3)
    machine.commit(count=1)
    world.loop.run()
    assert len(world.reader.waiting) == 1
    machine.settle_down()
    assert world.consumers[0].history == [3, 4, 5]


def test_a_queue_that_becomes_a_dead_message_queue_keeps_what_is_dead(machine: EndpointMachine) -> None:
    """What lies on a dead message queue does not expire, even if the queue had consumers before it was one."""
    world = machine.world
    machine.create("dead", EndpointSettings(), (), temporary=False)
    machine.attach_plain(world.broker.endpoints["dead"], credit=0)
    machine.create("q2", EndpointSettings(dead_message_queue="dead"), ("b/x",), temporary=False)
    publish(machine, 1, "b/x", ttl_ms=5)
    machine.settle_down()
    world.clock.now += 10
    machine.attach_plain(world.broker.endpoints["q2"], credit=1)
    machine.settle_down()
    world.clock.now += 10
    world.consumers[0].credit = 1
    world.on_loop(world.consumers[0].ask)
    machine.settle_down()
    assert len(world.consumers[0].history) == 1


def test_a_queue_that_is_no_dead_message_queue_any_more(machine: EndpointMachine) -> None:
    """Once no queue sends its dead messages there, what is published to it expires as everywhere."""
    world = machine.world
    machine.create("dead", EndpointSettings(), (), temporary=False)
    machine.create("q2", EndpointSettings(dead_message_queue="dead"), (), temporary=False)
    machine.attach_plain(world.broker.endpoints["dead"], credit=0)
    world.broker.endpoints["q2"].change_settings(EndpointSettings())
    publish(machine, 1, queue_topic("dead"), ttl_ms=5)
    machine.settle_down()
    world.clock.now += 10
    world.consumers[0].credit = 1
    world.on_loop(world.consumers[0].ask)
    machine.settle_down()
    assert world.consumers[0].history == []


def test_what_was_rejected_stays_rejected_while_the_disk_cannot_be_read(machine: EndpointMachine) -> None:
    """A rejected message whose content cannot be read for its copy goes to nobody, and is moved when it can."""
    world = World(Sizes(window=1, page_rows=1, tail_bytes=1))
    machine.world = world
    queue, dead = with_dead_message_queue(machine)
    reject_one(machine, queue)
    machine.disk_fails(count=1, is_write=False)
    world.loop.run()
    assert world.consumers[0].history == [1]
    machine.settle_down()
    assert world.consumers[0].history == [1]
    assert queue.depth == 0
    assert dead.depth == 1


def test_a_message_that_could_not_be_moved_is_moved_later(machine: EndpointMachine) -> None:
    """Where its copy cannot be written a rejected message stays on its queue, goes to nobody, and is moved later."""
    world = machine.world
    queue, dead = with_dead_message_queue(machine)
    reject_one(machine, queue)
    machine.disk_fails(count=1, is_write=True)
    world.loop.run()
    assert (queue.depth, dead.depth) == (1, 0)
    machine.attach_plain(queue, credit=5)
    world.loop.run()
    machine.settle_down()
    assert (queue.depth, dead.depth) == (0, 1)
    assert [consumer.history for consumer in world.consumers] == [[1], []]


def test_a_message_that_could_not_be_moved_outlives_a_crash(machine: EndpointMachine) -> None:
    """What was rejected and could not be moved before the gateway ended is on its queue when it starts again."""
    world = machine.world
    queue, _ = with_dead_message_queue(machine)
    reject_one(machine, queue)
    machine.disk_fails(count=1, is_write=True)
    machine.restart(is_clean=False)
    machine.settle_down()
    assert world.broker.endpoints["q2"].depth == 1
    assert world.broker.endpoints["dead"].depth == 0


def test_a_backlog_of_dead_messages_waits_for_the_disk(machine: EndpointMachine) -> None:
    """While copies cannot be written only a few messages at a time are taken off, whoever asks for more."""
    world = machine.world
    queue, dead = with_dead_message_queue(machine)
    for _ in range(6):
        publish(machine, 2, ttl_ms=1)
    machine.settle_down()
    world.clock.now += 10
    machine.attach_plain(queue, credit=20)
    for _ in range(5):
        machine.read(count=5)
        machine.disk_fails(count=1, is_write=True)
        world.loop.run()
        assert queue.depth == 12
        assert 0 < sum(len(letters.ids) for letters in world.vpn.dead_letters._under_way) <= 4
    for _ in range(10):
        machine.settle_down()
    assert (queue.depth, dead.depth) == (0, 12)


def test_ids_that_a_crash_took_back_are_not_replayed_twice_over(machine: EndpointMachine) -> None:
    """A message that got an id which a crash took back stays live, however often the gateway is started anew."""
    world = machine.world
    publish(machine, 1)
    machine.settle_down()
    machine.spawn(machine.replay_from_the_beginning, machine.endpoint(0), is_prompt=True)
    machine.commit(count=1)
    publish(machine, 1)
    machine.disk_fails(count=1, is_write=True)
    machine.settle_down()
    machine.restart(is_clean=True)
    publish(machine, 1)
    machine.settle_down()
    machine.restart(is_clean=True)
    replay = machine.endpoint(0).replay
    assert replay is not None
    assert (replay.live_from, list(world.store.published)) == (2, [1, 2])


def test_ids_that_a_crash_took_back_stay_live_behind_a_replay_that_was_complete(
    machine: EndpointMachine,
) -> None:
    """A replay that ended before messages that were never written does not count those that get their ids."""
    world = machine.world
    publish(machine, 1)
    machine.settle_down()
    machine.attach_plain(machine.endpoint(0), credit=10)
    machine.settle_down()
    publish(machine, 2)
    machine.spawn(machine.replay_from_the_beginning, machine.endpoint(0), is_prompt=True)
    machine.disk_fails(count=1, is_write=True)
    machine.settle_down()
    machine.attach_plain(machine.endpoint(0), credit=10)
    machine.settle_down()
    machine.tell_outcome(pick=0, outcome="accepted", chosen=255)
    machine.settle_down()
    replay = machine.endpoint(0).replay
    assert replay is not None
    assert (replay.state, replay.live_from, world.store.last_id) == (ReplayState.COMPLETE, 4, 3)
    machine.restart(is_clean=True)
    machine.settle_down()
    publish(machine, 2)
    machine.settle_down()
    machine.restart(is_clean=True)
    replay = machine.endpoint(0).replay
    assert replay is not None
    assert (replay.live_from, world.store.last_id) == (4, 5)


def test_a_point_made_again_survives_a_full_disk() -> None:
    """Where a point's deletion and another of its name could not be written, the first is there as before."""
    machine = LogMachine()
    machine.start(sizes=Sizes())
    machine.make_point("one", is_prompt=False)
    machine.settle_down()
    before = machine.world.broker.points["one"]
    machine.delete_point(pick=0)
    machine.make_point("one", is_prompt=False)
    machine.disk_fails(count=2, is_write=True)
    machine.world.loop.run()
    assert machine.world.broker.points == {"one": before}
    machine.teardown()


def test_what_comes_while_a_start_is_looked_for_is_live_where_there_was_nothing_before() -> None:
    """A log that is empty when a reader's start is resolved has no last message before live for it."""
    machine = LogMachine()
    machine.start(sizes=Sizes(window=1, page_rows=1, tail_bytes=1, ahead=1, quantum=1))
    beginning = ReplayStart(StartKind.BEGINNING)
    machine.read_log(patterns=(">",), start=beginning, credit=0, missing=Missing.FAIL, is_prompt=False)
    machine.publish(topic="a/x", count=1, is_direct=False, padding=0, ttl_ms=0)
    machine.settle_down()
    (reader,) = machine.world.log_consumers
    machine.credit(pick=0, credit=5)
    machine.settle_down()
    assert (reader.received, reader.marked) == ([1], [])
    machine.teardown()


def test_what_comes_live_behind_the_hand_over_is_not_counted_as_replayed(machine: EndpointMachine) -> None:
    """A replay is complete when its own messages are acknowledged, however much of what is live it read with them."""
    publish(machine, 1)
    machine.settle_down()
    machine.replay_meets_live(pick=0, in_flight=1, behind=2, count=4)
    machine.attach_plain(machine.endpoint(0), credit=10)
    for _ in range(4):
        machine.settle_down()
        consumer = machine.world.consumers[0]
        consumer.settle(consumer.unsettled)
        machine.world.on_loop(consumer.ask)
    replay = machine.endpoint(0).replay
    assert replay is not None
    assert (replay.state, replay.put, replay.acknowledged) == (ReplayState.COMPLETE, 2, 2)


def test_the_last_message_before_live_is_known_though_there_was_no_room_for_it() -> None:
    """It was held back, as it might not be the last; then what the log did not take may not wait behind it any more."""
    machine = EndpointMachine()
    machine.start(sizes=Sizes(window=1, page_rows=1, tail_bytes=1, ahead_bytes=1, ahead=1, quantum=1))
    machine.create("q2", EndpointSettings(), ("a/>",), temporary=False)
    machine.replay_meets_live(pick=0, behind=2, count=1, in_flight=1)
    queue = machine.endpoint(0)
    # Beside another replay it may have nothing wait.
    machine.spawn(machine.replay_from_the_beginning, queue, is_prompt=True)
    machine.replay_keeps_what_is_on_its_way(1, ReplayStart(StartKind.BEGINNING), count=0, on_way=0, turns=0)
    machine.settle_down()
    machine.transact(0, 255, [], "", True, "", 1)
    machine.settle_down()
    assert queue.replay is not None
    assert queue.replay.end_id == 3
    machine.teardown()


def test_what_the_log_did_not_take_outlives_a_replay_that_is_trimmed_under() -> None:
    """
    After a crash a replay is read again; where the log was trimmed meanwhile, it fails, and a message that lay between
    its own, and was read and not put again, is delivered before what came later.
    """
    machine = EndpointMachine()
    machine.start(sizes=Sizes(window=4, page_rows=4, ahead=2), history=1)
    beginning = ReplayStart(StartKind.BEGINNING)
    machine.attach(
        pick=0, credit=1, epoch=2, start=beginning, is_pre_settled=False, modulus=0, is_prompt=True
    )
    machine.publish(topic="a/x", count=1, is_direct=True, padding=0, ttl_ms=0)
    machine.settle_down()
    machine.restart(is_clean=False)
    publish(machine, 4)
    machine.trim(before=2)
    for credit, epoch, modulus in ((4, 1, 3), (11, 2, 0)):
        machine.attach(
            pick=0,
            credit=credit,
            epoch=epoch,
            start=None,
            is_pre_settled=False,
            modulus=modulus,
            is_prompt=True,
        )
    replay = machine.endpoint(0).replay
    assert replay is not None
    assert replay.state is ReplayState.FAILED
    # That each message is handed out in its turn is checked when it is.
    machine.settle_down()
    assert machine.endpoint(0).depth == 5
    machine.teardown()


def test_what_a_replay_has_put_stays_though_the_subscriptions_change_and_the_gateway_starts_anew(
    machine: EndpointMachine,
) -> None:
    """A replay that has read all it had to is read again after a restart: by the subscriptions of then."""
    replayed(machine)
    machine.redefine(pick=0, subscriptions=("c/>", "a/y"))
    assert machine.endpoint(0).depth == 2
    machine.restart(is_clean=True)
    machine.settle_down()
    assert machine.endpoint(0).depth == 2


def test_a_transaction_moves_messages(machine: EndpointMachine) -> None:
    """What was acknowledged in it is gone, and what was published in it is there."""
    publish(machine, 3)
    machine.attach_plain(machine.endpoint(0), credit=3)
    machine.settle_down()
    machine.acknowledge(which=0, pick=0, chosen=0b11)
    machine.stage(which=0, topic="a/x", count=1, padding=0)
    machine.stage(which=0, topic="b/x", count=1, padding=0)
    machine.discharge(which=0, commits=True, fails=False, count=1)
    assert [len(flow.unsettled) for flow in machine.endpoint(0).flows] == [1]
    machine.settle_down()
    assert machine.endpoint(0).depth == 2
    assert machine.world.store.last_id == 5


@pytest.mark.parametrize("leaves", [False, True])
def test_a_transaction_that_could_not_be_written_never_was(machine: EndpointMachine, leaves: bool) -> None:
    """Its messages are nowhere, and its deliveries are with their consumer, or ready where that left meanwhile."""
    publish(machine, 2)
    machine.attach_plain(machine.endpoint(0), credit=2)
    machine.settle_down()
    machine.acknowledge(which=0, pick=0, chosen=0b11)
    machine.stage(which=0, topic="a/x", count=1, padding=0)
    machine.discharge(which=0, commits=True, fails=False, count=1)
    if leaves:
        machine.drop(list(machine.world.consumers))
    machine.disk_fails(count=1, is_write=True)
    machine.settle_down()
    assert machine.endpoint(0).depth == 2
    assert [len(flow.unsettled) for flow in machine.endpoint(0).flows] == ([] if leaves else [2])
    assert machine.world.store.last_id == 2


def test_a_transaction_that_is_not_taken_leaves_the_counts_as_they_are(machine: EndpointMachine) -> None:
    """What lay on a queue when a transaction was rolled back is counted by the store, and found by a start."""
    machine.attach_plain(machine.endpoint(0), credit=1)
    publish(machine, 3)
    machine.commit(count=1)
    machine.world.loop.run()
    machine.acknowledge(which=0, pick=0, chosen=1)
    machine.stage(which=0, topic=UNLOGGED, count=1, padding=0)
    machine.discharge(which=0, commits=True, fails=False, count=1)
    machine.tell_outcome(pick=0, outcome="accepted", chosen=1)
    machine.settle_down()
    assert machine.endpoint(0).depth == 2
    machine.restart(is_clean=True)
    assert machine.endpoint(0).depth == 2


@pytest.mark.parametrize("quota_messages", [0, 100])
def test_what_comes_while_nobody_consumes_is_delivered_behind_what_came_before(quota_messages: int) -> None:
    """
    A consumer leaves a queue that is deeper than its window while a transaction is under way: what comes before the
    next one binds is neither passed over nor counted as settled.
    """
    machine = EndpointMachine()
    machine.start(sizes=Sizes(window=2, page_rows=2, ahead=20))
    machine.create("q2", EndpointSettings(quota_messages=quota_messages), ("b/>",), temporary=False)
    queue = machine.world.broker.endpoints["q2"]
    machine.attach_plain(queue, credit=1)
    publish(machine, 12, "b/x")
    machine.settle_down()
    machine.acknowledge(which=0, pick=0, chosen=1)
    machine.discharge(which=0, commits=True, fails=False, count=1)
    machine.drop(list(machine.world.consumers))
    machine.settle_down()
    publish(machine, 2, "b/x")
    machine.settle_down()
    machine.attach_plain(queue, credit=20)
    publish(machine, 1, "b/x")
    machine.commit(count=1)
    machine.settle_down()
    (consumer,) = machine.world.consumers
    assert consumer.history == list(range(2, 16))
    machine.teardown()


def test_a_cancelled_replay_takes_what_a_transaction_is_about_to_settle_by_priority(
    machine: EndpointMachine,
) -> None:
    """On an endpoint that delivers by priority as on any other, however the transaction ends."""
    for fails in (False, True):
        machine.create("q2", EndpointSettings(priorities=True), ("b/>",), temporary=False)
        queue = machine.world.broker.endpoints["q2"]
        publish(machine, 2, "b/x")
        machine.settle_down()
        machine.spawn(machine.replay_from_the_beginning, queue)
        machine.settle_down()
        machine.attach_plain(queue, credit=2)
        machine.settle_down()
        machine.acknowledge(which=0, pick=0, chosen=0b11)
        machine.discharge(which=0, commits=True, fails=False, count=1)
        machine.spawn(machine._cancel, queue, False, is_prompt=True)
        if fails:
            machine.disk_fails(count=1, is_write=True)
        machine.settle_down()
        assert queue.depth == 0
        machine.redefine(1, None)
        machine.settle_down()


@pytest.mark.parametrize("ending", ["", "cancelled"])
def test_what_the_log_did_not_take_outlives_the_replay_that_put_it_in_its_place(
    machine: EndpointMachine, ending: str
) -> None:
    """A message beside replayed ones, unsettled when the gateway stops, is there, whatever was settled behind it."""
    world = machine.world
    machine.create("q2", EndpointSettings(), ("a/>", "c/>"), temporary=False)
    queue = world.broker.endpoints["q2"]
    publish(machine, 2)
    machine.settle_down()
    machine.spawn(machine.replay_from_the_beginning, queue, is_prompt=True)
    publish(machine, 1, topic=UNLOGGED)
    publish(machine, 1)
    machine.attach_plain(queue, credit=10)
    for _ in range(3):
        machine.settle_down()
        consumer = world.consumers[0]
        world.on_loop(lambda c=consumer: (c.settle([i for i in c.unsettled if i != 3]), c.ask()))
    assert world.consumers[0].unsettled == [3]
    machine.restart(is_clean=True)
    if ending:
        machine.spawn(machine._cancel, world.broker.endpoints["q2"], False, is_prompt=True)
    machine.attach_plain(world.broker.endpoints["q2"], credit=10)
    publish(machine, 1)
    machine.settle_down()
    assert world.consumers[0].history == [3, 5]


def test_what_came_by_its_route_beside_a_replay_is_there_after_a_restart(machine: EndpointMachine) -> None:
    """A message that the log did not take, and that is older than what the replay had put and was acknowledged."""
    machine.create("q2", EndpointSettings(), ("b/>", "c/>"), temporary=False)
    publish(machine, 6, "b/x")
    machine.settle_down()
    machine.spawn(machine.replay_from_the_beginning, machine.endpoint(1))
    machine.settle_down()
    publish(machine, 1, UNLOGGED)
    publish(machine, 2, "b/x")
    machine.settle_down()
    machine.attach_plain(machine.endpoint(1), credit=20)
    machine.settle_down()
    (consumer,) = machine.world.consumers
    for _ in range(2):
        consumer.settle(list(consumer.unsettled))
        machine.world.on_loop(consumer.ask)
        machine.settle_down()
    assert list(consumer.unsettled) == [7, 8, 9]
    consumer.settle([8, 9])
    machine.restart(is_clean=True)
    machine.settle_down()
    machine.attach_plain(machine.endpoint(1), credit=20)
    machine.settle_down()
    (consumer,) = machine.world.consumers
    assert list(consumer.unsettled) == [7]


def test_what_a_replay_puts_once_a_dead_message_is_gone_comes_after_the_living(
    machine: EndpointMachine,
) -> None:
    """The replay waits for room, and goes on at once when one of the messages that are handed out is a dead one."""
    machine.start(sizes=Sizes(window=1, page_rows=2, tail_bytes=1, ahead=4, quantum=4))
    machine.replay_meets_live(pick=0, behind=3, count=1, in_flight=3)
    machine.create("q2", EndpointSettings(max_redelivery=1), ("a/>",), temporary=False)
    machine.replay_meets_live(pick=0, behind=0, count=1, in_flight=1)
    start = ReplayStart(StartKind.BEGINNING)
    machine.attach(pick=1, credit=6, start=start, epoch=None, is_pre_settled=False, is_prompt=True, modulus=0)
    machine.settle_down()
    machine.tell_outcome(pick=0, outcome="failed", chosen=0b101)
    machine.settle_down()
    machine.drop(list(machine.world.consumers))
    machine.attach_plain(machine.endpoint(1), credit=6)
    machine.settle_down()
    (consumer,) = machine.world.consumers
    assert consumer.history == [2, 4, 5, 6]


def test_what_is_in_the_message_cache_is_consumed_without_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a queue that nobody consumed little is in its window; the store is not asked for what memory has."""
    machine = EndpointMachine()
    machine.start(sizes=Sizes(window=2, ahead=20, tail_bytes=1_000_000))
    world = machine.world
    publish(machine, 9)
    machine.settle_down()
    publish(machine, 3, UNLOGGED)
    machine.settle_down()

    def routed_page(*_: object) -> None:
        raise AssertionError("the store was asked")

    monkeypatch.setattr(world.reader, "routed_page", routed_page)
    machine.attach_plain(machine.endpoint(0), credit=20)
    machine.settle_down()
    (consumer,) = world.consumers
    assert consumer.history == [*range(1, 10)]
    monkeypatch.undo()
    machine.teardown()


def test_what_a_replay_has_put_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A sweep for expired messages, while nobody consumes, lets go of nothing that a replay has put: contents that it
    read are at hand for whoever comes, and it has what it puts later delivered from the same place.
    """
    machine = EndpointMachine()
    machine.start(sizes=Sizes(tail_bytes=1))
    world = machine.world
    publish(machine, 9)
    machine.spawn(machine.replay_from_the_beginning, machine.endpoint(0))
    machine.settle_down()
    world.loop.advance(world.tuning.expiry_sweep_seconds)
    machine.settle_down()

    def messages(*_: object) -> None:
        raise AssertionError("what was read was read again")

    monkeypatch.setattr(world.reader, "messages", messages)
    machine.attach_plain(machine.endpoint(0), credit=20)
    machine.settle_down()
    (consumer,) = world.consumers
    for _ in range(9):
        consumer.settle(list(consumer.unsettled))
        world.on_loop(consumer.ask)
        machine.settle_down()
    assert consumer.history == [*range(1, 10)]
    monkeypatch.undo()
    machine.teardown()
