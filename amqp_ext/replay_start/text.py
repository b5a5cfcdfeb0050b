"""
The text of a start, as it stands in address options, selectors and configuration.

``beginning``, ``live``, ``last``, ``last:100`` (the newest hundred), an RFC 3339 date with a zone, ``10m`` (ago; s m h
D), ``rmid1:…`` (after that message), ``#123`` (offset, inclusive), ``point:<name>``, ``message-id:<id>``,
``match:<selector>``.
"""

from __future__ import annotations

import re
from typing import Final

from amqp_ext.replay_start.value import (
    DATE,
    OPTION,
    SOME_DATE,
    ReplayStart,
    ReplayStartError,
    StartKind,
    check_ago,
    check_name,
    check_newest,
    check_offset,
    parse_date,
    read_id,
    shown,
)

MS_PER_DAY: Final = 86_400_000
UNITS_AGO: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "D": MS_PER_DAY}
"""Milliseconds of each unit of a time ago."""

START_TEXTS: Final = (
    f"a start is beginning, live, last, last:N, a date such as {SOME_DATE}, 10m (ago; s m h D), rmid1:…, #123, "
    "point:<name>, message-id:<id> or match:<selector>"
)
"""What is allowed, for error texts."""

# Nineteen digits are enough for any 64-bit number; int() is slow, and refuses, beyond some thousands.
_AGO: Final = re.compile(r"([0-9]{1,19})([smhD])")
_NEWEST: Final = re.compile(r"last:([0-9]{1,19})", re.IGNORECASE)
OFFSET: Final = re.compile(r"#([0-9]{1,19})")
NUMBER: Final = re.compile(r"[0-9]{1,20}")
WORDS: Final = {kind.value: kind for kind in (StartKind.BEGINNING, StartKind.LIVE, StartKind.LAST)}
_NAMED: Final = {kind.value: kind for kind in (StartKind.POINT, StartKind.MESSAGE_ID, StartKind.MATCH)}


def parse_text(text: str, form: str = OPTION) -> ReplayStart:
    """
    Read the text of a start.

    Args:
        form: Where it stood, for the sentence that refuses two starts in one attach.

    Raises:
        ReplayStartError: It is none.
    """
    if (word := text.lower()) in WORDS:
        return ReplayStart(WORDS[word], form=form)
    if found := OFFSET.fullmatch(text):
        return ReplayStart(StartKind.OFFSET, check_offset(int(found[1])), form=form)
    if found := _AGO.fullmatch(text):
        return ReplayStart(StartKind.AGO, check_ago(int(found[1]) * UNITS_AGO[found[2]]), form=form)
    if found := _NEWEST.fullmatch(text):
        return ReplayStart(StartKind.NEWEST, check_newest(int(found[1])), form=form)
    if word.startswith("rmid1:"):
        return ReplayStart(StartKind.AFTER, read_id(text), form=form)
    prefix, colon, rest = text.partition(":")
    if colon and prefix in _NAMED:
        return ReplayStart(_NAMED[prefix], check_name(prefix, rest), form=form)
    if DATE.fullmatch(text):
        return ReplayStart(StartKind.DATE, parse_date(text), form=form)
    if NUMBER.fullmatch(text):
        raise ReplayStartError(
            f"{shown(text)} could be an offset or a time; write '#{text}' for the offset, or a date such as "
            f"{SOME_DATE}."
        )
    raise ReplayStartError(f"{shown(text)} is not a replay start: {START_TEXTS}.")
