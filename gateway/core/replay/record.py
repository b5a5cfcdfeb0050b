"""
The record of one replay: who asked for it, what it was to do, how far it came, and how it ended.

It is kept when the replay is over (``gateway.core.replay.records``), and by it whoever works for a while, onto an
endpoint or into another address, goes on after a stop.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

ENDPOINT: Final = "endpoint"
"""``kind``: a replay onto an endpoint."""

COPY: Final = "copy"
"""``kind``: copies of logged messages, published to an address."""

DEAD_RETURN: Final = "dead-return"
"""``kind``: dead messages, published to where they came from."""

COMPLETE: Final = "complete"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"

ENDED: Final = frozenset({COMPLETE, CANCELLED, FAILED})
"""States from which nothing goes on."""


class ReplayRequest(NamedTuple):
    """A replay as it was asked for."""

    requester: str = ""
    """See ``ReplayRecord``."""
    name: str = ""
    """Empty: one is made."""
    start: str = ""


BY_NOBODY: Final = ReplayRequest()
"""As a test asks for one."""


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    """
    Texts are as they were said. Times are ms since the epoch, ids are the log's.

    A replay onto an endpoint is in the states of ``gateway.core.replay.states``, or ``cancelled``; a job is
    ``running``, ``paused``, ``complete``, ``cancelled`` or ``failed``.
    """

    number: int
    """Rising in the order in which replays began; unique in a Message VPN."""
    name: str
    """Given, or made of who asked and when; unique among those that are kept."""
    kind: str
    requester: str
    """An administrator's name, or ``user@container`` of a client."""
    start: str = ""
    until: str = ""
    """Empty where it is to go on to live, or to the end."""
    subscriptions: tuple[str, ...] = ()
    selector: str = ""
    target: str = ""
    """An endpoint's name, or an address."""
    rate: float | None = None
    """Messages a second, at most."""
    speed: float | None = None
    """Factor of the original pace."""
    state: str = "initializing"
    position: int = 0
    """The next id to be read."""
    read: int = 0
    """Messages that it has looked at; of a replay onto an endpoint, ids of the log."""
    sent: int = 0
    """Messages that it has put on the endpoint, or published."""
    size_bytes: int = 0
    """Content of those. What a replay onto an endpoint has to put once more after a stop counts once more."""
    started_ms: int = 0
    ended_ms: int = 0
    """0 while it goes on."""
    outcome: str = ""
    """Why it ended, what became of it meanwhile, or what a job waits for."""
    end: int = 0
    """A job takes messages with ids below this one."""
    source: str = ""
    """The queue that dead letters are taken from."""
    limit: int = 0
    """Messages that are returned, at most; 0 for all."""
    remote: str = ""
    """The label of the peer that ``target`` is an address of; empty for this Message VPN."""
    without_below: int = 0
    """A job does without what rules of retention had taken out below this id when it began."""

    @property
    def is_ended(self) -> bool:
        """Nothing goes on any more."""
        return self.state in ENDED

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name) for name in _FIELDS})

    @classmethod
    def from_json(cls, text: str) -> ReplayRecord:
        fields = json.loads(text)
        fields["subscriptions"] = tuple(fields["subscriptions"])
        return cls(**fields)


# ``asdict`` copies what is in it, and takes several times as long.
_FIELDS: Final = tuple(one.name for one in fields(ReplayRecord))
