"""A Message VPN in PostgreSQL with a synchronous standby on this machine, compared with the server's own limits."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.generator.client import percentile
from tests.bench.limits import RawTable
from tests.bench.processes import FROM_BEGINNING, gateway, recv, send
from tests.support import postgresql as servers

from .sizes import Figures, Sizes

TOPIC: Final = "#queue/bench"

PER_COMMIT: Final = 1_000
"""Outstanding messages, of which each commit of the gateway takes those that have arrived; and rows of a raw commit."""
SETTINGS: Final = ("shared_buffers=128MB", "max_wal_size=4GB")
"""Settings with which the amount of WAL starts no checkpoint during a measurement."""


def postgresql(folder: Path, sizes: Sizes) -> Figures:
    """
    Publish and replay; publish with one message outstanding. Raw COPY and raw commits run right before and after, as
    the speed of disks varies.

    Raises:
        NoServer: PostgreSQL is not installed.
    """
    count, single = sizes.bulk, sizes.single
    with (
        servers.server(*SETTINGS, quick=False) as primary,
        closing(RawTable(primary.url(primary.new_database()))) as raw,
    ):
        primary.standby(synchronous=True)
        config = f'[vpn.default.store]\nurl = "{primary.url(primary.new_database())}"\n'
        with gateway(folder / "data", config) as server:
            send(server.address, "topic://warm", count // 10, outstanding=PER_COMMIT)
            copies = [raw.copy_rate(count // 2, PER_COMMIT)]
            publish = send(server.address, "queue://bench", count, outstanding=PER_COMMIT)["rate"]
            copies.append(raw.copy_rate(count // 2, PER_COMMIT))
            commits = raw.commit_latencies(single // 2)
            alone = send(server.address, "queue://single", single, outstanding=1)["p50_ms"]
            commits += raw.commit_latencies(single // 2)
        with gateway(folder / "data", config) as server:  # with empty caches
            replay = recv(server.address, f"log://{TOPIC}", count, filters=FROM_BEGINNING)["rate"]
    return {
        "postgresql-publish": publish,
        "postgresql-copy": median(copies),
        "postgresql-single": alone,
        "postgresql-commit-p50": percentile(commits, 0.5),
        "postgresql-replay": replay,
    }
