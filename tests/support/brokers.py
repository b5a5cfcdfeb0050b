"""Brokers by themselves: what they want to be durable is so at once."""

from __future__ import annotations

from gateway.core.broker import Broker
from gateway.core.effects import Publication
from gateway.core.log import LogPolicy
from gateway.core.model import LogState


def new_broker(policy: LogPolicy | None = None, window: int = 10) -> Broker:
    """One that nothing was published to."""
    return Broker(LogState(1, 1, 1, 0, 0), policy or LogPolicy(), window=window, create_queues=True)


def publish(broker: Broker, topic: str, count: int = 1, size_bytes: int = 1) -> Publication:
    """Messages of a topic are published, and committed."""
    contents = [b"x" * size_bytes] * count
    publication, taken, _ = broker.publications.publish(1_000, topic, contents, [0] * count, None)
    assert publication is not None
    assert taken == count
    broker.publications.committed(publication)
    return publication
