"""Options of all verbs stand before or behind the verb, and mean the same."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.cli.api import Api
from gateway.cli.options import behind_the_verb

NOBODY = "http://127.0.0.1:9"


def moved(*words: str) -> list[str]:
    """The arguments as the verb reads them."""
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
    """Wherever it stands among the words of the verb; a verb's own options and arguments stay."""
    assert moved(*said) == expected


def test_every_verb_can_have_its_options_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each verb that administers, the Message VPN and the form are taken before it."""
    asked: list[tuple[str, bool]] = []

    def ask(self: Api, *_args: object, **_query: object) -> None:
        asked.append((self.vpn, self.as_json))
        raise self.not_done("enough")

    monkeypatch.setattr(Api, "_ask", ask)
    verbs = [words for words, command in leaves(main) if {"--admin", "--json"} <= options(command)]
    assert len(verbs) > 40
    for words, values in verbs:
        asked.clear()
        ran = CliRunner().invoke(main, ["--vpn", "trading", "--json", *words, *values])
        assert asked, (words, ran.output)
        assert asked[0] == ("trading", True), words
        assert "enough" in ran.stderr


def options(command: click.Command) -> set[str]:
    """As they are typed."""
    return {name for parameter in command.params for name in parameter.opts}


def leaves(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[tuple[str, ...], list[str]], click.Command]]:
    """The verbs below a group with what each has to be given."""
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
        (["--vpn", "a", "queue", "--vpn", "b", "list"], "--vpn is said twice, 'a' and 'b': keep one"),
        (["--vpn", "a", "queue", "list", "--vpn=b"], "--vpn is said twice, 'a' and 'b': keep one"),
        (["queue", "list", "--vpn", "a", "--vpn", "b"], "--vpn is said twice, 'a' and 'b': keep one"),
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
    """Wrong usage is status 2 and a sentence, wherever the option stands."""
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 2
    assert sentence in ran.stderr


def test_the_same_said_twice_is_no_contradiction() -> None:
    """A script's options before the verb and a person's behind it may agree."""
    ran = CliRunner().invoke(main, ["--admin", NOBODY, "--json", "status", "--json", "--admin", NOBODY])
    assert ran.exit_code == 1
    assert NOBODY in json.loads(ran.stderr)["error"]["description"]


def test_before_wins_over_the_environment() -> None:
    """As it does behind the verb."""
    ran = CliRunner().invoke(main, ["--admin", NOBODY, "status"], env={"REWIND_ADMIN": "http://127.0.0.1:1"})
    assert NOBODY in ran.stderr


def test_no_gateway_says_how_to_have_one() -> None:
    """The next command is in the sentence."""
    ran = CliRunner().invoke(main, ["status", "--admin", NOBODY])
    assert "`rewind serve` starts a gateway; --admin, or REWIND_ADMIN, says where one is" in ran.stderr
