"""
Names of one connection's links, so that a peer may attach a name that it still has attached (AMQP 1.0 section 2.6.1).

The engine ends the connection for such an attach. So it is made to forget a link's name once the attach is answered: it
compares names with those of attaches that come, and needs them for nothing more. What a name stands for is known here.

Invariant: a link's name is read here (``of``), never from the engine's link once that may have been answered.
"""

from __future__ import annotations

from typing import Any

from proton import Link

from amqp_ext.flow_frames import ATTACH, fields_of, frames_of
from gateway.amqp.engine.native import forget_name


class LinkNames:
    """The names of one connection's links, and our handles of them."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}
        """By link, from its attach until the peer detaches it."""
        self._links: dict[tuple[Any, bool, str], Any] = {}
        """The newest link of each session, direction and name."""
        self._handles: dict[Any, int] = {}
        """Our handles of links that were answered."""
        self._output: list[bytes] = []
        self.unanswered: list[Any] = []
        """Links that the engine still knows by name: their attaches are not answered, or the answer is not written."""

    def add(self, link: Link) -> Link | None:
        """
        A link attaches.

        Returns:
            The link that had its session, direction and name until now; None if there was none.

        Raises:
            UnicodeDecodeError: The name is no text.
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

    def handle_of(self, link: Link) -> int | None:
        """Our handle of a link; None where its attach was not seen."""
        return self._handles.get(link)

    def saw(self, output: bytes) -> None:
        """This is being written, in any pieces; our attaches are among it."""
        self._output.append(output)

    def written(self) -> None:
        """All that the engine had to say is written: it forgets the names of links that were answered."""
        output = b"".join(self._output)
        self._output.clear()
        if all(link.state & Link.LOCAL_UNINIT for link in self.unanswered):
            # A start may take long to find, and whatever else is written meanwhile is not looked through.
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
                    self._handles[link] = handle
                forget_name(link)
        self.unanswered = unanswered

    def end(self, session: Any) -> None:
        """A session has ended, and its links with it."""
        for link in [link for link in self._names if link.session == session]:
            self.forget(link)

    def forget(self, link: Link) -> None:
        """The peer has detached a link."""
        self._handles.pop(link, None)
        name = self._names.pop(link, None)
        if name is None:
            return
        key = (link.session, link.is_receiver, name)
        if self._links.get(key) == link:
            del self._links[key]
        if link in self.unanswered:
            self.unanswered.remove(link)
