"""What rules of retention have taken out of the log, as a server has it that another gateway writes through."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from gateway.core.log import RetentionMark, taken_by
from store.errors import LogTrimmed, TakenOut
from store.postgresql.reading.connection import ReadConnection
from store.postgresql.reading.packed import number

MARKS: Final = """
    select first_id, (select json_agg(json_build_array(rule, below, whole_time))::text from retention) from log
"""


def check_is_whole(
    connection: ReadConnection,
    known: Sequence[RetentionMark],
    position: int,
    stop: int,
    patterns: Sequence[str],
) -> None:
    """
    That a page lacks nothing but what its reader knows to be missing; to be asked once it was read.

    Args:
        known: The marks of which readers were told.
        position: The first id of the page.
        stop: One past the last.
        patterns: The topics that are read; none for all.

    Raises:
        TakenOut: A rule took messages out that may have been for it.
        LogTrimmed: The log begins behind it now, and does not know any more what was taken out there.
    """
    ((first_id, text),) = connection.ask(MARKS, ())
    if number(first_id) > position:
        raise LogTrimmed(position, number(first_id))
    told = {mark.rule: mark.below for mark in known}
    marks = [RetentionMark(*mark) for mark in json.loads(text or b"[]")]
    new = [mark for mark in marks if told.get(mark.rule, 0) < min(mark.below, stop)]
    below = taken_by(new, patterns).below
    if below > position:
        raise TakenOut(position, below)
