"""
Where a replay starts, as a client asks for it, brought to one value.

=============================  ================================================
our own filter                 ``filter_value.from_rewind_filter``
address option, JMS selector   ``filter_value.from_options``, ``text.parse_text``
the vendors' filters           in the vendors' folders
=============================  ================================================

Others import this package; who reads a form of his own takes what he needs from its modules.
"""

from amqp_ext.replay_start.filter_value import from_options, from_rewind_filter, is_answer
from amqp_ext.replay_start.text import parse_text
from amqp_ext.replay_start.value import (
    ANSWER,
    FILTER,
    MAX_DATE_MS,
    MAX_NEWEST,
    MAX_OFFSET,
    OPTION,
    SELECTOR,
    Missing,
    ReplayStart,
    ReplayStartError,
    StartKind,
    Until,
    UntilKind,
    combine,
    parse_date,
)

__all__ = [
    "ANSWER",
    "FILTER",
    "MAX_DATE_MS",
    "MAX_NEWEST",
    "MAX_OFFSET",
    "OPTION",
    "SELECTOR",
    "Missing",
    "ReplayStart",
    "ReplayStartError",
    "StartKind",
    "Until",
    "UntilKind",
    "combine",
    "from_options",
    "from_rewind_filter",
    "is_answer",
    "parse_date",
    "parse_text",
]
