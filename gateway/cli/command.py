"""The command ``rewind``, and its verbs that run a gateway or look at its configuration.

Exit status: 0 done, 1 failed while running, 2 wrong configuration or usage. What a program reads goes to
stdout, what a person must know to stderr.
"""

import difflib
import errno
import gc
import json
import os
import secrets
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from amqp_ext.sasl import SALT_BYTES
from amqp_ext.sasl import hash_password as hash_with_salt
from gateway import version
from gateway.cli.options import behind_the_verb, global_options

if TYPE_CHECKING:
    from gateway.config import Configuration, Overrides

EXIT_BAD_CONFIGURATION = 2

_OF_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of the operating system that, without the name of a file, are about standard output: verbs say themselves what
is wrong with their files and connections."""

NEVER_USED = ("numpy", "pandas", "rich")
"""Libraries that structlog and sqlite-utils import where they are installed, for functions that a gateway never calls.
Together they need more memory than the gateway, so it does not load them. Where an archive is read, or PostgreSQL used,
``gateway.engines.with_extra`` undoes that."""

CLIENTS = {
    "send": "gateway.cli.send:send",
    "tail": "gateway.cli.tail:tail",
    "top": "gateway.cli.top:top",
    "status": "gateway.cli.objects:status",
    "alarms": "gateway.cli.objects:alarms",
    "reload": "gateway.cli.objects:reload",
    "vpn": "gateway.cli.objects:vpn",
    "queue": "gateway.cli.objects:queue",
    "topic-endpoint": "gateway.cli.objects:topic_endpoint",
    "subscription": "gateway.cli.objects:subscription",
    "point": "gateway.cli.objects:point",
    "client": "gateway.cli.objects:client",
    "replay": "gateway.cli.replays:replay",
    "dead": "gateway.cli.replays:dead",
    "store": "gateway.cli.store:store",
    "log": "gateway.cli.log:replay_log",
    "archive": "gateway.cli.archive:archive",
    "upgrade-check": "gateway.cli.upgrade:upgrade_check",
}
"""Other verbs, and where they are: a gateway does not load them."""

_config_option = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings in TOML. Those that it does not name have their defaults.",
)


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(f"rewind {version() or '(not installed)'}")
        context.exit()


class _Verbs(click.Group):
    """All verbs; those of ``CLIENTS`` are loaded when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *CLIENTS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = CLIENTS.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = place.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, behind_the_verb(self, ctx, args))

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.filename is not None or error.errno not in _OF_OUTPUT:
                raise
            # What could not be written is discarded: Python would try to write it once more when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if error.errno == errno.EPIPE:
                # The reader of our output has closed it, such as `head`: that is no error.
                ctx.exit(0)
            click.echo(f"rewind: the output could not be written: {error.strerror}", err=True)
            ctx.exit(1)
        except UnicodeEncodeError as error:
            if error.reason != "surrogates not allowed":
                raise
            # Bytes of the command line that are no text in the terminal's encoding.
            raise click.UsageError(f"{error.object!r:.80} is not valid Unicode") from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            near = difflib.get_close_matches(name, self.list_commands(ctx))
            meant = (
                f" Did you mean {' or '.join(map(repr, near))}?" if near else " `rewind --help` lists them."
            )
            ctx.fail(f"No such command {name!r}.{meant}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Verbs, params=global_options(), context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
def main() -> None:
    """Rewind, an AMQP 1.0 gateway that can replay.

    Options may stand before or after the verb. `rewind VERB --help` shows those of a verb, with their defaults.
    """


@main.command()
@_config_option
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Data folder; default: FILE's, or rewind-data.",
)
@click.option(
    "--listen",
    multiple=True,
    metavar="HOST:PORT",
    help="Accept AMQP clients here; default: FILE's addresses, or 127.0.0.1:5672. Port 0 takes a free port; "
    "`amqps://` in front means TLS with FILE's certificate. May be repeated.",
)
@click.option(
    "--admin",
    metavar="HOST:PORT",
    help="Accept administrators (HTTP) here; default: FILE's address, or 127.0.0.1:8672.",
)
@click.pass_context
def serve(
    context: click.Context, file: Path | None, data: Path | None, listen: tuple[str, ...], admin: str | None
) -> None:
    """Run the gateway until SIGTERM or SIGINT.

    Prints one line of JSON on stdout when it is ready; logs go to stderr.
    """
    # Configuration, server and their libraries take a while to import; the other commands do not need them.
    with _loading():
        from gateway.config import Overrides  # noqa: PLC0415

    settings = configuration(context, file, Overrides(data=data, listen=listen, admin=admin))
    for name in NEVER_USED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type] # as if it were not installed
    with _loading():
        from gateway.app import serve as run  # noqa: PLC0415

    context.exit(run(settings))


@contextmanager
def _loading() -> Iterator[None]:
    """Load modules with the garbage collector off, and freeze them. It would scan them again and again in vain, which
    takes a tenth of the time of a start."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@main.command("check-config")
@_config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of TOML.")
@click.pass_context
def check_config(context: click.Context, file: Path | None, as_json: bool) -> None:
    """Print the settings in effect, or all errors in them.

    Password hashes are not shown.
    """
    from gateway.config import effective_toml  # noqa: PLC0415

    text = effective_toml(configuration(context, file).settings)
    click.echo(json.dumps(tomllib.loads(text), indent=2) if as_json else text, nl=as_json)


@main.group()
def metrics() -> None:
    """Print a dashboard and alert rules for a gateway's metrics."""


@metrics.command("dashboard")
def print_dashboard() -> None:
    """Print a dashboard for Grafana, in JSON."""
    from gateway.admin.monitoring import dashboard  # noqa: PLC0415 - a gateway does not load it

    click.echo(json.dumps(dashboard(), indent=2))


@metrics.command("rules")
@click.option("--docs", metavar="URL", help="Where this documentation is published; alerts link to it.")
def print_rules(docs: str | None) -> None:
    """Print rules for Prometheus, in YAML: when to alert, and which section of the documentation says what to do."""
    from gateway.admin.monitoring import rules  # noqa: PLC0415 - see above

    click.echo(rules(docs), nl=False)


@main.command("hash-password")
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the password from the first line of stdin.")
def hash_password(from_stdin: bool) -> None:
    """Print the hash of a password, for `password` of a user in the configuration."""
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    try:
        click.echo(hash_with_salt(password, salt=secrets.token_bytes(SALT_BYTES)))
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@main.command("new-token")
@click.argument("file", type=click.Path(path_type=Path))
def make_token(file: Path) -> None:
    """Write a fresh token to FILE, and print its hash, for `token` of a user in the configuration.

    FILE is for `--token-file`; its owner alone may read it.
    """
    from gateway.config.setting_types import new_token, token_hash  # noqa: PLC0415

    token = new_token()
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            out.write(f"{token}\n")
    except OSError as error:
        raise click.UsageError(f"{file} cannot be written: {error.strerror}") from error
    click.echo(token_hash(token))


def configuration(
    context: click.Context, file: Path | None, overrides: "Overrides | None" = None
) -> "Configuration":
    """The settings, or every problem on stderr and exit status 2."""
    from gateway.config import ConfigError, read  # noqa: PLC0415

    try:
        return read(file, overrides)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"rewind: {problem}", err=True)
        context.exit(EXIT_BAD_CONFIGURATION)
