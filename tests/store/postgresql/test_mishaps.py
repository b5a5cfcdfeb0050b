"""
Mishaps of the network at random, and takeovers among them: what was told is there, once, whoever has the store; what
is there is what some gateway's batches leave, in order, and nothing of a gateway that was deposed comes later.
"""

from __future__ import annotations

import copy
import random
import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import settings

from gateway.core.effects import Effect
from store.errors import Deposed
from store.ports import Batch
from store.postgresql.check import check
from store.postgresql.database import Connection, Database
from tests.store.effects import applied, publication, queue, settled, trimming
from tests.store.postgresql.test_writer import check_state
from tests.store.postgresql.vpn import Gateway, PostgresVpn, state_of
from tests.store.vpn_file import MADE_MS, empty_model
from tests.support.naive_store import NaiveStore
from tests.support.tcp_proxy import Fate, Proxy, Way

ROUNDS = {"nightly": 300}
USUAL_ROUNDS = 3
BATCHES = 40
"""Of a round, at the end of which another gateway takes over."""

LEASE_SECONDS = 0.2
PARTITION_BITS = 8

MISHAPS = [Fate.CUT, Fate.PASS_AND_CUT, Fate.HALVE_AND_CUT] * 12 + [Fate.SWALLOW]
"""A swallowed answer is waited for, so it is rarer."""

SIZES = (1, 1, 1, 2, 10, 33, 100)


@dataclass
class Sent:
    """A batch, and what it is."""

    batch: Batch
    effects: list[Effect]


@dataclass
class Round:
    """One gateway's time, with what it sends through a proxy that has mishaps."""

    gateway: Gateway
    proxy: Proxy
    chance: random.Random
    model: NaiveStore
    """With all that was sent."""
    waiting: list[int]
    """Ids that the queue has, and that are not settled."""
    known: NaiveStore = field(init=False)
    """With what was sent up to some batch that was told of."""
    sent: list[Sent] = field(default_factory=list)
    """Since then."""

    def __post_init__(self) -> None:
        self.known = copy.deepcopy(self.model)
        self._mishaps = random.Random(self.chance.random())
        self._lock = threading.Lock()

    def fate(self, way: Way, number: int, chunk: bytes) -> Fate:
        """What becomes of a chunk while the round goes on."""
        with self._lock:
            return self._mishaps.choice(MISHAPS) if self._mishaps.random() < 0.03 else Fate.PASS

    def submit(self, effects: list[Effect]) -> None:
        """Send a batch, which is all or nothing."""
        self.sent.append(Sent(self.gateway.submit(*applied(self.model, effects)), effects))

    def publish(self) -> None:
        """Some messages, as many as go by INSERT or as go by COPY, logged or not."""
        count = self.chance.choice(SIZES)
        first = self.model.last_id + 1
        is_logged = self.chance.random() < 0.8
        made = publication(first, [b"z"] * count, endpoints=(1,), time_ms=MADE_MS, logged=is_logged)
        self.submit([made])
        self.waiting += range(first, first + count)

    def settle(self) -> None:
        """Some of the queue's messages."""
        taken = set(self.chance.sample(self.waiting, min(10, len(self.waiting))))
        self.waiting = [number for number in self.waiting if number not in taken]
        self.submit(list(settled(self.model, 1, sorted(taken))))

    def trim(self) -> None:
        """Half of the log."""
        stop = (self.model.first_id + self.model.last_id) // 2
        if stop > self.model.first_id:
            self.submit([trimming(self.model, stop)])

    def wait(self) -> None:
        """Until all that was sent is told of, without an error."""
        assert [self.gateway.wait(sent.batch) for sent in self.sent] == [None] * len(self.sent)
        self.known = copy.deepcopy(self.model)
        self.sent = []

    def go(self) -> None:
        """All but the end of it."""
        self.proxy.fate = self.fate
        for number in range(BATCHES):
            self.publish()
            # What is waited for is not deposed: mishaps alone are never told of.
            if number % 10 == 0:
                self.wait()
            if self.chance.random() < 0.3:
                self.settle()
            if self.chance.random() < 0.04:
                self.wait()
                self.trim()

    def cut_off(self, goes_on: threading.Event) -> None:
        """The gateway reaches the database no more, or is stopped with its session: under way are some batches."""
        if self.chance.random() < 0.5:
            self.proxy.refuses = True
            self.proxy.cut()
        else:

            def hold(way: Way, number: int, chunk: bytes) -> Fate:
                assert goes_on.wait(60)
                return Fate.PASS

            self.proxy.fate = hold
        self.publish()

    def resolved(self, asked: Connection) -> NaiveStore:
        """
        What the next gateway begins with, which is what some of the batches leave, from the first on. Those that are
        told of without an error, now or later, are among them, and the others are told that another has taken over.
        """
        self.proxy.fate = lambda way, number, chunk: Fate.PASS
        self.proxy.refuses = False
        errors = [self.gateway.wait(sent.batch) for sent in self.sent]
        told = sum(error is None for error in errors)
        assert errors[:told] == [None] * told
        assert all(isinstance(error, Deposed) for error in errors[told:])
        self.gateway.close()
        found = state_of(asked)
        for done, sent in enumerate(self.sent):
            if done >= told and found == self.known.state():
                return self.known
            applied(self.known, sent.effects)
        check_state(asked, self.known)
        return self.known


def _taken_over(vpn: PostgresVpn, proxy: Proxy) -> Gateway:
    """The next gateway, once the store is to be had."""
    stores = vpn.stores(proxy, partition_bits=PARTITION_BITS, lease_seconds=LEASE_SECONDS)
    return vpn.taken_over(stores)


@pytest.mark.timeout(600)  # a swallowed answer is waited for
def test_mishaps_and_takeovers_lose_nothing_that_was_told(
    vpn: PostgresVpn, asked: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Messages, settlements and trimmings through a network that cuts, halves and swallows, while one gateway after the
    other is cut off, or stopped, with batches under way, and another takes over.
    """
    monkeypatch.setattr("store.postgresql.writer.LOST_SECONDS", 0.5)
    monkeypatch.setattr("store.postgresql.database.LOST_SECONDS", 1)
    monkeypatch.setattr("store.postgresql.takeover.BEYOND_LEASE_SECONDS", 0.1)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    proxies = [vpn.proxy(), vpn.proxy()]
    model = empty_model()
    gateway = _taken_over(vpn, proxies[0])
    assert gateway.commit(*applied(model, queue(1, "q"))) is None
    waiting: list[int] = []
    for number in range(ROUNDS.get(settings.get_current_profile_name(), USUAL_ROUNDS)):
        turn = Round(gateway, proxies[number % 2], chance, model, waiting)
        turn.go()
        goes_on = threading.Event()
        turn.cut_off(goes_on)
        gateway = _taken_over(vpn, proxies[(number + 1) % 2])
        goes_on.set()
        model = turn.resolved(asked)
        assert gateway.store.recovered.log.next_id == model.last_id + 1
        waiting = [at for at in turn.waiting if at <= model.last_id]
        # What was settled, and was not stored, is left alone from now on.
    assert gateway.commit(publication(model.last_id + 1, [b"end"], time_ms=MADE_MS)) is None
    gateway.close()
    assert check(Database(vpn.url).connect(vpn.name, "check"), vpn.name) == []
