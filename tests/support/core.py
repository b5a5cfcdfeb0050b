"""Brokers and endpoints of the core, without a gateway around them."""

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
    """A broker to which nothing has been published; with ``log``, one that has this log."""
    log = log or LogState(1, 1, 1, 0, 0)
    return Broker(log, policy or LogPolicy(), window=window, create_queues=True)


def publish(broker: Broker, topic: str, count: int = 1, size_bytes: int = 1) -> Publication:
    """Publish messages to a topic and commit them."""
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
    """
    An endpoint whose cursor number is its own plus 100. Its messages up to ``stored_up_to`` are in the store alone.
    """
    settings = settings or EndpointSettings()
    parts = range(LOWEST, HIGHEST + 1) if settings.priorities else (WHOLE,)
    backlog = Backlog(number, 100 + number, {part: cursor or Cursor(0) for part in parts})
    endpoint = Endpoint(number, f"q{number}", EndpointKind.QUEUE, settings, window, backlog, replay=replay)
    for part in parts:
        endpoint.ready.of(part).stored(stored_up_to)
    return endpoint
