"""
What the broker of a Message VPN works on, as plain values: a message (``Row``) and the replay log's state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

Row: TypeAlias = "tuple[int, int, str, int, int | None, bytes]"
"""A message: (id, time ms, topic, offset of the bare message, held, content as received).

``held`` is None while the replay log holds the message; else the number of references that alone still hold it. It is
the one tuple a message is: it goes into the file, into memory and out to consumers as it stands."""

ID: Final = 0
TIME_MS: Final = 1
TOPIC: Final = 2
BARE: Final = 3
HELD: Final = 4
CONTENT: Final = 5
"""Where each is in a ``Row``."""


@dataclass(slots=True)
class LogState:
    """The replay log as the store has it. Its owner at run time is ``gateway.core.broker.Broker``."""

    generation: int
    first_id: int
    """The oldest id that may be in the log."""
    next_id: int
    """One past the last committed id."""
    last_time_ms: int
    """When the newest message arrived, ms since the epoch; arrival times never go back."""
    floor_ms: int
    """From this time on nothing is missing, ms since the epoch."""
    size_bytes: int = 0
    """Content of all logged messages."""
    archived_id: int = 0
    """The log is in an archive up to this id, itself included."""
