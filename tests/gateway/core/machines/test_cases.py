"""Cases that the model machines found, as single tests; first the steps that most of them share."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from amqp_ext.addresses.address import queue_topic
from amqp_ext.replay_start import Missing, ReplayStart, StartKind
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointSettings
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import RetentionRule
from gateway.core.model import TOPIC
from gateway.core.replay.starts import Resolved
from gateway.core.replay.states import Replay, ReplayState
from gateway.vpn.feeds.endpoint_feed import EndpointFeed
from gateway.vpn.replay_preview import unlogged_on
from tests.gateway.core.machines.naive_links import Consumer
from tests.gateway.core.machines.test_endpoints import EndpointMachine
from tests.gateway.core.machines.test_log import LogMachine
from tests.gateway.core.machines.world import UNLOGGED, Sizes

# --- Cases that the model machines found, as single tests; first the steps that most of them share --------------------

BEGINNING = ReplayStart(StartKind.BEGINNING)


def sized(history: int = 0, **sizes: Any) -> pytest.MarkDecorator:
    """Give the fixture ``machine`` these sizes, and publish ``history`` messages before."""
    return pytest.mark.parametrize("machine", [(Sizes(**sizes), history)], indirect=True, ids=[""])


def publish(
    machine: EndpointMachine,
    count: int,
    topic: str = "a/x",
    *,
    ttl_ms: int = 0,
    is_direct: bool = False,
    rests: bool = False,
) -> None:
    """Publish messages to a topic; with ``rests``, also finish everything that follows from it."""
    machine.publish(topic=topic, count=count, is_direct=is_direct, padding=0, ttl_ms=ttl_ms)
    if rests:
        machine.settle_down()


def new_queue(machine: EndpointMachine, name: str, *subscriptions: str, **options: Any) -> Endpoint:
    machine.create(name, EndpointSettings(**options), subscriptions, temporary=False)
    return machine.world.broker.endpoints[name]


def replay(machine: EndpointMachine, endpoint: Endpoint) -> None:
    """Replay from the beginning, as far as the replay gets."""
    machine.spawn(machine.replay_from_the_beginning, endpoint)
    machine.settle_down()


def replayed(machine: EndpointMachine) -> None:
    """Make q1 hold two messages that a replay has put there."""
    publish(machine, 2)
    replay(machine, machine.endpoint(0))


def replay_of(endpoint: Endpoint) -> Replay:
    assert endpoint.replay is not None
    return endpoint.replay


def consume(machine: EndpointMachine, endpoint: Endpoint, credit: int) -> Consumer:
    """Attach a consumer, and deliver what there is for it."""
    machine.attach_plain(endpoint, credit)
    machine.settle_down()
    return machine.world.consumers[-1]


def settle(machine: EndpointMachine, consumer: Consumer, *, but: int = 0) -> None:
    """Settle all that a consumer has, except the message ``but``, and deliver what is next."""

    def tell() -> None:
        consumer.settle([i for i in consumer.unsettled if i != but])
        consumer.ask()

    machine.world.on_loop(tell)
    machine.settle_down()


def transact(machine: EndpointMachine, chosen: int, *topics: str) -> None:
    """In one transaction, acknowledge some deliveries of the first consumer, and publish messages."""
    machine.acknowledge(which=0, pick=0, chosen=chosen)
    for topic in topics:
        machine.stage(which=0, topic=topic, count=1, padding=0)
    machine.discharge(which=0, commits=True, fails=False, count=1)


def with_dead_message_queue(machine: EndpointMachine) -> tuple[Endpoint, Endpoint]:
    """Create a queue for everything below `a`, and its dead message queue."""
    dead = new_queue(machine, "dead")
    return new_queue(machine, "q2", "a/>", dead_message_queue="dead"), dead


def reject_one(machine: EndpointMachine, queue: Endpoint) -> None:
    """Publish a message to the queue, and have a consumer reject it."""
    publish(machine, 1)
    consume(machine, queue, 5)
    machine.tell_outcome(pick=0, outcome="rejected", chosen=255)


@pytest.mark.parametrize("restarts", [True, False])
def test_order_survives_a_cancel_on_a_full_disk(machine: EndpointMachine, restarts: bool) -> None:
    """If a cancel cannot be written, messages published and consumed afterwards are in order, and come once."""
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
    """A cancelled replay frees the room that its messages took."""
    q2 = new_queue(machine, "q2", "a/>", quota_messages=2)
    publish(machine, 2, rests=True)
    replay(machine, q2)
    machine.cancel(pick=1, force_complete=False)
    machine.settle_down()
    publish(machine, 3, rests=True)
    assert q2.depth == 2


def test_a_replay_writes_nothing_of_what_it_puts(machine: EndpointMachine) -> None:
    """A full disk does not end a replay while it puts messages on its endpoint."""
    publish(machine, 2, rests=True)
    machine.spawn(machine.replay_from_the_beginning, machine.endpoint(0), is_prompt=True)
    machine.commit(count=1)
    machine.disk_fails(count=1, is_write=True)
    machine.settle_down()
    assert machine.endpoint(0).depth == 2


@sized(window=1, page_rows=1, tail_bytes=1)
def test_what_spills_while_a_page_is_read_is_read_by_the_next(machine: EndpointMachine) -> None:
    """An empty page says nothing about messages that were committed after it was requested."""
    world = machine.world
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
    """Messages on a dead message queue do not expire, even if the queue had consumers before it became one."""
    world = machine.world
    machine.attach_plain(new_queue(machine, "dead"), credit=0)
    queue = new_queue(machine, "q2", "b/x", dead_message_queue="dead")
    publish(machine, 1, "b/x", ttl_ms=5, rests=True)
    world.clock.now += 10
    consume(machine, queue, 1)
    world.clock.now += 10
    machine.credit(pick=0, credit=1)
    machine.settle_down()
    assert len(world.consumers[0].history) == 1


def test_a_queue_that_is_no_dead_message_queue_any_more(machine: EndpointMachine) -> None:
    """Once no queue names it any more, messages published to it expire."""
    world = machine.world
    dead = new_queue(machine, "dead")
    queue = new_queue(machine, "q2", dead_message_queue="dead")
    machine.attach_plain(dead, credit=0)
    world.broker.change_settings(queue, EndpointSettings())
    publish(machine, 1, queue_topic("dead"), ttl_ms=5, rests=True)
    world.clock.now += 10
    machine.credit(pick=0, credit=1)
    machine.settle_down()
    assert world.consumers[0].history == []


@sized(window=1, page_rows=1, tail_bytes=1)
def test_what_was_rejected_stays_rejected_while_the_disk_cannot_be_read(machine: EndpointMachine) -> None:
    """A rejected message that cannot be read to be moved is not delivered again, and is moved when it can be read."""
    world = machine.world
    queue, dead = with_dead_message_queue(machine)
    reject_one(machine, queue)
    machine.disk_fails(count=1, is_write=False)
    world.loop.run()
    assert world.consumers[0].history == [1]
    machine.settle_down()
    assert world.consumers[0].history == [1]
    assert queue.depth == 0
    assert dead.depth == 1


def test_a_message_that_could_not_be_moved_outlives_a_crash(machine: EndpointMachine) -> None:
    """A rejected message that was not moved before a crash is on its queue after the restart."""
    world = machine.world
    reject_one(machine, with_dead_message_queue(machine)[0])
    machine.disk_fails(count=1, is_write=True)
    machine.restart(is_clean=False)
    machine.settle_down()
    assert world.broker.endpoints["q2"].depth == 1
    assert world.broker.endpoints["dead"].depth == 0


def test_a_backlog_of_dead_messages_waits_for_the_disk(machine: EndpointMachine) -> None:
    """While the disk is full, only a few dead messages are taken off the queue at a time, whatever the credit."""
    world = machine.world
    queue, dead = with_dead_message_queue(machine)
    for _ in range(6):
        publish(machine, 2, ttl_ms=1, rests=True)
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
    """A message with an id that was assigned before the crash, and never written, stays live over restarts."""
    world = machine.world
    publish(machine, 1, rests=True)
    machine.spawn(machine.replay_from_the_beginning, machine.endpoint(0), is_prompt=True)
    machine.commit(count=1)
    publish(machine, 1)
    machine.disk_fails(count=1, is_write=True)
    machine.settle_down()
    machine.restart(is_clean=True)
    publish(machine, 1, rests=True)
    machine.restart(is_clean=True)
    found = replay_of(machine.endpoint(0))
    assert (found.live_from, list(world.store.published)) == (2, [1, 2])


def test_ids_that_a_crash_took_back_stay_live_behind_a_replay_that_was_complete(
    machine: EndpointMachine,
) -> None:
    """A replay completed before messages that were never written; later messages with their ids are live."""
    world = machine.world
    publish(machine, 1, rests=True)
    consume(machine, machine.endpoint(0), 10)
    publish(machine, 2)
    machine.spawn(machine.replay_from_the_beginning, machine.endpoint(0), is_prompt=True)
    machine.disk_fails(count=1, is_write=True)
    machine.settle_down()
    consume(machine, machine.endpoint(0), 10)
    machine.tell_outcome(pick=0, outcome="accepted", chosen=255)
    machine.settle_down()
    found = replay_of(machine.endpoint(0))
    assert (found.state, found.live_from, world.store.last_id) == (ReplayState.COMPLETE, 4, 3)
    machine.restart(is_clean=True)
    machine.settle_down()
    publish(machine, 2, rests=True)
    machine.restart(is_clean=True)
    found = replay_of(machine.endpoint(0))
    assert (found.live_from, world.store.last_id) == (4, 5)


def test_what_comes_live_behind_the_hand_over_is_not_counted_as_replayed(machine: EndpointMachine) -> None:
    """A replay is complete when its own messages are acknowledged, even if it read live messages with them."""
    publish(machine, 1, rests=True)
    machine.replay_meets_live(pick=0, in_flight=1, behind=2, count=4)
    machine.attach_plain(machine.endpoint(0), credit=10)
    machine.settle_down()
    for _ in range(4):
        settle(machine, machine.world.consumers[0])
    found = replay_of(machine.endpoint(0))
    assert (found.state, found.put, found.acknowledged) == (ReplayState.COMPLETE, 2, 2)


@sized(window=1, page_rows=1, tail_bytes=1, ahead_bytes=1, ahead=1, quantum=1)
def test_the_last_message_before_live_is_known_though_there_was_no_room_for_it(
    machine: EndpointMachine,
) -> None:
    """The pump held the last message back, until later unlogged messages could not wait behind it."""
    new_queue(machine, "q2", "a/>")
    machine.replay_meets_live(pick=0, behind=2, count=1, in_flight=1)
    queue = machine.endpoint(0)
    # While another replay runs, this one may let nothing wait.
    machine.spawn(machine.replay_from_the_beginning, queue, is_prompt=True)
    machine.replay_keeps_what_is_on_its_way(1, BEGINNING, count=0, on_way=0, turns=0)
    machine.settle_down()
    machine.transact(0, 255, [], "", True, "", 1)
    machine.settle_down()
    assert queue.replay is not None
    assert queue.replay.end_id == 3


@sized(1, window=4, page_rows=4, ahead=2)
def test_what_the_log_did_not_take_outlives_a_replay_that_is_trimmed_under(machine: EndpointMachine) -> None:
    """
    After a crash a replay is read again. If the log was trimmed meanwhile, the replay fails; an unlogged message
    between its own, which had been read and not put again, is delivered before later ones.
    """
    machine.attach(
        pick=0, credit=1, epoch=2, start=BEGINNING, is_pre_settled=False, modulus=0, is_prompt=True
    )
    publish(machine, 1, is_direct=True, rests=True)
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
    found = replay_of(machine.endpoint(0))
    assert found.state is ReplayState.FAILED
    # The model checks the order at each delivery.
    machine.settle_down()
    assert machine.endpoint(0).depth == 5


def test_what_a_replay_has_put_stays_though_the_subscriptions_change_and_the_gateway_starts_anew(
    machine: EndpointMachine,
) -> None:
    """Such a replay puts its messages again after a restart, by the subscriptions as they are then."""
    replayed(machine)
    machine.redefine(pick=0, subscriptions=("c/>", "a/y"))
    assert machine.endpoint(0).depth == 2
    machine.restart(is_clean=True)
    machine.settle_down()
    assert machine.endpoint(0).depth == 2


@pytest.mark.parametrize("leaves", [False, True])
def test_a_transaction_that_could_not_be_written_never_was(machine: EndpointMachine, leaves: bool) -> None:
    """Its messages are not stored. Its deliveries are with their consumer, or ready if the consumer has left."""
    publish(machine, 2)
    consume(machine, machine.endpoint(0), 2)
    transact(machine, 0b11, "a/x")
    if leaves:
        machine.drop(list(machine.world.consumers))
    machine.disk_fails(count=1, is_write=True)
    machine.settle_down()
    assert machine.endpoint(0).depth == 2
    assert [len(flow.unsettled) for flow in machine.endpoint(0).flows] == ([] if leaves else [2])
    assert machine.world.store.last_id == 2


def test_a_transaction_that_is_not_taken_leaves_the_counts_as_they_are(machine: EndpointMachine) -> None:
    """The messages of a queue are still counted when a transaction was rolled back, and found at the next start."""
    machine.attach_plain(machine.endpoint(0), credit=1)
    publish(machine, 3)
    machine.commit(count=1)
    machine.world.loop.run()
    transact(machine, 1, UNLOGGED)
    machine.tell_outcome(pick=0, outcome="accepted", chosen=1)
    machine.settle_down()
    assert machine.endpoint(0).depth == 2
    machine.restart(is_clean=True)
    assert machine.endpoint(0).depth == 2


@pytest.mark.parametrize("quota_messages", [0, 100])
@sized(window=2, page_rows=2, ahead=20)
def test_what_comes_while_nobody_consumes_is_delivered_behind_what_came_before(
    machine: EndpointMachine, quota_messages: int
) -> None:
    """
    A consumer leaves a queue that is deeper than its window during a transaction. Messages that come before the next
    consumer attaches are neither skipped nor counted as settled.
    """
    queue = new_queue(machine, "q2", "b/>", quota_messages=quota_messages)
    machine.attach_plain(queue, credit=1)
    publish(machine, 12, "b/x", rests=True)
    transact(machine, 1)
    machine.drop(list(machine.world.consumers))
    machine.settle_down()
    publish(machine, 2, "b/x", rests=True)
    machine.attach_plain(queue, credit=20)
    publish(machine, 1, "b/x")
    machine.commit(count=1)
    machine.settle_down()
    (consumer,) = machine.world.consumers
    assert consumer.history == list(range(2, 16))


def test_a_cancelled_replay_takes_what_a_transaction_is_about_to_settle_by_priority(
    machine: EndpointMachine,
) -> None:
    """With priorities as without, whether the transaction commits or fails."""
    for fails in (False, True):
        new_queue(machine, "q2", "b/>", priorities=True)
        queue = machine.world.broker.endpoints["q2"]
        publish(machine, 2, "b/x", rests=True)
        replay(machine, queue)
        consume(machine, queue, 2)
        transact(machine, 0b11)
        machine.spawn(machine._cancel, queue, False, is_prompt=True)
        if fails:
            machine.disk_fails(count=1, is_write=True)
        machine.settle_down()
        assert queue.depth == 0
        machine.redefine(1, None)
        machine.settle_down()


@pytest.mark.parametrize(
    "machine",
    [(Sizes(ahead=1), 0), (Sizes(ahead=9), 0)],
    indirect=True,
    ids=["it reads", "it has read everything"],
)
@pytest.mark.parametrize("ending", ["told", "stopped", "failed"])
def test_a_forced_replay_waits_for_the_transaction_that_settles_its_messages(
    machine: EndpointMachine, ending: str
) -> None:
    """A message that the transaction has settled does not come back, and one that it could not settle stays."""
    publish(machine, 3)
    replay(machine, machine.endpoint(0))
    consume(machine, machine.endpoint(0), 1)
    transact(machine, 1)
    machine.spawn(machine._cancel, machine.endpoint(0), True, is_prompt=True)
    machine.world.loop.run()
    assert replay_of(machine.endpoint(0)).is_under_way
    if ending == "failed":
        machine.disk_fails(count=1, is_write=True)
        machine.settle_down()
        assert machine.consumer(0).unsettled == [1]
    elif ending == "stopped":
        machine.world.writer.commit(len(machine.world.writer.waiting))
        machine.restart(is_clean=False)
        machine.settle_down()
        assert 1 not in consume(machine, machine.endpoint(0), 5).history
    if ending != "stopped":
        machine.settle_down()
        assert replay_of(machine.endpoint(0)).state is ReplayState.COMPLETE
        machine.restart(is_clean=False)
        assert (1 in consume(machine, machine.endpoint(0), 5).history) is (ending == "failed")


@pytest.mark.parametrize("ending", ["", "cancelled"])
def test_what_the_log_did_not_take_outlives_the_replay_that_put_it_in_its_place(
    machine: EndpointMachine, ending: str
) -> None:
    """An unsettled message between replayed ones is there after a restart, though later messages were settled."""
    world = machine.world
    queue = new_queue(machine, "q2", "a/>", "c/>")
    publish(machine, 2, rests=True)
    machine.spawn(machine.replay_from_the_beginning, queue, is_prompt=True)
    publish(machine, 1, topic=UNLOGGED)
    publish(machine, 1)
    consumer = consume(machine, queue, 10)
    for _ in range(3):
        settle(machine, consumer, but=3)
    assert consumer.unsettled == [3]
    machine.restart(is_clean=True)
    if ending:
        machine.spawn(machine._cancel, world.broker.endpoints["q2"], False, is_prompt=True)
    machine.attach_plain(world.broker.endpoints["q2"], credit=10)
    publish(machine, 1, rests=True)
    assert world.consumers[0].history == [3, 5]


def test_what_came_by_its_route_beside_a_replay_is_there_after_a_restart(machine: EndpointMachine) -> None:
    """An unlogged message that is older than acknowledged messages of the replay."""
    new_queue(machine, "q2", "b/>", "c/>")
    publish(machine, 6, "b/x", rests=True)
    replay(machine, machine.endpoint(1))
    publish(machine, 1, UNLOGGED)
    publish(machine, 2, "b/x", rests=True)
    consumer = consume(machine, machine.endpoint(1), 20)
    for _ in range(2):
        settle(machine, consumer)
    assert list(consumer.unsettled) == [7, 8, 9]
    consumer.settle([8, 9])
    machine.restart(is_clean=True)
    machine.settle_down()
    consumer = consume(machine, machine.endpoint(1), 20)
    assert list(consumer.unsettled) == [7]


@sized(window=1, page_rows=2, tail_bytes=1, ahead=4, quantum=4)
def test_what_a_replay_puts_once_a_dead_message_is_gone_comes_after_the_living(
    machine: EndpointMachine,
) -> None:
    """The replay waits for room, and goes on when one of the messages to be handed out turns out to be dead."""
    machine.replay_meets_live(pick=0, behind=3, count=1, in_flight=3)
    new_queue(machine, "q2", "a/>", max_redelivery=1)
    machine.replay_meets_live(pick=0, behind=0, count=1, in_flight=1)
    machine.attach(
        pick=1, credit=6, start=BEGINNING, epoch=None, is_pre_settled=False, is_prompt=True, modulus=0
    )
    machine.settle_down()
    machine.tell_outcome(pick=0, outcome="failed", chosen=0b101)
    machine.settle_down()
    machine.drop(list(machine.world.consumers))
    consumer = consume(machine, machine.endpoint(1), 6)
    assert consumer.history == [2, 4, 5, 6]


@sized(window=2, ahead=20, tail_bytes=1_000_000)
def test_what_is_in_the_message_cache_is_consumed_without_a_read(
    machine: EndpointMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window of a queue without consumers is small; messages that are in the cache are not read from the store."""
    world = machine.world
    publish(machine, 9, rests=True)
    publish(machine, 3, UNLOGGED, rests=True)

    def routed_page(*_: object) -> None:
        raise AssertionError("the store was asked")

    monkeypatch.setattr(world.reader, "routed_page", routed_page)
    consumer = consume(machine, machine.endpoint(0), 20)
    assert consumer.history == [*range(1, 10)]
    monkeypatch.undo()


@sized(tail_bytes=1)
def test_what_a_replay_has_put_is_read_once(
    machine: EndpointMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A sweep for expired messages, while nobody consumes, drops no content that a replay has read: it is delivered
    without another read, as are messages that the replay puts later.
    """
    world = machine.world
    publish(machine, 9)
    replay(machine, machine.endpoint(0))
    world.loop.advance(world.tuning.expiry_sweep_seconds)
    machine.settle_down()

    def messages(*_: object) -> None:
        raise AssertionError("what was read was read again")

    # Only the feed's reads count: the lag is looked up in the store now and then, too.
    monkeypatch.setattr(EndpointFeed, "_read_rows", messages)
    consumer = consume(machine, machine.endpoint(0), 20)
    for _ in range(9):
        settle(machine, consumer)
    assert consumer.history == [*range(1, 10)]
    monkeypatch.undo()


def keeping_replay(
    machine: EndpointMachine,
    start: ReplayStart,
    count: int = 0,
    on_way: int = 0,
    turns: int = 0,
    trimmed: int = 0,
) -> None:
    """Start such a replay while messages, unlogged and logged, are being committed."""
    machine.replay_keeps_what_is_on_its_way(0, start, count, on_way, turns, trimmed)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_what_was_trimmed_at_the_start_stays(machine: EndpointMachine, is_cancelled: bool) -> None:
    """It is trimmed after the start was resolved, before the replay begins: in memory it is still logged."""
    publish(machine, 1, rests=True)
    machine.trim(before=2)
    keeping_replay(machine, BEGINNING)
    machine.settle_down()
    if is_cancelled:
        machine.cancel(pick=0, force_complete=False)
        machine.settle_down()
    assert consume(machine, machine.endpoint(0), 5).unsettled == [1]


def test_what_a_replay_had_dropped_on_its_way_is_not_kept_by_the_next(machine: EndpointMachine) -> None:
    """Messages that the first replay drops are not kept, even if that is not committed yet."""
    keeping_replay(machine, BEGINNING, on_way=2, turns=1)
    machine.spawn(machine.replay_from_the_beginning, machine.endpoint(0), is_prompt=True)
    keeping_replay(machine, BEGINNING)
    machine.settle_down()


@sized(2, page_rows=1, tail_bytes=1)
def test_what_was_trimmed_at_the_second_try_stays(machine: EndpointMachine) -> None:
    """The first trim failed while the replay was read, so the log still had it; a second one removed it."""
    machine.trim(before=2)
    keeping_replay(machine, BEGINNING)
    machine.disk_fails(count=1, is_write=True)
    machine.administrator_replays(0, BEGINNING, is_prompt=True, keeps=True)
    machine.trim(before=2)
    machine.settle_down()
    assert 1 in consume(machine, machine.endpoint(0), 5).unsettled


@sized(tail_bytes=1, ahead=1)
def test_who_came_before_the_replay_began_is_given_what_was_kept(machine: EndpointMachine) -> None:
    """A kept message older than the start is handed out immediately, even without room for replayed ones."""
    keeping_replay(machine, BEGINNING, on_way=1, turns=2)
    machine.settle_down()
    keeping_replay(machine, ReplayStart(StartKind.LAST), turns=2)
    assert consume(machine, machine.endpoint(0), 11).unsettled == [1]


@sized(1, window=1, page_rows=4, tail_bytes=1, ahead=4, quantum=1)
def test_what_references_lead_to_keeps_its_place_after_a_crash(machine: EndpointMachine) -> None:
    """
    A replay has put a message between two that are unlogged. After a trim below it and a crash, the message, now held
    by a reference, still comes in its place.
    """
    keeping_replay(machine, BEGINNING, count=2, on_way=2, turns=2)
    machine.transact(0, 255, [], "", True, "stopped", 1)
    machine.transact(0, 255, [], "", True, "", 1)
    keeping_replay(machine, BEGINNING, trimmed=30)
    machine.transact(0, 255, [], "", True, "stopped", 1)
    queue = machine.endpoint(0)
    assert queue.backlog.put.references
    history = consume(machine, queue, 10).history
    assert history == sorted(history)
    assert len(history) > 3


def test_a_replay_that_keeps_is_refused_when_another_began_first(machine: EndpointMachine) -> None:
    """The replay that began first goes on; the other is refused with the reason, without reading everything again."""
    publish(machine, 3)
    machine.restart(is_clean=True)
    world, queue = machine.world, machine.endpoint(0)
    refused: list[Refused] = []

    async def ask() -> None:
        with pytest.raises(Refused, match="another replay of 'q1' began") as caught:
            await unlogged_on(world.vpn.state, queue)
        refused.append(caught.value)

    machine.spawn(ask)
    world.loop.run()
    assert world.reader.waiting
    world.on_loop(lambda: world.vpn.replays.start(queue, 1, None))
    machine.settle_down()
    assert refused[0].code is ErrorCode.PRECONDITION_FAILED
    assert queue.replay is not None
    assert consume(machine, queue, 5).unsettled == [1, 2, 3]


@sized(6, window=1, page_rows=3, tail_bytes=1, ahead=3, quantum=1)
def test_a_selector_is_given_what_was_kept_before_what_references_lead_to(machine: EndpointMachine) -> None:
    """
    A replay was forced to complete, so references hold what it had put. After a crash only the store knows the kept
    messages, which are older: a selector gets them first.
    """
    machine.trim(before=2)
    keeping_replay(machine, ReplayStart(StartKind.LAST))
    publish(machine, 1, rests=True)
    machine.cancel(pick=0, force_complete=True)
    machine.settle_down()
    machine.restart(is_clean=False)
    queue = machine.endpoint(0)
    assert 7 in queue.backlog.put.references
    machine.attach(pick=0, start=None, credit=10, epoch=None, is_pre_settled=False, modulus=2, is_prompt=True)
    machine.settle_down()
    consumer = machine.consumer(0)
    assert consumer.history[0] == 1
    assert consumer.history == sorted(consumer.history)


def test_what_a_replay_keeps_has_its_failed_deliveries_though_nobody_read_them_since_the_start(
    machine: EndpointMachine,
) -> None:
    """The counts are in the store only: an endpoint knows those of its window."""
    queue = new_queue(machine, "q2", "c/>")
    publish(machine, 2, UNLOGGED)
    consume(machine, queue, 2)
    machine.tell_outcome(pick=0, outcome="failed", chosen=0b11)
    machine.settle_down()
    machine.restart(is_clean=True)
    queue = machine.world.broker.endpoints["q2"]
    assert not queue.attempts
    machine.spawn(machine._replay, queue, BEGINNING, True, is_prompt=True)
    machine.settle_down()
    assert set(queue.attempts) == {1, 2}
    machine.restart(is_clean=False)
    queue = machine.world.broker.endpoints["q2"]
    consume(machine, queue, 2)
    assert set(queue.attempts) == {1, 2}


# --- Cases that the machine of the log found, as single tests ---------------------------------------------------------

A_AND_B = (RetentionRule(("b/x",), quota_bytes=100), RetentionRule(("a/>",), quota_bytes=100))


@pytest.fixture
def log_machine(request: pytest.FixtureRequest) -> Iterator[LogMachine]:
    """A machine whose steps the test calls; all of its checks run at the end."""
    machine = LogMachine()
    machine.start(sizes=getattr(request, "param", Sizes()))
    yield machine
    machine.teardown()


def log(log_machine: LogMachine, topic: str, count: int) -> None:
    log_machine.publish(topic=topic, count=count, is_direct=False, padding=0, ttl_ms=0)


def with_a_piece_on_its_way(log_machine: LogMachine) -> None:
    """Two rules have topics over their quotas, and what the first rule removes is not committed yet."""
    for topic in ("b/x", "a/x"):
        log(log_machine, topic, 4)
    log_machine.settle_down()
    world = log_machine.world
    world.set_rules(A_AND_B)
    world.loop.advance(1.0)
    while not world.left:
        world.reader.read(1)
        world.writer.commit(1)
        world.loop.advance(1.0)


def logged(log_machine: LogMachine, topic: str) -> int:
    return sum(row[TOPIC] == topic for row in log_machine.world.reader._logged())


def test_a_rule_that_is_no_more_takes_nothing_out(log_machine: LogMachine) -> None:
    """Even if its turn would have come when the rules changed; the piece being committed is removed."""
    with_a_piece_on_its_way(log_machine)
    log_machine.change_rules(rules=A_AND_B[:1])
    log_machine.settle_down()
    assert (logged(log_machine, "b/x"), logged(log_machine, "a/x")) == (1, 4)


def test_what_is_on_its_way_when_rules_change_is_not_taken_off_the_new_count(log_machine: LogMachine) -> None:
    """Counting begins after the piece being committed, so its messages were never counted."""
    with_a_piece_on_its_way(log_machine)
    log_machine.change_rules(rules=(RetentionRule(("b/x",), max_age_hours=9),))
    log_machine.settle_down()
    kept = log_machine.world.broker.retention.rules[0]
    assert kept.messages == logged(log_machine, "b/x") == 2


@pytest.mark.parametrize(
    "log_machine",
    [Sizes(page_rows=1, quantum=1, rules=(RetentionRule(("a/>",), quota_bytes=100),))],
    indirect=True,
)
def test_what_a_rule_took_does_not_come_out_of_memory_once_the_log_begins_behind_it(
    log_machine: LogMachine,
) -> None:
    """The cache has the messages of a publication together, as long as one of them is in the log."""
    log(log_machine, "a/x", 2)
    log_machine.settle_down()
    log_machine.read_log(patterns=(">",), start=BEGINNING, credit=0, missing=Missing.FAIL, is_prompt=True)
    log_machine.trim(before=2)
    log_machine.settle_down()
    assert log_machine.world.broker.log.first_id == 2
    log_machine.credit(pick=0, credit=9)
    log_machine.settle_down()
    assert log_machine.world.log_consumers[0].received == [2]


def test_a_reader_is_told_of_what_leaves_between_its_start_and_its_first_message(
    log_machine: LogMachine,
) -> None:
    """It asked for everything from the beginning, and some of what was there then has left since."""
    log(log_machine, "a/x", 4)
    log_machine.settle_down()
    world = log_machine.world
    found: list[Resolved] = []

    async def ask() -> None:
        found.append(await world.vpn.log.resolve_start(ReplayStart(StartKind.BEGINNING), ("a/x",)))

    world.loop.create_task(ask())
    world.settle_down()
    world.set_rules(A_AND_B[1:])
    world.settle_down()
    for topic, is_told in (("a/x", True), ("b/x", False)):
        told: list[Refused] = []
        link: Any = SimpleNamespace(
            client=SimpleNamespace(user=""),
            account=None,
            room=lambda: 9,
            nothing_to_send=lambda: None,
            refuse=told.append,
        )
        feed = world.vpn.readers.read_log(found[0], (topic,), link)
        world.on_loop(feed.run)
        feed.close()
        assert [one.code for one in told] == [ErrorCode.REPLAY_MESSAGE_UNAVAILABLE] * is_told


@pytest.mark.parametrize(
    ("start", "code"),
    [
        (ReplayStart(StartKind.OFFSET, 1), ErrorCode.START_MESSAGE_UNAVAILABLE),
        (ReplayStart(StartKind.DATE, 1_000), ErrorCode.START_TIME_NOT_AVAILABLE),
    ],
)
def test_a_start_where_messages_are_about_to_leave_is_refused(
    log_machine: LogMachine, start: ReplayStart, code: ErrorCode
) -> None:
    """The removal is being committed, and nobody else would tell the reader. A start for other topics is granted."""
    with_a_piece_on_its_way(log_machine)
    told: list[object] = []

    async def ask(topic: str, missing: Missing = Missing.FAIL) -> None:
        asked = ReplayStart(start.kind, start.value, missing=missing)
        try:
            told.append((await log_machine.world.vpn.log.resolve_start(asked, (topic,))).first)
        except Refused as refused:
            told.append(refused.code)

    for asking in (ask("b/x"), ask("a/x"), ask("b/x", Missing.CLAMP)):
        log_machine.world.loop.create_task(asking)
        log_machine.world.loop.run()
        log_machine.world.reader.read(len(log_machine.world.reader.waiting))
        log_machine.world.loop.run()
    assert told == [code, 1, 1]


def test_a_point_made_again_survives_a_full_disk(log_machine: LogMachine) -> None:
    """If neither a point's deletion nor its new creation could be written, the first point is there as before."""
    log_machine.make_point("one", is_prompt=False)
    log_machine.settle_down()
    before = log_machine.world.broker.points["one"]
    log_machine.delete_point(pick=0)
    log_machine.make_point("one", is_prompt=False)
    log_machine.disk_fails(count=2, is_write=True)
    log_machine.world.loop.run()
    assert log_machine.world.broker.points == {"one": before}


@pytest.mark.parametrize(
    "log_machine", [Sizes(window=1, page_rows=1, tail_bytes=1, ahead=1, quantum=1)], indirect=True
)
def test_what_comes_while_a_start_is_looked_for_is_live_where_there_was_nothing_before(
    log_machine: LogMachine,
) -> None:
    """If the log is empty when a start is resolved, no message is marked as the last before live."""
    log_machine.read_log((">",), ReplayStart(StartKind.BEGINNING), 0, Missing.FAIL, is_prompt=False)
    log(log_machine, "a/x", 1)
    log_machine.settle_down()
    (reader,) = log_machine.world.log_consumers
    log_machine.credit(pick=0, credit=5)
    log_machine.settle_down()
    assert (reader.received, reader.marked) == ([1], [])
