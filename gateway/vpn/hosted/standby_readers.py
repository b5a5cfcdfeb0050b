"""
Readers are served on a standby of a store while another gateway is active, of each Message VPN whose settings say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from gateway.config import VpnStore
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.following import Following
from gateway.vpn.hosted.departures import Departures
from gateway.vpn.hosted.vpn_factory import VpnFactory, logger_of
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.role.endable_loop import EndableLoop
from gateway.vpn.role.standby_reads import StandbyReads
from gateway.vpn.role.waiting_vpn import WaitingVpn
from store.following import Followed, FollowedStore
from store.ports import StoreOptions

Follow: TypeAlias = "Callable[[str, VpnStore, StoreOptions], Followed]"
"""Called with a name, on a thread (``gateway.engines.ChosenStores.follow``)."""


class StandbyReaders:
    """
    Args:
        waiting: Message VPNs that wait for their stores, by name.
        follow: Reads a store on a standby while another gateway has it; None where nobody reads then.
    """

    def __init__(
        self,
        factory: VpnFactory,
        departures: Departures,
        waiting: Mapping[str, WaitingVpn],
        follow: Follow | None,
    ) -> None:
        self.vpns: dict[str, MessageVpn] = {}
        """Those whose logs are read here, by name."""
        self._factory = factory
        self._departures = departures
        self._waiting = waiting
        self._follow = follow
        self._loop = asyncio.get_running_loop()
        self._loops: dict[str, EndableLoop] = {}
        self._reads: dict[str, StandbyReads] = {}

    def start(self, name: str) -> None:
        """Have readers served here, if the Message VPN's settings say so, while it waits."""
        settings, follow = self._waiting[name].settings, self._follow
        store = settings.store
        if store is None or follow is None or not store.standby_reads or self._departures.is_closing:
            return
        reads = self._reads[name] = StandbyReads(
            name,
            partial(follow, name, store, self._factory.store_options(settings)),
            partial(self._begin, name),
            partial(self._end, name),
            self._loop,
            logger_of(name),
        )
        reads.start()

    def stop(self, name: str, why: str) -> None:
        """Read no more of it; readers go."""
        self._stop(name)
        self._end(name, why)

    async def close(self) -> None:
        """The gateway stops."""
        for name in list(self._reads):
            self._stop(name)
        for reading in list(self.vpns.values()):
            await reading.drop()

    def _begin(self, name: str, store: FollowedStore) -> Following:
        waiting = self._waiting[name]
        made, loop = self._factory.make_reading(name, waiting.settings, store, waiting.refusal)
        self.vpns[name] = made
        self._loops[name] = loop
        return Following(made.broker, made.cache, made.readers, made.endpoints, store.recovered.endpoints)

    def _end(self, name: str, why: str) -> None:
        """Readers go, and are sent to the active gateway when they come again, until this one reads anew."""
        made = self.vpns.pop(name, None)
        if made is None:
            return
        self._loops.pop(name).end(Refused(ErrorCode.INTERNAL, why))
        self._departures.disconnect(name, Refused(ErrorCode.CONNECTION_FORCED, f"{why}; connect again"))
        self._departures.drop(made, lambda: None)

    def _stop(self, name: str) -> None:
        reads = self._reads.pop(name, None)
        if reads is not None:
            reads.close()
