"""
The composition root: the one place that builds a gateway from its settings, runs it, and stops it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import uvloop

from gateway import config, sockets
from gateway.admin.server import AdminServer
from gateway.amqp.container import Container
from gateway.amqp.copy_publisher import CopyPublisher
from gateway.amqp.engine.loops import CHOSEN
from gateway.engines import ChosenStores, engine_of, files_in, with_extra
from gateway.ledger import Ledger
from gateway.logging import log_keys
from gateway.logging.lines import configure as configure_logging
from gateway.tls import TlsError
from gateway.users import Users
from gateway.vpn.clients import ClientConnection
from gateway.vpn.hosted import MessageVpns, OpenArchive, VpnPorts
from gateway.vpn.jobs.jobs import JobPorts
from gateway.vpn.runtime import Clock, Tuning, keep
from store.data_folder import DataFolder
from store.errors import StoreError
from store.following import FollowableStores
from store.ports import Archive, StoreOptions, Stores

if TYPE_CHECKING:
    from gateway.otlp import OtlpExport  # it comes with an extra

SWITCH_SECONDS: Final = 0.0005
"""How long the loop may keep the interpreter from the writer's thread: with Python's 5 ms, a commit of five steps would
wait 25 ms next to a busy loop."""

GC_THRESHOLDS: Final = (20_000, 50, 100)

M_ARENA_MAX: Final = -8
"""glibc's name for how many heaps its ``malloc`` may have (``malloc.h``)."""

EVERY_ADDRESS: Final = ("0.0.0.0", "::")

ARCHIVE_NEEDS: Final = ("numpy", "pandas")
"""Modules that pyarrow uses, pandas if it is installed. They must be visible: pyarrow takes a hidden one for broken."""

log = structlog.get_logger()


def open_archive(place: str, generation: int, options: StoreOptions) -> Archive:
    """
    The archive of a log.

    Raises:
        StoreError: What it needs is not installed.
    """
    with with_extra("archive", "cannot read the archive", place, ARCHIVE_NEEDS):
        from store.archived_log import ArchivedLog  # noqa: PLC0415 - it comes with an extra
    return ArchivedLog(place, generation, page_rows=options.page_rows, page_bytes=options.page_bytes)


def open_telemetry(settings: config.Telemetry | None) -> OtlpExport | None:
    """
    The exporter of spans; None where that is off.

    Raises:
        StoreError: What it needs is not installed, or its headers cannot be read.
    """
    if settings is None:
        return None
    cannot = "cannot send spans"
    with with_extra("telemetry", cannot, settings.endpoint):
        from gateway.otlp import OtlpExport, read_headers  # noqa: PLC0415 - it comes with an extra
    try:
        headers = read_headers(settings.headers_file)
    except (OSError, ValueError) as error:
        raise StoreError(cannot, settings.endpoint, str(error), "See telemetry.headers_file") from None
    return OtlpExport(settings.endpoint, settings.service_name, headers)


class Gateway:
    """A gateway that runs in the current event loop. ``start`` it, and ``stop`` it."""

    users: Users
    """The directory of users; set by ``start``."""

    def __init__(
        self,
        configuration: config.Configuration | config.Settings,
        *,
        stores: Callable[[Path], Stores] = files_in,
        engine: Callable[[config.VpnStore], FollowableStores] = engine_of,
        clock: Clock | None = None,
        tuning: Tuning | None = None,
        archive: OpenArchive = open_archive,
    ) -> None:
        """
        Args:
            stores: Opens the stores in a data folder.
            engine: Opens the stores of a Message VPN that names another place.
            clock: The Message VPNs' clock; the machine's, if none is given.
            tuning: How the Message VPNs portion their work; None for the usual portions.
            archive: Opens the archive of a log, at the place that the settings name.
        """
        if isinstance(configuration, config.Settings):
            configuration = config.Configuration(settings=configuration)
        self._configuration = configuration
        self._open_stores = stores
        self._engine = engine
        self._clock = clock
        self._tuning = tuning
        self._open_archive = archive
        self._services = AsyncExitStack()
        """Stops the services, the one that was started last first."""
        self._vpns: MessageVpns | None = None
        self.amqp: list[str] = []
        self.admin: list[str] = []
        self._container: Container | None = None
        self._admin_server: AdminServer | None = None
        self._reloading = asyncio.Lock()
        self._spans: OtlpExport | None = None

    async def start(self) -> None:
        """
        Open the data, then listen.

        Raises:
            store.errors.StoreError: The data cannot be used.
            OSError: An address cannot be bound.
            gateway.tls.TlsError: A certificate cannot be used.
            gateway.config.ConfigError: What administrators changed before cannot be read.
        """
        settings, services = self._configuration.settings, self._services
        folder = DataFolder(settings.data)
        services.callback(folder.release)
        if found := folder.open_to_others():
            values = {log_keys.DATA: str(folder.path), log_keys.REASON: ", ".join(found)}
            log.warning("data_open_to_others", **values)
        stores = ChosenStores(folder.path, self._open_stores, self._engine)
        try:
            self._spans = open_telemetry(settings.telemetry)
            if self._spans is not None:
                services.push_async_callback(asyncio.to_thread, self._spans.close)
            self.users = Users(settings)
            services.callback(self.users.checks.close)
            ports = VpnPorts(
                stores.of,
                self._open_archive,
                stores.follow,
                None if self._spans is None else self._spans.add,
                JobPorts(CopyPublisher, self.users.permissions_in),
                self._clock,
                self._tuning,
            )
            self._vpns = MessageVpns(
                self._configuration,
                folder.path,
                advertised_by(settings.listeners),
                lambda: self.connections,
                ports,
            )
            services.push_async_callback(self._vpns.close)
            self._vpns.start()
            self._container = Container(settings, self.users, self._vpns)
            services.push_async_callback(self._container.stop)
            self.amqp = await self._container.start()
            self._admin_server = AdminServer(self, listener=settings.admin)
            services.push_async_callback(self._admin_server.stop)
            self.admin = [await self._admin_server.start()]
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop accepting, finish the commit under way, detach links, close the files."""
        await self._services.aclose()

    async def reload(self) -> config.Reloaded:
        """
        Read the configuration again, and apply what can change while the gateway runs.

        Raises:
            ConfigError: It cannot be used, with every problem; nothing is changed.
        """
        async with self._reloading:
            assert self._container is not None and self._admin_server is not None
            fresh = await asyncio.get_running_loop().run_in_executor(None, self._configuration.read_again)
            reloaded = config.reconcile(self.settings, fresh.settings)
            self._configuration = replace(fresh, settings=reloaded.settings)
            changed_users = self.users.reload(reloaded.settings)
            for vpn in self.vpns.values():
                vpn.jobs.users_changed()
            for renew in (
                partial(self._container.reload, reloaded.settings, changed_users),
                partial(self._admin_server.reload, reloaded.settings.admin, changed_users),
            ):
                try:
                    renew()
                except TlsError as error:  # its files were good a moment ago
                    log.error("certificate_not_renewed", **{log_keys.REASON: str(error)})
            refused = await self.vpns.reconfigure(self._configuration)
            reloaded.refused += refused
            stayed = {difference.path for difference in refused}
            reloaded.applied = [one for one in reloaded.applied if one.path not in stayed]
            for difference in reloaded.applied:
                log.info("setting_changed", **{log_keys.REASON: str(difference)})
            for difference in reloaded.refused:
                log.warning("setting_not_changed", **{log_keys.REASON: str(difference)})
            return reloaded

    @property
    def settings(self) -> config.Settings:
        """All settings in effect."""
        return self._configuration.settings if self._vpns is None else self._vpns.settings

    @property
    def vpns(self) -> MessageVpns:
        """Message VPNs by name, of a gateway that was started."""
        assert self._vpns is not None
        return self._vpns

    @property
    def connections(self) -> list[ClientConnection]:
        """Connected clients (``gateway.admin.administered_gateway.AdministeredGateway``)."""
        amqp = self._container.connections if self._container is not None else ()
        http = self._admin_server.clients if self._admin_server is not None else ()
        return [*amqp, *http]

    def admit(self, address: str, user: str) -> tuple[int, Callable[[], None]]:
        """See ``gateway.admin.administered_gateway.AdministeredGateway``."""
        assert self._container is not None
        return self._container.admit(address, user)

    @property
    def ledger(self) -> Ledger:
        """The bytes that clients make the gateway hold, of a gateway that was started."""
        assert self._container is not None
        return self._container.ledger

    @property
    def refused_connections(self) -> Mapping[str, int]:
        """Connections that were refused since the start, by the name of the limit."""
        amqp = self._container.admission.refused if self._container is not None else {}
        return {**amqp, **(self._admin_server.refused if self._admin_server is not None else {})}

    @property
    def wire_loops(self) -> str:
        """Which loops do the work per message on the wire (``gateway.amqp.engine.loops``)."""
        return str(CHOSEN)

    @property
    def span_counts(self) -> Mapping[str, int]:
        """Spans since the start, by what became of them; empty where none are sent."""
        spans = self._spans
        if spans is None:
            return {}
        return {"exported": spans.exported, "dropped": spans.dropped, "failed": spans.failed}

    def problem(self, vpn: str | None = None) -> str | None:
        """See ``gateway.admin.administered_gateway.AdministeredGateway``."""
        for name, found in (self._vpns or {}).items():
            problem = found.problem() if vpn in (None, name) else None
            if problem is not None:
                return f"Message VPN {name!r}: {problem}"
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


def advertised_by(listeners: Sequence[config.Listener]) -> str:
    """HOST:PORT of the first listener, as clients on other machines find it; empty where its port is not known yet."""
    first = listeners[0]
    host = socket.gethostname() if first.host in EVERY_ADDRESS else first.host
    return config.authority(host, first.port) if first.port else ""


async def run(configuration: config.Configuration) -> None:
    """Run a gateway until SIGTERM or SIGINT; SIGHUP makes it read its configuration again."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    gateway = Gateway(configuration)
    await gateway.start()
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        keep(loop.create_task(_reload(gateway)), reloads)

    loop.add_signal_handler(signal.SIGHUP, reload)
    print(gateway.ready_line(), flush=True)
    tell_service_manager("READY=1")
    log.info(
        "ready",
        **{
            log_keys.URL: gateway.amqp,
            log_keys.DATA: str(gateway.settings.data),
            log_keys.ENGINE: sorted({vpn.engine for vpn in gateway.vpns.values()}),
            log_keys.WIRE_LOOPS: gateway.wire_loops,
        },
    )
    await stopped.wait()
    log.info("stopping")
    tell_service_manager("STOPPING=1")
    await gateway.stop()
    log.info("stopped")


def tell_service_manager(state: str) -> None:
    """
    Notify the service manager of a new state, if there is one that waits for it: systemd does, for a unit with
    ``Type=notify``. See sd_notify(3).
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as told, suppress(OSError):
        told.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
        told.send(state.encode())


async def _reload(gateway: Gateway) -> None:
    try:
        reloaded = await gateway.reload()
    except config.ConfigError as error:
        log.warning("configuration_not_read", **{log_keys.REASON: error.problems})
    else:
        counts = {log_keys.APPLIED: len(reloaded.applied), log_keys.REFUSED: len(reloaded.refused)}
        log.info("configuration_read_again", **counts)


def serve(configuration: config.Configuration) -> int:
    """Run a gateway; return the exit status."""
    _share_one_heap()  # before there is a second thread, which would take a heap of its own
    configure_logging(configuration.settings.log)
    try:
        sockets.provide_descriptors(configuration.settings.limits.max_connections)
    except sockets.TooFewDescriptors as error:
        print(f"rewind: {error}", file=sys.stderr)
        return 1
    sys.setswitchinterval(SWITCH_SECONDS)
    # All that is loaded now stays: the garbage collector need not visit it again. It runs less often, too: messages are
    # tuples of plain values, which it visits in vain.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        uvloop.run(run(configuration))
    except (config.ConfigError, StoreError, TlsError) as error:
        print(f"rewind: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        # An address cannot be bound: print the reason without its number.
        print(f"rewind: {error.strerror if error.filename is None else error}", file=sys.stderr)
        return 1
    return 0


def _share_one_heap() -> None:
    """
    Let all threads take memory from one heap: what a reader allocates and the loop frees can be used by both again.

    With a heap for each thread a gateway under mixed load takes 20 MB more. One heap is not slower: threads wait for
    the interpreter, not for the heap. Without glibc there is nothing to do.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
