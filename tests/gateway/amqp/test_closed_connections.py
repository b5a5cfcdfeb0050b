"""
A closed connection leaves nothing, immediately, and without Python's cyclic collector, which would run long after the
buffers of its engine are needed for others.

The clients here work below proton's engine: every object of the engine that is counted is the gateway's.
"""

from __future__ import annotations

import gc
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import cproton
import pytest
import trustme
from proton import Message

from amqp_ext.codec import Symbol, UInt
from gateway.app import Gateway
from gateway.config import Limits, Listener, Tls, WebSocket
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.feeds.endpoint_feed import EndpointFeed, KeptRows
from gateway.vpn.runtime import Tuning
from store.ports import StoreOptions
from store.sqlite.store import SqliteStore, SqliteStores
from tests.gateway.amqp.conftest import Start, Telling
from tests.gateway.amqp.spec.conftest import ScriptedPeer, in_transaction
from tests.gateway.amqp.test_websocket import Tunnel, connected
from tests.support.client import Client
from tests.support.frames import (
    ACCEPTED,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    TRANSFER,
    flow_frame,
    frame,
    transfer_frame,
)
from tests.support.messages import data
from tests.support.peer import OK, Closed, Peer
from tests.support.running import RunningGateway
from tests.support.waiting import wait_until

OURS = (
    "gateway.amqp.",
    "gateway.vpn.feeds.",
    "gateway.vpn.consumers.StreamFeed",
    "gateway.vpn.history.LogSource",
    "gateway.core.replay.reading",
    "amqp_ext.message.annotations",
    "amqp_ext.sasl.",
    "proton.",
    "uvloop.loop.TCPTransport",
    "uvloop.loop.SSLProtocol",
    "uvloop.loop._SSLProtocolTransport",
    "websockets.server.",
    "ssl.SSLObject",
)
"""The classes that a connection's objects have."""

WAIT_SECONDS = 20.0

ROUNDS = 2

HISTORY = "log://>?replay-start=beginning"

REQUEST = Message(id="one", reply_to="$me", address="/queues/q", subject="GET").encode()
NO_TOKEN = Message(
    id="one", reply_to="$me", properties={"operation": "put-token", "type": "none", "name": "x"}, body="x"
).encode()


FEED = [f"{kind.__module__}.{kind.__qualname__}" for kind in (EndpointFeed, KeptRows)]
"""An endpoint's feed, and the rows it keeps."""


class Site:
    """A gateway with a listener of every kind, and clients of every kind."""

    def __init__(self, gateway: RunningGateway, authority: trustme.CA) -> None:
        self.gateway = gateway
        self._authority = authority

    def opened(self, listener: int = 0) -> ScriptedPeer:
        peer = ScriptedPeer.opened(self.gateway.host_and_port(listener))
        assert isinstance(peer, ScriptedPeer)
        return peer

    # --- kinds of clients: each returns when the gateway holds all that the client makes it hold -------------------

    def publisher(self) -> Peer:
        """Sends messages, the last of them without waiting for outcomes, and a settled one."""
        peer = self.opened()
        peer.attach_sender("topic://t/a")
        peer.publish_all([b"x" * 100] * 50)
        peer.send(*(transfer_frame(0, number, data(b"y")) for number in range(50, 150)))
        peer.send(transfer_frame(0, 150, data(b"z"), settled=True))
        return peer

    def relay_publisher(self) -> Peer:
        """Sends on the relay, to a bad address."""
        peer = self.opened()
        peer.attach_sender(None)
        peer.send(transfer_frame(0, 0, Message(address="", body="x").encode()))
        peer.skip_to(DISPOSITION)
        return peer

    def receiver(self, address: str, count: int = 0, credit: int = 20, accepts: int = 0) -> Peer:
        """Receives ``count`` messages, and accepts the first ``accepts`` of them."""
        peer = self.opened()
        peer.attach_receiver(address, credit=credit)
        for number in range(count):
            peer.receive(accept=number < accepts)
        return peer

    def browser(self) -> Peer:
        peer = self.opened()
        peer.attach(0, receiver=True, source=["q", *[None] * 5, Symbol("copy")])
        peer.send(flow_frame(0, 0, 20))
        for _ in range(20):
            peer.receive(accept=False)
        return peer

    def temporary_queue(self) -> Peer:
        peer = self.opened()
        peer.attach(0, receiver=True, source=[None, None, None, None, True])
        return peer

    def suspended_maker(self) -> Peer:
        """Leaves the link suspended for which a temporary queue was made, with a delivery that is not settled."""
        peer = self.opened()
        made = peer.attach(0, receiver=True, source=[None, None, None, None, True])
        peer.send(flow_frame(0, 0, 1))
        peer.attach(1, target=[made.fields[5].value[0]])
        peer.transfer(1, 0, data(b"x"))
        peer.receive(accept=False)
        peer.detach(0)
        return peer

    def transaction(self) -> Peer:
        """Publishes and acknowledges in a transaction, and does not discharge it."""
        peer = self.opened()
        peer.attach_coordinator(0)
        txn_id = peer.declare(0, 0)
        peer.attach(1, target=["q"])
        peer.transfer(1, 1, data(b"z"), state=in_transaction(txn_id))
        peer.skip_to(DISPOSITION)
        peer.first(2, source=["q"])
        peer.disposition(0, in_transaction(txn_id, ACCEPTED))
        # It is rejected, and its transaction cannot be committed any more.
        peer.transfer(1, 2, b"no message", state=in_transaction(txn_id))
        peer.skip_to(DISPOSITION)
        return peer

    def management(self) -> Peer:
        """Sends a request to RabbitMQ's node."""
        return self._paired(self.opened(2), "/management", REQUEST)

    def tokens(self) -> Peer:
        """Sends a bad token to Event Hubs' node."""
        return self._paired(self.opened(3), "$cbs", NO_TOKEN)

    @staticmethod
    def _paired(peer: ScriptedPeer, node: str, request: bytes) -> Peer:
        for handle, receiver in enumerate((False, True)):
            paired = {Symbol("paired"): True}
            peer.attach(
                handle, receiver=receiver, source=[node], target=[node], name="pair", properties=paired
            )
        peer.send(transfer_frame(0, 0, request))
        peer.skip_to(DISPOSITION)
        return peer

    def refused_attach(self) -> Peer:
        """Attaches to an invalid address."""
        peer = self.opened()
        peer.attach(0, receiver=True, source=["queue://not//one"])
        peer.expect(DETACH)
        return peer

    def detached_links(self) -> Peer:
        """Attaches and detaches links, and stays connected."""
        peer = self.opened()
        for handle in range(10):
            peer.attach(handle, receiver=handle % 2 == 1, source=["q"], target=["q"])
            peer.detach(handle, closed=True)
        return peer

    def protocol_error(self) -> Peer:
        """Sends on a session that does not exist, and gets a close."""
        peer = self.opened()
        peer.send(frame(TRANSFER, [UInt(0), UInt(0), b"t"], data(b"x"), channel=7))
        peer.skip_to(CLOSE)
        return peer

    def session_error(self) -> Peer:
        """Sends on a link that does not exist, gets an end, and begins another session."""
        peer = self.opened()
        peer.attach_receiver("q", credit=1)
        peer.send(transfer_frame(77, 0, data(b"x")))
        peer.skip_to(END)
        peer.send(frame(END, []))
        peer.begin()
        return peer

    def suspended_links(self) -> Peer:
        """Leaves a link suspended, with a delivery that is not settled."""
        peer = self.opened()
        peer.attach_sender("q")
        peer.publish(b"x")
        peer.attach_receiver("q", credit=1)
        peer.receive(accept=False)
        peer.detach(1)
        return peer

    def over_tls(self) -> Peer:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._authority.configure_trust(context)
        return self._publishes(Peer.connect(self.gateway.host_and_port(4), tls=context))

    def over_websocket(self) -> Peer:
        return self._publishes(Peer(Tunnel(connected(self.gateway.urls[1]))))  # type: ignore[arg-type]

    @staticmethod
    def _publishes(peer: Peer) -> Peer:
        assert peer.anonymous() == OK
        peer.open()
        peer.begin()
        peer.attach_sender("topic://t/a")
        peer.publish_all([b"x" * 100] * 50)
        return peer

    def silent(self) -> Peer:
        return Peer.connect(self.gateway.host_and_port())

    def half_signed_in(self) -> Peer:
        """Sends nothing after the SASL header."""
        peer = Peer.connect(self.gateway.host_and_port())
        peer.mechanisms()
        return peer

    def refused_sign_in(self) -> Peer:
        """Fails to sign in."""
        peer = Peer.connect(self.gateway.host_and_port())
        assert peer.sasl("PLAIN", b"\0nobody\0wrong") != OK
        return peer

    # --- what is left ---------------------------------------------------------------------------------------------

    def wait_until_gone(self) -> None:
        wait_until(lambda: not self.gateway.connections(), "the gateway keeps no connection")

    def grown(self, before: Counter[str]) -> Counter[str]:
        """What there is more of than before, once there is nothing, or after a time limit."""
        deadline = time.monotonic() + WAIT_SECONDS
        while (grown := self.count() - before) and time.monotonic() < deadline:
            pass
        return grown

    def count(self) -> Counter[str]:
        """Objects of ours by their class, and the engine's objects."""
        return self.gateway.call(lambda _: _count())

    def most(self) -> Counter[str]:
        """The same, with a feed for each endpoint: the sweep for expired messages makes and drops them at any time."""
        counted = self.count()
        endpoints = self.gateway.call(lambda gateway: len(gateway.vpns["default"].broker.endpoints))
        for name in FEED:
            counted[name] = endpoints
        return counted


def _count() -> Counter[str]:
    counted: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name.startswith(OURS):
            counted[name] += 1
    # Each connection, session, link and delivery of the engine that was ever looked at, and its transports.
    counted["the engine's objects"] = cproton.retained_count()
    return counted


@pytest.fixture(scope="module", autouse=True)
def _only_new_objects() -> Iterator[None]:
    """The million objects of all that was imported before these tests are not looked at again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def site(tmp_path: Path, start: Start, authority: trustme.CA) -> Iterator[Site]:
    """A site with messages on the queue `q`; the collector is off."""
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    issued.private_key_pem.write_to_path(tmp_path / "server.key")
    listeners = (
        Listener(port=0),
        Listener(port=0, websocket=WebSocket()),
        Listener(port=0, rabbitmq_mode=True),
        Listener(port=0, event_hubs_mode=True),
        Listener(port=0, tls=Tls(certificate=tmp_path / "server.pem", key=tmp_path / "server.key")),
    )
    # A page is smaller than the queue, so that readers are in the middle of it.
    site = Site(start(limits=Limits(read_page_rows=64), listeners=listeners), authority)
    with Peer.opened(site.gateway.host_and_port()) as peer:
        peer.attach_sender("q")
        peer.publish_all([b"x" * 300] * 1_000)
    gc.collect()
    gc.disable()
    yield site
    gc.enable()


def _resets(peer: Peer) -> None:
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.sock.close()


def _leaves(peer: Peer) -> None:
    peer.sock.close()


def _closes(peer: Peer) -> None:
    with suppress(Closed, OSError):
        peer.close()
    peer.sock.close()


KINDS: dict[str, Callable[[Site], Peer]] = {
    "publisher": Site.publisher,
    "relay publisher": Site.relay_publisher,
    "consumer that has settled some": partial(Site.receiver, address="q", count=40, credit=40, accepts=20),
    "log reader in the midst of history": partial(Site.receiver, address=HISTORY, count=20),
    "live reader": partial(Site.receiver, address="log://somewhere/>"),
    "paced reader, which waits for a second": partial(Site.receiver, address=f"{HISTORY}&rate=1", count=1),
    "finished reader that settles nothing": partial(
        Site.receiver, address="log://>?replay-start=%231&until=%233", count=3
    ),
    "stream reader": partial(Site.receiver, address="s?kind=stream"),
    "browser": Site.browser,
    "subscriber": partial(Site.receiver, address="topic://t/>"),
    "temporary queue": Site.temporary_queue,
    "transaction": Site.transaction,
    "management": Site.management,
    "tokens": Site.tokens,
    "refused attach": Site.refused_attach,
    "detached links": Site.detached_links,
    "session error": Site.session_error,
    "suspended links": Site.suspended_links,
    "suspended link of a temporary queue": Site.suspended_maker,
    "over TLS": Site.over_tls,
    "over WebSocket": Site.over_websocket,
}
CUT_SHORT: dict[str, Callable[[Site], Peer]] = {
    "silent": Site.silent,
    "half signed in": Site.half_signed_in,
    "refused sign in": Site.refused_sign_in,
    "protocol error": Site.protocol_error,
}
ENDS = [_closes, _leaves, _resets]


@pytest.mark.parametrize(
    ("kind", "ends"),
    [*((kind, ENDS) for kind in KINDS.values()), *((kind, ENDS[1:]) for kind in CUT_SHORT.values())],
    ids=[*KINDS, *CUT_SHORT],
)
def test_nothing_is_left_of_a_closed_connection(
    site: Site, kind: Callable[[Site], Peer], ends: list[Callable[[Peer], None]]
) -> None:
    """However a connection ends and whatever it did, no object of ours and none of the engine's outlives it."""
    # Objects that are made once, with the first connection of a kind, do not count.
    for end in ends:
        end(kind(site))
    site.wait_until_gone()
    gc.collect()
    before = site.most()
    for end in ends * ROUNDS:
        end(kind(site))
    site.wait_until_gone()
    assert not site.grown(before)


def test_nothing_is_left_of_detached_links(site: Site) -> None:
    """A connection that attaches and detaches again and again holds no more than one that did so once."""
    with site.opened() as peer:

        def attach_and_detach() -> None:
            for handle, address in enumerate(("q", "log://>", "topic://t/>", "s?kind=stream")):
                peer.attach(handle, receiver=True, source=[address])
                peer.send(flow_frame(handle, 0, 1))
            peer.attach(4, target=["q"])
            for handle in range(5):
                peer.detach(handle, closed=True)

        attach_and_detach()
        gc.collect()
        before = site.most()
        for _ in range(ROUNDS):
            attach_and_detach()
        assert not site.grown(before)


# --- what arrives after a link is closed ----------------------------------------------------------------------------


def test_a_commit_that_is_told_of_when_its_publisher_is_gone(telling: Telling, site: Site) -> None:
    """Deliveries of a lost connection are not touched, and its messages are stored all the same."""
    before = site.gateway.depth("q") or 0
    peer = site.opened()
    peer.attach_sender("q")
    telling.hold()
    # Too many for a commit on the loop's own thread.
    peer.send(*(transfer_frame(0, number, data(b"x" * 1_000)) for number in range(500)))
    wait_until(
        lambda: site.gateway.call(lambda gateway: gateway.vpns["default"].committer.pending_bytes),
        "it is being committed",
    )
    _resets(peer)
    site.wait_until_gone()
    telling.go_on()
    wait_until(lambda: (site.gateway.depth("q") or 0) > before, "some of it is stored")
    with site.opened() as other:
        other.attach_sender("q")
        other.publish(b"one more")


class _HeldPages(SqliteStores):
    """Stores that return pages of the log only while ``may_read`` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_read = threading.Event()
        self.may_read.set()
        self.was_asked = threading.Event()

    def open(self, vpn: str, now_ms: int, options: StoreOptions) -> SqliteStore:
        store = super().open(vpn, now_ms, options)
        log_page = store.reader.log_page

        def held(*arguments: Any, **options: Any) -> Any:
            if not self.may_read.is_set():
                self.was_asked.set()
                assert self.may_read.wait(WAIT_SECONDS)
            return log_page(*arguments, **options)

        store.reader.log_page = held  # type: ignore[method-assign]
        return store


@pytest.fixture
def pages(given: dict[str, Any], tmp_path: Path) -> _HeldPages:
    """Request it before a gateway."""
    pages = _HeldPages(tmp_path / "data")
    given["stores"] = lambda folder: pages
    return pages


def test_a_page_that_arrives_when_its_reader_is_gone(pages: _HeldPages, site: Site) -> None:
    """It wakes nobody, and then nothing is left of the reader."""
    site.gateway.restart()  # History is in the file alone.
    _resets(site.receiver(HISTORY, count=20))
    site.wait_until_gone()
    gc.collect()
    before = site.most()
    pages.may_read.clear()
    peer = site.receiver(HISTORY)
    assert pages.was_asked.wait(WAIT_SECONDS)
    _resets(peer)
    del peer
    site.wait_until_gone()
    pages.may_read.set()
    assert not site.grown(before)
    with site.receiver(HISTORY, count=1):
        pass


def test_a_publisher_that_left_is_not_waited_for(gateway: RunningGateway) -> None:
    """While the store takes nothing, publishers that come and go do not add up."""

    def waiting(running: Gateway) -> int:
        return len(running.vpns["default"].committer._waiting_for_room)

    most = Tuning().pending_bytes
    gateway.call(lambda running: running.vpns["default"].committer.hold(most))
    for _ in range(2):
        client = Client(gateway.url)
        client.sender("topic://a").send(data("x"))
        client.wait(lambda: gateway.call(waiting) == 1, "it waits for room")
        gateway.call(_stop_all)
        client.cut()
        wait_until(lambda: gateway.call(waiting) == 0, "it is forgotten")
    gateway.call(lambda running: running.vpns["default"].committer.let_go(most))


def _stop_all(running: Gateway) -> None:
    for connection in running.connections:
        connection.stop(Refused(ErrorCode.CONNECTION_FORCED, "the test says so"))
