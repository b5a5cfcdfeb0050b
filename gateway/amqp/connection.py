"""
One client's connection: the bytes between its socket and proton's engine, and the events of its life.

Order of a connection's life: SASL (ours, before the engine is there), the engine bound, open, sessions, links, close.
Every event is guarded: an error of ours or of the peer's closes this connection and no other. This module knows no kind
of link: the acceptor has the client answer an attach.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, cast

from proton import Event, Link, symbol, uint

from amqp_ext.frames.performatives import DETECTION_POLICY, SOLE_CONNECTION, STRONG, EnforcementPolicy
from amqp_ext.frames.termini import AttachedTermini
from amqp_ext.frames.walk import (
    BadConnection,
    BadLink,
    BadSession,
    Finding,
    FrameWalk,
    Retirement,
    Separation,
)
from amqp_ext.sasl import ANONYMOUS_USER, Identity, SaslServer, SaslState
from gateway.amqp.closing import Closing, Deadline, is_better_untold
from gateway.amqp.connection_log import ConnectionLog, address_of_peer
from gateway.amqp.engine.conditions import CloseError, code_of
from gateway.amqp.engine.input import Input, InputHandlers
from gateway.amqp.engine.link_table import LinkTable, PeerSessions
from gateway.amqp.engine.loops import LOOPS
from gateway.amqp.engine.native import UNREADABLE, Engine
from gateway.amqp.engine.output import Output, check_idle_timeout, seconds_to_tick
from gateway.amqp.transactions import LocalTransactions
from gateway.config import Limits
from gateway.core.errors import ErrorCode, Refused, refusing
from gateway.identity_providers import TokenUser
from gateway.ledger import Account, Kind
from gateway.logging import log_keys
from gateway.tls import peer_common_name
from gateway.users import TooManyChecks, Who
from gateway.vpn.clients import LinkState
from gateway.vpn.message_vpn import MessageVpn

TASKS: Final = 16
"""Attaches of one connection that may be under way together; the next one waits until one is answered."""

OFFERED: Final = ("ANONYMOUS-RELAY", "DELAYED_DELIVERY", "SHARED-SUBS", "rewind:replay-start")
"""Capabilities of our open frame, on every listener. JMS clients look here for delayed delivery: an anonymous producer
has no link by which it could ask."""

NOT_ESTABLISHED: Final = "amqp:connection-establishment-failed"
"""Property of our open frame: a close with an error follows. Without it, Qpid JMS takes the connection for one that was
established and then lost."""


class Connection(asyncio.Protocol):
    """
    The connection of one client.

    Args:
        acceptor: Serves this connection alone.
        number: Unique while the gateway runs.
    """

    def __init__(self, acceptor: Acceptor, number: int) -> None:
        self.identity = ConnectedClient(number)
        self.limits = acceptor.limits
        self.log = ConnectionLog(number, acceptor.admits_line)
        self.output = Output(self.limits.connection_output_bytes, self._fail)
        self.account = acceptor.account(self._close_as_largest)
        self.links = LinkTable(self.log, self.account, self.output.schedule_flush)
        self.tasks = Tasks(self._input_failed, self._task_done)
        self._acceptor = acceptor
        self._deadline = Deadline()
        self.closing = Closing(acceptor.container_id, self.output, self.log, self._deadline, self._drop_links)
        self.stop = self.closing.stop
        """Closes the connection: the gateway stops, or wants the client to leave."""
        walk = self._walk = FrameWalk(
            self.limits.max_frame_bytes, self.limits.max_links_per_session, LOOPS.plain_frames
        )
        handlers = InputHandlers(
            self._act_on, self._deal_with, self._is_busy, self._go_on_reading, self.closing.end
        )
        self.input = Input(self.links, self.output, walk, handlers)
        self._sessions = PeerSessions(self.links, walk, self.limits, self.log, self.output.rewrite)
        self._loop = asyncio.get_running_loop()
        self._socket: asyncio.Transport | None = None
        self._handshake: Handshake | None = None
        self._engine: Engine | None = None
        self._frames: FrameHooks | None = None
        self._signed_in: Identity | None = None
        """The identity of the peer; None before it has signed in."""
        self._client: OpenClient | None = None
        """The client of the connection; None before the open, and after the end."""
        self._is_reading = True
        self._is_deaf = False
        """As of the last tick: nothing was read, though the peer takes our output."""
        self._is_lost = False

    # --- what administrators see ----------------------------------------------------------------------------------

    @property
    def vpn_name(self) -> str | None:
        """The Message VPN that the client opened; None before the open."""
        return None if self._client is None else self._client.vpn.name

    def link_states(self) -> list[LinkState]:
        """The state of its attached links, for administrators."""
        return [link.state() for link in self.links.attached.values()]

    @property
    def is_signing_in(self) -> bool:
        """Whether the handshake is still under way."""
        return self._handshake is not None

    # --- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        socket = self._socket = cast("asyncio.Transport", transport)
        most = self.limits.connection_output_bytes
        # A peer is read again once it has taken half of its output: often enough not to look dead, and not for a few
        # bytes each time.
        socket.set_write_buffer_limits(high=most, low=most // 2)
        self.output.connect(socket)
        self.closing.connect(socket)
        peer = address_of_peer(socket)
        self.identity.peer = peer
        self.log.bind(**{log_keys.PEER: peer})
        self._acceptor.joined(self)
        tls = socket.get_extra_info("ssl_object")
        name = peer_common_name(tls) if tls is not None else None
        acceptor = self._acceptor
        self._handshake = Handshake(
            self, acceptor.sasl(name), acceptor.check_password, acceptor.sign_in_by_token
        )
        self._deadline.set(self.limits.handshake_timeout_ms / 1000, self._handshake_timed_out)

    def data_received(self, data: bytes) -> None:
        if self.closing.has_begun:
            # The connection is closing. The engine would keep all that comes now, however much.
            return
        self._guard_input(partial(self._receive, data))

    def _receive(self, data: bytes) -> None:
        if self._handshake is not None:
            self._handshake.receive(data)
        elif self._engine is not None:
            self._feed(data)

    def _guard_input(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._input_failed(error)

    def buffer(self, size_bytes: int) -> None:
        """Enter how many bytes of unfinished WebSocket messages are held for it now."""
        self.account.holds(Kind.WEBSOCKET, size_bytes)
        if self.account.is_over:
            self._refuse_bytes()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self._deadline.clear()
        self.tasks.cancel()
        client = self._client
        if client is not None:
            client.transactions.abandon()
        self.links.lost(self._guard)
        if client is not None:
            client.release_nodes(self._guard)
        self.input.lost()
        self._sessions.lost()
        self.output.lost()
        self.closing.lost()
        # The links are closed, and nothing else refers to the engine's objects any more.
        if self._engine is not None:
            self._engine.free()
            self._engine = None
        self.account.close()
        self._acceptor.left(self)
        if client is not None:
            client.vpn.committer.forget(self._read_on)
            client.left()
            self.log.last("connection_closed", **{log_keys.REASON: str(exc) if exc else None})
        # Drop the references that form cycles with this connection, so that it is freed with the last reference to it.
        # Otherwise it would stay, with all that its engine has buffered, until the garbage collector runs its oldest
        # generation. A late call finds a connection that is lost.
        if self._handshake is not None:
            self._handshake.sasl.close()
        self._socket = self._handshake = self._frames = self._client = None

    def pause_writing(self) -> None:
        self.output.pause()
        # Each frame of the peer's may have an answer, which we would hold for as long as the peer reads nothing.
        self._pause_reading()

    def resume_writing(self) -> None:
        self.output.resume()
        self._read_on()

    # --- handshake ------------------------------------------------------------------------------------------------

    def authenticated(self, identity: Identity, leftover: bytes) -> None:
        """The handshake says who the peer is; ``leftover`` are the first bytes after it."""
        self._handshake = None
        self.identity.user = identity.user
        self._signed_in = identity
        self.account.sign_in(identity.user)
        self._frames = self._acceptor.frame_hooks(identity)
        self.log.bind(**{log_keys.USER: identity.user, log_keys.MECHANISM: identity.mechanism})
        engine = self._engine = Engine(self.limits)
        self.closing.begin(engine.connection, self.input)
        self.input.begin(engine.transport, engine.collector)
        output_filter = self._frames.write if self._frames is not None else None
        self.output.begin(engine.transport, self.links, output_filter)
        self._feed(leftover)

    def turn_away(self, reason: str | None) -> None:
        """The handshake has failed, and the peer has been told."""
        self.log.warning("handshake_failed", **{log_keys.REASON: reason})
        self.closing.close_socket()

    def _handshake_timed_out(self) -> None:
        if self._client is not None or self._socket is None:
            return
        most = self.limits.handshake_timeout_ms
        reason = f"no open came within {most} ms (handshake_timeout_ms)"
        if self._handshake is not None:
            self._handshake.time_out(reason)
        else:
            self._refuse(ErrorCode.RESOURCE_LIMIT, reason)

    # --- engine ---------------------------------------------------------------------------------------------------

    @property
    def has_opened(self) -> bool:
        """Its peer has signed in and opened it."""
        return self._client is not None

    @property
    def is_open(self) -> bool:
        """Whether it can still be used."""
        return not self._is_lost and not self.closing.has_begun and self._engine is not None

    def _feed(self, data: bytes) -> None:
        """Bytes from the peer, for the engine."""
        self.input.take(data if self._frames is None else self._frames.receive(data))
        self._has_read()

    def _has_read(self) -> None:
        """After input: check the bytes that are held, pause reading where that has to wait, and write the output."""
        if self._is_lost:
            return
        self.links.enter_unfinished(self._walk.renumbered_count)
        if self.account.is_over:
            self._refuse_bytes()
        elif self._is_held_up():
            self._pause_reading()
        self.output.after_read()

    def _go_on_reading(self) -> None:
        """Go on with input that had to wait for another turn of the loop."""
        if self._is_lost or not self.input.is_waiting:
            return
        self._guard_input(self.input.go_on)
        self._has_read()
        self._read_on()

    def _is_busy(self) -> bool:
        """Whether too many attaches are under way to begin another one; not once the connection is closing."""
        return not self.closing.has_begun and self.tasks.count >= TASKS

    def _task_done(self) -> None:
        self.output.schedule_flush()
        self.input.wake()

    def _deal_with(self, event: Event) -> None:
        kind = event.type
        if kind == Event.CONNECTION_REMOTE_OPEN:
            self._open()
        elif kind == Event.SESSION_REMOTE_OPEN:
            self._sessions.begin(event.session)
        elif kind == Event.LINK_REMOTE_OPEN:
            self._attach(event.link)
        elif kind in (Event.LINK_REMOTE_CLOSE, Event.LINK_REMOTE_DETACH):
            self._detach(event.link, closed=kind == Event.LINK_REMOTE_CLOSE)
        elif kind == Event.SESSION_REMOTE_CLOSE:
            self._sessions.ended_by_peer(event.session)
        elif kind == Event.CONNECTION_REMOTE_CLOSE:
            self._drop_links()
            if self._engine is not None:
                self._engine.connection.close()
            self.closing.end()
        elif kind == Event.TRANSPORT_ERROR:
            if self._engine is not None and not self.closing.has_begun:
                error = CloseError.of(self._engine.transport.condition)
                self.output.close_with(error)
                self.log.warning("protocol_error", **{log_keys.REASON: f"{error.condition}: {error.text}"})
            self.closing.end()

    def _open(self) -> None:
        assert self._engine is not None
        engine, acceptor = self._engine.connection, self._acceptor
        if self._client is not None:
            # It could name another Message VPN than the one its links are in.
            self._refuse(
                ErrorCode.NOT_ALLOWED, "the connection is open already: a second open is not permitted"
            )
            return
        self.identity.peer_container = engine.remote_container or ""
        with refusing(*UNREADABLE, code=ErrorCode.DECODE_ERROR, saying="the properties of the open: "):
            properties = engine.remote_properties
        self.closing.opened(properties)
        engine.container = acceptor.container_id
        self.log.bind(**{log_keys.CONTAINER: self.identity.peer_container})
        try:
            check_idle_timeout(self._engine.transport)
            assert self._signed_in is not None
            acceptor.opened(self._signed_in)
            client = self._client = acceptor.open_client(
                self, engine.remote_hostname, self._walk.sole_connection
            )
        except Refused as refused:
            if is_better_untold(refused, properties):
                self.closing.leave_untold(refused)
            else:
                self._answer_open(None)
                self.closing.refuse(refused)
            return
        self._answer_open(client)
        self.log.info("connection_opened", **{log_keys.VPN: client.vpn.name})
        self._loop.call_soon(self._tick)

    def _answer_open(self, client: OpenClient | None) -> None:
        """Send our open frame; ``client`` is None where the connection is refused."""
        assert self._engine is not None
        engine, acceptor = self._engine.connection, self._acceptor
        offered = [*OFFERED, *acceptor.offered_capabilities]
        properties: dict[Any, Any] = {symbol(key): value for key, value in acceptor.open_properties.items()}
        if client is None:
            properties[symbol(NOT_ESTABLISHED)] = True
        elif client.is_alone:
            offered.append(SOLE_CONNECTION)
            properties[symbol(DETECTION_POLICY)] = uint(STRONG)
        engine.offered_capabilities = [symbol(capability) for capability in offered]
        engine.properties = properties
        engine.open()
        self._deadline.clear()

    def _act_on(self, found: Finding) -> None:
        """Act on a finding in the peer's frames: an error, or something that the engine does not report."""
        if self.closing.has_begun:
            return
        if isinstance(found, BadConnection):
            self._refuse(code_of(found.condition), found.text)
        elif isinstance(found, BadSession):
            self._sessions.end(found)
        elif isinstance(found, BadLink):
            self._sessions.detach(found)
        elif isinstance(found, Separation):
            self.output.translate(self._walk.in_peers_ids)
        elif isinstance(found, Retirement) and self._client is not None:
            self._client.transactions.retired(found.txn_id, found.count, self.links.take_retired())
        self.output.schedule_flush()

    def _attach(self, link: Any) -> None:
        termini, size_bytes = self._sessions.attached(link)
        if self._client is None or self.closing.has_begun or link.session not in self.links.sessions:
            return
        if not link.state & link.LOCAL_UNINIT:
            # The engine takes it for the old link, which is about to be freed.
            self._refuse(ErrorCode.NOT_ALLOWED, "a link is attached again before its detach was answered")
            return
        if self.links.count_attach(link, size_bytes) > self.limits.max_links_per_session:
            self._refuse(ErrorCode.RESOURCE_LIMIT, "too many links on a session (max_links_per_session)")
            return
        older = self.links.replaced_by(link)
        if older is not None:
            older.refuse(Refused(ErrorCode.STOLEN, "the session has attached a link of this name again"))
        self.tasks.spawn(self._acceptor.attach(link, termini))

    def _detach(self, link: Any, *, closed: bool) -> None:
        self._sessions.detached(link)
        self.links.detached(link, closed=closed)

    def _drop_links(self) -> None:
        if self._client is not None:
            self._client.transactions.abandon()
        self.links.drop_all()

    def _tick(self) -> None:
        """Heartbeats both ways (AMQP 1.0 section 2.4.5): the engine says when it wants to be asked again."""
        if self._engine is None or self.closing.has_begun:
            return
        transport = self._engine.transport
        now = time.monotonic()
        if not self._is_reading and self.output.was_taken():
            # The peer takes our output, so it is alive, though we read nothing of what it may have sent.
            self._deadline.set(self.limits.idle_timeout_ms / 1000, self._tick)
            return
        idle_s = self.limits.idle_timeout_ms / 1000
        # While it is us who do not read, the peer's silence says nothing; nor until what it sent meanwhile is read.
        was_deaf, self._is_deaf = self._is_deaf, not self._is_reading and self.output.is_writable
        transport.idle_timeout = 0 if was_deaf or self._is_deaf else idle_s
        deadline = transport.tick(now) or now + idle_s
        if not self.input.is_waiting:
            self._guard_input(self.input.go_on)
        self.output.schedule_flush()
        if not self.closing.has_begun:
            wait = seconds_to_tick(transport, deadline - now, self.limits.idle_timeout_ms)
            self._deadline.set(wait, self._tick)

    def _is_held_up(self) -> bool:
        """
        Whether the peer is not to be read now: it does not take our output, or too much of what publishers have sent is
        uncommitted or held. ``_read_on`` is called when that may be over.
        """
        if self.input.is_waiting or not self.output.is_writable:
            return True
        if self._client is None or not self.links.incoming:
            return False
        return self._client.vpn.committer.wait_for_room(self._read_on) or self.account.wait_for_room(
            self._read_on
        )

    def _pause_reading(self) -> None:
        if self._is_reading and self._socket is not None:
            self._is_reading = False
            self._socket.pause_reading()

    def _read_on(self) -> None:
        socket = self._socket
        if self._is_reading or socket is None or socket.is_closing() or self._is_held_up():
            return
        self._is_reading = True
        socket.resume_reading()

    def _refuse_bytes(self) -> None:
        """The connection makes the gateway hold more bytes than it may."""
        held = self.account.held_bytes
        self._refuse(
            ErrorCode.RESOURCE_LIMIT,
            f"this connection makes the gateway hold {held} bytes, and {self.limits.connection_bytes} is the "
            "limit (connection_bytes): unfinished messages, open transactions, unsettled deliveries, links",
        )

    def _close_as_largest(self, bound: str) -> None:
        """Publishers wait for room, and this connection holds the most (``gateway.ledger.Ledger.relieve``)."""
        self._refuse(
            ErrorCode.RESOURCE_LIMIT,
            f"the gateway holds as much as it may ({bound}), and the most for this connection: "
            f"{self.account.held_bytes} bytes",
        )

    # --- errors ---------------------------------------------------------------------------------------------------

    def _refuse(self, code: ErrorCode, text: str) -> None:
        self.closing.refuse(Refused(code, text))

    def _input_failed(self, error: Exception) -> None:
        """Close the connection for an error of the peer's, or for one of ours that its input led to."""
        if isinstance(error, Refused):
            self.closing.refuse(error)
        elif isinstance(error, UnicodeDecodeError):
            # The engine decodes a text only when it is asked for it.
            self._refuse(ErrorCode.DECODE_ERROR, f"a text is not UTF-8: {error.object!r:.80}")
        else:
            self._fail()

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            self._fail()

    def _fail(self) -> None:
        """An internal error: close this connection, and no other."""
        self.log.exception("connection_failed")
        self._acceptor.count_failure()
        if self._is_lost:
            return
        try:
            self._refuse(
                ErrorCode.INTERNAL, "an internal error on this connection; the gateway's log says which"
            )
        except Exception:
            if self._socket is not None:
                self._socket.abort()


class ConnectedClient:
    """
    Who the client of one connection is: for administrators, and as the origin of its messages
    (``gateway.vpn.clients.ClientIdentity``).

    Args:
        number: The connection's, unique while the gateway runs.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.peer = ""
        """HOST:PORT that it connects from; empty where that is not known."""
        self.user = ANONYMOUS_USER
        """The name of its user."""
        self.token_user: TokenUser | None = None
        """The user that its token names; None without a token."""
        self.peer_container = ""
        """The container-id in its open frame; empty before the open, and where there is none."""

    @property
    def who(self) -> Who:
        """The user whose permissions it has."""
        return self.token_user or self.user

    @property
    def origin(self) -> str:
        """The origin of its messages, for consumers that do not want their own (no-local): its container-id."""
        return self.peer_container or f"#{self.number}"


class Tasks:
    """
    Asynchronous work for one connection. It ends with the connection, and an error in it closes no other connection.

    Args:
        failed: Called in the ``except`` block of what the work raised.
        done: Called when some work is done, however it ended.
    """

    def __init__(self, failed: Callable[[Exception], None], done: Callable[[], None]) -> None:
        self._told: tuple[Callable[[Exception], None], Callable[[], None]] | None = (failed, done)
        """``failed`` and ``done``; None once the connection is gone."""
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin some work; it starts in the next turn of the loop, and never once the connection is gone."""
        if self._told is None:
            work.close()
            return
        task = self._loop.create_task(_guarded(work, self._told[0]))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._told is not None:
            self._told[1]()

    @property
    def count(self) -> int:
        """How many pieces of work are under way."""
        return len(self._tasks)

    def cancel(self) -> None:
        """The connection is gone: cancel all work, and begin no more."""
        self._told = None
        for task in self._tasks:
            task.cancel()


async def _guarded(work: Coroutine[Any, Any, None], failed: Callable[[Exception], None]) -> None:
    try:
        await work
    except Exception as error:
        failed(error)


@dataclass(frozen=True, slots=True, eq=False)
class Handshake:
    """
    The SASL handshake of one connection, from its first byte until the peer is known or turned away (AMQP 1.0 part
    5.3).
    """

    connection: Connection
    sasl: SaslServer
    check: Callable[[Callable[[], bool]], Awaitable[bool]]
    """Has a password checked, off the loop; raises ``TooManyChecks``."""
    sign_in: Callable[[str], Awaitable[str]]
    """Finds the user of a token; raises ``Refused``."""

    def receive(self, data: bytes) -> None:
        """Take bytes from the peer; notify the connection when the handshake has ended."""
        connection, sasl = self.connection, self.sasl
        before = sasl.state
        sasl.receive(data)
        connection.output.write(sasl.drain_output())
        match sasl.state:
            # Once: what a client sends ahead, in however many pieces, must not have its password hashed again.
            case SaslState.VERIFYING if before is not SaslState.VERIFYING:
                connection.tasks.spawn(self._verify())
            case SaslState.DONE:
                assert sasl.identity is not None
                connection.authenticated(sasl.identity, sasl.leftover)
            case SaslState.FAILED:
                connection.turn_away(sasl.failure)

    def time_out(self, reason: str) -> None:
        """The handshake took too long: tell a peer that is signing in, and close the socket."""
        self.sasl.put_off(reason)
        self.connection.output.write(self.sasl.drain_output())
        self.connection.turn_away(self.sasl.failure)

    async def _verify(self) -> None:
        """Check a password, off the loop as its hash is slow, or a token, whose key may have to be fetched."""
        sasl = self.sasl
        try:
            if sasl.token is not None:
                sasl.identify(await self.sign_in(sasl.token))
            elif sasl.verification is not None:
                sasl.resolve(await self.check(sasl.verification))
        except TooManyChecks:
            sasl.put_off("too many passwords are being checked")
        except Refused as refused:
            if refused.code is ErrorCode.UNAUTHORIZED:
                sasl.refuse_token(refused.text)
            else:
                sasl.put_off(refused.text)
        self.receive(b"")


# --- what a connection is given by its acceptor -----------------------------------------------------------------------


class BatchedTransfers(Protocol):
    """Tells which deliveries of a connection are batches, several messages in one delivery, and unpacks them."""

    def follow(self, link: str) -> None:
        """From now on the batches of this link are remembered."""

    def forget(self, link: str) -> None:
        """The link is gone."""

    def is_batch(self, link: str, tag: bytes) -> bool:
        """Whether a delivery is a batch; asked once for each delivery."""

    def messages_of(self, content: bytes) -> list[bytes]:
        """
        The messages in a batch, in their order.

        Raises:
            CodecError: It is no batch.
        """


class FrameHooks(NamedTuple):
    """
    What one connection's bytes pass through on their way to the engine and from it.

    Invariant: what the engine and the peer understand is the same with and without the hooks.
    """

    receive: Callable[[bytes], bytes]
    """Given any piece of what the peer sent; returns what the engine is given instead."""
    write: Callable[[bytes], bytes]
    """Given any piece of what the engine has to say; returns what is written instead."""
    batches: BatchedTransfers


class OpenClient(Protocol):
    """What a connection needs of its client, after the open."""

    vpn: MessageVpn
    """The Message VPN that it opened."""
    transactions: LocalTransactions
    """The transactions of the connection."""
    is_alone: bool
    """Its container asked to have no other connection, and the gateway enforces that."""

    def release_nodes(self, guarded: Callable[[Callable[[], None]], None]) -> None:
        """
        The connection is gone, and its links were told: delete the nodes that end with it.

        Args:
            guarded: Calls a function and catches what it raises, so that a failure at one node does not stop the rest.
        """

    def left(self) -> None:
        """The connection is gone, and its links and nodes with it."""


class Acceptor(Protocol):
    """What a connection needs of the listener that accepted it."""

    limits: Limits
    """The limits in effect when the client connected."""
    container_id: str
    """Our container-id."""
    offered_capabilities: tuple[str, ...]
    """Capabilities of our open frame, in addition to those that every listener offers."""
    open_properties: dict[str, str]
    """Properties of our open frame."""

    def account(self, close: Callable[[str], None]) -> Account:
        """
        Open the account where the bytes that the connection makes us hold are entered.

        Args:
            close: Closes the connection because it holds the most; called with the name of the exceeded bound.
        """

    def joined(self, connection: Connection) -> None:
        """The connection has a socket."""

    def opened(self, identity: Identity) -> None:
        """
        The handshake is over, and the open frame has come.

        Raises:
            Refused: RESOURCE_LIMIT, the user has as many connections as a user may have.
        """

    def left(self, connection: Connection) -> None:
        """The connection is gone."""

    def admits_line(self, kind: str, held_back: int) -> int | None:
        """
        Ask to write one more log line of a kind, of which ``held_back`` were left out before.

        Returns:
            How many were held back since the last line; None if this one is to be held back, too.
        """

    def count_failure(self) -> None:
        """An internal error has closed a connection."""

    def sasl(self, certificate_name: str | None) -> SaslServer:
        """A fresh negotiation; ``certificate_name`` is the common name of the client's verified certificate."""

    async def check_password(self, work: Callable[[], bool]) -> bool:
        """
        Have a password checked, off the loop.

        Raises:
            gateway.users.TooManyChecks: Too many checks wait; the peer may try again later.
        """

    async def sign_in_by_token(self, token: str) -> str:
        """
        The name of the user whose token it is.

        Raises:
            Refused: UNAUTHORIZED, it is not valid; another code, the peer may try again later.
        """

    def frame_hooks(self, identity: Identity) -> FrameHooks | None:
        """The hooks for the frames of a client with this identity; None where no dialect has hooks."""

    def open_client(
        self, connection: Connection, hostname: str | None, policy: EnforcementPolicy | None
    ) -> OpenClient:
        """
        The client, in the Message VPN that its open frame asks for.

        Args:
            policy: What the open frame asks about other connections of its container; None where it does not.

        Raises:
            Refused: There is no such Message VPN, the user may not enter it, or the container has another connection,
                which is kept.
        """

    async def attach(self, link: Link, termini: AttachedTermini) -> None:
        """
        Answer an attach of the open client; never raises for a mistake of the peer's.

        Args:
            termini: The source and the target in the attach frame.
        """
