"""Nobody who logs waits for who reads; what is lost for it is counted and told."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from gateway.logging.lines import LineCounts, LineWriter
from tests.support.waiting import wait_until


class Pipe:
    """A pipe that is read when the test says so."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self._found = b""

    def read_until(self, wanted: bytes) -> bytes:
        """All there is up to and with ``wanted``."""
        return self.read_while(lambda found: wanted not in found)

    def read_while(self, goes_on: Callable[[bytes], bool]) -> bytes:
        """All there is once it is not to go on any more."""
        while goes_on(self._found):
            self._found += os.read(self.reading, 65_536)
        return self._found


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.reading)


def told(count: int) -> str:
    return f"dropped {count}\n"


def accounted_for(found: bytes) -> tuple[int, int]:
    """The lines in what was read, and those that it says were dropped."""
    whole = found.split(b"\n")[:-1]
    said = [int(line.split()[1]) for line in whole if line.startswith(b"dropped")]
    return sum(line.strip().isdigit() for line in whole), sum(said)


def test_who_logs_does_not_wait_for_a_blocked_pipe(pipe: Pipe) -> None:
    """
    Far more than a pipe holds is logged at once: what fits is kept, the rest counted, and told when it goes on, though
    nothing more is logged.
    """
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
    pipe.read_while(lambda found: sum(accounted_for(found)) < 10_000)
    wait_until(lambda: not writer._size, "there is room again")
    writer.write("on\n")
    lines, said = accounted_for(pipe.read_while(lambda found: not found.endswith(b"on\n")))
    assert lines + said == 10_000
    assert said == counts.dropped
    writer.close()


def test_the_last_line_is_told_of_though_it_was_dropped(pipe: Pipe) -> None:
    """Dropped while a pipe is blocked, and followed by no other: it is told of as soon as the pipe goes on."""
    writer = LineWriter(pipe.writing, LineCounts(), most=300_000)
    writer.start(told)
    writer.write(f"{1:>299999}\n")
    wait_until(lambda: not writer._waiting, "it is being written")
    writer.write("2\n")
    assert accounted_for(pipe.read_until(b"dropped 1\n")) == (1, 1)
    writer.close()


def test_a_line_that_there_is_never_room_for_is_told_of(pipe: Pipe) -> None:
    """Longer than all that may wait, while nothing does."""
    writer = LineWriter(pipe.writing, LineCounts(), most=10)
    writer.start(told)
    writer.write("x" * 11)
    assert pipe.read_until(b"dropped 1\n") == b"dropped 1\n"
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
    """A closed pipe: nobody who logs sees an error, every line is counted, and it is tried anew for a line alone."""
    reading, writing = os.pipe()
    os.close(reading)
    counts, tries = LineCounts(), []
    writer = LineWriter(writing, counts)
    writer.start(lambda count: tries.append(count) or told(count))
    for number in range(10):
        writer.write("lost\n")
        wait_until(lambda number=number: counts.dropped > number, "it is dropped")
    writer.close()
    assert counts.dropped == 10
    assert len(tries) <= 10
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
