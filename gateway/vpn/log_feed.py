"""
Carries the log to one log reader's link: as much as the link takes, history first, then live.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from gateway.core.errors import ErrorCode, Refused
from gateway.core.log_reader import LogReader
from gateway.vpn.log_source import LogSource

if TYPE_CHECKING:
    from gateway.vpn.links import ConsumingLink
    from gateway.vpn.message_vpn import MessageVpn

NO_ATTEMPTS: Mapping[int, int] = MappingProxyType({})

SLICE_ROWS = 256
"""Rows sent before the link is asked again whether it can take more."""


class LogFeed:
    def __init__(
        self, vpn: MessageVpn, reader: LogReader, link: ConsumingLink, patterns: Sequence[str]
    ) -> None:
        self.reader = reader
        self._link = link
        self._vpn = vpn
        self._source = LogSource(vpn.tail, vpn.reader, reader.position, patterns, self._woken)
        self._closed = False

    def run(self) -> None:
        """Send while the link takes it and the log has more. Called when credit, room or messages came."""
        if self._closed:
            return
        reader, link, source = self.reader, self._link, self._source
        tail = self._vpn.tail
        while not reader.is_finished:
            room = link.room()
            if room <= 0:
                return
            taken = source.take(min(room, SLICE_ROWS))
            if taken is None:
                if source.is_at_end:
                    link.idle()
                return
            rows, position = taken
            chosen, is_end = reader.offer(rows, position, tail.next_id)
            if chosen:
                link.send(chosen, NO_ATTEMPTS, chosen[-1][0] if is_end else None)
        self.close()
        link.finish()

    def close(self) -> None:
        self._closed = True
        self._vpn.forget_log_feed(self)

    def _woken(self, error: BaseException | None) -> None:
        if self._closed:
            return
        if error is not None:
            self.close()
            self._link.refuse(
                Refused(ErrorCode.INTERNAL, "the replay log could not be read; the gateway's log says why")
            )
            self._vpn.report("log_read_failed", error)
            return
        self.run()
