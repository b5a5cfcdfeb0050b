"""
The store of a Message VPN as read on a standby, while another gateway writes it. It is never written here.

It gives what the active gateway has reported, and no more: a standby may show a commit before that, or a commit that a
failover undoes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gateway.core.effects import StoredEndpoint
from gateway.core.log import RetentionMark
from gateway.core.model import LogState, Point
from store.errors import WriteFailed
from store.ports import Batch, Durability, Histogram, OnCommit, Reader, Recovered, StoreOptions, Stores


class ToldLog(NamedTuple):
    """The log's row, as the standby has it."""

    log: LogState
    """``next_id`` is one past the last id that the active gateway is known to have reported."""
    commit_no: int
    """The number of the newest commit; the active gateway commits every second."""
    marks: Sequence[RetentionMark] = ()
    """What retention rules have removed from the log."""


class ToldDefinitions(NamedTuple):
    """The streams and points that readers may name."""

    streams: Sequence[StoredEndpoint]
    points: Sequence[Point]


class Followed(Protocol):
    """
    The store of a Message VPN on a standby. All methods block, and are called from one thread.

    Raises:
        ReadFailed: The standby cannot be read. Each method may raise it.
    """

    @property
    def place(self) -> str:
        """Where the standby is, for people."""

    @property
    def engine(self) -> str:
        """The engine that keeps the data, with its version, for people."""

    @property
    def reader(self) -> Reader:
        """Pages from the standby, on threads of its own."""

    def look(self) -> ToldLog:
        """The log as it is now."""

    def told_taken_out(self, marks: Sequence[RetentionMark]) -> None:
        """
        Note the marks that readers were told of. If a page lacks more than these say, the reader raises ``LogTrimmed``:
        a rule may have removed messages before a look has shown it. Does not block; any thread may call it.
        """

    def definitions(self) -> ToldDefinitions:
        """Streams and points as they are now."""

    def close(self) -> None:
        """Close the connections. Blocks for moments; any thread may call it."""


class FollowableStores(Stores, Protocol):
    """The stores of an engine that has standbys."""

    def follow(self, vpn: str, options: StoreOptions) -> Followed:
        """
        Read the store of a Message VPN on a standby, whichever gateway has it. Blocks.

        Raises:
            StoreError: It cannot be read.
        """


class FollowedStore:
    """A ``Followed`` as the ``Store`` (``store.ports``) of a Message VPN that is read and never written."""

    def __init__(self, followed: Followed, told: ToldLog, definitions: ToldDefinitions) -> None:
        self.place, self.engine, self.reader = followed.place, followed.engine, followed.reader
        self.close = followed.close
        self.recovered = Recovered(
            told.log,
            list(definitions.streams),
            [],
            {},
            1,
            list(definitions.points),
            retention=list(told.marks),
        )

    def start_writer(self, on_commit: OnCommit) -> NoWriter:
        return NoWriter(on_commit)

    def scrub(self, seconds: float) -> bool:
        return True

    def durability(self) -> Durability:
        return Durability.TWO_MACHINES


class NoWriter:
    """The ``Writer`` of a store that another gateway writes: every batch with effects fails."""

    def __init__(self, on_commit: OnCommit) -> None:
        self._on_commit = on_commit
        self.commit_seconds = Histogram(())
        self.confirmed_at: float | None = None

    def submit(self, batch: Batch) -> None:
        self._on_commit([batch], _refused(batch))

    def commit_now(self, batch: Batch, answer: object = None) -> tuple[bool, WriteFailed | None]:
        return False, None


def _refused(batch: Batch) -> WriteFailed | None:
    return WriteFailed("another gateway has the store") if batch.effects else None
