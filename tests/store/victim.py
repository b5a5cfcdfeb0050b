"""A process that writes until it is killed, and prints what was reported as durable.

Its arguments are an engine, the place of its stores, and the Message VPN. Each line has the first and the last id of
durable messages, and whether they are logged.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from pathlib import Path

from gateway.core.effects import DeleteEndpoint, DropCursor, Effect, OpenCursor, Publication, SaveEndpoint
from gateway.core.model import WHOLE, RouteDefinition, Row
from store.errors import StoreHeld, WriteFailed
from store.ports import Batch, Store, StoreOptions, Stores

PER_ENDPOINT = 50
MOST_WAITING = 100
OPTIONS = StoreOptions(page_rows=100, page_bytes=1 << 20, read_threads=1, checkpoint_bytes=1 << 18)
RETRY_SECONDS = 0.05


def stores_of(engine: str, place: str, partition_bits: int = 12) -> Stores:
    """
    The stores in a folder, or in the database with this URL.

    Args:
        partition_bits: Ids per partition in PostgreSQL, as a power of two.
    """
    if engine == "sqlite":
        from store.sqlite.store import SqliteStores  # noqa: PLC0415

        return SqliteStores(Path(place))
    from store.postgresql.store import PostgresStores  # noqa: PLC0415

    return PostgresStores(place, partition_bits=partition_bits)


def opened(stores: Stores, vpn: str, options: StoreOptions = OPTIONS, now_ms: int = 1) -> Store:
    """Open the store as soon as it is free: a killed holder's session may last for a moment."""
    while True:
        try:
            return stores.open(vpn, now_ms, options)
        except StoreHeld:
            time.sleep(RETRY_SECONDS)


def main(engine: str, place: str, vpn: str) -> None:
    store = opened(stores_of(engine, place), vpn)
    found = store.recovered
    room = threading.Semaphore(MOST_WAITING)

    def on_commit(batches: list[Batch], error: WriteFailed | None) -> None:
        assert error is None
        for batch in batches:
            room.release()
            for effect in batch.effects:
                if isinstance(effect, Publication):
                    print(effect.rows[0][0], effect.rows[-1][0], effect.logged, flush=True)

    def submit(*effects: Effect) -> None:
        room.acquire()
        writer.submit(Batch(effects, 0))

    writer = store.start_writer(on_commit)
    position = found.log.next_id
    for endpoint in itertools.count(found.next_number):
        submit(
            OpenCursor(endpoint, (WHOLE,), position - 1),
            SaveEndpoint(endpoint, endpoint, f"q{endpoint}", "queue", "{}", None),
        )
        route = RouteDefinition(endpoint, (endpoint,), None)
        for k in range(PER_ENDPOINT):
            contents = [b"%d" % (position + i) * 50 for i in range(1 + k % 20)]
            time_ms = found.log.last_time_ms + endpoint
            held = None if k % 5 else 1
            rows: list[Row] = [
                (i, time_ms, "a", 0, endpoint, held, content) for i, content in enumerate(contents, position)
            ]
            submit(Publication(rows, "a", [route], held is None, list(map(len, contents)), None))
            position += len(contents)
        submit(DeleteEndpoint(endpoint), DropCursor(endpoint, endpoint, position - 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
