"""
The writer's connection cut at every step of a transaction, swallowed, refused: what is told is there, once, and what is
there is told.
"""

from __future__ import annotations

import threading
from itertools import count

import pytest

from store.errors import Deposed, WriteFailed
from store.postgresql.statements import Connection
from store.postgresql.transaction import FEW
from tests.store.effects import publication, queue, settled, trimming
from tests.store.postgresql.schema_state import state_of
from tests.store.postgresql.test_writer import applied, check_state
from tests.store.postgresql.vpn import PostgresVpn
from tests.store.vpn_file import MADE_MS, empty_model
from tests.support.postgresql import eventually
from tests.support.tcp_proxy import Fate, Proxy, Way


class OneMishap:
    """
    Something happens to the chunk with a number, of all that go one way from now on, and have some bytes in them; and
    nothing after.
    """

    def __init__(self, way: Way, number: int, fate: Fate, having: bytes = b"") -> None:
        self._way = way
        self._left = number
        self._fate = fate
        self._having = having
        self._lock = threading.Lock()
        self.has_happened = False

    def __call__(self, way: Way, number: int, chunk: bytes) -> Fate:
        with self._lock:
            if way is not self._way or self.has_happened or self._having not in chunk:
                return Fate.PASS
            if self._left:
                self._left -= 1
                return Fate.PASS
            self.has_happened = True
            return self._fate


@pytest.mark.parametrize("size", [1, FEW + 1], ids=["few", "many"])
@pytest.mark.parametrize(
    ("way", "fate"),
    [
        (Way.TO_SERVER, Fate.CUT),
        (Way.TO_SERVER, Fate.HALVE_AND_CUT),
        (Way.TO_SERVER, Fate.PASS_AND_CUT),
        (Way.TO_CLIENT, Fate.CUT),
    ],
    ids=["lost on the way", "half of it lost", "done and cut", "answer lost"],
)
def test_a_connection_that_is_cut_at_any_step(
    vpn: PostgresVpn, asked: Connection, way: Way, fate: Fate, size: int
) -> None:
    """
    Messages, a settlement and a trimming are committed, with a cut at one step after the other, until there is none
    left at which to cut: each is done once, and told of without an error.
    """
    proxy = vpn.proxy()
    gateway = vpn.gateway(vpn.stores(proxy))
    model = empty_model()
    assert gateway.commit(*applied(model, queue(1, "q"))) is None
    for step in count():
        mishap = OneMishap(way, step, fate)
        first = model.last_id + 1
        proxy.fate = mishap
        made = publication(first, [b"x"] * size, endpoints=(1,), time_ms=MADE_MS)
        assert gateway.commit(*applied(model, [made])) is None
        moves = settled(model, 1, [first])
        assert gateway.commit(*applied(model, [*moves])) is None
        if size > 1:
            assert gateway.commit(*applied(model, [trimming(model, first + 2)])) is None
        if not mishap.has_happened:
            break
        check_state(asked, model)
    proxy.fate = lambda way, number, chunk: Fate.PASS
    assert step > 1
    check_state(asked, model)


def test_an_answer_that_never_comes(
    vpn: PostgresVpn, asked: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stands, and the answer to what was sent was swallowed: it is looked for after a while."""
    monkeypatch.setattr("store.postgresql.writer.LOST_SECONDS", 0.5)
    proxy = vpn.proxy()
    gateway = vpn.gateway(vpn.stores(proxy))
    partitions = b"select count(*) from pg_inherits where inhparent = to_regclass('message')"
    eventually(lambda: asked.execute(partitions).fetchall() == [(2,)], "the first partitions")
    proxy.fate = mishap = OneMishap(Way.TO_CLIENT, 0, Fate.SWALLOW, b"INSERT")
    assert gateway.commit(publication(1, [b"x"], time_ms=MADE_MS)) is None
    assert mishap.has_happened
    assert list(state_of(asked).messages) == [1]
    assert gateway.commit(publication(2, [b"y"], time_ms=MADE_MS)) is None


def test_publishers_wait_for_a_database_that_is_gone(vpn: PostgresVpn, asked: Connection) -> None:
    """Nothing is told while it cannot be reached; when it can, all is done, in order."""
    proxy = vpn.proxy()
    gateway = vpn.gateway(vpn.stores(proxy))
    model = empty_model()
    _break(proxy)
    sent = [gateway.submit(*applied(model, [publication(n, [b"x"], time_ms=MADE_MS)])) for n in range(1, 20)]
    before = proxy.connections
    eventually(lambda: proxy.connections > before + 3, "more tries")
    assert gateway.told == []
    proxy.refuses = False
    assert [gateway.wait(batch) for batch in sent] == [None] * len(sent)
    check_state(asked, model)


def test_an_idle_writer_finds_its_connection_lost(vpn: PostgresVpn) -> None:
    """By its heartbeat: the next message need not wait for a new connection."""
    proxy = vpn.proxy()
    gateway = vpn.gateway(vpn.stores(proxy))
    proxy.cut()
    gateway.beat()
    assert gateway.told == []


def test_a_closed_writer_gives_up(
    vpn: PostgresVpn, asked: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be written within moments is reported, and the end comes."""
    monkeypatch.setattr("store.postgresql.writer.CLOSE_SECONDS", 0.5)
    proxy = vpn.proxy()
    gateway = vpn.gateway(vpn.stores(proxy))
    _break(proxy)
    batch = gateway.submit(publication(1, [b"x"], time_ms=MADE_MS))
    gateway.close()
    assert isinstance(gateway.wait(batch), WriteFailed)
    assert state_of(asked).messages == {}


def test_a_writer_is_closed_though_no_answer_comes(
    vpn: PostgresVpn, asked: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that it waits for is waited for no longer."""
    monkeypatch.setattr("store.postgresql.writer.CLOSE_SECONDS", 0.5)
    proxy = vpn.proxy()
    gateway = vpn.gateway(vpn.stores(proxy))
    proxy.fate = lambda way, number, chunk: Fate.SWALLOW
    proxy.refuses = True
    batch = gateway.submit(publication(1, [b"x"], time_ms=MADE_MS))
    gateway.close()
    assert isinstance(gateway.wait(batch), WriteFailed)
    assert state_of(asked).messages == {}


@pytest.mark.parametrize("moment", ["before", "in between"])
def test_taken_over_while_it_was_cut_off(vpn: PostgresVpn, asked: Connection, moment: str) -> None:
    """
    Another gateway takes over while this one cannot reach the database: what it had not committed is never stored, and
    what it sends from then on fails, all of it as Deposed.
    """
    proxy = vpn.proxy()
    gateway = vpn.gateway(vpn.stores(proxy))
    assert gateway.commit(publication(1, [b"first"], time_ms=MADE_MS)) is None
    if moment == "before":
        _break(proxy)
    else:
        # The transaction has begun.
        proxy.fate = OneMishap(Way.TO_SERVER, 0, Fate.HALVE_AND_CUT, b"lost")
        proxy.refuses = True
    lost = gateway.submit(publication(2, [b"lost"] * (FEW + 1), time_ms=MADE_MS))
    other = vpn.taken_over(vpn.stores())
    assert other.commit(publication(2, [b"theirs"], time_ms=MADE_MS)) is None
    proxy.refuses = False
    assert isinstance(gateway.wait(lost), Deposed)
    assert isinstance(gateway.commit(publication(3, [b"late"], time_ms=MADE_MS)), Deposed)
    assert [row[6] for row in state_of(asked).messages.values()] == [b"first", b"theirs"]
    assert other.commit(publication(3, [b"theirs"], time_ms=MADE_MS)) is None


def test_a_server_that_was_restarted(vpn: PostgresVpn, asked: Connection) -> None:
    """Its sessions end by its own word: the writer comes back, and goes on."""
    gateway = vpn.gateway()
    model = empty_model()
    sent = []
    for n in range(1, 60):
        sent.append(gateway.submit(*applied(model, [publication(n, [b"x"], time_ms=MADE_MS)])))
        if n % 20 == 0:
            asked.execute(
                b"select pg_terminate_backend(pid) from pg_stat_activity where application_name like %s",
                (f"rewind % writer {vpn.name}",),
            )
    assert [gateway.wait(batch) for batch in sent] == [None] * len(sent)
    check_state(asked, model)


def _break(proxy: Proxy) -> None:
    """There is no way to the server any more."""
    proxy.refuses = True
    proxy.cut()
