"""The load generator's command line: one link of load on one AMQP 1.0 server, the result as one JSON line.

    python -m tests.bench.generator.client send 127.0.0.1:5672 queue://q --count 200000 --outstanding 1000
    python -m tests.bench.generator.client recv 127.0.0.1:5672 queue://q --count 200000
    python -m tests.bench.generator.client recv 127.0.0.1:5672 'log://>' --count 200000 --start beginning --forever

Both print ``{"event": "attached"}`` once their link is, ``recv`` before it grants credit.
With ``--forever`` it attaches again after every ``--count`` messages, until SIGTERM asks for the result.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
from types import FrameType
from typing import Any

from amqp_ext.codec import Described, Symbol
from tests.bench.generator.connection import Connection, Refused
from tests.bench.generator.links import Received, Receiver, Sender

REPLAY_START = "rewind:replay-start"
SIZE = 256
"""Octets of a body."""
CREDIT = 1_000


def percentile(values: list[int], share: float) -> float:
    """The value below which ``share`` (0 to 1) of ``values`` (ns) lie, in milliseconds."""
    ordered = sorted(values)
    return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)] / 1e6, 4)


class Stopped(Exception):
    """SIGTERM came."""


def _send(options: argparse.Namespace) -> dict[str, Any]:
    connection = Connection.to(options.server, "bench")
    connection.attach(sender=True, address=options.address)
    print(json.dumps({"event": "attached"}), flush=True)
    sender = Sender(connection, SIZE, named=options.named, delay_ms=options.delay)
    sent = sender.send(options.count, options.outstanding)
    connection.close()
    return {"count": sent.count, "seconds": sent.seconds} | _latency(sent.latencies)


def _recv(options: argparse.Namespace) -> dict[str, Any]:
    runs = [_receive(options)]
    try:
        while options.forever:
            runs.append(_receive(options))
    except Stopped:
        pass
    return {
        "count": sum(run.count for run in runs),
        "seconds": sum(run.seconds for run in runs),
        "through_seconds": runs[0].through_seconds,
        "in_order": all(run.in_order for run in runs),
    } | _latency(runs[0].latencies)


def _receive(options: argparse.Namespace) -> Received:
    filters = {Symbol(name): Described(Symbol(name), value) for name, value in options.filter} or None
    connection = Connection.to(options.server, "bench")
    connection.attach(sender=False, address=options.address, filters=filters)
    print(json.dumps({"event": "attached"}), flush=True)
    received = Receiver(connection, SIZE, durable=options.durable).receive(
        options.count, CREDIT, timed=options.timed
    )
    connection.close()
    return received


def _latency(latencies: list[int]) -> dict[str, Any]:
    return {"p50_ms": percentile(latencies, 0.5), "p99_ms": percentile(latencies, 0.99)} if latencies else {}


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise Stopped("stopped before the first run was through")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests.bench.generator.client", description="One link of load on an AMQP 1.0 server."
    )
    commands = parser.add_subparsers(required=True)
    send = commands.add_parser("send")
    send.set_defaults(function=_send)
    send.add_argument("--named", action="store_true", help="with message-ids, which no other run has")
    send.add_argument("--delay", type=int, default=0, help="ms after which each is to be delivered")
    send.add_argument("--outstanding", type=int, default=1000, help="unsettled messages at most")
    recv = commands.add_parser("recv")
    recv.set_defaults(function=_recv)
    recv.add_argument("--filter", nargs=2, action="append", default=[], metavar=("SYMBOL", "TEXT"))
    recv.add_argument(
        "--start",
        dest="filter",
        action="append",
        type=lambda text: (REPLAY_START, text),
        help="replay start, as text",
    )
    recv.add_argument("--durable", action="store_true", help="every message must be durable")
    recv.add_argument("--timed", action="store_true", help="keep publish-to-receipt latencies")
    recv.add_argument("--forever", action="store_true", help="start over until SIGTERM")
    for command in (send, recv):
        command.add_argument("server", help="HOST:PORT")
        command.add_argument("address")
        command.add_argument("--count", type=int, default=100_000, help="messages")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run one load; exit status 1 with one sentence on stderr where the server refused it."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, _stop)
    try:
        result = options.function(options)
    except (Refused, Stopped, OSError) as error:
        print(f"{options.server} {options.address}: {error}", file=sys.stderr)
        return 1
    usage = resource.getrusage(resource.RUSAGE_SELF)
    result |= {"rate": result["count"] / result["seconds"], "cpu_seconds": usage.ru_utime + usage.ru_stime}
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
