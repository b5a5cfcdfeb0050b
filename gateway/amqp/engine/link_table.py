"""
The sessions and links of one connection: the one place that knows which are attached, by what name, which are
suspended, and which of them wait for room in the connection's output.

A link is in the table from its attach until the peer has detached it. It counts as attached from the answer
(``register``) until either side detaches. A suspended link is one that its peer has detached and not closed, and that
still stands for something (AMQP 1.0 section 2.6.3): its unsettled deliveries can be settled until its session ends.

Names: a peer may attach a second link under a name that is still attached (section 2.6.1). The engine would end the
connection for that. So the engine is made to forget a link's name once the attach is answered: it uses names only to
compare them with those of new attaches.

Invariants: no other module writes to this table, or frees a link or session of the engine. A link's name is read here,
never from the engine's link once its attach may have been answered. The loop over the engine's events reads
``incoming`` and ``outgoing``, and so they are plain dictionaries by the links' handles (``loops``).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from proton import Link, Session

from amqp_ext.frames.flow import fields_of, frames_of, with_handle_max
from amqp_ext.frames.performatives import ATTACH
from amqp_ext.frames.termini import AttachedTermini
from amqp_ext.frames.walk import BadLink, BadSession, FrameWalk
from gateway.amqp.connection_log import ConnectionLog
from gateway.amqp.engine.conditions import code_of, condition_of, reason_keys, room_of
from gateway.amqp.engine.loops import LOOPS, Loops
from gateway.amqp.engine.native import forget_name, incoming_bytes, outgoing_bytes
from gateway.config import Limits
from gateway.core.errors import ErrorCode, Refused
from gateway.ledger import ATTACH_COPIES, DELIVERY_ID_BYTES, LINK_BYTES, SESSION_BYTES, Account, Kind
from gateway.logging import log_keys
from gateway.vpn.clients import LinkState


class Sending(Protocol):
    """Takes dispositions and credit of a link that messages go out on."""

    def updated(self, collector: Any) -> None:
        """
        Note the disposition in the event on top of a collector, which is about one of this link's deliveries, and take
        the event off. Events about more of them that follow may be taken, too.
        """

    def report(self) -> None:
        """Pass on what was noted since the last call."""

    def on_flow(self) -> None:
        """The peer has given credit, or taken it back."""


class AttachedLink(ABC):
    """
    A link whose attach was answered, until it is detached.

    Args:
        link: The engine's link.
        links: The link table of its connection.
    """

    kind: ClassVar[str]
    """What it is for, in the words for administrators."""

    def __init__(self, link: Link, links: LinkTable) -> None:
        self.link = link
        self._links = links
        self._is_suspended = False
        """Its peer has detached it and not closed it."""

    @property
    def incoming(self) -> Callable[[], None] | None:
        """Takes its transfers; None where messages go out on it, or there are none."""
        return None

    @property
    def outgoing(self) -> Sending | None:
        """Takes its events one by one; None where messages come in on it, or there are none."""
        return None

    @property
    def _sent_count(self) -> int:
        """How many messages went over it."""
        return 0

    def state(self) -> LinkState:
        """Its state, for administrators."""
        link = self.link
        is_receiver = bool(link.is_sender)
        ours, theirs = (link.source, link.remote_source) if is_receiver else (link.target, link.remote_target)
        return LinkState(
            self._links.names.of(link),
            not is_receiver,
            str(ours.address or theirs.address or ""),
            self.kind,
            max(link.credit, 0),
            link.unsettled,
            self._sent_count,
        )

    @abstractmethod
    def ready(self) -> None:
        """Its attach is answered: give the first credit, or send what can be sent."""

    def writable(self) -> None:  # noqa: B027
        """It waited for room in its connection's output, and there is room."""

    @abstractmethod
    def detached(self, *, closed: bool) -> None:
        """The peer or we have detached (or closed) the link, or its session is gone."""

    @property
    def _stands_for_something(self) -> bool:
        """Whether it is suspended, and does not end, when its peer detaches it and does not close it."""
        return False

    def suspend(self) -> bool:
        """
        The peer has detached the link and not closed it. If this returns True, the link is suspended until its session
        ends or it is attached anew, and ``detached`` is called then. Otherwise ``detached`` is called immediately.
        """
        self._is_suspended = self._stands_for_something
        return self._is_suspended

    def _end_if_idle(self) -> None:
        """End the link if it is suspended and stands for nothing any more."""
        if self._is_suspended and not self._stands_for_something:
            # In the next turn of the loop: the caller has just settled something, and still uses the engine's link.
            asyncio.get_running_loop().call_soon(self._links.end_suspended, self.link)

    def resume(self, older: AttachedLink) -> None:  # noqa: B027
        """This link takes the place of a suspended one of the same name, which ends right after."""

    def lost(self) -> None:
        """The connection is gone."""
        self.detached(closed=False)

    def steal(self) -> None:
        """Another link of its name was attached (AMQP 1.0 section 2.6.1): it ends, if it has not already."""
        if self._is_suspended or self._links.is_attached(self):
            self.refuse(Refused(ErrorCode.STOLEN, "another link of this name was attached"))

    def refuse(self, refused: Refused) -> None:
        """Detach with an error; a suspended link ends without one, as its peer has detached it."""
        if self._is_suspended:
            self._links.end_suspended(self.link)
        else:
            self._links.detach(self.link, refused)


class LinkNames:
    """The names of one connection's links, and our handles of them."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}
        """By link, from its attach until the peer detaches it."""
        self._links: dict[tuple[Any, bool, str], Any] = {}
        """The newest link of each session, direction and name."""
        self.handles: dict[Any, int] = {}
        """Our handles of links that were answered."""
        self._output: list[bytes | bytearray] = []
        self.unanswered: list[Any] = []
        """Links that the engine still knows by name: their attaches are not answered, or the answer is not written."""

    def add(self, link: Link) -> Link | None:
        """
        A link attaches.

        Returns:
            The link that had its session, direction and name until now; None if there was none.

        Raises:
            UnicodeDecodeError: The name is not UTF-8.
        """
        name = link.name
        if not name:
            # It will be refused.
            return None
        self._names[link] = name
        key = (link.session, link.is_receiver, name)
        older = self._links.get(key)
        self._links[key] = link
        self.unanswered.append(link)
        return older

    def of(self, link: Link) -> str:
        """The name by which a link was attached."""
        return self._names.get(link) or link.name

    def saw(self, output: bytes | bytearray) -> None:
        """Note output that is written, in any pieces: our attach frames may be in it."""
        if self.unanswered:
            self._output.append(output)

    def written(self) -> None:
        """All output of the engine is written: make it forget the names of links that were answered."""
        if not self.unanswered:
            return
        output = b"".join(self._output)
        self._output.clear()
        if all(link.state & Link.LOCAL_UNINIT for link in self.unanswered):
            # A start may take long to resolve; output that is written meanwhile is not searched.
            return
        handles = {
            (fields[0], fields[2]): fields[1]
            for fields in (fields_of(frame, ATTACH) for frame in frames_of(output))
            if fields is not None
        }
        unanswered = []
        for link in self.unanswered:
            if link.state & Link.LOCAL_UNINIT:
                unanswered.append(link)
            else:
                handle = handles.get((self._names[link], link.is_receiver))
                if handle is not None:
                    self.handles[link] = handle
                forget_name(link)
        self.unanswered = unanswered

    def end(self, session: Any) -> None:
        """A session has ended, and its links with it."""
        for link in [link for link in self._names if link.session == session]:
            self.forget(link)

    def forget(self, link: Link) -> None:
        """The peer has detached a link."""
        self.handles.pop(link, None)
        name = self._names.pop(link, None)
        if name is None:
            return
        key = (link.session, link.is_receiver, name)
        if self._links.get(key) == link:
            del self._links[key]
        if link in self.unanswered:
            self.unanswered.remove(link)


class LinkTable:
    """
    The links and sessions of one connection.

    Args:
        log: The log of the connection.
        account: The account of the connection.
        schedule_flush: Has the engine's output written at the end of this turn of the loop.
    """

    def __init__(
        self,
        log: ConnectionLog,
        account: Account,
        schedule_flush: Callable[[], None],
        loops: Loops = LOOPS,
    ) -> None:
        self._loops = loops
        self.incoming: dict[Any, Callable[[], None]] = {}
        """Attached links that messages come in on, by handle."""
        self.outgoing: dict[Any, Sending] = {}
        """Attached links whose events are taken one by one, by handle."""
        self.names = LinkNames()
        self.account = account
        self._log = log
        self._schedule_flush = schedule_flush
        self._suspended: dict[Link, tuple[AttachedLink, tuple[bool, str]]] = {}
        """The suspended links, with their directions and names."""
        self._suspended_as: dict[tuple[bool, str], Link] = {}
        """The last link that was suspended of each direction and name, on whichever session (section 2.6.1)."""
        self._resumed: dict[Link, Link] = {}
        """By link that is being attached: the suspended link of its name that it takes the place of."""
        self.attached: dict[Link, AttachedLink] = {}
        """The attached links; changed here alone."""
        self._retired = 0
        self._known: dict[Link, int] = {}
        """Links that the peer has not detached, and what each costs, in bytes."""
        self.sessions: dict[Session, int] = {}
        """Open sessions, and how many links of each the peer has not detached."""
        self._waiting: dict[AttachedLink, None] = {}
        """Links that have credit and messages, but no room in the connection's output."""

    # --- sessions -----------------------------------------------------------------------------------------------

    def begin_session(self, session: Session) -> None:
        """A session has begun."""
        self.sessions[session] = 0
        self.account.hold(Kind.LINKS, SESSION_BYTES)

    def end_session(self, session: Session) -> None:
        """
        The peer has ended a session: end its links, answer, and free it. Does nothing for a session that has ended: a
        peer may still answer our end, and freeing a session twice would free memory that is not its own.
        """
        if session not in self.sessions:
            return
        self.drop_session(session)
        session.close()
        session.free()

    def drop_session(self, session: Session) -> None:
        """A session has ended on our side: its links end with it."""
        for link in [link for link in self.attached if link.session == session]:
            self._drop(link, closed=False)
        for link in [link for link in self._suspended if link.session == session]:
            self._drop_suspended(link)
        self.names.end(session)
        gone = [link for link in self._known if link.session == session]
        del self.sessions[session]
        self.account.hold(Kind.LINKS, -SESSION_BYTES - sum(map(self._known.pop, gone)))

    @property
    def buffered_bytes(self) -> int:
        """Bytes that the peer, or the socket, has not taken from the sessions yet: each session has a window."""
        return sum(map(outgoing_bytes, self.sessions))

    def enter_unfinished(self, renumbered_count: int) -> None:
        """
        Enter the bytes of unfinished messages in the account.

        Args:
            renumbered_count: How many of the peer's own delivery-ids are remembered.
        """
        unfinished = sum(map(incoming_bytes, self.sessions))
        self.account.holds(Kind.UNFINISHED, unfinished + renumbered_count * DELIVERY_ID_BYTES)

    # --- from the attach to the detach --------------------------------------------------------------------------

    def count_attach(self, link: Link, frame_bytes: int) -> int:
        """
        The peer attaches a link in an open session.

        Args:
            frame_bytes: The size of the attach.

        Returns:
            How many links of that session the peer has not detached, including refused ones, which are kept as long.
        """
        self.sessions[link.session] += 1
        cost = self._known[link] = LINK_BYTES + ATTACH_COPIES * frame_bytes
        self.account.hold(Kind.LINKS, cost)
        return self.sessions[link.session]

    def is_known(self, link: Link) -> bool:
        """Whether the peer has attached it, and neither detached it nor ended its session."""
        return link in self._known

    def replaced_by(self, link: Link) -> AttachedLink | None:
        """
        Note the name of a link that the peer attaches.

        Returns:
            The link that is attached by this name, in this direction and session; None if none is.

        Raises:
            UnicodeDecodeError: The name is not UTF-8.
        """
        older = self.names.add(link)
        suspended = self._suspended_as.get((link.is_receiver, link.name))
        if suspended is not None:
            self._resumed[link] = suspended
        return None if older is None else self.attached.get(older)

    def register(self, attached: AttachedLink) -> None:
        """A link is about to be answered: from now on its events go to it."""
        link = attached.link
        key = self._loops.handle_of(link._impl)
        if attached.incoming is not None:
            self.incoming[key] = attached.incoming
        if attached.outgoing is not None:
            self.outgoing[key] = attached.outgoing
        self.attached[link] = attached
        suspended = self._resumed.pop(link, None)
        if suspended is not None and suspended in self._suspended:
            attached.resume(self._suspended[suspended][0])
            self.end_suspended(suspended)

    def detach(self, link: Link, refused: Refused | None) -> None:
        """Close a link from our side, with an error or without: nothing more goes to it."""
        if refused is not None:
            link.condition = condition_of(refused, room_of(link))
            self._log.info(
                "link_detached",
                **{log_keys.LINK: self.names.of(link)},
                **reason_keys(refused),
            )
        link.close()
        self._drop(link, closed=True)
        self._schedule_flush()

    def detached(self, link: Link, *, closed: bool) -> None:
        """
        The peer has detached (or closed) a link: answer, and free the link and its name. A link that is suspended is
        kept, so that its deliveries can still be settled. Does nothing for a link that was freed before, with its
        session or by an earlier detach.
        """
        if link not in self._known:
            return
        attached = self.attached.get(link)
        if attached is not None and not closed and attached.suspend():
            # Its peer's dispositions still go to it.
            del self.attached[link]
            self.incoming.pop(self._loops.handle_of(link._impl), None)
            key = (link.is_receiver, self.names.of(link))
            self._suspended[link] = (attached, key)
            self._suspended_as[key] = link
            link.detach()
            return
        self._drop(link, closed=closed)
        self._forget(link)
        if closed:
            link.close()
        else:
            if link.state & Link.LOCAL_UNINIT:
                # Its attach is not answered yet: the engine would write nothing at all.
                link.open()
            link.detach()
        link.free()

    def end_suspended(self, link: Link) -> None:
        """A suspended link has ceased to exist; does nothing if it has already."""
        if link in self._suspended:
            self._drop_suspended(link)
            self._forget(link)
            link.free()

    def _drop_suspended(self, link: Link) -> None:
        found = self._suspended.pop(link, None)
        if found is None:
            return
        attached, key = found
        self.outgoing.pop(self._loops.handle_of(link._impl), None)
        if self._suspended_as.get(key) == link:
            del self._suspended_as[key]
        attached.detached(closed=False)

    def _forget(self, link: Link) -> None:
        self._resumed.pop(link, None)
        self.names.forget(link)
        cost = self._known.pop(link, 0)
        if link.session in self.sessions:
            self.sessions[link.session] -= 1
            self.account.hold(Kind.LINKS, -cost)

    def drop_all(self) -> None:
        """The connection is being closed: links end with it, and get no detach of their own."""
        for link in list(self.attached):
            self._drop(link, closed=False)
        for link in list(self._suspended):
            self._drop_suspended(link)

    def lost(self, guarded: Callable[[Callable[[], None]], None]) -> None:
        """
        The connection is gone.

        Args:
            guarded: Calls a function and catches what it raises, so that a failure at one link does not stop the rest.
        """
        suspended = [attached for attached, _ in self._suspended.values()]
        for attached in (*self.attached.values(), *suspended):
            guarded(attached.lost)
        for links in (self._resumed, self.attached, self._suspended, self._suspended_as, self._known):
            links.clear()
        for kept in (self.sessions, self._waiting, self.incoming, self.outgoing):
            kept.clear()
        self.names = LinkNames()

    def _drop(self, link: Link, *, closed: bool) -> None:
        attached = self.attached.pop(link, None)
        if attached is not None:
            attached.detached(closed=closed)
            key = self._loops.handle_of(link._impl)
            self.incoming.pop(key, None)
            self.outgoing.pop(key, None)

    # --- what is asked of it ------------------------------------------------------------------------------------

    def retire(self) -> None:
        """A delivery of a link was given an outcome in a transaction."""
        self._retired += 1

    def take_retired(self) -> int:
        """How many such deliveries there were since the last call."""
        retired, self._retired = self._retired, 0
        return retired

    def is_attached(self, attached: AttachedLink) -> bool:
        """Whether it was answered, and neither side has detached it."""
        return self.attached.get(attached.link) is attached

    def refuse(self, link: Link, refused: Refused) -> None:
        """Detach a link with an error, as its kind does that; nothing happens where it is not attached."""
        attached = self.attached.get(link)
        if attached is not None:
            attached.refuse(refused)

    def attached_at(self, key: Any) -> Link | None:
        """The attached link with this handle that transfers go over; None if there is none."""
        if key not in self.incoming and key not in self.outgoing:
            return None
        return next((link for link in self.attached if self._loops.handle_of(link._impl) == key), None)

    def deal_with_arrived(self) -> None:
        """Take from the engine what the peer has sent until now, on all links."""
        for receive in list(self.incoming.values()):
            receive()
        for sending in list(self.outgoing.values()):
            sending.report()

    # --- room for output ----------------------------------------------------------------------------------------

    def wait_for_output(self, link: AttachedLink) -> None:
        """Tell a link when the connection has room for output again."""
        self._waiting[link] = None

    def stop_waiting(self, link: AttachedLink) -> None:
        """A link has nothing to send any more."""
        self._waiting.pop(link, None)

    @property
    def is_waiting(self) -> bool:
        """A link waits for room in the connection's output."""
        return bool(self._waiting)

    def offer_output(self) -> None:
        """There is room: links that waited for it may send."""
        waiting, self._waiting = self._waiting, {}
        for link in waiting:
            link.writable()


@dataclass(eq=False)
class PeerSessions:
    """
    The sessions of one connection, by the peer's channels: begun, ended by the peer, or ended by us with an error
    (AMQP 1.0 section 2.5.8). It also detaches links because of findings in the peer's frames.

    Args:
        _walk: The walk over the peer's frames; it knows channels and handles.
        _rewrite: Passes the engine's output through a function before it is written.
    """

    _links: LinkTable
    _walk: FrameWalk
    _limits: Limits
    _log: ConnectionLog
    _rewrite: Callable[[Callable[[bytes], bytes]], None]
    _sessions: dict[int, Session] = field(default_factory=dict)
    """Open sessions by the peer's channel."""
    _ended: dict[Session, None] = field(default_factory=dict)
    """Sessions that we have ended, and the peer has not yet."""
    _places: dict[Link, tuple[int, int]] = field(default_factory=dict)
    """Links in the order of their attaches, with the peer's channels and handles."""

    def lost(self) -> None:
        """The connection is gone: drop the references to the engine's objects."""
        for kept in (self._sessions, self._ended, self._places):
            kept.clear()

    # --- sessions -------------------------------------------------------------------------------------------------

    def begin(self, session: Any) -> None:
        """
        The peer has begun a session.

        Raises:
            Refused: The connection cannot go on.
        """
        channel = self._walk.begun_channels.pop(0) if self._walk.begun_channels else None
        if not session.state & session.LOCAL_UNINIT:
            # The engine takes it for the answer to a begin of ours, whatever became of that session since.
            raise Refused(
                ErrorCode.NOT_ALLOWED, "a begin has a remote-channel, but the gateway begins no sessions"
            )
        # The engine limits channels: a peer that begins again and again on one channel makes sessions without end.
        if len(self._links.sessions) + len(self._ended) >= self._limits.max_channels:
            raise Refused(ErrorCode.RESOURCE_LIMIT, "too many sessions on this connection (max_channels)")
        self._links.begin_session(session)
        if channel is not None:
            self._sessions[channel] = session
        session.open()
        most = self._limits.max_links_per_session - 1
        self._rewrite(lambda output: self._walk.saw_begins(with_handle_max(output, most)))

    def ended_by_peer(self, session: Any) -> None:
        """The peer has ended a session, or has answered our end of it."""
        if session in self._ended:
            del self._ended[session]
            session.free()
            return
        self._forget(session)
        self._links.end_session(session)

    def end(self, bad: BadSession) -> None:
        """End a session with an error; its links go with it."""
        session = self._sessions.get(bad.channel)
        if session is None or session not in self._links.sessions:
            return
        refused = Refused(code_of(bad.condition), bad.text)
        self._log.warning("session_ended", **reason_keys(refused))
        self._forget(session)
        self._ended[session] = None
        self._links.drop_session(session)
        session.condition = condition_of(refused)
        session.close()

    def _forget(self, session: Session) -> None:
        self._sessions = {channel: found for channel, found in self._sessions.items() if found != session}
        for link in [link for link in self._places if link.session == session]:
            self.detached(link)

    # --- links ----------------------------------------------------------------------------------------------------

    def attached(self, link: Link) -> tuple[AttachedTermini, int]:
        """The peer has attached a link; return what its attach frame says about source and target, and its size."""
        if not self._walk.attached:
            return AttachedTermini(), 0
        channel, handle, termini, size_bytes = self._walk.attached.pop(0)
        self._places[link] = channel, handle
        return termini, size_bytes

    def detached(self, link: Link) -> None:
        """The peer has detached a link: its handle is free."""
        self._places.pop(link, None)

    def detach(self, bad: BadLink) -> None:
        """Detach a link with an error, where it is attached."""
        for link, place in reversed(self._places.items()):
            if place == (bad.channel, bad.handle):
                self._links.refuse(link, Refused(code_of(bad.condition), bad.text))
                return
