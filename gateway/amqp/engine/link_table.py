"""
The links of one connection, and its sessions: the one place that knows which are attached, by what name, and which of
them wait for room in the connection's output.

A link is here from its attach until the peer has detached it; as an attached one from the answer (``register``) until
either side detaches. Invariant: nobody else writes to what is kept here, or frees a link or session of the engine's.
``incoming`` and ``outgoing`` are read by the loop over the engine's events, and so are plain dictionaries by the links'
handles (``loops``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from proton import Link, Session

from gateway import log_keys
from gateway.amqp.connection_log import ConnectionLog
from gateway.amqp.engine.attached_link import AttachedLink, Receiving, Sending, WaitingLink
from gateway.amqp.engine.conditions import condition_of, room_of
from gateway.amqp.engine.link_names import LinkNames
from gateway.amqp.engine.loops import LOOPS, Loops
from gateway.amqp.engine.native import incoming_bytes, outgoing_bytes
from gateway.amqp.engine.suspended_links import SuspendedLinks
from gateway.core.errors import Refused
from gateway.ledger import LINK_BYTES, SESSION_BYTES, Account, Kind


class LinkTable:
    """
    The links and sessions of one connection.

    Args:
        log: Of the connection.
        account: Where it is entered what the connection makes us hold.
        schedule_flush: Has what the engine says be written at the end of this turn of the loop.
    """

    def __init__(
        self,
        log: ConnectionLog,
        account: Account,
        schedule_flush: Callable[[], None],
        loops: Loops = LOOPS,
    ) -> None:
        self._loops = loops
        self.incoming: dict[Any, Receiving] = {}
        """Attached links that messages come in on, by handle."""
        self.outgoing: dict[Any, Sending] = {}
        """Attached links whose events are taken one by one, by handle."""
        self.names = LinkNames()
        self.account = account
        self._log = log
        self._schedule_flush = schedule_flush
        self.suspended = SuspendedLinks(self.outgoing, loops)
        self._resumed: dict[Link, Link] = {}
        """Links being attached, and the suspended ones of their names that they take the place of."""
        self._attached: dict[Link, AttachedLink] = {}
        self._retired = 0
        self._known: set[Link] = set()
        self._link_counts: dict[Session, int] = {}
        """Open sessions, and how many links of each the peer has not detached."""
        self._waiting: dict[WaitingLink, None] = {}
        """Links that have credit and messages, but no room in the connection's output."""

    # --- sessions -----------------------------------------------------------------------------------------------

    @property
    def sessions(self) -> Collection[Session]:
        """The open ones."""
        return self._link_counts.keys()

    def begin_session(self, session: Session) -> None:
        """A session has begun."""
        self._link_counts[session] = 0
        self.account.hold(Kind.LINKS, SESSION_BYTES)

    def end_session(self, session: Session) -> None:
        """
        The peer has ended a session: its links end with it, it is answered and let go of. Nothing happens where it was
        already: a peer may answer it after its end, and freed twice it would take others' memory along.
        """
        if session not in self._link_counts:
            return
        self.drop_session(session)
        session.close()
        session.free()

    def drop_session(self, session: Session) -> None:
        """A session has ended on our side: its links end with it."""
        for link in [link for link in self._attached if link.session == session]:
            self._drop(link, closed=False)
        for link in self.suspended.of(session):
            self._drop_suspended(link)
        self.names.end(session)
        self._known = {link for link in self._known if link.session != session}
        links = self._link_counts.pop(session)
        self.account.hold(Kind.LINKS, -SESSION_BYTES - links * LINK_BYTES)

    @property
    def buffered_bytes(self) -> int:
        """What the sessions hold that the peer, or the socket, has not taken yet: each of them has a window."""
        return sum(map(outgoing_bytes, self._link_counts))

    def enter_unfinished(self) -> None:
        """Enter in the account what has come, and is no whole message yet."""
        self.account.holds(Kind.UNFINISHED, sum(map(incoming_bytes, self._link_counts)))

    # --- from the attach to the detach --------------------------------------------------------------------------

    @property
    def attached(self) -> Collection[AttachedLink]:
        """The attached links."""
        return self._attached.values()

    def count_attach(self, link: Link) -> int:
        """
        The peer attaches a link in an open session.

        Returns:
            How many links of that session the peer has not detached, refused ones among them: they are kept as long.
        """
        self._link_counts[link.session] += 1
        self.account.hold(Kind.LINKS, LINK_BYTES)
        self._known.add(link)
        return self._link_counts[link.session]

    def is_known(self, link: Link) -> bool:
        """Whether the peer has attached it, and neither detached it nor ended its session."""
        return link in self._known

    def replaced_by(self, link: Link) -> AttachedLink | None:
        """
        Note the name of a link that the peer attaches.

        Returns:
            The link that is attached by this name, in this direction and session; None if none is.

        Raises:
            UnicodeDecodeError: The name is no text.
        """
        older = self.names.add(link)
        suspended = self.suspended.named(link.name, is_receiver=link.is_receiver)
        if suspended is not None:
            self._resumed[link] = suspended
        return None if older is None else self._attached.get(older)

    def register(self, attached: AttachedLink) -> None:
        """A link is about to be answered: from now on its events go to it."""
        link = attached.link
        key = self._loops.handle_of(link._impl)
        if attached.incoming is not None:
            self.incoming[key] = attached.incoming
        if attached.outgoing is not None:
            self.outgoing[key] = attached.outgoing
        self._attached[link] = attached
        suspended = self._resumed.pop(link, None)
        if suspended is not None and suspended in self.suspended:
            attached.resume(self.suspended[suspended])
            self.end_suspended(suspended)

    def detach(self, link: Link, refused: Refused | None) -> None:
        """Close a link from our side, with an error or without: nothing more goes to it."""
        if refused is not None:
            link.condition = condition_of(refused, room_of(link))
            self._log.info(
                "link_detached",
                **{
                    log_keys.LINK: self.name_of(link),
                    log_keys.CONDITION: refused.code.condition,
                    log_keys.REPLAY_ERROR: refused.code.replay_error,
                    log_keys.REASON: refused.text,
                },
            )
        link.close()
        self._drop(link, closed=True)
        self._schedule_flush()

    def detached(self, link: Link, *, closed: bool) -> None:
        """
        The peer has detached (or closed) a link: it is answered, its name and its place are free, and it is let go of,
        unless it is suspended: what is unsettled on it can still be settled then. Nothing happens where it was let go
        of already, with its session or by an earlier detach.
        """
        if link not in self._known:
            return
        attached = self._attached.get(link)
        if attached is not None and not closed and attached.suspend():
            del self._attached[link]
            self.incoming.pop(self._loops.handle_of(link._impl), None)
            self.suspended.add(attached, self.name_of(link))
            link.detach()
            return
        self._drop(link, closed=closed)
        self._forget(link)
        if closed:
            link.close()
        else:
            if link.state & Link.LOCAL_UNINIT:
                # Its attach is not answered yet: the engine would say nothing at all.
                link.open()
            link.detach()
        link.free()

    def end_suspended(self, link: Link) -> None:
        """A suspended link has ceased to exist; nothing happens where it has already."""
        if link in self.suspended:
            self._drop_suspended(link)
            self._forget(link)
            link.free()

    def _drop_suspended(self, link: Link) -> None:
        attached = self.suspended.take(link)
        if attached is not None:
            attached.detached(closed=False)

    def _forget(self, link: Link) -> None:
        self._resumed.pop(link, None)
        self.names.forget(link)
        self._known.discard(link)
        if link.session in self._link_counts:
            self._link_counts[link.session] -= 1
            self.account.hold(Kind.LINKS, -LINK_BYTES)

    def drop_all(self) -> None:
        """The connection is being closed: links end with it, and get no detach of their own."""
        for link in list(self._attached):
            self._drop(link, closed=False)
        for link in self.suspended.all():
            self._drop_suspended(link)

    def lost(self, guarded: Callable[[Callable[[], None]], None]) -> None:
        """
        The connection is gone.

        Args:
            guarded: Calls what it is given, whatever that raises: no link's mistake is to cost another its end.
        """
        suspended = [self.suspended.take(link) for link in self.suspended.all()]
        for attached in (*self._attached.values(), *suspended):
            if attached is not None:
                guarded(attached.lost)
        self._resumed.clear()
        self._attached.clear()
        self._link_counts.clear()
        self._known.clear()
        self._waiting.clear()
        self.incoming.clear()
        self.outgoing.clear()
        self.names = LinkNames()

    def _drop(self, link: Link, *, closed: bool) -> None:
        attached = self._attached.pop(link, None)
        if attached is not None:
            attached.detached(closed=closed)
            key = self._loops.handle_of(link._impl)
            self.incoming.pop(key, None)
            self.outgoing.pop(key, None)

    # --- what is asked of it ------------------------------------------------------------------------------------

    def name_of(self, link: Link) -> str:
        """The name by which a link was attached."""
        return self.names.of(link)

    def retire(self) -> None:
        """A delivery of a link was given an outcome in a transaction."""
        self._retired += 1

    def take_retired(self) -> int:
        """How many were, since this was asked last."""
        retired, self._retired = self._retired, 0
        return retired

    def attached_as(self, link: Link) -> AttachedLink | None:
        """What a link of the engine's is attached as; None where it is not answered, or detached by us."""
        return self._attached.get(link)

    def attached_at(self, key: Any) -> Link | None:
        """The attached link with this handle that transfers go over; None if there is none."""
        if key not in self.incoming and key not in self.outgoing:
            return None
        return next((link for link in self._attached if self._loops.handle_of(link._impl) == key), None)

    def deal_with_arrived(self) -> None:
        """Take what the peer has sent until now on all links: it is in the engine, and perhaps not taken yet."""
        for receiving in list(self.incoming.values()):
            receiving.receive()
        for sending in list(self.outgoing.values()):
            sending.report()

    # --- room for output ----------------------------------------------------------------------------------------

    def wait_for_output(self, link: WaitingLink) -> None:
        """Tell a link when the connection has room for output again."""
        self._waiting[link] = None

    def stop_waiting(self, link: WaitingLink) -> None:
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
