"""
``rewind store``: check, back up, restore, renew and copy the stores of a gateway.

The first two work while the gateway runs; for the others it must not run. Each verb is a process of its own: two copies
of SQLite in one process must never have the same file open, and the gateway's process is for its clients.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from gateway.cli.options import Shown, needing
from gateway.cli.words import MEGABYTE, counted, number, size
from store.copies import Copied, Copying, LogRow, StoreTables, renew
from store.data_folder import DataFolder
from store.errors import StoreError

POSTGRESQL: Final = "a store in PostgreSQL", "pip install 'rewind-gateway[postgresql]'"

NICE: Final = 10
"""The nice value of a backup: a gateway that needs the processor goes first."""

_data = click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default=Path("rewind-data"),
    show_default=True,
    help="The gateway's data folder.",
)
DEFAULT_VPN: Final = "default"

vpn_option = click.option(
    "--vpn", metavar="NAME", default=DEFAULT_VPN, show_default=True, help="The Message VPN."
)
password_file_option = click.option(
    "--password-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The password of a postgresql:// url.",
)
_skip_ids = click.option(
    "--skip-ids",
    type=click.IntRange(min=0),
    help="How many ids to skip: at least as many as were given out since the backup. By default four times the average "
    "number of ids in the time since the newest message, and at least 10,000.",
)


@click.group()
def store() -> None:
    """Check, back up, restore and copy the stores of Message VPNs."""


@store.command("check")
@click.argument("places", metavar="FILES...", nargs=-1, required=True)
@vpn_option
@password_file_option
@click.pass_context
def check_store(
    context: click.Context, places: tuple[str, ...], vpn: str, password_file: Path | None
) -> None:
    """Check FILES, which may be in use, and print what is wrong; exit status 1 if anything is.

    In place of a file, the url of a PostgreSQL database checks the Message VPN of `--vpn`.
    """
    from gateway.config import masked  # noqa: PLC0415 # the other verbs do not wait for it

    is_sound = True
    for place in places:
        problems = _problems(place, vpn, password_file)
        is_sound = is_sound and not problems
        shown = masked(place)
        for problem in problems:
            click.echo(f"{shown}: {problem}")
        if not problems:
            click.echo(f"{shown}: sound")
    context.exit(0 if is_sound else 1)


def _problems(place: str, vpn: str, password_file: Path | None) -> list[str]:
    if "://" not in place:
        from store.sqlite.check import check  # noqa: PLC0415 - the other verbs do without

        return check(Path(place))
    with needing(*POSTGRESQL):
        from store.postgresql.check import check_vpn  # noqa: PLC0415 - it needs an extra
        from store.postgresql.database import Database  # noqa: PLC0415
    with _told_to_the_user():
        return check_vpn(Database(place, password_file), vpn)


@store.command()
@click.argument("file", type=click.Path(path_type=Path))
@vpn_option
@_data
@click.option("--replace", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--megabytes-per-second",
    "speed",
    type=click.FloatRange(min=0, min_open=True),
    default=50.0,
    show_default=True,
    help="How fast to copy at most.",
)
def backup(file: Path, vpn: str, data: Path, replace: bool, speed: float) -> None:
    """Back up a Message VPN to FILE, whether the gateway runs or not.

    FILE gets its name only when it is complete, checked and synced. A gateway that finds a backup in its data folder
    opens it as another log: `rewind store restore` says what that means.
    """
    from store.sqlite.copies import back_up  # noqa: PLC0415 - see above
    from store.sqlite.store import message_file  # noqa: PLC0415

    os.nice(NICE)
    with _told_to_the_user(), _bar("copying") as progress:
        found = back_up(
            message_file(data, vpn),
            file,
            replace=replace,
            bytes_per_second=speed * MEGABYTE,
            progress=progress,
        )
    click.echo(
        f"{file}: sound, {size(found.size_bytes)}, messages up to {number(found.last_id)} of the log's "
        f"generation {found.generation}"
    )


@store.command()
@click.argument("file", type=click.Path(path_type=Path))
@vpn_option
@_data
@click.option(
    "--replace", is_flag=True, help="Replace a store that exists; its file is kept under another name."
)
@_skip_ids
def restore(file: Path, vpn: str, data: Path, replace: bool, skip_ids: int | None) -> None:
    """Restore a Message VPN from the backup FILE; its gateway must not run.

    Messages published after the backup are gone, and their ids must not be given to other messages. So the log gets a
    new generation: consumers that continue from a replay id are refused (`log-modified`), Spark's streams stop
    (`[REWIND_DATA_LOSS]`), and a new archive has to be started. The plain offset of a message that is gone leads to the
    first new message, as far as `--skip-ids` reaches.
    """
    from store.sqlite.copies import restore as put_in_place  # noqa: PLC0415 - see above
    from store.sqlite.store import message_file  # noqa: PLC0415

    path = message_file(data, vpn)
    with _told_to_the_user(), _held(data), _bar("copying") as progress:
        found = put_in_place(file, path, replace=replace, skip_ids=skip_ids, progress=progress)
    click.echo(f"{path}: sound, {_renewed(found.before, found.log)}")
    if found.kept is not None:
        click.echo(f"{path}: the file that was there is now {found.kept}")


@store.command("renew")
@click.argument("place")
@vpn_option
@password_file_option
@_skip_ids
def renew_store(place: str, vpn: str, password_file: Path | None, skip_ids: int | None) -> None:
    """Give the log at PLACE a new generation; its gateway must not run.

    Use it after a recovery that `restore` did not do: of a PostgreSQL database to an earlier state, or of a disk to a
    snapshot. It also opens a store that `copy` has closed, as another log. PLACE is a data folder, a Message VPN's file
    in one, or the url of a PostgreSQL database.
    """
    with _told_to_the_user(), ExitStack() as stack:
        tables = _Places(stack, password_file).open(place, _vpn_of(place) or vpn)
        before, log = renew(tables, skip_ids)
        click.echo(f"{tables.place}: {_renewed(before, log)}")


def _renewed(before: LogRow, log: LogRow) -> str:
    return (
        f"messages up to {before.last_id:,}; the log's generation is {log.generation} now and was "
        f"{before.generation}, and the next message is {log.last_id + 1:,}"
    )


@store.command("copy")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--vpn", metavar="NAME", help="The Message VPN, if a place has several; for a file, its name.")
@click.option("--to-vpn", metavar="NAME", help="Its name at TO, if that is another.")
@password_file_option
@click.option("--as-new-log", is_flag=True, help="Give the copy a new generation, and leave FROM open.")
def copy_store(
    source: str,
    target: str,
    vpn: str | None,
    to_vpn: str | None,
    password_file: Path | None,
    as_new_log: bool,
) -> None:
    """Copy a Message VPN's store FROM one place TO another, with its ids; neither gateway must run.

    \b
    rewind store copy rewind-data postgresql://db1,db2/rewind      to PostgreSQL
    rewind store copy postgresql://db1,db2/rewind rewind-data      and back
    rewind store copy rewind-data/default.db /srv/rewind           to another folder

    A place is a data folder, a Message VPN's file in one, or the url of a PostgreSQL database. TO must be empty or
    have the unfinished copy of an interrupted run, which is then continued. At the end both are compared, the copy is
    checked, and FROM is closed: no gateway opens it any more, because the copy continues the ids of its log.
    """
    with _told_to_the_user(), ExitStack() as stack:
        places = _Places(stack, password_file)
        given = places.open(source, vpn or DEFAULT_VPN)
        wanted = places.open(target, to_vpn or vpn or _vpn_of(source) or DEFAULT_VPN, is_target=True)
        shown = Shown()

        def progress(copied: Copied) -> None:
            shown.tell(
                lambda: (
                    f"at message {number(copied.position - 1)} of {number(copied.last_id)}; copied "
                    f"{counted(copied.messages, 'message')}, {size(copied.size_bytes)}"
                ),
                copied.messages,
            )

        copy = Copying(given, wanted, as_new_log=as_new_log, progress=progress).run()
    click.echo(
        f"{wanted.place}: sound, {counted(copy.messages, 'message')}, the next is {number(copy.log.last_id + 1)}; the "
        f"log's generation is {copy.log.generation}; {counted(copy.copied.messages, 'message')} with "
        f"{size(copy.copied.size_bytes)} copied"
    )
    if copy.has_closed:
        click.echo(f"{given.place}: closed; the copy continues its ids")


def _vpn_of(place: str) -> str | None:
    """The Message VPN that a file is named after; None for other places."""
    return Path(place).stem if "://" not in place and Path(place).suffix == ".db" else None


@dataclass(frozen=True, slots=True)
class _Places:
    """Opens stores, and keeps gateways from using them until ``stack`` is closed."""

    stack: ExitStack
    password_file: Path | None
    held: set[Path] = field(default_factory=set)
    """Data folders that are locked."""

    def open(self, place: str, vpn: str, *, is_target: bool = False) -> StoreTables:
        """The store of a Message VPN at a place: a data folder, a file in one, or a url."""
        if "://" in place:
            with needing(*POSTGRESQL):
                from store.postgresql.copies import PostgresTables  # noqa: PLC0415 - it needs an extra
                from store.postgresql.database import Database  # noqa: PLC0415
            found = PostgresTables(Database(place, self.password_file), vpn, is_target=is_target)
            self.stack.callback(found.close)
            return found
        from store.sqlite.copies import SqliteTables  # noqa: PLC0415 - see above
        from store.sqlite.store import message_file  # noqa: PLC0415

        path = Path(place)
        is_file = path.suffix == ".db" and not path.is_dir()
        file = path if is_file else message_file(path, vpn)
        if not is_target and not file.is_file():
            raise StoreError("cannot copy", file, "there is no such file", "Name the Message VPN with --vpn")
        folder = file.parent.resolve()
        if folder not in self.held:
            self.stack.enter_context(_held(folder))
            self.held.add(folder)
        tables = SqliteTables(file, is_target=is_target)
        self.stack.callback(tables.close)
        return tables


@contextmanager
def _held(data: Path) -> Iterator[None]:
    """Lock a data folder, so that no gateway uses it meanwhile."""
    folder = DataFolder(data)
    try:
        yield
    finally:
        folder.release()


@contextmanager
def _told_to_the_user() -> Iterator[None]:
    """Report an error of the store in one sentence, with exit status 1."""
    try:
        yield
    except StoreError as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def _bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, where that is a terminal; the function given takes the bytes done, and the bytes in all."""
    with click.progressbar(
        length=1, label=label, file=sys.stderr, show_percent=True, item_show_func=lambda sizes: sizes
    ) as bar:

        def progress(done: int, total: int) -> None:
            bar.length = max(total, 1)
            bar.update(max(done - bar.pos, 0), f"{size(done)} of {size(total)}")

        yield progress
