"""
Trims the log: by itself near its quota, and when an administrator says so.

Piece by piece, each a commit of its own among those of publishers: trimming goes on at the pace of commits and never
holds them up for long (Solace, "Message Replay", section "Trimming the Replay Log").
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING, Final

import structlog

from gateway import log_keys
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log.archived import check_trimmable

if TYPE_CHECKING:
    from gateway.vpn.message_vpn import MessageVpn

log = structlog.get_logger()

TRIM_AT: Final = 0.90
"""Share of the quota past which trimming begins, as at Solace: what is left is room for the time it takes."""

TRIM_TO: Final = 0.88
"""Share at which it ends: a little below, so that it is not begun again for every message."""


class Trimmer:
    def __init__(self, vpn: MessageVpn) -> None:
        self._vpn = vpn
        self._before_id = 0
        """What an administrator asked for: everything below this goes."""
        self._is_making_room = False
        self._is_busy = False
        self._waiting: list[asyncio.Future[None]] = []
        self._log = log.bind(**{log_keys.VPN: vpn.name})

    def run(self) -> None:
        """Go on, if there is anything to trim. Called after commits."""
        broker = self._vpn.broker
        if self._is_busy:
            return
        if not self._is_making_room and broker.log_usage > TRIM_AT and broker.has_trimmable:
            self._is_making_room = True
            self._log.info("trimming_started", **{log_keys.FIRST: broker.log.first_id})
        elif self._is_making_room and broker.log_usage <= TRIM_TO:
            self._is_making_room = False
            self._log.info("trimming_ended", **{log_keys.FIRST: broker.log.first_id})
        effect = broker.trim(broker.log.next_id if self._is_making_room else self._before_id)
        if effect is None:
            # Done; or what follows is not archived yet, and it goes on when that is told.
            self._is_making_room = False
            waiting, self._waiting = self._waiting, []
            for done in waiting:
                if not done.done():
                    done.set_result(None)
            return
        self._is_busy = True
        first, stop = effect.first, effect.stop

        def committed(error: sqlite3.Error | None) -> None:
            self._is_busy = False
            if error is not None:
                # The ids stay marked: they are tried again from where the log begins.
                self._vpn.report("trim_failed", error)
                broker.trimming_below = first
                for done in self._waiting:
                    if not done.done():
                        done.set_exception(
                            Refused(ErrorCode.INTERNAL, f"the log could not be trimmed: {error}")
                        )
                self._waiting.clear()
                self._before_id = 0
                return
            broker.trimmed(effect)
            assert stop <= broker.log.first_id
            self.run()

        self._vpn.commit([effect], committed)

    async def trim_before(self, message_id: int) -> int:
        """
        Trim everything below an id, as far as it is committed; returns when that is done.

        Returns:
            The first id the log has then.

        Raises:
            Refused: PRECONDITION_FAILED, not all of it is archived, and the log keeps that; INTERNAL, the store could
                not write.
        """
        check_trimmable(self._vpn.broker, message_id)
        self._before_id = max(self._before_id, message_id)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self.run()
        await done
        return self._vpn.broker.log.first_id
