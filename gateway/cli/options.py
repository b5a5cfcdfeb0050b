"""
Options that most verbs share: the gateway, the Message VPN, credentials, trusted authorities, the form of the output.

They are accepted before and after the verb: those before it are moved after the verb's name, so both places mean the
same. Verbs that administer and verbs that speak AMQP have the same options and variables for credentials.
"""

from __future__ import annotations

import base64
import os
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, update_wrapper
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

PROGRESS_SECONDS: Final = 2.0

EXIT_INTERRUPTED: Final = 130
"""The status of a program that Ctrl-C ended, as shells have it."""

_GLOBAL: Final = {
    "--admin": ("URL", "Address of the gateway's administration."),
    "--url": ("URL", "Address of the gateway, for verbs that speak AMQP."),
    "--vpn": ("NAME", "The Message VPN."),
    "--user": ("NAME", "The user who signs in."),
    "--password-file": ("FILE", "File with the user's password."),
    "--token-file": ("FILE", "File with a token, in place of a user."),
    "--tls-ca": ("FILE", "Certificates of trusted authorities."),
    "--tls-cert": ("FILE", "Certificate to sign in by."),
    "--tls-key": ("FILE", "The key of that certificate."),
    "--json": (None, "Print JSON, for programs."),
}
"""By option, its value and its text in the help of the command itself."""

_FLAG: Final = "--json"
_SAME: Final = {"--ca": "--tls-ca"}


class _Said(NamedTuple):
    option: str
    value: str
    words: list[str]
    """The option as it was written on the command line."""


def global_options() -> list[click.Parameter]:
    """The options for the help of the command itself; the verb reads their values."""
    return [
        click.Option(
            [name],
            metavar=value,
            is_flag=name == _FLAG or None,
            expose_value=False,
            help=text,
        )
        for name, (value, text) in _GLOBAL.items()
    ]


def behind_the_verb(root: click.Group, context: click.Context, arguments: Sequence[str]) -> list[str]:
    """
    The arguments with the global options moved after the verb.

    Raises:
        click.UsageError: The verb does not take one of them, or one is given twice with different values.
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
        # There is no verb: click reports what is wrong with the other arguments, or else with the options themselves.
        return [*path, *rest] if path or rest else list(arguments)
    if not context.resilient_parsing:
        _check(" ".join(("rewind", *path)), command, before, rest)
    return [*path, *(word for said in before for word in said.words), *rest]


def _said_first(words: Sequence[str]) -> _Said | None:
    """The global option that these words begin with, if they do."""
    option, equals, value = words[0].partition("=")
    option = _SAME.get(option, option)
    if option not in _GLOBAL:
        return None
    if option == _FLAG or equals:
        return _Said(option, value, [words[0]])
    return _Said(option, words[1], list(words[:2])) if len(words) > 1 else None


def _check(verb: str, command: click.Command, before: Sequence[_Said], rest: Sequence[str]) -> None:
    taken = {name for parameter in command.params for name in parameter.opts}
    first: dict[str, str] = {}
    for said in before:
        if said.words[0].partition("=")[0] not in taken:
            raise click.UsageError(f"`{verb}` takes no {said.option}; `{verb} --help` says what it takes")
    for said in (*before, *_said_in(rest, taken)):
        value = first.setdefault(said.option, said.value)
        if value != said.value:
            raise click.UsageError(f"{said.option} is given twice, as {value!r} and {said.value!r}: keep one")


def _said_in(words: Sequence[str], taken: set[str]) -> list[_Said]:
    """The global options among the words after a verb, up to ``--``."""
    words = words[: words.index("--")] if "--" in words else words
    found = [
        _said_first(words[place:]) for place, word in enumerate(words) if word.partition("=")[0] in taken
    ]
    return [said for said in found if said is not None]


_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


def as_one(argument: str, kind: Callable[..., Any], *options: Callable[[F], F]) -> Callable[[F], F]:
    """
    A decorator for options that a verb takes as one argument.

    Args:
        kind: Makes the argument; it takes the options' values by their names.
    """

    def add(command: F) -> F:
        def with_one(*arguments: Any, **given: Any) -> Any:
            one = kind(**{name: given.pop(name) for name in names})
            return command(*arguments, **{argument: one}, **given)

        wrapped: Any = update_wrapper(with_one, command)
        before = len(getattr(wrapped, "__click_params__", ()))
        for option in reversed(options):
            wrapped = option(wrapped)
        names = [parameter.name for parameter in wrapped.__click_params__[before:]]
        result: F = wrapped
        return result

    return add


def credentials(user_help: str) -> tuple[Callable[[F], F], ...]:
    """``--user``, ``--password-file`` and the options of TLS; ``user_help`` says what the user is for."""
    return (
        click.option("--user", envvar="REWIND_USER", help=user_help),
        click.option(
            "--password-file",
            type=_FILE,
            envvar="REWIND_PASSWORD_FILE",
            help="File with the user's password on its first line; else REWIND_PASSWORD, or a prompt.",
        ),
        click.option(
            "--tls-ca",
            "--ca",
            "tls_ca",
            type=_FILE,
            envvar="REWIND_TLS_CA",
            help="Certificates of trusted authorities, in PEM; by default the system's.",
        ),
        click.option(
            "--tls-cert",
            type=_FILE,
            envvar="REWIND_TLS_CERT",
            help="A certificate to sign in by, under TLS and without --user, in PEM.",
        ),
        click.option(
            "--tls-key",
            type=_FILE,
            envvar="REWIND_TLS_KEY",
            help="The key of that certificate, in PEM; by default it is in the same file.",
        ),
    )


token_option = click.option(
    "--token-file",
    type=_FILE,
    envvar="REWIND_TOKEN_FILE",
    help="File with a bearer token on its first line, in place of a user's password; else REWIND_TOKEN.",
)


def password_of(user: str, file: Path | None) -> str:
    """
    The user's password: from the file, from the environment, or from a prompt.

    Raises:
        click.UsageError: The file has no password.
    """
    if file is not None:
        return first_line(file, "password")
    return os.environ.get("REWIND_PASSWORD") or _asked(user)


def authorization(user: str | None, password_file: Path | None, token_file: Path | None) -> str | None:
    """
    The header ``Authorization`` for an administration; None without credentials.

    Raises:
        click.UsageError: A file has no secret, or two ways to log in are given.
    """
    if user is not None and token_file is not None:
        raise click.UsageError("a token names its user: give --token-file or --user, not both")
    if user is not None:
        pair = f"{user}:{password_of(user, password_file)}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"
    token = first_line(token_file, "token") if token_file is not None else os.environ.get("REWIND_TOKEN")
    if token and not (token.isascii() and token.isprintable()):
        raise click.UsageError("the token has characters that a header cannot have")
    return f"Bearer {token}" if token else None


@cache
def trusting(
    url: str, authorities: Path | None, certificate: Path | None, key: Path | None
) -> ssl.SSLContext:
    """
    The context for TLS to a gateway at this URL, whose certificate one of these authorities has signed.

    Args:
        certificate: What the client shows of itself, if anything.
        key: Its key, if that is not in the same file.

    Raises:
        click.UsageError: A file does not have what it should.
    """
    if not url.lower().startswith("https:"):
        # It is not used, and trusts nobody: to load the system's authorities takes 20 ms.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context = ssl.create_default_context(cafile=authorities)
    except ssl.SSLError as error:
        raise click.UsageError(f"{authorities} holds no certificate in PEM form") from error
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key)
        except ssl.SSLError as error:
            raise click.UsageError(
                f"{certificate} and {key or 'its key'} are no certificate and key in PEM form; --tls-key names the "
                "key's file"
            ) from error
    return context


def first_line(file: Path, what: str) -> str:
    """
    The secret on the first line of a file.

    Raises:
        click.UsageError: The file has none, or cannot be read.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file} cannot be read: {error}") from error
    if not lines or not lines[0]:
        raise click.UsageError(f"{file} has no {what} on its first line")
    return lines[0]


@cache
def _asked(user: str) -> str:
    # Once for all the requests of a verb.
    return str(click.prompt(f"Password of {user}", hide_input=True, err=True))


class Shown:
    """Tells a person the progress of long work, at most every two seconds."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()

    def tell(self, sentence: Callable[[], str], messages: int) -> None:
        """Print the sentence on stderr, if it is time, with the rate of messages so far."""
        now = time.monotonic()
        if now - self._told >= PROGRESS_SECONDS:
            self._told = now
            click.echo(f"{sentence()}, {messages / (now - self._began):,.0f} messages a second", err=True)


@contextmanager
def needing(what: str, how: str) -> Iterator[None]:
    """Where ``what`` needs a library of an extra that is missing, say ``how`` to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{what} needs {error.name}: {how}") from None
