"""
One client's connection: bytes between its socket and proton's engine, and what happens once in its life.

Order of a connection's life: SASL (ours, before the engine is there), the engine bound, open, sessions, links, close.
Every event is guarded: a mistake of ours or of the peer's costs this connection and no other. No kind of link is known
here: the acceptor says which client answers an attach.
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
"""Attaches of one connection under way at once; more are not begun before one of these is answered."""

OFFERED: Final = ("ANONYMOUS-RELAY", "DELAYED_DELIVERY", "SHARED-SUBS", "rewind:replay-start")
"""Capabilities of our open frame, on every listener. JMS clients look here whether a delay is kept: an anonymous one
has no link by which to ask."""

NOT_ESTABLISHED: Final = "amqp:connection-establishment-failed"
"""Property of our open frame that says: a close with the reason follows. Without, Qpid JMS takes the connection for one
that was open and got lost."""


class Connection(asyncio.Protocol):
    """
    The connection of one client.

    Args:
        acceptor: Of this connection alone.
        number: Unique while the gateway runs.
    """

    def __init__(self, acceptor: Acceptor, number: int) -> None:
        self.identity = ConnectedClient(number)
        self.limits = acceptor.limits
        self.log = ConnectionLog(number, acceptor.admits_line)
        self.output = Output(self.limits.connection_output_bytes, self._fail)
        self.account = acceptor.account(self._close_as_largest)
        self.links = LinkTable(self.log, self.account, self.output.schedule_flush)
        self.tasks = Tasks(self._task_failed, self._task_done)
        self._acceptor = acceptor
        self._deadline = Deadline()
        self.closing = Closing(acceptor.container_id, self.output, self.log, self._deadline, self._drop_links)
        self.stop = self.closing.stop
        """The gateway stops, or has its client go."""
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
        """Of a peer that has signed in."""
        self._client: OpenClient | None = None
        """Of an open connection."""
        self._is_reading = True
        self._is_lost = False

    # --- what administrators see ----------------------------------------------------------------------------------

    @property
    def vpn_name(self) -> str | None:
        """The Message VPN the client opened; None before it did."""
        return None if self._client is None else self._client.vpn.name

    def link_states(self) -> list[LinkState]:
        """What its attached links are like now, for administrators."""
        return [link.state() for link in self.links.attached.values()]

    @property
    def is_signing_in(self) -> bool:
        """It is not known yet who the client is."""
        return self._handshake is not None

    # --- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        socket = self._socket = cast("asyncio.Transport", transport)
        most = self.limits.connection_output_bytes
        # Whoever takes half of it is read again: not so seldom that it looks dead, nor for a few bytes each time.
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
            # We have said our last. The engine would keep what comes now, however much.
            return
        self._guard_input(partial(self._receive, data))

    def _receive(self, data: bytes) -> None:
        if self._handshake is not None:
            self._handshake.receive(data)
        elif self._engine is not None:
            self._feed(data)

    def _guard_input(self, call: Callable[[], None]) -> None:
        """A mistake of the peer's costs its connection, and so does one of ours that it led to."""
        try:
            call()
        except Refused as refused:
            self.closing.refuse(refused)
        except UnicodeDecodeError as error:
            self._refuse_text(error)
        except Exception:
            self._fail()

    def buffer(self, size_bytes: int) -> None:
        """So many bytes that are not whole yet are held for it by what it comes through (a WebSocket)."""
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
        # Links are closed, and nobody else has an object of it any more.
        if self._engine is not None:
            self._engine.free()
            self._engine = None
        self.account.close()
        self._acceptor.left(self)
        if client is not None:
            client.left()
            self.log.last("connection_closed", **{log_keys.REASON: str(exc) if exc else None})
        self._let_go()

    def pause_writing(self) -> None:
        self.output.pause()
        # Each thing that a peer says may have an answer, which would be held as long as the peer reads none.
        self._pause_reading()

    def resume_writing(self) -> None:
        self.output.resume()
        self._read_on()

    # --- handshake ------------------------------------------------------------------------------------------------

    def authenticated(self, identity: Identity, leftover: bytes) -> None:
        """The handshake says who the peer is; the first bytes behind it are here."""
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
        """The handshake has failed, and said so."""
        self.log.warning("handshake_failed", **{log_keys.REASON: reason})
        if self._socket is not None:
            self._socket.close()

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
        """It can still carry something."""
        return not self._is_lost and not self.closing.has_begun and self._engine is not None

    def _feed(self, data: bytes) -> None:
        """Bytes from the peer, for the engine."""
        self.input.take(data if self._frames is None else self._frames.receive(data))
        self._has_read()

    def _has_read(self) -> None:
        """The engine was given something, or told something."""
        if self._is_lost:
            return
        self.links.enter_unfinished(self._walk.renumbered_count)
        if self.account.is_over:
            self._refuse_bytes()
        elif self._is_held_up():
            self._pause_reading()
        self.output.after_read()

    def _go_on_reading(self) -> None:
        """What had to wait for another turn of the loop goes on."""
        if self._is_lost or not self.input.is_waiting:
            return
        self._guard_input(self.input.go_on)
        self._has_read()
        self._read_on()

    def _is_busy(self) -> bool:
        """So much is under way for the peer that nothing more is to begin; once it has to go, that is over soon."""
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
            self._refuse(ErrorCode.NOT_ALLOWED, "the connection is open: there is no second open")
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
        """Open from our side; for nobody where the connection is refused."""
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
        """Something is wrong in what the peer sent, or worth more than the engine tells."""
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
        termini = self._sessions.attached(link)
        if self._client is None or self.closing.has_begun or link.session not in self.links.sessions:
            return
        if not link.state & link.LOCAL_UNINIT:
            # The engine takes it for the same link, which is freed.
            self._refuse(ErrorCode.NOT_ALLOWED, "a link is attached anew before its detach was answered")
            return
        if self.links.count_attach(link) > self.limits.max_links_per_session:
            self._refuse(ErrorCode.RESOURCE_LIMIT, "too many links on a session (max_links_per_session)")
            return
        older = self.links.replaced_by(link)
        if older is not None:
            older.refuse(Refused(ErrorCode.STOLEN, "the session has attached a link of this name anew"))
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
            # It is there, though we read nothing of what it may have sent.
            self._deadline.set(self.limits.idle_timeout_ms / 1000, self._tick)
            return
        deadline = transport.tick(now)
        if not self.input.is_waiting:
            self._guard_input(self.input.go_on)
        self.output.schedule_flush()
        if deadline and not self.closing.has_begun:
            wait = seconds_to_tick(transport, deadline - now, self.limits.idle_timeout_ms)
            self._deadline.set(wait, self._tick)

    def _is_held_up(self) -> bool:
        """
        Whether nothing more of the peer's is to be read now: it does not take what we write, or too much is uncommitted
        or held of what publishers have sent. ``_read_on`` is called when that may be over.
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
        """The connection makes us hold more than one may."""
        held = self.account.held_bytes
        self._refuse(
            ErrorCode.RESOURCE_LIMIT,
            f"this connection makes the gateway hold {held} bytes; at most {self.limits.connection_bytes} are"
            " held for one (connection_bytes): unfinished messages, open transactions, unsettled deliveries, links",
        )

    def _close_as_largest(self, bound: str) -> None:
        """Publishers wait for room, and this connection holds the most (``gateway.ledger.Ledger.relieve``)."""
        self._refuse(
            ErrorCode.RESOURCE_LIMIT,
            f"the gateway is to hold no more ({bound}), and holds the most for this connection:"
            f" {self.account.held_bytes} bytes",
        )

    # --- the end --------------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """
        Hold nothing any more of what holds this connection, so that all of it is freed with the last look at it:
        otherwise it would stay, with all that its engine has buffered, until the collector's oldest generation is run.
        Whoever still calls finds a connection that is lost.
        """
        if self._handshake is not None:
            self._handshake.sasl.close()
        self._socket = self._handshake = self._frames = self._client = None

    # --- mistakes -------------------------------------------------------------------------------------------------

    def _refuse(self, code: ErrorCode, text: str) -> None:
        self.closing.refuse(Refused(code, text))

    def _task_failed(self, error: Exception) -> None:
        if isinstance(error, UnicodeDecodeError):
            self._refuse_text(error)
        else:
            self._fail()

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            self._fail()

    def _refuse_text(self, error: UnicodeDecodeError) -> None:
        """The engine reads a text when it is asked for it, and only then finds that it is none."""
        self._refuse(ErrorCode.DECODE_ERROR, f"a text is not UTF-8: {error.object!r:.80}")

    def _fail(self) -> None:
        """A mistake of ours: this connection pays for it, nobody else."""
        self.log.exception("connection_failed")
        self._acceptor.count_failure()
        if self._is_lost:
            return
        try:
            self._refuse(
                ErrorCode.INTERNAL, "the gateway made a mistake on this connection; its log says which"
            )
        except Exception:
            if self._socket is not None:
                self._socket.abort()


class ConnectedClient:
    """
    Who the client of one connection is: what administrators are shown, and whom its messages come from
    (``gateway.vpn.clients.ClientIdentity``).

    Args:
        number: The connection's, unique while the gateway runs.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.peer = ""
        """HOST:PORT it comes from; empty where that is not known."""
        self.user = ANONYMOUS_USER
        """The name of its user."""
        self.token_user: TokenUser | None = None
        """Who its token says it is, where one does."""
        self.peer_container = ""
        """Its container-id, as its open frame says; empty before that, and for who has none."""

    @property
    def who(self) -> Who:
        """Whose permissions it has."""
        return self.token_user or self.user

    @property
    def origin(self) -> str:
        """Whom its messages come from, for consumers that do not want their own: the client's container."""
        return self.peer_container or f"#{self.number}"


class Tasks:
    """
    Work that takes time and is done for one connection. It ends with the connection, and a mistake in it costs no
    other.

    Args:
        failed: Called in the ``except`` block of what the work raised.
        done: Called when some work is done, however it ended.
    """

    def __init__(self, failed: Callable[[Exception], None], done: Callable[[], None]) -> None:
        self._told: tuple[Callable[[Exception], None], Callable[[], None]] | None = (failed, done)
        """Who is told of mistakes, and of ends; None once the connection is gone."""
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
        """The connection is gone: nobody waits for any of it, and none begins."""
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
    """Finds out whose a token is; raises ``Refused``."""

    def receive(self, data: bytes) -> None:
        """Bytes from the peer; at the end the connection is told of it."""
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
        """It took too long: whoever is in the middle of signing in is told, and all are cut."""
        self.sasl.put_off(reason)
        self.connection.output.write(self.sasl.drain_output())
        self.connection.turn_away(self.sasl.failure)

    async def _verify(self) -> None:
        """A password's hash is slow on purpose: it is computed off the loop. A token's key may have to be fetched."""
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


# --- what a connection is given by whoever accepted it ----------------------------------------------------------------


class BatchedTransfers(Protocol):
    """Tells which deliveries of a connection are batches, several messages in one delivery, and unpacks them."""

    def follow(self, link: str) -> None:
        """From now on the batches of this link are remembered."""

    def forget(self, link: str) -> None:
        """The link is gone."""

    def is_batch(self, link: str, tag: bytes) -> bool:
        """Whether a delivery is one; it is asked once."""

    def messages_of(self, content: bytes) -> list[bytes]:
        """
        The messages in a batch, in their order.

        Raises:
            CodecError: It is none.
        """


class FrameHooks(NamedTuple):
    """
    What one connection's bytes pass through on their way to the engine and from it.

    Invariant: the engine and the peer understand the same with and without this.
    """

    receive: Callable[[bytes], bytes]
    """Given any piece of what the peer sent; returns what the engine is given instead."""
    write: Callable[[bytes], bytes]
    """Given any piece of what the engine has to say; returns what is written instead."""
    batches: BatchedTransfers


class OpenClient(Protocol):
    """What a connection needs of its client, once that has opened it."""

    vpn: MessageVpn
    """The Message VPN."""
    transactions: LocalTransactions
    """Those of the connection."""
    is_alone: bool
    """Its container wants to have no other connection, and that is kept."""

    def release_nodes(self, guarded: Callable[[Callable[[], None]], None]) -> None:
        """
        The connection is gone, and its links were told: nodes go with it.

        Args:
            guarded: Calls what it is given, whatever that raises: no mistake is to cost another thing its end.
        """

    def left(self) -> None:
        """The connection is gone with all that was its."""


class Acceptor(Protocol):
    """What a connection needs of the listener that accepted it."""

    limits: Limits
    """Those in effect when it came."""
    container_id: str
    """Ours."""
    offered_capabilities: tuple[str, ...]
    """Capabilities of our open frame, besides those that every listener offers."""
    open_properties: dict[str, str]
    """Properties of our open frame."""

    def account(self, close: Callable[[str], None]) -> Account:
        """
        Where it is entered what the connection makes us hold.

        Args:
            close: Closes it, as the one that holds the most; called with the name of the bound that was passed.
        """

    def joined(self, connection: Connection) -> None:
        """It has a socket."""

    def opened(self, identity: Identity) -> None:
        """
        Its handshake is over, and its open frame here.

        Raises:
            Refused: RESOURCE_LIMIT, its user has as many connections as one may have.
        """

    def left(self, connection: Connection) -> None:
        """It is gone."""

    def admits_line(self, kind: str, held_back: int) -> int | None:
        """
        One more log line of a kind, that stands for so many left out before.

        Returns:
            How many were held back since the last one; None if this one is to be held back, too.
        """

    def count_failure(self) -> None:
        """A mistake of ours has cost a connection."""

    def sasl(self, certificate_name: str | None) -> SaslServer:
        """A fresh negotiation; ``certificate_name`` is the common name of the client's verified certificate."""

    async def check_password(self, work: Callable[[], bool]) -> bool:
        """
        Have a password checked, off the loop.

        Raises:
            gateway.users.TooManyChecks: Its peer may try again later.
        """

    async def sign_in_by_token(self, token: str) -> str:
        """
        The name of the user whose token it is.

        Raises:
            Refused: UNAUTHORIZED, it is not good; another code, its peer may try again later.
        """

    def frame_hooks(self, identity: Identity) -> FrameHooks | None:
        """What the frames of a client go through of whom SASL says this; None where nothing wants to see them."""

    def open_client(
        self, connection: Connection, hostname: str | None, policy: EnforcementPolicy | None
    ) -> OpenClient:
        """
        The client, in the Message VPN that its open frame asks for.

        Args:
            policy: What that asks of other connections of its container; None where it asks for nothing.

        Raises:
            Refused: There is no such Message VPN, or its user may not enter that; or its container has another
                connection, and keeps that.
        """

    async def attach(self, link: Link, termini: AttachedTermini) -> None:
        """
        Answer an attach of the open client; never raises for a mistake of the peer's.

        Args:
            termini: What is said of its source and target.
        """
