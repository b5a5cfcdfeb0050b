"""What a walk over a peer's frames finds that somebody has to act on."""

from __future__ import annotations

from dataclasses import dataclass

from amqp_ext.flow_frames import StateRequest


@dataclass(frozen=True, slots=True)
class BadConnection:
    """The connection is to be closed with this error; nothing behind it is read."""

    condition: str
    text: str


@dataclass(frozen=True, slots=True)
class BadSession:
    """The session that the peer has on this channel is to end with this error; the peer's end of it is waited for."""

    channel: int
    condition: str
    text: str


@dataclass(frozen=True, slots=True)
class BadLink:
    """The link that the peer has at this handle is to be detached with this error."""

    channel: int
    handle: int
    condition: str
    text: str


@dataclass(frozen=True, slots=True)
class Retirement:
    """
    A disposition that gives deliveries an outcome in a transaction: what is not held any more is not to be committed.

    Attributes:
        count: How many deliveries its range has.
    """

    channel: int
    txn_id: bytes
    count: int


Finding = StateRequest | BadConnection | BadSession | BadLink | Retirement
