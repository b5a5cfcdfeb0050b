"""
What the model machines found, told one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.core.endpoint import EndpointSettings
from tests.core.test_model_endpoints import EndpointMachine
from tests.core.world import Tuning, replaced_surroundings


@pytest.fixture
def machine() -> Iterator[EndpointMachine]:
    """One whose rules are called by hand; everything it has checks of is checked in the end."""
    with replaced_surroundings():
        machine = EndpointMachine()
        machine.start(tuning=Tuning())
        yield machine
        machine.teardown()


def publish(machine: EndpointMachine, count: int, topic: str = "a/x", ttl_ms: int = 0) -> None:
    machine.publish(topic=topic, count=count, is_direct=False, padding=0, ttl_ms=ttl_ms)


def replayed(machine: EndpointMachine) -> None:
    """q1 holds two messages that a replay put on it."""
    publish(machine, 2)
    machine.spawn(machine.replay_from_the_beginning, machine.endpoint(0))
    machine.settle_down()


def test_cancel_survives_a_full_disk(machine: EndpointMachine) -> None:
    """What a cancelled replay had put leaves the endpoint, even if that could not be written at first."""
    replayed(machine)
    machine.cancel(pick=0, force_complete=False)
    machine.fail_to_commit(count=1)
    assert machine.endpoint(0).depth == 2
    machine.settle_down()
    assert machine.endpoint(0).depth == 0


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
