"""How long a publisher waits for ``accepted``, and a consumer for what was published."""

from __future__ import annotations

from pathlib import Path

from tests.bench import limits
from tests.bench.generator.client import percentile
from tests.bench.load import Load, send
from tests.bench.server_process import gateway

from .sizes import Figures, Sizes

OUTSTANDING = (100, 1000)


def latency(folder: Path, sizes: Sizes) -> Figures:
    """Send to ``accepted`` with 1, 100 and 1,000 outstanding; publish to receipt with 1 outstanding.

    Raw commits are timed right before and after the single messages they are compared with: disks have moods.
    """
    with gateway(folder / "data") as server:
        commits = limits.commit_latencies(folder / "before.db", sizes.single // 2)
        single = send(server.address, "queue://single", sizes.single, outstanding=1)
        commits += limits.commit_latencies(folder / "after.db", sizes.single // 2)
        figures = {
            "single_p50": single["p50_ms"],
            "single_p99": single["p99_ms"],
            "sqlite_commit_p50": percentile(commits, 0.5),
            "sqlite_commit_p99": percentile(commits, 0.99),
        }
        for outstanding in OUTSTANDING:
            windowed = send(server.address, "queue://windowed", sizes.windowed, outstanding=outstanding)
            figures |= {f"{outstanding}_p50": windowed["p50_ms"], f"{outstanding}_p99": windowed["p99_ms"]}
        consumer = Load(
            "recv", server.address, "queue://through", "--count", sizes.single, "--timed"
        ).attached()
        send(server.address, "queue://through", sizes.single, outstanding=1)
        through = consumer.result()
    return figures | {"through_p50": through["p50_ms"], "through_p99": through["p99_ms"]}
