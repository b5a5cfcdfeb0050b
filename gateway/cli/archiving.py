"""
The work behind ``rewind archive``: copy a log to its archive, tell the gateway what it may trim, compact.

Only this module of the gateway imports ``store.archive`` and ``spark_bridge``, which need pyarrow. That comes with an
extra, so ``gateway.cli.archive`` imports this module when the verb is run, and not before.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final, cast
from urllib.parse import urlsplit

import click

from gateway.cli.api import LOG, Api
from gateway.cli.options import Shown
from gateway.cli.words import MEGABYTE, counted, number
from spark_bridge.errors import OptionError
from spark_bridge.options import Archived, Schema, parse
from spark_bridge.places.from_options import live_log, log_place
from store.archive import maintenance
from store.archive.archiver import Archiver, Limits
from store.archive.errors import ArchiveError, LogError
from store.archive.source import ArchivableLog
from store.archive.storage import storage_at
from store.archive.table import ArchiveTable, Segment, State

NICE: Final = 5
"""The nice value of an archiver that a gateway runs: publishers go first."""

KEPT_HOURS: Final = 168
"""Hours for which such an archiver keeps the files that compaction replaced."""


@contextmanager
def told_to_the_user() -> Iterator[None]:
    """Report errors of log and archive: wrong options as wrong usage, all others as a failure."""
    try:
        yield
    except OptionError as error:
        raise click.UsageError(error.sentence) from None
    except LogError as error:
        raise click.ClickException(error.sentence) from None


class Progress:
    """Prints what is archived: for a person now and then, for a program a line for each segment."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._shown = Shown()
        self.rows = 0

    def segment(self, segment: Segment, last: int) -> None:
        """A segment is durable; ``last`` is the last id of the log."""
        self.rows += segment.rows
        if self._as_json:
            click.echo(json.dumps(asdict(segment)))
            sys.stdout.flush()
        else:
            self._shown.tell(lambda: f"archived up to message {segment.last:,} of {last:,}", self.rows)


def archive_log(
    api: Api,
    source: str,
    to: str,
    *,
    follow: bool,
    tell: bool,
    skip_lost: bool,
    **segment: Any,
) -> None:
    """
    Archive all there is, and with ``follow`` what comes, until a signal.

    Args:
        source: An AMQP url, or a data folder.
        to: The archive: a folder or a URI.
        tell: Tell the gateway what it may trim.
        skip_lost: Go on after messages that were trimmed before they were archived.
        segment: ``rows``, ``megabytes`` and ``age`` in seconds: when a segment ends, see ``Limits``.

    Raises:
        click.ClickException: It failed, or was ended by a signal before all was archived.
    """
    with told_to_the_user():
        archiver = _archiver(api, source, to, tell)
    archiver.limits = Limits(segment["rows"], segment["megabytes"] * MEGABYTE, segment["age"])
    archiver.skip_lost = skip_lost
    progress = Progress(api.as_json)
    archiver.progress = progress.segment
    archiver.warned = lambda sentence: click.echo(f"rewind: {sentence}", err=True)
    before = {
        one: signal.signal(one, lambda *_: archiver.stopped.set()) for one in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        with told_to_the_user():
            archiver.run(follow=follow)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    state = archiver.table.state
    api.done(
        {"archivedMsgId": state.last, "rows": progress.rows, "files": len(state.segments)},
        f"archived {counted(progress.rows, 'message')}; {to} has the log up to message {number(state.last)} "
        f"in {counted(len(state.segments), 'file')}",
    )
    if archiver.stopped.is_set() and not follow:
        raise click.ClickException("ended by a signal before all was archived; the next run continues there")


def _archiver(api: Api, source: str, to: str, tell: bool) -> Archiver:
    is_url = urlsplit(source).scheme in {"amqp", "amqps"}
    given = {"url" if is_url else "path": source, "messageVpn": api.vpn}
    if is_url and api.user is not None:
        if api.password_file is None:
            raise click.UsageError(
                "--user needs --password-file here: the AMQP connection has to log in, too."
            )
        given |= {"user": api.user, "passwordFile": str(api.password_file)}
    if source.startswith("amqps:") and api.tls_ca is not None:
        given["tlsCa"] = str(api.tls_ca)

    def told(last_id: int, generation: int) -> None:
        body = {"msgId": last_id, "generation": generation}
        try:
            api.act(*LOG, "archivedUpTo", body=body)
        except click.ClickException as error:
            raise ArchiveError(
                f"The gateway could not be told which messages it may trim: {error.message}"
            ) from None

    address = parse(given).addresses[0]
    assert not isinstance(address, Archived | Schema)
    return Archiver(live_log(address), storage_at(to), told=told if tell else None)


def compact_archive(to: str, *, is_all: bool, as_json: bool) -> None:
    """
    Make one file of each day's segments, and say so.

    Raises:
        click.ClickException: It failed.
    """
    replaced = 0

    def progress(segment: Segment, count: int) -> None:
        nonlocal replaced
        replaced += count
        if as_json:
            click.echo(json.dumps(asdict(segment) | {"replaced": count}))
        else:
            click.echo(
                f"{segment.file} with {counted(segment.rows, 'message')} in place of {counted(count, 'file')}",
                err=True,
            )

    with told_to_the_user():
        state = _existing(to, maintenance.compact(storage_at(to), progress, is_all=is_all))
    if not as_json:
        click.echo(
            f"{to} has {counted(len(state.segments), 'file')} now; {counted(replaced, 'file')} replaced"
        )


def _existing(to: str, state: State) -> State:
    """The state of an archive. Raises ArchiveError where there is none: the place may be mistyped."""
    if state.generation is None:
        raise ArchiveError(f"There is no archive at {to}.")
    return state


def vacuum_archive(to: str, hours: int, *, as_json: bool) -> None:
    """
    Remove files that no commit of the last hours names, and say so.

    Raises:
        click.ClickException: It failed.
    """
    with told_to_the_user():
        table = ArchiveTable(storage_at(to))
        _existing(to, table.refresh())
        gone = table.vacuum(hours)
    if as_json:
        click.echo(json.dumps({"removed": gone}))
    else:
        click.echo(f"{counted(len(gone), 'file')} removed from {to}")


def convert_archive(to: str) -> None:
    """
    Make an archive of an earlier version a table, and say so.

    Raises:
        click.ClickException: It failed.
    """
    with told_to_the_user():
        state = maintenance.convert(storage_at(to))
    click.echo(f"{to} is a Delta table of {counted(len(state.segments), 'file')} now")


def serve(to: str) -> None:
    """
    Archive for a gateway (``gateway.vpn.upkeep.archiving``), until it closes standard input. The first line of standard
    input says what to archive; each line of standard output has the last archived id and the generation. Days that are
    over are compacted, and the files that this replaces are removed after a week.
    """
    # Ctrl-C at the gateway's terminal interrupts this process, too; but the gateway ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICE)
    asked = json.loads(sys.stdin.readline())
    log = log_place(parse(asked["log"]), 0)
    storage = storage_at(to)
    compacted_day = 0

    def told(last_id: int, generation: int) -> None:
        print(json.dumps([last_id, generation]), flush=True)

    def progress(segment: Segment, _last: int) -> None:
        nonlocal compacted_day
        day = segment.last_ms // maintenance.DAY_MS
        if day > compacted_day:
            compacted_day = day
            maintenance.compact(storage)
            archiver.table.vacuum(KEPT_HOURS)

    def stop_with_the_gateway() -> None:
        sys.stdin.read()
        archiver.stopped.set()

    limits = Limits(age_seconds=asked["age_seconds"])
    archiver = Archiver(cast("ArchivableLog", log), storage, limits, told, progress)
    archiver.warned = lambda sentence: print(sentence, file=sys.stderr, flush=True)
    threading.Thread(target=stop_with_the_gateway, daemon=True).start()
    archiver.run(follow=True)


if __name__ == "__main__":
    try:
        serve(sys.argv[1])
    except LogError as error:
        sys.exit(error.sentence)
