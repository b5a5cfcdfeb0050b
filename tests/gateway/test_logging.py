"""The gateway's own log: how it is set up, its lines, their rate, and lines about peers."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest
import structlog

from gateway.config import Logging
from gateway.logging import lines, log_keys
from gateway.logging.lines import (
    ADDRESS_BURST,
    ADDRESS_PER_SECOND,
    BURST,
    COUNTS,
    MOST_ADDRESSES,
    LineCounts,
    LineRate,
    LineWriter,
    PeerLines,
)
from tests.support.waiting import Clock, wait_until

# --- Log lines: their form and level; lines of libraries look the same ------------------------------------------------


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Restore the configuration of logging, which is one for the process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def logged_to(stream: io.StringIO | None = None, **said: Any) -> io.StringIO:
    """Log to this stream, with these settings."""
    stream = stream or io.StringIO()
    lines.configure(Logging(**said), stream)
    return stream


def only_line(stream: io.StringIO) -> dict[str, Any]:
    """The one line in `stream`, which must be a JSON object."""
    (line,) = stream.getvalue().splitlines()
    parsed = json.loads(line)
    assert isinstance(parsed, dict)
    return parsed


def test_a_line_is_one_json_object_with_a_utc_time() -> None:
    """Away from a terminal a line is JSON with event, level, keys and an ISO time in UTC."""
    stream = logged_to()
    structlog.get_logger().info("attached", **{log_keys.LINK: "orders-1", log_keys.MESSAGES: 3})
    line = only_line(stream)
    timestamp = line.pop("timestamp")
    assert line == {"event": "attached", "level": "info", "link": "orders-1", "messages": 3}
    assert isinstance(timestamp, str)
    assert timestamp.endswith("Z")
    assert datetime.fromisoformat(timestamp).tzinfo is UTC


@pytest.mark.parametrize(
    ("stream", "said", "is_json"),
    [
        (Terminal(), {}, False),
        (io.StringIO(), {}, True),
        (Terminal(), {"format": "json"}, True),
        (io.StringIO(), {"format": "console"}, False),
    ],
)
def test_a_terminal_gets_columns(stream: io.StringIO, said: dict[str, Any], is_json: bool) -> None:
    """`auto` writes columns if the stream is a terminal; `json` and `console` do not depend on it."""
    logged_to(stream, **said)
    structlog.get_logger().info("attached", link="orders-1")
    assert "attached" in stream.getvalue()
    assert stream.getvalue().startswith("{") is is_json


def test_lines_below_the_level_are_not_written() -> None:
    """The level applies to our lines and to those of the standard library."""
    stream = logged_to(level="warning")
    structlog.get_logger().info("attached")
    logging.getLogger("asyncio").info("selector chosen")
    structlog.get_logger().warning("refused")
    assert only_line(stream)["event"] == "refused"


def test_a_library_s_line_has_the_same_form() -> None:
    """A line of asyncio or uvicorn is JSON, too, with the logger's name."""
    stream = logged_to()
    logging.getLogger("uvicorn.error").error("cannot %s", "serve")
    line = only_line(stream)
    assert (line["event"], line["level"], line["logger"]) == ("cannot serve", "error", "uvicorn.error")


def test_a_warning_is_a_line() -> None:
    """Python's warnings go to the log, not to stderr as bare text."""
    stream = logged_to()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert "DeprecationWarning: old" in str(only_line(stream)["event"])


@pytest.mark.parametrize("logger", ["ours", "library"])
def test_an_exception_is_in_its_line(logger: str) -> None:
    """A traceback is part of its JSON object, on one line."""
    stream = logged_to()
    try:
        raise LookupError("no such endpoint")
    except LookupError:
        if logger == "ours":
            structlog.get_logger().exception("callback failed")
        else:
            logging.getLogger("asyncio").exception("callback failed")
    line = only_line(stream)
    assert line["event"] == "callback failed"
    (raised,) = line["exception"]
    assert (raised["exc_type"], raised["exc_value"]) == ("LookupError", "no such endpoint")


def test_values_json_does_not_know_are_written_all_the_same() -> None:
    """A value such as bytes never makes a log call raise."""
    stream = logged_to()
    structlog.get_logger().info("received", tag=b"\x00\xff")
    assert only_line(stream)["tag"] == repr(b"\x00\xff")


def test_configuring_twice_writes_a_library_s_line_once() -> None:
    """The last configuration replaces the first."""
    first, second = logged_to(), logged_to()
    logging.getLogger("asyncio").error("once")
    assert first.getvalue() == ""
    assert only_line(second)["event"] == "once"


def test_every_key_is_used() -> None:
    """Each key is used by some line."""
    sources = (Path(__file__).parents[2] / "gateway").rglob("*.py")
    text = "\n".join(path.read_text() for path in sources)
    keys = [name for name in vars(log_keys) if name.isupper()]
    assert [key for key in keys if f"log_keys.{key}" not in text] == []


def test_every_key_has_one_spelling() -> None:
    """No two constants stand for the same key, and a key is a lower-case word."""
    keys = [value for name, value in vars(log_keys).items() if name.isupper()]
    assert len(keys) == len(set(keys))
    assert all(key.isidentifier() and key.islower() for key in keys)


@pytest.mark.parametrize("format_", ["json", "console"])
def test_what_a_peer_says_is_cut_and_escaped(format_: Literal["json", "console"]) -> None:
    """A name of control characters is cut to 200 and escaped, so that a terminal ignores it; a line stays one line."""
    stream = logged_to(format=format_)
    hostile = "\x1b]0;owned\x07\x1b[2J\n\u202e" + "\x1b" * 64_000
    structlog.get_logger().info(
        "opened", container=hostile, names=[hostile], more={hostile: hostile}, reason=hostile
    )
    logging.getLogger("asyncio").error("odd: %s", hostile)
    text = stream.getvalue()
    assert "\x1b]" not in text
    assert "\x1b[2J" not in text
    assert "\u202e" not in text
    assert text.count("\n") == 2
    assert len(text) < 20_000


@pytest.mark.parametrize("format_", ["json", "console"])
def test_a_traceback_has_no_local_variables(format_: Literal["json", "console"]) -> None:
    """Local variables may have passwords and messages. Control characters in an error's text are escaped."""

    def sign_in(password: str) -> None:
        raise LookupError("no \x1b[2J such user")

    stream = logged_to(format=format_)
    try:
        sign_in("hunter" + "2")
    except LookupError:
        structlog.get_logger().exception("callback_failed")
        logging.getLogger("asyncio").exception("callback failed")
    text = stream.getvalue()
    assert "hunter2" not in text
    assert "\x1b[2J" not in text
    assert text.count("LookupError") >= 2
    assert "sign_in" in text


def test_what_was_dropped_is_told_in_the_log_s_own_form() -> None:
    """If stderr is not read for a while, the process goes on, and says afterwards how many lines were dropped."""
    program = (
        "import sys, structlog\n"
        "from gateway.logging import lines\n"
        "from gateway.config import Logging\n"
        "lines.configure(Logging())\n"
        "for number in range(30_000):\n"
        "    structlog.get_logger().info('line', number=number)\n"
        "print('logged', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "logged\n"
    _, written = process.communicate("end\n", timeout=60)
    lines = [json.loads(line) for line in written.splitlines()]
    dropped = sum(line["lines"] for line in lines if line["event"] == "log_lines_dropped")
    assert dropped > 0
    assert dropped + sum(line["event"] == "line" for line in lines) == 30_000


# --- A logger does not wait for the reader of the log; lines that are dropped are counted, and the count is logged ----


class Pipe:
    """A pipe that is read when the test says so."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self._found = b""

    def read_until(self, wanted: bytes) -> bytes:
        """Read up to and including ``wanted``."""
        return self.read_while(lambda found: wanted not in found)

    def read_while(self, goes_on: Callable[[bytes], bool]) -> bytes:
        """Read until ``goes_on`` is false for what was read."""
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
    """The number of lines in what was read, and the number that it reports as dropped."""
    whole = found.split(b"\n")[:-1]
    said = [int(line.split()[1]) for line in whole if line.startswith(b"dropped")]
    return sum(line.strip().isdigit() for line in whole), sum(said)


def test_who_logs_does_not_wait_for_a_blocked_pipe(pipe: Pipe) -> None:
    """
    Far more is logged than a pipe holds: what fits is kept, the rest is counted, and the count is written when the pipe
    is read again, even if nothing more is logged.
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
    """A last line that is dropped while the pipe is blocked is reported as soon as the pipe is read."""
    writer = LineWriter(pipe.writing, LineCounts(), most=300_000)
    writer.start(told)
    writer.write(f"{1:>299999}\n")
    wait_until(lambda: not writer._waiting, "it is being written")
    writer.write("2\n")
    assert accounted_for(pipe.read_until(b"dropped 1\n")) == (1, 1)
    writer.close()


def test_a_line_that_there_is_never_room_for_is_told_of(pipe: Pipe) -> None:
    """A line longer than the buffer is dropped and reported, even if the buffer is empty."""
    writer = LineWriter(pipe.writing, LineCounts(), most=10)
    writer.start(told)
    writer.write("x" * 11)
    assert pipe.read_until(b"dropped 1\n") == b"dropped 1\n"
    writer.close()


def test_the_last_lines_are_written(pipe: Pipe) -> None:
    """Lines that were logged before `close` are written."""
    writer = LineWriter(pipe.writing)
    writer.start(told)
    for number in range(100):
        writer.write(f"{number}\n")
    writer.close()
    assert pipe.read_until(b"99\n").count(b"\n") == 100


def test_a_descriptor_that_cannot_be_written_costs_its_lines_only() -> None:
    """On a closed pipe no logger gets an error, every line is counted, and only a new line causes a retry."""
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
    """A descriptor that was set to non-blocking gets every line all the same."""
    os.set_blocking(pipe.writing, False)
    writer = LineWriter(pipe.writing)
    writer.start(told)
    for number in range(3_000):
        writer.write(f"{number:>99}\n")
    assert pipe.read_until(b" 2999\n").count(b"\n") == 3_000
    writer.close()


# --- Lines of one kind about one peer are limited, and the rest counted -----------------------------------------------


def test_a_flood_of_one_kind_is_thinned_out(clock: Clock) -> None:
    """A burst is logged in full, then one line a second with the number left out; other kinds are not affected."""
    rate = LineRate(clock)
    said = []
    for _ in range(1_000):
        said.append(rate.admit("attach_refused"))
        clock.seconds += 0.01
    assert said[:BURST] == [0] * BURST
    later = [held_back for held_back in said[BURST:] if held_back is not None]
    assert 9 <= len(later) <= 10
    assert sum(later) + rate.held_back + len(later) + BURST == 1_000
    assert rate.admit("protocol_error") == 0


def test_after_a_while_a_burst_is_said_again(clock: Clock) -> None:
    """A peer that was quiet for a while has a full burst again."""
    rate = LineRate(clock)
    for _ in range(BURST + 5):
        rate.admit("attach_refused")
    clock.seconds += 1_000
    assert rate.admit("attach_refused") == 5
    assert [rate.admit("attach_refused") for _ in range(BURST)] == [0] * (BURST - 1) + [None]


# --- Lines about one address are limited together, counted and reported; few addresses are remembered -----------------


def test_every_line_is_said_or_told_of(clock: Clock) -> None:
    """Of a thousand lines a second for ten seconds a burst and some are logged; each of the others is counted once."""
    lines, before = PeerLines(clock), COUNTS.held_back
    said = told = 0
    for _ in range(10_000):
        held_back = lines.admit("10.0.0.1", "connection_refused")
        if held_back is not None:
            said += 1
            told += held_back
        clock.seconds += 0.001
    assert said == pytest.approx(ADDRESS_BURST + 10 * ADDRESS_PER_SECOND, abs=2)
    assert COUNTS.held_back - before == 10_000 - said
    assert lines.untold() == [], "more may come"
    clock.seconds += 1_000
    ((address, left),) = lines.untold()
    assert (address, said + told + left) == ("10.0.0.1", 10_000)
    assert lines.untold() == []


def test_another_address_and_another_kind_are_not_touched(clock: Clock) -> None:
    """A flood from one peer suppresses no lines about others, and none of another kind."""
    lines = PeerLines(clock)
    for _ in range(ADDRESS_BURST + 1):
        found = lines.admit("10.0.0.1", "connection_refused")
    assert found is None
    assert lines.admit("10.0.0.2", "connection_refused") == 0
    assert lines.admit("10.0.0.1", "connection_opened") == 0


def test_a_line_stands_for_those_left_out_before(clock: Clock) -> None:
    """Lines held back by one connection are included in its next line, or counted with that."""
    lines = PeerLines(clock, burst=1, per_second=1)
    assert lines.admit("10.0.0.1", "attach_refused", 7) == 7
    assert lines.admit("10.0.0.1", "attach_refused", 5) is None
    clock.seconds += 2
    assert lines.admit("10.0.0.1", "attach_refused") == 6


def test_few_addresses_are_remembered(clock: Clock) -> None:
    """What was held back for a forgotten address is reported without its name."""
    lines = PeerLines(clock, burst=1, per_second=1)
    for number in range(3 * MOST_ADDRESSES):
        for _ in range(3):
            lines.admit(str(number), "connection_refused")
    assert len(lines._rates) == MOST_ADDRESSES
    told = dict(lines.untold(all_of_them=True))
    assert told.pop("") == 2 * 2 * MOST_ADDRESSES
    assert set(told.values()) == {2}
    assert len(told) == MOST_ADDRESSES


def test_to_be_forgotten_takes_as_long_as_a_new_burst() -> None:
    """Otherwise a peer would get a new burst by waiting to be forgotten."""
    assert PeerLines(lambda: 0.0)._quiet_seconds >= lines.ADDRESS_BURST / lines.ADDRESS_PER_SECOND
