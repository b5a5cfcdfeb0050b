"""
Tables and objects for people, printed by rich. Import this module where something is printed, not where a verb is
defined, because it loads rich.

On a terminal, output has the terminal's width and colours (``NO_COLOR`` is respected). Elsewhere it has no colours, and
a line is as long as it has to be.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.cli.words import Kind, heading_of, kind_of, label_of, style_of, text_of

_LINE: Final = 10_000
"""Width of a line where there is no terminal."""


def console() -> Console:
    """The console on the standard output as it is now."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal's encoding lacks must not stop the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    return Console(highlight=False, markup=False, emoji=False)


def show(what: RenderableType) -> None:
    """Print in colour on a terminal, elsewhere as plain lines without trailing spaces."""
    on = console()
    if on.is_terminal:
        on.print(what)
        return
    plain = Console(file=io.StringIO(), width=_LINE, color_system=None, highlight=False, markup=False)
    with plain.capture() as captured:
        plain.print(what)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def table_of(things: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    """A row for each object, a column for each of these attributes."""
    rows = list(things)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in columns:
        is_number = any(kind_of(name, row.get(name)) in _RIGHT for row in rows)
        table.add_column(heading_of(name), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(
            *(Text(text_of(name, row.get(name)), style=style_of(row.get(name))) for name in columns)
        )
    return table


_RIGHT: Final = frozenset(
    {Kind.COUNT, Kind.BYTES, Kind.MEGABYTES, Kind.PERCENT, Kind.DURATION_MS, Kind.DURATION_S}
)


def print_table(things: Iterable[Mapping[str, Any]], columns: Sequence[str], empty: str = "none") -> None:
    """Print a table, or the sentence ``empty`` where there are no rows."""
    table = table_of(things, columns)
    if table.row_count:
        show(table)
    else:
        click.echo(empty)


def print_object(data: Mapping[str, Any], *, with_names: bool = False) -> None:
    """
    Print a line for each attribute.

    Args:
        with_names: Also print the attribute's name in the interface, which ``set`` and ``--where`` take.
    """
    now_ms = time.time() * 1_000
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    if with_names:
        table.add_column(style="dim")
    for name, value in data.items():
        names = (Text(name),) if with_names else ()
        table.add_row(Text(label_of(name)), Text(text_of(name, value, now_ms), style=style_of(value)), *names)
    show(table)
