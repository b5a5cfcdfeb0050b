"""
As whom a verb asks a gateway: a user with a password or a token, and whom it trusts to be the gateway.

The same options and environment variables for the verbs that administer and for those that speak AMQP.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


def credential_options(user_help: str) -> Callable[[F], F]:
    """The options ``user``, ``password_file`` and ``tls_ca``; what a user is for is said by who takes them."""

    def add(command: F) -> F:
        for option in reversed(
            [
                click.option("--user", envvar="REWIND_USER", help=user_help),
                click.option(
                    "--password-file",
                    type=_FILE,
                    envvar="REWIND_PASSWORD_FILE",
                    help="File with the user's password on its first line; else REWIND_PASSWORD, or a question.",
                ),
                click.option(
                    "--tls-ca",
                    "--ca",
                    "tls_ca",
                    type=_FILE,
                    envvar="REWIND_TLS_CA",
                    help="Certificates of authorities to be trusted, PEM; without, the system's.",
                ),
            ]
        ):
            command = option(command)
        return command

    return add


token_option = click.option(
    "--token-file",
    type=_FILE,
    envvar="REWIND_TOKEN_FILE",
    help="File with a bearer token on its first line, in place of a user's password; else REWIND_TOKEN.",
)


def password_of(user: str, file: Path | None) -> str:
    """
    The user's password: from the file, from the environment, or from who types it.

    Raises:
        click.UsageError: The file has none.
    """
    if file is not None:
        return first_line(file, "password")
    return os.environ.get("REWIND_PASSWORD") or _asked(user)


def authorization(user: str | None, password_file: Path | None, token_file: Path | None) -> str | None:
    """
    The header for an administration; None for nobody.

    Raises:
        click.UsageError: A file has no secret, or two ways to log in are given.
    """
    if user is not None and token_file is not None:
        raise click.UsageError("a token says by itself who asks: give --token-file or --user, not both")
    if user is not None:
        pair = f"{user}:{password_of(user, password_file)}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"
    token = first_line(token_file, "token") if token_file is not None else os.environ.get("REWIND_TOKEN")
    return f"Bearer {token}" if token else None


@cache
def trusting(url: str, authorities: Path | None) -> ssl.SSLContext:
    """
    TLS to a gateway at this URL whose certificate one of these authorities signed.

    Raises:
        click.UsageError: The file has no certificates.
    """
    if not url.lower().startswith("https:"):
        # Nobody is trusted, as nobody is asked: the authorities of the world take 20 ms to load.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return ssl.create_default_context(cafile=authorities)
    except ssl.SSLError as error:
        raise click.UsageError(f"{authorities} holds no certificate in PEM form") from error


def first_line(file: Path, what: str) -> str:
    """
    A secret that a file keeps.

    Raises:
        click.UsageError: It has none.
    """
    lines = file.read_text(encoding="utf-8").splitlines()
    if not lines or not lines[0]:
        raise click.UsageError(f"{file} has no {what} on its first line")
    return lines[0]


@cache
def _asked(user: str) -> str:
    # Once for all the requests of a verb.
    return str(click.prompt(f"Password of {user}", hide_input=True, err=True))
