"""
The composition root: the one place that builds a gateway from its settings, runs it, and stops it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from typing import Final

import structlog
import uvloop

from gateway import log_keys, logs
from gateway.admin.http import AdminServer
from gateway.admin.semp.resources import ClientConnection
from gateway.amqp.listener import Container
from gateway.config import Settings
from gateway.tls import TlsError
from gateway.vpn.message_vpn import MessageVpn
from store.database import DataFolder
from store.errors import StoreError

SWITCH_SECONDS: Final = 0.0005
"""How long the loop may keep the interpreter from the writer's thread: with Python's 5 ms, a commit that has five
steps to take beside a busy loop would wait 25 ms for its turns."""

GC_THRESHOLDS: Final = (20_000, 50, 100)

log = structlog.get_logger()


class Gateway:
    """A gateway that runs in the current event loop. ``start`` it, and ``stop`` it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.vpns: dict[str, MessageVpn] = {}
        self.amqp: list[str] = []
        self.admin: list[str] = []
        self._folder: DataFolder | None = None
        self._container: Container | None = None
        self._admin_server: AdminServer | None = None

    async def start(self) -> None:
        """
        Open the data, then listen.

        Raises:
            store.errors.StoreError: The data cannot be used.
            OSError: An address cannot be bound.
            gateway.tls.TlsError: A certificate cannot be used.
        """
        settings = self.settings
        self._folder = DataFolder(settings.data)
        try:
            for name, vpn in settings.vpns.items():
                self.vpns[name] = MessageVpn(name, vpn, settings.limits, settings.store, self._folder)
            for running in self.vpns.values():
                running.start()
            self._container = Container(settings, self.vpns)
            self.amqp = await self._container.start()
            self._admin_server = AdminServer(self, self, listener=settings.admin)
            self.admin = await self._admin_server.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop accepting, finish the commit under way, detach links, close the files."""
        if self._admin_server is not None:
            await self._admin_server.stop()
        if self._container is not None:
            await self._container.stop()
        for vpn in self.vpns.values():
            await vpn.close()
        if self._folder is not None:
            self._folder.release()

    @property
    def connections(self) -> list[ClientConnection]:
        """Open AMQP connections (``gateway.admin.semp.resources.Administered``)."""
        return list(self._container.connections) if self._container is not None else []

    def problem(self) -> str | None:
        """Why the gateway is not ready to serve; None when it is (``gateway.admin.http.Health``)."""
        for name, vpn in self.vpns.items():
            if vpn.store_problem is not None:
                return f"Message VPN {name!r}: {vpn.store_problem}"
        return None

    def ready_line(self) -> str:
        """What is printed when the gateway is ready, for programs that start it."""
        return json.dumps(
            {
                "event": "ready",
                "amqp": self.amqp,
                "admin": self.admin[0] if self.admin else None,
                "data": str(self.settings.data.absolute()),
                "pid": os.getpid(),
            }
        )


async def run(settings: Settings) -> None:
    """Run a gateway until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    gateway = Gateway(settings)
    await gateway.start()
    print(gateway.ready_line(), flush=True)
    log.info("ready", **{log_keys.URL: gateway.amqp, log_keys.DATA: str(settings.data)})
    await stopped.wait()
    log.info("stopping")
    await gateway.stop()
    log.info("stopped")


def serve(settings: Settings) -> int:
    """Run a gateway; the exit status."""
    logs.configure(settings.log)
    sys.setswitchinterval(SWITCH_SECONDS)
    # What is loaded now stays: the collector need not look at it again. Messages are tuples of plain values, which it
    # visits in vain, so it comes less often.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        uvloop.run(run(settings))
    except (StoreError, TlsError, OSError) as error:
        print(f"rewind: {error}", file=sys.stderr)
        return 1
    return 0
