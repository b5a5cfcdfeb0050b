"""A gateway that trims its whole log when it is sent SIGUSR1, and prints a line of JSON when that is done."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

import uvloop

from gateway import logs
from gateway.app import SWITCH_SECONDS, Gateway
from gateway.config import Overrides, load


async def run(data: Path) -> None:
    """Run a gateway on `data` until SIGTERM."""
    settings = load(None, Overrides(data=data, listen=("127.0.0.1:0",), admin="127.0.0.1:0"))
    logs.configure(settings.log)
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    gateway = Gateway(settings)
    await gateway.start()
    tasks: list[asyncio.Task[None]] = []

    async def trim() -> None:
        vpn = gateway.vpns["default"]
        first, started = vpn.broker.log.first_id, time.perf_counter()
        end = await vpn.trimmer.trim_before(vpn.broker.log.next_id)
        seconds = time.perf_counter() - started
        print(json.dumps({"event": "trimmed", "ids": end - first, "seconds": seconds}), flush=True)

    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    loop.add_signal_handler(signal.SIGUSR1, lambda: tasks.append(asyncio.create_task(trim())))
    print(gateway.ready_line(), flush=True)
    await stopped.wait()
    await gateway.stop()


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_SECONDS)
    uvloop.run(run(Path(sys.argv[1])))
