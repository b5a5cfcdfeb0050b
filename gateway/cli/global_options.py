"""
Options that say which gateway, which Message VPN, who asks and in what form, taken before the verb and behind it.

What stands before is moved behind the verb's name, where the verb's own options are read: so the two places mean the
same, whichever verb it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import click

_TAKES_VALUE: Final = {
    "--admin": True,
    "--url": True,
    "--vpn": True,
    "--user": True,
    "--password-file": True,
    "--token-file": True,
    "--tls-ca": True,
    "--ca": True,
    "--json": False,
}
_SAME: Final = {"--ca": "--tls-ca"}


class _Said(NamedTuple):
    option: str
    value: str
    words: list[str]
    """As it was written."""


def global_options() -> list[click.Parameter]:
    """For the help of the command itself; they are read where the verb is."""
    shown = {
        "--admin": "The gateway's administration.",
        "--url": "The gateway, for verbs that speak AMQP.",
        "--vpn": "The Message VPN.",
        "--user": "Who asks.",
        "--password-file": "File with the user's password.",
        "--token-file": "File with a token in place of a user.",
        "--tls-ca": "Certificates of authorities to be trusted.",
    }
    options: list[click.Parameter] = [
        click.Option([name], metavar="…", expose_value=False, help=f"{text} Before or after the verb.")
        for name, text in shown.items()
    ]
    options.append(
        click.Option(
            ["--json"],
            is_flag=True,
            expose_value=False,
            help="JSON for programs. Before or after the verb.",
        )
    )
    return options


def behind_the_verb(root: click.Group, context: click.Context, arguments: Sequence[str]) -> list[str]:
    """
    The arguments with the global options moved behind the verb.

    Raises:
        click.UsageError: The verb does not take one of them, or one is said twice and not alike.
    """
    rest = list(arguments)
    path: list[str] = []
    before: list[_Said] = []
    command: click.Command = root
    while isinstance(command, click.Group) and rest:
        said = _said_first(rest)
        if said is not None:
            before.append(said)
            del rest[: len(said.words)]
            continue
        found = None if rest[0].startswith("-") else command.get_command(context, rest[0])
        if found is None:
            break
        path.append(rest.pop(0))
        command = found
    if isinstance(command, click.Group) and not command.invoke_without_command:
        # No verb: whatever is wrong is said without them, and if it is their own form, with them.
        return [*path, *rest] if path or rest else list(arguments)
    if not context.resilient_parsing:
        _check(" ".join(("rewind", *path)), command, before, rest)
    return [*path, *(word for said in before for word in said.words), *rest]


def _said_first(words: Sequence[str]) -> _Said | None:
    """The global option that these words begin with, if they do."""
    option, equals, value = words[0].partition("=")
    takes_value = _TAKES_VALUE.get(option)
    if takes_value is None:
        return None
    if not takes_value or equals:
        return _Said(_SAME.get(option, option), value, [words[0]])
    return _Said(_SAME.get(option, option), words[1], list(words[:2])) if len(words) > 1 else None


def _check(verb: str, command: click.Command, before: Sequence[_Said], rest: Sequence[str]) -> None:
    taken = {name for parameter in command.params for name in parameter.opts}
    first: dict[str, str] = {}
    for said in before:
        if said.words[0].partition("=")[0] not in taken:
            raise click.UsageError(f"`{verb}` takes no {said.option}; `{verb} --help` says what it takes")
    for said in (*before, *_said_in(rest, taken)):
        value = first.setdefault(said.option, said.value)
        if value != said.value:
            raise click.UsageError(f"{said.option} is said twice, {value!r} and {said.value!r}: keep one")


def _said_in(words: Sequence[str], taken: set[str]) -> list[_Said]:
    """The global options among the words behind a verb, up to ``--``."""
    words = words[: words.index("--")] if "--" in words else words
    found = [
        _said_first(words[place:]) for place, word in enumerate(words) if word.partition("=")[0] in taken
    ]
    return [said for said in found if said is not None]
