"""
Watches what commits of a Message VPN survive, and refuses messages while that is too little, where that is asked for.

The store is asked every few seconds, on a thread of its own: the engine may not answer for long, and nobody waits for
that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.runtime import Runtime
from store.errors import ReadFailed
from store.ports import Durability

ASK_SECONDS: Final = 2.0
"""From an answer to the next question: how late it is known that a standby is gone, about."""


class DurabilityWatch:
    """
    Args:
        ask: ``store.ports.Store.durability``.
        first: What it said when the store was opened; None if it could not.
        requires_standby: Whether messages are to be refused while one machine alone has them.
        name: The Message VPN's.
    """

    def __init__(
        self,
        ask: Callable[[], Durability],
        first: Durability | None,
        requires_standby: Callable[[], bool],
        runtime: Runtime,
        name: str,
    ) -> None:
        self.found = first
        """What commits survive, as far as it is known; None while the engine does not say."""
        self._ask = ask
        self._requires_standby = requires_standby
        self._loop = runtime.loop
        self._ended = threading.Event()
        self._name = name

    def start(self) -> None:
        """Ask again and again, of an engine whose answer can change."""
        if self.found is not Durability.DISK:
            threading.Thread(target=self._run, name=f"durability {self._name}", daemon=True).start()

    def close(self) -> None:
        """Ask no more."""
        self._ended.set()

    def problem(self) -> str | None:
        """What an administrator should know of; None where it is as it should be."""
        if self.found is not Durability.ONE_MACHINE:
            return None
        refused = ", and messages are refused" if self._requires_standby() else ""
        return f"no synchronous standby answers: what is accepted is on one machine only{refused}"

    def refusal(self) -> Refused | None:
        """Why no message is taken now; None when it is. Asked once a batch."""
        if self.found is not Durability.ONE_MACHINE or not self._requires_standby():
            return None
        return Refused(
            ErrorCode.ONE_MACHINE,
            "no synchronous standby answers, so the message would be on one machine only (require_standby); try again",
        )

    def _run(self) -> None:
        while not self._ended.wait(ASK_SECONDS):
            found: Durability | None = None
            with suppress(ReadFailed):
                found = self._ask()
            with suppress(RuntimeError):  # the loop is closed: the gateway ends
                self._loop.call_soon_threadsafe(self._told, found)

    def _told(self, found: Durability | None) -> None:
        self.found = found
