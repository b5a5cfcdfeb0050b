"""Log lines: their form, their level, and that libraries' lines look the same."""

import io
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest
import structlog

from gateway.config import Logging
from gateway.logging import lines, log_keys


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Configuration of logging belongs to the process; put it back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def only_line(stream: io.StringIO) -> dict[str, Any]:
    """The one line in `stream`, which must be a JSON object."""
    (line,) = stream.getvalue().splitlines()
    parsed = json.loads(line)
    assert isinstance(parsed, dict)
    return parsed


def test_a_line_is_one_json_object_with_a_utc_time() -> None:
    """Away from a terminal a line is JSON with event, level, keys and an ISO time in UTC."""
    stream = io.StringIO()
    lines.configure(Logging(), stream)
    structlog.get_logger().info("attached", **{log_keys.LINK: "orders-1", log_keys.MESSAGES: 3})
    line = only_line(stream)
    timestamp = line.pop("timestamp")
    assert line == {"event": "attached", "level": "info", "link": "orders-1", "messages": 3}
    assert isinstance(timestamp, str)
    assert timestamp.endswith("Z")
    assert datetime.fromisoformat(timestamp).tzinfo is UTC


def test_a_terminal_gets_columns() -> None:
    """`auto` writes for people where the stream is a terminal."""
    stream = Terminal()
    lines.configure(Logging(), stream)
    structlog.get_logger().info("attached", link="orders-1")
    assert "attached" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


@pytest.mark.parametrize(
    ("stream", "chosen", "is_json"), [(Terminal(), "json", True), (io.StringIO(), "console", False)]
)
def test_a_format_that_is_named_is_used_anywhere(
    stream: io.StringIO, chosen: Literal["json", "console"], is_json: bool
) -> None:
    """`json` and `console` do not look at the stream."""
    lines.configure(Logging(format=chosen), stream)
    structlog.get_logger().info("attached")
    assert stream.getvalue().startswith("{") is is_json


def test_lines_below_the_level_are_not_written() -> None:
    """The level holds for our lines and for the standard library's."""
    stream = io.StringIO()
    lines.configure(Logging(level="warning"), stream)
    structlog.get_logger().info("attached")
    logging.getLogger("asyncio").info("selector chosen")
    structlog.get_logger().warning("refused")
    assert only_line(stream)["event"] == "refused"


def test_a_library_s_line_has_the_same_form() -> None:
    """What asyncio or uvicorn log comes out as JSON too, with the logger's name."""
    stream = io.StringIO()
    lines.configure(Logging(), stream)
    logging.getLogger("uvicorn.error").error("cannot %s", "serve")
    line = only_line(stream)
    assert (line["event"], line["level"], line["logger"]) == ("cannot serve", "error", "uvicorn.error")


def test_a_warning_is_a_line() -> None:
    """Python's warnings go to the log, not to stderr as bare text."""
    stream = io.StringIO()
    lines.configure(Logging(), stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert "DeprecationWarning: old" in str(only_line(stream)["event"])


@pytest.mark.parametrize("logger", ["ours", "library"])
def test_an_exception_is_in_its_line(logger: str) -> None:
    """A traceback stays within its JSON object instead of spilling over many lines."""
    stream = io.StringIO()
    lines.configure(Logging(), stream)
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
    """A log call never raises over a value such as bytes."""
    stream = io.StringIO()
    lines.configure(Logging(), stream)
    structlog.get_logger().info("received", tag=b"\x00\xff")
    assert only_line(stream)["tag"] == repr(b"\x00\xff")


def test_configuring_twice_writes_a_library_s_line_once() -> None:
    """The last configuration replaces the one before."""
    first, second = io.StringIO(), io.StringIO()
    lines.configure(Logging(), first)
    lines.configure(Logging(), second)
    logging.getLogger("asyncio").error("once")
    assert first.getvalue() == ""
    assert only_line(second)["event"] == "once"


def test_every_key_is_used() -> None:
    """A key that no line has is taken out."""
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
    """A name of control characters is 200 of them, none of which a terminal obeys; a line is one line."""
    stream = io.StringIO()
    lines.configure(Logging(format=format_), stream)
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
    """Passwords and messages lie in local variables; nor does an error's text reach a terminal as it is."""

    def sign_in(password: str) -> None:
        raise LookupError("no \x1b[2J such user")

    stream = io.StringIO()
    lines.configure(Logging(format=format_), stream)
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
    """A process whose stderr is not read for a while goes on, and says afterwards what is missing."""
    program = (
        "import sys, structlog\n"
        "from gateway.logging import lines\n"
        "from gateway.config import Logging\n"
        "lines.configure(Logging())\n"
        "for number in range(60_000):\n"
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
    assert dropped + sum(line["event"] == "line" for line in lines) == 60_000
