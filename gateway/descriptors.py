"""
File descriptors of this process: each connection is one, and without one left nobody is accepted, and no file opened.
"""

from __future__ import annotations

import resource
from typing import Final

RESERVED: Final = 256
"""For what is no client's connection: listeners, administrators, the Message VPNs' files, each opened several times."""


class TooFewDescriptors(Exception):
    """The system does not give the process as many as its settings ask for; the message says what to do."""


def provide(max_connections: int) -> None:
    """
    Have enough file descriptors for so many connections: the process may raise its own limit as far as the system
    lets it.

    Raises:
        TooFewDescriptors: That is not far enough.
    """
    needed = max_connections + RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise TooFewDescriptors(
            f"limits.max_connections = {max_connections} needs {needed} file descriptors, and the system gives this"
            f" process {hard} at most: raise that (systemd: LimitNOFILE={needed}; a shell: ulimit -Hn {needed}), or"
            f" lower limits.max_connections to {max(hard - RESERVED, 1)}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
