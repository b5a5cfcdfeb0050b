"""A Message VPN in PostgreSQL under test: stores that are opened, what their writers told, and a proxy in between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gateway.core.effects import Effect, Publication
from store.errors import StoreError, WriteFailed
from store.ports import Batch, StoreOptions
from store.postgresql.store import PostgresStore, PostgresStores
from tests.store.effects import applied, publication
from tests.store.vpn_file import MADE_MS, empty_model
from tests.support.postgresql import Server, eventually
from tests.support.tcp_proxy import Proxy

PATIENCE_SECONDS = 60.0
"""What never takes long is waited for so long, before the test is given up."""

OPTIONS = StoreOptions(page_rows=100, page_bytes=1 << 20, read_threads=1, checkpoint_bytes=1 << 20)


class Told(NamedTuple):
    batches: list[Batch]
    error: WriteFailed | None


class Gateway:
    """One gateway's store, opened, and what its writer told."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.told: list[Told] = []
        self.model = empty_model()
        """What was written, and told of without an error."""
        self._changed = threading.Condition()
        self.writer = store.start_writer(self._on_commit)

    def _on_commit(self, batches: list[Batch], error: WriteFailed | None) -> None:
        with self._changed:
            self.told.append(Told(batches, error))
            self._changed.notify_all()

    def submit(self, *effects: Effect) -> Batch:
        batch = Batch(effects, sum(e.size_bytes for e in effects if isinstance(e, Publication)))
        self.writer.submit(batch)
        return batch

    def wait(self, batch: Batch) -> WriteFailed | None:
        """What became of a batch."""
        return self._wait_for(lambda told: any(b is batch for b in told.batches)).error

    def wait_for_error(self) -> WriteFailed:
        """The first error that was told of, whatever it was about."""
        error = self._wait_for(lambda told: told.error is not None).error
        assert error is not None
        return error

    def _wait_for(self, is_it: Callable[[Told], bool]) -> Told:
        def found() -> Iterator[Told]:
            return filter(is_it, self.told)

        with self._changed:
            assert self._changed.wait_for(lambda: any(True for _ in found()), PATIENCE_SECONDS)
        return next(found())

    def write(self, *effects: Effect) -> None:
        """One batch, which is durable then; the naive store has it as well."""
        assert self.commit(*applied(self.model, effects)) is None

    def publish(self, first: int, content: bytes = b"x", count: int = 1, *, on: tuple[int, ...] = ()) -> None:
        """Messages, which are durable then."""
        self.write(publication(first, [content] * count, endpoints=on, time_ms=MADE_MS))

    def commit(self, *effects: Effect) -> WriteFailed | None:
        """One batch, and what became of it."""
        return self.wait(self.submit(*effects))

    def beat(self) -> None:
        """Wait for the next commit of an idle writer."""
        before = self.writer.confirmed_at
        eventually(lambda: self.writer.confirmed_at > before, "a heartbeat")

    def close(self) -> None:
        self.store.close()


class PostgresVpn:
    """A Message VPN of one test."""

    def __init__(self, server: Server, database: str, name: str) -> None:
        self.server = server
        self.name = name
        self.url = server.url(database)
        self._database = database
        self.gateways: list[Gateway] = []
        self._proxies: list[Proxy] = []

    def stores(self, proxy: Proxy | None = None, **options: float) -> PostgresStores:
        """A gateway's; through a proxy, if one is given."""
        url = self.url if proxy is None else self.server.tcp_url(self._database, port=proxy.port)
        return PostgresStores(url, **options)  # type: ignore[arg-type]

    def proxy(self) -> Proxy:
        """Between a gateway and the server."""
        found = Proxy(("127.0.0.1", self.server.port))
        self._proxies.append(found)
        return found

    def gateway(self, stores: PostgresStores | None = None, options: StoreOptions = OPTIONS) -> Gateway:
        """One more, which takes the store over."""
        found = Gateway((stores or self.stores()).open(self.name, MADE_MS, options))
        self.gateways.append(found)
        return found

    def taken_over(self, stores: PostgresStores) -> Gateway:
        """The next one, as soon as the store is to be had."""
        found: list[Gateway] = []

        def takes_over() -> bool:
            try:
                found.append(self.gateway(stores))
            except StoreError:
                return False
            return True

        eventually(takes_over, "the takeover")
        return found[0]

    def write(self, batches: Sequence[Sequence[Effect]], options: StoreOptions = OPTIONS) -> None:
        """Commit batches, each told of without an error, and close."""
        gateway = self.gateway(options=options)
        sent = [gateway.submit(*effects) for effects in batches]
        gateway.close()
        assert [gateway.wait(batch) for batch in sent] == [None] * len(sent)

    def close(self) -> None:
        for gateway in self.gateways:
            gateway.close()
        for proxy in self._proxies:
            proxy.close()
        self.stores().remove(self.name)
