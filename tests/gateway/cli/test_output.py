"""What the command prints for people: words for numbers and times, tables, and colours on a terminal alone."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from rich.console import Console

from gateway.cli import tables, words
from gateway.cli.words import heading_of, text_of

QUEUE = {
    "queueName": "orders",
    "bindCount": 2,
    "spooledMsgCount": 1234567,
    "msgSpoolUsage": 3 << 19,
    "replayState": "failed",
}
COLUMNS = tuple(QUEUE)


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The reader is there."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (words.size(0), "0 bytes"),
        (words.size(1), "1 byte"),
        (words.size(999), "999 bytes"),
        (words.size(1_536), "1.5 kB"),
        (words.size((1 << 30) - 1), "1.0 GB"),
        (words.size(210 << 30), "210.0 GB"),
        (words.counted(1, "message"), "1 message"),
        (words.counted(1_200, "message"), "1,200 messages"),
        (words.duration(5), "5 ms"),
        (words.duration(61_000), "1 minute 1 second"),
        (words.duration(2 * words.HOUR_MS), "2 hours"),
        (words.duration(9 * words.DAY_MS + 5 * words.HOUR_MS), "9 days 5 hours"),
        (words.duration(30 * words.DAY_MS + words.HOUR_MS), "30 days"),
        (words.one_line("a\x1b[31m\nb"), "a\\x1b[31m\\nb"),
    ],
)
def test_numbers_in_words(said: str, expected: str) -> None:
    """Sizes in the settings' megabytes, counts with separators, lengths of time in two units at most, one line."""
    assert said == expected


@pytest.mark.usefixtures("in_tokyo")
@pytest.mark.parametrize(
    ("away_ms", "beside"), [(180_000, "(3 minutes ago)"), (0, "(now)"), (-2 * words.DAY_MS, "(in 2 days)")]
)
def test_a_time_is_the_reader_s_with_the_zone(away_ms: int, beside: str) -> None:
    """As the clock on the wall has it, and how far away that is."""
    at_ms = 1_767_323_045_000
    assert words.moment_and_age(at_ms, at_ms + away_ms) == f"2026-01-02 12:04:05 JST {beside}"


def test_a_time_that_no_calendar_has() -> None:
    """It is said in milliseconds: a publisher may send any."""
    assert words.moment(2**62) == "4,611,686,018,427,387,904 ms"


@pytest.mark.usefixtures("in_tokyo")
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("maxBindCount", 0, "no limit"),
        ("maxSpoolUsage", 0, "no limit"),
        ("maxSpoolUsage", 250, "250.0 MB"),
        ("maxTtl", 90, "1 minute 30 seconds"),
        ("lastReplayStartTime", 0, "never"),
        ("lastReplayStartTime", 1_767_323_045, "2026-01-02 12:04:05 JST"),
        ("oldestMsgTimeMs", None, "none"),
        ("oldestMsgTimeMs", 1_767_323_045_000, "2026-01-02 12:04:05 JST"),
        ("replayEtaMs", 1_500, "1 second"),
        ("storeConfirmedAge", 0.4, "400 ms"),
        ("usagePercent", 12.5, "12.5 %"),
        ("lastMsgId", 1_234_567, "1234567"),
        ("generation", 1_767_323_045, "1767323045"),
        ("spooledMsgCount", 1_234_567, "1,234,567"),
        ("heldBytes", 0, "0 bytes"),
        ("sentByteCount", 2048, "2.0 kB"),
        ("deadMsgQueue", "", "none"),
        ("egressEnabled", True, "yes"),
        ("lost", ["a", "b"], "a, b"),
        ("topic", "a\nb", "a\\nb"),
    ],
)
def test_attributes_in_words(name: str, value: object, expected: str) -> None:
    """The kind of a value follows from its name; an id stays a plain number, which starts as `#123` take."""
    assert text_of(name, value) == expected


def test_a_heading_is_words() -> None:
    """What no table names is the attribute's name, parted."""
    assert (heading_of("msgSpoolUsage"), heading_of("somethingNewCount")) == ("size", "something new count")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("maxBindCount", "max consumers"),
        ("spooledMsgCount", "messages"),
        ("wholeFromTimeMs", "whole from"),
        ("deadMsgQueue", "dead message queue"),
        ("somethingNewMs", "something new"),
        ("maxMsgSize", "max message size"),
    ],
)
def test_a_line_of_an_object_is_called_in_words(
    name: str, label: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the unit, which the value says; the name that `set` takes stands behind, where that is wanted."""
    tables.print_object({name: 1})
    assert capsys.readouterr().out.startswith(f"{label}  ")
    tables.print_object({name: 1}, with_names=True)
    assert capsys.readouterr().out.rstrip().endswith(f"  {name}")


def test_a_table_that_is_piped_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """As wide as it has to be, without colours and without spaces at the ends of lines."""
    long = "o" * 300
    tables.print_table([QUEUE, QUEUE | {"queueName": long, "spooledMsgCount": 0}], COLUMNS)
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["queue", "consumers", "messages", "size", "replay"]
    assert first.split() == ["orders", "2", "1,234,567", "1.5", "MB", "failed"]
    assert second.startswith(long)
    assert head == head.rstrip()
    # Numbers stand below each other.
    assert first.index("1,234,567") + len("1,234,567") == second.index(" 0 ") + 2


def test_a_list_of_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """In place of a heading without lines."""
    tables.print_table([], COLUMNS, "no queues")
    assert capsys.readouterr().out == "no queues\n"


def test_what_a_name_says_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """A queue may be called like rich's words for a colour, or like the bytes that steer a terminal."""
    tables.print_table([QUEUE | {"queueName": "[red]a\x1b[2Jb"}], COLUMNS)
    assert "[red]a\\x1b[2Jb" in capsys.readouterr().out


@pytest.mark.parametrize(("no_color", "is_red"), [(None, True), ("1", False)])
def test_a_terminal_has_colours_if_it_may(
    no_color: str | None, is_red: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed is red there, unless NO_COLOR is set; nothing is lost on a narrow one."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    screen = io.StringIO()
    on = Console(file=screen, force_terminal=True, width=40, highlight=False)
    monkeypatch.setattr(tables, "console", lambda: on)
    tables.print_object({"queueName": "q" * 90, "replayState": "failed"})
    assert ("\x1b[31mfailed" in screen.getvalue()) == is_red
    assert screen.getvalue().count("q") == 90 + len("queue") - len("ueue")


def test_json_takes_no_rich() -> None:
    """A program that asks for JSON does not wait for what draws tables to load; nor does the definition of a verb."""
    script = "import sys, gateway.cli.objects, gateway.cli.log; print('rich' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
