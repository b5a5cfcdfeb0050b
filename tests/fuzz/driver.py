"""The process that makes inputs and sends them, many connections at once; the campaign watches the gateway."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from tests.fuzz.made.kind import Answer, Kind, Listener
from tests.fuzz.made.kinds import all_kinds
from tests.fuzz.playing import Address, GatewayGone, play
from tests.fuzz.progress import Progress

AT_ONCE = 12
"""Connections at once."""

STREAMS_IN_TURN = 20
"""Connections one after the other of a kind that has one input on each, before the next kind's turn."""

SAVE_SECONDS = 2.0
NICE = 5
"""The gateway and its bystander go first where processors are short."""


class Sent(NamedTuple):
    """A connection that is over: which inputs it had, and what was wrong."""

    kind: str
    numbers: range
    port: int
    wrong: str | None


class Counted(NamedTuple):
    """Inputs handled so far, by kind, over all runs."""

    counts: dict[str, int]


class Over(NamedTuple):
    """The driver has ended; what was under way if the gateway was gone."""

    under_way: list[tuple[str, range]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a driver is to do; goes to its process."""

    state: Path
    addresses: Mapping[Listener, Address]
    document: dict[str, Any]
    only: Sequence[str]
    seconds: float
    most_inputs: int | None = None


def drive(plan: Plan, pipe: Connection) -> None:
    """Send inputs until the time is over or the gateway gone; tell the campaign through ``pipe``."""
    os.nice(NICE)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Driver(plan, pipe).run())


class _Driver:
    def __init__(self, plan: Plan, pipe: Connection) -> None:
        self._plan = plan
        self._pipe = pipe
        kinds = all_kinds(plan.document)
        self._turns = cycle([kinds[name] for name in plan.only or kinds])
        self._progress = Progress(plan.state)
        self._begun = sum(self._progress.counts.values())
        self._is_gone = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._plan.seconds
        saving = asyncio.create_task(self._save())
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._send(deadline))
        saving.cancel()
        under_way = self._progress.under_way()
        for kind, taken in under_way:
            # What brought the gateway down is written down, and not sent to the next one.
            self._progress.finish(kind, taken, len(taken))
        self._tell()
        self._pipe.send(Over(under_way))

    def _left(self) -> int:
        """Inputs that are still wanted."""
        most = self._plan.most_inputs
        return sys.maxsize if most is None else most - sum(self._progress.counts.values()) + self._begun

    async def _send(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < deadline and not self._is_gone and (left := self._left()) > 0:
            kind = next(self._turns)
            is_stream = kind.answer is Answer.END
            in_turn = STREAMS_IN_TURN if is_stream else kind.at_once
            taken = self._progress.take(kind.name, min(in_turn, left))
            try:
                handled = await self._streams(kind, taken) if is_stream else await self._batch(kind, taken)
            except GatewayGone:
                self._is_gone = True
                return
            self._progress.finish(kind.name, taken, handled)

    async def _batch(self, kind: Kind, numbers: range) -> int:
        inputs = [kind.input(self._progress.seed, number, place) for place, number in enumerate(numbers)]
        played = await play(kind, self._plan.addresses[kind.where], inputs)
        self._pipe.send(Sent(kind.name, numbers, played.port, played.wrong))
        return played.handled

    async def _streams(self, kind: Kind, numbers: range) -> int:
        for number in numbers:
            await self._batch(kind, range(number, number + 1))
        return len(numbers)

    async def _save(self) -> None:
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            self._tell()

    def _tell(self) -> None:
        self._progress.save()
        self._pipe.send(Counted(dict(self._progress.counts)))
