"""
One client's connection: bytes between its socket and proton's engine, and what happens on it once.

Order of a connection's life: SASL (ours, before the engine is there), the engine bound, open, sessions, links, close.
Every event is guarded: a mistake of ours or of the peer's costs this connection and no other. Output is written once
a turn of the loop, however many messages went into it, and not at all while the socket's buffer is full.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import structlog
from proton import Collector, Event, Transport, symbol
from proton import Connection as EngineConnection

from amqp_ext.sasl.server import Identity
from gateway import log_keys
from gateway.amqp.attach import attach
from gateway.amqp.dialects.hooks import BatchedTransfers, FrameHooks, TokenCheck
from gateway.amqp.engine import heartbeats
from gateway.amqp.engine.close_errors import LastWord
from gateway.amqp.engine.conditions import condition_of
from gateway.amqp.engine.flow_echoes import FlowAnswers
from gateway.amqp.engine.link_names import LinkNames
from gateway.amqp.engine.native import pull, push
from gateway.amqp.engine.transfers import Links
from gateway.amqp.handshake import Handshake
from gateway.amqp.links.transactions import Transactions
from gateway.core.errors import ErrorCode, Refused
from gateway.tls import peer_common_name

if TYPE_CHECKING:
    from gateway.amqp.attach.authorization import Access
    from gateway.amqp.links.outgoing import AttachedLink
    from gateway.amqp.listener import Listening
    from gateway.amqp.nodes.temporary import Hold
    from gateway.vpn.message_vpn import MessageVpn

log = structlog.get_logger()


class WaitingLink(Protocol):
    """A link that has something to send when there is room again."""

    def writable(self) -> None: ...


CLOSE_SECONDS: Final = 2.0
"""How long a connection that we close may take to answer before it is cut."""

OFFERED: Final = ("ANONYMOUS-RELAY", "SHARED-SUBS", "rewind:replay-start")


class Connection(asyncio.Protocol):
    def __init__(self, listening: Listening, number: int) -> None:
        self.number = number
        self.listening = listening
        self.container = listening.container
        self.limits = self.container.limits
        self.links = Links()
        self.attached: dict[Any, AttachedLink] = {}
        """Links by their public engine objects."""
        self.names = LinkNames()
        self._answers = FlowAnswers(self)
        self._sessions: dict[Any, int] = {}
        """Open sessions, and how many links of each the peer has not detached."""
        self.belongings: dict[str, Hold] = {}
        """What goes with the connection, by name."""
        self.transactions = Transactions(self)
        self.waiting_for_output: dict[WaitingLink, None] = {}
        """Links that have credit and messages, but no room in the connection's output."""
        self.user = "anonymous"
        self.spoken = listening.spoken
        """What it speaks beyond AMQP 1.0, whatever its listener comes to speak."""
        self._takes_tokens = listening.takes_tokens
        self.token_check: TokenCheck | None = None
        """What its tokens permit, where tokens say who it is."""
        self._frames: FrameHooks | None = None
        self.batches: BatchedTransfers | None = None
        """Which deliveries bring several messages, where a dialect has such."""
        self._known_as: str | None = None
        """The user that its tokens are of."""
        self.peer_container = ""
        self._loop = asyncio.get_running_loop()
        self._socket: asyncio.Transport | None = None
        self._handshake: Handshake | None = None
        self._engine: EngineConnection | None = None
        self._transport: Transport | None = None
        self._collector: Collector | None = None
        self._vpn: MessageVpn | None = None
        self._access: Access | None = None
        self._flush_scheduled = False
        self._is_writable = True
        self._is_reading = True
        self._is_ending = False
        self._is_lost = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._last_word: LastWord | None = None
        """The engine's close frame is to say this."""
        self._log = log.bind(**{log_keys.CONNECTION: number})

    @property
    def vpn(self) -> MessageVpn:
        """The Message VPN the client opened."""
        assert self._vpn is not None
        return self._vpn

    @property
    def vpn_name(self) -> str | None:
        """The Message VPN the client opened; None before it did."""
        return None if self._vpn is None else self._vpn.name

    @property
    def link_count(self) -> int:
        """Links attached to it."""
        return len(self.attached)

    @property
    def peer(self) -> str:
        """Where the client is, HOST:PORT."""
        found = self._socket.get_extra_info("peername") if self._socket is not None else None
        return f"{found[0]}:{found[1]}" if isinstance(found, tuple) else str(found or "")

    @property
    def access(self) -> Access:
        """What the client's user may do in it."""
        assert self._access is not None
        return self._access

    @property
    def origin(self) -> str:
        """Whom its messages come from, for consumers that do not want their own: the client's container."""
        return self.peer_container or f"#{self.number}"

    @property
    def is_open(self) -> bool:
        """The connection can still carry something."""
        return not self._is_lost and self._transport is not None

    # --- asyncio ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        socket = self._socket = cast("asyncio.Transport", transport)
        socket.set_write_buffer_limits(high=self.limits.connection_output_bytes)
        peer = socket.get_extra_info("peername")
        self._log = self._log.bind(
            **{log_keys.PEER: f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)}
        )
        if not self.container.admit(self):
            self._log.warning("connection_refused", **{log_keys.LIMIT: "max_connections"})
            socket.abort()
            return
        tls = socket.get_extra_info("ssl_object")
        name = peer_common_name(tls) if tls is not None else None
        self._handshake = Handshake(self, self.container.sasl_for(self.listening, name))
        self._timer = self._loop.call_later(
            self.limits.handshake_timeout_ms / 1000, self._handshake_timed_out
        )

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            # We have said our last. The engine would keep what comes now, however much.
            return
        try:
            if self._handshake is not None:
                self._handshake.receive(data)
            elif self._transport is not None:
                self._feed(data)
        except Refused as refused:
            self.refuse(refused)
        except UnicodeDecodeError as error:
            self._refuse_text(error)
        except Exception:
            self._fail()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        self.transactions.abandon()
        for link in list(self.attached.values()):
            self._guard(link.lost)
        self.attached.clear()
        for hold in list(self.belongings.values()):
            self._guard(hold.release)
        self.names = LinkNames()
        self.waiting_for_output.clear()
        self.links.incoming.clear()
        self.links.outgoing.clear()
        self._release_engine()
        self.container.left(self)
        if self._vpn is not None:
            self._vpn.origins.forget(self)
            self._log.info("connection_closed", **{log_keys.REASON: str(exc) if exc else None})

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self.flush()

    # --- handshake ----------------------------------------------------------------------------------------------

    def authenticated(self, identity: Identity, leftover: bytes) -> None:
        """The handshake says who the peer is; the first bytes behind it are here."""
        self._handshake = None
        self._know(identity)
        self._log = self._log.bind(**{log_keys.USER: identity.user, log_keys.MECHANISM: identity.mechanism})
        self._transport = Transport(Transport.SERVER)
        self._transport.max_frame_size = self.limits.max_frame_bytes
        self._transport.channel_max = self.limits.max_channels - 1
        # What we ask for is half of what we tolerate, so that a heartbeat in time is never missed (2.4.5).
        self._transport.idle_timeout = self.limits.idle_timeout_ms / 1000
        self._engine = EngineConnection()
        self._collector = Collector()
        self._engine.collect(self._collector)
        self._transport.bind(self._engine)
        self._feed(leftover)

    def _know(self, identity: Identity) -> None:
        """Who the peer is, and with it what its frames need."""
        self.user = identity.user
        if self._takes_tokens and identity.is_anonymous:
            self.token_check = self.spoken.token_check(self)
        self._frames = self.spoken.frames(self.limits.max_frame_bytes)
        if self._frames is not None:
            self.batches = self._frames.batches

    def become(self, user: str) -> None:
        """
        A token has said who the peer is.

        Raises:
            Refused: UNAUTHORIZED, the user may not enter the Message VPN, or it is another user's connection.
        """
        if self._known_as not in (None, user):
            raise Refused(
                ErrorCode.UNAUTHORIZED,
                f"this connection is user {self._known_as!r}'s: connect anew for {user!r}",
            )
        if self._known_as is None:
            self.container.users.check_entry(user, self.vpn.name)
            self._known_as = self.user = user
            self._access = self.container.access_for(user, self.vpn)
            self._log = self._log.bind(**{log_keys.USER: user})

    def turn_away(self, reason: str | None) -> None:
        """The handshake has failed, and said so."""
        self._log.warning("handshake_failed", **{log_keys.REASON: reason})
        if self._socket is not None:
            self._socket.close()

    def _handshake_timed_out(self) -> None:
        if self._vpn is None and self._socket is not None:
            self._log.warning("handshake_failed", **{log_keys.REASON: "no open in time"})
            self._socket.abort()

    # --- engine -------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        if self._frames is not None:
            data = self._frames.receive(data)
        for piece, asked in self._answers.pieces_of(data):
            self._take(piece)
            if asked is not None and self._is_writable and not self._is_ending:
                assert self._transport is not None
                self.write(self._answers.to(asked, list(self._sessions), self._transport))

    def _take(self, data: bytes) -> None:
        transport, collector = self._transport, self._collector
        assert transport is not None and collector is not None
        room = push(transport, data)
        self._answers.has_room(room)
        if room < 0:
            # Unless the peer has closed, this has the engine say what is wrong.
            transport.close_tail()
        self.links.pump(collector, self._dispatch)
        if self._vpn is not None and self._vpn.wait_for_room(self._resume_reading):
            self._pause_reading()
        self.schedule_flush()
        if room < 0:
            self._end()

    def _dispatch(self) -> None:
        """Take one rare event: the one on top of the collector."""
        assert self._collector is not None
        event = self._collector.peek()
        if event is None:
            return
        kind = event.type
        if kind == Event.CONNECTION_REMOTE_OPEN:
            self._open()
        elif kind == Event.SESSION_REMOTE_OPEN:
            self._open_session(event.session)
        elif kind == Event.LINK_REMOTE_OPEN:
            self._attach(event.link)
        elif kind in (Event.LINK_REMOTE_CLOSE, Event.LINK_REMOTE_DETACH):
            self._detach(event.link, closed=kind == Event.LINK_REMOTE_CLOSE)
        elif kind == Event.SESSION_REMOTE_CLOSE:
            self._close_session(event.session)
        elif kind == Event.CONNECTION_REMOTE_CLOSE:
            self._detach_all()
            if self._engine is not None:
                self._engine.close()
            self._end()
        elif kind == Event.TRANSPORT_ERROR:
            if self._transport is not None and not self._is_ending:
                last = self._last_word = LastWord.of(self._transport.condition)
                self._log.warning("protocol_error", **{log_keys.REASON: f"{last.condition}: {last.text}"})
            self._end()

    def _open(self) -> None:
        engine, transport = self._engine, self._transport
        assert engine is not None and transport is not None
        if self._vpn is not None:
            # It could name another Message VPN than the one its links are in.
            self.refuse(Refused(ErrorCode.NOT_ALLOWED, "the connection is open: there is no second open"))
            return
        self.peer_container = engine.remote_container or ""
        engine.container = self.container.name
        spoken = self.spoken
        offered = (*OFFERED, *spoken.offered_capabilities)
        engine.offered_capabilities = [symbol(capability) for capability in offered]
        engine.properties = {symbol(key): value for key, value in spoken.open_properties.items()}
        self._log = self._log.bind(**{log_keys.CONTAINER: self.peer_container})
        engine.open()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            heartbeats.check_asked(transport)
            user = self.user if self.token_check is None else None
            self._vpn = self.container.vpn_for(spoken.vpn_name_of(engine.remote_hostname), user)
            self._access = self.container.access_for(self.user, self._vpn)
        except Refused as refused:
            self.refuse(refused)
            return
        self._log.info("connection_opened", **{log_keys.VPN: self._vpn.name})
        self._loop.call_soon(self._tick)

    def _open_session(self, session: Any) -> None:
        # The engine counts channels; a peer that begins again and again on one makes sessions without end.
        if len(self._sessions) >= self.limits.max_channels:
            self.refuse(
                Refused(ErrorCode.RESOURCE_LIMIT, "too many sessions on this connection (max_channels)")
            )
            return
        self._sessions[session] = 0
        session.open()

    def _close_session(self, session: Any) -> None:
        for link in [link for link in self.attached if link.session == session]:
            self._drop(link, closed=False)
        self.names.end(session)
        self._sessions.pop(session, None)
        session.close()
        session.free()

    def _attach(self, link: Any) -> None:
        session = link.session
        if self._vpn is None or session not in self._sessions:
            return
        # Refused links count until the peer detaches them: they are kept as long.
        self._sessions[session] += 1
        if self._sessions[session] > self.limits.max_links_per_session:
            self.refuse(
                Refused(ErrorCode.RESOURCE_LIMIT, "too many links on a session (max_links_per_session)")
            )
            return
        older = self.attached.get(self.names.add(link))
        if older is not None:
            older.refuse(Refused(ErrorCode.STOLEN, "the session has attached a link of this name anew"))
        self.spawn(attach.attach(self, link))

    def _detach(self, link: Any, *, closed: bool) -> None:
        self._drop(link, closed=closed)
        self.names.forget(link)
        if link.session in self._sessions:
            self._sessions[link.session] -= 1
        if closed:
            link.close()
        else:
            link.detach()
        link.free()

    def _drop(self, link: Any, *, closed: bool) -> None:
        attached = self.attached.pop(link, None)
        if attached is not None:
            attached.detached(closed=closed)
            self.links.incoming.pop(attached.key, None)
            self.links.outgoing.pop(attached.key, None)

    def _detach_all(self) -> None:
        self.transactions.abandon()
        for link in list(self.attached):
            self._drop(link, closed=False)

    # --- what links use ---------------------------------------------------------------------------------------

    @property
    def free_bytes(self) -> int:
        """How many bytes of messages the connection takes before it has enough to write."""
        if self._socket is None or not self._is_writable:
            return 0
        return self.limits.connection_output_bytes - self._socket.get_write_buffer_size()

    def schedule_flush(self) -> None:
        """Write what the engine has at the end of this turn of the loop."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what the engine has, as far as the socket takes it."""
        self._flush_scheduled = False
        transport = self._transport
        if transport is None or self._is_lost:
            return
        try:
            while self._is_writable:
                data = pull(transport)
                if not data:
                    if self.names.unanswered:
                        self.names.written()
                    break
                if self._last_word is not None:
                    data = self._last_word.put_into(data + b"".join(iter(lambda: pull(transport), b"")))
                if self.names.unanswered:
                    self.names.saw(data)
                self.write(data)
            if self.waiting_for_output and self.free_bytes > 0:
                waiting, self.waiting_for_output = self.waiting_for_output, {}
                for link in waiting:
                    link.writable()
            if self._is_ending and self._is_writable and transport.pending() < 0:
                self._said_all()
        except Exception:
            self._fail()

    def refuse(self, refused: Refused) -> None:
        """Close the connection with an error."""
        engine = self._engine
        if engine is None:
            if self._socket is not None:
                self._socket.close()
            return
        if self._is_ending:
            return
        self._log.warning(
            "connection_refused",
            **{log_keys.CONDITION: refused.code.condition, log_keys.REASON: refused.text},
        )
        self._detach_all()
        engine.condition = condition_of(refused)
        engine.close()
        self._end()

    def forget(self, link: Any) -> None:
        """A link that we detached: nothing more goes to it."""
        self._drop(link, closed=True)
        self.schedule_flush()

    def stop(self, refused: Refused) -> None:
        """
        The gateway stops. Its links end with the connection and get no detach of their own: clients that reconnect by
        themselves (rhea, Qpid JMS, proton's Container) take a detached link for one that is over, and would come back
        without it. ``amqp:connection:forced`` is a connection's error (AMQP 1.0 section 2.8.16).
        """
        self.refuse(refused)
        self.flush()

    def log_event(self, event: str, **values: Any) -> None:
        """One line about something that happened once."""
        self._log.info(event, **values)

    def warn(self, event: str, **values: Any) -> None:
        self._log.warning(event, **values)

    # --- plumbing ---------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Bytes for the peer, as frames or what comes before them."""
        if self._frames is not None:
            data = self._frames.write(data)
        if data and self._socket is not None and not self._socket.is_closing():
            self._socket.write(data)

    def _pause_reading(self) -> None:
        if self._is_reading and self._socket is not None:
            self._is_reading = False
            self._socket.pause_reading()

    def _resume_reading(self) -> None:
        if not self._is_reading and self._socket is not None and not self._socket.is_closing():
            self._is_reading = True
            self._socket.resume_reading()

    def _tick(self) -> None:
        """Heartbeats both ways (AMQP 1.0 section 2.4.5): the engine says when it wants to be asked again."""
        transport, collector = self._transport, self._collector
        if transport is None or collector is None or self._is_ending:
            return
        now = time.monotonic()
        deadline = transport.tick(now)
        self.links.pump(collector, self._dispatch)
        self.schedule_flush()
        if deadline and not self._is_ending:
            wait = heartbeats.seconds_to_tick(transport, deadline - now, self.limits.idle_timeout_ms)
            self._timer = self._loop.call_later(wait, self._tick)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that takes time, until the connection is lost; a mistake in it costs the connection."""
        task = self._loop.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except UnicodeDecodeError as error:
            self._refuse_text(error)
        except Exception:
            self._fail()
        self.schedule_flush()

    def _guard(self, call: Any) -> None:
        try:
            call()
        except Exception:
            self._fail()

    def _refuse_text(self, error: UnicodeDecodeError) -> None:
        """The engine reads a text when it is asked for it, and only then finds that it is none."""
        self.refuse(Refused(ErrorCode.DECODE_ERROR, f"a text is not UTF-8: {error.object!r:.80}"))

    def _fail(self) -> None:
        """A mistake of ours: this connection pays for it, nobody else."""
        self._log.exception("connection_failed")
        self.container.count_failure()
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

    def _end(self) -> None:
        """Nothing more begins here: the engine's last words go out, and the peer has a moment to answer them."""
        self.schedule_flush()
        if self._is_ending:
            return
        self._is_ending = True
        if self._timer is not None:
            self._timer.cancel()
        # Cut, not closed: a peer that reads nothing would hold what is buffered for it for ever.
        self._timer = self._loop.call_later(CLOSE_SECONDS, self._cut)

    def _said_all(self) -> None:
        """The engine will write no more."""
        socket, engine = self._socket, self._engine
        if socket is None or engine is None or socket.is_closing():
            return
        if engine.state & engine.REMOTE_CLOSED:
            socket.close()
        elif socket.can_write_eof():
            # Were it closed while the peer still sends, the kernel would reset it, and our last words be lost.
            socket.write_eof()

    def _cut(self) -> None:
        if self._socket is not None:
            self._socket.abort()

    def _release_engine(self) -> None:
        transport, engine, collector = self._transport, self._engine, self._collector
        self._transport = self._engine = self._collector = None
        if transport is not None and engine is not None and collector is not None:
            transport.unbind()
            engine.free()
            collector.release()
