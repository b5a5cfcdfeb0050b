"""
What the machine of the log found, told one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from amqp_ext.replay_start import Missing, ReplayStart, StartKind
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import RetentionRule
from gateway.core.model import TOPIC
from gateway.core.replay.starts import Resolved
from tests.gateway.core.machines.test_log import LogMachine
from tests.gateway.core.machines.world import Sizes

A_AND_B = (RetentionRule(("b/x",), quota_bytes=100), RetentionRule(("a/>",), quota_bytes=100))


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Iterator[LogMachine]:
    """One without rules whose steps are called by hand; everything it has checks of is checked in the end."""
    machine = LogMachine()
    machine.start(sizes=getattr(request, "param", Sizes()))
    yield machine
    machine.teardown()


def publish(machine: LogMachine, topic: str, count: int) -> None:
    machine.publish(topic=topic, count=count, is_direct=False, padding=0, ttl_ms=0)


def with_a_piece_on_its_way(machine: LogMachine) -> None:
    """Two rules have topics over their quotas, and what the first one takes out is not committed yet."""
    for topic in ("b/x", "a/x"):
        publish(machine, topic, 4)
    machine.settle_down()
    world = machine.world
    world.set_rules(A_AND_B)
    world.loop.advance(1.0)
    while not world.left:
        world.reader.read(1)
        world.writer.commit(1)
        world.loop.advance(1.0)


def logged(machine: LogMachine, topic: str) -> int:
    return sum(row[TOPIC] == topic for row in machine.world.reader._logged())


def test_a_rule_that_is_no_more_takes_nothing_out(machine: LogMachine) -> None:
    """Though it came behind the one that was at work when the rules changed; what is on its way leaves."""
    with_a_piece_on_its_way(machine)
    machine.change_rules(rules=A_AND_B[:1])
    machine.settle_down()
    assert (logged(machine, "b/x"), logged(machine, "a/x")) == (1, 4)


def test_what_is_on_its_way_when_rules_change_is_not_taken_off_the_new_count(machine: LogMachine) -> None:
    """Counting begins behind it: what it took out was never counted."""
    with_a_piece_on_its_way(machine)
    machine.change_rules(rules=(RetentionRule(("b/x",), max_age_hours=9),))
    machine.settle_down()
    kept = machine.world.broker.retention.rules[0]
    assert kept.messages == logged(machine, "b/x") == 2


def test_a_reader_is_told_of_what_leaves_between_its_start_and_its_first_message(machine: LogMachine) -> None:
    """Though it wanted what there is: that was more."""
    publish(machine, "a/x", 4)
    machine.settle_down()
    world = machine.world
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
    machine: LogMachine, start: ReplayStart, code: ErrorCode
) -> None:
    """Their commit is on its way: nothing else would tell who starts there. Of other topics it is granted."""
    with_a_piece_on_its_way(machine)
    told: list[object] = []

    async def ask(topic: str, missing: Missing = Missing.FAIL) -> None:
        asked = ReplayStart(start.kind, start.value, missing=missing)
        try:
            told.append((await machine.world.vpn.log.resolve_start(asked, (topic,))).first)
        except Refused as refused:
            told.append(refused.code)

    for asking in (ask("b/x"), ask("a/x"), ask("b/x", Missing.CLAMP)):
        machine.world.loop.create_task(asking)
        machine.world.loop.run()
        machine.world.reader.read(len(machine.world.reader.waiting))
        machine.world.loop.run()
    assert told == [code, 1, 1]


def test_a_point_made_again_survives_a_full_disk(machine: LogMachine) -> None:
    """Where a point's deletion and another of its name could not be written, the first is there as before."""
    machine.make_point("one", is_prompt=False)
    machine.settle_down()
    before = machine.world.broker.points["one"]
    machine.delete_point(pick=0)
    machine.make_point("one", is_prompt=False)
    machine.disk_fails(count=2, is_write=True)
    machine.world.loop.run()
    assert machine.world.broker.points == {"one": before}


@pytest.mark.parametrize(
    "machine", [Sizes(window=1, page_rows=1, tail_bytes=1, ahead=1, quantum=1)], indirect=True
)
def test_what_comes_while_a_start_is_looked_for_is_live_where_there_was_nothing_before(
    machine: LogMachine,
) -> None:
    """A log that is empty when a reader's start is resolved has no last message before live for it."""
    machine.read_log((">",), ReplayStart(StartKind.BEGINNING), 0, Missing.FAIL, is_prompt=False)
    publish(machine, "a/x", 1)
    machine.settle_down()
    (reader,) = machine.world.log_consumers
    machine.credit(pick=0, credit=5)
    machine.settle_down()
    assert (reader.received, reader.marked) == ([1], [])
