"""A Message VPN in PostgreSQL with a synchronous standby on this machine, beside the server's own limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.generator.client import percentile
from tests.bench.measured.rates import charged
from tests.bench.processes import ServerProcess, gateway, recv, send
from tests.support.postgresql import NoServer, Server, server

from .sizes import Figures, Sizes

TOPIC: Final = "#queue/bench"

PER_COMMIT: Final = 1_000
"""Messages outstanding, of which a commit of the gateway's takes what has come, and rows of a raw COPY's commit."""
SETTINGS: Final = ("shared_buffers=128MB", "max_wal_size=4GB")
"""No checkpoint is begun by the amount of WAL in the middle of a measurement."""


@contextmanager
def _two_machines() -> Iterator[Server]:
    if find_spec("psycopg") is None:
        raise NoServer("psycopg is missing; the extra rewind[postgresql] brings it")
    with server(*SETTINGS, quick=False) as primary:
        primary.standby(synchronous=True)
        yield primary


def _gateway(folder: Path, url: str) -> ServerProcess:
    config = folder / "postgresql.toml"
    config.write_text(f'[vpn.default.store]\nurl = "{url}"\n')
    return gateway(folder / "data", "--config", str(config))


def postgresql(folder: Path, sizes: Sizes) -> Figures:
    """
    Publish and replay; one message outstanding. Raw COPY and raw commits right before and after, as disks have moods.

    Raises:
        NoServer: Of PostgreSQL, or nothing to reach one with.
    """
    from tests.bench.limits import RawTable  # noqa: PLC0415 - psycopg comes with an extra

    count, single = sizes.bulk, sizes.single
    with _two_machines() as primary, RawTable(primary.url(primary.new_database())) as raw:
        url = primary.url(primary.new_database())
        with _gateway(folder, url) as under_test:
            send(under_test.address, "topic://warm", count // 10, outstanding=PER_COMMIT)
            copies = [raw.copy_rate(count // 2, PER_COMMIT)]
            publish = charged(
                under_test,
                "postgresql_publish",
                lambda: send(under_test.address, "queue://bench", count, outstanding=PER_COMMIT)["rate"],
                count,
            )
            copies.append(raw.copy_rate(count // 2, PER_COMMIT))
            commits = raw.commit_latencies(single // 2)
            alone = send(under_test.address, "queue://single", single, outstanding=1)
            commits += raw.commit_latencies(single // 2)
        with _gateway(folder, url) as under_test:  # with nothing in memory
            replay = charged(
                under_test,
                "postgresql_replay",
                lambda: recv(under_test.address, f"log://{TOPIC}", count, "--start", "beginning")["rate"],
                count,
            )
    return {
        **publish,
        "postgresql_copy": median(copies),
        "postgresql_single_p50": alone["p50_ms"],
        "postgresql_commit_p50": percentile(commits, 0.5),
        **replay,
    }
