"""The command line: what is printed where, options before the verb, and values in words."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from amqp_ext.sasl import hash_password, parse
from gateway.cli import command, main, tables, words
from gateway.cli.api import Api
from gateway.cli.options import behind_the_verb
from gateway.cli.words import heading_of, text_of
from gateway.config import Configuration, Listener, Settings

# --- The command line: what is printed where, and with which exit status ----------------------------------------------


def rewind(*arguments: str | Path, stdin: str | None = None) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(
        main, [str(argument) for argument in arguments], input=stdin, prog_name="rewind"
    )


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings with which `serve` was called; the server itself is replaced, and exits with status 7."""
    started: list[Settings] = []

    def serve(configuration: Configuration) -> int:
        started.append(configuration.settings)
        return 7

    app = ModuleType("gateway.app")
    monkeypatch.setattr(app, "serve", serve, raising=False)
    monkeypatch.setitem(sys.modules, "gateway.app", app)
    monkeypatch.setattr(command, "NEVER_USED", ())  # other tests in this process may use them
    return started


def test_serve_without_options_serves_the_defaults(served: list[Settings]) -> None:
    """No configuration is needed, and the server's exit status is the command's."""
    result = rewind("serve")
    assert (result.exit_code, served) == (7, [Settings()])


def test_options_win_over_the_file(served: list[Settings], tmp_path: Path) -> None:
    """`--data`, `--listen` and `--admin` replace the file's values; all others stay."""
    file = tmp_path / "rewind.toml"
    file.write_text("data = 'elsewhere'\n[[listener]]\nport = 1\n[log]\nlevel = 'debug'\n")
    places = ["--listen", "127.0.0.1:0", "--listen", "[::1]:0", "--admin", "127.0.0.1:0"]
    assert rewind("serve", "--config", file, "--data", tmp_path, *places).exit_code == 7
    (settings,) = served
    assert settings.data == tmp_path
    assert settings.listeners == (Listener(port=0), Listener(host="::1", port=0))
    assert settings.admin.port == 0
    assert settings.log.level == "debug"


@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_a_wrong_configuration_is_status_2_with_every_problem(
    command: str, served: list[Settings], tmp_path: Path
) -> None:
    """Each problem is a line on stderr, stdout is empty, and nothing is started."""
    file = tmp_path / "rewind.toml"
    file.write_text("dta = 1\n[log]\nlevel = 'loud'\n")
    result = rewind(command, "--config", file)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "rewind: log.level should be 'debug', 'info', 'warning' or 'error', not \"loud\"",
        "rewind: dta is not a setting; did you mean `data`?",
    ]
    assert served == []


def test_a_wrong_option_is_status_2(served: list[Settings]) -> None:
    """An address that cannot be listened on is explained on stderr."""
    result = rewind("serve", "--listen", "5672")
    assert (result.exit_code, result.stdout, served) == (2, "", [])
    assert result.stderr.startswith("rewind: --listen 5672: the port is missing")


def test_check_config_prints_the_settings_in_effect(tmp_path: Path) -> None:
    """As TOML, with defaults and without hashes; `--json` prints the same for programs."""
    stored = hash_password("secret", salt=b"0123456789abcdef")
    file = tmp_path / "rewind.toml"
    file.write_text(f'[user.ann]\npassword = "{stored}"\n')
    result = rewind("check-config", "--config", file)
    shown = tomllib.loads(result.stdout)
    assert (result.exit_code, shown["limits"]["max_connections"]) == (0, 10_000)
    assert "ann" in shown["user"]
    assert stored not in result.stdout
    assert json.loads(rewind("check-config", "--config", file, "--json").stdout) == shown


@pytest.mark.parametrize(("options", "typed"), [(["--stdin"], "secret\n"), ([], "secret\nsecret\n")])
def test_a_password_s_hash_is_all_there_is_on_stdout(options: list[str], typed: str) -> None:
    """The hash can be piped, differs from run to run, and the password is not printed."""
    first, second = (rewind("hash-password", *options, stdin=typed) for _ in range(2))
    assert first.exit_code == 0
    for result in (first, second):
        (line,) = result.stdout.splitlines()
        parse(line)
        assert "secret" not in result.output
    assert first.stdout != second.stdout


@pytest.mark.parametrize(
    ("options", "typed", "sentence"),
    [
        ([], "secret\nsecrets\n", "do not match"),
        (["--stdin"], "\n", "a password may not be empty"),
    ],
)
def test_no_hash_is_made_of_what_is_no_password(options: list[str], typed: str, sentence: str) -> None:
    """A repetition that differs, or an empty password."""
    result = rewind("hash-password", *options, stdin=typed)
    assert result.exit_code != 0
    assert result.stdout == ""
    assert sentence in result.stderr


def test_the_package_is_the_command() -> None:
    """`python -m gateway` is `rewind`, under that name."""
    run = subprocess.run(
        [sys.executable, "-m", "gateway", "--version"], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("rewind ")
    assert run.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_output_that_nobody_takes() -> None:
    """Where output cannot be written, every verb ends with a sentence; a reader that left, like `head`, is no error."""
    command = [sys.executable, "-m", "gateway", "check-config"]
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    sentence = "rewind: the output could not be written: No space left on device\n"
    assert (run.returncode, run.stderr) == (1, sentence)
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (run.returncode, run.stderr) == (0, "")


# --- Options of all verbs may be before or after the verb, and mean the same ------------------------------------------

NOBODY = "http://127.0.0.1:9"


def moved(*words: str) -> list[str]:
    """The arguments as the verb gets them."""
    return behind_the_verb(main, click.Context(main), words)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (["queue", "list", "--vpn", "a"], ["queue", "list", "--vpn", "a"]),
        (["--vpn", "a", "queue", "list"], ["queue", "list", "--vpn", "a"]),
        (["queue", "--json", "list", "--where", "x"], ["queue", "list", "--json", "--where", "x"]),
        (["--json", "log", "--vpn=a", "filter", "list"], ["log", "filter", "list", "--json", "--vpn=a"]),
        (["--vpn", "a", "archive", "--to", "x"], ["archive", "--vpn", "a", "--to", "x"]),
        (["archive", "--json", "compact", "--to", "x"], ["archive", "compact", "--json", "--to", "x"]),
        (["--ca", "x", "tail", "q"], ["tail", "--ca", "x", "q"]),
        (["--admin", "127.0.0.1:0", "serve"], ["serve", "--admin", "127.0.0.1:0"]),
        (["--vpn", "queue", "status"], ["status", "--vpn", "queue"]),
        (["queue", "delete", "--", "--json"], ["queue", "delete", "--", "--json"]),
    ],
)
def test_what_stands_before_is_read_behind(said: list[str], expected: list[str]) -> None:
    """The options move behind the verb; the verb's own options and arguments stay where they are."""
    assert moved(*said) == expected


def test_every_verb_can_have_its_options_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every verb of administration takes --vpn and --json before it."""
    asked: list[tuple[str, bool]] = []

    def ask(self: Api, *_args: object, **_query: object) -> None:
        asked.append((self.vpn, self.as_json))
        raise self.not_done("enough")

    monkeypatch.setattr(Api, "_ask", ask)
    verbs = [verb for verb, command in leaves(main) if {"--admin", "--json"} <= options(command)]
    assert len(verbs) > 40
    for verb, values in verbs:
        asked.clear()
        ran = CliRunner().invoke(main, ["--vpn", "trading", "--json", *verb, *values])
        assert asked, (verb, ran.output)
        assert asked[0] == ("trading", True), verb
        assert "enough" in ran.stderr


def options(command: click.Command) -> set[str]:
    """The names of a command's options."""
    return {name for parameter in command.params for name in parameter.opts}


def leaves(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[tuple[str, ...], list[str]], click.Command]]:
    """The verbs of a group, each with examples of its required arguments and options."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            if not command.invoke_without_command:
                yield from leaves(command, (*path, name))
        else:
            required = [p for p in command.params if p.required]
            given = [_example(p) for p in required if isinstance(p, click.Argument)]
            given += ["5"] if name == "erase" else []  # it needs ids or a selector
            for option in (p for p in required if isinstance(p, click.Option)):
                given += [option.opts[0], _example(option)]
            yield ((*path, name), given), command


def _example(argument: click.Parameter) -> str:
    match argument.type:
        case click.Choice() as choice:
            return str(choice.choices[0])
        case click.types.IntParamType():
            return "5"
    return "a=1"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--vpn", "a", "queue", "--vpn", "b", "list"], "--vpn is given twice, as 'a' and 'b': keep one"),
        (["--vpn", "a", "queue", "list", "--vpn=b"], "--vpn is given twice, as 'a' and 'b': keep one"),
        (["queue", "list", "--vpn", "a", "--vpn", "b"], "--vpn is given twice, as 'a' and 'b': keep one"),
        (
            ["--json", "store", "check", "f"],
            "`rewind store check` takes no --json; `rewind store check --help` says",
        ),
        (["--url", "amqp://h:1", "status"], "`rewind status` takes no --url"),
        (["--bogus", "queue", "list"], "No such option '--bogus'"),
        (["--vpn"], "Option '--vpn' requires an argument"),
        (["--vpn", "a"], "Missing command"),
        (["--vpn", "a", "queu", "list"], "No such command 'queu'. Did you mean 'queue'?"),
        (["wholly-other"], "No such command 'wholly-other'. `rewind --help` lists them."),
        (["--json", "queue", "lst"], "No such command 'lst'. (Did you mean one of: 'list', 'set'?)"),
    ],
)
def test_what_contradicts_is_said(words: list[str], sentence: str) -> None:
    """A wrong usage is status 2 and a sentence, before or after the verb."""
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 2
    assert sentence in ran.stderr


def test_the_same_said_twice_is_no_contradiction() -> None:
    """An option may be given before and after the verb, if both values are the same."""
    ran = CliRunner().invoke(main, ["--admin", NOBODY, "--json", "status", "--json", "--admin", NOBODY])
    assert ran.exit_code == 1
    assert NOBODY in json.loads(ran.stderr)["error"]["description"]


def test_before_wins_over_the_environment() -> None:
    """As an option after the verb does. If no gateway is there, the command to start one is printed."""
    ran = CliRunner().invoke(main, ["--admin", NOBODY, "status"], env={"REWIND_ADMIN": "http://127.0.0.1:1"})
    assert NOBODY in ran.stderr
    assert "`rewind serve` starts a gateway; --admin, or REWIND_ADMIN, says where one is" in ran.stderr


# --- What the command prints for people: numbers and times in words, tables, and colours on a terminal only -----------

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
    """The local time zone is Tokyo's."""
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
    """Sizes in megabytes as in the settings, counts with separators, durations in at most two units."""
    assert said == expected


@pytest.mark.usefixtures("in_tokyo")
@pytest.mark.parametrize(
    ("away_ms", "beside"), [(180_000, "(3 minutes ago)"), (0, "(now)"), (-2 * words.DAY_MS, "(in 2 days)")]
)
def test_a_time_is_the_reader_s_with_the_zone(away_ms: int, beside: str) -> None:
    """Local time with the zone, and how long ago or ahead it is."""
    at_ms = 1_767_323_045_000
    assert words.moment_and_age(at_ms, at_ms + away_ms) == f"2026-01-02 12:04:05 JST {beside}"


def test_a_time_that_no_calendar_has() -> None:
    """It is printed in milliseconds: a publisher may send any value."""
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
    """The format follows from the attribute's name; an id stays a plain number, as in the start `#123`."""
    assert text_of(name, value) == expected


def test_a_heading_is_words() -> None:
    """An attribute without a label of its own gets its name, split into words."""
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
    """The label leaves out the unit, which the value has; the attribute's name for `set` follows if requested."""
    tables.print_object({name: 1})
    assert capsys.readouterr().out.startswith(f"{label}  ")
    tables.print_object({name: 1}, with_names=True)
    assert capsys.readouterr().out.rstrip().endswith(f"  {name}")


def test_a_table_that_is_piped_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """
    As wide as needed, without colours or trailing blanks. Markup of rich and control characters in a queue's name have
    no effect.
    """
    long, odd = "o" * 300, "[red]a\x1b[2Jb"
    tables.print_table(
        [QUEUE, QUEUE | {"queueName": long, "spooledMsgCount": 0}, QUEUE | {"queueName": odd}], COLUMNS
    )
    head, first, second, third = capsys.readouterr().out.splitlines()
    assert head.split() == ["queue", "consumers", "messages", "size", "replay"]
    assert first.split() == ["orders", "2", "1,234,567", "1.5", "MB", "failed"]
    assert second.startswith(long)
    assert third.startswith("[red]a\\x1b[2Jb")
    assert head == head.rstrip()
    # Numbers are aligned to the right.
    assert first.index("1,234,567") + len("1,234,567") == second.index(" 0 ") + 2
    tables.print_table([], COLUMNS, "no queues")
    assert capsys.readouterr().out == "no queues\n", "in place of a heading without lines"


@pytest.mark.parametrize(("no_color", "is_red"), [(None, True), ("1", False)])
def test_a_terminal_has_colours_if_it_may(
    no_color: str | None, is_red: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed state is red, unless NO_COLOR is set; on a narrow terminal no text is lost."""
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
    """The slow import of rich, which draws tables, is needed neither for --json nor to define the verbs."""
    script = "import sys, gateway.cli.objects, gateway.cli.log; print('rich' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
