"""
``./run ha``: two gateways on three PostgreSQL servers under Patroni, all on this machine. Each part is killed in turn.

Publishers and consumers work all the time; they have the addresses of both gateways. Each step prints PASS or FAIL, and
what happened. At the end, the log must have every accepted message exactly once, in order. The exit status is 0 only if
every step passed. In any case all processes are ended and the temporary folder is removed; after a failure,
``build/ha`` has the logs of all parts.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tests.ha.cluster import missing
from tests.support.postgresql import NoServer, programs
from tests.support.waiting import wait_until

from . import faults
from .processes import ROOT, Failed
from .scene import Scene

PUBLISHED: Final = 300
FOLDER: Final = ROOT / "build" / "ha"
"""The folder of the logs of all parts after a failure."""
DURABLE_SECONDS: Final = 30.0
"""Time for the gateway to find out how durable its commits are."""


def within(seconds: float, most: float) -> str:
    """The end of a sentence with the seconds; raises Failed if it took longer than ``most``."""
    if seconds > most:
        raise Failed(f"accepted again after {seconds:.1f} s, not within {most:g} s")
    return f"accepted again after {seconds:.1f} s"


class Steps:
    """The steps of a run, in order, and the sentence that each returns."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def all(self) -> list[tuple[str, Callable[[], str]]]:
        """Each step with its title."""
        return [
            ("etcd, and three PostgreSQL servers under Patroni", self.start_cluster),
            ("two gateways: one is active, one waits", self.start_gateways),
            ("publishers and consumers", self.publish),
            ("a log reader on the gateway that waits", self.read_on_standby),
            *((fault.name, partial(self.happen, fault)) for fault in faults.IN_TURN),
            ("kill -9 of etcd", self.kill_etcd),
            ("every accepted message is there, once, in order", self.account),
        ]

    def start_cluster(self) -> str:
        """Start the whole database cluster."""
        self._scene.cluster.start()
        primary, standby = self._scene.cluster.primary(), self._scene.cluster.synchronous_standby()
        return f"{primary.name} is the primary, {standby.name} its synchronous standby"

    def start_gateways(self) -> str:
        """Start both gateways."""
        self._scene.start_gateways()
        pair = self._scene.pair
        pair.wait_until_whole()
        active = pair.active
        other = pair.other(active)
        wait_until(lambda: active.durability() == "two-machines", "two machines", DURABLE_SECONDS)
        told = other.readiness()
        if told["status"] != 503 or told.get("active") != "{}:{}".format(*active.address):
            raise Failed(f"the one that waits says {told}")
        return (
            f"{active.name} is active, on two machines; {other.name} answers 503 and names {told['active']}"
        )

    def publish(self) -> str:
        """Start the clients, which work until the end."""
        scene = self._scene
        scene.start_clients()
        wait_until(
            lambda: len(scene.ledger.accepted) >= PUBLISHED, "messages are accepted", faults.BUSY_SECONDS
        )
        return f"{len(scene.ledger.accepted):,} messages are accepted; they go on"

    def read_on_standby(self) -> str:
        """Read history and live messages from a standby of the database, while messages are accepted."""
        scene = self._scene
        waiting = scene.pair.other(scene.pair.active)
        scene.audit()
        count = scene.read_log(waiting)
        if scene.ledger.faults:
            raise Failed(scene.ledger.faults[0])
        return f"{waiting.name} waits, and gave a reader the log's {count:,} messages from a standby"

    def happen(self, fault: faults.Fault) -> str:
        """Kill or stop a part, which then comes back."""
        scene = self._scene
        chance = random.Random(2)  # with this seed the standby that is lost is the synchronous one
        said = within(fault.happen(scene, chance), fault.most_seconds)
        scene.settle()
        primary, standby = scene.cluster.primary().name, scene.cluster.synchronous_standby().name
        return (
            f"{said}; {scene.pair.active.name} is active, on {primary} with the synchronous standby {standby}"
        )

    def kill_etcd(self) -> str:
        """Kill etcd: nothing happens, because the primary reaches all other nodes."""
        scene = self._scene
        primary = scene.cluster.primary()
        with faults.lost(scene.cluster.etcd):
            said = within(scene.accepted_again(), faults.BUSY_SECONDS)
            time.sleep(10)  # longer than Patroni retries
            said_then = within(scene.accepted_again(), faults.BUSY_SECONDS)
        scene.settle()
        if scene.cluster.primary() is not primary:
            raise Failed(f"{scene.cluster.primary().name} has become the primary")
        return f"{said}, ten seconds later {said_then}; {primary.name} is still the primary"

    def account(self) -> str:
        """Compare everything that clients were told with the log."""
        scene = self._scene
        accepted = scene.drain()
        count = len(scene.ledger.log)
        for gateway in scene.pair.gateways:
            scene.read_log(gateway)
        ledger = scene.ledger
        if ledger.faults:
            raise Failed("; ".join(ledger.faults[:5]))
        return (
            f"{accepted:,} accepted; {count:,} in the log, read by SQL and AMQP, from both gateways; "
            "two queues have delivered all; no id twice"
        )


def run(scene: Scene) -> bool:
    """Run the steps until one fails; returns whether none did."""
    for number, (title, step) in enumerate(Steps(scene).all(), start=1):
        began = time.monotonic()
        print(f"{number:>2}. {title}", flush=True)
        try:
            said = step()
        except AssertionError as failed:
            print(f"    FAIL {failed}", flush=True)
            for fault in scene.ledger.faults[:20]:
                print(f"    FAULT {fault}")
            scene.keep_logs(FOLDER)
            return False
        print(f"    PASS {said} ({time.monotonic() - began:.0f} s)", flush=True)
    return True


def ready() -> str:
    """A sentence about missing programs; empty if all are there."""
    try:
        programs()
    except NoServer as error:
        return str(error)
    if packages := missing():
        return f"missing: {', '.join(packages)}. On Debian type: apt-get install {' '.join(packages)}"
    return ""


def end_by_signal(number: int, _: object) -> None:
    """A signal to end becomes an exception, so that everything is cleaned up."""
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status."""
    argparse.ArgumentParser(prog="./run ha", description=__doc__).parse_args(arguments)
    if lack := ready():
        print(lack, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, end_by_signal)
    try:
        with Scene() as scene:
            print(f"All is in {scene.workshop.folder}, which is removed at the end.", flush=True)
            is_well = run(scene)
    except KeyboardInterrupt:
        return 130
    print("PASS: every step" if is_well else "FAIL", flush=True)
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
