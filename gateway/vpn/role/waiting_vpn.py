"""
A Message VPN whose store another gateway has: it asks for the store again and again, on a thread of its own.

Its clients are told who is active, as far as that is known. As soon as the store is open, the thread hands it over and
ends; whoever is handed it closes it, or makes the Message VPN of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from amqp_ext.codec import Int
from gateway import log_keys
from gateway.config import Vpn, masked
from gateway.core.alarms import Alarm, AlarmKind, Alarms
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.clock import SystemClock
from store.errors import StoreError, StoreHeld
from store.ports import Durability, Store

TRY_SECONDS: Final = 1.0
"""From one try to the next: how late it is noticed that the active gateway is gone, about."""


class OpenedStore(NamedTuple):
    """A store that is this gateway's."""

    store: Store
    durability: Durability | None
    """What its commits survive; None if it did not say."""


class WaitingVpn:
    """
    Args:
        settings: Those in effect once it is active.
        active: HOST:PORT of the gateway that is, if that is known.
        problem: Why the store could not be opened, where that is not because another gateway has it.
        open_store: Tries it with the settings; called on a thread.
        opened: Gets the store, on the loop.
        log: A logger bound to the name.
    """

    def __init__(
        self,
        name: str,
        settings: Vpn,
        active: str | None,
        problem: str | None,
        open_store: Callable[[Vpn], OpenedStore],
        opened: Callable[[OpenedStore], None],
        loop: asyncio.AbstractEventLoop,
        log: Any,
    ) -> None:
        self.name = name
        self.settings = settings
        self.active = active
        self.problem = problem
        """Why the store cannot be opened, where that is not because another gateway has it."""
        self._open_store = open_store
        self._opened = opened
        self._loop = loop
        self._log = log
        self._alarms = Alarms(self._tell_alarm)
        self._ended = threading.Event()

    def start(self) -> None:
        """Ask for the store from now on."""
        self._note(self.problem)
        self._log.info("vpn_waits", **{log_keys.ACTIVE: self.active})
        self._ask()

    def close(self) -> None:
        """Ask no more. A store that is opened just now is closed again."""
        self._ended.set()

    @property
    def alarms(self) -> list[Alarm]:
        """Those that hold now."""
        return self._alarms.active()

    @property
    def sentence(self) -> str:
        """What a person is told."""
        text = f"the Message VPN {self.name!r} waits for its store: "
        if self.problem is not None:
            return f"{text}{self.problem}"
        return f"{text}the gateway at {self.active or 'an address that is not known'} is active"

    def refusal(self, hostname: str | None = None) -> Refused:
        """
        What a client is told that wants to enter (AMQP 1.0 section 2.8.18): where to go, as far as that is known.

        Args:
            hostname: What its open frame says to the active gateway, where that has a meaning.
        """
        host, _, port = (self.active or "").rpartition(":")
        if not (host and port.isdigit()):
            return Refused(ErrorCode.REDIRECT, f"{self.sentence}; try another gateway, or again later")
        info: dict[str, Any] = {
            "network-host": host.removeprefix("[").removesuffix("]"),
            "port": Int(int(port)),
        }
        if hostname:
            info["hostname"] = hostname
        return Refused(ErrorCode.REDIRECT, f"{self.sentence}; connect there", **info)

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                opened = self._open_store(self.settings)
            except StoreHeld as held:
                self._on_loop(self._held, held.active)
            except StoreError as error:
                self._on_loop(self._failed, str(error))
            except Exception as error:
                # A mistake of ours; nobody else would hear of it, and the next try may go well.
                self._on_loop(self._failed, f"{type(error).__name__}: {error}")
            else:
                if self._ended.is_set() or not self._on_loop(self._hand_over, opened):
                    opened.store.close()
                return
            self._ended.wait(TRY_SECONDS)

    def _on_loop(self, call: Callable[..., None], *args: Any) -> bool:
        with suppress(RuntimeError):  # the loop is closed: the gateway ends
            self._loop.call_soon_threadsafe(call, *args)
            return True
        return False

    def _held(self, active: str | None) -> None:
        if active != self.active:
            self._log.info("active_gateway_changed", **{log_keys.ACTIVE: active})
        self.active = active
        self._note(None)

    def _failed(self, problem: str) -> None:
        self.active = None
        self._note(problem)

    def _hand_over(self, opened: OpenedStore) -> None:
        if self._ended.is_set():
            self._loop.run_in_executor(None, opened.store.close)
            return
        self._note(None)
        self._opened(opened)

    def _note(self, problem: str | None) -> None:
        self.problem = problem = None if problem is None else masked(problem)
        text = None if problem is None else f"the store cannot be taken over: {problem}"
        self._alarms.note(AlarmKind.STORE, "", text, SystemClock.now_ms())

    def put_off(self, problem: str) -> None:
        """The store was opened, and is closed again: it cannot be used as it is. Ask for it again after a while."""
        self._note(problem)
        self._loop.call_later(TRY_SECONDS, self._ask)

    def _ask(self) -> None:
        if not self._ended.is_set():
            threading.Thread(target=self._run, name=f"takeover {self.name}", daemon=True).start()

    def _tell_alarm(self, alarm: Alarm, is_raised: bool) -> None:
        keys = {log_keys.ALARM: alarm.kind.value, log_keys.REASON: alarm.text}
        if is_raised:
            self._log.warning("alarm_raised", **keys)
        else:
            self._log.info("alarm_cleared", **keys)
