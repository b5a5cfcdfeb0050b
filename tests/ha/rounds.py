"""
``./run soak ha``: random faults in the set-up of ``./run ha``: two gateways on three PostgreSQL servers under Patroni.

In each round, one part is killed, paused or cut off from the network, while publishers and consumers work. At the end
of the round every part runs again, and the log is searched for all accepted messages. The exit status is 0 only if no
fault was found and no publisher waited too long. After a failure, ``build/soak-ha`` has the logs of all parts.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

from .__main__ import end_by_signal, ready
from .faults import FAULTS, Fault
from .processes import ROOT, Failed
from .scene import Scene

ROUNDS: Final = 200
DRAIN_EVERY: Final = 10
"""The number of rounds between two checks of what the queues have delivered."""
FOLDER: Final = ROOT / "build" / "soak-ha"


def chosen(rounds: int, chance: random.Random) -> Iterator[Fault]:
    """The fault of each round: each fault once in random order, then random ones by weight."""
    first = chance.sample(FAULTS, len(FAULTS))
    weights = [fault.weight for fault in FAULTS]
    for number in range(rounds):
        yield first[number] if number < len(first) else chance.choices(FAULTS, weights)[0]


class Rounds:
    """A run."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self._scene = scene
        self._chance = random.Random(seed)
        self._seconds: dict[str, list[float]] = {}
        self._told = 0
        """The number of faults already printed."""
        self._rounds = 0

    def run(self, rounds: int) -> bool:
        """Run the rounds; returns whether all is well."""
        try:
            self._scene.cluster.start()
            self._scene.start_gateways()
            self._scene.start_clients()
            for number, fault in enumerate(chosen(rounds, self._chance), start=1):
                self._round(number, fault)
            self._scene.drain()
            for gateway in self._scene.pair.gateways:
                self._scene.read_log(gateway)
        except AssertionError as failed:
            self._scene.ledger.fault(f"{failed}")
        finally:  # also after an interrupt
            self._tell_faults()
            print(self._summary(), flush=True)
            if self._scene.ledger.faults:
                self._scene.keep_logs(FOLDER)
        return not self._scene.ledger.faults

    def _round(self, number: int, fault: Fault) -> None:
        began = time.monotonic()
        print(f"{number:>4} {fault.name:<42}", end="", flush=True)
        try:
            seconds = fault.happen(self._scene, self._chance)
            print(f" accepted after {seconds:5.1f} s", end="", flush=True)
            self._seconds.setdefault(fault.name, []).append(seconds)
            if seconds > fault.most_seconds:
                self._scene.ledger.fault(
                    f"round {number}, {fault.name}: publishers waited {seconds:.1f} s, more than {fault.most_seconds:g}"
                )
            self._scene.settle()
            self._scene.audit()
            if number % DRAIN_EVERY == 0:
                self._scene.drain()
        except AssertionError as failed:
            raise Failed(f"round {number}, {fault.name}: {failed}") from failed
        finally:
            accepted = len(self._scene.ledger.accepted)
            print(f"  {accepted:>9,} accepted  {time.monotonic() - began:4.0f} s", flush=True)
        self._rounds = number
        self._tell_faults()

    def _tell_faults(self) -> None:
        faults = self._scene.ledger.faults
        for fault in faults[self._told :]:
            print(f"     FAULT {fault}", flush=True)
        self._told = len(faults)

    def _summary(self) -> str:
        ledger = self._scene.ledger
        lines = [f"{'publishers waited, in seconds':<42} rounds   median  longest  allowed"]
        for fault in FAULTS:
            if seconds := self._seconds.get(fault.name):
                lines.append(
                    f"{fault.name:<42} {len(seconds):>6}  {statistics.median(seconds):>7.1f}  {max(seconds):>7.1f}"
                    f"  {fault.most_seconds:>7g}"
                )
        lines.append(
            f"{self._rounds} rounds; {len(ledger.accepted):,} messages accepted, {len(ledger.log):,} in the log, "
            f"{len(ledger.faults)} faults"
        )
        return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="./run soak ha", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds (%(default)s)")
    parser.add_argument("--seed", type=int, help="seed of the random choices; without it, a new one")
    options = parser.parse_args(arguments)
    if lack := ready():
        print(lack, file=sys.stderr)
        return 2
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    signal.signal(signal.SIGTERM, end_by_signal)
    try:
        with Scene(proxied=True) as scene:
            is_well = Rounds(scene, seed).run(options.rounds)
    except KeyboardInterrupt:
        return 130
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
