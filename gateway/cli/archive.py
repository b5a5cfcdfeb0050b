"""`rewind archive`: the log as Parquet files, once or on and on, and its compaction.

The work is the Spark bridge's, which needs pyarrow and knows nothing of gateways; here are the verb, its progress, and
the word to the gateway that so much may be trimmed.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import time
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

import click

from gateway.cli.api import Api, api_options

ARCHIVER = "spark_bridge.archive.archiver"
MEGABYTE = 1_048_576
PROGRESS_SECONDS = 2.0


def _bridge(module: str) -> Any:
    """A module of the bridge, which is imported by name: with pyarrow it comes as an extra."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"an archive needs {error.name}: pip install 'rewind-gateway[spark]', or pyarrow and numpy alone"
        ) from None


def _carried_out(work: Any) -> Any:
    """Do it, and tell what the bridge refuses: options are wrong usage, all else has failed."""
    errors = _bridge("spark_bridge.errors")
    try:
        return work()
    except errors.OptionError as error:
        raise click.UsageError(error.sentence) from None
    except errors.BridgeError as error:
        raise click.ClickException(error.sentence) from None


class Progress:
    """What is archived, for a person at most every two seconds, for a program a line a segment."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._began = self._shown = time.monotonic()
        self.rows = 0

    def segment(self, segment: Any, last: int) -> None:
        self.rows += segment.rows
        now = time.monotonic()
        if self._as_json:
            click.echo(json.dumps(asdict(segment)))
            sys.stdout.flush()
        elif now - self._shown >= PROGRESS_SECONDS:
            self._shown = now
            rate = self.rows / (now - self._began)
            click.echo(
                f"archived up to message {segment.last:,} of {last:,}, {rate:,.0f} messages a second",
                err=True,
            )


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
@click.option("--follow", is_flag=True, help="Go on with what comes, until SIGTERM or SIGINT.")
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    help="Messages of a segment at most.",
)
@click.option(
    "--megabytes",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Size of a segment's messages at most.",
)
@click.option(
    "--age",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="With --follow: seconds after which a message is archived, however few there are.",
)
@click.option("--tell/--no-tell", default=True, show_default=True, help="Tell the gateway what it may trim.")
@click.option("--skip-lost", is_flag=True, help="Go on behind what was trimmed before it was archived.")
@api_options
def archive(
    api: Api,
    to: str | None,
    source: str,
    follow: bool,
    rows: int,
    megabytes: int,
    age: float,
    tell: bool,
    skip_lost: bool,
) -> None:
    """Copy the replay log to Parquet files, from where the last run ended.

    \b
    rewind archive --from rewind-data --to /srv/archive             once
    rewind archive --to s3://bucket/archive --follow --age 10       on and on, over AMQP
    rewind archive compact --to /srv/archive                        one file for each day
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    if to is None:
        raise click.UsageError("Missing option '--to': the folder or URI of the archive.")
    archiver = _carried_out(lambda: _archiver(api, to, source, tell))
    archiver.limits = _bridge(ARCHIVER).Limits(rows, megabytes * MEGABYTE, age)
    archiver.skip_lost = skip_lost
    progress = Progress(api.as_json)
    archiver.progress = progress.segment
    archiver.warned = lambda sentence: click.echo(f"rewind: {sentence}", err=True)
    before = {
        number: signal.signal(number, lambda *_: archiver.stop())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        _carried_out(lambda: archiver.run(follow=follow))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    state = archiver.manifest.state
    api.done(
        {"archivedMsgId": state.last, "rows": progress.rows, "files": len(state.segments)},
        f"archived {progress.rows:,} messages; {to} has the log up to message {state.last:,} "
        f"in {len(state.segments):,} files",
    )
    if archiver.stopped.is_set() and not follow:
        raise click.ClickException(
            "ended by a signal before all was archived; the next run goes on from there"
        )


def _archiver(api: Api, to: str, source: str, tell: bool) -> Any:
    errors, options = _bridge("spark_bridge.errors"), _bridge("spark_bridge.options")
    is_url = urlsplit(source).scheme in {"amqp", "amqps"}
    given = {"url" if is_url else "path": source, "messageVpn": api.vpn}
    if is_url and api.user is not None:
        if api.password_file is None:
            raise click.UsageError(
                "--user needs --password-file here: the AMQP connection has to log in, too."
            )
        given |= {"user": api.user, "passwordFile": str(api.password_file)}
    tls_ca = getattr(api, "tls_ca", None)
    if source.startswith("amqps:") and tls_ca is not None:
        given["tlsCa"] = str(tls_ca)

    def told(last_id: int, generation: int) -> None:
        body = {"msgId": last_id, "generation": generation}
        try:
            api.ask("PUT", "action", "replayLogs", "default", "archivedUpTo", body=body)
        except click.ClickException as error:
            raise errors.ArchiveError(f"The gateway was not told what it may trim: {error.message}") from None

    module = _bridge(ARCHIVER)
    shelf = _bridge("spark_bridge.archive.shelf").shelf_at(to)
    return module.Archiver(options.parse(given), shelf, told=told if tell else None)


@archive.command()
@click.option("--to", required=True, metavar="PLACE", help="The archive: a folder or a URI.")
@click.option("--all", "is_all", is_flag=True, help="Today's files, too.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a new file.")
def compact(to: str, is_all: bool, as_json: bool) -> None:
    """Make one file of each day's segments; on a folder, an archiver may be at work meanwhile."""
    replaced = 0

    def progress(segment: Any, count: int) -> None:
        nonlocal replaced
        replaced += count
        if as_json:
            click.echo(json.dumps(asdict(segment) | {"replaced": count}))
        else:
            click.echo(f"{segment.file} with {segment.rows:,} messages in place of {count:,} files", err=True)

    def work() -> Any:
        shelf = _bridge("spark_bridge.archive.shelf").shelf_at(to)
        return _bridge("spark_bridge.archive.compaction").compact(shelf, progress, is_all=is_all)

    state = _carried_out(work)
    if not as_json:
        click.echo(f"{to} has {len(state.segments):,} files now; {replaced:,} were replaced")
