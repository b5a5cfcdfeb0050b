"""
What is done to the parts of a scene in a round, and how long publishers may wait because of it.

Each fault begins when all is well. It returns the seconds for which publishers waited, after they no longer wait; by
then the lost part is back or starting.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from tests.ha.cluster import TTL_SECONDS, Etcd, Node
from tests.support.tcp_proxy import Fate, Proxy, Way
from tests.support.waiting import wait_until

from .pair import PairGateway
from .processes import Failed
from .scene import Scene

BUSY_SECONDS: Final = 30.0
"""The longest wait on a busy machine, unless a fault has its own limit."""
SILENT_SECONDS: Final = TTL_SECONDS + BUSY_SECONDS
"""The same if the loss of a machine must be detected first."""
WAITS_SECONDS: Final = 60.0


Part = PairGateway | Node | Etcd
"""A part that can be lost or held."""


class Fault(NamedTuple):
    """A fault of one part."""

    name: str
    weight: int
    """Its frequency, compared with other faults."""
    most_seconds: float
    """The longest time for which publishers may wait."""
    happen: Callable[[Scene, random.Random], float]


@contextmanager
def lost(part: Part) -> Iterator[None]:
    """The part is killed until the end of the block."""
    part.lose()
    try:
        yield
    finally:
        part.start()


@contextmanager
def held(part: Part) -> Iterator[None]:
    """The part stands still until the end of the block."""
    part.hold()
    try:
        yield
    finally:
        part.go_on()


def gateway_killed(scene: Scene, chance: random.Random) -> float:
    """The active gateway is killed and started again."""
    with lost(scene.pair.active):
        return scene.accepted_again()


def gateway_stopped(scene: Scene, chance: random.Random) -> float:
    """The active gateway is stopped under load for longer than its lease, and continues: it is deposed."""
    active = scene.pair.active
    with held(active):
        seconds = scene.accepted_again()
        time.sleep(chance.uniform(0, 3))
        scene.watch_stopped(active)
    wait_until(lambda: active.is_waiting, "the stopped gateway waits", WAITS_SECONDS)
    scene.watch_stopped(None)
    return seconds


def gateway_paused(scene: Scene, chance: random.Random) -> float:
    """The active gateway is stopped for a moment, like on a machine that swaps, or for about its lease."""
    with held(scene.pair.active):
        scene.ledger.mark()
        time.sleep(chance.uniform(0.2, 8))
    return scene.wait_for_acceptance()


def waiting_gateway_killed(scene: Scene, chance: random.Random) -> float:
    """The waiting gateway is killed; no client notices."""
    with lost(scene.pair.other(scene.pair.active)):
        return scene.accepted_again()


def primary_crashed(scene: Scene, chance: random.Random) -> float:
    """All processes of the primary are killed; Patroni sees it."""
    scene.cluster.primary().crash()
    return scene.accepted_again()


def primary_lost(scene: Scene, chance: random.Random) -> float:
    """The primary and its Patroni are killed, and started again when there is another primary."""
    with lost(scene.cluster.primary()):
        return scene.accepted_again()


def primary_stopped(scene: Scene, chance: random.Random) -> float:
    """The primary's machine stands still until there is another primary, and continues."""
    with held(scene.cluster.primary()):
        seconds = scene.accepted_again()
        time.sleep(chance.uniform(0, 3))
    return seconds


def standby_lost(scene: Scene, chance: random.Random) -> float:
    """A standby and its Patroni are killed and started again; often it is the synchronous standby."""
    primary, standby = scene.cluster.primary(), scene.cluster.synchronous_standby()
    if chance.random() < 0.3:
        standby = next(node for node in scene.cluster.nodes if node not in (primary, standby))
    with lost(standby):
        return scene.accepted_again()


def standby_stopped(scene: Scene, chance: random.Random) -> float:
    """
    The synchronous standby's machine stands still, for a moment or until another one is synchronous, and continues.
    """
    with held(standby := scene.cluster.synchronous_standby()):
        scene.ledger.mark()
        if chance.random() < 0.5:
            time.sleep(chance.uniform(0.2, 5))
            standby.go_on()
        return scene.wait_for_acceptance()


def etcd_lost(scene: Scene, chance: random.Random) -> float:
    """etcd is killed and comes back; the primary reaches all other nodes, and goes on."""
    with lost(scene.cluster.etcd):
        time.sleep(chance.uniform(0, 12))
        return scene.accepted_again()


def etcd_stopped(scene: Scene, chance: random.Random) -> float:
    """etcd stands still and continues; the primary goes on."""
    with held(scene.cluster.etcd):
        time.sleep(chance.uniform(0, 12))
        return scene.accepted_again()


def all_lost(scene: Scene, chance: random.Random) -> float:
    """The active gateway and the primary crash at the same time."""
    active, primary = scene.pair.active, scene.cluster.primary()
    primary.crash()
    with lost(active):
        return scene.accepted_again()


# --- between gateways and database ----------------------------------------------------------------------------------


def _passes(way: Way, number: int, chunk: bytes) -> Fate:
    return Fate.PASS


@contextmanager
def _fate(proxies: list[Proxy], fate: Callable[[Way, int, bytes], Fate]) -> Iterator[None]:
    for proxy in proxies:
        proxy.fate = fate
    try:
        yield
    finally:
        for proxy in proxies:
            proxy.fate = _passes


def _active_proxies(scene: Scene) -> list[Proxy]:
    return scene.proxies[scene.pair.active.name]


def connections_cut(scene: Scene, chance: random.Random) -> float:
    """All connections of the active gateway are cut, several times, some in the middle of a message."""
    proxies = _active_proxies(scene)
    fates = (Fate.PASS, Fate.PASS, Fate.PASS, Fate.PASS_AND_CUT, Fate.CUT, Fate.HALVE_AND_CUT)
    with _fate(proxies, lambda way, number, chunk: chance.choice(fates) if number > 8 else Fate.PASS):
        for _ in range(chance.randint(1, 4)):
            for proxy in proxies:
                proxy.cut()
            scene.ledger.mark()
            time.sleep(chance.uniform(0, 0.5))
    return scene.wait_for_acceptance()


def connections_delayed(scene: Scene, chance: random.Random) -> float:
    """For some seconds, everything between the active gateway and the database is delayed."""

    def late(way: Way, number: int, chunk: bytes) -> Fate:
        time.sleep(chance.uniform(0, 0.3))
        return Fate.PASS

    with _fate(_active_proxies(scene), late):
        time.sleep(chance.uniform(1, 5))
        return scene.accepted_again()


def connections_swallowed(scene: Scene, chance: random.Random) -> float:
    """Nothing passes between the active gateway and the database for a while, as behind a firewall that drops."""
    proxies = _active_proxies(scene)
    with _fate(proxies, lambda way, number, chunk: Fate.SWALLOW):
        scene.ledger.mark()
        time.sleep(chance.uniform(0.5, 12))
    for proxy in proxies:
        proxy.cut()
    return scene.wait_for_acceptance()


def gateway_cut_off(scene: Scene, chance: random.Random) -> float:
    """The active gateway cannot connect to the database, but the other one can: it takes over."""
    active = scene.pair.active
    proxies = scene.proxies[active.name]
    try:
        for proxy in proxies:
            proxy.refuses = True
            proxy.cut()
        seconds = scene.accepted_again()
        if not scene.pair.other(active).is_active:
            raise Failed("a gateway that has no database accepts messages")
    finally:
        for proxy in proxies:
            proxy.refuses = False
    return seconds


GATEWAY_KILLED: Final = Fault("active gateway killed", 5, 5.0, gateway_killed)
GATEWAY_STOPPED: Final = Fault("active gateway stopped past its lease", 5, 20.0, gateway_stopped)
PRIMARY_CRASHED: Final = Fault("primary crashed", 5, 30.0, primary_crashed)
PRIMARY_LOST: Final = Fault("primary's machine lost", 1, SILENT_SECONDS, primary_lost)
STANDBY_LOST: Final = Fault("standby's machine lost", 3, BUSY_SECONDS, standby_lost)
IN_TURN: Final = (GATEWAY_KILLED, GATEWAY_STOPPED, PRIMARY_CRASHED, PRIMARY_LOST, STANDBY_LOST)
"""The faults of ``./run ha``, in order."""

FAULTS: Final = (
    GATEWAY_KILLED,
    GATEWAY_STOPPED,
    Fault("active gateway stopped for a moment", 3, BUSY_SECONDS, gateway_paused),
    Fault("waiting gateway killed", 1, BUSY_SECONDS, waiting_gateway_killed),
    PRIMARY_CRASHED,
    PRIMARY_LOST,
    Fault("primary's machine stopped", 1, SILENT_SECONDS, primary_stopped),
    STANDBY_LOST,
    Fault("standby's machine stopped", 2, SILENT_SECONDS, standby_stopped),
    Fault("etcd killed", 2, BUSY_SECONDS, etcd_lost),
    Fault("etcd stopped", 2, BUSY_SECONDS, etcd_stopped),
    Fault("primary crashed, active gateway killed", 2, BUSY_SECONDS, all_lost),
    Fault("connections to the database cut", 4, BUSY_SECONDS, connections_cut),
    Fault("connections to the database delayed", 3, BUSY_SECONDS, connections_delayed),
    Fault("connections to the database silent", 3, BUSY_SECONDS, connections_swallowed),
    Fault("active gateway cut off from the database", 3, BUSY_SECONDS, gateway_cut_off),
)
"""All faults; every run begins with each of them once."""
