"""Brokers and endpoints of the core by themselves."""

from __future__ import annotations

from amqp_ext.message.fields import HIGHEST, LOWEST
from gateway.core.broker import Broker
from gateway.core.effects import Publication
from gateway.core.endpoint.backlog import Backlog
from gateway.core.endpoint.cursor import Cursor
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings
from gateway.core.log import LogPolicy
from gateway.core.model import WHOLE, LogState
from gateway.core.replay.states import Replay


def new_broker(policy: LogPolicy | None = None, window: int = 10, log: LogState | None = None) -> Broker:
    """One that nothing was published to, or that has this log."""
    log = log or LogState(1, 1, 1, 0, 0)
    return Broker(log, policy or LogPolicy(), window=window, create_queues=True)


def publish(broker: Broker, topic: str, count: int = 1, size_bytes: int = 1) -> Publication:
    """Messages of a topic are published, and committed."""
    contents = [b"x" * size_bytes] * count
    publication, taken, _ = broker.publications.publish(1_000, topic, contents, [0] * count, None)
    assert publication is not None
    assert taken == count
    broker.publications.committed(publication)
    return publication


def new_endpoint(
    settings: EndpointSettings | None = None,
    window: int = 10,
    *,
    number: int = 1,
    cursor: Cursor | None = None,
    stored_up_to: int = 0,
    replay: Replay | None = None,
) -> Endpoint:
    """An endpoint, of whose messages up to ``stored_up_to`` the store alone knows; 100 more is its cursor's number."""
    settings = settings or EndpointSettings()
    parts = range(LOWEST, HIGHEST + 1) if settings.priorities else (WHOLE,)
    backlog = Backlog(number, 100 + number, {part: cursor or Cursor(0) for part in parts})
    endpoint = Endpoint(number, f"q{number}", EndpointKind.QUEUE, settings, window, backlog, replay=replay)
    for part in parts:
        endpoint.ready.of(part).stored(stored_up_to)
    return endpoint
