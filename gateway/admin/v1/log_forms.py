"""
The forms that messages of the log are sent in over HTTP: JSON lines, Server-Sent Events, and events of many at once.

In all, a message is one JSON text on one line. An event's ``id`` is the message's offset, and the ``Last-Event-ID``
that a browser sends when it connects again. Events without data move it, and are shown to nobody: so a browser that has
seen no message yet misses none, and for one that waits for rare ones the log need not be looked through again.

Source: HTML Standard, section 9.2 (Server-sent events).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Protocol

from gateway.core.model import ID, Row

RETRY_MS: Final = 1_000
"""Milliseconds after which a browser connects again."""


ANY: Final = 1 << 62
"""Messages: no bound."""

MOST_LISTED: Final = 600
"""Messages in an event of many: with the pause between them 6,000 a second, more than anybody reads."""

LISTED_PAUSE_S: Final = 0.1
"""Seconds from one event of many to the next: a table that changes more often is no easier to follow, and each event
costs the publishers beside it."""


class LogForm(Protocol):
    """A form of messages."""

    content_type: str
    most_messages: int
    """That are written at once."""
    pause_s: float
    """Seconds from one writing to the next, at least."""
    gives_way: bool
    """Where live traffic leaves it behind, it waits for that as history does."""

    def head(self, first_id: int) -> bytes:
        """What comes before all messages, of which the first may be this one."""

    def messages(self, rows: Sequence[Row], texts: Sequence[str]) -> bytes:
        """Messages with their JSON texts."""

    def joined(self, pieces: Sequence[bytes], last_id: int) -> bytes:
        """All that ``messages`` has made since the last time, up to this message, as it is written."""

    def nothing(self, next_id: int) -> bytes:
        """Nothing below an id is to come."""

    def end(self, next_id: int) -> bytes:
        """All that was asked for has been sent."""

    def error(self, problem: dict[str, Any]) -> bytes:
        """It ends for another reason."""


class JsonLines:
    """A message a line; a last line ``{"error": …}`` where not all could be sent."""

    content_type = "application/x-ndjson"
    most_messages = ANY
    pause_s = 0.0
    gives_way = False

    def head(self, first_id: int) -> bytes:
        """Nothing."""
        return b""

    def messages(self, rows: Sequence[Row], texts: Sequence[str]) -> bytes:
        """A line each."""
        return ("\n".join(texts) + "\n").encode()

    def joined(self, pieces: Sequence[bytes], last_id: int) -> bytes:
        """One behind the other."""
        return b"".join(pieces)

    def nothing(self, next_id: int) -> bytes:
        """Nothing: not every reader of lines takes an empty one."""
        return b""

    def end(self, next_id: int) -> bytes:
        """Nothing."""
        return b""

    def error(self, problem: dict[str, Any]) -> bytes:
        """A line that is no message."""
        return json.dumps({"error": problem}).encode() + b"\n"


class ServerSentEvents:
    """An event a message."""

    content_type = "text/event-stream"
    most_messages = ANY
    pause_s = 0.0
    gives_way = False

    def head(self, first_id: int) -> bytes:
        """From where on messages come, should the connection break before the first."""
        return b"retry: %d\nid: %d\n\n" % (RETRY_MS, max(first_id - 1, 0))

    def messages(self, rows: Sequence[Row], texts: Sequence[str]) -> bytes:
        """Events."""
        return "".join(
            [f"id: {row[ID]}\ndata: {text}\n\n" for row, text in zip(rows, texts, strict=True)]
        ).encode()

    def joined(self, pieces: Sequence[bytes], last_id: int) -> bytes:
        """One behind the other."""
        return b"".join(pieces)

    def nothing(self, next_id: int) -> bytes:
        """A comment, so that whatever lies between sees that the connection lives."""
        return b":\nid: %d\n\n" % max(next_id - 1, 0)

    def end(self, next_id: int) -> bytes:
        """An event that tells a page to close its EventSource, which would connect again."""
        return b"event: end\nid: %d\ndata: {}\n\n" % max(next_id - 1, 0)

    def error(self, problem: dict[str, Any]) -> bytes:
        """An event with the error."""
        return b"event: error\ndata: " + json.dumps({"error": problem}).encode() + b"\n\n"


class ListedEvents(ServerSentEvents):
    """An event for all messages that have come since the last one, a JSON array: for a page that shows them."""

    most_messages = MOST_LISTED
    pause_s = LISTED_PAUSE_S
    gives_way = True

    def messages(self, rows: Sequence[Row], texts: Sequence[str]) -> bytes:
        """Members of the array."""
        return ",".join(texts).encode()

    def joined(self, pieces: Sequence[bytes], last_id: int) -> bytes:
        """The event."""
        return b"event: msgs\nid: %d\ndata: [%b]\n\n" % (last_id, b",".join(pieces))
