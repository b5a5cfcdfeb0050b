"""Nobody who logs waits for who reads; what is lost for it is counted and told."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from gateway.log_lines import LineCounts, LineWriter


class Pipe:
    """A pipe that is read when the test says so."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self._found = b""

    def read_until(self, wanted: bytes) -> bytes:
        """All there is up to and with ``wanted``."""
        while wanted not in self._found:
            self._found += os.read(self.reading, 65_536)
        return self._found


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.reading)


def told(count: int) -> str:
    return f"dropped {count}\n"


def test_who_logs_does_not_wait_for_a_blocked_pipe(pipe: Pipe) -> None:
    """Far more than a pipe holds is logged at once; what fits is kept, the rest counted, and told when it goes on."""
    counts = LineCounts()
    writer = LineWriter(pipe.writing, counts, most=300_000)
    writer.start(told)
    ended = threading.Event()

    def log() -> None:
        for number in range(10_000):
            writer.write(f"{number:>99}\n")
        ended.set()

    threading.Thread(target=log, daemon=True).start()
    assert ended.wait(30), "a logger waits for the pipe"
    assert counts.dropped > 0
    found = pipe.read_until(b"dropped")
    writer.write("on\n")
    found = pipe.read_until(b"on\n")
    lines = [line for line in found.split(b"\n") if line.strip().isdigit()]
    said = sum(int(line.split()[1]) for line in found.split(b"\n") if line.startswith(b"dropped"))
    assert len(lines) + said == 10_000
    assert said == counts.dropped
    writer.close()


def test_the_last_lines_are_written(pipe: Pipe) -> None:
    """What was logged before the end is there after it."""
    writer = LineWriter(pipe.writing)
    writer.start(told)
    for number in range(100):
        writer.write(f"{number}\n")
    writer.close()
    assert pipe.read_until(b"99\n").count(b"\n") == 100


def test_a_descriptor_that_cannot_be_written_costs_its_lines_only() -> None:
    """A closed pipe: nobody who logs sees an error, and every line is counted."""
    reading, writing = os.pipe()
    os.close(reading)
    counts = LineCounts()
    writer = LineWriter(writing, counts)
    writer.start(told)
    for _ in range(10):
        writer.write("lost\n")
    writer.close()
    assert counts.dropped == 10
    os.close(writing)


def test_a_pipe_that_does_not_wait_is_waited_for(pipe: Pipe) -> None:
    """A descriptor that was set to non-blocking gets everything all the same."""
    os.set_blocking(pipe.writing, False)
    writer = LineWriter(pipe.writing)
    writer.start(told)
    for number in range(3_000):
        writer.write(f"{number:>99}\n")
    assert pipe.read_until(b" 2999\n").count(b"\n") == 3_000
    writer.close()
