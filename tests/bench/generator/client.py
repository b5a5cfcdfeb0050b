"""
The load generator's process: one loaded link to one AMQP 1.0 server; the result is one line of JSON.

    python -m tests.bench.generator.client '{"does": "send", "server": "127.0.0.1:5672", "address": "q", "count": 9}'

The JSON argument holds the arguments of ``send`` or ``receive``. The process prints ``{"event": "attached"}`` when its
link is attached, before it grants credit.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from amqp_ext.codec import Described, Symbol
from tests.bench.generator.connection import Connection, Refused
from tests.bench.generator.links import Received, Receiver, Sender

SIZE = 256
"""Octets of a body."""
CREDIT = 1_000


def percentile(values: list[int], share: float) -> float:
    """The value (in ns) below which ``share`` (0 to 1) of ``values`` are, in milliseconds."""
    ordered = sorted(values)
    return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)] / 1e6, 4)


class Stopped(Exception):
    """Raised on SIGTERM."""


def send(
    server: str, address: str, count: int, outstanding: int = 1_000, *, named: bool = False, delay_ms: int = 0
) -> dict[str, Any]:
    """
    Publish.

    Args:
        outstanding: The most unsettled messages.
        named: With message-ids that no other run uses.
        delay_ms: Delivery delay of each message.
    """
    connection = Connection.to(server, "bench")
    connection.attach(sender=True, address=address)
    print(json.dumps({"event": "attached"}), flush=True)
    sent = Sender(connection, SIZE, named=named, delay_ms=delay_ms).send(count, outstanding)
    connection.close()
    return {"count": sent.count, "seconds": sent.seconds} | _latency(sent.latencies)


def receive(server: str, address: str, count: int, *, forever: bool = False, **more: Any) -> dict[str, Any]:
    """
    Receive and accept. With ``forever`` attach again after every ``count`` messages, until SIGTERM requests the result.
    """
    runs = [_received(server, address, count, **more)]
    try:
        while forever:
            runs.append(_received(server, address, count, **more))
    except Stopped:
        pass
    return {
        "count": sum(run.count for run in runs),
        "seconds": sum(run.seconds for run in runs),
        "through_seconds": runs[0].through_seconds,
        "in_order": all(run.in_order for run in runs),
    } | _latency(runs[0].latencies)


def _received(
    server: str,
    address: str,
    count: int,
    *,
    filters: Mapping[str, str] = {},
    durable: bool = False,
    timed: bool = False,
) -> Received:
    """``durable``: every message must be durable. ``timed``: keep the latencies from publishing to receipt."""
    described = {Symbol(name): Described(Symbol(name), value) for name, value in filters.items()} or None
    connection = Connection.to(server, "bench")
    connection.attach(sender=False, address=address, filters=described)
    print(json.dumps({"event": "attached"}), flush=True)
    received = Receiver(connection, SIZE, durable=durable).receive(count, CREDIT, timed=timed)
    connection.close()
    return received


def _latency(latencies: list[int]) -> dict[str, Any]:
    return {"p50_ms": percentile(latencies, 0.5), "p99_ms": percentile(latencies, 0.99)} if latencies else {}


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise Stopped("stopped before the first run was through")


def main() -> int:
    """Run one load; exit status 1 and one sentence on stderr if the server refused it."""
    told = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, _stop)
    try:
        result = {"send": send, "receive": receive}[told.pop("does")](**told)
    except (Refused, Stopped, OSError) as error:
        print(f"{told['server']} {told['address']}: {error}", file=sys.stderr)
        return 1
    usage = resource.getrusage(resource.RUSAGE_SELF)
    result |= {"rate": result["count"] / result["seconds"], "cpu_seconds": usage.ru_utime + usage.ru_stime}
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
