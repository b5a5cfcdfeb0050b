"""Consoles that are open: each asks for what its overview shows, and has a live tail of the log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from urllib.request import urlopen

VPN = "/SEMP/v2/monitor/msgVpns/default"
LOG = f"{VPN}/replayLogs/default"
POLLED = {
    LOG: 2.0,
    f"{VPN}/alarms": 2.0,
    f"{VPN}/replays": 2.0,
    f"{VPN}/rates": 5.0,
    f"{VPN}/refusals": 5.0,
    f"{LOG}/plan": 10.0,
    f"{LOG}/histogram?buckets=200": 10.0,
}
"""What an overview asks for, and how often, in seconds."""

TICK_S = 1.0
PIECE_BYTES = 64 * 1024


class Consoles:
    """So many from the beginning of a ``with`` block to its end; an error ends the run at the end of the block."""

    def __init__(self, admin: str, count: int) -> None:
        self._admin = admin
        self._over = threading.Event()
        self._error: Exception | None = None
        self._open = threading.Barrier(2 * count + 1)
        self.tailed_bytes = 0
        """What came on live tails."""
        works = (self._poll, self._tail)
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in works * count
        ]

    def __enter__(self) -> Consoles:
        for thread in self._threads:
            thread.start()
        self._open.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._error = error
            self._open.abort()

    def _poll(self) -> None:
        due = dict.fromkeys(POLLED, 0.0)
        now, is_first = 0.0, True
        while not self._over.is_set():
            for path, at in due.items():
                if at <= now:
                    with urlopen(self._admin + path) as answer:
                        answer.read()
                    due[path] = now + POLLED[path]
            if is_first:
                self._open.wait()
                is_first = False
            self._over.wait(TICK_S)
            now += TICK_S

    def _tail(self) -> None:
        with urlopen(f"{self._admin}{LOG}/live") as events:
            self._open.wait()
            # Once nothing is published, what comes next is a heartbeat, within seconds.
            while not self._over.is_set():
                piece = events.read1(PIECE_BYTES)
                if not piece:
                    break
                self.tailed_bytes += len(piece)
