"""
How much one peer can make the gateway hold. Each way to have it hold more and more ends at a bound, with an error that
names the limit, while a well-behaved client is served. Memory is bounded for any queue; a full disk is reported.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import trustme

from amqp_ext.codec import Symbol, UInt, encode
from amqp_ext.sasl import hash_password
from gateway.users import WAITING_PER_ADDRESS
from store.sqlite.check import check
from tests.bench.filled import QUEUE, fill
from tests.support.client import Client, texts
from tests.support.frames import (
    ATTACH,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    SASL_FRAME,
    SASL_HEADER,
    SASL_INIT,
    SASL_OUTCOME,
    TRANSFER,
    attach_frame,
    begin_frame,
    error_of,
    frame,
    framed,
    transfer_frame,
)
from tests.support.frames import disposition as accepted
from tests.support.messages import data
from tests.support.peer import OK, SYS_TEMP, TIMEOUT, Closed, Peer
from tests.support.running import PLAIN_HTTP
from tests.support.waiting import wait_until
from tests.system.conftest import Start
from tests.system.gateway_process import GatewayProcess
from tests.system.load import Bystander

MEGABYTE = 2**20
ONE_PEER = 48 * MEGABYTE
"""No single peer may make the process grow by more."""

OVER = "amqp:resource-limit-exceeded"


def piece(handle: int, body: bytes) -> bytes:
    """A further transfer of the delivery under way on a link, with more to come."""
    return frame(TRANSFER, [UInt(handle), None, None, None, None, True], body)


def wait_until_said(gateway: GatewayProcess, limit: str) -> None:
    """Wait until the gateway's log says that a connection was refused by this limit."""
    lines = partial(gateway.log_lines, "connection_refused")
    wait_until(lambda: any(limit in str(line) for line in lines()), f"a line that names {limit}")


def is_let_in(gateway: GatewayProcess) -> bool:
    """Whether a new client can sign in."""
    try:
        with Peer.connect(gateway.address) as peer:
            return peer.anonymous() == OK
    except (Closed, OSError):
        return False


@contextmanager
def harmless(gateway: GatewayProcess) -> Iterator[Bystander]:
    """
    Checks that another client is served during the block, and that the gateway grows by no more than one peer's bound.
    """
    before = gateway.resident_bytes()
    with Bystander(gateway) as bystander:
        yield bystander
        assert gateway.resident_bytes() - before < ONE_PEER


def users(*names: str, iterations: int = 4_096, more: str = "") -> str:
    """Settings of users with the password `pencil`."""
    password = hash_password("pencil", salt=b"0123456789abcdef", iterations=iterations)
    return "".join(f'[user.{name}]\npassword = "{password}"\n{more}' for name in names)


def send_until_refused(peer: Peer, chunk: bytes, most_bytes: int) -> int:
    """Send a chunk again and again until the gateway stops reading for a second or closes; returns the bytes sent."""
    peer.sock.settimeout(1)
    sent = 0
    with suppress(OSError):
        while sent < most_bytes:
            sent += peer.sock.send(chunk)
    return sent


# --- sessions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", [300, 4_000])
def test_sessions_that_begin_and_end_in_one_write_harm_nobody(start: Start, pairs: int) -> None:
    """
    A burst of begins and ends makes the engine give up: the connection ends, and the gateway can still be stopped.
    """
    gateway = start()
    with Peer.opened(gateway.address) as peer, harmless(gateway):
        with suppress(OSError):
            peer.send((framed(begin_frame()[8:], channel=1) + framed(frame(END, [])[8:], channel=1)) * pairs)
            # A connection that no longer answers would leave this close without an answer.
            peer.send(frame(CLOSE, []))
        peer.rest()
    assert gateway.stop() == 0


def test_what_attaches_say_is_counted(start: Start) -> None:
    """Links with names of 60 KB: the connection is closed before they take more memory than one peer may."""
    gateway = start()
    received = None
    with Peer.opened(gateway.address) as peer, harmless(gateway):
        for handle in range(1_000):
            name = f"{handle}{'x' * 60_000}"
            peer.send(attach_frame(handle, receiver=True, address="queue://q", name=name))
            while (received := peer.frame()) is None or received.code not in (ATTACH, CLOSE):
                pass
            if received.code == CLOSE:
                break
    assert received is not None and error_of(received)[0] == OVER
    wait_until_said(gateway, "connection_bytes")


def test_links_are_counted(start: Start) -> None:
    """A peer that attaches link after link is closed once its links exceed what one connection may hold."""
    gateway = start(f"[limits]\nconnection_bytes = {4 * MEGABYTE}\n")
    links = 0
    with Bystander(gateway), Peer.opened(gateway.address) as peer:
        peer.send(*(attach_frame(handle, receiver=False, address="queue://links") for handle in range(1_000)))
        with suppress(Closed):
            while (received := peer.frame()) is None or received.code != CLOSE:
                links += received is not None and received.code == ATTACH
            assert error_of(received)[0] == OVER
    assert 300 < links < 500
    wait_until_said(gateway, "connection_bytes")


# --- unfinished messages --------------------------------------------------------------------------------------------


def test_unfinished_messages_are_counted(start: Start) -> None:
    """A hundred links with an unfinished message each, none too large alone: the connection is closed."""
    gateway = start()
    before = gateway.resident_bytes()
    with Bystander(gateway), Peer.opened(gateway.address) as peer:
        for _ in range(100):
            peer.attach_sender("queue://unfinished")
        with suppress(OSError):
            for handle in range(100):
                peer.send(transfer_frame(handle, handle, data(b"")[:3] + bytes(50_000), more=True))
                for _ in range(150):
                    peer.send(piece(handle, bytes(60_000)))
        assert gateway.peak_bytes() - before < ONE_PEER
        with suppress(Closed):
            assert error_of(peer.skip_to(CLOSE))[0] == OVER
    wait_until_said(gateway, "connection_bytes")


def test_all_peers_together_are_bounded(start: Start) -> None:
    """
    Past ``memory_mb`` new clients are refused. When publishers wait for memory, the connection that holds the most is
    closed, and they go on.
    """
    gateway = start("[limits]\nmemory_mb = 8\n")
    with Peer.opened(gateway.address) as large, Peer.opened(gateway.address) as small:
        for peer, pieces in ((large, 120), (small, 30)):
            peer.attach_sender("queue://unfinished")
            peer.send(transfer_frame(0, 0, data(b"x" * 50_000), more=True))
            peer.send(*(piece(0, data(b"x" * 50_000)) for _ in range(pieces)))
        with suppress(Closed, OSError):
            large.send(*(piece(0, data(b"x" * 50_000)) for _ in range(20)))
        wait_until(lambda: not is_let_in(gateway), "newcomers are refused")
        wait_until_said(gateway, "memory_mb")
        condition, text = error_of(large.skip_to(CLOSE))
        assert condition == OVER
        assert "memory_mb" in text
        small.send(frame(TRANSFER, [UInt(0), None, None, None, None, False], data(b"end")))
        assert small.skip_to(DISPOSITION).field(4).descriptor == 0x24


def test_a_user_s_connections_are_bounded_together(start: Start) -> None:
    """Past ``user_bytes`` the user's largest connection is closed; another user's message is accepted meanwhile."""
    config = users("ann", "bob", more='publish = ["queue://*"]\n')
    gateway = start(f"{config}[limits]\nuser_bytes = {6 * MEGABYTE}\n")

    def opened(user: str) -> Peer:
        peer = Peer.connect(gateway.address)
        assert peer.plain(user, "pencil") == OK
        peer.open()
        peer.begin()
        peer.attach_sender("queue://unfinished")
        return peer

    with opened("ann") as large, opened("ann") as small, opened("bob") as other:
        small.send(transfer_frame(0, 0, data(b"x" * 50_000), more=True))
        large.send(transfer_frame(0, 0, data(b"x" * 50_000), more=True))
        with suppress(OSError):
            large.send(*(piece(0, data(b"x" * 50_000)) for _ in range(140)))
        other.publish(b"beside")
        condition, text = error_of(large.skip_to(CLOSE))
        assert condition == OVER
        assert "user_bytes" in text
        small.send(frame(TRANSFER, [UInt(0), None, None, None, None, False], data(b"end")))
        assert small.skip_to(DISPOSITION).field(4).descriptor == 0x24


# --- deliveries -----------------------------------------------------------------------------------------------------


def test_deliveries_that_are_not_settled_are_bounded(start: Start) -> None:
    """
    A log reader gets as many deliveries as it may leave unsettled, and more as it settles. With many readers, a
    connection gets at most half of ``connection_bytes`` in deliveries, and is not closed for it.
    """
    gateway = start("[limits]\nmax_unsettled_per_flow = 1000\nconnection_bytes = 3_072_000\n")
    with Peer.opened(gateway.address) as peer:
        peer.attach_sender("topic://held")
        peer.publish_all([b"x"] * 3_000)

    def receive_all(peer: Peer) -> int:
        received = 0
        peer.sock.settimeout(1)
        with suppress(TimeoutError):
            while True:
                peer.receive(accept=False)
                received += 1
        peer.sock.settimeout(TIMEOUT)
        return received

    with Peer.opened(gateway.address) as peer:
        peer.attach_receiver("log://held?replay-start=beginning", credit=3_000)
        assert receive_all(peer) == 1_000
        peer.send(*(accepted(number, number) for number in range(500)))
        assert receive_all(peer) == 500
    with Bystander(gateway), Peer.opened(gateway.address) as peer:
        for _ in range(3):
            peer.attach_receiver("log://held?replay-start=beginning", credit=3_000)
        assert 1_400 <= receive_all(peer) <= 1_500


# --- a peer that never reads ----------------------------------------------------------------------------------------


def test_a_peer_that_reads_no_answer_is_not_read(start: Start) -> None:
    """
    A peer sends messages that are all rejected with a reason, and never reads: once the rejections fill the output
    buffer, the gateway stops reading from the peer.
    """
    gateway = start("[limits]\nconnection_output_bytes = 65536\n")
    with Peer.opened(gateway.address) as peer, harmless(gateway):
        peer.attach_sender("queue://rejecting")
        sent = 0
        peer.sock.settimeout(1)
        with suppress(TimeoutError):
            while sent < 2_000_000:
                peer.send(*(transfer_frame(0, number, b"no message") for number in range(sent, sent + 500)))
                sent += 500
        assert sent < 2_000_000


def test_answers_that_nobody_reads_are_bounded_however_much_comes_at_once(start: Start) -> None:
    """
    A gateway that was stopped finds megabytes of refused messages for the anonymous relay in a socket's buffer, and
    reads them in one turn of its loop. It stops reading once the answers fill the socket.
    """
    gateway = start()
    before = gateway.resident_bytes()
    refused = b"\x00\x53\x73" + encode([None, None, "topic://a\0"]) + data(b"x")
    with Peer.opened(gateway.address) as peer:
        peer.attach_sender(None)
        os.kill(gateway.pid, signal.SIGSTOP)
        peer.sock.settimeout(0.5)
        sent = 0
        with suppress(TimeoutError):
            while sent < 400_000:
                peer.send(*(transfer_frame(0, number, refused) for number in range(sent, sent + 500)))
                sent += 500
        os.kill(gateway.pid, signal.SIGCONT)
        assert sent * len(transfer_frame(0, 0, refused)) > 2 * MEGABYTE, (
            "the socket's buffers took little: nothing is shown"
        )
        with Bystander(gateway) as bystander:
            wait_until(lambda: bystander.count > 50, "others are served")
        assert gateway.resident_bytes() - before < ONE_PEER


def test_readers_over_http_that_never_read_hold_a_piece_each(start: Start) -> None:
    """
    Twenty stalled event streams of large messages hold no page of the log; when a client reads, its page is read again.
    """
    gateway = start()
    admin = urlsplit(gateway.ready["admin"])
    ask = f"GET /v1/log?from=beginning HTTP/1.1\r\nHost: {admin.netloc}\r\nAccept: text/event-stream\r\n\r\n"

    def held(kind: str) -> float:
        text = httpx.get(f"{gateway.ready['admin']}/metrics", **PLAIN_HTTP).text
        found = re.search(rf'^rewind_held_bytes\{{kind="{kind}"\}} (.+)$', text, re.MULTILINE)
        assert found is not None
        return float(found[1])

    with Peer.opened(gateway.address) as publisher, ExitStack() as stack:
        publisher.attach_sender("topic://held")
        publisher.publish_all([b"x" * 20_000] * 2_000)
        held("pages")  # the first request loads the modules that answer
        before = gateway.peak_bytes()
        readers = [
            stack.enter_context(socket.create_connection((admin.hostname or "", admin.port or 0)))
            for _ in range(20)
        ]
        for reader in readers:
            reader.sendall(ask.encode())
        wait_until(lambda: held("unsettled") >= 20 * 200_000, "each has a piece")
        wait_until(lambda: held("pages") == 0, "no page is kept")
        assert held("unsettled") < 20 * 600_000
        assert gateway.peak_bytes() - before < 96 * MEGABYTE
        readers[0].settimeout(10)
        answer = b""
        while b"\nid: 2000\n" not in answer[-100_000:]:
            answer += readers[0].recv(1_000_000)
        assert [int(i) for i in re.findall(rb"\nid: ([0-9]+)\n", answer)][-2_000:] == list(range(1, 2_001))


def test_a_flood_of_attaches_has_nobody_wait_long(start: Start) -> None:
    """While one peer sends 1,500 attaches in one write, all refused, others are served after every few of them."""
    gateway = start("[limits]\nconnection_output_bytes = 65536\n")
    before = gateway.resident_bytes()
    ask = attach_frame(0, receiver=True, address="queue://not//one") + frame(DETACH, [UInt(0), True])
    with Bystander(gateway, pause_s=0) as bystander, Peer.opened(gateway.address) as peer:
        peer.send(ask * 1_500)
        # The peer's answers show the progress; the bystander is served between them, not after the last one.
        for asked in range(1_500):
            peer.skip_to(DETACH)
            if asked == 0:
                served = bystander.count
        assert bystander.count - served > 15
        assert gateway.resident_bytes() - before < ONE_PEER


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: amqp\r\n\r\n"
)


def test_before_it_has_opened_a_peer_s_websocket_holds_little(start: Start) -> None:
    """
    The gateway stops reading WebSocket pings whose pongs are not read. A WebSocket message of a megabyte from a peer
    that has not signed in is refused (1009), not kept.
    """
    gateway = start("[[listener]]\nport = 0\n[[listener]]\nport = 0\nwebsocket = {}\n", listen=())

    def upgraded() -> Peer:
        peer = Peer.connect(gateway.addresses[-1])
        peer.send(UPGRADE)
        while peer.take(1) != b"\n" or peer.take(2) != b"\r\n":
            pass
        return peer

    with upgraded() as peer, harmless(gateway):
        ping = b"\x89\xfd" + bytes(4) + bytes(125)
        assert send_until_refused(peer, ping * 500, 400 * MEGABYTE) < 100 * MEGABYTE
    with upgraded() as peer:
        peer.send(b"\x82\xff" + MEGABYTE.to_bytes(8, "big") + bytes(4))
        assert peer.take(4)[2:4] == (1009).to_bytes(2, "big")


# --- limits of connections ------------------------------------------------------------------------------------------


def test_an_address_has_a_share_of_the_connections(start: Start) -> None:
    """One connection too many from an address is refused; others are served, and so is the first after a disconnect."""
    gateway = start("[limits]\nmax_connections_per_address = 3\n")
    with ExitStack() as held:
        peers = [held.enter_context(Peer.opened(gateway.address)) for _ in range(3)]
        with pytest.raises((Closed, OSError)), Peer.connect(gateway.address) as refused:
            refused.anonymous()
        wait_until_said(gateway, "max_connections_per_address")
        other = held.enter_context(Peer.connect(gateway.address, source="127.0.0.2"))
        assert other.anonymous() == OK
        peers[0].close()
        wait_until(lambda: gateway.established_sockets() == 3, "the first is gone")
        held.enter_context(Peer.opened(gateway.address))


def test_a_user_has_a_share_of_the_connections(start: Start) -> None:
    """A user at the limit of connections is told so in the close of the next connection."""
    gateway = start(users("ann") + "[limits]\nmax_connections_per_user = 1\n")
    with Peer.connect(gateway.address) as first, Peer.connect(gateway.address) as second:
        for peer in (first, second):
            assert peer.plain("ann", "pencil") == OK
            peer.open()
        condition, text = error_of(second.skip_to(CLOSE))
        assert condition == OVER
        assert "max_connections_per_user" in text


def test_half_open_connections_are_counted_from_their_accept(start: Start, tmp_path: Path) -> None:
    """
    Peers that send nothing, not even a TLS hello, count against their address; clients of other addresses are served.
    """
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    issued.private_key_pem.write_to_path(tmp_path / "server.key")
    tls = f'tls = {{certificate = "{tmp_path}/server.pem", key = "{tmp_path}/server.key"}}\n'
    listener = "[[listener]]\nport = 0\n"
    gateway = start(f"{listener}{listener}{tls}[limits]\nmax_handshakes_per_address = 5\n", listen=())
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(trusting)
    for address, context in zip(gateway.addresses, (None, trusting), strict=True):
        with ExitStack() as held:
            for _ in range(5):
                held.enter_context(Peer.connect(address))
            with pytest.raises((Closed, OSError)), Peer.connect(address, tls=context) as refused:
                refused.anonymous()
            wait_until_said(gateway, "max_handshakes_per_address")
            other = held.enter_context(Peer.connect(address, tls=context, source="127.0.0.2"))
            assert other.anonymous() == OK
        wait_until(lambda: is_let_in(gateway), "they are gone")


def test_a_flood_of_sign_ins_keeps_no_other_address_out(start: Start) -> None:
    """
    While many wrong passwords from one address wait to be checked, a sign-in from another address is checked before
    them. Sign-ins beyond the number that an address may have waiting are told to try again later (code 4).
    """
    gateway = start(users("ann", iterations=1_000_000) + "[limits]\nmax_handshakes_per_address = 1000\n")
    wrong = SASL_HEADER + frame(SASL_INIT, [Symbol("PLAIN"), b"\0ann\0wrong"], kind=SASL_FRAME)
    with ExitStack() as held:
        flood = [held.enter_context(Peer.connect(gateway.address)) for _ in range(WAITING_PER_ADDRESS + 5)]
        for peer in flood:
            peer.send(wrong)
        last = flood.pop()
        last.take(8)
        assert last.skip_to(SASL_OUTCOME).fields[0] == SYS_TEMP
        other = held.enter_context(Peer.connect(gateway.address, source="127.0.0.2"))
        assert other.plain("ann", "pencil") == OK


HEAP_BYTES = 64 * MEGABYTE
"""The address space that glibc reserves for the heap of a thread (``HEAP_MAX_SIZE``)."""
SPOOLED = 500_000


def consume(gateway: GatewayProcess, queue: str, count: int) -> None:
    """Attach, take and accept this many messages."""
    with Peer.opened(gateway.address) as peer:
        peer.attach_receiver(f"queue://{queue}", credit=count)
        for _ in range(count):
            peer.receive()


def heaps_of_threads(gateway: GatewayProcess) -> int:
    """The number of glibc's heaps besides the main one: 64 MiB each, aligned, with a writable beginning."""
    mappings = [line.split() for line in Path(f"/proc/{gateway.pid}/maps").read_text().splitlines()]
    spans = [
        (int(first, 16), int(end, 16), access)
        for span, access, *_ in mappings
        for first, _, end in [span.partition("-")]
    ]
    return sum(
        start % HEAP_BYTES == 0 and access == "rw-p" and after == (end, start + HEAP_BYTES, "---p")
        for (start, end, access), after in pairwise(spans)
    )


def test_a_deep_queue_costs_a_window_of_ids(start: Start, tmp_path: Path) -> None:
    """With 500,000 messages on a queue the gateway holds less than 120 MB, before and after some are consumed."""
    fill(tmp_path / "data", SPOOLED, SPOOLED)
    gateway = start()
    assert gateway.resident_bytes() < 120 * MEGABYTE
    consume(gateway, QUEUE, 5_000)
    assert gateway.resident_bytes() < 120 * MEGABYTE


def test_a_consumer_that_stops_reading_costs_a_bounded_amount_and_nobody_else(start: Start) -> None:
    """
    A consumer with 100,000 credit that does not read costs at most 64 MiB, while another consumer gets all messages.
    """
    gateway = start()
    with Peer.opened(gateway.address) as publisher, Peer.opened(gateway.address) as stuck:
        publisher.attach_sender("queue://backlog")
        publisher.publish_all([b"x" * 32_000] * 4_000)
        before = gateway.peak_bytes()
        stuck.attach_receiver("queue://backlog", credit=100_000)
        publisher.attach_sender("queue://other")
        for _ in range(3):
            publisher.publish_all([b"for the other"] * 100, handle=1)
            consume(gateway, "other", 100)
        consume(gateway, "backlog", 100)
        assert gateway.peak_bytes() - before < 64 * MEGABYTE


def test_a_queue_that_nobody_consumes_from_costs_no_more_the_longer_it_gets(start: Start) -> None:
    """
    Once the 64 MiB of the tail and their overhead are taken, publishing as much again adds little memory. The writer,
    the readers and the loop share one heap, so that memory that one of them frees serves the others.

    Messages that wait for the disk make the peak differ by 20 MB from run to run; the second half publishes 160 MB.
    """
    gateway = start()
    before = gateway.resident_bytes()
    with Peer.opened(gateway.address) as publisher:
        publisher.attach_sender("queue://spool")
        publisher.publish_all([b"x" * 32_000] * 5_000, outstanding=400)
        filled = gateway.peak_bytes()
        publisher.publish_all([b"x" * 32_000] * 5_000, outstanding=400)
    consume(gateway, "spool", 250)
    assert heaps_of_threads(gateway) == 0
    assert filled - before < 192 * MEGABYTE
    assert gateway.peak_bytes() - filled < 64 * MEGABYTE


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that may log errors: a failed write is logged as one."""
    process = GatewayProcess(tmp_path / "data")
    yield process
    assert process.stop() == 0


def readiness(gateway: GatewayProcess) -> tuple[int, dict[str, str]]:
    """Status and body of ``/readyz``."""
    answer = httpx.get(f"{gateway.ready['admin']}/readyz", **PLAIN_HTTP)
    return answer.status_code, answer.json()


def test_readyz_is_red_from_a_failed_write_to_the_next_that_succeeds(gateway: GatewayProcess) -> None:
    """
    While no file can grow, not even the log on stderr, a message is rejected with a reason, ``/readyz`` is 503 and says
    so, and reading goes on. Afterwards it becomes 200 by itself, and the next message is accepted.
    """
    assert readiness(gateway)[0] == 200
    with Client(gateway.url) as client:
        sender = client.sender("q")
        sender.send_all([data("before")])
        # Writes fail as on a full disk. The process ignores SIGXFSZ, as every Python does.
        before = resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        refused = sender.rejection(sender.send(data("meanwhile")))
        assert refused.name == "amqp:internal-error"
        assert "the store could not write" in refused.text
        status, said = readiness(gateway)
        assert (status, said["status"]) == (503, "unavailable")
        assert said["reason"].startswith("Message VPN 'default': the last write failed: ")
        assert texts(client.read_log()) == ["before"]
        resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, before)
        wait_until(lambda: readiness(gateway)[0] == 200, "ready again")
        sender.send_all([data("after")])
        assert texts(client.receiver("q").drain()) == ["before", "after"]
    assert check(gateway.data / "default.db") == []
