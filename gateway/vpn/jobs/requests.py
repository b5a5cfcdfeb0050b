"""What administrators ask of jobs, as values; texts are as they were said."""

from __future__ import annotations

from dataclasses import dataclass

from amqp_ext.replay_start import ReplayStart


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """
    Attributes:
        place: Where it starts, and where it ends if not at the end of the log as it is then.
        subscriptions: Topic patterns; none for all. A ``!`` in front leaves out what the others match.
        target: An address.
        rate: Messages a second, at most.
        speed: A factor of the original pace.
        name: Empty for one that is made of who asks and when.
        remote: The label of the peer that ``target`` is an address of; empty for this Message VPN.
    """

    place: ReplayStart
    target: str
    requester: str = ""
    start: str = "beginning"
    until: str = ""
    subscriptions: tuple[str, ...] = ()
    selector: str = ""
    rate: float | None = None
    speed: float | None = None
    name: str = ""
    remote: str = ""


@dataclass(frozen=True, slots=True)
class ReturnRequest:
    """
    Attributes:
        queue: Where the dead letters lie.
        target: An address; empty for where each message died.
        limit: At most so many messages; 0 for all.
    """

    queue: str
    target: str = ""
    requester: str = ""
    selector: str = ""
    rate: float | None = None
    limit: int = 0
    name: str = ""
