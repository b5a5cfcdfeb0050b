"""One topic to many queues and durable subscriptions."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from tests.bench.load import recv, send
from tests.bench.server_process import gateway
from tests.bench.subscriptions import subscribe

from .sizes import Figures, Sizes

FAN = 10
"""Queues on one topic."""
SUBSCRIPTIONS = 100
"""Durable subscriptions on one topic."""


def fan_out(folder: Path, sizes: Sizes) -> Figures:
    """One topic into a queue, into ten, into a hundred durable subscriptions; the last queue has all of it."""
    count = sizes.fanned
    config = folder / "gateway.toml"
    queues = {"fan": ["one"], **{f"fan{n}": ["ten"] for n in range(FAN)}}
    config.write_text(
        "".join(f"[vpn.default.queue.{name}]\nsubscriptions = {topics}\n" for name, topics in queues.items())
    )
    with gateway(folder / "data", "--config", str(config)) as server:
        subscribe(server.address, "topic://hundred", SUBSCRIPTIONS)
        # The first of a process are slower than those that follow.
        send(server.address, "topic://one", count)
        recv(server.address, "queue://fan", count)
        # Before and after: a machine with other guests is not the same from one minute to the next.
        one = send(server.address, "topic://one", count)["rate"]
        ten = send(server.address, "topic://ten", count)["rate"]
        hundred = send(server.address, "topic://hundred", count)["rate"]
        one = mean((one, send(server.address, "topic://one", count)["rate"]))
        recv(server.address, f"queue://fan{FAN - 1}", count)
    return {"fan_out_1": one, "fan_out_10": ten, "fan_out_100": hundred}


def wide_fan(folder: Path, sizes: Sizes) -> Figures:
    """One outstanding: on a topic with very many durable subscriptions, and on one with one."""
    count = sizes.single
    with gateway(folder / "data") as server:
        subscribe(server.address, "topic://many", sizes.subscribers)
        subscribe(server.address, "topic://one", 1, "one")
        send(server.address, "topic://one", count, outstanding=1)
        one = send(server.address, "topic://one", count, outstanding=1)["p50_ms"]
        many = send(server.address, "topic://many", count, outstanding=1)["p50_ms"]
        one = mean((one, send(server.address, "topic://one", count, outstanding=1)["p50_ms"]))
    return {"wide_fan_p50": many, "narrow_fan_p50": one}
