"""
One client's connection: bytes between its socket and proton's engine, and what happens on it once.

Order of a connection's life: SASL (ours, before the engine is there), the engine bound, open, sessions, links, close.
Every event is guarded: a mistake of ours or of the peer's costs this connection and no other. No kind of link is known
here: whoever accepted the connection says what answers an attach.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, cast

from proton import Collector, Event, Transport
from proton import Connection as EngineConnection

from amqp_ext.frames.findings import BadConnection, BadLink, BadSession, Finding, Retirement
from amqp_ext.frames.walk import FrameWalk
from amqp_ext.sasl.server import Identity
from gateway import log_keys
from gateway.amqp.acceptor import Acceptor, FrameFilter, OpenClient
from gateway.amqp.connected_client import ConnectedClient
from gateway.amqp.connection_log import ConnectionLog, address_of_peer
from gateway.amqp.engine import heartbeats
from gateway.amqp.engine.close_errors import CloseError
from gateway.amqp.engine.conditions import code_of, condition_of
from gateway.amqp.engine.input import Input
from gateway.amqp.engine.link_table import LinkTable
from gateway.amqp.engine.loops import LOOPS
from gateway.amqp.engine.output import Output
from gateway.amqp.handshake import Handshake
from gateway.amqp.open_answer import answer_open
from gateway.amqp.peer_sessions import PeerSessions
from gateway.amqp.redirects import as_followed, is_better_untold
from gateway.amqp.tasks import Tasks
from gateway.core.errors import ErrorCode, Refused
from gateway.ledger import Kind
from gateway.tls import peer_common_name

CLOSE_SECONDS: Final = 2.0
"""How long a connection that we close may take to answer before it is cut."""

TASKS: Final = 16
"""Attaches of one connection under way at once; more are not begun before one of these is answered."""


class Connection(asyncio.Protocol):
    """
    The connection of one client.

    Args:
        acceptor: Of this connection alone.
        number: Unique while the gateway runs.
    """

    def __init__(self, acceptor: Acceptor[Connection], number: int) -> None:
        self.identity = ConnectedClient(number)
        self.limits = acceptor.limits
        self.log = ConnectionLog(number, acceptor.admits_line)
        self.output = Output(self.limits.connection_output_bytes, self._fail)
        self.account = acceptor.account(self._close_as_largest)
        self.links = LinkTable(self.log, self.account, self.output.schedule_flush)
        self.tasks = Tasks(self._task_failed, self._task_done)
        self._acceptor = acceptor
        walk = self._walk = FrameWalk(
            self.limits.max_frame_bytes, self.limits.max_links_per_session, LOOPS.plain_frames
        )
        self.input = Input(
            self.links,
            self.output,
            walk,
            self._act_on,
            self._deal_with,
            self._is_busy,
            self._go_on_reading,
            self._end,
        )
        self._sessions = PeerSessions(self.links, walk, self.limits, self.log, self.output.rewrite)
        self._loop = asyncio.get_running_loop()
        self._socket: asyncio.Transport | None = None
        self._handshake: Handshake | None = None
        self._engine: EngineConnection | None = None
        self._transport: Transport | None = None
        self._collector: Collector | None = None
        self._frames: FrameFilter | None = None
        self._signed_in: Identity | None = None
        """Of a peer that has signed in."""
        self._client: OpenClient | None = None
        """Of an open connection."""
        self._is_reading = True
        self._is_ending = False
        self._is_lost = False
        self._timer: asyncio.TimerHandle | None = None

    # --- what administrators see ----------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Unique while the gateway runs."""
        return self.identity.number

    @property
    def user(self) -> str:
        """Whose permissions its client has."""
        return self.identity.user

    @property
    def peer_container(self) -> str:
        """The client's container-id."""
        return self.identity.peer_container

    @property
    def peer(self) -> str:
        """HOST:PORT the client comes from."""
        return self.identity.peer

    @property
    def vpn_name(self) -> str | None:
        """The Message VPN the client opened; None before it did."""
        return None if self._client is None else self._client.vpn_name

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
        peer = address_of_peer(socket)
        self.identity.connected(peer)
        self.log.bind(**{log_keys.PEER: peer})
        self._acceptor.joined(self)
        tls = socket.get_extra_info("ssl_object")
        name = peer_common_name(tls) if tls is not None else None
        self._handshake = Handshake(self, self._acceptor.sasl(name), self._acceptor.check_password)
        self._timer = self._loop.call_later(
            self.limits.handshake_timeout_ms / 1000, self._handshake_timed_out
        )

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            # We have said our last. The engine would keep what comes now, however much.
            return
        self._guard_input(partial(self._receive, data))

    def _receive(self, data: bytes) -> None:
        if self._handshake is not None:
            self._handshake.receive(data)
        elif self._transport is not None:
            self._feed(data)

    def _guard_input(self, call: Callable[[], None]) -> None:
        """A mistake of the peer's costs its connection, and so does one of ours that it led to."""
        try:
            call()
        except Refused as refused:
            self.refuse(refused)
        except UnicodeDecodeError as error:
            self._refuse_text(error)
        except Exception:
            self._fail()

    def buffer(self, size_bytes: int) -> None:
        """So many bytes that are not whole yet are held for it by what it comes through (a WebSocket)."""
        self.account.holds(Kind.WEBSOCKET, size_bytes)
        if self.account.is_over:
            self._refuse_bytes()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self._stop_timer()
        self.tasks.cancel()
        client = self._client
        if client is not None:
            client.abandon_transactions()
        self.links.lost(self._guard)
        if client is not None:
            client.links_lost(self._guard)
        self.input.lost()
        self._sessions.lost()
        self.output.lost()
        self._release_engine()
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

    def write(self, data: bytes) -> None:
        """Bytes for the peer, before there is an engine."""
        self.output.write(data)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that takes time, until the connection is lost; a mistake in it costs the connection."""
        self.tasks.spawn(work)

    def authenticated(self, identity: Identity, leftover: bytes) -> None:
        """The handshake says who the peer is; the first bytes behind it are here."""
        self._handshake = None
        self.identity.sign_in(identity.user)
        self._signed_in = identity
        self.account.sign_in(identity.user)
        self._frames = self._acceptor.frame_filter(identity)
        self.log.bind(**{log_keys.USER: identity.user, log_keys.MECHANISM: identity.mechanism})
        self._transport = Transport(Transport.SERVER)
        self._transport.max_frame_size = self.limits.max_frame_bytes
        self._transport.channel_max = self.limits.max_channels - 1
        # What we ask for is half of what we tolerate, so that a heartbeat in time is never missed (2.4.5).
        self._transport.idle_timeout = self.limits.idle_timeout_ms / 1000
        self._engine = EngineConnection()
        self._collector = Collector()
        self._engine.collect(self._collector)
        self._transport.bind(self._engine)
        self.input.begin(self._transport, self._collector)
        output_filter = self._frames.write if self._frames is not None else None
        self.output.begin(self._transport, self.links, output_filter)
        self._feed(leftover)

    def turn_away(self, reason: str | None) -> None:
        """The handshake has failed, and said so."""
        self.log.warning("handshake_failed", **{log_keys.REASON: reason})
        if self._socket is not None:
            self._socket.close()

    def _handshake_timed_out(self) -> None:
        if self._client is None and self._socket is not None:
            self.log.warning("handshake_failed", **{log_keys.REASON: "no open in time"})
            self._socket.abort()

    # --- engine ---------------------------------------------------------------------------------------------------

    @property
    def has_opened(self) -> bool:
        """Its peer has signed in and opened it."""
        return self._client is not None

    @property
    def is_open(self) -> bool:
        """It can still carry something."""
        return not self._is_lost and not self._is_ending and self._transport is not None

    def _feed(self, data: bytes) -> None:
        """Bytes from the peer, for the engine."""
        self.input.take(data if self._frames is None else self._frames.receive(data))
        self._has_read()

    def _has_read(self) -> None:
        """The engine was given something, or told something."""
        if self._is_lost:
            return
        self.links.enter_unfinished()
        if self.account.is_over:
            self._refuse_bytes()
        elif self._is_held_up():
            self._pause_reading()
        self.output.schedule_flush()

    def _go_on_reading(self) -> None:
        """What had to wait for another turn of the loop goes on."""
        if self._is_lost or not self.input.is_waiting:
            return
        self._guard_input(self.input.go_on)
        self._has_read()
        self._read_on()

    def _is_busy(self) -> bool:
        """So much is under way for the peer that nothing more is to begin; once it has to go, that is over soon."""
        return not self._is_ending and self.tasks.count >= TASKS

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
                self._engine.close()
            self._end()
        elif kind == Event.TRANSPORT_ERROR:
            if self._transport is not None and not self._is_ending:
                error = CloseError.of(self._transport.condition)
                self.output.close_with(error)
                self.log.warning("protocol_error", **{log_keys.REASON: f"{error.condition}: {error.text}"})
            self._end()

    def _open(self) -> None:
        engine, transport, acceptor = self._engine, self._transport, self._acceptor
        assert engine is not None and transport is not None
        if self._client is not None:
            # It could name another Message VPN than the one its links are in.
            self.refuse(Refused(ErrorCode.NOT_ALLOWED, "the connection is open: there is no second open"))
            return
        self.identity.opened(engine.remote_container or "")
        engine.container = acceptor.container_id
        self.log.bind(**{log_keys.CONTAINER: self.identity.peer_container})
        refused: Refused | None = None
        try:
            heartbeats.check_idle_timeout(transport)
            assert self._signed_in is not None
            acceptor.opened(self._signed_in)
            self._client = acceptor.open_client(self, engine.remote_hostname, self._walk.sole_connection)
        except Refused as error:
            if is_better_untold(error, engine.remote_properties):
                self._leave_untold(error)
                return
            refused = error
        answer_open(engine, acceptor, self._client)
        engine.open()
        self._stop_timer()
        if refused is not None:
            self.refuse(refused)
            return
        assert self._client is not None
        self.log.info("connection_opened", **{log_keys.VPN: self._client.vpn_name})
        self._loop.call_soon(self._tick)

    def redirect(self, refused: Refused) -> None:
        """Another gateway does what is asked for: the same as where that is so of all, though it is open already."""
        engine = self._engine
        if engine is not None and not self._is_ending and is_better_untold(refused, engine.remote_properties):
            self._drop_links()
            self._leave_untold(refused)
        else:
            self.refuse(refused)

    def _leave_untold(self, refused: Refused) -> None:
        """End the connection without a word: its client does better with its next address than with a reason."""
        self.log.refused(refused)
        self.output.flush()
        self._is_ending = True
        self.input.drop()
        if self._socket is not None:
            self._socket.close()

    def _act_on(self, found: Finding) -> None:
        """Something is wrong in what the peer sent, or worth more than the engine tells."""
        if self._is_ending:
            return
        if isinstance(found, BadConnection):
            self.refuse(Refused(code_of(found.condition), found.text))
        elif isinstance(found, BadSession):
            self._sessions.end(found)
        elif isinstance(found, BadLink):
            self._sessions.detach(found)
        elif isinstance(found, Retirement) and self._client is not None:
            self._client.retired(found.txn_id, found.count, self.links.take_retired())
        self.output.schedule_flush()

    def _attach(self, link: Any) -> None:
        termini = self._sessions.attached(link)
        if self._client is None or self._is_ending or link.session not in self.links.sessions:
            return
        if not link.state & link.LOCAL_UNINIT:
            # The engine takes it for the same link, which is freed.
            self.refuse(
                Refused(ErrorCode.NOT_ALLOWED, "a link is attached anew before its detach was answered")
            )
            return
        if self.links.count_attach(link) > self.limits.max_links_per_session:
            self.refuse(
                Refused(ErrorCode.RESOURCE_LIMIT, "too many links on a session (max_links_per_session)")
            )
            return
        older = self.links.replaced_by(link)
        if older is not None:
            older.refuse(Refused(ErrorCode.STOLEN, "the session has attached a link of this name anew"))
        self.tasks.spawn(self._client.attach(link, termini))

    def _detach(self, link: Any, *, closed: bool) -> None:
        self._sessions.detached(link)
        self.links.detached(link, closed=closed)

    def _drop_links(self) -> None:
        if self._client is not None:
            self._client.abandon_transactions()
        self.links.drop_all()

    def _tick(self) -> None:
        """Heartbeats both ways (AMQP 1.0 section 2.4.5): the engine says when it wants to be asked again."""
        transport, collector = self._transport, self._collector
        if transport is None or collector is None or self._is_ending:
            return
        now = time.monotonic()
        if not self._is_reading and self.output.was_taken():
            # It is there, though we read nothing of what it may have sent.
            self._timer = self._loop.call_later(self.limits.idle_timeout_ms / 1000, self._tick)
            return
        deadline = transport.tick(now)
        if not self.input.is_waiting:
            self._guard_input(self.input.go_on)
        self.output.schedule_flush()
        if deadline and not self._is_ending:
            wait = heartbeats.seconds_to_tick(transport, deadline - now, self.limits.idle_timeout_ms)
            self._timer = self._loop.call_later(wait, self._tick)

    def _is_held_up(self) -> bool:
        """
        Whether nothing more of the peer's is to be read now: it does not take what we write, or too much is uncommitted
        or held of what publishers have sent. ``_read_on`` is called when that may be over.
        """
        if self.input.is_waiting or not self.output.is_writable:
            return True
        if self._client is None or not self.links.incoming:
            return False
        return self._client.wait_for_room(self._read_on) or self.account.wait_for_room(self._read_on)

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
        self.refuse(
            Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"this connection makes the gateway hold {held} bytes; at most {self.limits.connection_bytes} are"
                " held for one (connection_bytes): unfinished messages, open transactions, unsettled deliveries, links",
            )
        )

    def _close_as_largest(self, bound: str) -> None:
        """Publishers wait for room, and this connection holds the most (``gateway.ledger.Ledger.relieve``)."""
        self.refuse(
            Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"the gateway is to hold no more ({bound}), and holds the most for this connection:"
                f" {self.account.held_bytes} bytes",
            )
        )

    # --- the end --------------------------------------------------------------------------------------------------

    def refuse(self, refused: Refused) -> None:
        """Close the connection with an error."""
        engine = self._engine
        if engine is None:
            if self._socket is not None:
                self._socket.close()
            return
        if self._is_ending:
            return
        refused = as_followed(refused, engine.remote_properties)
        self.log.refused(refused)
        self._drop_links()
        if engine.state & EngineConnection.LOCAL_UNINIT:
            # The engine writes no close before the peer's open, which it was not given.
            engine.container = self._acceptor.container_id
            engine.open()
            error = CloseError(refused.code.condition, refused.text)
            self.output.rewrite(lambda output: output + error.frame)
        engine.condition = condition_of(refused)
        engine.close()
        self._end()

    def stop(self, refused: Refused) -> None:
        """
        The gateway stops. Its links end with the connection and get no detach of their own: clients that reconnect by
        themselves (rhea, Qpid JMS, proton's Container) take a detached link for one that is over, and would come back
        without it. ``amqp:connection:forced`` is a connection's error (AMQP 1.0 section 2.8.16).
        """
        self.refuse(refused)
        self.output.flush()

    def _end(self) -> None:
        """Nothing more begins here: the engine writes what it still has to, and the peer has a moment to answer it."""
        self.output.schedule_flush()
        if self._is_ending:
            return
        self._is_ending = True
        self.input.drop()
        self.output.end(self._all_written)
        self._stop_timer()
        # Cut, not closed: a peer that reads nothing would hold what is buffered for it for ever.
        self._timer = self._loop.call_later(CLOSE_SECONDS, self._cut)

    def _all_written(self) -> None:
        """The engine will write no more."""
        socket, engine = self._socket, self._engine
        if socket is None or engine is None or socket.is_closing():
            return
        if engine.state & engine.REMOTE_CLOSED:
            socket.close()
        elif socket.can_write_eof():
            # Were it closed while the peer still sends, the kernel would reset it, and our last frame be lost.
            socket.write_eof()

    def _cut(self) -> None:
        if self._socket is not None:
            self._socket.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _let_go(self) -> None:
        """
        Hold nothing any more of what holds this connection, so that all of it is freed with the last look at it:
        otherwise it would stay, with all that its engine has buffered, until the collector's oldest generation is run.
        Whoever still calls finds a connection that is lost.
        """
        if self._handshake is not None:
            self._handshake.close()
        self._socket = self._handshake = self._frames = self._client = None

    def _release_engine(self) -> None:
        """Nothing may use an object of the engine from here on: links are closed, and the output has none."""
        transport, engine, collector = self._transport, self._engine, self._collector
        self._transport = self._engine = self._collector = None
        if transport is not None and engine is not None and collector is not None:
            transport.unbind()
            engine.free()
            collector.release()

    # --- mistakes -------------------------------------------------------------------------------------------------

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
        self.refuse(Refused(ErrorCode.DECODE_ERROR, f"a text is not UTF-8: {error.object!r:.80}"))

    def _fail(self) -> None:
        """A mistake of ours: this connection pays for it, nobody else."""
        self.log.exception("connection_failed")
        self._acceptor.count_failure()
        if self._is_lost:
            return
        try:
            self.refuse(
                Refused(
                    ErrorCode.INTERNAL, "the gateway made a mistake on this connection; its log says which"
                )
            )
        except Exception:
            if self._socket is not None:
                self._socket.abort()
