"""
The process that makes inputs and sends them on many concurrent connections, and records the progress of each kind; the
campaign watches the gateway.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from tests.fuzz.made.kind import Answer, Kind, Listener
from tests.fuzz.made.kinds import all_kinds
from tests.support.frames import CLOSE, DETACH, DISPOSITION, END, parse


class Progress:
    """
    Hands out ranges of input numbers, each once, and counts the inputs that were handled.

    Args:
        file: The file that keeps the progress; it is read if it exists.
        is_fresh: Start again, with another seed.
        seed: The seed; random by default. A seed other than the file's starts again, too.

    Attributes:
        under_way: The ranges that were taken and are not finished.
    """

    def __init__(self, file: Path, *, is_fresh: bool = False, seed: int | None = None) -> None:
        self._file = file
        kept = json.loads(file.read_text()) if file.exists() and not is_fresh else {}
        if seed is not None and kept.get("seed") != seed:
            kept = {}
        self.seed: int = kept.get("seed", secrets.randbelow(2**32) if seed is None else seed)
        self.counts: dict[str, int] = kept.get("counts", {})
        self.under_way: list[tuple[str, range]] = []
        self._next: dict[str, int] = kept.get("next", {})

    @property
    def total(self) -> int:
        """The number of inputs handled so far, of all kinds."""
        return sum(self.counts.values())

    def take(self, kind: str, most: int) -> range:
        """Take the next numbers of a kind."""
        first = self._next.get(kind, 0)
        self._next[kind] = first + most
        self.under_way.append((kind, range(first, first + most)))
        return self.under_way[-1][1]

    def finish(self, kind: str, taken: range, handled: int) -> None:
        """The first ``handled`` inputs of the range were handled; the gateway has not read the others."""
        self.under_way.remove((kind, taken))
        self.counts[kind] = self.counts.get(kind, 0) + handled

    def save(self) -> None:
        """Write the file atomically."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        beside = self._file.with_suffix(".new")
        beside.write_text(json.dumps({"seed": self.seed, "counts": self.counts, "next": self._next}))
        beside.replace(self._file)


SILENT_SECONDS = 30.0
"""How long the gateway may send nothing and close nothing; its own time-outs are shorter (see ``target``)."""

CUT_SECONDS = 2.0
"""After this time without an answer, an HTTP request is assumed to be incomplete: the gateway waits for the rest."""

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_EVENT_STREAM = b"content-type: text/event-stream"
"""In the head of an answer that does not end until the client leaves; later requests on it stay unanswered."""

_ALLOWED_STATUSES = {501, 503, 505}
"""The statuses from 500 on that the administration may answer with; any other is an error of the gateway."""

_PIECE = 1 << 18

Address = tuple[str, int]


class GatewayGone(Exception):
    """The gateway accepts no connections."""


@dataclass(frozen=True, slots=True)
class Played:
    """
    The result of a connection.

    Attributes:
        handled: How many of its inputs were answered, plus the one that ended the connection, if any.
        port: Our port, which the gateway's log names.
        wrong: A sentence about what the gateway did wrong; None if nothing.
        received: Everything that the gateway sent.
    """

    handled: int
    port: int
    wrong: str | None
    received: bytes


class _Connection:
    """Collects what the gateway sends; ``more`` waits for it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.port = int(writer.get_extra_info("sockname")[1])
        self.received = bytearray()
        self.is_over = False

    @property
    def is_stream(self) -> bool:
        """Whether this is an event stream, which goes on until we leave."""
        return _EVENT_STREAM in self.received

    def send(self, content: bytes) -> None:
        """Write, unless the gateway has closed."""
        if not self.is_over and not self._writer.is_closing():
            self._writer.write(content)

    def hang_up(self) -> None:
        """Half-close: nothing more will be sent."""
        if not self.is_over and not self._writer.is_closing():
            self._writer.write_eof()

    def abort(self) -> None:
        """Drop the connection."""
        self._writer.transport.abort()

    async def more(self, seconds: float) -> bool:
        """Wait for bytes or the end; returns whether one of them came in time."""
        if self.is_over:
            return True
        try:
            async with asyncio.timeout(seconds):
                data = await self._reader.read(_PIECE)
        except TimeoutError:
            return False
        except OSError:
            data = b""
        self.received += data
        self.is_over = not data
        return True


def performatives(received: bytes | bytearray, start: int = 0) -> Iterator[tuple[int, int, int]]:
    """The code, start and end of each complete frame; ValueError for an invalid one."""
    at = start
    while at + 8 <= len(received):
        if received[at : at + 4] == b"AMQP":
            at += 8
            continue
        stop = at + int.from_bytes(received[at : at + 4], "big")
        if stop < at + 8:
            raise ValueError("the gateway sent a frame that is none")
        if stop > len(received):
            return
        body = at + 4 * received[at + 4]
        if body < stop:
            if received[body : body + 2] != b"\x00\x53":
                raise ValueError("the gateway sent a performative that is none")
            yield received[body + 2], at, stop
        at = stop


class _Answers:
    """Counts the inputs that are answered by what was received from ``start`` on."""

    def __init__(self, answer: Answer, received: bytearray, start: int) -> None:
        self._answer = answer
        self._received = received
        self._at = start
        self._count = 0
        self.is_ended = False
        """Whether the gateway has ended the session: it answers no input after the one that made it do so."""

    def count(self) -> int:
        """Count also what has arrived since the last call."""
        if self._answer is Answer.STATUS:
            return len(_STATUS.findall(self._received))
        for code, at, stop in performatives(self._received, self._at):
            self._at = stop
            self.is_ended |= code == END
            if code == DETACH and self._answer is Answer.DETACH:
                self._count += 1
            elif code == DISPOSITION and self._answer is Answer.DISPOSITION:
                told = parse(self._received, at, stop)
                assert told is not None
                self._count += int(told.field(2, told.field(1))) - int(told.field(1)) + 1
        return self._count


def _settled_in(sent: bytes) -> int:
    """The number of deliveries that the sender settles, for which the gateway need not send an outcome."""
    return sum(code == DISPOSITION for code, _, _ in performatives(sent))


def _said_goodbye(received: bytearray, start: int) -> bool:
    """Whether the gateway's last frame is a close without an error."""
    last = [parse(received, at, stop) for code, at, stop in performatives(received, start) if code == CLOSE]
    return bool(last) and last[-1] is not None and last[-1].field(0) is None


async def play(kind: Kind, address: Address, inputs: Sequence[bytes]) -> Played:
    """
    Send inputs on a new connection, and wait for its end.

    Raises:
        GatewayGone: The gateway accepts no connections.
    """
    try:
        connection = _Connection(*await asyncio.open_connection(*address))
    except OSError as error:
        raise GatewayGone(str(error)) from error
    try:
        handled, wrong = await _played(kind, connection, inputs)
    except ValueError as error:
        handled, wrong = len(inputs), str(error)
    finally:
        connection.abort()
    return Played(handled, connection.port, wrong, bytes(connection.received))


async def _played(kind: Kind, connection: _Connection, inputs: Sequence[bytes]) -> tuple[int, str | None]:
    """The number of inputs handled, and what was wrong."""
    received = connection.received
    for step in kind.begin:
        connection.send(step.sent)
        while sum(code == step.code for code, _, _ in performatives(received)) < step.count:
            if connection.is_over:
                # The gateway may refuse the first frames because earlier inputs have reached a limit.
                return len(inputs), None
            if not await connection.more(SILENT_SECONDS):
                return len(inputs), "the beginning was not answered"
    start = len(received)
    answers = _Answers(kind.answer, received, start)
    is_http = kind.answer is Answer.STATUS
    settled = 0
    if kind.answer is Answer.END:
        connection.send(b"".join(inputs) + kind.end)
        connection.hang_up()
    else:
        patience = CUT_SECONDS if is_http else SILENT_SECONDS
        for first in range(0, len(inputs), kind.window):
            if answers.is_ended:
                break
            window = b"".join(inputs[first : first + kind.window])
            connection.send(window)
            settled += _settled_in(window) if kind.answer is Answer.DISPOSITION else 0
            due = min(first + kind.window, len(inputs)) - settled
            while not connection.is_over and answers.count() < due and not answers.is_ended:
                if connection.is_stream or not await connection.more(patience):
                    break
        connection.send(kind.end)
        if is_http:
            while not (connection.is_over or connection.is_stream) and await connection.more(CUT_SECONDS):
                pass
            connection.hang_up()
    while not (connection.is_over or connection.is_stream):
        if not await connection.more(SILENT_SECONDS):
            return len(inputs), "the gateway neither answers nor closes"
    count, answered = len(inputs), answers.count()
    if not answers.is_ended:
        answered += settled
    if kind.answer is Answer.END:
        return count, None
    handled, wrong = min(count, answered + 1), None
    odd = {status for found in _STATUS.findall(received) if (status := int(found)) >= 500} - _ALLOWED_STATUSES
    if is_http and odd:
        wrong = f"the administration answered {sorted(odd)}"
    elif not is_http and answered < count and not answers.is_ended and _said_goodbye(received, start):
        wrong = f"{count - answered} of {count} inputs were not answered before the close"
    return handled, wrong


AT_ONCE = 12
"""Concurrent connections."""

STREAMS_IN_TURN = 20
"""For a kind with one input on each connection: the connections in a row before the next kind's turn."""

SAVE_SECONDS = 2.0
NICE = 5
"""The driver's niceness: the gateway and its bystander have priority."""


class Sent(NamedTuple):
    """A finished connection: the inputs on it, and what was wrong."""

    kind: str
    numbers: range
    port: int
    wrong: str | None


class Counted(NamedTuple):
    """Inputs handled so far over all runs, by kind."""

    counts: dict[str, int]


class Over(NamedTuple):
    """The driver has ended; if the gateway was gone, with the inputs that were under way."""

    under_way: list[tuple[str, range]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What the driver is to do; it is sent to the driver's process."""

    state: Path
    addresses: Mapping[Listener, Address]
    document: dict[str, Any]
    only: Sequence[str]
    seconds: float
    stop_at: int
    """The driver stops at about this total of inputs."""


def drive(plan: Plan, pipe: Connection) -> None:
    """Send inputs until the time is over or the gateway is gone; report to the campaign through ``pipe``."""
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
        self._is_gone = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._plan.seconds
        saving = asyncio.create_task(self._save())
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._send(deadline))
        saving.cancel()
        self._tell()
        # Inputs that brought the gateway down are written down, and are not sent to the next gateway.
        self._pipe.send(Over(self._progress.under_way))

    async def _send(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        while (
            loop.time() < deadline
            and not self._is_gone
            and (left := self._plan.stop_at - self._progress.total) > 0
        ):
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
