"""Endpoints by themselves, without a broker."""

from __future__ import annotations

from amqp_ext.message.fields import HIGHEST, LOWEST
from gateway.core.endpoint.backlog import Backlog
from gateway.core.endpoint.cursor import Cursor
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings
from gateway.core.model import WHOLE
from gateway.core.replay.states import Replay


def new_endpoint(
    settings: EndpointSettings, window: int = 10, *, stored_up_to: int = 0, replay: Replay | None = None
) -> Endpoint:
    """An endpoint, of whose messages up to ``stored_up_to`` the store alone knows."""
    parts = range(LOWEST, HIGHEST + 1) if settings.priorities else (WHOLE,)
    backlog = Backlog(1, 2, {part: Cursor(0) for part in parts})
    endpoint = Endpoint(1, "q", EndpointKind.QUEUE, settings, window, backlog, replay=replay)
    for part in parts:
        endpoint.ready.of(part).stored(stored_up_to)
    return endpoint
