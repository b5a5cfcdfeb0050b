"""What the comparison asks of a broker: that it can be started in a folder, and has queues that can be named."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

WARM = ("warm1", "warm2")
"""Queues to warm up with, for compilers at run time need that. Each is consumed once: that a broker has seen what was
accepted is not told, so that it may send the end of it again to who comes next."""

QUEUES = (*WARM, "bench", "single")
"""All of them: for rates, and for one message outstanding."""


class PeerFailed(Exception):
    """A broker could not be had, or did not become ready; the text ends with what it said last."""


class Running(Protocol):
    """A broker that runs."""

    address: str
    """HOST:PORT of its AMQP 1.0 listener."""

    def resident_bytes(self) -> int:
        """Memory that its processes hold now."""

    def cpu_seconds(self) -> float:
        """Processor time that its processes used so far."""


@dataclass(frozen=True, slots=True)
class Replay:
    """How what was published and consumed is read again."""

    address: str
    options: tuple[str, ...]
    """Of the load generator."""


class Broker(Protocol):
    """One column of the table."""

    name: str
    """By which it is chosen."""

    @property
    def title(self) -> str:
        """Name and version; known once it is at hand."""

    @property
    def storage(self) -> str:
        """How messages are kept, and whether they are synced to the disk before they are accepted."""

    @property
    def is_consumed(self) -> bool:
        """Whether a message is gone when a consumer has accepted it."""

    @property
    def replay(self) -> Replay | None:
        """How ``bench`` is read from its first message on; None where that cannot be."""

    def queue(self, name: str) -> str:
        """The address of one of ``QUEUES``."""

    def fetch(self, folder: Path) -> None:
        """
        Have it at hand, in ``folder`` if it has to be brought.

        Raises:
            PeerFailed: It is not installed, or cannot be brought.
        """

    def started(self, folder: Path) -> AbstractContextManager[Running]:
        """
        A new instance that keeps its files in ``folder``, ready, with its queues; ended with the block.

        Raises:
            PeerFailed: It does not become ready.
        """
