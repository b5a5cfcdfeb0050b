"""What an engine says on its way through a translation: whole frames, each of them once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.engine import output as module
from gateway.amqp.engine.output import Output


class Wire:
    """An output with an engine that says what it is given, piece by piece, and a socket that takes all of it."""

    def __init__(self) -> None:
        self.says: list[bytes] = []
        self.written: list[bytes] = []
        self.is_full = False
        self.output = Output(1_000, pytest.fail)
        self.holds = True
        names = SimpleNamespace(saw=lambda data: None, written=lambda: None)
        links: Any = SimpleNamespace(names=names, is_waiting=False, buffered_bytes=1)
        gate: Any = SimpleNamespace(holds=lambda: self.holds, wait=lambda resume: None)
        transport: Any = SimpleNamespace(_impl=self, pending=lambda: 0)
        self.output.connect(self)  # type: ignore[arg-type]
        self.output.begin(transport, links, None)
        self.output.watch(gate)

    def pull(self) -> bytes:
        return self.says.pop(0) if self.says else b""

    def write(self, data: bytes) -> None:
        self.written.append(data)
        if self.is_full:
            self.output.pause()

    def is_closing(self) -> bool:
        return False


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    with asyncio.Runner() as runner:
        loops = SimpleNamespace(handle_of=lambda impl: impl, pull=lambda handle: wire.pull())
        monkeypatch.setattr(module, "LOOPS", loops)
        wire = runner.run(_made())
        yield wire


async def _made() -> Wire:
    return Wire()


def bracketed(data: bytes) -> bytes:
    return b"[" + data + b"]"


def test_what_was_begun_to_be_written_is_not_translated(wire: Wire) -> None:
    """Its frame may be cut; from then on the engine is asked for all that it has, however little the socket takes."""
    wire.says, wire.is_full = [b"fra", b"me"], True
    wire.output.flush()
    wire.output.translate(bracketed)
    wire.says = [b"oth", b"er"]
    wire.output.resume()
    assert wire.written == [b"fra", b"me", b"[other]"]
    wire.output.translate(bytes)
    wire.says = [b"third"]
    wire.output.resume()
    assert wire.written[3:] == [b"[third]"]


def test_what_is_held_back_is_translated_once(wire: Wire) -> None:
    """As it is said, and what was said before is not."""
    change: Callable[[bytes], bytes] = bytes.upper
    wire.holds = False
    wire.says = [b"before "]
    wire.output.translate(bracketed)
    wire.says = [b"cut", b"ted"]
    wire.output.rewrite(change)
    wire.holds = True
    wire.output.flush()
    assert b"".join(wire.written) == b"before [CUTTED]"
