"""A process that writes until it is killed: what it prints was told to be durable.

Takes the path of a file. A line: first and last id of messages that were told of, and whether they are logged.
"""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path

from gateway.core.effects import DeleteEndpoint, DropCursor, Effect, OpenCursor, Publication, SaveEndpoint
from gateway.core.model import WHOLE, RouteDefinition, Row
from store.errors import WriteFailed
from store.ports import Batch
from store.sqlite.database import open_file
from store.sqlite.recovery import recover
from store.sqlite.writer import SqliteWriter

PER_ENDPOINT = 50
MOST_WAITING = 100


def main(path: Path) -> None:
    open_file(path, 1, synchronous="FULL").close()
    found = recover(path)
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

    writer = SqliteWriter(
        path,
        on_commit,
        garbage=found.garbage,
        routes=[route.number for route, _ in found.routes],
        checkpoint_bytes=1 << 18,
    )
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
    main(Path(sys.argv[1]))
