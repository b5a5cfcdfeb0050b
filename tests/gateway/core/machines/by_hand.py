"""Steps of the machine of endpoints, called by hand: what comes in most stories that it told."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_ext.replay_start import ReplayStart, StartKind
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointSettings
from gateway.core.replay.states import Replay
from tests.gateway.core.machines.naive_links import Consumer
from tests.gateway.core.machines.test_endpoints import EndpointMachine
from tests.gateway.core.machines.world import Sizes

BEGINNING = ReplayStart(StartKind.BEGINNING)


def sized(history: int = 0, **sizes: Any) -> pytest.MarkDecorator:
    """The fixture ``machine`` is of these sizes, with so many messages published before."""
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
    """Messages of a topic are published; ``rests``: and everything that follows is done."""
    machine.publish(topic=topic, count=count, is_direct=is_direct, padding=0, ttl_ms=ttl_ms)
    if rests:
        machine.settle_down()


def new_queue(machine: EndpointMachine, name: str, *subscriptions: str, **options: Any) -> Endpoint:
    machine.create(name, EndpointSettings(**options), subscriptions, temporary=False)
    return machine.world.broker.endpoints[name]


def replay(machine: EndpointMachine, endpoint: Endpoint) -> None:
    """From the beginning, as far as it gets."""
    machine.spawn(machine.replay_from_the_beginning, endpoint)
    machine.settle_down()


def replayed(machine: EndpointMachine) -> None:
    """q1 holds two messages that a replay put on it."""
    publish(machine, 2)
    replay(machine, machine.endpoint(0))


def replay_of(endpoint: Endpoint) -> Replay:
    assert endpoint.replay is not None
    return endpoint.replay


def consume(machine: EndpointMachine, endpoint: Endpoint, credit: int) -> Consumer:
    """A consumer comes, and is given what there is for it."""
    machine.attach_plain(endpoint, credit)
    machine.settle_down()
    return machine.world.consumers[-1]


def settle(machine: EndpointMachine, consumer: Consumer, *, but: int = 0) -> None:
    """All that a consumer has is settled, but for one, and it is given what comes next."""

    def tell() -> None:
        consumer.settle([i for i in consumer.unsettled if i != but])
        consumer.ask()

    machine.world.on_loop(tell)
    machine.settle_down()


def transact(machine: EndpointMachine, chosen: int, *topics: str) -> None:
    """Some of what the first consumer has is acknowledged, and messages are published, in one transaction."""
    machine.acknowledge(which=0, pick=0, chosen=chosen)
    for topic in topics:
        machine.stage(which=0, topic=topic, count=1, padding=0)
    machine.discharge(which=0, commits=True, fails=False, count=1)
