"""One gateway at a time has a store, across failovers of the server and failures of the network."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gateway.core.effects import Effect
from store.copies import SKIP_IDS
from store.errors import Deposed, StoreHeld
from store.ports import Batch, Durability
from store.postgresql import takeover
from store.postgresql.check import check_vpn
from store.postgresql.database import Connection, Database
from store.postgresql.partitions import attached_spans
from store.postgresql.store import PostgresStores
from tests.store.effects import applied, publication, queue, settled, trimming
from tests.store.histories import histories
from tests.store.postgresql.vpn import OPTIONS, Gateway, PostgresVpn, state_of, wait_for_standby
from tests.store.state import check_state
from tests.store.vpn_file import MADE_MS, empty_model
from tests.support.chance import times
from tests.support.naive_store import NaiveStore
from tests.support.postgresql import Server, eventually, server
from tests.support.tcp_proxy import Fate, Proxy, Way

# --- One gateway at a time has a store: waiting, takeover, and when a commit may be reported --------------------------


def test_a_store_that_is_held_says_by_whom(vpn: PostgresVpn) -> None:
    """The error names the holder's address, if it advertises one; once free, the store opens with all commits."""
    first = vpn.gateway(options=replace(OPTIONS, advertise="here:5672"))
    stores = vpn.stores()
    for _ in range(3):
        with pytest.raises(StoreHeld) as held:
            stores.open(vpn.name, MADE_MS, OPTIONS)
        assert held.value.active == "here:5672"
    assert first.commit(publication(1, [b"x"], time_ms=MADE_MS)) is None
    first.close()
    second = vpn.gateway(stores)
    assert second.store.recovered.log.next_id == 2
    with pytest.raises(StoreHeld) as held:
        vpn.stores().open(vpn.name, MADE_MS, OPTIONS)
    assert held.value.active is None


def test_a_gateway_with_another_epoch_is_refused(gateway: Gateway, asked: Connection) -> None:
    """If the store's epoch has changed, nothing that a gateway sends is stored, even if it still has the lock."""
    gateway.publish(1)
    asked.execute(b"update log set epoch = epoch + 1")
    assert isinstance(gateway.commit(publication(2, [b"y"] * 100, time_ms=MADE_MS)), Deposed)
    assert isinstance(gateway.commit(publication(3, [b"y"], time_ms=MADE_MS)), Deposed)
    assert list(state_of(asked).messages) == [1]


def test_an_idle_gateway_hears_that_it_was_deposed(gateway: Gateway, asked: Connection) -> None:
    """Its writer reports Deposed without any batch."""
    asked.execute(b"update log set epoch = epoch + 1")
    assert isinstance(gateway.wait_for_error(), Deposed)
    (told,) = gateway.told
    assert told.batches == []


def test_a_gateway_that_finds_out_while_it_cleans_up_hears_that_it_was_deposed(
    gateway: Gateway, asked: Connection
) -> None:
    """Its writer reports Deposed, although no batch and no heartbeat has found out."""
    asked.execute(b"insert into route (number, endpoints) values (9, '{}')")
    gateway.publish(1)  # soon after, it looks for routes without messages, and deletes this one
    asked.execute(b"update log set epoch = epoch + 1")
    assert isinstance(gateway.wait_for_error(), Deposed)
    assert gateway.told[-1].batches == []


def test_a_gateway_that_was_deposed_before_it_wrote_is_told(vpn: PostgresVpn, asked: Connection) -> None:
    """The heartbeat begins when the store is opened; a Deposed found before the writer starts is reported then."""
    store = vpn.stores().open(vpn.name, MADE_MS, OPTIONS)
    asked.execute(b"update log set epoch = epoch + 1")
    eventually(lambda: store._untold is not None, "the end of it")
    told: list[object] = []
    store.start_writer(lambda batches, error: told.append((batches, error)))
    store.close()
    ((batches, error),) = told
    assert batches == []
    assert isinstance(error, Deposed)


def test_a_gateway_that_stopped_is_taken_over(
    vpn: PostgresVpn, behind: Gateway, proxy: Proxy, asked: Connection
) -> None:
    """
    A gateway keeps its session but stops sending: after its lease another takes over. What the first one sends later
    is refused.
    """
    behind.publish(1)
    goes_on = threading.Event()
    held = threading.Event()

    def hold(*_: object) -> Fate:
        held.set()
        assert goes_on.wait(60)
        return Fate.PASS

    proxy.fate = hold
    assert held.wait(60)
    late = behind.submit(publication(2, [b"late"], time_ms=MADE_MS))
    other = vpn.taken_over(vpn.stores(lease_seconds=0.5))
    other.publish(2, b"theirs")
    goes_on.set()
    assert isinstance(behind.wait(late), Deposed)
    assert [row[6] for row in state_of(asked).messages.values()] == [b"x", b"theirs"]


def test_a_gateway_that_is_well_is_not_taken_over(vpn: PostgresVpn, gateway: Gateway) -> None:
    """An idle gateway keeps its store by heartbeats, however long another gateway waits for it."""
    stores = vpn.stores(lease_seconds=0.5)
    for _ in range(3):
        gateway.beat()
        for _ in range(5):
            with pytest.raises(StoreHeld):
                vpn.gateway(stores)
    assert gateway.told == []


@pytest.mark.parametrize("who", ["the one that had it", "one that waits"])
def test_ids_that_the_database_has_lost_are_not_given_out_again(
    vpn: PostgresVpn, asked: Connection, who: str
) -> None:
    """
    The database failed over to a standby that lacks commits which were reported. The active gateway is deposed, and a
    gateway that knows of the lost ids begins a new log with higher ids.
    """
    stores = vpn.stores()
    first = vpn.gateway(stores)
    for n in range(1, 4):
        assert first.commit(publication(n, [b"x"], time_ms=MADE_MS)) is None
    if who == "one that waits":
        stores = vpn.stores()
        with pytest.raises(StoreHeld):
            stores.open(vpn.name, MADE_MS, OPTIONS)
    before = first.store.recovered.log.generation
    with asked.transaction():
        asked.execute(b"update log set commit_no = commit_no - 2, last_id = 1")
        asked.execute(b"delete from message where id > 1")
    assert isinstance(first.commit(publication(4, [b"x"], time_ms=MADE_MS)), Deposed)
    first.close()
    second = vpn.gateway(stores)
    log = second.store.recovered.log
    assert log.generation != before
    assert log.next_id > 3 + SKIP_IDS
    assert second.commit(publication(log.next_id, [b"y"], time_ms=MADE_MS)) is None
    second.close()
    assert vpn.gateway(stores).store.recovered.log.generation == log.generation


def test_a_barrier_sees_another_epoch(vpn: PostgresVpn, asked: Connection) -> None:
    """The barrier returns the commit number, and raises Deposed if the epoch is another."""
    vpn.write([])
    ((epoch, commit_no),) = asked.execute(b"select epoch, commit_no from log").fetchall()
    assert takeover.barrier(asked, epoch) == commit_no
    with pytest.raises(Deposed):
        takeover.barrier(asked, epoch - 1)


def test_a_wait_that_somebody_ended_is_no_commit(
    vpn: PostgresVpn, asked: Connection, waited_for: Server
) -> None:
    """
    If the wait for a standby is cancelled, PostgreSQL reports a commit with a warning. The writer reports it only after
    a standby has it, and it is stored once.
    """
    asked.execute(b"set synchronous_commit = local")
    gateway = vpn.gateway()
    # No later commit has to make partitions.
    eventually(lambda: len(attached_spans(asked)) == 2, "the first partitions")
    wait_for_standby(waited_for, "nobody")
    batch = gateway.submit(publication(1, [b"x"], time_ms=MADE_MS))
    waits = (
        b"select pid, query_start::text from pg_stat_activity "
        b"where application_name like %s and wait_event = 'SyncRep'"
    )
    seen: list[tuple[int, str]] = []

    def waits_for_the(count: int) -> bool:
        rows = asked.execute(waits, (f"rewind % writer {vpn.name}",)).fetchall()
        seen.extend(row for row in rows if row not in seen)
        return len(seen) >= count

    for count in (1, 2, 3):
        eventually(partial(waits_for_the, count), "the wait")
        pid, _ = seen[-1]
        assert asked.execute(b"select pg_cancel_backend(%s::integer)", (pid,)).fetchall() == [(True,)]
    eventually(partial(waits_for_the, 4), "the last wait")
    assert gateway.told == []
    wait_for_standby(waited_for, "")
    assert gateway.wait(batch) is None
    assert gateway.commit(publication(2, [b"y"], time_ms=MADE_MS)) is None
    assert list(state_of(asked).messages) == [1, 2]


# --- A primary that stops or crashes, and its synchronous standby -----------------------------------------------------

SENT = 200
"""How many batches of ten messages are sent."""


@pytest.fixture
def primary() -> Iterator[Server]:
    """A server for one test."""
    with server() as found:
        yield found


@pytest.mark.postgresql
@pytest.mark.slow
@pytest.mark.parametrize("end", ["stopped", "crashed"])
def test_the_standby_goes_on_where_the_primary_ended(
    primary: Server, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The primary is stopped, with its connections open but silent, or killed. Publishers wait and go on with the standby
    once it is promoted, and each message is stored once.
    """
    monkeypatch.setattr("store.postgresql.writer.LOST_SECONDS", 1.0)
    standby = primary.standby(synchronous=True)
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write&connect_timeout=2"
    gateway = Gateway(PostgresStores(url).open("v", MADE_MS, OPTIONS))
    try:
        assert gateway.store.durability() is Durability.TWO_MACHINES
        sent = []
        assert gateway.commit(*queue(1, "q")) is None
        for n in range(SENT):
            made = publication(1 + 10 * n, [b"%d" % n] * 10, endpoints=(1,), time_ms=MADE_MS)
            sent.append(gateway.submit(made))
            if n == SENT // 2:
                assert gateway.wait(sent[SENT // 4]) is None
                if end == "stopped":
                    primary.hold()
                else:
                    primary.crash()
        standby.promote()
        assert [gateway.wait(batch) for batch in sent] == [None] * len(sent)
        with Database(standby.url()).connect("v", "test") as asked:
            assert sorted(state_of(asked).messages) == list(range(1, 10 * SENT + 1))
        assert gateway.store.durability() is Durability.ONE_MACHINE
        gateway.close()
        assert check_vpn(Database(standby.url()), "v") == []
    finally:
        primary.go_on()
        gateway.close()


# --- A server that is killed loses nothing that was reported as committed ---------------------------------------------


@pytest.fixture(scope="module")
def durable() -> Iterator[Server]:
    """A server for these tests that syncs its commits."""
    with server(quick=False) as found:
        yield found


@pytest.mark.postgresql
@pytest.mark.slow
@settings(max_examples=times(3, 60), phases=[Phase.explicit, Phase.generate])
@given(history=histories(), data=st.data())
def test_a_server_that_is_killed_loses_nothing_that_was_told(
    durable: Server, history: list[list[Effect]], data: st.DataObject
) -> None:
    """After a kill and a restart of the server, the writer finds out what was committed, and writes the rest once."""
    vpn = PostgresVpn(durable, durable.new_database(), "crash")
    model = empty_model()
    try:
        gateway = vpn.gateway()
        kill_at = data.draw(st.integers(0, len(history) - 1))
        batches = []
        for k, effects in enumerate(history):
            batches.append(gateway.submit(*effects))
            applied(model, effects)
            if k == kill_at:
                durable.crash()
                durable.start()
        assert [gateway.wait(batch) for batch in batches] == [None] * len(batches)
        gateway.close()
        with Database(vpn.url).connect(vpn.name, "test") as connection:
            assert state_of(connection) == model.state()
        vpn.gateway().close()
        assert check_vpn(Database(vpn.url), vpn.name) == []
    finally:
        vpn.close()


# --- Random failures of the network, and takeovers --------------------------------------------------------------------

ROUNDS = times(3, 300)
BATCHES = 40
"""Batches of a round, at the end of which another gateway takes over."""

LEASE_SECONDS = 0.2
PARTITION_BITS = 8

MISHAPS = [Fate.CUT, Fate.PASS_AND_CUT, Fate.HALVE_AND_CUT] * 12 + [Fate.SWALLOW]
"""Swallowed bytes are rarer, because the writer waits for the answer each time."""

SIZES = (1, 1, 1, 2, 10, 33, 100)


@dataclass
class Sent:
    """A batch that was sent, and its effects."""

    batch: Batch
    effects: list[Effect]


@dataclass
class Round:
    """The time of one gateway, and what it sends through a proxy that fails at random."""

    gateway: Gateway
    proxy: Proxy
    chance: random.Random
    model: NaiveStore
    """The naive store with all that was sent."""
    waiting: list[int]
    """The ids of the queue's unsettled messages."""
    known: NaiveStore = field(init=False)
    """The naive store with what was reported as committed at the last ``wait``."""
    sent: list[Sent] = field(default_factory=list)
    """What was sent since then."""

    def __post_init__(self) -> None:
        self.known = copy.deepcopy(self.model)
        self._mishaps = random.Random(self.chance.random())
        self._lock = threading.Lock()

    def fate(self, way: Way, number: int, chunk: bytes) -> Fate:
        """The fate of a chunk during the round."""
        with self._lock:
            return self._mishaps.choice(MISHAPS) if self._mishaps.random() < 0.03 else Fate.PASS

    def submit(self, effects: list[Effect]) -> None:
        """Send the effects as one batch."""
        self.sent.append(Sent(self.gateway.submit(*applied(self.model, effects)), effects))

    def publish(self) -> None:
        """Publish some messages, few enough for INSERT or enough for COPY, logged or not."""
        count = self.chance.choice(SIZES)
        first = self.model.last_id + 1
        is_logged = self.chance.random() < 0.8
        made = publication(first, [b"z"] * count, endpoints=(1,), time_ms=MADE_MS, logged=is_logged)
        self.submit([made])
        self.waiting += range(first, first + count)

    def settle(self) -> None:
        """Settle some of the queue's messages."""
        taken = set(self.chance.sample(self.waiting, min(10, len(self.waiting))))
        self.waiting = [number for number in self.waiting if number not in taken]
        self.submit(list(settled(self.model, 1, sorted(taken))))

    def trim(self) -> None:
        """Trim half of the log."""
        stop = (self.model.first_id + self.model.last_id) // 2
        if stop > self.model.first_id:
            self.submit([trimming(self.model, stop)])

    def wait(self) -> None:
        """Wait until everything that was sent is reported without an error."""
        assert [self.gateway.wait(sent.batch) for sent in self.sent] == [None] * len(self.sent)
        self.known = copy.deepcopy(self.model)
        self.sent = []

    def go(self) -> None:
        """Publish, settle and trim at random."""
        self.proxy.fate = self.fate
        for number in range(BATCHES):
            self.publish()
            # The gateway is not deposed yet, and failures of the network alone are never reported.
            if number % 10 == 0:
                self.wait()
            if self.chance.random() < 0.3:
                self.settle()
            if self.chance.random() < 0.04:
                self.wait()
                self.trim()

    def cut_off(self, goes_on: threading.Event) -> None:
        """Cut the gateway off the database, or stop it with its session open, and send one more batch."""
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
        Assert that the next gateway begins with the first so many of the batches: all that are reported without an
        error, and maybe some more. The rest must be reported as Deposed. Returns the naive store with that state.
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
        check_state(state_of(asked), self.known)
        return self.known


def _taken_over(vpn: PostgresVpn, proxy: Proxy) -> Gateway:
    """The next gateway, once the store is free."""
    stores = vpn.stores(proxy, partition_bits=PARTITION_BITS, lease_seconds=LEASE_SECONDS)
    return vpn.taken_over(stores)


@pytest.mark.timeout(600)  # a swallowed answer is waited for
def test_mishaps_and_takeovers_lose_nothing_that_was_told(
    vpn: PostgresVpn, asked: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Messages, settlements and trims go through a network that cuts connections and loses bytes. One gateway after the
    other is cut off or stopped with batches under way, and another takes over.
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
    for number in range(ROUNDS):
        turn = Round(gateway, proxies[number % 2], chance, model, waiting)
        turn.go()
        goes_on = threading.Event()
        turn.cut_off(goes_on)
        gateway = _taken_over(vpn, proxies[(number + 1) % 2])
        goes_on.set()
        model = turn.resolved(asked)
        assert gateway.store.recovered.log.next_id == model.last_id + 1
        waiting = [at for at in turn.waiting if at <= model.last_id]
        # Messages whose settlement was lost stay on the queue, and are not settled again here.
    assert gateway.commit(publication(model.last_id + 1, [b"end"], time_ms=MADE_MS)) is None
    gateway.close()
    assert check_vpn(Database(vpn.url), vpn.name) == []
