"""What connections and links cost that are open and say nothing."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from tests.bench.idle import allow_files, open_connections, waiting_readers
from tests.bench.load import send
from tests.bench.server_process import gateway

from .sizes import Figures, Sizes

SILENCE = "[limits]\nidle_timeout_ms = 3600000\n"
"""Idle clients send no heartbeats here."""


def idle(folder: Path, sizes: Sizes) -> Figures:
    """Memory a connection costs that is open, has a session, and says nothing."""
    allow_files(sizes.connections)
    with gateway(folder / "data") as server:
        before = server.resident_bytes()
        with open_connections(server.address, sizes.connections):
            held = server.resident_bytes() - before
    return {"idle_kib": held / sizes.connections / 1024}


def idle_readers(folder: Path, sizes: Sizes) -> Figures:
    """One outstanding beside very many log readers that wait for a topic on which nothing comes, and without them."""
    count = sizes.single
    config = folder / "gateway.toml"
    config.write_text(SILENCE)
    with gateway(folder / "data", "--config", str(config)) as server:
        send(server.address, "queue://commits", count, outstanding=1)
        without = send(server.address, "queue://commits", count, outstanding=1)["p50_ms"]
        with waiting_readers(server.address, sizes.readers):
            beside = send(server.address, "queue://commits", count, outstanding=1)["p50_ms"]
        without = mean((without, send(server.address, "queue://commits", count, outstanding=1)["p50_ms"]))
    return {"p50_beside_readers": beside, "p50_without_readers": without}
