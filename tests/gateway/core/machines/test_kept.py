"""
What the model machines found of replays that keep what the log does not have, told one by one.
"""

from __future__ import annotations

import pytest

from amqp_ext.replay_start import ReplayStart, StartKind
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.replay_preview import unlogged_on
from tests.gateway.core.machines.by_hand import BEGINNING, consume, new_queue, publish, sized
from tests.gateway.core.machines.test_endpoints import EndpointMachine
from tests.gateway.core.machines.world import UNLOGGED


def keeping_replay(
    machine: EndpointMachine,
    start: ReplayStart,
    count: int = 0,
    on_way: int = 0,
    turns: int = 0,
    trimmed: int = 0,
) -> None:
    """It is asked for, while messages that the log does not take, and some that it does, are on their way."""
    machine.replay_keeps_what_is_on_its_way(0, start, count, on_way, turns, trimmed)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_what_was_trimmed_at_the_start_stays(machine: EndpointMachine, is_cancelled: bool) -> None:
    """Trimmed between when the start was found and when the replay began: in memory it is still as the log had it."""
    publish(machine, 1, rests=True)
    machine.trim(before=2)
    keeping_replay(machine, BEGINNING)
    machine.settle_down()
    if is_cancelled:
        machine.cancel(pick=0, force_complete=False)
        machine.settle_down()
    assert consume(machine, machine.endpoint(0), 5).unsettled == [1]


def test_what_a_replay_had_dropped_on_its_way_is_not_kept_by_the_next(machine: EndpointMachine) -> None:
    """Dropped is dropped, though it is not committed yet."""
    keeping_replay(machine, BEGINNING, on_way=2, turns=1)
    machine.spawn(machine.replay_from_the_beginning, machine.endpoint(0), is_prompt=True)
    keeping_replay(machine, BEGINNING)
    machine.settle_down()


@sized(2, page_rows=1, tail_bytes=1)
def test_what_was_trimmed_at_the_second_try_stays(machine: EndpointMachine) -> None:
    """The first try failed while it was read, so that the log had it; then the log had it no more."""
    machine.trim(before=2)
    keeping_replay(machine, BEGINNING)
    machine.disk_fails(count=1, is_write=True)
    machine.administrator_replays(0, BEGINNING, is_prompt=True, keeps=True)
    machine.trim(before=2)
    machine.settle_down()
    assert 1 in consume(machine, machine.endpoint(0), 5).unsettled


@sized(tail_bytes=1, ahead=1)
def test_who_came_before_the_replay_began_is_given_what_was_kept(machine: EndpointMachine) -> None:
    """What is older than the start is handed out at once, though there is no room for anything replayed."""
    keeping_replay(machine, BEGINNING, on_way=1, turns=2)
    machine.settle_down()
    keeping_replay(machine, ReplayStart(StartKind.LAST), turns=2)
    assert consume(machine, machine.endpoint(0), 11).unsettled == [1]


@sized(1, window=1, page_rows=4, tail_bytes=1, ahead=4, quantum=1)
def test_what_references_lead_to_keeps_its_place_after_a_crash(machine: EndpointMachine) -> None:
    """
    A replay has put a message between others that the log did not take. Then the log is trimmed under it, and the
    gateway crashes: the message is not ahead of those.
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
    """The one that began goes on; who asks in vain is told why, and does not read everything again."""
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
    A replay was told to end, and references lead to what it had put. After a crash the store alone knows what had
    stayed, of which all is older.
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
    """They are in the store alone: an endpoint knows those of its window."""
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
