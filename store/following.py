"""
A Message VPN's store that another gateway writes, as a standby of it has it: read here, and never written.

What is there is what the active gateway has told of, and no more: a standby may show a commit before that, or one that
a failover undoes.
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
    """``next_id`` is one past the last id that the active gateway is known to have told of."""
    commit_no: int
    """Of the newest commit; the active gateway commits each second."""
    marks: Sequence[RetentionMark] = ()
    """What rules of retention have taken out of it."""


class ToldDefinitions(NamedTuple):
    """What readers may name."""

    streams: Sequence[StoredEndpoint]
    points: Sequence[Point]


class Followed(Protocol):
    """
    All methods block, and are called from one thread.

    Raises:
        ReadFailed: The standby cannot be read; each of them.
    """

    @property
    def place(self) -> str:
        """Where the standby is, as a person is told."""

    @property
    def engine(self) -> str:
        """What keeps the data, with its version, as a person is told."""

    @property
    def reader(self) -> Reader:
        """Pages from the standby, on threads of its own."""

    def look(self) -> ToldLog:
        """The log as it is now."""

    def told_taken_out(self, marks: Sequence[RetentionMark]) -> None:
        """
        Readers were told of these marks. A page that lacks more is not given, but ``LogTrimmed`` raised: what a rule
        took out may be gone from here before a look has shown it. It does not block, and any thread may call it.
        """

    def definitions(self) -> ToldDefinitions:
        """Streams and points as they are now."""

    def close(self) -> None:
        """End it. Blocks for moments; from any thread."""


class FollowableStores(Stores, Protocol):
    """The stores of an engine that has standbys."""

    def follow(self, vpn: str, options: StoreOptions) -> Followed:
        """
        Read the store of a Message VPN on a standby, whoever has it. Blocks.

        Raises:
            StoreError: It cannot be read.
        """


class FollowedStore:
    """What is followed, as the ``Store`` (``store.ports``) of a Message VPN that reads and never writes."""

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
    """The ``Writer`` of a store that another gateway writes: whatever has to be stored fails."""

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
