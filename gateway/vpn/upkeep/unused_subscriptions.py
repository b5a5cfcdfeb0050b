"""
Topic endpoints that nobody receives from any more: their clients are gone, and what is published for them piles up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from gateway import log_keys
from gateway.core.broker import Broker
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.vpn.runtime import Runtime
from gateway.vpn.settings import CurrentSettings

LOOK_SECONDS: Final = 60.0
"""From one look to the next."""

HOUR_SECONDS: Final = 3_600


class UnusedSubscriptions:
    """
    Deletes topic endpoints that have had no consumer for as long as the settings say (``subscription_expiry_hours``).

    Args:
        delete: Deletes an endpoint with what lies on it.
    """

    def __init__(
        self,
        broker: Broker,
        delete: Callable[[Endpoint], None],
        settings: CurrentSettings,
        runtime: Runtime,
    ) -> None:
        self._broker = broker
        self._delete = delete
        self._settings = settings
        self._runtime = runtime
        self._unused_since: dict[Endpoint, float] = {}
        self._timer: asyncio.Handle | None = None

    def start(self) -> None:
        self._look()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._runtime.loop.call_later(LOOK_SECONDS, self._look)
        hours = self._settings.vpn.subscription_expiry_hours
        if not hours:
            self._unused_since.clear()
            return
        now = self._runtime.clock.seconds()
        before, self._unused_since = self._unused_since, {}
        for endpoint in list(self._broker.endpoints.values()):
            if not _can_be_unused(endpoint) or endpoint.flows or endpoint.waiting_flows:
                continue
            since = self._unused_since[endpoint] = before.get(endpoint, now)
            if now - since >= hours * HOUR_SECONDS:
                del self._unused_since[endpoint]
                self._runtime.log.info("subscription_expired", **{log_keys.ENDPOINT: endpoint.name})
                self._delete(endpoint)


def _can_be_unused(endpoint: Endpoint) -> bool:
    settings = endpoint.settings
    return endpoint.kind is EndpointKind.TOPIC_ENDPOINT and not settings.temporary and not settings.declared
