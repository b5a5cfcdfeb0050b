"""``python -m tests.bench.peers [BROKER...]``: measure brokers in turn, print the table, or write it into the page."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import date
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.peers.broker import Broker, PeerFailed
from tests.bench.peers.java_brokers import Artemis, BrokerJ
from tests.bench.turns import say, take_turns

from .measuring import measure
from .page import PAGE, conditions, table, write
from .rabbitmq import RabbitMq
from .rewind import Rewind, RewindOnPostgreSql

COUNT, SINGLE, ROUNDS = 100_000, 2_000, 3


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 if all available brokers were measured, 1 if one failed, 2 for bad usage."""
    single: list[Broker] = [Rewind(), RabbitMq("quorum"), RabbitMq("stream"), Artemis(), BrokerJ()]
    replicated: list[Broker] = [RewindOnPostgreSql(), RabbitMq("quorum", nodes=3)]
    brokers = [*single, *replicated]
    names = [broker.name for broker in brokers]
    parser = argparse.ArgumentParser(
        prog="./run bench peers",
        description="Rewind compared with other brokers: one after the other, under the same load.",
    )
    parser.add_argument(
        "brokers",
        nargs="*",
        metavar="BROKER",
        help=f"one of {', '.join(names)}; default: those without replication",
    )
    parser.add_argument(
        "--replicated", action="store_true", help="the brokers that replicate messages to other servers"
    )
    parser.add_argument(
        "--count", type=int, default=COUNT, help="messages to measure rates with (%(default)s)"
    )
    parser.add_argument("--single", type=int, default=SINGLE, help="messages sent one by one (%(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="rounds; each figure is their median (%(default)s)"
    )
    parser.add_argument(
        "--keep-in", type=Path, metavar="DIR", help="folder for the data, on the disk to be measured"
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON, instead of the table")
    parser.add_argument(
        "--write", action="store_true", help=f"also write the table into docs/explanation/{PAGE.name}"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.brokers) - set(names):
        parser.error(f"no broker {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if options.replicated and options.brokers:
        parser.error("name brokers, or say --replicated")
    whole = replicated if options.replicated else single
    chosen = [broker for broker in brokers if broker.name in options.brokers] or whole
    with TemporaryDirectory(prefix="rewind-peers-", dir=options.keep_in) as name:
        folder = Path(name).resolve()
        there = [broker for broker in chosen if _is_at_hand(broker, folder)]
        works = {
            broker.name: partial(measure, broker, count=options.count, single=options.single)
            for broker in there
        }
        turns, failures = take_turns(options.rounds, folder, works)
    rounds = {name: [found[name] for found in turns if name in found] for name in works}
    measured = [broker for broker in there if rounds[broker.name]]
    if not measured:
        return 1
    shown = {broker.name: rounds[broker.name] for broker in measured}
    text = f"{table(measured, shown)}\n\n{conditions(shown, options.count, options.single, date.today())}"
    print(json.dumps(shown, indent=2) if options.json else text)
    if options.write:
        write(text, mark="replicated" if options.replicated else "peers")
    return 1 if failures else 0


def _is_at_hand(broker: Broker, folder: Path) -> bool:
    try:
        broker.fetch(folder)
    except (PeerFailed, OSError) as error:
        say(f"left out: {broker.name}: {error}")
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
