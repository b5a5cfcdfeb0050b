"""
Which gateway has the store of a Message VPN: the lease of the active gateway, the loop that ends when the store is
lost, and the Message VPN that waits for the store.

A deposed gateway cannot commit, but it has messages in memory that the new active gateway delivers as well. So a
gateway delivers nothing if its newest commit known to have succeeded began longer ago than the lease lasts (``Lease``),
and nothing that it scheduled happens once another gateway has the store (``EndableLoop``). A waiting gateway asks for
the store again and again, on a thread of its own, and tells clients which gateway is active, if that is known
(``WaitingVpn``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from amqp_ext.codec import Int
from gateway.config import Vpn, masked
from gateway.core.alarms import AlarmKind, Alarms
from gateway.core.errors import ErrorCode, Refused
from gateway.logging import log_keys
from gateway.vpn.runtime import Runtime, ThreadedService, keep, log_alarm
from store.errors import StoreError, StoreHeld
from store.ports import Archive, Durability, Store

LOOK_SECONDS: Final = 0.1
"""From one look at a lease that ran out to the next: it may hold again."""

TRY_SECONDS: Final = 1.0
"""From one try to the next: about how late the loss of the active gateway is noticed."""


@dataclass(eq=False)
class Lease:
    _confirmed_at: Callable[[], float]
    """``store.ports.Writer.confirmed_at``."""
    _seconds: Callable[[], float]
    """How long it lasts."""
    _loop: asyncio.AbstractEventLoop
    """The loop that asks for the lease."""
    _monotonic: Callable[[], float] = time.monotonic
    """The clock of ``confirmed_at``."""
    _has_ended: bool = False
    _waiting: dict[Callable[[], None], None] = field(default_factory=dict)
    _timer: asyncio.TimerHandle | None = None

    @property
    def age_seconds(self) -> float:
        """Time since the newest commit that is known to have succeeded began."""
        return max(0.0, self._monotonic() - self._confirmed_at())

    def holds(self) -> bool:
        """Whether something may be delivered now. Asked once a batch."""
        return not self._has_ended and self._monotonic() - self._confirmed_at() < self._seconds()

    def wait(self, resume: Callable[[], None]) -> None:
        """The lease does not hold: call ``resume`` once when it holds again, however often it was given."""
        self._waiting[resume] = None
        if self._timer is None and not self._has_ended:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def forget(self, resume: Callable[[], None]) -> None:
        """Do not call ``resume`` any more."""
        self._waiting.pop(resume, None)

    def end(self) -> None:
        """Another gateway has the store: the lease never holds again."""
        self._has_ended = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if not self.holds():
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
            return
        waiting, self._waiting = self._waiting, {}
        for resume in waiting:
            resume()


class EndableLoop:
    """What a Message VPN uses of an event loop (``asyncio.AbstractEventLoop``)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.time = loop.time
        self.run_in_executor = loop.run_in_executor
        """It works after ``end``, too: the store is closed by it."""
        self._error: Exception | None = None
        """Why the loop has ended; None while it runs."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._futures: WeakSet[asyncio.Future[Any]] = WeakSet()

    def end(self, error: Exception) -> None:
        """
        Nothing that was scheduled here happens any more.

        Args:
            error: The result of all futures that are not done.
        """
        self._error = error
        for task in list(self._tasks):
            task.cancel()
        for future in list(self._futures):
            _fail(future, error)

    def _unless_ended(self, callback: Callable[..., object], *args: Any) -> None:
        if self._error is None:
            callback(*args)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        return self._loop.call_soon(self._unless_ended, callback, *args)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        return self._loop.call_later(delay, self._unless_ended, callback, *args)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        return self._loop.call_soon_threadsafe(self._unless_ended, callback, *args)

    def create_future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._error is None:
            self._futures.add(future)
        else:
            _fail(future, self._error)
        return future

    def create_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = keep(self._loop.create_task(work), self._tasks)
        if self._error is not None:
            task.cancel()
        return task


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # retrieved: asyncio need not report that nobody awaits it


@dataclass(frozen=True, slots=True)
class ArchivedSource:
    """
    The input of an archiver.

    Attributes:
        log: Options of ``spark_bridge.options``: where the log is stored.
        to: The archive.
        age_seconds: The age at which a message is archived, however few there are.
        password: The database's; it goes into the environment, which only this operating-system user can read.
    """

    log: Mapping[str, str]
    to: str
    age_seconds: float
    password: str | None = field(default=None, repr=False)


class OpenedStore(NamedTuple):
    """A store that this gateway owns, or one that it follows."""

    store: Store
    durability: Durability | None = Durability.DISK
    """What its commits survive; None if it did not say."""
    archive: Archive | None = None
    """The archive of its log; None if there is none."""
    source: ArchivedSource | None = None
    """The input of the archiver that runs here; None if none runs."""


class WaitingVpn(ThreadedService):
    """
    Args:
        settings: Those in effect once this gateway is active.
        open_store: Tries to open the store with the settings; called on a thread.
        opened: Gets the store, on the loop.
        active: HOST:PORT of the active gateway, if it is known.
        problem: Why the store could not be opened, if the reason is not that another gateway has it.
    """

    def __init__(
        self,
        name: str,
        settings: Vpn,
        runtime: Runtime,
        open_store: Callable[[Vpn], OpenedStore],
        opened: Callable[[OpenedStore], None],
        active: str | None,
        problem: str | None,
    ) -> None:
        super().__init__(runtime, f"takeover {name}")
        self.name = name
        self.settings = settings
        self.active = active
        self.problem = problem
        """Why the store cannot be opened, if the reason is not that another gateway has it."""
        self.alarms = Alarms(partial(log_alarm, runtime.log))
        self._open_store = open_store
        self._opened = opened
        self._log = runtime.log

    def start(self) -> None:
        """Ask for the store from now on."""
        self._note(self.problem)
        self._log.info("vpn_waits", **{log_keys.ACTIVE: self.active})
        super().start()

    @property
    def sentence(self) -> str:
        """The state as text, for people."""
        text = f"the Message VPN {self.name!r} waits for its store: "
        if self.problem is not None:
            return f"{text}{self.problem}"
        return f"{text}the gateway at {self.active or 'an unknown address'} is active"

    def refusal(self, hostname: str | None = None) -> Refused:
        """
        The error for a client that opens this Message VPN (AMQP 1.0 section 2.8.18): where to go, if that is known.

        Args:
            hostname: The hostname for its open frame at the active gateway, if it needs one.
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
        while not self._has_ended.is_set():
            try:
                opened = self._open_store(self.settings)
            except StoreHeld as held:
                self._tell(self._held, held.active)
            except StoreError as error:
                self._tell(self._failed, str(error))
            except Exception as error:
                # It may be a bug of ours, which nobody else would report; the next try may succeed.
                self._tell(self._failed, f"{type(error).__name__}: {error}")
            else:
                if self._has_ended.is_set() or not self._tell(self._hand_over, opened):
                    opened.store.close()
                return
            self._has_ended.wait(TRY_SECONDS)

    def _held(self, active: str | None) -> None:
        if active != self.active:
            self._log.info("active_gateway_changed", **{log_keys.ACTIVE: active})
        self.active = active
        self._note(None)

    def _failed(self, problem: str) -> None:
        self.active = None
        self._note(problem)

    def _hand_over(self, opened: OpenedStore) -> None:
        if self._is_closed:
            self._loop.run_in_executor(None, opened.store.close)
            return
        self._note(None)
        self._opened(opened)

    def _note(self, problem: str | None) -> None:
        self.problem = problem = None if problem is None else masked(problem)
        text = None if problem is None else f"the store cannot be taken over: {problem}"
        self.alarms.note(AlarmKind.STORE, "", text, self._runtime.clock.now_ms())

    def put_off(self, problem: str) -> None:
        """The store was opened and closed again, as it cannot be used as it is. Ask for it again after a while."""
        self._note(problem)
        self._after(TRY_SECONDS, super().start)
