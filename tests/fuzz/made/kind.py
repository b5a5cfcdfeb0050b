"""A kind of input: who makes it, where it is sent, and what counts as its answer."""

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
    """Where passwords are asked for."""
    ADMINISTRATION = enum.auto()


class Answer(enum.Enum):
    """What the gateway sends for each input that it has handled."""

    END = enum.auto()
    """The end of the connection: it has one input."""
    DETACH = enum.auto()
    DISPOSITION = enum.auto()
    STATUS = enum.auto()
    """A status line of HTTP."""


class Step(NamedTuple):
    """Something that is sent first, and how many frames of a performative, from the start on, are waited for then."""

    sent: bytes
    code: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """
    One kind of input.

    Attributes:
        name: What it is asked for by.
        make: An input's bytes, by its dice and by its place on the connection (which numbers links and deliveries).
        at_once: How many inputs a connection gets.
        window: How many of them may wait for their answers.
        begin: What the connection begins with.
        end: What is sent behind the last input.
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
        """Input ``number`` of a seed, the same each time, at a place of its connection."""
        return self.make(Random(f"{seed}/{self.name}/{number}"), place)
