"""
A store that two gateways share: the test's double of a database on another machine.

SQLite keeps the data. The double adds what such a database has and a file has not: only one gateway at a time has the
store of a Message VPN, another gateway may take it away, commits may be delayed for as long as the test wants, and a
standby may exist or not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.config import VpnStore
from store.errors import Deposed, ReadFailed, StoreError, StoreHeld, WriteFailed
from store.ports import Batch, Durability, Histogram, OnCommit, Reader, Recovered, StoreOptions
from store.sqlite.store import SqliteStore, SqliteStores
from store.sqlite.writer import SqliteWriter

URL = "postgresql://rewind:secret@a,b/double"
"""The double's URL in settings."""


NEWS = Batch((), 0)
"""An empty batch: makes a writer that has nothing to write notice that it was deposed."""


class SharedDatabase:
    """What the gateways share, and what a test does to it. Any thread may call its methods."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.files = SqliteStores(folder)
        self.lock = threading.RLock()
        self.holders: dict[str, SharedStore | str] = {}
        """By Message VPN: the store that a gateway holds, or the address of a holder outside this test."""
        self.files_open: set[str] = set()
        """Message VPNs whose files a gateway, even a deposed one, still has open: this process opens no file twice."""
        self.durability = Durability.TWO_MACHINES
        self.fault: str | None = None
        """The reason why a store cannot be opened; None if it can."""
        self._answers = threading.Event()
        self._answers.set()
        self._cut_at: float | None = None

    def engine(self, settings: VpnStore) -> SharedStores:
        """The stores for one gateway: ``RunningGateway(settings, engine=database.engine)``."""
        assert settings.url == URL
        return SharedStores(self)

    def take_away(self, vpn: str = "default", active: str | None = None, *, tell: bool = True) -> None:
        """
        Another gateway takes over.

        Args:
            active: The address of the new holder, which holds the store until ``release``; None leaves the store free.
            tell: The deposed gateway notices immediately; otherwise it notices with its next batch.
        """
        with self.lock:
            holder = self.holders.pop(vpn)
            assert isinstance(holder, SharedStore)
            if active is not None:
                self.holders[vpn] = active
            holder.depose(tell=tell)

    def hold(self, active: str, vpn: str = "default") -> None:
        """A gateway outside this test holds the store."""
        with self.lock:
            self.holders[vpn] = active

    def release(self, vpn: str = "default") -> None:
        """The holder outside this test is gone."""
        with self.lock:
            del self.holders[vpn]

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Until the end of the block no commit is written or answered."""
        self._cut_at = time.monotonic()
        self._answers.clear()
        try:
            yield
        finally:
            self._cut_at = None
            self._answers.set()

    @property
    def confirmed_at(self) -> float:
        """The time of the last confirmed commit: an idle writer commits all the time."""
        return time.monotonic() if (cut_at := self._cut_at) is None else cut_at

    def wait_until_it_answers(self, ended: threading.Event) -> bool:
        """Called by a writer with a batch: waits until commits work again; False if ``ended`` is set first."""
        while not self._answers.wait(0.01):
            if ended.is_set():
                return False
        return True


class SharedStores:
    """The stores of one gateway."""

    def __init__(self, database: SharedDatabase) -> None:
        self._database = database

    def open(self, vpn: str, now_ms: int, options: StoreOptions) -> SharedStore:
        """See ``store.ports.Stores.open``."""
        database = self._database
        with database.lock:
            if database.fault is not None:
                raise StoreError("cannot open", URL, database.fault, "Mend it")
            holder = database.holders.get(vpn)
            if holder is not None:
                active = holder if isinstance(holder, str) else holder.advertise
                raise StoreHeld("cannot open", vpn, active or None)
            if vpn in database.files_open:
                raise StoreHeld("cannot open", vpn, None)
            database.files_open.add(vpn)
            inner = database.files.open(vpn, now_ms, options)
            opened = database.holders[vpn] = SharedStore(database, vpn, inner, options.advertise)
            return opened

    def remove(self, vpn: str) -> None:
        """See ``store.ports.Stores.remove``."""
        self._database.files.remove(vpn)


class SharedStore:
    """The store of one Message VPN, as opened by one gateway."""

    engine = "a double"

    def __init__(self, database: SharedDatabase, vpn: str, inner: SqliteStore, advertise: str) -> None:
        self.advertise = advertise
        self._database = database
        self._vpn = vpn
        self._inner = inner
        self._writer: SharedWriter | None = None

    @property
    def place(self) -> str:
        return f"a double of {self._inner.place}"

    @property
    def recovered(self) -> Recovered:
        return self._inner.recovered

    @property
    def reader(self) -> Reader:
        return self._inner.reader

    def start_writer(self, on_commit: OnCommit) -> SharedWriter:
        """See ``store.ports.Store.start_writer``."""
        self._writer = SharedWriter(self._database, self._inner.start_writer, on_commit)
        return self._writer

    def scrub(self, seconds: float) -> bool:
        """See ``store.ports.Store.scrub``."""
        return self._inner.scrub(seconds)

    def durability(self) -> Durability:
        """What the test has set."""
        if self._database.fault is not None:
            raise ReadFailed(self._database.fault)
        return self._database.durability

    def depose(self, *, tell: bool) -> None:
        """Another gateway holds the store now."""
        assert self._writer is not None
        self._writer.depose(tell=tell)

    def close(self) -> None:
        """See ``store.ports.Store.close``."""
        if self._writer is not None:
            self._writer.close()
        self._inner.close()
        with self._database.lock:
            self._database.files_open.discard(self._vpn)
            if self._database.holders.get(self._vpn) is self:
                del self._database.holders[self._vpn]


class SharedWriter:
    """Passes batches to SQLite's writer one by one, as long as its gateway holds the store."""

    def __init__(
        self,
        database: SharedDatabase,
        start: Callable[[OnCommit], SqliteWriter],
        on_commit: OnCommit,
    ) -> None:
        self._database = database
        self._on_commit = on_commit
        self._inner = start(self._committed)
        self._done = threading.Semaphore(0)
        self._queue: list[Batch] = []
        self._changed = threading.Condition()
        self._is_deposed = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shared writer", daemon=True)
        self._thread.start()

    @property
    def confirmed_at(self) -> float:
        return self._database.confirmed_at

    @property
    def commit_seconds(self) -> Histogram:
        return self._inner.commit_seconds

    def submit(self, batch: Batch) -> None:
        """See ``store.ports.Writer.submit``."""
        with self._changed:
            self._queue.append(batch)
            self._changed.notify()

    def commit_now(
        self, batch: Batch, answer: Callable[[], None] = lambda: None
    ) -> tuple[bool, WriteFailed | None]:
        """Always declines: the loop's thread must not wait for a round trip to another machine."""
        return False, None

    def depose(self, *, tell: bool) -> None:
        """From now on nothing is written; returns when no write is in progress."""
        with self._changed:
            self._is_deposed = True
            if tell:
                self._queue.append(NEWS)
            self._changed.notify()
        self._inner.close()

    def close(self) -> None:
        """Commit what was submitted as far as possible, and end."""
        self._ended.set()
        with self._changed:
            self._changed.notify()
        self._thread.join()
        self._inner.close()

    def _committed(self, batches: list[Batch], error: WriteFailed | None) -> None:
        self._on_commit(batches, error)
        self._done.release(len(batches))

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._ended.is_set():
                    self._changed.wait()
                if not self._queue:
                    return
                batch = self._queue.pop(0)
            answers = self._database.wait_until_it_answers(self._ended)
            with self._changed:
                is_deposed = self._is_deposed
                if answers and not is_deposed:
                    self._inner.submit(batch)
            if is_deposed:
                told = [] if batch is NEWS else [batch]
                self._on_commit(told, Deposed("another gateway has taken the store over"))
            elif answers:
                self._done.acquire()
            else:
                self._on_commit([batch], WriteFailed("given up"))
