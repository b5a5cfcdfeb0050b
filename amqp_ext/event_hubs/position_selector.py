"""
Event Hubs' way to say where a partition is read from: a selector that compares an annotation.

Source: the clients of Azure Event Hubs (``event_position_selector`` of the one for Python).
"""

from __future__ import annotations

import re
from typing import Final

from amqp_ext.replay_start.fields import check_date, check_offset, shown
from amqp_ext.replay_start.text import NUMBER
from amqp_ext.replay_start.value import ReplayStart, ReplayStartError, StartKind

POSITION: Final = "event-hubs"
"""The form of a start that is asked for so."""

_BEFORE_ALL_EVENTS: Final = re.compile(r"-1|0{1,20}")
_BEFORE_ALL_TIMES: Final = re.compile(r"-[0-9]{1,20}|0{1,20}")
_SELECTOR: Final = re.compile(
    r"""\s*(?P<quote>"?)amqp\.annotation\.x-opt-(?P<field>offset|sequence-number|enqueued-time)(?P=quote)"""
    r"""\s*(?P<operator>>=?)\s*(?:'(?P<text>[^']*)'|(?P<number>-?[0-9]+))\s*""",
    re.ASCII,
)


def from_position_selector(text: str) -> ReplayStart | None:
    """
    Read a selector of the form that Event Hubs' clients send; None where it has another form.

    The form is one comparison, ``amqp.annotation.x-opt-offset > '5'``, with ``offset``, ``sequence-number``
    or ``enqueued-time`` (ms since the epoch) and ``>`` or ``>=``. ``'@latest'`` is live; ``'-1'`` is the beginning,
    and so is what no event can be at: the number 0, and any time up to the epoch, such as that of a date that was
    never set. Qpid JMS can send it only with the name in double quotes and the number bare, so that is read too.

    Raises:
        ReplayStartError: The form is right, and the position is none.
    """
    found = _SELECTOR.fullmatch(text)
    if found is None:
        return None
    position = found["number"] or found["text"] or ""
    by_time = found["field"] == "enqueued-time"
    if position == "@latest" and not by_time:
        return ReplayStart(StartKind.LIVE, form=POSITION)
    if (_BEFORE_ALL_TIMES if by_time else _BEFORE_ALL_EVENTS).fullmatch(position):
        return ReplayStart(StartKind.BEGINNING, form=POSITION)
    if not NUMBER.fullmatch(position):
        allowed = (
            "a time in ms since the epoch" if by_time else "a number, '-1' (beginning) or '@latest' (live)"
        )
        raise ReplayStartError(
            f"The supplied {found['field']} {shown(position)} is invalid: it is {allowed}."
        )
    # '>' means from the next one on: offsets and milliseconds are whole.
    place = int(position) + (found["operator"] == ">")
    if by_time:
        return ReplayStart(StartKind.DATE, check_date(place), form=POSITION)
    return ReplayStart(StartKind.OFFSET, check_offset(place), form=POSITION)
