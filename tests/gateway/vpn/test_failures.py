"""What a Message VPN does when something outside it fails: it says so, and goes on as soon as that works again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.vpn.role import ArchivedSource
from gateway.vpn.upkeep import archiving
from gateway.vpn.upkeep.archiving import Archiving
from tests.gateway.core.machines.world import Sizes, World


@pytest.fixture
def world() -> Iterator[World]:
    """A Message VPN that moves only when the test says so, with a small cache."""
    world = World(Sizes(page_rows=10, quantum=10, tail_bytes=1))
    world.settle_down()
    yield world
    world.loop.close()


# --- The archiver -----------------------------------------------------------------------------------------------------


class _Process:
    """A process that writes a line, and nothing more."""

    returncode = None

    def __init__(self, line: bytes) -> None:
        self.stdin = SimpleNamespace(write=lambda data: None)
        self.stdout = self._lines(line)
        self.stderr = asyncio.StreamReader()
        self.is_terminated = False

    @staticmethod
    async def _lines(line: bytes) -> AsyncIterator[bytes]:
        yield line

    def terminate(self) -> None:
        self.is_terminated = True


@pytest.mark.parametrize("line", [None, b"a warning\n", b"7\n"], ids=["no process", "no JSON", "no report"])
def test_another_archiver_runs_after_one_that_failed(
    world: World, monkeypatch: pytest.MonkeyPatch, line: bytes | None
) -> None:
    """The reason is known meanwhile, for the alarm."""
    begun: list[_Process | None] = []

    async def create(*_: Any, **__: Any) -> _Process:
        begun.append(None if line is None else _Process(line))
        if begun[-1] is None:
            raise BlockingIOError("the system is out of processes")
        return begun[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
    source = ArchivedSource({}, "there", 60.0)
    archiver = Archiving(world.vpn.state, world.vpn.archive_watch, world.vpn.trimmer, source)
    world.on_loop(archiver.start)
    world.loop.run()
    assert len(begun) == 1 and archiver.problem
    assert all(process is None or process.is_terminated for process in begun)
    world.loop.advance(archiving.FIRST_SECONDS)
    assert len(begun) == 2
