"""
RabbitMQ's way to say where a stream is read from: the filter ``rabbitmq:stream-offset-spec``.

Source: RabbitMQ documentation, "Streams", and ``parse_offset_arg`` of its rabbit_stream_queue.
"""

from __future__ import annotations

import re
from typing import Any, Final

from amqp_ext.codec import Timestamp
from amqp_ext.replay_start.fields import check_ago, check_date, check_offset, is_integer, is_text, shown
from amqp_ext.replay_start.text import MS_PER_DAY, UNITS_AGO
from amqp_ext.replay_start.value import Missing, ReplayStart, ReplayStartError, StartKind

STREAM_OFFSET: Final = "rabbitmq"
"""The form of a start that is asked for so."""

_UNITS: Final = UNITS_AGO | {"M": 30 * MS_PER_DAY, "Y": 365 * MS_PER_DAY}
_INTERVAL: Final = re.compile(r"([0-9]{1,19})([YMDhms])")
_WORDS: Final = {"first": StartKind.BEGINNING, "last": StartKind.LAST, "next": StartKind.LIVE}


def from_stream_offset_spec(value: Any) -> ReplayStart:
    """
    Read the value of the filter.

    ``first``, ``last``, ``next``, an interval ago (``10m``; Y M D h m s, a month has 30 days), an offset, or a
    timestamp. A place that the log does not reach to is clamped, as RabbitMQ does; a bad value is refused, where
    RabbitMQ starts at ``next`` without a word.

    Raises:
        ReplayStartError: It is none.
    """
    kind, place = _read_stream_offset(value)
    return ReplayStart(kind, place, missing=Missing.CLAMP, form=STREAM_OFFSET)


def _read_stream_offset(value: Any) -> tuple[StartKind, int | None]:
    if isinstance(value, Timestamp):
        return StartKind.DATE, check_date(value)
    if is_integer(value):
        return StartKind.OFFSET, check_offset(value)
    if is_text(value):
        if value in _WORDS:
            return _WORDS[value], None
        if found := _INTERVAL.fullmatch(value):
            return StartKind.AGO, check_ago(int(found[1]) * _UNITS[found[2]])
    raise ReplayStartError(
        f"{shown(value)} is not a stream offset: one is first, last, next, an interval such as 10m (Y M D h m "
        "s), an integer from 0 or a timestamp."
    )
