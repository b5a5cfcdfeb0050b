"""
``rewind archive``: copy the log to a Delta table, once or continuously, and keep that table small.

Here are the verbs and their options; the work is in ``gateway.cli.archiving``, which needs deltalake and pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import click

from gateway.cli.api import Api, api_options
from gateway.cli.options import F, needing


def _work() -> ModuleType:
    """The module that does the work."""
    with needing("an archive", "pip install 'rewind-gateway[archive]'"):
        return import_module("gateway.cli.archiving")


def _bound(name: str, kind: Any, default: float, text: str) -> Callable[[F], F]:
    """An option that says when a segment ends."""
    return click.option(name, type=kind, default=default, show_default=True, help=text)


@click.group("archive", invoke_without_command=True)
@click.option("--to", metavar="PLACE", help="A folder, or a URI such as s3://bucket/folder.")
@click.option(
    "--from",
    "source",
    metavar="SOURCE",
    default="amqp://127.0.0.1:5672",
    envvar="REWIND_URL",
    show_default=True,
    help="amqp(s)://HOST:PORT, or the data folder of a gateway on this host, running or not.",
)
@click.option("--follow", is_flag=True, help="Go on with new messages, until SIGTERM or SIGINT.")
@_bound("--rows", click.IntRange(min=1), 100_000, "How many messages a segment has at most.")
@_bound("--megabytes", click.IntRange(min=1), 128, "How large a segment's messages are at most.")
@_bound(
    "--age",
    click.FloatRange(min=0),
    60.0,
    "With --follow: seconds after which a message is archived at the latest.",
)
@click.option(
    "--tell/--no-tell", default=True, show_default=True, help="Tell the gateway which messages it may trim."
)
@click.option(
    "--skip-lost", is_flag=True, help="Skip messages that were trimmed before they were archived, and go on."
)
@api_options
def archive(api: Api, to: str | None, source: str, follow: bool, **asked: Any) -> None:
    """Copy the replay log to a Delta table, from where the last run ended.

    \b
    rewind archive --from rewind-data --to /srv/archive             once
    rewind archive --to s3://bucket/archive --follow --age 10       continuously, over AMQP
    rewind archive compact --to /srv/archive                        one file for each day
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    if to is None:
        raise click.UsageError("Missing option '--to': the folder or URI of the archive.")
    _work().archive_log(api, source, to, follow=follow, **asked)


@archive.command()
@click.option("--to", required=True, metavar="PLACE", help="The archive: a folder or a URI.")
@click.option("--all", "is_all", is_flag=True, help="Also compact today's files.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each new file.")
def compact(to: str, is_all: bool, as_json: bool) -> None:
    """Make one file of each day's files. Archivers and readers may run meanwhile.

    The files that it replaces stay until a vacuum, for readers of an earlier version of the table.
    """
    _work().compact_archive(to, is_all=is_all, as_json=as_json)


@archive.command()
@click.option("--to", required=True, metavar="PLACE", help="The archive: a folder or a URI.")
@click.option(
    "--hours",
    type=click.IntRange(1),
    default=168,
    show_default=True,
    help="How long to keep the files that old versions of the table, or writers, need.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with the names of the files.")
def vacuum(to: str, hours: int, as_json: bool) -> None:
    """Remove the files that compaction replaced, and those that killed writers left."""
    _work().vacuum_archive(to, hours, as_json=as_json)


@archive.command()
@click.option("--to", required=True, metavar="PLACE", help="The archive: a folder or a URI.")
def convert(to: str) -> None:
    """Convert an archive of an earlier version to a Delta table, once. It may be interrupted, and run again."""
    _work().convert_archive(to)
