"""A kind of input: how it is made, where it is sent, and what counts as its answer."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple


class Listener(enum.Enum):
    """A port of the gateway."""

    PLAIN = enum.auto()
    RABBITMQ = enum.auto()
    EVENT_HUBS = enum.auto()
    WEBSOCKET = enum.auto()
    SIGN_IN = enum.auto()
    """The listener that requires passwords."""
    ADMINISTRATION = enum.auto()


class Answer(enum.Enum):
    """What the gateway sends for each input that it has handled."""

    END = enum.auto()
    """The end of the connection: there is one input on each connection."""
    DETACH = enum.auto()
    DISPOSITION = enum.auto()
    STATUS = enum.auto()
    """A status line of HTTP."""


class Step(NamedTuple):
    """Something to send first; then the driver waits until this many frames of a performative have arrived in all."""

    sent: bytes
    code: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """
    One kind of input.

    Attributes:
        name: The name by which it is selected.
        make: Makes an input from its dice and its place on the connection (which numbers links and deliveries).
        at_once: The number of inputs on a connection.
        window: The number of inputs that may wait for their answers.
        begin: The first steps of the connection.
        end: Bytes to send after the last input.
    """

    name: str
    where: Listener
    answer: Answer
    make: Callable[[Random, int], bytes]
    at_once: int = 1
    window: int = 100
    begin: tuple[Step, ...] = ()
    end: bytes = b""

    def input(self, seed: int, number: int, place: int = 0) -> bytes:
        """Input ``number`` of a seed, the same each time, for a place on its connection."""
        return self.make(Random(f"{seed}/{self.name}/{number}"), place)
