"""A Message VPN in PostgreSQL under test: its stores, the reports of their writers, and proxies to the server."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.effects import Effect
from store.copies import LogRow
from store.errors import StoreError, WriteFailed
from store.ports import Batch, StoreOptions
from store.postgresql.cursors import PostgresShortTables
from store.postgresql.database import Connection
from store.postgresql.store import PostgresStore, PostgresStores
from store.postgresql.writer import PostgresWriter
from tests.store.effects import publication
from tests.store.state import state_of as state_of_tables
from tests.store.told import Told
from tests.store.vpn_file import MADE_MS
from tests.support.naive_store import State
from tests.support.postgresql import Server, eventually
from tests.support.tcp_proxy import Proxy

OPTIONS = StoreOptions(page_rows=100, page_bytes=1 << 20, read_threads=1, checkpoint_bytes=1 << 20)


def state_of(connection: Connection) -> State:
    """The visible state of the schema in the connection's search path."""
    tables = PostgresShortTables(connection)
    (log,) = tables.ask(f"select {', '.join(LogRow._fields)} from log")
    return state_of_tables(tables, LogRow(*log))


def wait_for_standby(server: Server, name: str) -> None:
    """Make every commit wait for a standby of this name from now on; if the name is empty, for none."""
    server.execute(f"alter system set synchronous_standby_names = '{name}'")
    server.execute("select pg_reload_conf()")
    eventually(lambda: server.execute("show synchronous_standby_names") == [(name,)], "the setting")


class Gateway(Told):
    """A gateway's opened store, with the reports of its writer."""

    writer: PostgresWriter

    def __init__(self, store: PostgresStore) -> None:
        super().__init__()
        self.store = store
        self.writer = store.start_writer(self.on_commit)

    def wait(self, batch: Batch) -> WriteFailed | None:
        """Wait for a batch's transaction, and return its error."""
        return self.transaction_of(batch).error

    def publish(self, first: int, content: bytes = b"x", count: int = 1, *, on: tuple[int, ...] = ()) -> None:
        """Publish messages, and wait until they are durable."""
        self.write(publication(first, [content] * count, endpoints=on, time_ms=MADE_MS))

    def beat(self) -> None:
        """Wait for the next commit of an idle writer."""
        before = self.writer.confirmed_at
        eventually(lambda: self.writer.confirmed_at > before, "a heartbeat")

    def close(self) -> None:
        self.store.close()


class PostgresVpn:
    """A Message VPN for one test."""

    def __init__(self, server: Server, database: str, name: str) -> None:
        self.server = server
        self.name = name
        self.url = server.url(database)
        self._database = database
        self.gateways: list[Gateway] = []
        self._proxies: list[Proxy] = []

    def stores(self, proxy: Proxy | None = None, **options: float) -> PostgresStores:
        """The stores of a new gateway, behind a proxy if one is given."""
        url = self.url if proxy is None else self.server.tcp_url(self._database, port=proxy.port)
        return PostgresStores(url, **options)  # type: ignore[arg-type]

    def proxy(self) -> Proxy:
        """A new proxy between a gateway and the server."""
        found = Proxy(("127.0.0.1", self.server.port))
        self._proxies.append(found)
        return found

    def gateway(self, stores: PostgresStores | None = None, options: StoreOptions = OPTIONS) -> Gateway:
        """One more gateway, which takes the store over."""
        found = Gateway((stores or self.stores()).open(self.name, MADE_MS, options))
        self.gateways.append(found)
        return found

    def taken_over(self, stores: PostgresStores) -> Gateway:
        """The next gateway, as soon as the store is free."""
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
        """Commit batches, none of which may fail, and close the store."""
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
