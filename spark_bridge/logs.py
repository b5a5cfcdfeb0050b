"""The two ways into a log, a broker's link and a gateway's file, behind the same few functions.

``place`` is an index into ``Options.places``: the column ``partition``. Nothing here is kept between calls.
Invariant: ``read`` gives every row of its range exactly once, or raises DataLoss, unless ``failOnDataLoss`` is
false: then it leaves out what the log no longer has, and says so on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from amqp_ext.message.annotations import Splicer
from spark_bridge.errors import ConnectionFailed, DataLoss
from spark_bridge.log_file import LogFile
from spark_bridge.log_link import (
    IdRange,
    LogLink,
    address,
    extent,
    filtered_here,
    live,
    survey,
    topic_filter,
)
from spark_bridge.options import Broker, Folder, Options
from spark_bridge.rows import Rows
from spark_bridge.wire import Wire

if TYPE_CHECKING:
    import pyarrow as pa

Columns: TypeAlias = "tuple[tuple[str, str], ...]"

STRETCH = 2_000  # offsets read at a time when the log may be trimmed under the read without failing it


def plan(options: Options, place: int) -> IdRange:
    """What a read with these options means now, to be pinned."""
    where = options.places[place]
    if isinstance(where, Folder):
        with LogFile(where) as file:
            return file.plan(options, place)
    return survey(options, place)


def held(options: Options, place: int) -> IdRange:
    """What the log holds now."""
    where = options.places[place]
    if isinstance(where, Folder):
        with LogFile(where) as file:
            return file.extent()
    assert isinstance(where, Broker)
    with Wire(where) as wire:
        return extent(live(wire, address(options.patterns)), where.url)


def steps(
    options: Options, columns: Columns, place: int, ids: IdRange
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows of one range as Arrow batches, some of them empty, each with the id to go on from behind it.

    Raises DataLoss when the log does not hold all of the range, whatever ``failOnDataLoss`` says.
    """
    way = _from_file if isinstance(options.places[place], Folder) else _from_broker
    return way(options, columns, place, ids)


def read(options: Options, columns: Columns, place: int, ids: IdRange) -> Iterator[pa.RecordBatch]:
    """The rows of one range as Arrow batches, the same each time."""

    def way(ids: IdRange) -> Iterator[pa.RecordBatch]:
        return (batch for batch, _ in steps(options, columns, place, ids) if batch.num_rows)

    if ids.last < ids.first:
        return
    if options.fail_on_data_loss:
        yield from way(ids)
        return
    while ids.first <= ids.last:
        now = held(options, place)
        if now.generation != ids.generation or now.first > ids.last or now.last < ids.first:
            say(f"Offsets {ids.first} to {ids.last} are no longer in the log; they are left out.")
            return
        if now.first > ids.first:
            say(f"Offsets {ids.first} to {now.first - 1} are no longer in the log; they are left out.")
        if now.last < ids.last:
            say(f"Offsets {now.last + 1} to {ids.last} are no longer in the log; they are left out.")
        ids = replace(ids, first=max(ids.first, now.first), last=min(ids.last, now.last))
        stop = min(ids.last, ids.first + STRETCH - 1)
        batches = way(replace(ids, last=stop))
        given = False
        try:
            for batch in batches:
                given = True
                yield batch
        except DataLoss:
            after = held(options, place)
            # Rows of this stretch that are out cannot be taken back: only an untouched one is tried again.
            if given or after == now:
                raise
            continue
        ids = replace(ids, first=stop + 1)


def _from_file(
    options: Options, columns: Columns, place: int, ids: IdRange
) -> Iterator[tuple[pa.RecordBatch, int]]:
    where = options.places[place]
    assert isinstance(where, Folder)
    assert ids.generation is not None
    is_whole = ">" in options.patterns and not any(pattern.startswith("!") for pattern in options.patterns)
    rows = Rows(columns, None if is_whole else topic_filter(options.patterns), place)
    splicer = Splicer(ids.generation)
    with LogFile(where) as file:
        for page in file.pages(ids, rows.needs_content):
            yield rows.stored(page, splicer, ids.generation), page[-1][0] + 1


def _from_broker(
    options: Options, columns: Columns, place: int, ids: IdRange
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """A consumer that is slower than the broker's patience (its idle time-out) loses the connection between two
    batches; the rest is then read over a new one, as long as each brings the read forward."""
    where, patterns = options.places[place], options.patterns
    assert isinstance(where, Broker)
    rest = ids
    rows = Rows(columns, topic_filter(patterns) if filtered_here(patterns) else None, place)
    while rest.first <= rest.last:
        with Wire(where) as wire:
            link = LogLink(wire, address(patterns), rest)
            try:
                for page in link.pages():
                    batch, offsets = rows.batch(page)
                    link.check(offsets)
                    yield batch, link.rest.first
                return
            except ConnectionFailed as error:
                if link.rest == rest:
                    raise DataLoss(
                        f"Offsets {rest.first} to {rest.last} could not be read. {error.sentence}"
                    ) from error
                rest = link.rest


def say(sentence: str) -> None:
    """Tell whoever reads the worker's stderr."""
    print(f"rewind: {sentence}", file=sys.stderr, flush=True)
