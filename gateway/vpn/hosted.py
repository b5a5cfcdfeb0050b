"""
All Message VPNs of a gateway: opens them at the start, creates, changes and deletes them while it runs, takes stores
over, and gives up lost ones.

A Message VPN whose store another gateway has waits for the store (``WaitingVpn``), and is one of ``MessageVpns`` as
soon as it has the store. When another gateway takes its store, it leaves ``MessageVpns`` and waits; nothing of its
state is kept. While it waits, readers are served from a standby of its store, if its settings say so.

Invariant: a change is durable before it takes effect, and what the configuration file names is changed there alone, see
``gateway.config.changes``. One change at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias, cast

import structlog
from pydantic import TypeAdapter, ValidationError

from gateway.config import Configuration, Difference, Settings, Vpn, VpnStore
from gateway.config.changes import (
    Changes,
    ChangesByVpn,
    administered_over,
    changed,
    read_administered,
    setting_path,
    value_of,
    write_administered,
)
from gateway.config.setting_types import VpnName
from gateway.config.vpn import without_password
from gateway.core.endpoint.settings import LaterSetting
from gateway.core.errors import ErrorCode, Refused, refusing
from gateway.core.message_cache import CacheBudget
from gateway.logging import log_keys
from gateway.vpn.clients import ClientConnection
from gateway.vpn.jobs.jobs import JobPorts
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.role import ArchivedSource, EndableLoop, OpenedStore, WaitingVpn
from gateway.vpn.runtime import MEGABYTE, Clock, Runtime, SteadyClock, SystemClock, Tuning, keep
from gateway.vpn.standby import Following, StandbyReads
from gateway.vpn.tracing import Span
from store.errors import ReadFailed, StoreError, StoreHeld, StoreTooNew
from store.following import Followed, FollowedStore
from store.ports import Archive, StoreOptions, Stores

LEAVE_SECONDS: Final = 3.0
"""How long the clients of a deposed Message VPN may take to leave: longer than a connection may take to close."""

LEFT_SECONDS: Final = 0.01

OpenArchive: TypeAlias = "Callable[[str, int, StoreOptions], Archive]"
"""Called with a place, the generation of the log, and the bounds of a page."""

StoresOf: TypeAlias = "Callable[[VpnStore | None], Stores]"
"""The stores of an engine: the one that keeps files in the data folder, or the one that a URL names."""

Follow: TypeAlias = "Callable[[str, VpnStore, StoreOptions], Followed]"
"""Called with a name, on a thread (``gateway.engines.ChosenStores.follow``)."""

log = structlog.get_logger()

_NAME: TypeAdapter[str] = TypeAdapter(VpnName)


@dataclass(frozen=True, slots=True)
class VpnPorts:
    """What a gateway gives to its Message VPNs."""

    stores_of: StoresOf
    """Where messages are kept."""
    open_archive: OpenArchive | None = None
    """Opens the archive of a log; if it is None, an archive in the settings is an error."""
    follow: Follow | None = None
    """Reads a store on a standby while another gateway has it; if it is None, no readers are served meanwhile."""
    add_span: Callable[[Span], None] | None = None
    """Takes spans of messages; None where nothing is traced."""
    jobs: JobPorts | None = None
    clock: Clock | None = None
    """By default the machine's clock, made steady."""
    tuning: Tuning | None = None


class MessageVpns(Mapping[str, MessageVpn]):
    """
    Opens all Message VPNs that are configured, and all that administrators created.

    Args:
        folder: Where changes by administrators are stored.
        advertised: HOST:PORT to which clients of other gateways are sent for a Message VPN that names none; or empty.
        connections: The connections that are open now.

    Raises:
        store.errors.StoreError: A file cannot be used; an engine is not installed; a store was written by a later
            version. If a store on other machines cannot be reached, its Message VPN waits for it.
        gateway.config.ConfigError: What administrators changed cannot be read.
    """

    def __init__(
        self,
        configuration: Configuration,
        folder: Path,
        advertised: str,
        connections: Callable[[], Iterable[ClientConnection]],
        ports: VpnPorts,
    ) -> None:
        self._configuration = configuration
        self._folder = folder
        self._factory = VpnFactory(configuration.settings, advertised, ports)
        self._departures = Departures(connections)
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._vpns: dict[str, MessageVpn] = {}
        self._waiting: dict[str, WaitingVpn] = {}
        self._readers = StandbyReaders(self._factory, self._departures, self._waiting)
        self._kept: ChangesByVpn = read_administered(folder)
        settings = administered_over(configuration.settings, self._kept, configuration.named)
        for vpn in settings.vpns.values():
            # If something is missing for it, fail now, and not after a store was opened or taken over.
            archive = self._factory.archive(vpn, 0)
            if archive is not None:
                archive.close()
        for name, vpn in settings.vpns.items():
            ports.stores_of(vpn.store)
            try:
                self._make(name, vpn, self._factory.open(name, vpn))
            except StoreHeld as held:
                self._wait(name, vpn, held.active)
            except StoreTooNew:
                raise
            except StoreError as error:
                if vpn.store is None:
                    raise
                # Other machines may be starting: if all are started together, their order must not matter.
                self._wait(name, vpn, None, str(error))

    def __getitem__(self, name: str) -> MessageVpn:
        return self._vpns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._vpns)

    def __len__(self) -> int:
        return len(self._vpns)

    @property
    def waiting(self) -> Mapping[str, WaitingVpn]:
        """Message VPNs whose stores other gateways have, by name; they are not in this mapping."""
        return self._waiting

    @property
    def reading(self) -> Mapping[str, MessageVpn]:
        """Those of the waiting ones whose logs are read here, on a standby of the store."""
        return self._readers.vpns

    def start(self) -> None:
        """Start all Message VPNs; those that wait ask for their stores from now on."""
        for vpn in self._vpns.values():
            vpn.start()
        for waiting in self._waiting.values():
            self._begin_waiting(waiting)

    async def close(self) -> None:
        """Commit what is under way and close the stores."""
        self._departures.is_closing = True
        for waiting in self._waiting.values():
            waiting.close()
        await self._readers.close()
        for vpn in list(self._vpns.values()):
            await vpn.close()
        await self._departures.close()

    @property
    def settings(self) -> Settings:
        """The configuration's settings, with the present ones of these Message VPNs."""
        return replace(
            self._configuration.settings,
            vpns={name: vpn.settings for vpns in (self._vpns, self._waiting) for name, vpn in vpns.items()},
        )

    # --- active, or waiting -----------------------------------------------------------------------------------

    def _make(self, name: str, vpn: Vpn, opened: OpenedStore) -> MessageVpn:
        made = self._vpns[name] = self._factory.make(name, vpn, opened, self._deposed)
        return made

    def _start(self, made: MessageVpn, dropped: Callable[[str], None]) -> None:
        """
        Start a Message VPN.

        Args:
            dropped: Called with the reason once its store is closed again, as it cannot be used as it is.

        Raises:
            StoreError: That is so.
        """
        try:
            made.start()
        except StoreError as error:
            del self._vpns[made.name]
            self._departures.drop(made, partial(dropped, str(error)))
            raise

    def _wait(self, name: str, vpn: Vpn, active: str | None, problem: str | None = None) -> WaitingVpn:
        factory = self._factory
        waiting = WaitingVpn(
            name,
            vpn,
            factory.runtime(name),
            partial(factory.open, name),
            partial(self._taken_over, name),
            active,
            problem,
        )
        self._waiting[name] = waiting
        return waiting

    def _begin_waiting(self, waiting: WaitingVpn) -> None:
        """Have it ask for its store from now on; readers are served meanwhile, if its settings say so."""
        waiting.start()
        self._readers.start(waiting.name)

    # --- taking over, and losing ------------------------------------------------------------------------------

    def _taken_over(self, name: str, opened: OpenedStore) -> None:
        """This gateway has got the store that a Message VPN waited for."""
        waiting = self._waiting[name]
        self._readers.stop(name, f"this gateway is the active one of the Message VPN {name!r} now")

        def put_off(why: str) -> None:
            waiting.put_off(why)
            self._readers.start(name)

        try:
            made = self._make(name, waiting.settings, opened)
        except Exception as error:
            # For example, an archive cannot be opened: the Message VPN must go on asking for its store.
            self._loop.run_in_executor(None, opened.store.close)
            put_off(f"{type(error).__name__}: {error}")
            return
        try:
            self._start(made, put_off)
        except StoreError:
            return
        del self._waiting[name]
        log.info("vpn_taken_over", **{log_keys.VPN: name, log_keys.ENGINE: made.engine})

    def _deposed(self, vpn: MessageVpn, loop: EndableLoop) -> None:
        """Another gateway has taken the store: end everything in the Message VPN, which waits again."""
        name = vpn.name
        told = Refused(
            ErrorCode.CONNECTION_FORCED,
            f"another gateway has taken the Message VPN {name!r} over; connect again",
        )
        loop.end(Refused(ErrorCode.INTERNAL, told.text))
        if self._departures.is_closing:
            return
        del self._vpns[name]
        waiting = self._wait(name, vpn.settings, None)
        self._departures.disconnect(name, told)
        self._departures.drop(vpn, partial(self._begin_waiting, waiting))

    def _active(self, name: str) -> MessageVpn:
        """
        A Message VPN that is to be changed.

        Raises:
            Refused: INTERNAL, it waits for its store; NOT_FOUND, there is no such Message VPN.
        """
        if name in self._waiting:
            raise Refused(ErrorCode.INTERNAL, self._waiting[name].sentence)
        if name not in self._vpns:
            raise Refused(ErrorCode.NOT_FOUND, f"there is no Message VPN {name!r}")
        return self._vpns[name]

    # --- what administrators do -------------------------------------------------------------------------------

    async def create(self, name: str, changes: Changes) -> MessageVpn:
        """
        Create a Message VPN, which is opened at every start from now on. A file of its name that exists is used.

        Raises:
            Refused: INVALID_FIELD, the name is invalid; ALREADY_EXISTS, the name is taken; INTERNAL, the change could
                not be stored, or the file cannot be used.
        """
        try:
            _NAME.validate_python(name)
        except ValidationError as error:
            says = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise Refused(
                ErrorCode.INVALID_FIELD, f"{name[:80]!r} is not a valid name of a Message VPN: {says}"
            ) from None
        async with self._turn:
            if name in self._vpns or name in self._waiting:
                raise Refused(ErrorCode.ALREADY_EXISTS, f"a Message VPN named {name!r} exists already")
            settings = changed(Vpn(), changes)
            # Before it is kept: a file that cannot be used would prevent the next start.
            with refusing(StoreError, code=ErrorCode.INTERNAL, saying="the Message VPN was not created: "):
                opened = self._factory.open(name, settings)
            try:
                await self._keep({**self._kept, name: dict(changes)})
            except BaseException:
                self._loop.run_in_executor(None, opened.store.close)
                raise
            vpn = self._make(name, settings, opened)
            vpn.start()
            log.info("vpn_created", **{log_keys.VPN: name})
            return vpn

    async def change(self, name: str, change: Changes | Callable[[Vpn], Changes]) -> None:
        """
        Change settings of a Message VPN, now and for every start to come.

        Args:
            change: The changed settings, or a function that makes them from the settings at this change's turn.

        Raises:
            Refused: PRECONDITION_FAILED, the configuration file names one of the settings, or the log would take
                nothing; INTERNAL, the change could not be stored.
        """
        async with self._turn:
            vpn = self._active(name)
            changes = change(vpn.settings) if callable(change) else change
            is_about_filter = any(key in ("replay_log.topics", "replay_log.filtered") for key in changes)
            changes = {key: value for key, value in changes.items() if value != value_of(vpn.settings, key)}
            for key in changes:
                self._check_ours(setting_path(name, key))
            settings = changed(vpn.settings, changes)
            policy = settings.replay_log
            if is_about_filter and policy.filtered and not policy.topics:
                raise Refused(
                    ErrorCode.PRECONDITION_FAILED,
                    "a filter without a topic would log nothing; add a topicFilterSubscription first, or disable "
                    "ingress",
                )
            if changes:
                await self._keep({**self._kept, name: {**self._kept.get(name, {}), **changes}})
                if self._vpns.get(name) is vpn:
                    self._reconfigure(vpn, settings)
                elif name in self._waiting:
                    self._waiting[name].settings = settings

    async def delete(self, name: str) -> None:
        """
        Delete a Message VPN and its file.

        Raises:
            Refused: PRECONDITION_FAILED, it is not empty or the configuration would bring it back; INTERNAL, the change
                could not be stored.
        """
        async with self._turn:
            vpn = self._active(name)
            reason = self._why_not_delete(vpn)
            if reason is not None:
                raise Refused(ErrorCode.PRECONDITION_FAILED, f"the Message VPN {name!r} stays: {reason}")
            await self._keep({other: changes for other, changes in self._kept.items() if other != name})
            del self._vpns[name]
            await vpn.close()
            self._factory.ports.stores_of(vpn.settings.store).remove(name)
            log.info("vpn_deleted", **{log_keys.VPN: name})

    def _why_not_delete(self, vpn: MessageVpn) -> str | None:
        broker = vpn.broker
        if vpn.name == "default":
            return "it is for clients that name no Message VPN"
        if setting_path(vpn.name) in self._configuration.named or vpn.name not in self._kept:
            return "the configuration names it; remove it there first, then delete it"
        users = [name for name, user in self._configuration.settings.users.items() if vpn.name in user.vpns]
        if users:
            return (
                f"{', '.join(users[:3])} may enter it; remove it from their `vpns` and run `rewind "
                "reload` first"
            )
        if vpn.settings.enabled:
            return "it is enabled; disable it first"
        if self._departures.has_clients(vpn.name):
            return "its clients are still leaving; try again"
        if broker.endpoints:
            names = ", ".join(sorted(broker.endpoints)[:3])
            return f"it still has queues or topic endpoints, {len(broker.endpoints)} in all: {names}; delete them first"
        if broker.log.first_id < broker.log.next_id:
            return "its replay log has messages; trim it first, as with `rewind log trim live`"
        return None

    def _check_ours(self, path: str) -> None:
        if path in self._configuration.named:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"{path} is set in {self._configuration.file}, which is read at every start; change it there "
                "and run `rewind reload`",
            )

    async def _keep(self, kept: ChangesByVpn) -> None:
        write = asyncio.get_running_loop().run_in_executor(None, write_administered, self._folder, kept)
        with refusing(OSError, code=ErrorCode.INTERNAL, saying="the change could not be stored: "):
            await asyncio.shield(write)
        self._kept = kept

    def _reconfigure(self, vpn: MessageVpn, settings: Vpn) -> None:
        vpn.reconfigure(settings)
        if not settings.enabled:
            refused = Refused(ErrorCode.CONNECTION_FORCED, f"the Message VPN {vpn.name!r} was disabled")
            self._departures.disconnect(vpn.name, refused)

    # --- a configuration that was read again ------------------------------------------------------------------

    async def reconfigure(self, configuration: Configuration) -> list[Difference]:
        """
        Make these the settings in effect.

        Returns:
            The differences that could not be applied, as other queues have these names, or a store cannot be opened;
            everything else is applied.
        """
        async with self._turn:
            self._configuration = configuration
            self._factory.configure(configuration.settings)
            named = configuration.named
            # An administrator may have made a change since the configuration was read: use what is kept now.
            vpns = administered_over(configuration.settings, self._kept, named).vpns
            refused: list[Difference] = []
            for vpn in (*self._vpns.values(), *self._readers.vpns.values()):
                vpn.set_limits(configuration.settings.limits, configuration.settings.alarms)
            for name, settings in vpns.items():
                found, waiting = self._vpns.get(name), self._waiting.get(name)
                if waiting is not None:
                    if waiting.settings != settings:
                        self._readers.stop(name, "the configuration has changed")
                        waiting.settings = settings
                        self._readers.start(name)
                elif found is None:
                    if setting_path(name) in named or name in self._kept:
                        try:
                            self._begin(name, settings)
                        except StoreError as error:
                            reason = f"cannot be opened, as {error}"
                            refused.append(Difference(setting_path(name), "closed", "open", reason))
                elif found.settings != settings:
                    queues = found.endpoints.redeclare(found.settings.queues, settings.queues, refused)
                    self._reconfigure(found, replace(settings, queues=queues))
            return refused

    def _begin(self, name: str, settings: Vpn) -> None:
        """Open a Message VPN that is new in the configuration; if its store may block, it waits for it."""
        if settings.store is None:
            self._start(self._make(name, settings, self._factory.open(name, settings)), lambda why: None)
        else:
            self._begin_waiting(self._wait(name, settings, None))


class VpnFactory:
    """
    Args:
        settings: The gateway's; ``configure`` replaces them.
        advertised: HOST:PORT to which clients of other gateways are sent for a Message VPN that names none; or empty.
    """

    def __init__(self, settings: Settings, advertised: str, ports: VpnPorts) -> None:
        self.ports = ports
        self._settings = settings
        self._advertised = advertised
        self._loop = asyncio.get_running_loop()
        self._cache_budget = CacheBudget(settings.limits.tail_bytes)

    def configure(self, settings: Settings) -> None:
        """The gateway's settings are these from now on."""
        self._settings = settings

    def store_options(self, vpn: Vpn) -> StoreOptions:
        """How a store is opened."""
        limits, store = self._settings.limits, self._settings.store
        return StoreOptions(
            page_rows=limits.read_page_rows,
            page_bytes=limits.read_page_bytes,
            read_threads=store.read_threads,
            checkpoint_bytes=store.checkpoint_mb * MEGABYTE,
            wal_limit_bytes=store.wal_limit_mb * MEGABYTE,
            synchronous=store.synchronous,
            index=vpn.replay_log.index,
            priorities={name: queue.settings.priorities for name, queue in vpn.queues.items()},
            advertise=(vpn.store.advertise if vpn.store is not None else None) or self._advertised,
        )

    def open(self, name: str, vpn: Vpn) -> OpenedStore:
        """Open the store, and ask what its commits survive. Blocks; any thread may call it."""
        now_ms = (self.ports.clock or SystemClock()).now_ms()
        with _of_this_version(name):
            store = self.ports.stores_of(vpn.store).open(name, now_ms, self.store_options(vpn))
        durability = None
        with suppress(ReadFailed):
            durability = store.durability()
        return OpenedStore(store, durability)

    def archive(self, vpn: Vpn, generation: int) -> Archive | None:
        """The archive of a log, if it has one."""
        if vpn.archive is None:
            return None
        assert self.ports.open_archive is not None
        return self.ports.open_archive(vpn.archive.read_at, generation, self.store_options(vpn))

    def archived(self, name: str, vpn: Vpn) -> ArchivedSource | None:
        """The input of the archiver that the gateway runs; None if it runs none."""
        if vpn.archive is None or vpn.archive.to is None:
            return None
        if vpn.store is None:
            log = {"path": str(self._settings.data), "messageVpn": name}
            return ArchivedSource(log, vpn.archive.to, vpn.archive.age_seconds)
        url, password = without_password(vpn.store.url)
        log = {"dsn": url, "messageVpn": name}
        if vpn.store.password_file is not None:
            log["passwordFile"] = str(vpn.store.password_file)
        return ArchivedSource(log, vpn.archive.to, vpn.archive.age_seconds, password)

    def make(
        self, name: str, vpn: Vpn, opened: OpenedStore, deposed: Callable[[MessageVpn, EndableLoop], None]
    ) -> MessageVpn:
        """
        Make the Message VPN of a store.

        Args:
            deposed: Called once another gateway has taken the store.
        """
        settings, log = self._settings, opened.store.recovered.log
        endable = None if vpn.store is None else EndableLoop(self._loop)
        runtime = self.runtime(name, endable, log.last_time_ms)
        opened = opened._replace(archive=self.archive(vpn, log.generation), source=self.archived(name, vpn))
        with _of_this_version(name):
            made = MessageVpn(name, vpn, settings.limits, opened, runtime, self.ports.jobs)
        made.set_limits(settings.limits, settings.alarms)
        if endable is not None:
            made.tell_when_deposed(partial(deposed, made, endable))
        return made

    def make_reading(
        self, name: str, vpn: Vpn, store: FollowedStore, elsewhere: Callable[[], Refused]
    ) -> tuple[MessageVpn, EndableLoop]:
        """
        Make a Message VPN that only reads, on a standby of its store; returned with the loop that ends it.

        Args:
            elsewhere: The error for a client that wants more than that.
        """
        endable, log = EndableLoop(self._loop), store.recovered.log
        runtime = replace(self.runtime(name, endable, log.last_time_ms), add_span=None)
        opened = OpenedStore(store, archive=self.archive(vpn, log.generation))
        return MessageVpn(name, vpn, self._settings.limits, opened, runtime, elsewhere=elsewhere), endable

    def runtime(self, name: str, loop: EndableLoop | None = None, last_time_ms: int = 0) -> Runtime:
        """
        What a Message VPN of this name runs on.

        Args:
            loop: The gateway's, if none is given.
            last_time_ms: The newest time that a message of it was stamped with.
        """
        ports, telemetry = self.ports, self._settings.telemetry
        return Runtime(
            self._loop if loop is None else cast("asyncio.AbstractEventLoop", loop),
            structlog.get_logger(**{log_keys.VPN: name}),
            ports.clock or SteadyClock(last_time_ms),
            ports.tuning or Tuning(),
            self._cache_budget,
            ports.add_span,
            0.0 if telemetry is None else telemetry.sample_ratio,
        )


@contextmanager
def _of_this_version(vpn: str) -> Iterator[None]:
    """Report an unknown setting of an endpoint as that of a later version."""
    try:
        yield
    except LaterSetting as error:
        raise StoreTooNew(
            "cannot open",
            f"the store of the Message VPN {vpn!r}",
            error,
            "It was written by a later version: use that version",
        ) from error


@dataclass(eq=False)
class StandbyReaders:
    _factory: VpnFactory
    _departures: Departures
    _waiting: Mapping[str, WaitingVpn]
    """Message VPNs that wait for their stores, by name."""
    vpns: dict[str, MessageVpn] = field(default_factory=dict)
    """The Message VPNs whose logs are read here, by name."""
    _loops: dict[str, EndableLoop] = field(default_factory=dict)
    _reads: dict[str, StandbyReads] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Serve readers here while the Message VPN waits, if its settings say so."""
        settings, follow = self._waiting[name].settings, self._factory.ports.follow
        store = settings.store
        if store is None or follow is None or not store.standby_reads or self._departures.is_closing:
            return
        if name in self._reads:
            return  # a reload began them, before the last departure had ended
        reads = self._reads[name] = StandbyReads(
            name,
            self._factory.runtime(name),
            partial(follow, name, store, self._factory.store_options(settings)),
            partial(self._begin, name),
            partial(self._end, name),
        )
        reads.start()

    def stop(self, name: str, why: str) -> None:
        """End the reads of a Message VPN; its readers are disconnected."""
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
        return Following(made, store.recovered.endpoints)

    def _end(self, name: str, why: str) -> None:
        """Disconnect readers; until this gateway reads again, it sends them to the active one when they connect."""
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


class Departures:
    """
    Args:
        connections: The connections that are open now.
    """

    def __init__(self, connections: Callable[[], Iterable[ClientConnection]]) -> None:
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._dropping: set[asyncio.Task[None]] = set()
        """Tasks that close deposed Message VPNs."""
        self.is_closing = False
        """The gateway stops: nothing happens after a departure."""

    async def close(self) -> None:
        """Wait for all departures."""
        if self._dropping:
            await asyncio.wait(self._dropping)

    def has_clients(self, name: str) -> bool:
        """Whether some client has the Message VPN open."""
        return any(connection.vpn_name == name for connection in self._connections())

    def disconnect(self, name: str, refused: Refused) -> None:
        """Close the connections of its clients with an error."""
        for connection in list(self._connections()):
            if connection.vpn_name == name:
                connection.stop(refused)

    def drop(self, vpn: MessageVpn, then: Callable[[], None]) -> None:
        """Close the store of a deposed Message VPN once its clients are gone, and then call ``then``."""

        async def drop() -> None:
            until = self._loop.time() + LEAVE_SECONDS
            while self._loop.time() < until and self.has_clients(vpn.name):
                await asyncio.sleep(LEFT_SECONDS)
            await vpn.drop()
            if not self.is_closing:
                then()

        keep(self._loop.create_task(drop()), self._dropping)
