"""
What the model machines found of replays that keep what the log does not have, told one by one.
"""

from __future__ import annotations

import pytest

from amqp_ext.replay_start import ReplayStart, StartKind
from gateway.core.endpoint.settings import EndpointSettings
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.replay_preview import unlogged_on
from tests.gateway.core.machines.test_endpoints import EndpointMachine
from tests.gateway.core.machines.world import UNLOGGED, Sizes


def keeping_replay(machine: EndpointMachine, start: ReplayStart, on_way: int = 0) -> None:
    """It is asked for, while messages that the log does not take, and some that it does, are on their way."""
    machine.replay_keeps_what_is_on_its_way(
        pick=0, start=start, count=0, on_way=on_way, turns=1 if on_way else 0
    )


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_what_was_trimmed_at_the_start_stays(machine: EndpointMachine, is_cancelled: bool) -> None:
    """Trimmed between when the start was found and when the replay began: in memory it is still as the log had it."""
    machine.publish(topic="a/x", count=1, is_direct=False, padding=0, ttl_ms=0)
    machine.settle_down()
    machine.trim(before=2)
    keeping_replay(machine, ReplayStart(StartKind.BEGINNING))
    machine.settle_down()
    if is_cancelled:
        machine.cancel(pick=0, force_complete=False)
        machine.settle_down()
    machine.attach_plain(machine.endpoint(0), credit=5)
    machine.settle_down()
    assert list(machine.consumer(0).unsettled) == [1]


def test_what_a_replay_had_dropped_on_its_way_is_not_kept_by_the_next(machine: EndpointMachine) -> None:
    """Dropped is dropped, though it is not committed yet."""
    keeping_replay(machine, ReplayStart(StartKind.BEGINNING), on_way=2)
    machine.spawn(machine.replay_from_the_beginning, machine.endpoint(0), is_prompt=True)
    keeping_replay(machine, ReplayStart(StartKind.BEGINNING))
    machine.settle_down()


def test_what_was_trimmed_at_the_second_try_stays() -> None:
    """The first try failed while it was read, so that the log had it; then the log had it no more."""
    machine = EndpointMachine()
    machine.start(sizes=Sizes(page_rows=1, tail_bytes=1), history=2)
    machine.trim(before=2)
    keeping_replay(machine, ReplayStart(StartKind.BEGINNING))
    machine.disk_fails(count=1, is_write=True)
    machine.administrator_replays(0, ReplayStart(StartKind.BEGINNING), is_prompt=True, keeps=True)
    machine.trim(before=2)
    machine.settle_down()
    machine.attach_plain(machine.endpoint(0), credit=5)
    machine.settle_down()
    assert 1 in machine.consumer(0).unsettled
    machine.teardown()


def test_who_came_before_the_replay_began_is_given_what_was_kept() -> None:
    """What is older than the start is handed out at once, though there is no room for anything replayed."""
    machine = EndpointMachine()
    machine.start(sizes=Sizes(tail_bytes=1, ahead=1))
    machine.replay_keeps_what_is_on_its_way(
        pick=0, start=ReplayStart(StartKind.BEGINNING), count=0, on_way=1, turns=2
    )
    machine.settle_down()
    machine.replay_keeps_what_is_on_its_way(
        pick=0, start=ReplayStart(StartKind.LAST), count=0, on_way=0, turns=2
    )
    machine.attach_plain(machine.endpoint(0), credit=11)
    machine.settle_down()
    assert list(machine.consumer(0).unsettled) == [1]
    machine.teardown()


def test_what_references_lead_to_keeps_its_place_after_a_crash() -> None:
    """
    A replay has put a message between others that the log did not take. Then the log is trimmed under it, and the
    gateway crashes: the message is not ahead of those.
    """
    machine = EndpointMachine()
    machine.start(sizes=Sizes(window=1, page_rows=4, tail_bytes=1, ahead=4, quantum=1), history=1)
    beginning = ReplayStart(StartKind.BEGINNING)
    machine.replay_keeps_what_is_on_its_way(pick=0, start=beginning, count=2, on_way=2, turns=2)
    machine.transact(0, 255, [], "", True, "stopped", 1)
    machine.transact(0, 255, [], "", True, "", 1)
    machine.replay_keeps_what_is_on_its_way(pick=0, start=beginning, count=0, on_way=0, turns=0, trimmed=30)
    machine.transact(0, 255, [], "", True, "stopped", 1)
    queue = machine.endpoint(0)
    assert queue.backlog.put.references
    machine.attach_plain(queue, credit=10)
    machine.settle_down()
    history = machine.world.consumers[-1].history
    assert history == sorted(history)
    assert len(history) > 3
    machine.teardown()


def test_a_replay_that_keeps_is_refused_when_another_began_first(machine: EndpointMachine) -> None:
    """The one that began goes on; who asks in vain is told why, and does not read everything again."""
    machine.publish(topic="a/x", count=3, is_direct=False, padding=0, ttl_ms=0)
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
    machine.attach_plain(queue, credit=5)
    machine.settle_down()
    assert list(machine.consumer(0).unsettled) == [1, 2, 3]


def test_a_selector_is_given_what_was_kept_before_what_references_lead_to() -> None:
    """
    A replay was told to end, and references lead to what it had put. After a crash the store alone knows what had
    stayed, of which all is older.
    """
    machine = EndpointMachine()
    machine.start(sizes=Sizes(window=1, page_rows=3, tail_bytes=1, ahead=3, quantum=1), history=6)
    machine.trim(before=2)
    keeping_replay(machine, ReplayStart(StartKind.LAST))
    machine.publish(topic="a/x", count=1, is_direct=False, padding=0, ttl_ms=0)
    machine.settle_down()
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
    machine.teardown()


def test_what_a_replay_keeps_has_its_failed_deliveries_though_nobody_read_them_since_the_start(
    machine: EndpointMachine,
) -> None:
    """They are in the store alone: an endpoint knows those of its window."""
    endpoints = machine.world.broker.endpoints
    machine.create("q2", EndpointSettings(), ("c/>",), temporary=False)
    machine.publish(topic=UNLOGGED, count=2, is_direct=False, padding=0, ttl_ms=0)
    machine.attach_plain(endpoints["q2"], credit=2)
    machine.settle_down()
    machine.tell_outcome(pick=0, outcome="failed", chosen=0b11)
    machine.settle_down()
    machine.restart(is_clean=True)
    endpoints = machine.world.broker.endpoints
    assert not endpoints["q2"].attempts
    machine.spawn(machine._replay, endpoints["q2"], ReplayStart(StartKind.BEGINNING), True, is_prompt=True)
    machine.settle_down()
    assert set(endpoints["q2"].attempts) == {1, 2}
    machine.restart(is_clean=False)
    endpoints = machine.world.broker.endpoints
    machine.attach_plain(endpoints["q2"], credit=2)
    machine.settle_down()
    assert set(endpoints["q2"].attempts) == {1, 2}
