"""What a gateway weighs, in megabytes of resident memory: with nothing to do, and after much was done."""

from __future__ import annotations

from pathlib import Path

from tests.bench.load import Load, recv, send
from tests.bench.server_process import MEGABYTE, ServerProcess, gateway

from .sizes import Figures, Sizes

EACH = 5
"""Times ``Sizes.single`` that are published to many endpoints."""
QUEUES = 20
SAMPLE_SECONDS = 1.0
QUOTA_MB = 300
"""Of the log under mixed load, so that it is trimmed, too."""


def worked(folder: Path, sizes: Sizes) -> Figures:
    """With nothing in it and nothing to do; after many messages were published, consumed and replayed in both ways."""
    config = folder / "gateway.toml"
    config.write_text('[vpn.default.queue.bench]\nexclusive = "wait"\n')
    count = sizes.worked
    with gateway(folder / "data", "--config", str(config)) as server:
        empty = _resident(server)
        send(server.address, "queue://bench", count)
        recv(server.address, "queue://bench", count)
        recv(server.address, "log://>", count, "--start", "beginning")
        recv(server.address, "queue://bench?replay-start=beginning", count)
        return {"memory_empty": empty, "memory_worked": _resident(server)}


def endpoints(folder: Path, sizes: Sizes) -> Figures:
    """Many endpoints on one topic that was published to."""
    config = folder / "gateway.toml"
    config.write_text(
        "".join(f'[vpn.default.queue.q{n}]\nsubscriptions = ["all"]\n' for n in range(sizes.subscribers))
    )
    with gateway(folder / "data", "--config", str(config)) as server:
        send(server.address, "topic://all", EACH * sizes.single)
        return {"memory_endpoints": _resident(server)}


def mixed(folder: Path, sizes: Sizes) -> Figures:
    """Minutes of mixed load: many queues, bodies of any size, replays, consumers that die; and what is on disk then."""
    config = folder / "gateway.toml"
    queues = "".join(f'[vpn.default.queue.mixed{n}]\nexclusive = "wait"\n' for n in range(QUEUES))
    config.write_text(f"[vpn.default.replay_log]\nquota_mb = {QUOTA_MB}\n{queues}")
    with gateway(folder / "data", "--config", str(config)) as server:
        peak = 0.0
        load = Load(
            server.address,
            "--minutes",
            sizes.minutes,
            "--queues",
            QUEUES,
            module="tests.bench.generator.mixed",
        )
        while not load.is_over(SAMPLE_SECONDS):
            peak = max(peak, _resident(server))
        done = load.result()
        on_disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return {
            "memory_mixed": _resident(server),
            "memory_mixed_peak": peak,
            "mixed_rate": done["published"] / done["seconds"],
            "mixed_replays": done["replays"],
            "mixed_deaths": done["deaths"],
            "log_quota": QUOTA_MB,
            "log_on_disk": on_disk / MEGABYTE,
        }


def _resident(server: ServerProcess) -> float:
    return server.resident_bytes() / MEGABYTE
