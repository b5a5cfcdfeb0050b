"""
The sessions of one connection, as its peer numbers them: begun, ended by the peer, or ended by us with an error (AMQP
1.0 section 2.5.8), and links ended for what was found in the peer's frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proton import Link, Session

from amqp_ext.flow_frames import with_handle_max
from amqp_ext.frames.findings import BadLink, BadSession
from amqp_ext.frames.termini import AttachedTermini
from amqp_ext.frames.walk import FrameWalk
from gateway import log_keys
from gateway.amqp.connection_log import ConnectionLog
from gateway.amqp.engine.conditions import code_of, condition_of
from gateway.amqp.engine.link_table import LinkTable
from gateway.config import Limits
from gateway.core.errors import ErrorCode, Refused


class PeerSessions:
    """
    Args:
        walk: Over the peer's frames; it says on which channel and handle something comes.
        rewrite: Has what the engine has to say pass through a function before it is written.
    """

    def __init__(
        self,
        links: LinkTable,
        walk: FrameWalk,
        limits: Limits,
        log: ConnectionLog,
        rewrite: Callable[[Callable[[bytes], bytes]], None],
    ) -> None:
        self._links = links
        self._walk = walk
        self._limits = limits
        self._log = log
        self._rewrite = rewrite
        self._sessions: dict[int, Session] = {}
        """By the peer's channel."""
        self._ended: dict[Session, None] = {}
        """Ended by us, and not by the peer yet."""
        self._at: dict[tuple[int, int], Link] = {}
        """Links by the peer's channel and handle."""
        self._places: dict[Link, tuple[int, int]] = {}

    def lost(self) -> None:
        """The connection is gone: nothing of the engine's is held."""
        self._sessions.clear()
        self._ended.clear()
        self._at.clear()
        self._places.clear()

    # --- sessions -------------------------------------------------------------------------------------------------

    def begin(self, session: Any) -> None:
        """
        The peer has begun a session.

        Raises:
            Refused: The connection is of no use any more.
        """
        channel = self._walk.begun_channels.pop(0) if self._walk.begun_channels else None
        if not session.state & session.LOCAL_UNINIT:
            # The engine takes it for the answer to a begin of ours, whatever became of that session since.
            raise Refused(ErrorCode.NOT_ALLOWED, "a begin answers a session that the gateway has not begun")
        # The engine counts channels; a peer that begins again and again on one makes sessions without end.
        if len(self._links.sessions) + len(self._ended) >= self._limits.max_channels:
            raise Refused(ErrorCode.RESOURCE_LIMIT, "too many sessions on this connection (max_channels)")
        self._links.begin_session(session)
        if channel is not None:
            self._sessions[channel] = session
        session.open()
        most = self._limits.max_links_per_session - 1
        self._rewrite(lambda output: with_handle_max(output, most))

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
        self._log.warning("session_ended", **{log_keys.CONDITION: bad.condition, log_keys.REASON: bad.text})
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

    def attached(self, link: Link) -> AttachedTermini:
        """The peer has attached a link; what is said of its source and target."""
        if not self._walk.attached:
            return AttachedTermini()
        channel, handle, termini = self._walk.attached.pop(0)
        self._at[channel, handle] = link
        self._places[link] = channel, handle
        return termini

    def detached(self, link: Link) -> None:
        """The peer has detached a link: its handle is free."""
        place = self._places.pop(link, None)
        if place is not None and self._at.get(place) == link:
            del self._at[place]

    def detach(self, bad: BadLink) -> None:
        """Detach a link with an error, where it is attached."""
        link = self._at.get((bad.channel, bad.handle))
        attached = None if link is None else self._links.attached_as(link)
        if attached is not None:
            attached.refuse(Refused(code_of(bad.condition), bad.text))
