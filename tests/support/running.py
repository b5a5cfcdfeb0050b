"""
A real gateway in the test's process: real sockets, real files, its own event loop on a thread; and what tests ask of it
directly, without a client.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest.mock import patch
from urllib.parse import urlsplit

import uvloop

from amqp_ext.replay_start import parse_text
from gateway.amqp import closing
from gateway.app import SWITCH_SECONDS, Gateway
from gateway.config import Configuration, Limits, Listener, ReplayLog, Settings, Vpn
from gateway.config.settings import AdminListener
from gateway.core.replay.states import Replay
from gateway.vpn.message_vpn import MessageVpn

T = TypeVar("T")

SILENCE_MS = 600_000
"""An idle timeout longer than any test: no heartbeat may wake what should have been woken without it."""

UNANSWERED_SECONDS = 0.1
"""How long a client has to answer the close of a stopping gateway: some clients are on threads of their own."""

START_SECONDS = 30
STOP_SECONDS = 30


def settings_for(data: Path, vpn: Vpn | None = None, limits: Limits | None = None, **more: Any) -> Settings:
    """Settings with one listener and the administration on free ports, and with this Message VPN as ``default``."""
    limits = limits or Limits()
    if limits.idle_timeout_ms == Limits().idle_timeout_ms:
        limits = replace(limits, idle_timeout_ms=SILENCE_MS)
    return Settings(
        data=data,
        listeners=more.pop("listeners", (Listener(port=0),)),
        admin=more.pop("admin", AdminListener(port=0)),
        vpns={"default": vpn or Vpn(), **more.pop("vpns", {})},
        limits=limits,
        **more,
    )


class ConfigurationFile:
    """The configuration file of a gateway on free ports, with the settings that every test needs."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gateway.toml"
        self._data = folder / "data"
        self.write()

    def write(self, text: str = "", *, listener: str = "port = 0", admin: str = "port = 0") -> None:
        """Write the file with this text added."""
        tables = f"{text}\n[[listener]]\n{listener}\n[admin]\n{admin}\n"
        self.path.write_text(f'data = "{self._data}"\n{tables}')


class RunningGateway:
    """A gateway from ``start`` (or the beginning of a ``with`` block) to ``stop``; it can be started again."""

    def __init__(self, settings: Settings | Configuration, **given: Any) -> None:
        """
        Args:
            given: What the test replaces in the gateway: ``stores``, ``clock``, ``tuning``.
        """
        self.settings = settings
        self._given = given
        self.url = ""
        """Where AMQP clients connect; a new port at every start."""
        self.urls: list[str] = []
        """The URL of each listener."""
        self._gateway: Gateway | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> RunningGateway:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """HOST:PORT of the AMQP listener."""
        return urlsplit(self.url).netloc

    def host_and_port(self, listener: int = 0) -> tuple[str, int]:
        """Host and port of a listener."""
        parts = urlsplit(self.urls[listener])
        return str(parts.hostname), int(parts.port or 0)

    def start(self) -> None:
        """Returns when clients can connect; raises the error that prevented the start."""
        # Clients share the interpreter with the gateway here: neither is to wait long for the other.
        sys.setswitchinterval(SWITCH_SECONDS)
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="gateway")
        self._thread.start()
        ready.result(START_SECONDS)

    def stop(self) -> None:
        """
        A clean stop, as on SIGTERM. Does nothing if the gateway does not run.

        The gateway does not wait long for its clients here: the test's own thread drives them, and it is in this
        method, so that they cannot answer. Fails if the gateway caught an error of its own: it has cost a connection.
        """
        thread, loop = self._thread, self._loop
        if thread is None or loop is None:
            return
        failures = self.call(lambda gateway: gateway._container.failures if gateway._container else 0)
        with patch.object(closing, "CLOSE_SECONDS", UNANSWERED_SECONDS):
            loop.call_soon_threadsafe(self._stopping.set)
            thread.join(STOP_SECONDS)
        assert not thread.is_alive(), "the gateway did not stop"
        self._thread = self._loop = self._gateway = None
        assert failures == 0, "the gateway made mistakes; its log says which"

    def restart(self, vpn: Vpn | None = None) -> None:
        """Stop, and start on the same files; with ``vpn``, its settings become those of ``default``."""
        self.stop()
        if vpn is not None:
            self.settings = replace(self.settings, vpns={"default": vpn})
        self.start()

    def call(self, function: Callable[[Gateway], T]) -> T:
        """Run ``function`` on the gateway's loop and return what it returns."""
        gateway, loop = self._gateway, self._loop
        assert gateway is not None and loop is not None, "the gateway is not running"
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(function(gateway))
            except BaseException as error:
                result.set_exception(error)

        loop.call_soon_threadsafe(run)
        return result.result(STOP_SECONDS)

    def run_coroutine(self, order: Callable[[Gateway], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine that ``order`` returns on the gateway's loop; returns its result."""
        work, loop = self.call(lambda gateway: (order(gateway), asyncio.get_running_loop()))
        return asyncio.run_coroutine_threadsafe(work, loop).result(STOP_SECONDS)

    # --- questions and orders of an administrator to the Message VPN ``default`` ---------------------------------

    def ask(self, question: Callable[[MessageVpn], T]) -> T:
        """The answer to a question that is asked on the gateway's loop."""
        return self.call(lambda gateway: question(gateway.vpns["default"]))

    def depth(self, endpoint: str) -> int | None:
        """The number of messages on an endpoint, unsettled ones included; None if the endpoint does not exist."""
        return self.ask(
            lambda vpn: found.depth if (found := vpn.endpoints.by_name.get(endpoint)) is not None else None
        )

    def subscriptions(self, endpoint: str) -> list[str]:
        """The topic subscriptions of an endpoint."""
        return self.ask(lambda vpn: list(vpn.broker.endpoints[endpoint].subscriptions))

    def subscribe(self, endpoint: str, subscriptions: Sequence[str]) -> None:
        """Replace the topic subscriptions of an endpoint."""
        self.ask(lambda vpn: vpn.endpoints.set_subscriptions(vpn.broker.endpoints[endpoint], subscriptions))

    def connections(self) -> int:
        """The number of open connections."""
        return self.call(lambda gateway: len(gateway._container.connections) if gateway._container else 0)

    def log_readers(self) -> int:
        """The number of attached log readers."""
        return self.ask(lambda vpn: len(vpn.readers.log_feeds))

    def flows(self, endpoint: str) -> int:
        """The number of consumers bound to an endpoint."""
        return self.ask(lambda vpn: len(vpn.broker.endpoints[endpoint].flows))

    def endpoints(self) -> set[str]:
        """The names of all endpoints."""
        return self.ask(lambda vpn: set(vpn.broker.endpoints))

    def replay_state(self, endpoint: str) -> str:
        """The state of an endpoint's replay, in Solace's words."""
        found = self.ask(lambda vpn: deepcopy(vpn.broker.endpoints[endpoint].replay))
        return "n/a" if found is None else found.state.value

    def replay(self, endpoint: str) -> Replay:
        """A copy of the current state of an endpoint's replay."""
        found = self.ask(lambda vpn: deepcopy(vpn.broker.endpoints[endpoint].replay))
        assert found is not None
        return found

    def start_replay(self, endpoint: str, start: str) -> None:
        """Start an endpoint's replay as an administrator does, whatever consumers it has."""

        async def order(gateway: Gateway) -> None:
            vpn = gateway.vpns["default"]
            found = vpn.broker.endpoints[endpoint]
            resolved = await vpn.log.resolve_start(parse_text(start), found.topics.patterns)
            vpn.replays.check(found, by_client=False)
            vpn.replays.start(found, resolved.first, None)
            await vpn.committer.committed()

        self.run_coroutine(order)

    def cancel_replay(self, endpoint: str, *, force_complete: bool = False) -> None:
        """End an endpoint's replay as an administrator does; returns when that is durable."""

        async def order(gateway: Gateway) -> None:
            vpn = gateway.vpns["default"]
            vpn.replays.cancel(vpn.broker.endpoints[endpoint], force_complete=force_complete)
            await vpn.committer.committed()

        self.run_coroutine(order)

    # --- the thread ------------------------------------------------------------------------------------------

    def _run(self, ready: Future[None]) -> None:
        try:
            uvloop.run(self._serve(ready))
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise

    async def _serve(self, ready: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._gateway = Gateway(self.settings, **self._given)
        try:
            await self._gateway.start()
        except BaseException as error:
            ready.set_exception(error)
            return
        self.urls = self._gateway.amqp
        self.url = self.urls[0]
        ready.set_result(None)
        await self._stopping.wait()
        await self._gateway.stop()


def no_log(**more: Any) -> Vpn:
    """A Message VPN whose replay log is off."""
    return Vpn(replay_log=ReplayLog(enabled=False), **more)


def trim_before(gateway: RunningGateway, message_id: int) -> None:
    """Trim on the gateway's loop, and wait until it is done."""
    trimmed = gateway.run_coroutine(lambda running: running.vpns["default"].trimmer.trim_before(message_id))
    assert trimmed >= message_id


PLAIN_HTTP: Final[dict[str, Any]] = {"trust_env": False, "verify": False, "timeout": 30}
"""Options for plain HTTP: no proxy; no certificate authorities, which take longer to load than most tests take; and a
timeout in seconds for busy machines."""
