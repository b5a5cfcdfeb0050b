"""
Dates as people write them: RFC 3339 date-times with a zone.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Final

from amqp_ext.replay_start.fields import check_date, shown
from amqp_ext.replay_start.value import ReplayStartError

SOME_DATE: Final = "2026-01-02T03:04:05Z"
"""As it stands in error texts."""

DATE: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?([Zz]|[+-][0-9]{2}:[0-9]{2})?)?"
)
"""A date, with or without time and zone."""


def parse_date(text: str) -> int:
    """
    Milliseconds since the epoch of an RFC 3339 date-time.

    The zone is required: without it the text is not one moment. Digits beyond the millisecond are dropped, as
    the gateway drops them when it stamps a message, so that the message of that moment is not missed.

    Raises:
        ReplayStartError: It is none, or has no zone.
    """
    found = DATE.fullmatch(text)
    zone = found[8] if found else None
    if found is None or zone is None:
        raise ReplayStartError(
            f"{shown(text)} is no full date: give date, time and zone, as in {SOME_DATE} or "
            "2026-01-02T03:04:05+02:00."
        )
    hour, minute, second = int(found[4]), int(found[5]), int(found[6])
    zone_hour, zone_minute = (0, 0) if zone in "Zz" else (int(zone[1:3]), int(zone[4:6]))
    try:
        days = (date(int(found[1]), int(found[2]), int(found[3])) - date(1970, 1, 1)).days
    except ValueError:
        days = None
    # A second 60 is a leap second, which counts as the first of the next minute.
    if days is None or hour > 23 or minute > 59 or second > 60 or zone_hour > 23 or zone_minute > 59:
        raise ReplayStartError(f"{shown(text)} is no date: no calendar and clock show it.")
    east_of_utc = (zone_hour * 60 + zone_minute) * (-1 if zone[0] == "-" else 1)
    seconds = days * 86_400 + hour * 3_600 + (minute - east_of_utc) * 60 + second
    return check_date(seconds * 1_000 + int((found[7] or "").ljust(3, "0")[:3]))
